//! What a process that ends in the middle of a measurement has to remove, and how nothing new comes meanwhile.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::error::LabError;

/// How long a target that was killed is waited for, in steps.
const STEPS: u32 = 100;
const STEP: Duration = Duration::from_millis(5);

/// What this process has made that must not outlive it.
struct Made {
    folders: Vec<PathBuf>,
    targets: Vec<Pid>,
    is_swept: bool,
}

static MADE: Mutex<Made> = Mutex::new(Made { folders: Vec::new(), targets: Vec::new(), is_swept: false });

fn made() -> MutexGuard<'static, Made> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while something is made that lies in a folder, or a process is started that may make some.
pub(super) struct Making(MutexGuard<'static, Made>);

impl Making {
    /// Refused once everything is swept: nobody would remove it any more.
    pub(super) fn begin() -> Result<Self, LabError> {
        let made = made();
        if made.is_swept { Err(LabError::Ending) } else { Ok(Self(made)) }
    }

    pub(super) fn has_folder(&mut self, path: &Path) {
        self.0.folders.push(path.to_owned());
    }

    pub(super) fn has_target(&mut self, target: Option<Pid>) {
        self.0.targets.extend(target);
    }
}

pub(super) fn folder_is_gone(path: &Path) {
    made().folders.retain(|folder| folder != path);
}

pub(super) fn target_is_gone(target: Option<Pid>) {
    made().targets.retain(|&other| Some(other) != target);
}

/// Ends the targets and removes the folders of this process's measurements, for who ends it from another thread at once: nothing that is
/// under way goes on well.
pub fn sweep() {
    let mut made = made();
    made.is_swept = true;
    for target in std::mem::take(&mut made.targets) {
        // A child that nobody has waited for: its number is still its own. Whoever else waits for it learns that it is gone.
        let is_ours = || matches!(waitpid(Some(target), WaitOptions::NOHANG), Ok(None));
        if !is_ours() {
            continue;
        }
        let _ = kill_process(target, Signal::KILL);
        for _ in 0..STEPS {
            if !is_ours() {
                break;
            }
            std::thread::sleep(STEP);
        }
    }
    for folder in std::mem::take(&mut made.folders) {
        // The process ends: nobody could be told.
        let _ = std::fs::remove_dir_all(folder);
    }
}
