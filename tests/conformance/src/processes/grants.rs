//! Blocks that another transfer holds.

use penstock::flows::{Receive, Send};

use super::Side;
use super::end::{Geometry, request, transfer};
use super::layers::end_well;
use crate::stage::PATIENCE;

const TOKENS: u64 = 40;

/// The same blocks for two live transfers are refused, with the name of the one that has them; the first is not disturbed, and when it has
/// let go of them the second may have them.
pub mod blocks_granted_to_a_live_transfer_are_refused_to_another {
    use super::*;
    use penstock::flows::InputEvent;

    /// The sink.
    pub fn test(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let peer = side.connect(&end);
        for round in 0..side.rounds {
            let names = [2 * round, 2 * round + 1];
            let blocks = end.take(3);
            let inputs = names.map(|name| {
                let how = Receive::into(&end.layout).from(0, &peer);
                end.engine.consume(transfer(name), &request(name), how).expect("the name is new")
            });
            inputs[0].grant(&blocks).expect("nobody else has them");
            let again = inputs[1].grant(&blocks);
            let is_refused = again.is_err();
            let words = again.map_or_else(|refused| refused.to_string(), |leg| format!("leg {leg}"));
            let holder = transfer(names[0]).to_string();
            side.note_unless(round, is_refused && words.contains(&holder), || format!("granted twice: {words}"));
            side.line.say("go");
            for (input, name) in inputs.iter().zip(names) {
                if name == names[1] && is_refused {
                    let granted = input.grant(&blocks);
                    side.note(round, granted.map(drop).map_err(|refused| format!("let go of: {refused}")));
                }
                let ended = loop {
                    match input.next(PATIENCE).expect("it ends") {
                        InputEvent::Done { .. } => break end.check(name, blocks.indices(), TOKENS),
                        InputEvent::Failed(failed) => break Err(failed.to_string()),
                        _ => {}
                    }
                };
                side.note(round, ended);
                input.taken(0).expect("it was granted and has come");
            }
        }
        end.assert_nothing_is_left();
    }

    /// The source.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.accept(&end);
        for round in 0..side.rounds {
            side.line.expect("go");
            for name in [2 * round, 2 * round + 1] {
                let blocks = end.take(3);
                end.compute_all(name, blocks.indices(), 0..TOKENS);
                let output = end.engine.produce(transfer(name), &request(name), Send::from(&end.layout));
                let output = output.expect("the name is new");
                output.chunk(&blocks, TOKENS, true).expect("it stands");
                end_well(side, round, &output);
            }
        }
        end.assert_nothing_is_left();
    }
}
