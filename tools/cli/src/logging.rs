//! What the engine says about itself, on standard error.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::failure::Failure;

/// The variable that overrules `-v`.
pub(crate) const VARIABLE: &str = "PENSTOCK_LOG";

/// Shows warnings, and more with each `-v`: what happens, debug, everything.
pub(crate) fn start(verbose: u8) -> Result<(), Failure> {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => {
            EnvFilter::builder().parse(text).map_err(|error| Failure::Filter(error.to_string()))?
        }
        _ => EnvFilter::default().add_directive(level.into()),
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}
