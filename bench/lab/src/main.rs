//! `penstock-lab`: what this machine can do, and how near the engine comes to it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use penstock_lab::peers::{self, Store};
use penstock_lab::perf;
use penstock_lab::results::{self, Record};
use penstock_lab::scoreboard::{self, Effort, table};
use penstock_lab::workload::Workload;

const EXAMPLES: &str = "\
Examples:
  penstock-lab scoreboard                    every metric against this machine's floors, as a table
  penstock-lab scoreboard --only M3,M5       two of them
  penstock-lab scoreboard --json > board.jsonl
                                             one JSON object for each metric and comparator
  penstock-lab scoreboard --quick            few rounds: does everything run?
  penstock-lab scoreboard --save             the same, kept in bench/results with machine, date and commit
  penstock-lab peers install                 NIXL, Mooncake, UCX and others, to be measured beside us
  penstock-lab workloads                     what can be moved

Keep the machine quiet while it measures. Ratios are taken between neighbouring rounds of one run and survive
some noise; absolute figures do not.";

/// Measures the engine against the floors of this machine.
#[derive(Parser)]
#[command(name = "penstock-lab", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Measures every metric of the scoreboard beside its floors.
    #[command(after_help = EXAMPLES)]
    Scoreboard {
        /// Only these metrics.
        #[arg(long, value_delimiter = ',', value_name = "ID,ID...")]
        only: Vec<String>,
        /// One JSON object a line instead of a table.
        #[arg(long)]
        json: bool,
        /// Few rounds: enough to see that everything runs, too few to believe the figures.
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        peers: PeersChoice,
        /// Keeps the result in this folder, as JSON and as a table.
        #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "bench/results")]
        save: Option<PathBuf>,
    },
    /// Engines of others, to measure beside ours: install, list, remove.
    Peers {
        #[command(subcommand)]
        chore: peers::command::Chore,
    },
    /// Lists the workloads that are built in.
    Workloads {
        /// One JSON object a line instead of a table.
        #[arg(long)]
        json: bool,
    },
}

/// Which engines of others are measured beside ours.
#[derive(clap::Args)]
struct PeersChoice {
    /// Where peers were installed, if not in the user's cache.
    #[arg(long, value_name = "FOLDER")]
    peers: Option<PathBuf>,
    /// Leave peers out, even if they are installed.
    #[arg(long, conflicts_with = "peers")]
    no_peers: bool,
}

impl PeersChoice {
    fn store(&self) -> Option<Store> {
        // Without a place for them there are none, and their rows say so.
        if self.no_peers { None } else { Store::open(self.peers.as_deref()).ok() }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == perf::TARGET_ARGUMENT).is_some() {
        return perf::target_main(arguments);
    }
    let done = match Arguments::parse().chore {
        Chore::Scoreboard { only, json, quick, peers, save } => {
            let peers = peers.store();
            measure(&only, json, &Effort { quick, target_program: None, peers }, save.as_deref())
        }
        Chore::Peers { chore } => peers::command::run(&chore),
        Chore::Workloads { json } => list(json).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "penstock-lab: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers whether every metric could be measured; a missed goal is a result and no failure.
fn measure(only: &[String], json: bool, effort: &Effort, save: Option<&Path>) -> Result<bool, Box<dyn Error>> {
    let metrics = scoreboard::choose(only)?;
    let (mut output, mut progress) = (std::io::stdout(), std::io::stderr());
    if cfg!(debug_assertions) {
        writeln!(progress, "this is not a release build: the figures say nothing (cargo run --release)")?;
    }
    let load = results::load();
    let busy = if load > 0.5 { ": not quiet, so look at ratios and minima" } else { "" };
    writeln!(progress, "load average of the last minute {load}{busy}")?;
    let (mut rows, mut complete) = (Vec::new(), true);
    for metric in &metrics {
        writeln!(progress, "{}: {} ...", metric.id, metric.what)?;
        match metric.measure(effort) {
            Ok(measured) => {
                for row in measured.iter().filter(|_| json) {
                    writeln!(output, "{}", serde_json::to_string(row)?)?;
                }
                rows.extend(measured);
            }
            Err(error) => {
                complete = false;
                writeln!(progress, "{} was not measured: {error}", metric.id)?;
            }
        }
    }
    if !json {
        write!(output, "{}", table::render(&rows))?;
    }
    if let Some(folder) = save {
        let record = Record::of_this_run(&rows, effort.peers.as_ref(), load, effort.quick);
        let [json, text] = record.save(folder)?;
        writeln!(progress, "kept as {} and {}", json.display(), text.display())?;
    }
    Ok(complete)
}

fn list(json: bool) -> Result<(), Box<dyn Error>> {
    let mut output = std::io::stdout();
    if !json {
        writeln!(output, "{:<8}  {:>11}  {:>15}  {:>9}  what", "name", "block bytes", "blocks x layers", "MB")?;
    }
    for workload in Workload::all() {
        if json {
            writeln!(output, "{}", serde_json::to_string(&workload)?)?;
            continue;
        }
        let Workload { name, what, block_bytes, blocks, layers, .. } = &workload;
        let shape = format!("{blocks} x {layers}");
        let megabytes = workload.bytes() as f64 / 1e6;
        writeln!(output, "{name:<8}  {block_bytes:>11}  {shape:>15}  {megabytes:>9.1}  {what}")?;
    }
    if !json {
        writeln!(output, "\nAny of them with -half appended leaves every second block mergeable with the one before.")?;
    }
    Ok(())
}
