//! `penstock-lab`: what this machine can do, and how near the engine comes to it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use penstock_lab::LabError;
use penstock_lab::compare::{self, Judge, programs, saved};
use penstock_lab::peers::{self, Store};
use penstock_lab::results::{self, Record};
use penstock_lab::scoreboard::{self, Effort, table};
use penstock_lab::workload::Workload;
use penstock_lab::{bench, guard, perf};

const EXAMPLES: &str = "\
Examples:
  penstock-lab scoreboard                    every metric against this machine's floors, as a table
  penstock-lab scoreboard --only M3,M5       two of them
  penstock-lab scoreboard --json > board.jsonl
                                             one JSON object for each metric and comparator
  penstock-lab scoreboard --quick            few rounds: does everything run?
  penstock-lab scoreboard --save             the same, kept in bench/results with machine, date and commit
  penstock-lab scoreboard --only M10 --save --part rdma
                                             between soft RDMA devices, kept under a name of its own
  penstock-lab peers install                 NIXL, Mooncake, UCX and others, to be measured beside us
  penstock-lab workloads                     what can be moved
  penstock-lab bench --only expand           micro-benches; --list names them
  penstock-lab compare OLD NEW --bench slab  which of two builds is quicker? (compare --help)
  penstock-lab guard                         instructions a block against the baseline

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
        /// What the names of the files end in, where it is only a part of the scoreboard: -WORD.
        #[arg(long, value_name = "WORD", requires = "save")]
        part: Option<String>,
        /// RDMA devices to measure between, the initiator's and the target's; soft ones in a virtual machine where absent.
        #[arg(long, value_delimiter = ',', num_args = 1, value_name = "NEAR,FAR")]
        devices: Vec<String>,
    },
    /// Engines of others, to measure beside ours: install, list, remove.
    Peers {
        #[command(subcommand)]
        chore: peers::command::Chore,
    },
    /// Measures the engine's smallest parts, each by itself, in about half a minute.
    Bench(BenchArguments),
    /// Tells which of two programs is quicker, or that it cannot be told.
    #[command(after_help = COMPARISONS)]
    Compare(CompareArguments),
    /// Counts the instructions of the hot path (M14) and fails where they are 2 % more than in the baseline.
    Guard(GuardArguments),
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

const COMPARISONS: &str = "\
Examples:
  penstock-lab compare old/penstock-lab new/penstock-lab --bench expand,slab
                                             builds of two commits, taking turns for 15 rounds
  penstock-lab compare 'taskset -c 1 old/penstock-lab' 'taskset -c 1 new/penstock-lab' --row M2,M5
                                             rows of the scoreboard, each side pinned
  penstock-lab bench --json > a.jsonl        now; and again tomorrow, as b.jsonl; then:
  penstock-lab compare --saved a.jsonl b.jsonl

A build of another commit: git worktree add ../old <commit>, and cargo build --release -p penstock-lab there.";

#[derive(Args)]
struct BenchArguments {
    /// Only those in whose names one of these words is.
    #[arg(long, value_delimiter = ',', value_name = "WORD,WORD...")]
    only: Vec<String>,
    /// Rounds of each; the table shows their median and the least.
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// One JSON object a line instead of a table, with every round.
    #[arg(long)]
    json: bool,
    /// Names them and measures nothing.
    #[arg(long, conflicts_with = "json")]
    list: bool,
}

#[derive(Args)]
struct CompareArguments {
    /// One penstock-lab: its path, or a command line that begins it.
    a: String,
    /// The other.
    b: String,
    /// Micro-benches that both run, by parts of their names.
    #[arg(long, value_delimiter = ',', value_name = "WORD,WORD...", required_unless_present_any = ["row", "saved"])]
    bench: Vec<String>,
    /// Rows of the scoreboard that both measure instead.
    #[arg(long, value_delimiter = ',', value_name = "ID,ID...", conflicts_with = "bench")]
    row: Vec<String>,
    /// A and B are files that bench --json or scoreboard --json wrote.
    #[arg(long, conflicts_with_all = ["bench", "row"])]
    saved: bool,
    /// Rounds of each side.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(5..))]
    rounds: u16,
    /// Less than this is called no difference, in per cent.
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    least: f64,
    /// What the order of turns and the draws of the interval begin with.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct GuardArguments {
    /// The measured program; the penstock-hot-path beside this program where absent.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// The baseline; bench/baselines/m14.json of the repository where absent.
    #[arg(long, value_name = "PATH")]
    baseline: Option<PathBuf>,
    /// Write the counts of now down as the baseline.
    #[arg(long)]
    update: bool,
    /// The counts as one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == perf::TARGET_ARGUMENT).is_some() {
        return perf::target_main(arguments);
    }
    let done = match Arguments::parse().chore {
        Chore::Scoreboard { only, json, quick, peers, save, part, devices } => {
            let part = part.map(|part| format!("-{part}")).unwrap_or_default();
            let save = save.as_deref().map(|folder| (folder, part.as_str()));
            two_of(devices).and_then(|devices| {
                let effort = Effort { quick, target_program: None, peers: peers.store(), devices, tell: Some(tell) };
                measure(&only, json, &effort, save)
            })
        }
        Chore::Peers { chore } => peers::command::run(&chore),
        Chore::Bench(arguments) => run_benches(&arguments).map(|()| true),
        Chore::Compare(arguments) => compare_two(&arguments).map(|()| true),
        Chore::Guard(arguments) => hold_to_baseline(arguments),
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

fn tell(words: &str) {
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "  {words} ...");
}

