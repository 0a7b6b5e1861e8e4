//! A guest for one command, for trying things out; and the two small programs that every guest needs.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks to its user")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use penstock_lab_rdma::pair::Pair;
use penstock_lab_rdma::{End, Finished, Guest, Job, LabError, Line, Machine, agent, rails, supervise};

const EXAMPLES: &str = "\
Examples:
  penstock-guest run -- ibv_devinfo
  penstock-guest run --rails 2 -- sh -c 'ib_write_bw -d rxe_b0 & sleep 1; ib_write_bw -d rxe_a0 10.77.0.2'
  penstock-guest run --env PENSTOCK_LABS=1 --within 300 -- target/debug/deps/verbs-0123 --nocapture
  penstock-guest run --shell < script.sh
  penstock-guest run --far 'ib_write_bw -d rxe_b0' -- sh -c 'sleep 2; ib_write_bw -d rxe_a0 10.77.0.2'

The guest sees all files of this machine, read-only; what it writes is gone with it. Rail N is the devices rxe_aN
(10.77.N.1, on link aN) and rxe_bN (10.77.N.2, on link bN). It runs in the folder in which it was called.";

/// Boots a virtual machine with soft RoCE devices.
#[derive(Parser)]
#[command(name = "penstock-guest", after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Boot a guest, run a command in it, pass on its output and its status
    #[command(after_help = EXAMPLES)]
    Run(Run),
    /// The part inside a guest
    #[command(hide = true)]
    Agent,
    /// The part between a lab and its guest
    #[command(hide = true)]
    Supervise {
        parent: u32,
        #[arg(last = true)]
        words: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Run {
    /// Pairs of devices
    #[arg(long, default_value_t = 1)]
    rails: u8,
    /// Seconds that the command may take
    #[arg(long, default_value_t = 300)]
    within: u64,
    /// A variable of its environment, which inherits nothing; as often as needed
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Processors of the guest
    #[arg(long, default_value_t = 2)]
    processors: u32,
    /// Memory of the guest
    #[arg(long, default_value_t = 4096)]
    memory_mib: u32,
    /// Boot two guests, of one processor each, and run this script in the second one at the same time; it is ended when
    /// the command has ended
    #[arg(long, value_name = "SCRIPT", conflicts_with_all = ["rails", "processors", "memory_mib", "console"])]
    far: Option<String>,
    /// Run the script on standard input
    #[arg(long, conflicts_with = "words")]
    shell: bool,
    /// Show the guest's console
    #[arg(long)]
    console: bool,
    /// The command
    #[arg(last = true)]
    words: Vec<String>,
}

fn main() -> ExitCode {
    let ended = match Arguments::parse().chore {
        Chore::Run(arguments) => run(&arguments).map_err(|error| error.to_string()),
        Chore::Agent => agent::serve().map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string()),
        Chore::Supervise { parent, words } => supervise::supervise(parent, &words)
            .map(|status| if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            .map_err(|error| error.to_string()),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("penstock-guest: {error}");
        ExitCode::from(125)
    })
}

fn run(arguments: &Run) -> Result<ExitCode, LabError> {
    let (job, program) = (arguments.job()?, this_program()?);
    let finished = if let Some(script) = &arguments.far {
        let pair = Pair::boot(program, &say)?;
        let far = pair.b.spawn(&arguments.furnished(Job::shell(script.clone())))?;
        let finished = pair.a.spawn(&job)?.follow(|line| pass_on("", line))?;
        far.signal(9)?;
        far.follow(|line| pass_on("far: ", line))?;
        finished
    } else {
        let machine = Machine::new("guest", program).processors(arguments.processors).memory_mib(arguments.memory_mib);
        let guest = Guest::boot_with(&machine.shows_console(arguments.console), &say)?;
        rails::make(&guest, arguments.rails)?;
        guest.spawn(&job)?.follow(|line| pass_on("", line))?
    };
    say(&format!("the command {} after {:.1} s", finished.end, finished.took.as_secs_f64()));
    Ok(exit_code(&finished))
}

impl Run {
    fn job(&self) -> Result<Job, LabError> {
        let job = match self.words.split_first() {
            _ if self.shell => {
                let file = |error| LabError::File { what: "read", path: "standard input".into(), error };
                Job::shell(std::io::read_to_string(std::io::stdin()).map_err(file)?)
            }
            Some((program, rest)) => Job::new(program).arguments(rest),
            None => Job::new("ibv_devinfo"),
        };
        Ok(self.furnished(job))
    }

    fn furnished(&self, job: Job) -> Job {
        let here = std::env::current_dir().unwrap_or_default();
        let job = job.within(Duration::from_secs(self.within)).within_folder(here.to_string_lossy());
        self.env.iter().fold(job, |job, pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            job.variable(name, value)
        })
    }
}

fn this_program() -> Result<PathBuf, LabError> {
    let file = |error| LabError::File { what: "find", path: "this program".into(), error };
    std::env::current_exe().map_err(file)
}

fn say(text: &str) {
    eprintln!("penstock-guest: {text}");
}

fn pass_on(whose: &str, line: &Line) {
    if line.is_error {
        eprintln!("{whose}{}", line.text);
    } else {
        println!("{whose}{}", line.text);
    }
}

/// The command's own status where it has one, and what shells say otherwise.
fn exit_code(finished: &Finished) -> ExitCode {
    match finished.end {
        End::Status(status) => ExitCode::from(u8::try_from(status).unwrap_or(1)),
        End::Signal(number) => ExitCode::from(u8::try_from(128 + number).unwrap_or(1)),
        End::TooLate => ExitCode::from(124),
        End::Unstarted(_) => ExitCode::from(127),
    }
}
