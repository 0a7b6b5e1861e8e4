//! Whole engines in two processes, whose applications reuse memory the moment they are told that they may.
//!
//! A case has two functions: one for the test's process, whose engine is the sink unless the case says otherwise, and one for a child
//! process. Both make the same number of rounds over one pair of engines and keep in step by [lines](line) on the child's standard input
//! and output. What a round finds wrong is noted, and the case fails at its end with how many rounds it was: what is wrong here is wrong
//! in some rounds only.
//!
//! - [`end`]: an engine, its memory and its layout
//! - [`layers`]: layer-wise pushes; [`chunks`]: chunks that end inside a block
//! - [`extents`]: puts and gets of blocks where they lie; [`reuse`]: memory that is reused at once
//! - [`grants`]: blocks that another transfer holds; [`pins`]: pins of blocks that nobody holds; [`swaps`]: requests that have grown
//! - [`first`]: the first call after a session stands; [`refusals`]: layouts and ranks that do not fit

#![allow(clippy::print_stderr, reason = "what a case has found before it panicked is what a reader looks for")]

pub mod chunks;
pub mod end;
pub mod extents;
pub mod first;
pub mod grants;
pub mod layers;
pub mod line;
pub mod pins;
pub mod refusals;
pub mod reuse;
pub mod swaps;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::end::{End, Geometry};
use self::line::{Line, from_word, to_word};
use crate::folder::Folder;
use crate::pattern::Random;
use crate::setting::EngineSpec;
use crate::stage::{KV, PATIENCE};
use crate::{Engine, Peer, Place, Setting, skip};

/// The two sides of a case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name, which is that of its test.
    pub name: &'static str,
    /// The test's side.
    pub test: fn(&mut Side),
    /// The child's side.
    pub child: fn(&mut Side),
}

/// Makes the list of cases, and the macro that makes a test of each.
macro_rules! cases {
    ($dollar:tt $($group:ident::$case:ident),+ $(,)?) => {
        /// All cases.
        pub const CASES: &[Case] = &[$(Case {
            name: stringify!($case),
            test: $group::$case::test,
            child: $group::$case::child,
        }),+];

        /// Makes every case a test, in a module of this name, under this setting, with so many rounds; unless there is a reason to
        /// skip it.
        #[macro_export]
        macro_rules! processes_suite {
            ($dollar mode:ident: $dollar setting:expr, $dollar rounds:expr) => {
                $crate::processes_suite!($dollar mode: $dollar setting, $dollar rounds, None);
            };
            ($dollar mode:ident: $dollar setting:expr, $dollar rounds:expr, $dollar skip:expr) => {
                mod $dollar mode {
                    #[allow(unused_imports)]
                    use super::*;

                    $(#[test]
                    fn $case() {
                        let skip: Option<&str> = $dollar skip;
                        $crate::processes::run(&$dollar setting, stringify!($case), $dollar rounds, skip);
                    })+
                }
            };
        }
    };
}

cases! { $
    layers::chunks_written_late_come_layer_by_layer_as_they_were_written,
    layers::fences_that_open_late_hold_back_the_tokens_of_every_chunk,
    layers::a_layer_is_refused_without_by_layer_and_beyond_its_chunks,
    chunks::chunks_end_anywhere_in_a_block_and_other_lists_are_refused,
    extents::blocks_of_a_put_are_given_to_nobody_before_it_was_read,
    extents::blocks_of_a_get_are_given_to_nobody_before_it_has_landed,
    reuse::registered_memory_is_quiet_when_drain_finished_names_its_request,
    reuse::a_once_block_is_free_when_nothing_can_land_in_it,
    grants::blocks_granted_to_a_live_transfer_are_refused_to_another,
    pins::pins_of_blocks_that_are_not_held_are_refused,
    swaps::a_request_that_has_grown_is_not_swapped_in_part,
    first::the_first_calls_after_connect_and_reconnect_are_served,
    refusals::a_source_that_refuses_ends_both_sides_at_once,
}

/// What a child is told: which case, how often, and its engine.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    case: String,
    rounds: u32,
    engine: EngineSpec,
}

/// One side of a case.
pub struct Side {
    /// The line to the other one.
    pub line: Line,
    /// How many rounds there are.
    pub rounds: u32,
    /// The engine of this side.
    pub spec: EngineSpec,
    /// How instants are drawn: the same on every run.
    pub random: Random,
    /// What was wrong, and in which round.
    wrong: Vec<(u32, String)>,
}

