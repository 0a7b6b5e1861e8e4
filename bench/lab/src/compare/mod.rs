//! Which of two programs is quicker, and whether that can be told at all.
//!
//! - [`verdict`]: medians, an interval of confidence, and what follows from both
//! - [`programs`]: runs two programs in turns; [`saved`]: reads what two runs wrote down

pub mod programs;
pub mod saved;
pub mod verdict;

use std::fmt::Write;

use serde::Serialize;

pub use self::verdict::{Judge, Pairing, Verdict};

/// One measurement of both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// What was measured.
    pub name: String,
    /// What the figures are in.
    pub unit: String,
    /// What is said about it.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// All of them as lines for people.
pub fn render(all: &[Compared]) -> String {
    let widest = all.iter().map(|one| one.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Compared { name, unit, verdict } in all {
        let _ =
            writeln!(text, "{name:<widest$}  A {:.2} {unit}, B {:.2} {unit}: {}", verdict.a, verdict.b, verdict.words);
    }
    text
}
