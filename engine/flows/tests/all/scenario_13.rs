//! Two stages with two berths for puts and two for gets each, which stream chunks of three blobs to each other.

use std::collections::BTreeMap;

use penstock_core::Credits;
use penstock_flows::relay::payload::{Dtype, PayloadItem, Schema};
use penstock_flows::relay::{Arrival, Destination, GetKey, Put, PutKey, PutSource, RelayStreamKey};
use penstock_session::purse::{CreditPool, CreditWaiter, Took};

use crate::stages::{BERTH, Dice, LATER, World, pattern, request};

const CHUNKS: u64 = 3;
const SEEDS: u64 = 10_000;

/// One stage's application.
#[derive(Default)]
struct Stage {
    stream: Option<RelayStreamKey>,
    puts: Vec<PutKey>,
    is_finished: bool,
    gets: BTreeMap<GetKey, (u64, Vec<u8>)>,
    came: u64,
    is_done: bool,
}

/// Something that can happen next.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Deliver(usize, usize),
    Finish(usize),
    Put(usize),
    Fill(usize, PutKey),
    Finished(usize),
    Arrival(usize),
    CopyOut(usize, GetKey),
}

fn schema() -> Schema {
    let blob = |path| PayloadItem { path, shape: &[8, 8], dtype: Dtype::U8 };
    Schema::pack(&[blob("hidden"), blob("codes"), blob("positions")]).unwrap()
}

fn seed_of(stage: usize, number: u64) -> u64 {
    1 + stage as u64 * 100 + number
}

fn deeds(world: &World, stages: &[Stage; 2]) -> Vec<Deed> {
    let mut deeds: Vec<Deed> = world.busy_wires().into_iter().map(|(from, to)| Deed::Deliver(from, to)).collect();
    deeds.extend((0..world.moves.len()).map(Deed::Finish));
    for (at, stage) in stages.iter().enumerate() {
        match stage.puts.len() as u64 {
            CHUNKS if !stage.is_finished => deeds.push(Deed::Finished(at)),
            CHUNKS => {}
            _ => deeds.push(Deed::Put(at)),
        }
        let relay = &world.engines[at].relay;
        deeds.extend(stage.puts.iter().filter(|put| relay.is_to_fill(**put)).map(|put| Deed::Fill(at, *put)));
        deeds.extend(stage.gets.keys().filter(|get| relay.has_pieces(**get)).map(|get| Deed::CopyOut(at, *get)));
        deeds.push(Deed::Arrival(at));
    }
    deeds
}

/// Does it; whether anything has changed.
fn carry_out(world: &mut World, stages: &mut [Stage; 2], deed: Deed) -> bool {
    match deed {
        Deed::Deliver(from, to) => world.deliver(from, to),
        Deed::Finish(place) => {
            world.finish(place);
            true
        }
        Deed::Put(at) => {
            let (stream, source) = (stages[at].stream.unwrap(), PutSource::Berths { bytes: schema().bytes() });
            let words = (schema().encode(), format!("chunk {}", stages[at].puts.len()).into_bytes());
            let put = world.call(at, |relay, now| relay.put_next(stream, source, words.0, words.1, LATER, now));
            stages[at].puts.push(put.unwrap());
            true
        }
        Deed::Fill(at, put) => {
            let number = stages[at].puts.iter().position(|other| *other == put).unwrap();
            let whole = pattern(seed_of(at, number as u64), schema().bytes());
            let part = world.engines[at].relay.unwritten(put)[0];
            let place = part.place.unwrap();
            world.write(at, place, &whole[part.from as usize..(part.from + place.len) as usize]);
            world.call(at, |relay, now| relay.filled(put, part.part, now)).unwrap();
            true
        }
        Deed::Finished(at) => {
            let stream = stages[at].stream.unwrap();
            world.call(at, |relay, now| relay.finish(stream, None, LATER, now)).unwrap();
            stages[at].is_finished = true;
            true
        }
        Deed::Arrival(at) => {
            match world.call(at, |relay, now| relay.next_arrival(&request("r"), now)) {
                None => return false,
                Some(Arrival::Chunk(chunk)) => {
                    assert_eq!(chunk.stream.unwrap().1, stages[at].came, "in their order");
                    assert_eq!(chunk.header, format!("chunk {}", stages[at].came).into_bytes());
                    assert_eq!(Schema::parse(&chunk.schema), Ok(schema()));
                    let get = world.call(at, |relay, now| relay.get(&chunk.metadata, Destination::Berths, LATER, now));
                    let (number, room) = (stages[at].came, vec![0; chunk.bytes as usize]);
                    stages[at].gets.insert(get.unwrap(), (number, room));
                    stages[at].came += 1;
                }
                Some(Arrival::Done { .. }) => {
                    assert_eq!(stages[at].came, CHUNKS, "behind all its chunks");
                    assert!(!std::mem::replace(&mut stages[at].is_done, true), "once");
                }
                Some(Arrival::Failed { failed, .. }) => panic!("{failed}"),
            }
            true
        }
        Deed::CopyOut(at, get) => {
            let piece = world.engines[at].relay.pieces(get)[0];
            let bytes = world.read(at, piece.place).to_vec();
            let (_, room) = stages[at].gets.get_mut(&get).unwrap();
            room[piece.from as usize..piece.from as usize + bytes.len()].copy_from_slice(&bytes);
            world.call(at, |relay, now| relay.taken(get, piece.number, now)).unwrap();
            true
        }
    }
}

