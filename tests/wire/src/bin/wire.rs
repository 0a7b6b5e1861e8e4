//! The wire as a program: joins two TAP devices and does to frames what its arguments say.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a program says on standard error why it ends")]

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Parser;

use penstock_wire::pump::Pump;
use penstock_wire::scenario::parse_faults;
use penstock_wire::tap::{Place, Tap};
use penstock_wire::{Direction, Event, Scenario};

const EXAMPLES: &str = "\
Examples (as root):
  ip netns add a; ip netns add b
  penstock-wire a/eth0 b/eth0 --seed 7 --a-to-b loss=1%,delay=2ms,jitter=500us --both rate=100mbit
  penstock-wire a/eth0 b/eth0 --at '2s partition both for=1.5s' --at '5s set b-to-a loss=20% for=3s'
Then, for each side, while it runs:
  ip -n a addr add 10.77.0.1/24 dev eth0; ip -n a link set eth0 up

Faults: loss=1% udp-loss=100% delay=2ms jitter=500us reorder=2% reorder-by=2ms duplicate=0.1% corrupt=0.1%
        rate=100mbit|none queue=256KiB none
Orders on standard input, each answered by a line of JSON:
  start | partition [DIRECTION] | heal [DIRECTION] | set DIRECTION FAULTS | stats | quit
Directions: a-to-b, b-to-a, both";

/// Joins two TAP devices in user space, with faults that a seed decides.
#[derive(Parser)]
#[command(name = "penstock-wire", after_help = EXAMPLES)]
struct Arguments {
    /// Where side A is: DEVICE or NAMESPACE/DEVICE; made here, gone at the end
    a: Place,
    /// Where side B is
    b: Place,
    /// What chance is drawn from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Faults of both directions, before those of one
    #[arg(long, value_name = "FAULTS")]
    both: Option<String>,
    /// Faults of frames from A to B
    #[arg(long, value_name = "FAULTS")]
    a_to_b: Option<String>,
    /// Faults of frames from B to A
    #[arg(long, value_name = "FAULTS")]
    b_to_a: Option<String>,
    /// Something that happens later; as often as needed
    #[arg(long, value_name = "EVENT")]
    at: Vec<Event>,
    /// A file with a whole scenario, in place of the options above
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "both", "a_to_b", "b_to_a", "at"])]
    script: Option<std::path::PathBuf>,
    /// Pass frames without faults until `start` is said
    #[arg(long)]
    wait: bool,
    /// Do not listen to standard input: run until killed
    #[arg(long)]
    deaf: bool,
}

impl Arguments {
    fn scenario(&self) -> Result<Scenario, String> {
        if let Some(path) = &self.script {
            let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            return text.parse().map_err(|error| format!("{}: {error}", path.display()));
        }
        let mut scenario = Scenario { seed: self.seed, events: self.at.clone(), ..Scenario::clean() };
        let sets = [(Direction::Both, &self.both), (Direction::AToB, &self.a_to_b), (Direction::BToA, &self.b_to_a)];
        for (direction, faults) in sets {
            if let Some(faults) = faults {
                scenario = scenario.with(direction, &parse_faults(faults).map_err(|error| error.to_string())?);
            }
        }
        Ok(scenario)
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("penstock-wire: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let scenario = arguments.scenario()?;
    let open = |place: &Place| {
        Tap::open(place).map_err(|error| format!("cannot make the end {}: {error}; this needs root", place.device))
    };
    let taps = [open(&arguments.a)?, open(&arguments.b)?];
    let (input, output) = (std::io::stdin(), std::io::stdout());
    let orders = (!arguments.deaf).then_some(input.as_fd());
    Pump::new(taps, scenario, arguments.wait).run(orders, output.as_fd()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_make_the_same_scenario_as_its_text() {
        let line = "penstock-wire a/x y --seed 7 --both delay=1ms,loss=2% --a-to-b loss=1%";
        let line = line.split(' ').chain(["--at", "2s partition both for=1s"]);
        let arguments = Arguments::try_parse_from(line).unwrap();
        let text = "seed=7; both delay=1ms,loss=2%; a-to-b loss=1%; at=2s partition both for=1s";
        assert_eq!(arguments.scenario().unwrap(), text.parse().unwrap());
    }

    #[test]
    fn what_is_wrong_in_the_arguments_is_said() {
        for line in ["x", "x y --at never", "x y --seed -1", "x/y/z y", "x y --script f --seed 1"] {
            assert!(
                Arguments::try_parse_from(std::iter::once("penstock-wire").chain(line.split(' '))).is_err(),
                "{line}"
            );
        }
        let arguments = Arguments::try_parse_from(["penstock-wire", "x", "y", "--both", "los=1%"]).unwrap();
        assert!(arguments.scenario().unwrap_err().contains("los=1%"));
    }
}
