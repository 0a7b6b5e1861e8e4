//! Which threads run beside each other. On few cores the scheduler may put all threads of a test in
//! a row for a while, and then nothing stops anything midway.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where those who copy run, and those who stop them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cores {
    /// The core of whoever copies; none for any.
    pub copying: Option<usize>,
    /// The core of whoever cancels and revokes; none for any.
    pub stopping: Option<usize>,
}

impl Cores {
    /// A core for each, if this thread may use two; else both run anywhere.
    pub fn of_their_own() -> Self {
        let Ok(allowed) = sched_getaffinity(None) else { return Self::default() };
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        match (cores.next(), cores.next()) {
            (stopping, copying @ Some(_)) => Self { copying, stopping },
            _ => Self::default(),
        }
    }
}

/// Holds the calling thread, and threads that it starts, on one core until dropped.
#[derive(Debug)]
#[must_use = "a dropped hold holds nothing"]
pub struct Held {
    before: Option<CpuSet>,
}

impl Held {
    /// Holds the calling thread on this core. Without one, or where it is refused, it runs anywhere.
    pub fn on(core: Option<usize>) -> Self {
        let (Some(core), Ok(before)) = (core, sched_getaffinity(None)) else { return Self { before: None } };
        let mut one = CpuSet::new();
        one.set(core);
        let is_held = sched_setaffinity(None, &one).is_ok();
        Self { before: is_held.then_some(before) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Refused only if the cores have been taken from this process meanwhile.
            let _ = sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_thread_gets_all_its_cores_back() {
        let all = sched_getaffinity(None).unwrap();
        let cores = Cores::of_their_own();
        assert_eq!(cores.copying.is_some(), all.count() > 1);
        if let Some(core) = cores.copying {
            let held = Held::on(Some(core));
            let one = sched_getaffinity(None).unwrap();
            assert!(one.is_set(core) && one.count() == 1);
            drop(held);
        }
        assert!(sched_getaffinity(None).unwrap() == all);
    }
}