impl Side {
    fn new(line: Line, rounds: u32, spec: EngineSpec) -> Self {
        let random = Random::new(spec.name.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte)));
        Self { line, rounds, spec, random, wrong: Vec::new() }
    }

    /// Starts this side's engine.
    pub fn start(&self) -> Engine {
        self.spec.start().expect("the engine starts")
    }

    /// Starts this side's engine with a pool of these blocks.
    pub fn pooled(&self, geometry: Geometry) -> End {
        End::pooled(self.start(), geometry)
    }

    /// Connects the two engines, at the test's side.
    pub fn connect(&mut self, end: &End) -> Peer {
        let card = from_word(&self.line.hear());
        let peer = end.engine.connect(&card, PATIENCE).expect("the other engine is there");
        peer.wait_layout(KV, PATIENCE).expect("it has a layout");
        self.line.say("met");
        peer
    }

    /// Waits for the connection, at the child's side.
    pub fn accept(&mut self, end: &End) -> Peer {
        self.line.say(&to_word(&end.engine.descriptor()));
        self.line.expect("met");
        let peer = end.peer();
        peer.wait_layout(KV, PATIENCE).expect("it has a layout");
        peer
    }

    /// Sleeps for some microseconds below so many, which are not zero.
    pub fn pause(&mut self, below_us: u64) {
        let pause = Duration::from_micros(self.random.below(below_us));
        // The kernel's timer is coarser than what is wanted here.
        let since = Instant::now();
        if pause > Duration::from_micros(200) {
            std::thread::sleep(pause - Duration::from_micros(100));
        }
        while since.elapsed() < pause {
            std::thread::yield_now();
        }
    }

    /// Notes what a round has found wrong.
    pub fn note(&mut self, round: u32, found: Result<(), String>) {
        if let Err(what) = found {
            self.wrong.push((round, what));
        }
    }

    /// Notes what a round has found wrong unless this is so.
    pub fn note_unless(&mut self, round: u32, is_so: bool, what: impl FnOnce() -> String) {
        if !is_so {
            self.wrong.push((round, what()));
        }
    }

    /// What was wrong, in words, if anything was.
    fn found(&mut self) -> Option<String> {
        let wrong = std::mem::take(&mut self.wrong);
        let mut rounds: Vec<u32> = wrong.iter().map(|(round, _)| *round).collect();
        rounds.dedup();
        let some = wrong.iter().take(6).map(|(round, what)| format!("\n  round {round}: {what}"));
        let some: String = some.collect();
        let Self { spec, rounds: of, .. } = self;
        let count = rounds.len();
        (count > 0).then(|| format!("{}: wrong in {count} of {of} rounds:{some}", spec.name))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A case that does not come to its end may have said why before.
        if std::thread::panicking()
            && let Some(found) = self.found()
        {
            eprintln!("{found}");
        }
    }
}

/// Runs one case between this process and a child, unless there is a reason to skip it.
pub fn run(setting: &Setting, name: &str, rounds: u32, skip: Option<&str>) {
    if let Some(reason) = skip {
        return skip::report(name, reason);
    }
    let Place::Process(program) = setting.place else { panic!("these cases need a second process") };
    let case = CASES.iter().find(|case| case.name == name).expect("its name is on the list");
    let folder = Folder::fresh();
    let spec = setting.spec(folder.path(), "decode");
    let engine = setting.spec(folder.path(), "prefill");
    let order = Order { case: name.to_owned(), rounds, engine };
    let line = Line::to(program, &serde_json::to_string(&order).expect("an order is plain data"));
    let mut side = Side::new(line, rounds, spec);
    (case.test)(&mut side);
    let found = side.found();
    // The child's own findings are in its output.
    let is_well = side.line.finish();
    assert!(found.is_none(), "{}", found.unwrap_or_default());
    assert!(is_well, "the other process ended badly, see its output");
}

/// The child's side of the case that its argument names.
pub fn child(order: &str) {
    let order: Order = serde_json::from_str(order).expect("the test writes what this program reads");
    let case = CASES.iter().find(|case| case.name == order.case).expect("both are of one release");
    let mut side = Side::new(Line::to_the_test(), order.rounds, order.engine);
    (case.child)(&mut side);
    if let Some(found) = side.found() {
        panic!("{found}");
    }
}
