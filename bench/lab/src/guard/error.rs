//! Why nothing was counted or judged.

use std::path::PathBuf;

use crate::limited::RunError;

/// Why nothing was counted or judged.
#[derive(Debug)]
#[non_exhaustive]
pub enum GuardError {
    /// The measured program is not there.
    NoProgram {
        /// Where it was looked for.
        program: PathBuf,
    },
    /// No baseline was found from the working folder up.
    NoBaseline,
    /// A file could not be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The baseline is not what this program writes.
    Baseline {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A tool could not be run.
    Tool {
        /// Which Debian package it is in.
        package: &'static str,
        /// What happened.
        source: RunError,
    },
    /// A tool ended with an error.
    Failed {
        /// Which one.
        tool: &'static str,
        /// What it said last.
        words: String,
    },
    /// What a tool wrote makes no sense.
    Malformed {
        /// Which one.
        tool: &'static str,
        /// What it wrote.
        found: String,
    },
    /// Counts of different compilers or kernels cannot be held against each other.
    OtherConditions {
        /// What the baseline was taken with.
        then: String,
        /// What is here now.
        now: String,
    },
}

impl std::fmt::Display for GuardError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoProgram { program } => write!(
                f,
                "the measured program {} is not there: cargo build --release -p penstock-micro",
                program.display()
            ),
            Self::NoBaseline => {
                write!(
                    f,
                    "there is no {} from this folder up: run it in the repository, or name --baseline",
                    super::BASELINE
                )
            }
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Baseline { path, source } => {
                write!(
                    f,
                    "{} is not a baseline: {source}; bring it back from git, or take it anew with --update",
                    path.display()
                )
            }
            Self::Tool { package, source } => {
                write!(f, "{source}; it is in the package {package}: apt-get install {package}")
            }
            Self::Failed { tool, words } => write!(f, "{tool} failed: {words}"),
            Self::Malformed { tool, found } => write!(f, "{tool} wrote what it never writes: {found:?}"),
            Self::OtherConditions { then, now } => write!(
                f,
                "the baseline was taken with {then}, and this is {now}: counts of the two say nothing about each other. \
                 Take a new baseline of an unchanged program first (guard --update), and commit it by itself"
            ),
        }
    }
}

impl std::error::Error for GuardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::Baseline { source, .. } => Some(source),
            Self::Tool { source, .. } => Some(source),
            _ => None,
        }
    }
}
