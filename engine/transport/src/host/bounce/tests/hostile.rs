//! A peer that writes into the slots whatever it likes, whenever it likes.

use std::sync::atomic::{AtomicBool, Ordering};

use penstock_core::limits::SPANS_PER_POST;
use penstock_ring::bounce::Requester;

use super::*;

/// The regions of an owner that is attacked: what a peer may not write must stay as it is.
struct Attacked {
    two: Two,
    hidden: Arc<Region>,
    readable: Arc<Region>,
    writable: Arc<Region>,
}

const BYTES: usize = 8192;

impl Attacked {
    fn new() -> Self {
        let two = Two::new();
        let hidden = two.far.register(vec![1; BYTES], "hidden", Rights::NONE);
        let readable = two.far.register(vec![2; BYTES], "readable", Rights::READ);
        let writable = two.far.register(vec![3; BYTES], "writable", Rights::READ_WRITE);
        Self { two, hidden, readable, writable }
    }

    fn assert_unharmed(&self) {
        assert!(contents(self.hidden.host().unwrap()) == vec![1; BYTES], "a region without rights was written");
        assert!(
            contents(self.readable.host().unwrap()) == vec![2; BYTES],
            "a region without the right to write was written"
        );
    }

    /// Asks this in slot 0 and lets the owner serve.
    fn ask(&mut self, asker: &mut Requester, words: &[u64]) -> Result<(), LaneFault> {
        let place = self.two.near.slots.segment().range();
        asker.ask(words);
        let posts = place.atomic_u64(Banks::posts_offset(0)).unwrap();
        posts.fetch_add(1, Ordering::Release); // SYNC bounce-ask: the owner looks when the number changes.
        self.two.serve()
    }

    fn asker(&self) -> Requester {
        Requester::mapped(&self.two.near.slots.segment().range(), Banks::slot_offset(0, 0), REQUEST_WORDS).unwrap()
    }
}

