//! `penstock selftest`: does everything the engine promises hold on this machine, over every transport?
//!
//! Two engines meet, in two processes or (`local`) in one, do everything once, and look at every byte. Read in
//! this order:
//!
//! - `layout`: which blocks go where; `pattern`: what is in them, and whether it is
//! - `errand`: what the target is asked to do; `target`: the side that does it
//! - `companion`: the process it lives in, which never outlives this one
//! - `pair`: both sides, connected; `steps`: the tests, one after the other
//! - `measure`: how long it takes, beside the bare copy
//! - `report`: what came of it; `flaw`: what can be wrong

mod companion;
mod errand;
mod flaw;
pub(crate) mod layout;
pub(crate) mod measure;
mod pair;
pub(crate) mod pattern;
pub(crate) mod report;
mod steps;
mod target;

use clap::ValueEnum;
use penstock_lab::ends::memif;

pub(crate) use self::flaw::Flaw;

use self::companion::Companion;
use self::layout::Layout;
use self::pair::{Far, Pair};
use self::report::{Check, Report, Row};
use self::target::{Target, engine_config};
use crate::arguments::{SelftestOptions, TargetOptions, Transport};
use crate::console::{self, Progress};
use crate::device;
use crate::failure::{Ended, Failure};
use crate::folder::Folder;
use crate::network::Over;

/// What the names of folders begin with.
const FOLDER_PREFIX: &str = "penstock-selftest-";

/// What the hidden option breaks on purpose, so that a test can see the self-test fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sabotage {
    /// One byte of what was written
    Write,
    /// One byte of what was read
    Read,
    /// One byte of a notification
    Notify,
    /// One arrival too many
    Counter,
    /// A write that lands after the cancel
    Cancel,
    /// Memory that is not taken back
    Revoke,
    /// The other process ends in the middle
    Crash,
}

/// Tests all transports that were asked for and prints what came of it.
pub(crate) fn run(options: &SelftestOptions, verbose: u8) -> Result<Ended, Failure> {
    let over = Over::watch()?;
    let progress = Progress::new();
    let chosen = |transport: &Transport| options.transport.is_none_or(|only| only == *transport);
    let run = Run { options, verbose, progress: &progress, over: &over };
    // What not every host has is tested when it is asked for.
    let here = memif::is_usable().then_some(Transport::Dpdk);
    let usual = Transport::USUAL.into_iter().chain(here).filter(chosen);
    let asked = options.transport.filter(|only| !Transport::USUAL.contains(only) && Some(*only) != here);
    let mut rows: Vec<Row> = usual.chain(asked).map_while(|transport| run.over(transport)).collect();
    // The last, since the driver stays in the process once it has started.
    if options.transport.is_none()
        && !over.is_set()
        && let Ok(first) = device::first()
    {
        let say = |what: &str| progress.say(&format!("{}: {what}", device::NAME));
        rows.push(device::test(&first, (options.quick, options.sabotage), say, &|| over.is_set()));
    }
    drop(progress);
    let mut report = Report::new(rows, options.transport.is_none(), options.quick);
    if over.is_set() {
        report.cut_off();
    }
    if options.json {
        console::print_json(&report)?
    } else {
        console::print(&report.to_text())?
    }
    Ok(if report.ok() { Ended::Well } else { Ended::Badly })
}

/// The hidden other process: serves errands until its standard input ends.
pub(crate) fn serve(options: &TargetOptions) -> Result<Ended, Failure> {
    let layout = Layout::of(options.quick);
    target::serve(&options.directory, options.transport, layout).map_err(Failure::Target)?;
    Ok(Ended::Well)
}

struct Run<'a> {
    options: &'a SelftestOptions,
    verbose: u8,
    progress: &'a Progress,
    over: &'a Over,
}

impl Run<'_> {
    /// Tests one transport, unless somebody has asked for the end. The first thing that is wrong ends it: what follows would only
    /// repeat it.
    fn over(&self, transport: Transport) -> Option<Row> {
        if self.over.is_set() {
            return None;
        }
        let mut row = Row::of(transport);
        self.fill(&mut row, transport);
        Some(row)
    }

    fn fill(&self, row: &mut Row, transport: Transport) {
        let say = |what: &str| self.progress.say(&format!("{}: {what}", transport.as_str()));
        say("connecting");
        let mut pair = match self.connect(transport) {
            Ok(pair) => pair,
            Err(flaw) => {
                row.add(Check::of("connect", Err(flaw)));
                return;
            }
        };
        row.path = Some(pair.path());
        row.add(Check::of("connect", Ok(())));
        for (name, step) in steps::STEPS {
            say(name);
            let went = if self.over.is_set() { Err(Flaw::Interrupted) } else { step(&mut pair, self.options.sabotage) };
            if !row.add(Check::of(name, went)) {
                return;
            }
        }
        say("measuring");
        match measure::kv16(&mut pair, self.options.quick, &|| self.over.is_set()) {
            Ok(figures) => {
                row.figures = Some(figures);
                row.add(Check::of("measure", Ok(())));
            }
            Err(flaw) => {
                row.add(Check::of("measure", Err(flaw)));
                return;
            }
        }
        say("leaving");
        row.add(Check::of("leave", pair.leave()));
    }

    fn connect(&self, transport: Transport) -> Result<Pair, Flaw> {
        // Until both have met: nobody needs the sockets afterwards, so that even a test that is killed then leaves nothing behind.
        let folder = Folder::make(FOLDER_PREFIX).map_err(Flaw::Folder)?;
        let layout = Layout::of(self.options.quick);
        if matches!(transport, Transport::Verbs | Transport::Dpdk) {
            // What keeps it from starting is better heard of than that the other process has ended.
            drop(penstock::Engine::start(engine_config(folder.path(), "trial", transport))?);
        }
        let far = match transport {
            Transport::Local => Far::Here(Box::new(Target::start(folder.path(), transport, layout)?)),
            Transport::Shm | Transport::Verbs | Transport::Tcp | Transport::Datagram | Transport::Dpdk => {
                Far::There(Companion::start(folder.path(), transport, self.options.quick, self.verbose)?)
            }
        };
        Pair::connect(folder.path(), transport, layout, far)
    }
}
