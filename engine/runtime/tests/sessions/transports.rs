//! Which transports an engine has, why it has not the others, and what that means for its peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock::config::{Progress, TransportName};
use penstock::session::frame::RefusalCode;
use penstock::{Config, ConnectError, Engine, StartError, SystemEnv};

use crate::double::{Cards, Seen};
use crate::hosts::{E, Folder, SOON, address, config};

const ALL: [TransportName; 3] = [TransportName::Local, TransportName::Verbs, TransportName::Tcp];

/// An engine whose `verbs` is a double.
fn with_cards(config: Config) -> (E, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let cards = Cards { name: "verbs", splits: false, seen: Arc::clone(&seen) };
    (Engine::start_with(SystemEnv, config.progress(Progress::Busy), vec![Arc::new(cards)]).unwrap(), seen)
}

/// Whether this machine has RDMA cards, which makes some tests impossible: that is reported.
fn has_cards(test: &str) -> bool {
    let has = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some());
    if has && let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        use std::io::Write;
        let mut skips = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(skips, "{test}: this machine has RDMA cards").unwrap();
    }
    has
}

#[test]
fn devices_that_are_named_and_not_here_keep_an_engine_from_starting() {
    let folder = Folder::new("named");
    let named = config(&folder, "a").transports(ALL).verbs_devices(["none9"]);
    let error = Engine::start(named.clone()).unwrap_err();
    assert!(matches!(error, StartError::Devices { .. }), "{error}");
    assert!(error.to_string().contains("`penstock doctor rdma`"), "{error}");
    // Where verbs is not used, nobody looks for its devices.
    Engine::start(named.transports([TransportName::Local])).unwrap();
}

#[test]
fn a_host_without_cards_goes_without_verbs_and_says_why() {
    if has_cards("a_host_without_cards_goes_without_verbs_and_says_why") {
        return;
    }
    let folder = Folder::new("without");
    let a = Engine::start(config(&folder, "a").transports(ALL)).unwrap();
    let [local, verbs, tcp] = a.transports() else { panic!("one for each that is allowed") };
    assert_eq!([local.name, verbs.name, tcp.name], ["local", "verbs", "tcp"]);
    assert_eq!((&local.missing, &tcp.missing), (&None, &None));
    assert!(verbs.missing.as_ref().unwrap().contains("RDMA device"), "{verbs:?}");
    // The only way to others must be there where others are waited for, or where there is no other way at all.
    let local = [TransportName::Local, TransportName::Verbs];
    let b = Engine::start(config(&folder, "b").transports(local)).unwrap();
    for refused in
        [config(&folder, "c").transports([TransportName::Verbs]), b.config().clone().named("d").listen(["127.0.0.1:0"])]
    {
        let error = Engine::start(refused).unwrap_err();
        assert!(matches!(error, StartError::NoTransport { name: "verbs", .. }), "{error}");
        assert!(error.to_string().contains("RDMA device") && error.to_string().contains("allow `tcp`"), "{error}");
    }
    let error = b.connect_address("127.0.0.1:1", SOON).unwrap_err();
    assert!(matches!(error, ConnectError::OtherHost { .. }), "{error}");
    assert!(error.to_string().contains("RDMA device"), "{error}");
}

#[test]
fn who_only_speaks_verbs_hears_why_it_is_refused() {
    if has_cards("who_only_speaks_verbs_hears_why_it_is_refused") {
        return;
    }
    let folder = Folder::new("speaks");
    let b = Engine::start(config(&folder, "b").transports(ALL).listen(["127.0.0.1:0"])).unwrap();
    let (a, _) = with_cards(config(&folder, "a").transports([TransportName::Verbs]).listen(["127.0.0.1:0"]));
    for (from, to) in [(&a, &b), (&b, &a)] {
        let error = from.connect_address(&address(to).to_string(), SOON).unwrap_err();
        assert!(matches!(error, ConnectError::Refused { code: RefusalCode::NoTransport, .. }), "{error}");
        assert!(error.to_string().contains("verbs") && error.to_string().contains("RDMA device"), "{error}");
    }
}

#[test]
fn the_preferred_transport_of_both_is_taken_and_one_of_ones_own_has_the_place_of_its_name() {
    let folder = Folder::new("preferred");
    let (b, _) = with_cards(config(&folder, "b").transports(ALL).listen(["127.0.0.1:0"]));
    let (a, _) = with_cards(config(&folder, "a").transports(ALL));
    assert!(a.transports().iter().all(|report| report.missing.is_none()));
    assert_eq!(a.connect_address(&address(&b).to_string(), SOON).unwrap().transport(), "verbs");
}

#[test]
fn what_does_not_join_two_engines_leaves_them_the_next_transport() {
    let folder = Folder::new("next");
    let (b, there) = with_cards(config(&folder, "b").transports(ALL).listen(["127.0.0.1:0"]));
    let (a, here) = with_cards(config(&folder, "a").transports(ALL));
    let apart = |is_apart| [&here, &there].map(|seen| seen.is_apart.store(is_apart, Ordering::SeqCst));
    apart(true);
    let peer = a.connect_address(&address(&b).to_string(), SOON).unwrap();
    assert_eq!(peer.transport(), "tcp");
    assert!(peer.path().contains("not by verbs: their cards are on different networks"), "{}", peer.path());
    assert!(peer.disconnect(SOON));
    apart(false);
    assert_eq!(
        a.connect_address(&address(&b).to_string(), SOON).unwrap().transport(),
        "verbs",
        "it is tried each time"
    );
    // With nothing else to try it is an error that says why.
    let (c, alone) = with_cards(config(&folder, "c").transports([TransportName::Verbs]));
    alone.is_apart.store(true, Ordering::SeqCst);
    let error = c.connect_address(&address(&b).to_string(), SOON).unwrap_err();
    assert!(matches!(error, ConnectError::RefusedHere { .. }), "{error}");
    assert!(error.to_string().contains("their cards are on different networks"), "{error}");
}

#[test]
fn a_side_without_room_on_its_cards_takes_the_next_transport() {
    let folder = Folder::new("full");
    for full in [0, 1] {
        let (b, there) = with_cards(config(&folder, "b").transports(ALL).listen(["127.0.0.1:0"]));
        let (a, here) = with_cards(config(&folder, "a").transports(ALL));
        [here, there][full].is_full.store(true, Ordering::SeqCst);
        let peer = a.connect_address(&address(&b).to_string(), SOON).unwrap();
        assert_eq!(peer.transport(), "tcp", "full: {full}");
        assert!(peer.disconnect(SOON));
    }
}
