//! Strangers, hostile and otherwise, at the port of an engine.

#[path = "sessions/hosts.rs"]
mod hosts;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use hosts::*;
use penstock::session::frame::RefusalCode;
use penstock::session::opening::{OpeningCode, Refusal, StreamKey, channel_opening};
use penstock::{Cause, ConnectError};

/// These tests count descriptors and time handshakes: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn dial(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Passes bytes on in both ways until it is told to be still, and keeps what the caller said.
struct Relay {
    at: SocketAddr,
    still: std::sync::Arc<std::sync::atomic::AtomicBool>,
    said: std::sync::Arc<Mutex<Vec<u8>>>,
}

impl Relay {
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { at: listener.local_addr().unwrap(), still: Default::default(), said: Default::default() };
        let (still, said) = (relay.still.clone(), relay.said.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(target) else { return };
                let pass = |mut from: TcpStream, mut to: TcpStream, said: Option<std::sync::Arc<Mutex<Vec<u8>>>>| {
                    let still = still.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(read) = from.read(&mut bytes) {
                            if read == 0 {
                                break;
                            }
                            if still.load(std::sync::atomic::Ordering::Relaxed) {
                                continue; // Swallowed, as by a cable that was pulled.
                            }
                            if let Some(said) = &said {
                                said.lock().unwrap().extend(&bytes[..read]);
                            }
                            if to.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        if !still.load(std::sync::atomic::Ordering::Relaxed) {
                            let _ = to.shutdown(Shutdown::Both);
                        }
                    });
                };
                pass(near.try_clone().unwrap(), far.try_clone().unwrap(), Some(said.clone()));
                pass(far, near, None);
            }
        });
        relay
    }

    fn fall_silent(&self) {
        self.still.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_peer_that_falls_silent_is_given_up_after_the_heartbeat() {
    let _alone = alone();
    let folder = Folder::new("silence");
    let heartbeat = SECOND;
    let b = start(listening(&folder, "b").heartbeat(heartbeat));
    let a = start(config(&folder, "a").heartbeat(heartbeat));
    let relay = Relay::to(address(&b));
    let peer = a.connect_address(&relay.at.to_string(), SOON).unwrap();
    // While both can hear each other, nothing happens however long nobody has anything to say.
    std::thread::sleep(3 * heartbeat);
    assert_eq!(peer.ended(), None);
    let begun = Instant::now();
    relay.fall_silent();
    until("the silence is noticed here", || peer.ended().is_some());
    let took = begun.elapsed();
    assert_eq!(peer.ended(), Some(Cause::PeerLost));
    assert!(took > heartbeat / 2 && took < heartbeat + SOON, "{took:?}");
    until("and there", || b.peers().is_empty());
    assert_eq!(peer.ping(SECOND), Err(Cause::PeerLost));
}

#[test]
fn a_silent_bearer_of_a_name_makes_place_for_the_next() {
    let _alone = alone();
    let folder = Folder::new("replaced");
    let b = start(listening(&folder, "b").heartbeat(Duration::from_secs(60)));
    let first = start(config(&folder, "twin").heartbeat(Duration::from_secs(60)));
    let relay = Relay::to(address(&b));
    first.connect_address(&relay.at.to_string(), SOON).unwrap();
    until("the session stands there, too", || b.peers().len() == 1);
    let old = b.peers().remove(0);
    relay.fall_silent();
    let other = Folder::new("replaced-2");
    let second = start(config(&other, "twin"));
    let begun = Instant::now();
    let peer = call(&second, &b);
    assert!(begun.elapsed() < 2 * SECOND, "{:?}", begun.elapsed());
    assert_eq!(peer.ended(), None);
    assert_eq!(old.ended(), Some(Cause::PeerLost));
    until("the newcomer is there", || b.peers().iter().any(|peer| peer.epoch() == second.epoch()));
}

#[test]
fn one_source_is_heard_so_often_in_a_second() {
    let _alone = alone();
    let folder = Folder::new("rate");
    let b = start(listening(&folder, "b").accepts_per_second(5));
    let mut refused = 0;
    for _ in 0..60 {
        let mut stream = dial(address(&b));
        let _ = stream.write_all(&channel_opening());
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        refused += usize::from(Refusal::decode(&answer).is_ok_and(|refusal| refusal.code == OpeningCode::RateLimited));
    }
    let seen = b.network_statistics();
    assert_eq!(seen.accepted, 60);
    assert!(seen.limited >= 20, "{seen:?}");
    assert!(refused > 0, "at least one of them can read why");
    let a = start(config(&folder, "a"));
    // It waits for its turn, and then is heard as everybody is.
    let begun = Instant::now();
    loop {
        match a.connect_address(&address(&b).to_string(), SECOND) {
            Ok(_) => break,
            Err(ConnectError::RateLimited { .. } | ConnectError::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn strangers_who_dawdle_delay_nobody() {
    let _alone = alone();
    let folder = Folder::new("dawdle");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    let before = descriptors();
    let mut dawdlers: Vec<TcpStream> = (0..200).map(|_| dial(address(&b))).collect();
    for stream in &mut dawdlers {
        let _ = stream.write_all(b"PN");
    }
    let mut times = Vec::new();
    for round in 0..21 {
        for stream in &mut dawdlers {
            let _ = stream.write_all(&b"SN\x01\x00\x00\x00\x30\x00"[round.min(7)..=round.min(7)]);
        }
        let begun = Instant::now();
        let peer = call(&a, &b);
        times.push(begun.elapsed());
        assert!(peer.disconnect(SOON));
        until("the session is over", || b.peers().is_empty());
    }
    // The machine may stand still once; dawdlers are there all the time.
    times.sort_unstable();
    assert!(times[times.len() / 2] < SECOND / 2, "{times:?}");
    // Most were ended to make room; their own ends are still here.
    assert!(b.network_statistics().crowded >= 120, "{:?}", b.network_statistics());
    drop(dawdlers);
    until("all is closed", || descriptors() <= before + 2);
}

#[test]
fn a_stranger_who_says_nothing_is_ended_in_time() {
    let _alone = alone();
    let folder = Folder::new("mute");
    let mut config = listening(&folder, "b");
    config.session.greeting_timeout_ms = 200;
    let b = start(config);
    for said in [&b""[..], b"PNS", b"PNSN\x01\x00\x00\x00", b"PNSN\x01\x00\x00\x00\x30\x00abc"] {
        let mut stream = dial(address(&b));
        stream.write_all(said).unwrap();
        let begun = Instant::now();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(begun.elapsed() < SECOND, "{said:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn nonsense_is_refused_and_harms_nobody() {
    let _alone = alone();
    let folder = Folder::new("nonsense");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    let peer = call(&a, &b);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..300 {
        let mut stream = dial(address(&b));
        let mut bytes = match round % 4 {
            0 => Vec::new(),
            1 => channel_opening().to_vec(),
            2 => [&channel_opening()[..], &[48, 0]].concat(),
            _ => b"PNSD\x01\x00".to_vec(),
        };
        for _ in 0..round % 97 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes.push(random as u8);
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 264, "{}", answer.len());
    }
    assert_eq!(peer.ended(), None);
    assert!(peer.ping(SOON).is_ok());
    let mut other = dial(address(&b));
    other.write_all(b"PNSN\x09\x00\x00\x00").unwrap();
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).unwrap();
    assert_eq!(Refusal::decode(&answer).unwrap().code, OpeningCode::Version);
}

#[test]
fn who_repeats_what_it_heard_on_the_wire_gets_nothing() {
    let _alone = alone();
    let folder = Folder::new("replay");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    let relay = Relay::to(address(&b));
    let peer = a.connect_address(&relay.at.to_string(), SOON).unwrap();
    assert!(peer.ping(SOON).is_ok());
    let said = relay.said.lock().unwrap().clone();
    let before = b.peers().len();
    let mut stream = dial(address(&b));
    stream.write_all(&said).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    // Its first message is a good one and answered; nothing after it opens.
    assert!(answer.len() < 512, "{}", answer.len());
    assert_eq!(b.peers().len(), before);
    assert_eq!(peer.ended(), None);
}

#[test]
fn streams_that_nobody_asked_for_are_closed() {
    let _alone = alone();
    let folder = Folder::new("streams");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    let peer = call(&a, &b);
    until("all streams have come", || attached(&b) == STREAMS);
    let forged = StreamKey::derive(&[3; 32]);
    for index in [0, 1, 7, u16::MAX] {
        let mut stream = dial(address(&b));
        stream.write_all(&forged.token(index).encode()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    assert_eq!(b.network_statistics().stray_streams, 4);
    assert_eq!((peer.ended(), attached(&b)), (None, STREAMS));
    assert!(peer.ping(SOON).is_ok());
}

/// Threads of engines, and none of whoever runs the tests.
fn engine_threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    let names = all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("penstock-")).count()
}

#[test]
fn a_thousand_sessions_come_and_go_and_leave_nothing() {
    let _alone = alone();
    let folder = Folder::new("churn");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    call(&a, &b).disconnect(SOON);
    until("the first is over", || b.peers().is_empty() && a.peers().is_empty());
    until("its streams, too", || attached(&b) >= STREAMS);
    let before = (descriptors(), engine_threads());
    for _ in 0..1000 {
        assert!(call(&a, &b).disconnect(SOON));
    }
    until("the last is over", || b.peers().is_empty() && a.peers().is_empty());
    until("no descriptor is left", || descriptors() <= before.0);
    assert!(engine_threads() <= before.1, "{} threads, {} before", engine_threads(), before.1);
    assert_eq!(b.network_statistics().wrong_secret, 0);
}

#[test]
fn a_draining_engine_takes_nobody_over_the_network() {
    let _alone = alone();
    let folder = Folder::new("drain");
    let b = start(listening(&folder, "b"));
    let a = start(config(&folder, "a"));
    b.drain(SECOND).unwrap();
    let error = a.connect_address(&address(&b).to_string(), SOON).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { code: RefusalCode::Closing, .. }), "{error}");
}
