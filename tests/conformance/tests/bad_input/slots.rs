//! Peers that ask for what they may not have, and peers that answer nonsense.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock::Rights;
use penstock::session::{Frame, RegionNews, RegionsAdvertised};
use penstock::transport::host::bounce::{BANK_BYTES, Banks, REQUEST_WORDS, SLOTS};
use penstock_conformance::bystander::{Arena, attack};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::pattern::{self, Random};
use penstock_conformance::rogue::{Intruder, Rogue};
use penstock_conformance::stage::{FAR_SEED, KV, PATIENCE};
use penstock_ring::bounce::{BounceStage, Requester, Responder};

const BYTES: u64 = 1 << 20;

fn intrude(arena: &mut Arena) -> Intruder {
    let intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
    assert_eq!(arena.ask(Command::Watch { peer: "rogue".to_owned() }), Reply::Done);
    intruder
}

fn wait_for_corrupt(arena: &mut Arena, what: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        match arena.ask(Command::EndOf { peer: "rogue".to_owned() }) {
            Reply::Ended(Some(cause)) => return assert!(cause.contains("nonsense"), "{what}: {cause}"),
            other => assert!(Instant::now() < until, "{what}: the session still stands: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asks this in slot 0.
fn ask(intruder: &Intruder, asker: &mut Requester, words: &[u64]) {
    asker.ask(words);
    let place = intruder.own.slots.segment().range();
    place.atomic_u64(Banks::posts_offset(0)).unwrap().fetch_add(1, Ordering::Release); // SYNC bounce-ask: as an initiator does.
    intruder.ring();
}

fn asker(intruder: &Intruder) -> Requester {
    Requester::mapped(&intruder.own.slots.segment().range(), Banks::slot_offset(0, 0), REQUEST_WORDS).unwrap()
}

fn wait_for_answer(asker: &Requester) -> [u64; 2] {
    let until = Instant::now() + PATIENCE;
    loop {
        if let BounceStage::Done(answer) = asker.look().expect("the engine keeps to the protocol") {
            return answer;
        }
        assert!(Instant::now() < until, "the question is not answered");
        std::thread::yield_now();
    }
}

fn assert_untouched(arena: &mut Arena, label: &str) {
    let Reply::Digests(found) = arena.ask(Command::Digest { label: label.to_owned() }) else { panic!("no digests") };
    pattern::assert_same(&found, &pattern::digests(&pattern::bytes(FAR_SEED, 0, BYTES as usize)), label);
}

#[test]
fn a_question_asked_by_hand_is_answered() {
    attack("asked by hand", |arena| {
        let intruder = intrude(arena);
        let kv = intruder.regions.news.iter().find(|news| news.label == KV).expect("it was announced").clone();
        let mut asker = asker(&intruder);
        // One span of eight bytes, read.
        ask(&intruder, &mut asker, &[1 << 32 | 1, u64::from(kv.generation) << 32 | u64::from(kv.id), 0, 16, 8]);
        assert_eq!(wait_for_answer(&asker), [0, 8]);
        let mut found = [0; 8];
        intruder.own.slots.segment().window().read_into(BANK_BYTES as u64, &mut found).unwrap();
        assert_eq!(found.as_slice(), pattern::bytes(FAR_SEED, 16, 8));
    });
}

#[test]
fn a_question_for_what_is_not_there_fails_alone() {
    attack("wrong questions", |arena| {
        let secret = Command::Pool {
            label: "secret".to_owned(),
            bytes: BYTES,
            block: 4096,
            rights: Rights::NONE.into(),
            seed: FAR_SEED,
        };
        assert_eq!(arena.ask(secret), Reply::Done);
        let intruder = intrude(arena);
        let name = |label: &str| {
            let news = intruder.regions.news.iter().find(|news| news.label == label);
            news.map_or(2, |news| u64::from(news.generation) << 32 | u64::from(news.id))
        };
        let (kv, secret) = (name(KV), name("secret"));
        let mut asker = asker(&intruder);
        for words in [
            [1 << 32, 99, 0, 0, 8],            // an id that nobody has
            [1 << 32, kv | 7 << 32, 0, 0, 8],  // another generation
            [1 << 32, kv, 0, BYTES, 8],        // beyond the end
            [1 << 32, kv, 0, u64::MAX - 8, 8], // far beyond it
            [1 << 32, secret, 0, 0, 8],        // no right to write
            [1 << 32 | 1, secret, 0, 0, 8],    // no right to read
        ] {
            ask(&intruder, &mut asker, &words);
            assert_ne!(wait_for_answer(&asker)[0], 0, "{words:?}");
            asker.free();
        }
        assert_untouched(arena, KV);
        assert_untouched(arena, "secret");
        assert_eq!(arena.ask(Command::EndOf { peer: "rogue".to_owned() }), Reply::Ended(None));
    });
}

#[test]
fn a_nonsensical_question_ends_its_session_only() {
    attack("nonsense", |arena| {
        for (what, words) in [
            ("no spans", [0, 0, 0, 0, 8]),
            ("more spans than there are", [1000 << 32, 0, 0, 0, 8]),
            ("unknown bits", [1 << 32 | 8, 0, 0, 0, 8]),
            ("a span without end", [1 << 32, 0, 0, 8, u64::MAX]),
            ("a span that wraps around", [1 << 32, 0, 0, u64::MAX, 8]),
            ("an empty span", [1 << 32, 0, 0, 0, 0]),
            ("a revision that is still to come", [1 << 32, 0, u64::MAX, 0, 8]),
        ] {
            let mut intruder = intrude(arena);
            ask(&intruder, &mut asker(&intruder), &words);
            intruder.wait_for_the_end();
            wait_for_corrupt(arena, what);
        }
        assert_untouched(arena, KV);
    });
}

#[test]
fn slots_full_of_noise_cost_their_session_at_most() {
    attack("noise in slots", |arena| {
        let intruder = intrude(arena);
        let place = intruder.own.slots.segment().range();
        let mut random = Random::new(11);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            for _ in 0..100 {
                let at = random.below(BANK_BYTES as u64 / 8) * 8;
                let value = if random.below(2) == 0 { random.below(8) } else { random.number() };
                place.atomic_u64(at as usize).unwrap().store(value, Ordering::Relaxed);
            }
            for slot in 0..SLOTS {
                let state = place.atomic_u64(Banks::slot_offset(0, slot)).unwrap();
                state.store(random.below(64), Ordering::Relaxed);
            }
            intruder.ring();
        }
    });
}

#[test]
fn an_owner_that_answers_nonsense_ends_its_session_only() {
    attack("nonsensical answers", |arena| {
        for answer in [[0, 1], [200, 0], [u64::MAX, u64::MAX]] {
            let mut intruder = intrude(arena);
            let news = RegionNews {
                id: 0,
                generation: 1,
                label: KV.to_owned(),
                bytes: 4096,
                base: 0,
                rights: Rights::READ_WRITE.into(),
                block_bytes: 0,
                path: vec![2],
                token: None,
            };
            intruder.rogue.send(&Frame::Regions(RegionsAdvertised { revision: 0, news: vec![news] }), &[]);
            let place = intruder.slots.range();
            let answering = std::thread::spawn(move || {
                let owner = Responder::mapped(&place, Banks::slot_offset(0, 0), REQUEST_WORDS).unwrap();
                let until = Instant::now() + PATIENCE;
                while Instant::now() < until {
                    if let Some(taken) = owner.take(&mut [0; REQUEST_WORDS]) {
                        owner.answer(&taken, answer);
                        return;
                    }
                    std::thread::yield_now();
                }
                panic!("nothing was asked");
            });
            let write = Command::WriteTo { peer: "rogue".to_owned(), label: KV.to_owned(), times: 1 };
            // Nobody marks the lane: it is polled in rotation, and its sleeping worker is rung by this.
            let ringing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while ringing.load(Ordering::Relaxed) {
                        intruder.ring();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                let Reply::Refused(text) = arena.ask(write) else { panic!("nonsense was believed") };
                assert!(text.contains("nonsense"), "{text}");
                ringing.store(false, Ordering::Relaxed);
            });
            answering.join().unwrap();
            intruder.wait_for_the_end();
            wait_for_corrupt(arena, "a nonsensical answer");
        }
    });
}
