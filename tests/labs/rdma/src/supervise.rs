//! Sees to it that a guest does not outlive the process that booted it, however that one ends.
//!
//! A killed process cleans nothing up, so somebody else has to: a small process between the lab and QEMU that looks
//! whether its parent is still the same. QEMU in turn is told by the kernel when the small process is gone.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::SIGTERM;

use crate::host;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);

/// Runs a program, with this process's own streams, until it ends, the process `parent` is gone or SIGTERM comes.
pub fn supervise(parent: u32, words: &[String]) -> io::Result<ExitStatus> {
    let is_told = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGTERM, Arc::clone(&is_told))?;
    let mut child = host::program("setpriv").args(["--pdeathsig", "KILL", "--"]).args(words).spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        if now != Some(parent) || is_told.load(Ordering::Relaxed) {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(LOOK);
    }
}
