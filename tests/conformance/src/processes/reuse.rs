//! Memory that its owner writes to the moment it is told that it may.

use std::time::{Duration, Instant};

use penstock::flows::{FinishedTransfer, Receive, RequestId, Send, Status};

use super::Side;
use super::end::{End, Geometry, request, transfer};
use crate::stage::PATIENCE;

/// What a request's memory has at the source.
const SENT: u8 = 0x11;
/// What the next request writes at the sink, and at the source.
const NEXT_AT_SINK: u8 = 0x66;
const NEXT_AT_SOURCE: u8 = 0x77;
/// How long what was given to the next request is looked at.
const WATCHED: Duration = Duration::from_millis(4);

/// 15 MiB in one layer.
const LARGE: Geometry =
    Geometry { layers: 1, blocks: 240, block_tokens: 64, token_bytes: 1024, once_bytes: 0, is_layer_major: true };
const TOKENS: u64 = 240 * 64;

/// The microseconds within which a transfer is ended. How long one takes is for the machine to say: later after one that was cut off, sooner after one that had
/// everything.
struct Middle(u64);

impl Middle {
    const MAX: u64 = 4_000;
    const MIN: u64 = 20;

    fn after(self, was_cut: bool) -> Self {
        Self(if was_cut { self.0 * 5 / 4 } else { self.0 / 2 }.clamp(Self::MIN, Self::MAX))
    }
}

/// How a round is ended in its middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    SinkFails,
    SinkAborts,
    SourceFails,
    SourceAborts,
}

impl Ended {
    fn of(round: u32) -> Self {
        [Self::SinkFails, Self::SourceFails, Self::SinkAborts, Self::SourceAborts][round as usize % 4]
    }
}

/// Waits until this engine names the request, and answers whether it failed, and what memory of it may still be touched.
fn named(end: &End, request: &RequestId) -> (bool, Vec<(u64, u64)>) {
    let since = Instant::now();
    loop {
        let mut finished = FinishedTransfer::default();
        end.engine.drain_finished(&mut finished);
        let has_failed = finished.failed.contains(request);
        if has_failed || finished.received.contains(request) || finished.sent.contains(request) {
            return (has_failed, finished.quarantined.into_iter().flat_map(|request| request.extents).collect());
        }
        assert!(since.elapsed() < PATIENCE, "no end of {request}: {:?}", end.engine.control_metrics());
        std::thread::yield_now();
    }
}

/// A 15 MiB push between registered memories ends in its middle, by either side. Each side gives the memory to the next request the moment
/// `drain_finished` names the old one: nothing lands in the sink's then, and nothing is read of the source's.
pub mod registered_memory_is_quiet_when_drain_finished_names_its_request {
    use super::*;

    /// The sink.
    pub fn test(side: &mut Side) {
        let end = End::registered(side.start(), LARGE);
        let peer = side.connect(&end);
        let all: Vec<u32> = (0..LARGE.blocks).collect();
        let (mut cut, mut middle) = (0, Middle(Middle::MAX));
        for round in 0..side.rounds {
            let numbers = end.take_all();
            end.fill(&all, 0);
            let how = Receive::into(&end.layout).from(0, &peer);
            let input = end.engine.consume(transfer(round), &request(round), how).expect("the name is new");
            let blocks = end.run(0, LARGE.blocks);
            input.grant(&blocks).expect("it stands");
            drop((blocks, numbers));
            side.line.say("go");
            // The middle is behind the first byte that lands.
            let since = Instant::now();
            while all.iter().all(|&block| end.byte(LARGE.offset(0, block, 0)) == 0) && since.elapsed() < PATIENCE {}
            side.pause(middle.0);
            match Ended::of(round) {
                Ended::SinkFails => input.fail("the scheduler preempts it"),
                Ended::SinkAborts => drop(input.abort(Duration::ZERO)),
                Ended::SourceFails | Ended::SourceAborts => side.line.say("end it"),
            }
            let (has_failed, quarantined) = named(&end, &request(round));
            cut += u32::from(has_failed);
            middle = middle.after(has_failed);
            // What is quarantined is not for the next request yet.
            let is_free = |block: &u32| quarantined.iter().all(|extent| !overlaps(*extent, LARGE, *block));
            let free: Vec<u32> = all.iter().copied().filter(is_free).collect();
            let how = Ended::of(round);
            if round / 4 % 2 == 0 {
                end.fill(&free, NEXT_AT_SINK);
                std::thread::sleep(WATCHED);
                let landed = end.unlike(&free, NEXT_AT_SINK);
                side.note_unless(round, landed.is_none(), || format!("{how:?}: {landed:?} landed in the next one's"));
            } else {
                // Of what has come nothing is of the source's next request.
                std::thread::sleep(WATCHED);
                let found = end.unlike_any(&free, &[0, SENT]);
                side.note_unless(round, found.is_none(), || format!("{how:?}: {found:?} of the source's next request"));
            }
            drop(input);
            side.line.expect("over");
        }
        // On a machine that is busy enough most are over before their first byte is seen here.
        assert!(cut > 0, "none of {} transfers were cut off in their middle", side.rounds);
        drop(end.take_all());
    }

