//! Sessions between hosts, on one host: over the loopback, with a secret.

use std::time::{Duration, Instant};

use penstock::session::frame::RefusalCode;
use penstock::{Cause, ConnectError, PoolSpec, SecretFileError, StartError};

use crate::hosts::*;

#[test]
fn two_engines_meet_at_an_address_and_at_a_descriptor() {
    let folder = Folder::new("meet");
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        let b = start(config(&folder, "b").listen([listen]));
        let a = start(config(&folder, "a"));
        let pool = b.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
        let peer = call(&a, &b);
        assert_eq!((peer.name().as_str(), peer.transport()), ("b", "far"));
        assert_eq!(peer.address(), Some(address(&b)));
        assert_eq!(peer.region("kv").unwrap().bytes(), 1 << 20);
        drop(pool);
        until("the other side has the session, too", || b.peers().len() == 1);
        until("all streams have come", || attached(&a) == STREAMS && attached(&b) == STREAMS);
        assert!(peer.ping(SOON).unwrap() > Duration::ZERO);
        // By its descriptor it is found again, not connected twice.
        let again = a.connect(&b.descriptor(), SOON).unwrap();
        assert_eq!((again.epoch(), a.peers().len()), (peer.epoch(), 1));
        let again = call(&a, &b);
        assert_eq!((again.epoch(), a.peers().len()), (peer.epoch(), 1));
        assert!(peer.disconnect(SOON));
        until("both sides have none", || a.peers().is_empty() && b.peers().is_empty());
        let other = a.connect(&b.descriptor(), SOON).unwrap();
        assert_eq!(other.name().as_str(), "b");
    }
}

#[test]
fn a_descriptor_names_what_is_advertised_or_all_of_this_host() {
    let folder = Folder::new("card");
    let card = |engine: &E| penstock::session::EngineDescriptor::decode(&engine.descriptor()).unwrap();
    let a = start(config(&folder, "a").listen(["0.0.0.0:0"]));
    let port = address(&a).port();
    assert_ne!(port, 0);
    let named = card(&a).addresses;
    assert!(
        !named.is_empty() && named.iter().all(|text| text.ends_with(&format!(":{port}")) && !text.contains("0.0.0.0"))
    );
    let mut elsewhere = config(&folder, "b").listen(["127.0.0.1:0"]);
    elsewhere.session.advertise = vec!["192.0.2.1:7400".to_owned()];
    assert_eq!(card(&start(elsewhere)).addresses, ["192.0.2.1:7400"]);
    assert!(card(&start(config(&folder, "c"))).addresses.is_empty());
}

#[test]
fn an_address_that_is_taken_is_named_in_the_error() {
    let folder = Folder::new("taken");
    let a = start(listening(&folder, "a"));
    let second = config(&folder, "b").listen([address(&a)]);
    let error = penstock::Engine::start_with(penstock::SystemEnv, second, vec![std::sync::Arc::new(Far)]).unwrap_err();
    assert!(matches!(error, StartError::Network { .. }), "{error}");
    assert!(error.to_string().contains(&address(&a).to_string()), "{error}");
}

#[test]
fn a_wrong_secret_is_told_on_both_sides_and_changes_nothing() {
    let folder = Folder::new("wrong");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a").secret_file(folder.secret(8)));
    let begun = Instant::now();
    let error = a.connect_address(&address(&b).to_string(), 4 * SOON).unwrap_err();
    assert!(matches!(error, ConnectError::WrongSecret { .. }), "{error}");
    assert!(error.to_string().contains("secret file"), "{error}");
    assert!(begun.elapsed() < SOON);
    until("it is counted", || b.network_statistics().wrong_secret == 1);
    assert!(a.peers().is_empty() && b.peers().is_empty());
    let c = start(config(&folder, "c"));
    call(&c, &b);
}

#[test]
fn a_secret_that_cannot_be_used_is_refused_where_it_is_needed() {
    let folder = Folder::new("files");
    let b = start(listening(&folder, "b"));
    let with = |path: &std::path::Path| config(&folder, "a").secret_file(path);
    let try_to_listen = |path: &std::path::Path| {
        let config = with(path).listen(["127.0.0.1:0"]);
        penstock::Engine::start_with(penstock::SystemEnv, config, vec![std::sync::Arc::new(Far)]).map(drop)
    };
    let missing = folder.0.join("none");
    assert!(matches!(try_to_listen(&missing), Err(StartError::Secret(SecretFileError::Missing(_)))));
    let open = folder.0.join("open");
    write_secret(&open, &"ab".repeat(32), 0o644);
    assert!(matches!(try_to_listen(&open), Err(StartError::Secret(SecretFileError::Exposed { .. }))));
    // Who does not listen needs it when it calls, and the file may be mended by then.
    let a = start(with(&open));
    let error = a.connect_address(&address(&b).to_string(), SOON).unwrap_err();
    assert!(matches!(error, ConnectError::Secret(SecretFileError::Exposed { .. })), "{error}");
    write_secret(&open, &"07".repeat(32), 0o600);
    call(&a, &b);
}

#[test]
fn a_secret_given_itself_comes_before_all_files() {
    let folder = Folder::new("given");
    let (digits, none) = ("5e".repeat(32), folder.0.join("none"));
    let with = |name: &str, secret: &str| config(&folder, name).secret_file(&none).secret(secret);
    let b = start(with("b", &digits).listen(["127.0.0.1:0"]));
    call(&start(with("a", &digits)), &b);
    let error = start(with("c", &"07".repeat(32))).connect_address(&address(&b).to_string(), SOON).unwrap_err();
    assert!(matches!(error, ConnectError::WrongSecret { .. }), "{error}");
    assert!(!none.exists(), "no file is made");
    for bad in ["", "5e", &"5g".repeat(32)] {
        let refused = penstock::Engine::start(with("d", bad)).unwrap_err();
        assert!(matches!(refused, StartError::Secret(SecretFileError::Given { .. })), "{refused}");
        assert!(!refused.to_string().contains("5g"), "{refused}");
    }
}

