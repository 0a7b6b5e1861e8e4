//! What can go wrong between a lab and its guest.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a lab cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program of the host is not installed.
    #[error("the program {program} is not here; install the Debian package {package}")]
    NoProgram {
        /// What was to be run.
        program: &'static str,
        /// What brings it.
        package: &'static str,
    },
    /// A program needs libraries where there are none.
    #[error("{path} needs shared libraries, which the guest begins without; install the Debian package {package}", path = path.display())]
    Shared {
        /// Where it is.
        path: PathBuf,
        /// What brings one that does not.
        package: &'static str,
    },
    /// A program of the host said no.
    #[error("{program} failed ({how}): {said}")]
    Program {
        /// What was run.
        program: String,
        /// How it ended.
        how: String,
        /// Its last words.
        said: String,
    },
    /// A file or folder of the host cannot be used.
    #[error("cannot {what} {path}: {error}", path = path.display())]
    File {
        /// What was to be done with it.
        what: &'static str,
        /// Which one.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// No folder for what is kept between runs is known.
    #[error("no folder for the guest's kernel is known: set XDG_CACHE_HOME or HOME")]
    NoCacheFolder,
    /// No kernel for the guest can be had.
    #[error("no kernel for the guest: {0}; a Debian package source with linux-image-6.12 is needed once")]
    NoKernel(String),
    /// Another process has been building the same image for too long.
    #[error("another process has held {path} for {waited:?}", path = path.display())]
    Locked {
        /// The file that is locked.
        path: PathBuf,
        /// How long this one waited.
        waited: Duration,
    },
    /// A path cannot be handed to the guest.
    #[error("{what} {path:?} cannot be named to the guest: it has a blank or a comma in it, or is not UTF-8")]
    UnusablePath {
        /// What it is the path of.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// The guest is not there any more.
    #[error("the guest died {when}: {why}\n--- its last words ---\n{console}")]
    Died {
        /// During what.
        when: String,
        /// How that was noticed.
        why: String,
        /// The end of its console.
        console: String,
    },
    /// Something did not happen in time.
    #[error("{what} took longer than {limit:?}\n--- so far ---\n{so_far}")]
    TooLate {
        /// What was awaited.
        what: String,
        /// How long.
        limit: Duration,
        /// The end of what came.
        so_far: String,
    },
    /// A command in the guest did not end well.
    #[error("in the guest, `{command}` {how}\n--- it said ---\n{said}")]
    Command {
        /// The command.
        command: String,
        /// How it ended.
        how: String,
        /// The end of what it said.
        said: String,
    },
    /// What a command in the guest said is not what was expected of it.
    #[error("cannot read {what} in {text:?}")]
    Unreadable {
        /// What was looked for.
        what: String,
        /// Where.
        text: String,
    },
    /// A test program could not be had.
    #[error("no test program: {0}")]
    Build(String),
}

impl LabError {
    /// For `map_err`: what was to be done with which file.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::File { what, path, error }
    }
}
