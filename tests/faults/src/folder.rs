//! A folder of one test, for the sockets of its engines.

use std::path::{Path, PathBuf};

/// The name of the file with the secret that the engines of a test share, where they meet between hosts.
pub const SECRET: &str = "secret";

/// A fresh folder that is removed at the end, when engines must have left nothing in it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder for the test with this label, which is unique in its process.
    ///
    /// # Panics
    /// If the folder cannot be made.
    pub fn new(label: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-faults-{}-{label}", std::process::id()));
        // A process that was killed, and had this number, may have left it.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("the folder for temporary files can be written");
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Removes what the engine of this name left: its process was killed.
    pub fn sweep_up_after(&self, killed: &str) {
        for ending in ["sock", "lock"] {
            let _ = std::fs::remove_file(self.0.join(format!("{killed}.{ending}")));
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let files = std::fs::read_dir(&self.0).into_iter().flatten().flatten().map(|file| file.path());
        let left: Vec<_> = files.filter(|path| !path.ends_with(SECRET)).collect();
        let _ = std::fs::remove_dir_all(&self.0);
        if !std::thread::panicking() {
            assert!(left.is_empty(), "engines leave nothing behind: {left:?}");
        }
    }
}
