//! Peers that greet like anybody else and then scribble in what is shared.

use std::time::{Duration, Instant};

use penstock::NoteId;
use penstock::limits::RING_LINES;
use penstock::transport::record::{self, RecordKind};
use penstock_conformance::bystander::{Arena, attack};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::pattern::{self, Random};
use penstock_conformance::rogue::{Intruder, Rogue};
use penstock_conformance::stage::{KV, PATIENCE};

// Where a ring has what, in bytes.
const TAIL: u64 = 0;
const HEAD: u64 = 128;
const LINES: u64 = 384;

fn rogue() -> String {
    "rogue".to_owned()
}

fn intrude(arena: &mut Arena) -> Intruder {
    let intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
    assert_eq!(arena.ask(Command::Watch { peer: rogue() }), Reply::Done);
    intruder
}

fn wait_for_corrupt(arena: &mut Arena, what: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        match arena.ask(Command::EndOf { peer: rogue() }) {
            Reply::Ended(Some(cause)) => return assert!(cause.contains("nonsense"), "{what}: {cause}"),
            other => assert!(Instant::now() < until, "{what}: the session still stands: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The words of one record.
fn record(kind: RecordKind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut lines = [Default::default(); penstock::limits::NOTE_LINES_MAX];
    let count = record::write(kind, sequence, NoteId(1), payload, &mut lines);
    lines[..count].iter().flat_map(|line| line.0).flat_map(u64::to_ne_bytes).collect()
}

fn put(intruder: &Intruder, bytes: &[u8], tail: u64) {
    let rings = intruder.rings.window();
    rings.write_from(LINES, bytes).unwrap();
    rings.store_u64(TAIL, tail).unwrap();
    intruder.ring();
}

#[test]
fn a_well_behaved_hand_is_served() {
    attack("good manners", |arena| {
        let intruder = intrude(arena);
        put(&intruder, &record(RecordKind::Note, 0, b"by hand"), 1);
        let until = Instant::now() + PATIENCE;
        while intruder.rings.window().load_u64(HEAD) != Ok(1) {
            assert!(Instant::now() < until, "the record was not taken");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(arena.ask(Command::EndOf { peer: rogue() }), Reply::Ended(None));
    });
}

#[test]
fn a_scribbled_ring_ends_its_session_only() {
    attack("scribbled ring", |arena| {
        let mut wrong_lines = record(RecordKind::Note, 0, &[1; 100]);
        wrong_lines[3] = 1;
        let mut too_long = record(RecordKind::Note, 0, b"");
        too_long[4..6].copy_from_slice(&5000_u16.to_le_bytes());
        let mut reserved = record(RecordKind::Note, 0, b"");
        reserved[7] = 1;
        let mut unknown = record(RecordKind::Note, 0, b"");
        unknown[2] = 9;
        for (what, bytes, tail) in [
            ("a tail beyond the ring", vec![], RING_LINES as u64 + 1),
            ("a tail from nowhere", vec![], u64::MAX / 2),
            ("a tail that goes back", vec![], u64::MAX),
            ("zeroes for a record", vec![0; 64], 1),
            ("noise for a record", pattern::bytes(3, 0, 64), 1),
            ("lines that do not fit the bytes", wrong_lines, 3),
            ("a payload too long", too_long, 80),
            ("reserved bits", reserved, 1),
            ("an unknown kind", unknown, 1),
            ("a record that was skipped", record(RecordKind::Note, 1, b""), 1),
            ("a record published in part", record(RecordKind::Note, 0, &[1; 500]), 2),
            ("a handle between processes", record(RecordKind::HandOver, 0, b""), 1),
        ] {
            let mut intruder = intrude(arena);
            put(&intruder, &bytes, tail);
            intruder.wait_for_the_end();
            wait_for_corrupt(arena, what);
        }
    });
}

#[test]
fn a_ring_full_of_noise_ends_its_session_only() {
    attack("noise", |arena| {
        for seed in 1..20 {
            let mut intruder = intrude(arena);
            let rings = intruder.rings.window();
            rings.write_from(0, &pattern::bytes(seed, 0, rings.len() as usize)).unwrap();
            intruder.ring();
            intruder.wait_for_the_end();
            wait_for_corrupt(arena, &format!("noise {seed}"));
        }
    });
}

#[test]
fn a_head_from_nowhere_ends_its_session_only() {
    attack("head", |arena| {
        let mut intruder = intrude(arena);
        intruder.own.rings.window().store_u64(HEAD, u64::MAX / 3).unwrap();
        // More than fit into the ring that the rogue says it has emptied beyond its end.
        let Reply::Refused(text) = arena.ask(Command::NotifyPeer { peer: rogue(), count: 2 * RING_LINES }) else {
            panic!("every notification found room");
        };
        assert!(text.contains("nonsense"), "{text}");
        intruder.wait_for_the_end();
        wait_for_corrupt(arena, "a head from nowhere");
    });
}

#[test]
fn scribbled_mail_costs_time_and_nothing_else() {
    attack("mailbox", |arena| {
        let intruder = intrude(arena);
        let mailbox = intruder.mailbox.window();
        let mut random = Random::new(5);
        // The ready bits; beyond them lie the counters, which a peer may count up anyway.
        let front = 128;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            let at = random.below(front / 8) * 8;
            mailbox.store_u64(at, random.number()).unwrap();
            if random.below(64) == 0 {
                mailbox.write_from(0, &vec![0; front as usize]).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        mailbox.write_from(0, &pattern::bytes(9, 0, mailbox.len() as usize)).unwrap();
        intruder.ring();
    });
}

#[test]
fn a_peer_stuck_in_a_copy_is_told_apart() {
    attack("stuck", |arena| {
        let mut intruder = intrude(arena);
        let peer_index = intruder.index_at_peer();
        let mut hazard = intruder.own.segments.owner_state.hazard(peer_index, 0);
        hazard.enter(0);
        let begun = Instant::now();
        let revoke = Command::Revoke { label: KV.to_owned(), extents: vec![(0, 4096)], within_ms: 100 };
        assert_eq!(arena.ask(revoke.clone()), Reply::Quiesced(false), "it might still be copying");
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(1), "{took:?}");
        hazard.leave();
        assert_eq!(arena.ask(revoke), Reply::Quiesced(true), "it has moved on");
        // Noise where it says what was withdrawn concerns nobody but plans over its own memory.
        let owner_state = intruder.own.segments.owner_state.segment().window();
        owner_state.write_from(0, &pattern::bytes(4, 0, 4096)).unwrap();
        intruder.rogue.say(&[]);
    });
}