fn run(seed: u64) {
    let (mut world, mut dice) = (World::of(&["stage-a", "stage-b"]), Dice(seed));
    let mut stages = [Stage::default(), Stage::default()];
    for (at, stage) in stages.iter_mut().enumerate() {
        let reader = world.key(1 - at);
        stage.stream = Some(world.call(at, |relay, _| relay.stream(&request("r"), &[reader])).unwrap());
    }
    loop {
        let mut open = deeds(&world, &stages);
        let is_something_done = loop {
            if open.is_empty() {
                break false;
            }
            let deed = open.swap_remove(dice.below(open.len()));
            if carry_out(&mut world, &mut stages, deed) {
                break true;
            }
        };
        if !is_something_done {
            break;
        }
    }
    for (at, stage) in stages.iter().enumerate() {
        assert!(stage.is_done, "seed {seed}: stage {at} waits for ever, with {} of {CHUNKS} chunks", stage.came);
        for (get, (number, found)) in &stage.gets {
            assert_eq!(world.engines[at].relay.get_result(*get), Some(&Ok(())), "seed {seed}");
            assert_eq!(*found, pattern(seed_of(1 - at, *number), schema().bytes()), "seed {seed}, chunk {number}");
        }
        for &put in &stage.puts {
            assert_eq!(world.engines[at].relay.put_state(put), Some(Put::Freed), "seed {seed}");
            assert_eq!(world.engines[at].relay.put_result(put), Some(&Ok(())), "seed {seed}");
        }
    }
    for (at, stage) in stages.into_iter().enumerate() {
        stage.puts.into_iter().for_each(|put| world.call(at, |relay, now| relay.let_go_put(put, now)));
        stage.gets.into_keys().for_each(|get| world.call(at, |relay, now| relay.let_go_get(get, now)));
        world.call(at, |relay, now| relay.let_go_stream(stage.stream.unwrap(), now));
        assert_eq!(world.engines[at].relay.held(), (0, 0, 0), "seed {seed}");
        assert!(world.engines[at].relay.is_empty(), "seed {seed}");
    }
}

#[test]
fn scenario_13_two_credits_two_stages_three_blobs_both_ways_finish() {
    assert_eq!(schema().bytes(), 3 * BERTH, "a chunk needs more berths than there are");
    (0..SEEDS).for_each(run);
}

/// What the scenario would miss if it could not fail: the same two berths, taken one after the other, are held by two who wait for each
/// other, under some seed; taken together, under none.
#[test]
fn scenario_13_berths_taken_one_after_the_other_deadlock() {
    let one_by_one = (0..200).filter(|&seed| !all_get_two(seed, &mut OneByOne(Credits::new(2), [0; 2]))).count();
    let together = (0..200).filter(|&seed| !all_get_two(seed, &mut Together(CreditPool::new([2], 8), [0; 2]))).count();
    assert!(one_by_one > 0 && together == 0, "{one_by_one} of 200 seeds, and {together}");
}

trait Taking {
    /// A step of one who wants two; whether anything has changed.
    fn step(&mut self, who: usize) -> bool;
    fn held(&self, who: usize) -> u64;
    fn give_back(&mut self, who: usize);
}

struct OneByOne(Credits, [u64; 2]);
struct Together(CreditPool<1>, [u64; 2]);

impl Taking for OneByOne {
    fn step(&mut self, who: usize) -> bool {
        let is_taken = self.0.take(1).is_ok();
        self.1[who] += u64::from(is_taken);
        is_taken
    }

    fn held(&self, who: usize) -> u64 {
        self.1[who]
    }

    fn give_back(&mut self, who: usize) {
        self.0.give_back(std::mem::take(&mut self.1[who])).unwrap();
    }
}

impl Taking for Together {
    fn step(&mut self, who: usize) -> bool {
        let is_taken = self.0.take(CreditWaiter(who as u64), [2]) == Took::Now;
        self.1[who] += if is_taken { 2 } else { 0 };
        is_taken
    }

    fn held(&self, who: usize) -> u64 {
        self.1[who]
    }

    fn give_back(&mut self, who: usize) {
        let mut served = Vec::new();
        self.0.give_back([std::mem::take(&mut self.1[who])], &mut served).unwrap();
        served.into_iter().for_each(|waiter| self.1[waiter.0 as usize] = 2);
    }
}

/// Two that want two berths each; whether both have had them in the end.
fn all_get_two(seed: u64, taking: &mut dyn Taking) -> bool {
    let (mut dice, mut done) = (Dice(seed), [false; 2]);
    for _ in 0..100 {
        let who = dice.below(2);
        if !done[who] && taking.held(who) < 2 {
            taking.step(who);
        } else if !done[who] {
            taking.give_back(who);
            done[who] = true;
        }
    }
    done == [true; 2]
}