    /// The source.
    pub fn child(side: &mut Side) {
        let end = End::registered(side.start(), LARGE);
        side.accept(&end);
        let all: Vec<u32> = (0..LARGE.blocks).collect();
        for round in 0..side.rounds {
            let numbers = end.take_all();
            end.fill(&all, SENT);
            side.line.expect("go");
            let output = end.engine.produce(transfer(round), &request(round), Send::from(&end.layout));
            let output = output.expect("the name is new");
            output.chunk(&end.run(0, LARGE.blocks), TOKENS, true).expect("it stands");
            drop(numbers);
            match Ended::of(round) {
                Ended::SourceFails => {
                    side.line.expect("end it");
                    output.fail("the device is gone");
                }
                Ended::SourceAborts => {
                    side.line.expect("end it");
                    let _ = output.abort(Duration::ZERO);
                }
                Ended::SinkFails | Ended::SinkAborts => {}
            }
            let (_, quarantined) = named(&end, &request(round));
            let is_free = |block: &u32| quarantined.iter().all(|extent| !overlaps(*extent, LARGE, *block));
            end.fill(&all.iter().copied().filter(is_free).collect::<Vec<_>>(), NEXT_AT_SOURCE);
            std::thread::sleep(WATCHED);
            drop(output);
            side.line.say("over");
        }
        drop(end.take_all());
    }

    fn overlaps((offset, len): (u64, u64), geometry: Geometry, block: u32) -> bool {
        let first = geometry.offset(0, block, 0);
        offset < first + geometry.layer_block_bytes() && first < offset + len
    }
}

/// The block that takes what goes once has an owner of its own, who drops it when the sink aborts. Whoever takes it then is alone with it.
pub mod a_once_block_is_free_when_nothing_can_land_in_it {
    use super::*;

    const ONCE: Geometry = Geometry {
        layers: 1,
        blocks: 65,
        block_tokens: 64,
        token_bytes: 4096,
        once_bytes: 64 << 10,
        is_layer_major: true,
    };
    const TOKENS: u64 = 64 * 64;

    /// The sink.
    pub fn test(side: &mut Side) {
        let end = side.pooled(ONCE);
        let peer = side.connect(&end);
        let (mut cut, mut middle) = (0, Middle(Middle::MAX));
        for round in 0..side.rounds {
            let (once, blocks) = (end.take(1), end.take(64));
            end.fill(once.indices(), 0);
            let first = blocks.indices()[0];
            end.fill(&[first], 0);
            let how = Receive::into(&end.layout).from(0, &peer);
            let input = end.engine.consume(transfer(round), &request(round), how).expect("the name is new");
            input.grant_with(&blocks, 0, Some(&once)).expect("it stands");
            drop((blocks, once));
            side.line.say("go");
            // The middle is behind the first bytes that land.
            let first = end.geometry.offset(0, first, 0);
            let since = Instant::now();
            while end.byte(first) == 0 && since.elapsed() < PATIENCE {}
            side.pause(middle.0);
            let is_cut = input.status() != Status::Success;
            cut += u32::from(is_cut);
            middle = middle.after(is_cut);
            let _ = input.abort(Duration::ZERO);
            // Whatever is free now has a new owner, who writes to all of it.
            let next = end.take_free();
            end.fill(next.indices(), NEXT_AT_SINK);
            std::thread::sleep(WATCHED / 2);
            let landed = end.unlike(next.indices(), NEXT_AT_SINK);
            side.note_unless(round, landed.is_none(), || format!("{landed:?} landed in {} blocks", next.len()));
            drop((input, next));
            side.line.expect("over");
        }
        assert!(cut > 0, "none of {} aborts came before the end", side.rounds);
        end.assert_nothing_is_left();
    }

    /// The source.
    pub fn child(side: &mut Side) {
        let end = side.pooled(ONCE);
        side.accept(&end);
        for round in 0..side.rounds {
            let (once, blocks) = (end.take(1), end.take(64));
            end.fill(once.indices(), SENT);
            end.fill(blocks.indices(), SENT);
            side.line.expect("go");
            let how = Send::from(&end.layout).once(&once);
            let output = end.engine.produce(transfer(round), &request(round), how).expect("the name is new");
            // The sink may have given it up already.
            let _ = output.chunk(&blocks, TOKENS, true);
            drop((once, blocks));
            // Of no interest here: the sink may have had everything before it gave up.
            let _ = output.wait(PATIENCE).expect("it ends");
            drop(output);
            side.line.say("over");
        }
        end.assert_nothing_is_left();
    }
}
