//! The host this runs on.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use penstock::SystemEnv;
use penstock::env::{Address, Env};
use rustix::fs::Access;
use rustix::process::DumpableBehavior;

use super::call::{self, Place};
use super::{Call, Refusal, Rights, Space, System, companion};

/// The system this process runs on.
#[derive(Debug)]
pub struct ThisSystem {
    program: Option<PathBuf>,
}

impl ThisSystem {
    /// With the program that becomes a companion, if there is one.
    pub fn new(program: Option<PathBuf>) -> Self {
        Self { program }
    }
}

impl System for ThisSystem {
    fn try_call(&self, call: Call) -> Result<String, Refusal> {
        match (&self.program, call) {
            // Whether this very process gets one more thread is the question.
            (_, Call::Thread) => call::make(call, Place { process: 0, address: 0 }),
            (Some(program), _) => companion::try_call(program, call),
            // What libraries do as they are loaded is nothing for this process.
            (None, Call::CopyOther | Call::RdmaLibraries | Call::DpdkShim | Call::CudaDriver) => {
                Err(Refusal::Untried("there is no program to try it with: its own path is not known here".to_owned()))
            }
            (None, _) => call::make(call, Place { process: 0, address: 0 }),
        }
    }

    fn user(&self) -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn process(&self) -> u32 {
        std::process::id()
    }

    fn is_dumpable(&self) -> Option<bool> {
        let behavior = rustix::process::dumpable_behavior().ok()?;
        Some(behavior == DumpableBehavior::Dumpable)
    }

    fn may(&self, path: &Path, rights: Rights) -> io::Result<()> {
        let access = match rights {
            Rights::ReadWrite => Access::READ_OK | Access::WRITE_OK,
            Rights::Write => Access::WRITE_OK,
            Rights::Fill => Access::WRITE_OK | Access::EXEC_OK,
        };
        Ok(rustix::fs::access(path, access)?)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Space {
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
            // File systems without such a limit say 0 of 0.
            has_files_free: found.f_files == 0 || found.f_favail > 0,
        })
    }

    fn knock(&self, path: &Path) -> io::Result<()> {
        SystemEnv.connect(&Address::Unix(path.to_owned())).map(drop)
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}
