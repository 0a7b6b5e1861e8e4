//! `penstock doctor`: what this host can do and, for what it cannot, why and what mends it.

use penstock::Config;
use penstock_doctor::Host;

use crate::arguments::DoctorOptions;
use crate::console;
use crate::failure::{Ended, Failure};

/// Examines this host and prints what was found.
pub(crate) fn run(options: &DoctorOptions) -> Result<Ended, Failure> {
    let config = options.config.as_ref().map_or_else(|| Ok(Config::default()), Config::load)?;
    // Without its own path it tries calls in this process: a filter that kills then ends it.
    let host = Host::this(std::env::current_exe().ok(), &config);
    let report = penstock_doctor::examine(&host, &options.topics);
    if options.json {
        console::print_json(&report)?
    } else {
        console::print(&report.to_text())?
    }
    Ok(if report.ok { Ended::Well } else { Ended::Badly })
}