#[test]
fn a_name_that_is_taken_is_refused_while_its_bearer_lives() {
    let folder = Folder::new("taken-name");
    let b = start(listening(&folder, "b"));
    let first = start(config(&folder, "twin"));
    let peer = call(&first, &b);
    let other = Folder::new("taken-name-2");
    let second = start(config(&other, "twin"));
    let begun = Instant::now();
    let error = second.connect_address(&address(&b).to_string(), 4 * SOON).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { code: RefusalCode::NameTaken, .. }), "{error}");
    assert!(begun.elapsed() < SOON);
    assert_eq!(peer.ended(), None);
    assert_eq!(b.peers().len(), 1);
    drop(first);
    until("its session has ended", || b.peers().is_empty());
    call(&second, &b);
}

#[test]
fn an_engine_that_came_back_under_its_name_is_found_again() {
    let folder = Folder::new("back");
    let a = start(config(&folder, "a"));
    let b = start(listening(&folder, "b"));
    let at = address(&b);
    let peer = call(&a, &b);
    drop(b);
    until("the end is known", || peer.ended().is_some());
    let b = start(config(&folder, "b").listen([at]));
    let begun = Instant::now();
    let again = a.reconnect(&peer, SOON).unwrap();
    assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(again.epoch(), b.epoch());
    assert_ne!(again.epoch(), peer.epoch());
}

#[test]
fn engines_are_found_by_a_file_and_by_what_peers_tell() {
    let folder = Folder::new("names");
    let hub = start(listening(&folder, "hub"));
    let b = start(listening(&folder, "b"));
    let list = folder.0.join("list");
    std::fs::write(&list, format!("# all\nhub {}\nb localhost:1,{}\n", address(&hub), address(&b))).unwrap();
    let a = start(config(&folder, "a").directory_file(&list));
    assert_eq!(a.connect_name("hub", SOON).unwrap().name().as_str(), "hub");
    assert_eq!(a.connect_name("b", SOON).unwrap().name().as_str(), "b");
    // Who comes later is told of to those who are there.
    let c = start(config(&folder, "c"));
    call(&c, &hub);
    let d = start(listening(&folder, "d"));
    call(&d, &hub);
    assert_eq!(c.connect_name("d", SOON).unwrap().epoch(), d.epoch());
    std::fs::write(&list, "nonsense\n").unwrap();
    let error = a.connect_name("nobody", SECOND).unwrap_err();
    assert!(matches!(error, ConnectError::Directory { .. }), "{error}");
}

#[test]
fn a_name_that_leads_to_another_engine_is_refused() {
    let folder = Folder::new("liar");
    let b = start(listening(&folder, "b"));
    let list = folder.0.join("list");
    std::fs::write(&list, format!("x {}\n", address(&b))).unwrap();
    let a = start(config(&folder, "a").directory_file(&list));
    let error = a.connect_name("x", SECOND).unwrap_err();
    assert!(matches!(&error, ConnectError::RefusedHere { text, .. } if text.contains("`b` answers")), "{error}");
    assert!(a.peers().is_empty());
    until("the other side has no session", || b.peers().is_empty());
}

#[test]
fn names_that_do_not_resolve_and_ports_that_nobody_has_end_in_time() {
    let folder = Folder::new("nowhere");
    let a = start(config(&folder, "a"));
    for (text, within) in [("nobody.invalid:7400", SECOND), ("no address", SECOND), ("x:99999", SECOND)] {
        let begun = Instant::now();
        let error = a.connect_address(text, within).unwrap_err();
        assert!(matches!(error, ConnectError::Unresolved { .. }), "{error}");
        assert!(begun.elapsed() < within + SECOND);
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = a.connect_address(&free.to_string(), SECOND).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    // Somebody takes the connection and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    let error = a.connect_address(&silent.local_addr().unwrap().to_string(), SECOND / 2).unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. }), "{error}");
    assert!(begun.elapsed() < 2 * SECOND);
}

#[test]
fn an_address_that_fails_is_followed_by_the_next() {
    let folder = Folder::new("next");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut b = listening(&folder, "b");
    b.session.advertise = vec![free.to_string(), silent.local_addr().unwrap().to_string()];
    let b = start(b);
    let mut card = penstock::session::EngineDescriptor::decode(&b.descriptor()).unwrap();
    card.addresses.push(address(&b).to_string());
    card.host = 1;
    let a = start(config(&folder, "a"));
    let peer = a.connect(&card.encode(), SOON).unwrap();
    assert_eq!(peer.epoch(), b.epoch());
}

#[test]
fn revocations_are_told_to_who_cannot_see_them() {
    let folder = Folder::new("news");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    let pool = b.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
    let peer = call(&a, &b);
    peer.wait_region("kv", SOON).unwrap();
    let before = heard_revision(&a);
    assert!(pool.revoke(&[(0, 4096)], SECOND).unwrap().is_quiesced());
    until("a part that is gone is news", || heard_revision(&a) > before);
    assert!(pool.deregister(SECOND).unwrap().is_quiesced());
    until("the region is gone", || peer.region("kv").is_err());
    drop(b);
    until("the end is known", || peer.ended() == Some(Cause::PeerClosed));
}
