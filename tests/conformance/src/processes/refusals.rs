//! Layouts, ranks and directions that do not fit.

use std::time::{Duration, Instant};

use penstock::SystemEnv;
use penstock::flows::{Buffer, Form, InputEvent, Layout, LayoutSpec, Receive, Rows, Send};

use super::Side;
use super::end::{Geometry, request, transfer};
use crate::stage::PATIENCE;

/// The promise.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// What does not fit, and what both sides have to say of it.
const KINDS: [(&str, &[&str]); 6] = [
    ("rows of 256 and of 128 bytes", &["buffer 0", "256", "128"]),
    ("two layers and one", &["2 buffers", "1 at"]),
    ("heads of 32 bytes, 8 and 4 of them", &["buffer 0"]),
    ("a sink of two ranks, for a source that sends to one", &["1 ranks", "has 2"]),
    ("a sink that pulls what is pushed", &["pull"]),
    ("a sink that is pushed to what is lent", &["lend"]),
];

/// The source finds that the sink's layout, ranks or direction do not fit. Both sides end within a second, and both have it in their
/// words: which buffer, which number here and which there, of which transfer.
pub mod a_source_that_refuses_ends_both_sides_at_once {
    use super::*;

    /// The sink.
    pub fn test(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let peer = side.connect(&end);
        // Blocks have the numbers of `kv`, and less in them.
        let (layer, stride) = (Geometry::SMALL.layer_bytes(), Geometry::SMALL.layer_block_bytes());
        let spec = |label: &str, layers: u32, count: u32, bytes: u32| {
            let form = Form::TokenMajor(Rows { first: 0, count, of: count, bytes });
            let buffer = |number| Buffer { layer: number, form, base: u64::from(number) * layer, stride };
            (0..layers).fold(LayoutSpec::new(label, 16, 64), |spec, number| spec.buffer(buffer(number)))
        };
        let layouts: Vec<Layout<SystemEnv>> =
            [spec("short", 2, 1, 128), spec("single", 1, 1, 256), spec("heads", 2, 4, 32)]
                .into_iter()
                .map(|spec| end.engine.layout(&end.pool, spec).expect("it is sound"))
                .collect();
        for round in 0..side.rounds {
            let kind = round as usize % KINDS.len();
            let how = Receive::into(layouts.get(kind).unwrap_or(&end.layout)).from(0, &peer);
            let how = match kind {
                3 => how.rank(0, 2),
                4 => how.pull(),
                _ => how,
            };
            side.line.expect("produced");
            let since = Instant::now();
            side.line.say("consume");
            let ended = match end.engine.consume(transfer(round), &request(round), how) {
                // Known before anything is asked for.
                Err(refused) => {
                    side.line.say("refused");
                    side.line.expect("over");
                    side.note(round, words(kind, round, "the sink", &refused.to_string()));
                    continue;
                }
                Ok(input) => {
                    side.line.say("consumes");
                    if let Err(refused) = input.grant(&end.take(3)) {
                        // The source may have refused it before.
                        side.note_unless(round, input.status().is_end(), || refused.to_string());
                    }
                    loop {
                        match input.next(PATIENCE).expect("it ends") {
                            InputEvent::Failed(failed) => break failed.to_string(),
                            InputEvent::Done { .. } => break "success".to_owned(),
                            _ => {}
                        }
                    }
                }
            };
            let took = since.elapsed();
            side.note_unless(round, took < KNOWN_WITHIN, || {
                format!("{}: the sink knows after {took:?}", KINDS[kind].0)
            });
            side.note(round, words(kind, round, "the sink", &ended));
            side.line.expect("over");
        }
        end.assert_nothing_is_left();
    }

    /// The source.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        side.accept(&end);
        for round in 0..side.rounds {
            let kind = round as usize % KINDS.len();
            let how = Send::from(&end.layout).within(Duration::from_secs(4));
            let how = if kind == 5 { how.lend() } else { how };
            let output = end.engine.produce(transfer(round), &request(round), how).expect("the name is new");
            let blocks = end.take(3);
            output.chunk(&blocks, 48, true).expect("it stands");
            drop(blocks);
            side.line.say("produced");
            side.line.expect("consume");
            let since = Instant::now();
            if side.line.hear() == "consumes" {
                let ended = output.wait(PATIENCE).expect("it ends");
                let took = since.elapsed();
                let is_soon = took < KNOWN_WITHIN;
                side.note_unless(round, is_soon, || format!("{}: the source knows after {took:?}", KINDS[kind].0));
                let ended = ended.map_or_else(|failed| failed.words, |()| "success".to_owned());
                side.note(round, words(kind, round, "the source", &ended));
            }
            drop(output);
            side.line.say("over");
        }
        end.assert_nothing_is_left();
    }

    /// Why these are not the words that a refusal has to have, if they are not.
    fn words(kind: usize, round: u32, whose: &str, words: &str) -> Result<(), String> {
        let (what, needed) = KINDS[kind];
        let name = transfer(round).to_string();
        // The transfer's id has digits of its own.
        let apart = words.replace(&name, "");
        let has_all = needed.iter().all(|word| apart.contains(word)) && words.contains(&name);
        if has_all { Ok(()) } else { Err(format!("{what}: {whose} says `{words}`")) }
    }
}