/// Words of a question in which anything may be wrong.
fn words() -> impl Strategy<Value = Vec<u64>> {
    let offset = prop_oneof![0..BYTES as u64, Just(u64::MAX), Just(BYTES as u64), any::<u64>()];
    let len = prop_oneof![1_u64..200, Just(0), Just(SLOT_BYTES), Just(SLOT_BYTES + 1), any::<u64>()];
    let count =
        prop_oneof![1_u64..5, Just(0), Just(SPANS_PER_POST as u64), Just(SPANS_PER_POST as u64 + 1), any::<u64>()];
    let flags = prop_oneof![0_u64..4, any::<u64>()];
    let name = (0_u64..5, prop_oneof![Just(0_u64), 0..3_u64]);
    let revision = prop_oneof![Just(0_u64), any::<u64>()];
    let pairs = prop::collection::vec((offset, len), SPANS_PER_POST);
    (count, flags, name, revision, pairs).prop_map(|(count, flags, (region, generation), revision, pairs)| {
        let mut words = vec![count << 32 | flags, generation << 32 | region, revision];
        words.extend(pairs.into_iter().flat_map(|(offset, len)| [offset, len]));
        words
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_question_writes_where_it_may_not(questions in prop::collection::vec(words(), 1..8)) {
        let mut attacked = Attacked::new();
        let mut asker = attacked.asker();
        for words in questions {
            if let Err(LaneFault(cause)) = attacked.ask(&mut asker, &words) {
                prop_assert_eq!(cause, Cause::PeerCorrupt);
                break; // Its session has ended.
            }
            asker.free();
        }
        attacked.assert_unharmed();
    }

    #[test]
    fn a_question_is_read_as_it_was_written(
        read: bool, streaming: bool, region: u32, generation: u32, revision: u64, lens in prop::collection::vec(1_u64..1024, 1..64)
    ) {
        use penstock_core::{Generation, RegionId};
        let request = BounceRequest {
            direction: if read { Direction::Read } else { Direction::Write },
            hint: if streaming { Hint::Streaming } else { Hint::Cached },
            key: RegionKey { region: RegionId(region), generation: Generation(generation) },
            revision,
        };
        let spans: Vec<Span> =
            lens.iter().enumerate().map(|(at, &len)| Span { local: 0, remote: at as u64 * 5000, len }).collect();
        let mut words = [u64::MAX; REQUEST_WORDS];
        let len = request.encode(&spans, &mut words).len();
        prop_assert_eq!(len, 3 + 2 * spans.len());
        let mut found = [Span::default(); SPANS_PER_POST];
        prop_assert_eq!(BounceRequest::parse(&words, &mut found), Ok((request, spans.len())));
        let mut at = 0;
        for (found, span) in found.iter().zip(&spans) {
            prop_assert_eq!(*found, Span { local: span.remote, remote: at, len: span.len });
            at += span.len;
        }
    }
}

#[test]
fn wrong_names_and_bounds_fail_the_one_transfer_and_nonsense_ends_the_session() {
    let encoded = |region: u64, generation: u64, offset: u64, len: u64, revision: u64| {
        [1 << 32, generation << 32 | region, revision, offset, len]
    };
    let mut attacked = Attacked::new();
    let mut asker = attacked.asker();
    let readable = u64::from(attacked.readable.id().0);
    let writable = u64::from(attacked.writable.id().0);
    let refused = [
        (encoded(77, 0, 0, 8, 0), Cause::RevokedByPeer),
        (encoded(writable, 1, 0, 8, 0), Cause::RevokedByPeer),
        (encoded(writable, 0, BYTES as u64 - 7, 8, 0), Cause::OutOfBounds),
        (encoded(readable, 0, 0, 8, 0), Cause::OutOfBounds),
    ];
    for (words, cause) in refused {
        attacked.ask(&mut asker, &words).expect("one transfer fails, not the session");
        assert_eq!(
            asker.look(),
            Ok(penstock_ring::bounce::BounceStage::Done([u64::from(cause.code()), 0])),
            "{words:?}"
        );
        asker.free();
    }
    assert_eq!(contents(attacked.writable.host().unwrap()), vec![3; BYTES], "nothing was begun");
    for words in [
        [0, 0, 0, 0, 8],                           // no spans
        [1 << 32 | 4, writable, 0, 0, 8],          // an unknown bit
        [1 << 32, writable, 0, u64::MAX, 8],       // past the end of numbers
        [1 << 32, writable, 0, 0, SLOT_BYTES + 1], // more than a slot has
        [1 << 32, writable, 0, 0, 0],              // no bytes
        [1 << 32, writable, 1, 0, 8],              // a revision that is still to come
        [65 << 32, writable, 0, 0, 8],             // too many spans
    ] {
        let mut attacked = Attacked::new();
        let mut asker = attacked.asker();
        let fault = attacked.ask(&mut asker, &words);
        assert_eq!(fault, Err(LaneFault(Cause::PeerCorrupt)), "{words:?}");
        attacked.assert_unharmed();
    }
}

#[test]
fn an_owner_that_answers_nonsense_ends_the_session_and_lands_nothing() {
    for (cause, bytes) in [(0, 63), (0, u64::MAX), (255, 0), (u64::MAX, 64)] {
        let mut two = Two::new();
        let near = two.near.register(vec![7; 64], "near", Rights::NONE);
        let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
        two.post(1, Direction::Read, &near, &far, &[Span { local: 0, remote: 0, len: 64 }]).unwrap();
        let place = two.near.slots.segment().range();
        let owner = penstock_ring::bounce::Responder::mapped(&place, Banks::slot_offset(0, 0), REQUEST_WORDS).unwrap();
        let taken = owner.take(&mut [0; REQUEST_WORDS]).unwrap();
        owner.answer(&taken, [cause, bytes]);
        assert_eq!(two.collect(), Err(LaneFault(Cause::PeerCorrupt)), "{cause} {bytes}");
        assert_eq!(contents(near.host().unwrap()), vec![7; 64]);
    }
}

#[test]
fn states_that_flip_at_any_moment_end_the_session_at_most() {
    // One thread scribbles over words, answers and questions while both sides work on.
    for seed in 0..20_u64 {
        let mut attacked = Attacked::new();
        let near = attacked.two.near.register(pattern(1 << 16, 1), "near", Rights::NONE);
        let place = attacked.two.near.slots.segment().range();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                while !stop.load(Ordering::Relaxed) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let offset = (random as usize % BANK_BYTES) / 8 * 8;
                    let value = if random & 1 << 40 == 0 { random >> 45 } else { random };
                    place.atomic_u64(offset).unwrap().store(value, Ordering::Relaxed);
                }
            });
            let writable = Arc::clone(&attacked.writable);
            for completion_id in 0..200 {
                let direction = if completion_id % 2 == 0 { Direction::Write } else { Direction::Read };
                let span = [Span { local: completion_id, remote: completion_id, len: 4000 }];
                let _ = attacked.two.post(completion_id, direction, &near, &writable, &span);
                if attacked.two.far.lane.poll(&mut Reports::default()).is_err()
                    || attacked.two.near.lane.poll(&mut Reports::default()).is_err()
                {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        attacked.assert_unharmed();
    }
}
