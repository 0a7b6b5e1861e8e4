//! A child of this process, and what it answers.

/// Runs `child` in a forked child and answers what it answered.
#[allow(unsafe_code, reason = "forking is")]
pub(crate) fn in_a_child(child: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `child` and ends by _exit, so nothing of the parent's is run or flushed twice. It
    // uses nothing but this thread's data and the allocator, which the C library keeps usable after fork.
    let id = unsafe { libc::fork() };
    if id == 0 {
        // SAFETY: a child that hangs is ended by the signal.
        unsafe { libc::alarm(60) };
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(u8::MAX);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(answer.into()) };
    }
    assert!(id > 0, "cannot fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    assert!(libc::WIFEXITED(status), "the child was killed: {status}");
    libc::WEXITSTATUS(status)
}
