//! Transfers by name, where other engines are known to go wrong with bytes: each case has the name of what goes wrong there.

use penstock::flows::{FlowCause, InputEvent, MemoryPolicy, Send, Side, Status, TransferId};

use super::named::{Both, SINK_TOKENS, TOKEN_BYTES, UUID, assert_whole};
use crate::Setting;

/// Identities are made of the request alone: a second attempt, or a second sample, takes the bytes of the first.
pub fn defect_000_a_retry_or_second_sample_reuses_the_id(setting: &Setting) {
    let both = Both::open(setting, 16, 4);
    let named = |attempt, sample| TransferId::mint(UUID, attempt, sample).expect("it is a UUID");
    let all = [named(0, 0), named(0, 1), named(1, 0), named(1, 1)];
    // All of them are under way at the same time.
    let under_way: Vec<_> = (1..)
        .zip(all)
        .map(|(name, transfer)| {
            let output = both.produce_as(name, transfer, Send::from(&both.source.layout));
            (name, output, both.consume_as(name, transfer, MemoryPolicy::Wait))
        })
        .collect();
    for (name, output, _) in &under_way {
        both.give(output, *name, 40);
    }
    for (name, output, input) in under_way.iter().rev() {
        assert_eq!(both.receive(input, *name, 40, 1), 1);
        both.until("the source ends", || output.poll()).expect("the sink has everything");
    }
    drop(under_way);
    both.assert_nothing_is_left();
}

/// What lies plane by plane is copied as if it lay token by token: in blocks of unlike sizes, and in several legs, it lands elsewhere.
pub fn defect_001_plane_major_data_is_misplaced(setting: &Setting) {
    let both = Both::open(setting, 63, 8);
    for (name, tokens, leg_blocks, legs) in [(1, 1_000, 3, 3), (2, 333, 1, 3), (3, 129, 2, 1)] {
        both.comes_whole(name, tokens, leg_blocks, legs);
    }
    both.assert_nothing_is_left();
}

/// Tokens are divided by those of a block, and what is left over is forgotten.
pub fn defect_001_division_drops_the_remainder(setting: &Setting) {
    let both = Both::open(setting, 24, 2);
    for (name, tokens, legs) in [(1, 1, 1), (2, 15, 1), (3, 17, 1), (4, 127, 1), (5, 129, 2), (6, 257, 3)] {
        both.comes_whole(name, tokens, 1, legs);
    }
    both.assert_nothing_is_left();
}

/// What was handed over looks into blocks that are somebody else's by then.
pub fn defect_001_cached_data_is_a_view_of_freed_memory(setting: &Setting) {
    let both = Both::open(setting, 16, 2);
    let (output, input) = (both.produce(1), both.consume(1, MemoryPolicy::Wait));
    both.give(&output, 1, 200);
    input.grant(&both.take(&both.sink, 2)).expect("it stands");
    while !matches!(both.next(&input), InputEvent::Done { .. }) {}
    let mut found = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, 200).expect("there are two") as usize]);
    let [one, other] = &mut found;
    assert_eq!(input.assemble(&mut [one, other], 200), Ok(1));
    // Its blocks are free again, and the next request writes into them.
    let next = both.take(&both.sink, u64::from(both.sink.blocks));
    both.sink.window().fill(0, 2 * TOKEN_BYTES * u64::from(SINK_TOKENS), 0xee).expect("they are of the pool");
    assert_whole(&found, 1, 200);
    let [one, other] = &mut found;
    assert_eq!(input.assemble(&mut [one, other], 200), Ok(0), "nothing is handed over twice");
    assert_whole(&found, 1, 200);
    both.until("the source ends", || output.poll()).expect("the sink has everything");
    drop((output, input, next));
    both.assert_nothing_is_left();
}

/// A transfer that fails leaves something behind on one of its sides, each time.
pub fn defect_001_entries_leak_on_failure(setting: &Setting) {
    let both = Both::open(setting, 16, 4);
    for name in 1..=12 {
        let (output, input) = (both.produce(name), both.consume(name, MemoryPolicy::Wait));
        let has_room = name % 2 == 0;
        if has_room {
            input.grant(&both.take(&both.sink, 2)).expect("it stands");
        }
        both.give(&output, name, 200);
        let (expected, said_by) = match name % 3 {
            0 => {
                output.fail("the model ran out of memory");
                if !has_room {
                    // Who has said nothing yet is nobody that the source could tell: it hears with its first word.
                    input.grant(&both.take(&both.sink, 2)).expect("it stands");
                }
                (FlowCause::SourceFailed, Side::Source)
            }
            1 => {
                input.fail("the model ran out of memory");
                (FlowCause::SinkFailed, Side::Sink)
            }
            _ => {
                let _ = input.abort(std::time::Duration::ZERO);
                (FlowCause::Aborted, Side::Sink)
            }
        };
        let is_ended = || (input.status().is_end() && output.poll().is_some()).then(|| output.poll());
        let ended = both.until("both sides have ended", is_ended).expect("it has");
        // Where there was room everything may have come before.
        match ended {
            Err(failed) => assert_eq!((failed.cause, failed.said_by), (expected, said_by), "{name}: {failed:?}"),
            Ok(()) => assert!(has_room && said_by == Side::Sink || input.status() == Status::Success, "{name}"),
        }
        drop((output, input));
        both.assert_nothing_is_left();
    }
}
