//! A folder of a test's own, which must be empty in the end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder. Dropping it removes it, and fails the test if an engine left anything there.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A fresh, empty folder.
    pub fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("penstock-conformance-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a process that was killed, and had this number.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("the folder for temporary files cannot be written: {error}"),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What lies in it.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // The case's own.
        names.filter(|name| ![crate::setting::SECRET, crate::setting::DIRECTORY].contains(&name.as_str())).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let left = self.names();
        crate::cards::forget(&self.0);
        crate::dpdk::forget(&self.0);
        // The assertion below says more than a failure to remove it would.
        let _ = std::fs::remove_dir_all(&self.0);
        if !std::thread::panicking() {
            assert!(left.is_empty(), "engines leave nothing behind: {left:?}");
        }
    }
}
