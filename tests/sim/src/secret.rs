//! The secret that all simulated hosts share: a file without a place in any folder, so that nothing is left behind.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustix::fs::MemfdFlags;

/// 64 digits, as in a secret of users.
const DIGITS: &str = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e";

/// Its path. It is there as long as this process.
pub(crate) fn file() -> PathBuf {
    static FILE: OnceLock<File> = OnceLock::new();
    let file = FILE.get_or_init(|| made().expect("a process may have a file of 64 bytes in memory"));
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn made() -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("penstock-simulated-secret", MemfdFlags::CLOEXEC)?);
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(DIGITS.as_bytes())?;
    Ok(file)
}
