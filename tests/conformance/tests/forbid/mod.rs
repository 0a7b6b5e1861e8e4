//! A filter as containers have them: the kernel's copies between processes are refused.

/// From here on this thread may not make the two calls.
#[allow(unsafe_code, reason = "installing a filter is a plain system call with a pointer")]
pub(crate) fn forbid_process_vm() {
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(0x20, 0, 0, 0), // load the number of the call
        step(0x15, 1, 0, libc::SYS_process_vm_readv as u32),
        step(0x15, 0, 1, libc::SYS_process_vm_writev as u32),
        step(0x06, 0, 0, ERRNO | libc::EPERM as u32),
        step(0x06, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: both calls concern this thread alone; the program is copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}
