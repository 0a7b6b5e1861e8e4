//! Random operations in both directions, over a stream that is cut anywhere, against a plain copy.

use proptest::prelude::*;

use super::*;

const BYTES: usize = 1 << 16;

/// One step of a run.
#[derive(Debug, Clone)]
enum Step {
    /// A side moves these pieces, in blocks of 16 bytes: its offset, the other's, how many.
    Move { side: usize, is_write: bool, pieces: Vec<(u8, u8, u8)>, is_told: bool },
    /// So many bytes pass each way.
    Pass(usize),
    /// A side has its turn.
    Turn(usize),
    /// A side's inbox has room for so many more.
    Room(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pieces = prop::collection::vec((any::<u8>(), any::<u8>(), 1u8..=255), 1..5);
    prop_oneof![
        3 => (0usize..2, any::<bool>(), pieces, any::<bool>())
            .prop_map(|(side, is_write, pieces, is_told)| Step::Move { side, is_write, pieces, is_told }),
        3 => prop_oneof![1usize..40, 1usize..20_000].prop_map(Step::Pass),
        3 => (0usize..2).prop_map(Step::Turn),
        1 => (0usize..2, 0usize..3).prop_map(|(side, room)| Step::Room(side, room)),
    ]
}

/// Bytes between the two sides, in both directions.
struct Wire {
    ends: [OwnedFd; 2],
    held: [Vec<u8>; 2],
}

impl Wire {
    fn pass(&mut self, bytes: usize) -> bool {
        let mut worked = false;
        for from in 0..2 {
            let mut some = vec![0; bytes];
            if let Ok(taken) = rustix::io::read(&self.ends[from], &mut some) {
                self.held[from].extend(&some[..taken]);
                worked |= taken > 0;
            }
            let part = bytes.min(self.held[from].len());
            if let Ok(given) = rustix::io::write(&self.ends[1 - from], &self.held[from][..part]) {
                self.held[from].drain(..given);
                worked |= given > 0;
            }
        }
        worked
    }
}

/// Two sides whose stream goes through a wire.
fn wired() -> ([Side; 2], Wire) {
    let ((near, near_end), (far, far_end)) = (narrow_pair(), narrow_pair());
    for end in [&near_end, &far_end] {
        rustix::io::ioctl_fionbio(end, true).unwrap();
    }
    let (one, two) = (offer(1), offer(1));
    let (blob_one, blob_two) = (one.offering.blob.clone(), two.offering.blob.clone());
    let sides = [join(one, &blob_two, vec![near]), join(two, &blob_one, vec![far])];
    (sides, Wire { ends: [near_end, far_end], held: [Vec::new(), Vec::new()] })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_cut_where_all_is_as_if_it_were_copied(steps in prop::collection::vec(step(), 1..80)) {
        let (mut sides, mut wire) = wired();
        let given = [0, 1].map(|at| pattern(at as u64 + 5, BYTES));
        let sources = [0, 1].map(|at| sides[at].region(given[at].clone(), Rights::READ));
        let mut expected = [Vec::new(), Vec::new()];
        let mut landings: [Vec<Arc<Region>>; 2] = Default::default();
        let (mut completion_id, mut told) = (0u64, [Vec::new(), Vec::new()]);
        sides.iter_mut().for_each(|side| side.got.room = 1);
        for step in &steps {
            match step {
                Step::Move { side, is_write, pieces, is_told } => {
                    let (here, other) = (*side, 1 - side);
                    // Each move lands in a fresh region, so that their order does not matter.
                    let (giver, taker) = if *is_write { (here, other) } else { (other, here) };
                    let rights = if *is_write { Rights::WRITE } else { Rights::NONE };
                    let landing = sides[taker].region(vec![0; BYTES], rights);
                    let mut model = vec![0; BYTES];
                    let mut at = 0;
                    let mut spans = Vec::new();
                    for &(from, _, blocks) in pieces {
                        let len = u64::from(blocks) * 16;
                        let from = u64::from(from) * 128;
                        let (from, to) = (from.min(BYTES as u64 - len), at);
                        at += len;
                        let source = &given[giver];
                        model[to as usize..(to + len) as usize].copy_from_slice(&source[from as usize..(from + len) as usize]);
                        spans.push(if *is_write { span(from, to, len) } else { span(to, from, len) });
                    }
                    completion_id += 2;
                    let posted = if *is_write {
                        let source = Arc::clone(&sources[here]);
                        sides[here].post(WRITE, &source, key_of(&landing), &spans, (completion_id, completion_id))
                    } else {
                        sides[here].post(READ, &landing, key_of(&sources[other]), &spans, (completion_id, completion_id))
                    };
                    prop_assert_eq!(posted, Ok(Posted::Accepted(spans.len())));
                    if *is_told && *is_write {
                        let payload = pattern(completion_id, completion_id as usize % 200);
                        prop_assert_eq!(sides[here].tell(completion_id, completion_id + 1, completion_id.into(), &payload), Ok(NotifyPosted::Accepted));
                        told[other].push((u128::from(completion_id), payload));
                    }
                    landings[taker].push(landing);
                    expected[taker].push(model);
                }
                Step::Pass(bytes) => drop(wire.pass(*bytes)),
                Step::Turn(side) => { sides[*side].turn(); }
                Step::Room(side, room) => {
                    sides[*side].got.room += room;
                    sides[*side].ready.mark(PARTY as usize);
                }
            }
        }
        for side in &mut sides {
            side.got.room = usize::MAX;
            side.ready.mark(PARTY as usize);
        }
        let mut quiet = 0;
        while quiet < 20 {
            let mut worked = wire.pass(4096);
            for side in &mut sides {
                worked |= side.turn();
                prop_assert_eq!(side.fault, None);
            }
            quiet = if worked { 0 } else { quiet + 1 };
        }
        let moves = steps.iter().filter(|step| matches!(step, Step::Move { .. })).count();
        let ended: usize = sides.iter().map(|side| side.got.completed.len()).sum();
        prop_assert_eq!(ended, moves + told[0].len() + told[1].len());
        for (at, side) in sides.iter().enumerate() {
            prop_assert!(side.got.completed.iter().all(|(_, result)| result.is_ok()));
            prop_assert_eq!(&side.got.notes, &told[at]);
            for (landing, model) in landings[at].iter().zip(&expected[at]) {
                prop_assert!(bytes_of(landing) == *model);
            }
        }
    }
}
