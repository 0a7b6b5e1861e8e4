//! `penstock doctor`: what this host can do and, for what it cannot, why and what mends it; and whether another is reached.

use clap::error::ErrorKind;
use penstock::Config;
use penstock_doctor::{Host, Topic};

use crate::arguments::{DoctorOptions, Subject};
use crate::console;
use crate::failure::{Ended, Failure};
use crate::reach;

/// Examines this host, or the way to another one, and prints what was found.
pub(crate) fn run(options: &DoctorOptions) -> Result<Ended, Failure> {
    let mut config = options.config.as_ref().map_or_else(|| Ok(Config::default()), Config::load)?;
    options.network.cards.overrule(&mut config)?;
    // Without its own path it tries calls in this process: a filter that kills then ends it.
    let here = Host::this(std::env::current_exe().ok(), &config);
    let topics: Vec<Topic> = options.subjects.iter().filter_map(Subject::topic).collect();
    let hosts: Vec<&str> = options.subjects.iter().filter_map(Subject::host).collect();
    match (hosts.as_slice(), topics.is_empty()) {
        ([], _) => {}
        ([host], true) => {
            let why =
                "is for topics of this host, as in `penstock doctor rdma --devices mlx5_0`; a HOST is reached over TCP";
            options.network.cards.refuse(why)?;
            return reach::run(host, &here, &config, &options.network, options.json);
        }
        _ => {
            let words = "give one host, or topics of this host";
            return Err(Failure::Usage(clap::Error::raw(ErrorKind::ArgumentConflict, words)));
        }
    }
    let report = penstock_doctor::examine(&here, &topics);
    if options.json {
        console::print_json(&report)?
    } else {
        console::print(&report.to_text())?
    }
    Ok(if report.ok { Ended::Well } else { Ended::Badly })
}
