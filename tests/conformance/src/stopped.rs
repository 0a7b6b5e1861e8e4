//! A process that is stopped (SIGSTOP): it holds everything it had and does nothing.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::PATIENCE;

/// Stops a process until dropped: it must run again before anybody can end it well.
#[derive(Debug)]
pub struct Stopped(Pid);

impl Stopped {
    /// Stops our own child of this id.
    ///
    /// # Panics
    /// If it goes on all the same.
    pub fn new(process: u32) -> Self {
        let id = Pid::from_raw(process as i32).expect("process ids are positive");
        kill_process(id, Signal::STOP).expect("our own child can be stopped");
        let stopped = Self(id);
        // The signal is on its way; the process goes on until each of its threads has met it.
        let until = Instant::now() + PATIENCE;
        while !all_threads_are_stopped(process) {
            assert!(Instant::now() < until, "the process goes on");
            std::thread::yield_now();
        }
        stopped
    }
}

fn all_threads_are_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    let state = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("stat")).ok();
    let is_stopped = |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'));
    threads.flatten().all(|thread| state(thread).is_none_or(is_stopped))
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}
