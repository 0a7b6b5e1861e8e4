//! How much of a CPU something used.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time that this thread has used, to this moment.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// CPU time that all threads of this process have used.
pub fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
