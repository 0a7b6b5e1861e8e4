//! The `penstock` command: test this machine, measure it, examine it, check a configuration.
//!
//! Read in this order:
//!
//! - `arguments`: what can be asked, and the help
//! - `selftest`: two engines of two processes do everything once, and every byte is looked at
//! - `perf`: one workload, measured beside its floor
//! - `doctor`: what this host can do, and what mends the rest; `reach`: whether another one is reached, step by step
//! - `demo`: a proxy and two processes hand over requests by name, as a timeline
//! - `serve`: the other side of all that goes to another host; `ping`: round trips to it; `network`: the way there; `addresses`: the way here
//! - `config`: files checked, keys explained
//! - `console`, `failure`, `folder`: how the command speaks, how it fails, and where its engines meet
//! - `logging`: what `-v` and `PENSTOCK_LOG` show

#![forbid(unsafe_code)]

mod addresses;
mod arguments;
mod config;
mod console;
mod demo;
mod device;
mod doctor;
mod failure;
mod folder;
mod logging;
mod network;
mod perf;
mod ping;
mod reach;
mod selftest;
mod serve;

use std::process::ExitCode;

use clap::Parser;
use penstock_doctor::host::{COMPANION_ARGUMENT, companion_main};
use penstock_lab::perf::{TARGET_ARGUMENT, target_main};

use crate::arguments::{Arguments, Command};
use crate::failure::{Ended, Failure};

fn main() -> ExitCode {
    let mut first = std::env::args().skip(1).peekable();
    if first.next_if_eq(TARGET_ARGUMENT).is_some() {
        // The other process of a measurement. Its first has complained about a bad filter already.
        let _ = logging::start(0);
        return target_main(first);
    }
    if first.next_if_eq(COMPANION_ARGUMENT).is_some() {
        return companion_main(first);
    }
    match run() {
        Ok(ended) => ended.into(),
        Err(failure) => {
            console::complain(&failure);
            failure.ended().into()
        }
    }
}

fn run() -> Result<Ended, Failure> {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Help and version come this way too; only what cannot be understood is a failure.
        Err(error) if error.use_stderr() => return Err(Failure::Usage(error)),
        Err(text) => {
            console::print(&text.render().to_string())?;
            return Ok(Ended::Well);
        }
    };
    logging::start(arguments.verbose)?;
    match &arguments.command {
        Command::Selftest(options) => selftest::run(options, arguments.verbose),
        Command::Perf(options) => perf::run(options),
        Command::Serve(options) => serve::run(options),
        Command::Ping(options) => ping::run(options),
        Command::Doctor(options) => doctor::run(options),
        Command::Config(command) => config::run(command),
        Command::Demo(command) => demo::run(command, arguments.verbose),
        Command::DemoNode(options) => demo::serve(options),
        Command::SelftestTarget(options) => selftest::serve(options),
    }
}
