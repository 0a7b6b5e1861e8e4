//! What a process that ends in the middle of a measurement has to remove, and how nothing new comes meanwhile; and what the next one
//! removes of one that was killed.

use std::fs::{DirEntry, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, geteuid, kill_process, test_kill_process, waitpid};

use super::SECRET;
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

const FOLDER_PREFIX: &str = "penstock-lab-";

/// What the folder of this number of a process is called.
pub(super) fn folder_name(process: u32, number: u64) -> String {
    format!("{FOLDER_PREFIX}{process}-{number}")
}

/// The process of which a folder of this name is.
fn process_of(name: &str) -> Option<Pid> {
    let (process, number) = name.strip_prefix(FOLDER_PREFIX)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    Pid::from_raw(process.parse().ok()?)
}

/// Removes the folders that this user's processes have left here because they were killed.
pub(super) fn folders_of_the_dead(here: &Path) {
    let Ok(entries) = std::fs::read_dir(here) else { return };
    for entry in entries.flatten().filter(is_of_the_dead) {
        // What stays is removed the next time.
        let _ = std::fs::remove_dir_all(entry.path());
    }
}

fn is_of_the_dead(folder: &DirEntry) -> bool {
    let Some(process) = folder.file_name().to_str().and_then(process_of) else { return false };
    if test_kill_process(process) != Err(Errno::SRCH) {
        return false;
    }
    // A link to a folder is none itself.
    let is_ours = folder.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
    // Whoever lives in another container, whose processes have other numbers, holds the lock.
    let is_held = || {
        File::open(folder.path().join(SECRET))
            .is_ok_and(|secret| matches!(secret.try_lock(), Err(TryLockError::WouldBlock)))
    };
    is_ours && !is_held()
}

#[cfg(test)]
mod tests {
    use super::super::{Folder, make_secret};
    use super::*;

    #[test]
    fn folders_of_killed_processes_are_removed_and_those_of_the_living_stay() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let folder = Folder::create().unwrap();
        let make = |name: String| {
            let path = folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let (dead, living) = (child.id(), std::process::id());
        let left = [make(folder_name(dead, 0)), make(folder_name(dead, 1))];
        drop(make_secret(&left[1]).unwrap());
        let held = make(folder_name(dead, 2));
        let _secret = make_secret(&held).unwrap();
        let others = [
            make(folder_name(living, 0)),
            make(format!("penstock-lab-{dead}")),
            make(format!("penstock-lab-rdma-{dead}-0")),
            make(format!("penstock-lab-{dead}-here")),
            make(format!("penstock-lab-0-{dead}")),
        ];
        folders_of_the_dead(folder.path());
        assert!(left.iter().all(|left| !left.exists()), "{left:?}");
        assert!(held.exists() && others.iter().all(|other| other.exists()), "{others:?}");
    }
}
