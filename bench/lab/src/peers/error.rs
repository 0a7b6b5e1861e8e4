//! What can go wrong with the engines of others.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// Why a peer is not there, or did not do what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// It was never installed, or was removed.
    #[error("{peer} is not installed: penstock-lab peers install --only {peer}")]
    NotInstalled { peer: &'static str },
    /// Our own wheel was not built.
    #[error("there is no wheel in {folder}: make wheel")]
    NoWheel {
        /// Where it is looked for.
        folder: PathBuf,
    },
    /// There is no place to put peers in.
    #[error("no folder for peers is known, as neither XDG_CACHE_HOME nor HOME is set: name one with --folder")]
    NoFolder,
    /// There is no such peer.
    #[error("{name} is no peer that is known here: choose among {known}")]
    Unknown {
        name: String,
        /// What may be named.
        known: String,
    },
    /// A program that is needed is not on this machine.
    #[error("{peer} cannot be installed, as this machine has no {program}: {mend}")]
    NoProgram { peer: &'static str, program: String, mend: &'static str },
    /// The pinned version cannot be had.
    #[error("{peer} cannot be had as {wanted}: {mend} ({words})")]
    NotOffered {
        peer: &'static str,
        /// What was asked for.
        wanted: String,
        mend: &'static str,
        /// The last words of the program that looked.
        words: String,
    },
    /// A program failed.
    #[error("{program} failed ({status}): {words}")]
    Failed { program: String, status: String, words: String },
    /// A program did not end in time, and was ended.
    #[error("{program} had not ended after {waited:?} and was ended: is the machine overloaded, or the network gone?")]
    TooLong {
        program: String,
        /// How long it had.
        waited: Duration,
    },
    /// It is unpacked but does not start.
    #[error("{peer} is unpacked but does not start: {words}")]
    DoesNotStart { peer: &'static str, words: String },
    /// What is written about an installed peer cannot be understood.
    #[error("the record at {path} cannot be read ({source}): install the peer again")]
    Record { path: PathBuf, source: serde_json::Error },
    /// A file or folder could not be made, read or removed.
    #[error("cannot {doing} {path}: {source}")]
    File { doing: &'static str, path: PathBuf, source: std::io::Error },
    /// A program printed something that is not what it prints.
    #[error("{program} printed no {wanted}: {words}")]
    Unreadable {
        program: &'static str,
        /// What was looked for.
        wanted: &'static str,
        words: String,
    },
    /// A server ended well, and had never listened.
    #[error("{program} has ended without listening at port {port}")]
    Deaf {
        program: String,
        /// Where it was to listen.
        port: u16,
    },
    /// A driver answered that it could not.
    #[error("{peer} could not {doing}: {words}")]
    Refused {
        peer: &'static str,
        /// What it was asked.
        doing: String,
        words: String,
    },
    /// A driver did not answer, or has ended.
    #[error("{peer} did not {doing} within {waited:?}: {words}")]
    Silent {
        peer: &'static str,
        /// What it was asked.
        doing: String,
        /// How long it had.
        waited: Duration,
        words: String,
    },
    /// What it moved is not what was sent.
    #[error("{peer} moved wrong bytes: {mismatch}")]
    Corrupt {
        peer: &'static str,
        /// The first wrong word.
        mismatch: crate::pattern::Mismatch,
    },
}

impl PeerError {
    /// Wraps what the system refused: `map_err(PeerError::file("make the folder", &path))`.
    pub(super) fn file(doing: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File { doing, path: path.to_owned(), source }
    }
}

/// The last words of a program: what it said at the end, on one line and short.
pub(super) fn last_words(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let words = lines[lines.len().saturating_sub(3)..].join(" / ");
    let skipped = words.chars().count().saturating_sub(400);
    if words.is_empty() { "it said nothing".to_owned() } else { words.chars().skip(skipped).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_end_of_what_was_said() {
        assert_eq!(last_words("a\n\n b \nc\nd\n"), "b / c / d");
        assert_eq!(last_words(" \n"), "it said nothing");
        assert_eq!(last_words(&format!("{}end", "x".repeat(1000))).chars().count(), 400);
    }
}
