//! Strangers on the socket: nonsense, silence, floods, hellos that lie.

use std::time::{Duration, Instant};

use penstock::session::frame::{VERSION_MAX, VERSION_MIN};
use penstock::session::{Frame, Hello, RefusalCode};
use penstock_conformance::bystander::{Arena, attack};
use penstock_conformance::pattern::{self, Random};
use penstock_conformance::rogue::{Heard, Rogue, encoded, hello};
use penstock_conformance::stage::PATIENCE;

/// The connection is closed, at most after a refusal.
fn assert_closed(rogue: &mut Rogue, what: &str) {
    loop {
        match rogue.hear(PATIENCE) {
            Heard::Closed => return,
            Heard::Frame(Frame::Refuse { .. }, _) => {}
            other => panic!("{what}: not closed but {other:?}"),
        }
    }
}

#[test]
fn random_bytes_are_turned_away() {
    attack("random bytes", |arena| {
        for seed in 0..30 {
            let mut rogue = Rogue::connect(&arena.socket());
            rogue.say(&pattern::bytes(seed, 0, 1 + 97 * seed as usize));
            let (code, text) = rogue.refusal();
            assert_eq!(code, RefusalCode::Malformed);
            assert!(text.contains("not Penstock frames") && text.contains("another program"), "{text}");
        }
    });
}

