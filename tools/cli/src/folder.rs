//! A folder of two engines' own, for the sockets by which they meet and the secret that they share.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The secret's name in it.
pub(crate) const SECRET: &str = "secret";

/// The folder, removed with this value. Nobody but this user sees into it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes one among the temporary things, whose name begins so.
    pub(crate) fn make(prefix: &str) -> std::io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let path = std::env::temp_dir().join(format!("{prefix}{}-{}", std::process::id(), now.as_nanos()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        let folder = Self(path);
        folder.make_secret()?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// For engines that meet over the network.
    fn make_secret(&self) -> std::io::Result<()> {
        let mut bytes = [0u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(self.0.join(SECRET))?;
        writeln!(file, "{digits}")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is a folder of ours in the folder for temporary things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
