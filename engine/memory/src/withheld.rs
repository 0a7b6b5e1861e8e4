//! For tests: memory that does not answer before it is given.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::host::HostMemory;

/// Pages that whoever touches them gets when this says so, and not before, the kernel too. Given when it is dropped.
pub struct Withheld {
    base: *mut u8,
    bytes: usize,
    giver: OwnedFd,
}

impl Withheld {
    /// None where this process may not withhold pages from the kernel; `test` is noted as skipped then.
    pub fn new(bytes: usize, test: &str) -> Option<Self> {
        const API: u64 = 0xc018_aa3f;
        const REGISTER: u64 = 0xc020_aa00;
        const MISSING: u64 = 1;
        // SAFETY: asks for a descriptor; no memory of this process is named.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
            if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
                use std::io::Write;
                let mut notes = std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .expect("the file that PENSTOCK_SKIPS names");
                writeln!(notes, "{test}: needs root, or vm.unprivileged_userfaultfd=1").expect("it can be written");
            }
            return None;
        };
        // SAFETY: the kernel has just made it for this call.
        let giver = unsafe { OwnedFd::from_raw_fd(fd) };
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let mut api = [0xaa_u64, 0, 0];
        let mut register = [base.expose_provenance() as u64, bytes as u64, MISSING, 0];
        // SAFETY: both structures are as long as the calls say, and live.
        let asked = unsafe {
            (libc::ioctl(fd, API as _, api.as_mut_ptr()), libc::ioctl(fd, REGISTER as _, register.as_mut_ptr()))
        };
        assert_eq!(asked, (0, 0));
        Some(Self { base: base.cast(), bytes, giver })
    }

    /// Where it is. It stays mapped until the process ends.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// All of it, as memory of a caller.
    pub fn host_memory(&self) -> HostMemory {
        // SAFETY: it stays mapped until the process ends, and this hands out no reference to it.
        unsafe { HostMemory::from_raw(self.base, self.bytes) }.expect("a mapping has an address")
    }

    /// Gives all of it, full of zeros.
    pub fn give(&self) {
        const ZERO_PAGE: u64 = 0xc020_aa04;
        let mut range = [self.base.expose_provenance() as u64, self.bytes as u64, 0, 0];
        // SAFETY: the structure is as long as the call says, and lives; the pages are this mapping's.
        let given = unsafe { libc::ioctl(self.giver.as_raw_fd(), ZERO_PAGE as _, range.as_mut_ptr()) };
        assert_eq!(given, 0);
    }
}
