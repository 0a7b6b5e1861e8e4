//! Where threads run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this thread may run on, ascending.
pub fn available() -> Vec<usize> {
    // Where the kernel does not say, one core is certainly there.
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Keeps this thread, and the threads that it starts from now on, on these cores. Refused
/// where one of them does not exist; then nothing changes.
pub fn stay_on(cores: &[usize]) -> bool {
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&core| core < CpuSet::MAX_CPU) {
        set.set(core);
    }
    cores.is_empty() || sched_setaffinity(None, &set).is_ok()
}

/// Keeps this thread on some cores until dropped.
#[derive(Debug)]
#[must_use = "the thread may run anywhere again once this is dropped"]
pub struct Stay {
    before: Vec<usize>,
}

impl Stay {
    /// Keeps this thread, and the threads that it starts meanwhile, on these cores.
    pub fn on(cores: &[usize]) -> Self {
        let before = available();
        stay_on(cores);
        Self { before }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        stay_on(&self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_was_told_to() {
        let all = available();
        let last = *all.last().unwrap();
        let stay = Stay::on(&[last]);
        assert_eq!(available(), [last]);
        assert_eq!(std::thread::spawn(available).join().unwrap(), [last], "threads inherit it");
        drop(stay);
        assert_eq!(available(), all);
    }
}
