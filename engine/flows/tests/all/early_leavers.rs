//! Sinks of a fan-out that leave when they have everything: the ranks that are not so far still get theirs.

use std::time::Duration;

use penstock_core::Cause;
use penstock_flows::Status;
use penstock_flows::manager::{Settings, Sinks};
use penstock_session::control::ControlMessage;
use penstock_session::transfers::table::EntryKey;

use crate::managers::World;

const RESUME: Duration = Duration::from_secs(10);
const DOUBT: Duration = Duration::from_secs(6);
const TOKENS: u64 = 100;

/// One source and two ranks of a sink on engines of their own. Everything is computed and granted, and moves.
struct FanOut {
    world: World,
    output: EntryKey,
    inputs: [EntryKey; 2],
}

/// The engines that have the ranks of the sink.
const QUICK: usize = 1;
const SLOW: usize = 2;

impl FanOut {
    fn new(is_lent: bool, is_resumable: bool) -> Self {
        let settings = Settings { resume_within: RESUME, doubt_within: DOUBT, part_bytes: 700, ..Settings::default() };
        let mut world = World::with(settings, &[(0, 1, 16), (0, 2, 64), (1, 2, 64)]);
        world.holds_moves = true;
        let output = world.produce(0, 1, |how| {
            (how.is_lent, how.is_resumable, how.sinks) = (is_lent, is_resumable, Sinks::Sharing(2));
        });
        let inputs = [QUICK, SLOW]
            .map(|at| world.consume(at, 1, &[0], |how| (how.is_pull, how.is_resumable) = (is_lent, is_resumable)));
        for (at, input) in [QUICK, SLOW].into_iter().zip(inputs) {
            world.grant(at, input, &[9, 4]);
        }
        let blocks: Vec<u32> = (0..7).collect();
        world.chunk(0, output, (&blocks, &blocks), 0..TOKENS, true);
        world.run();
        Self { world, output, inputs }
    }

    fn received(&mut self, at: usize) -> Option<Status> {
        let input = self.inputs[at - QUICK];
        self.world.manager(at).status(input)
    }

    fn sent(&mut self) -> Option<Status> {
        let output = self.output;
        self.world.manager(0).status(output)
    }

    /// Moves everything to the quick rank, part by part, until it has everything and has said so; at the source no part of the last ones
    /// has ended.
    fn finish_quick_at_the_sink(&mut self) {
        for _ in 0..TOKENS {
            self.world.land_moves(0, QUICK);
            self.world.run();
            if self.received(QUICK) == Some(Status::Success) {
                return;
            }
            // More parts go when those before them have ended.
            while self.moves_to(QUICK) > 0 {
                self.world.end_some_move(0, Some(QUICK), 0, None);
            }
        }
        panic!("the quick rank never has everything");
    }

    /// How many parts to a rank have not ended at the source.
    fn moves_to(&self, at: usize) -> usize {
        self.world.nodes[0].moving.values().filter(|(peer, _)| peer.peer_index as usize == at).count()
    }

    fn finish_slow(&mut self) {
        for at in [0, SLOW] {
            while !self.world.nodes[at].moving.is_empty() {
                self.world.end_moves(at);
                self.world.run();
            }
        }
    }

    /// Both ranks have the bytes, all three sides say that it went well, and nothing is kept.
    fn assert_done(mut self) {
        assert_eq!([self.received(QUICK), self.received(SLOW)], [Some(Status::Success); 2]);
        assert_eq!(self.sent(), Some(Status::Success), "{:?}", self.world.nodes[0].manager.send_failure(self.output));
        for (at, input) in [QUICK, SLOW].into_iter().zip(self.inputs) {
            assert!(self.world.has(at, &[9, 4], 0, 0..TOKENS), "engine {at} has other bytes");
            for leg in self.world.manager(at).landed_legs(input) {
                let now = self.world.now;
                self.world.manager(at).taken(input, leg, now).unwrap();
            }
        }
        let now = self.world.now;
        for (at, key) in [(0, self.output), (QUICK, self.inputs[0]), (SLOW, self.inputs[1])] {
            self.world.manager(at).release(key, now);
        }
        self.world.assert_nothing_is_left();
    }
}

fn is_ack(said: &ControlMessage) -> bool {
    matches!(said, ControlMessage::Ack(_))
}

#[test]
fn a_rank_that_has_everything_and_leaves_before_its_parts_have_ended_at_the_source_fails_no_other_rank() {
    for is_resumable in [false, true] {
        let mut fan_out = FanOut::new(false, is_resumable);
        fan_out.finish_quick_at_the_sink();
        assert_eq!(fan_out.world.count(QUICK, is_ack), 1);
        assert!(fan_out.moves_to(QUICK) > 0 && fan_out.moves_to(SLOW) > 0);
        fan_out.world.cut(0, QUICK);
        fan_out.world.end_cut_moves(0);
        fan_out.world.pass(DOUBT.max(RESUME) + Duration::from_secs(1));
        let failure = fan_out.world.nodes[0].manager.send_failure(fan_out.output).cloned();
        assert_eq!(failure, None, "resumable: {is_resumable}");
        fan_out.finish_slow();
        fan_out.assert_done();
    }
}

/// The other order: the part is seen to end first, and then that the session is over.
#[test]
fn nor_does_it_if_its_lane_breaks_before_its_session_is_known_to_be_over() {
    for is_resumable in [false, true] {
        let mut fan_out = FanOut::new(false, is_resumable);
        fan_out.finish_quick_at_the_sink();
        while fan_out.moves_to(QUICK) > 0 {
            fan_out.world.end_some_move(0, Some(QUICK), 0, Some(Cause::PeerLost));
        }
        fan_out.world.pass(DOUBT + Duration::from_secs(1));
        let failure = fan_out.world.nodes[0].manager.send_failure(fan_out.output).cloned();
        assert_eq!(failure, None, "resumable: {is_resumable}");
        fan_out.world.cut(0, QUICK);
        fan_out.finish_slow();
        fan_out.assert_done();
    }
}

/// Where a part is seen to fail before the acknowledgement is heard, a source that waits for its sinks goes on as well.
#[test]
fn an_acknowledgement_that_is_heard_behind_the_break_of_its_lane_ends_the_doubt() {
    let mut fan_out = FanOut::new(false, true);
    while fan_out.moves_to(QUICK) > 0 {
        fan_out.world.land_moves(0, QUICK);
        let is_said = fan_out.world.run_until(is_ack);
        fan_out.world.end_some_move(0, Some(QUICK), 0, is_said.then_some(Cause::PeerLost));
    }
    assert_eq!(fan_out.world.count(QUICK, is_ack), 1);
    assert_eq!(fan_out.sent(), Some(Status::Transferring), "it is in doubt");
    fan_out.world.run();
    fan_out.world.cut(0, QUICK);
    fan_out.world.pass(DOUBT.max(RESUME) + Duration::from_secs(1));
    fan_out.finish_slow();
    fan_out.assert_done();
}

#[test]
fn a_reader_that_has_given_its_lease_back_and_leaves_fails_no_other_reader() {
    let mut fan_out = FanOut::new(true, false);
    while !fan_out.world.nodes[QUICK].moving.is_empty() {
        fan_out.world.end_moves(QUICK);
        fan_out.world.run();
    }
    assert_eq!(fan_out.received(QUICK), Some(Status::Success));
    assert_eq!(fan_out.sent(), Some(Status::Transferring));
    fan_out.world.cut(0, QUICK);
    fan_out.world.run();
    fan_out.finish_slow();
    fan_out.assert_done();
}
