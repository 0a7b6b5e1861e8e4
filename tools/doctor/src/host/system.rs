//! What must be asked by calls.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use super::{Call, Refusal};

/// What somebody wants to do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Read and write it.
    ReadWrite,
    /// Write it.
    Write,
    /// Make files in it.
    Fill,
}

/// Room on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that this user can still take.
    pub bytes_free: u64,
    /// Whether more files can be made, as far as that is limited.
    pub has_files_free: bool,
}

/// A running system, as far as files do not show it.
pub trait System {
    /// Tries a call. A few answer with words.
    fn try_call(&self, call: Call) -> Result<String, Refusal>;
    /// The user this process acts as.
    fn user(&self) -> u32;
    /// This process's id, as it sees itself.
    fn process(&self) -> u32;
    /// Whether other processes of this user may look into this one; none if that cannot be told.
    fn is_dumpable(&self) -> Option<bool>;
    /// Whether this process may.
    fn may(&self, path: &Path, rights: Rights) -> io::Result<()>;
    /// The room of the file system that holds a file.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Whether somebody listens at a socket.
    fn knock(&self, path: &Path) -> io::Result<()>;
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<OsString>;
}