#[test]
fn frames_with_bad_headers_are_turned_away() {
    attack("bad headers", |arena| {
        let good = encoded(&Frame::Hello(hello(&arena.card)), 0);
        let with = |at: usize, bytes: &[u8]| {
            let mut frame = good.clone();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        for (what, frame, words) in [
            ("wrong magic", with(0, b"HTTP"), "not Penstock frames"),
            ("a version from the future", with(4, &[99, 0]), "version 99"),
            ("an unknown kind", with(6, &[77, 0]), "kind 77"),
            ("an oversize frame", with(8, &u32::MAX.to_le_bytes()), "longer than"),
            ("a frame just too long", with(8, &(256_u32 * 1024 - 15).to_le_bytes()), "longer than"),
            ("too many descriptors", with(12, &[65]), "65 descriptors"),
            ("reserved bytes", with(13, &[1]), "reserved"),
            ("a body that does not decode", with(16, &[0xff; 8]), "does not decode"),
        ] {
            let mut rogue = Rogue::connect(&arena.socket());
            rogue.say(&frame);
            let (code, text) = rogue.refusal();
            assert_eq!(code, RefusalCode::Malformed, "{what}");
            assert!(text.contains(words), "{what}: {text}");
        }
    });
}

#[test]
fn truncated_frames_disturb_nobody() {
    attack("truncated frames", |arena| {
        let frame = encoded(&Frame::Hello(hello(&arena.card)), 0);
        for len in 0..frame.len() {
            let mut rogue = Rogue::connect(&arena.socket());
            rogue.say(&frame[..len]);
        }
    });
}

#[test]
fn a_silent_stranger_is_sent_away_in_time() {
    attack("silence", |arena| {
        let begun = Instant::now();
        let mut silent = Rogue::connect(&arena.socket());
        let mut slow = Rogue::connect(&arena.socket());
        let frame = encoded(&Frame::Hello(hello(&arena.card)), 0);
        // One byte now and then does not buy more time.
        let mut rest = frame.iter();
        while begun.elapsed() < Duration::from_secs(3) {
            let Some(&byte) = rest.next().filter(|_| begun.elapsed() < Duration::from_millis(1500)) else { break };
            if !slow.say(&[byte]) {
                break;
            }
            std::thread::sleep(Duration::from_millis(90));
        }
        for rogue in [&mut silent, &mut slow] {
            let (_, text) = rogue.refusal();
            assert!(text.contains("not finished in time"), "{text}");
        }
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_flood_of_bad_connections_disturbs_nobody() {
    attack("flood", |arena| {
        let mut random = Random::new(1);
        let frame = encoded(&Frame::Hello(hello(&arena.card)), 0);
        let mut crowd: Vec<Rogue> = (0..200)
            .map(|number| {
                let mut rogue = Rogue::connect(&arena.socket());
                match number % 4 {
                    0 => {}
                    1 => drop(rogue.say(&pattern::bytes(number, 0, 300))),
                    2 => drop(rogue.say(&frame[..random.below(frame.len() as u64) as usize])),
                    _ => drop(rogue.say(&frame)),
                }
                rogue
            })
            .collect();
        // Every one of them is rid of within its time, without any help of theirs.
        let begun = Instant::now();
        for rogue in &mut crowd {
            loop {
                match rogue.hear(PATIENCE) {
                    Heard::Closed => break,
                    Heard::Nothing => panic!("a bad connection stands"),
                    Heard::Frame(..) => {}
                }
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    });
}

fn refused_hello(arena: &Arena, code: RefusalCode, words: &str, change: impl FnOnce(&mut Hello)) {
    let mut lie = hello(&arena.card);
    change(&mut lie);
    let mut rogue = Rogue::connect(&arena.socket());
    rogue.send(&Frame::Hello(lie), &[]);
    let (found, text) = rogue.refusal();
    assert_eq!(found, code, "{text}");
    assert!(text.contains(words), "{text:?} does not say {words:?}");
}

#[test]
fn hellos_that_cannot_be_are_refused() {
    attack("hellos", |arena| {
        refused_hello(arena, RefusalCode::Version, "speaks versions", |hello| {
            (hello.version_min, hello.version_max) = (VERSION_MAX + 1, VERSION_MAX + 2);
        });
        refused_hello(arena, RefusalCode::Version, "speaks versions", |hello| {
            (hello.version_min, hello.version_max) = (0, VERSION_MIN - 1);
        });
        refused_hello(arena, RefusalCode::Epoch, "epoch", |hello| hello.expects ^= 1);
        refused_hello(arena, RefusalCode::Malformed, "name", |hello| hello.name = "../../etc".to_owned());
        refused_hello(arena, RefusalCode::Malformed, "name", |hello| hello.name.clear());
        refused_hello(arena, RefusalCode::Malformed, "name", |hello| hello.name = "x".repeat(5000));
        refused_hello(arena, RefusalCode::Malformed, "epoch", |hello| hello.epoch = 0);
        refused_hello(arena, RefusalCode::Malformed, "workers", |hello| hello.workers = 0);
        refused_hello(arena, RefusalCode::Malformed, "workers", |hello| hello.workers = u16::MAX);
        refused_hello(arena, RefusalCode::Malformed, "place", |hello| hello.peer_index = 1024);
        refused_hello(arena, RefusalCode::Malformed, "place", |hello| hello.peer_index = u32::MAX);
        refused_hello(arena, RefusalCode::NoTransport, "allows", |hello| hello.transports.clear());
        refused_hello(arena, RefusalCode::NoTransport, "allows", |hello| {
            hello.transports = vec!["carrier-pigeon".to_owned(); 500];
        });
        refused_hello(arena, RefusalCode::NoTransport, "another host", |hello| hello.host ^= 1);
        // One reason for each transport, however often it is named: the refusal fits into a frame.
        refused_hello(
            arena,
            RefusalCode::NoTransport,
            "49992 more; shm: the other engine is on another host",
            |hello| {
                hello.host ^= 1;
                hello.transports = vec!["shm".to_owned(); 50_000];
            },
        );
        refused_hello(arena, RefusalCode::NoTransport, "the caller allows", |hello| {
            hello.transports = vec!["x".repeat(20_000); 10];
        });
    });
}

#[test]
fn frames_out_of_turn_are_refused() {
    attack("out of turn", |arena| {
        for frame in [Frame::Goodbye, Frame::Counters(Vec::new())] {
            let mut rogue = Rogue::connect(&arena.socket());
            rogue.send(&frame, &[]);
            let (code, text) = rogue.refusal();
            assert_eq!(code, RefusalCode::Malformed);
            assert!(text.contains("does not belong here"), "{text}");
        }
        let mut twice = Rogue::connect(&arena.socket());
        twice.send(&Frame::Hello(hello(&arena.card)), &[]);
        twice.send(&Frame::Hello(hello(&arena.card)), &[]);
        assert_eq!(twice.refusal().0, RefusalCode::Malformed);
        // A refusal ends the conversation without another word.
        let mut refuses = Rogue::connect(&arena.socket());
        refuses.send(&Frame::Refuse { code: RefusalCode::Full, text: "x".repeat(10_000) }, &[]);
        assert_closed(&mut refuses, "a stranger that refuses");
    });
}