/// None or two of them.
fn two_of(devices: Vec<String>) -> Result<Option<[String; 2]>, Box<dyn Error>> {
    if devices.is_empty() {
        return Ok(None);
    }
    let mend = "name two, the initiator's and the target's: --devices mlx5_0,mlx5_1";
    <[String; 2]>::try_from(devices).map(Some).map_err(|_| LabError::Option { option: "devices", mend }.into())
}

/// Answers whether every metric could be measured; a missed goal is a result and no failure.
fn measure(only: &[String], json: bool, effort: &Effort, save: Option<(&Path, &str)>) -> Result<bool, Box<dyn Error>> {
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
    if let Some((folder, part)) = save {
        let record = Record::of_this_run(&rows, effort.peers.as_ref(), load, effort.quick);
        let [json, text] = record.save(folder, part)?;
        writeln!(progress, "kept as {} and {}", json.display(), text.display())?;
    }
    Ok(complete)
}

fn run_benches(arguments: &BenchArguments) -> Result<(), Box<dyn Error>> {
    let chosen = bench::choose(&arguments.only)?;
    let mut output = std::io::stdout();
    if arguments.list {
        for bench in chosen {
            writeln!(output, "{}", bench.name)?;
        }
        return Ok(());
    }
    if cfg!(debug_assertions) {
        writeln!(std::io::stderr(), "this is not a release build: the figures say nothing (cargo run --release)")?;
    }
    let measured = bench::measure(&chosen, usize::from(arguments.rounds))?;
    if !arguments.json {
        write!(output, "{}", bench::render(&measured))?;
        return Ok(());
    }
    for timed in measured {
        writeln!(output, "{}", serde_json::to_string(&timed)?)?;
    }
    Ok(())
}

fn compare_two(arguments: &CompareArguments) -> Result<(), Box<dyn Error>> {
    let CompareArguments { a, b, bench, row, saved: is_saved, rounds, least, seed, json } = arguments;
    let judge = Judge { least_percent: *least, seed: *seed };
    let compared = if *is_saved {
        saved::compare(a.as_ref(), b.as_ref(), &judge)?
    } else {
        let what = match row.is_empty() {
            true => programs::What::Benches(bench.clone()),
            false => programs::What::Rows(row.clone()),
        };
        let mut progress = std::io::stderr();
        // Nobody may be listening.
        let mut say = |round| drop(write!(progress, "\rround {round} of {rounds} "));
        let compared = programs::compare([a, b], &what, usize::from(*rounds), &judge, &mut say)?;
        writeln!(progress)?;
        compared
    };
    let mut output = std::io::stdout();
    if !json {
        write!(output, "{}", compare::render(&compared))?;
        return Ok(());
    }
    for one in compared {
        writeln!(output, "{}", serde_json::to_string(&one)?)?;
    }
    Ok(())
}

/// Answers whether nothing grew.
fn hold_to_baseline(arguments: GuardArguments) -> Result<bool, Box<dyn Error>> {
    let GuardArguments { program, baseline, update, json } = arguments;
    let options = guard::Options { program, baseline };
    let path = guard::baseline_path(&options)?;
    let now = guard::count(&options)?;
    let (mut output, mut progress) = (std::io::stdout(), std::io::stderr());
    match json {
        true => writeln!(output, "{}", serde_json::to_string(&now)?)?,
        false => write!(output, "{}", now.render())?,
    }
    if update {
        now.write(&path)?;
        writeln!(progress, "{} is written: look at the difference and commit it", path.display())?;
        return Ok(true);
    }
    let judgement = guard::Baseline::read(&path)?.judge(&now)?;
    for hint in &judgement.hints {
        writeln!(progress, "{hint}")?;
    }
    for failure in &judgement.failures {
        writeln!(progress, "FAILED {failure}")?;
    }
    Ok(judgement.failures.is_empty())
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
