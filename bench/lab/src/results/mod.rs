//! Results that are kept: one run of the scoreboard with its machine, its date and its settings, as JSON for
//! programs and as a table for people. They lie in `bench/results/`.
//!
//! - [`machine`]: what machine the figures are from; `text`: the table

pub mod machine;
mod text;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::machine::Machine;
use crate::peers::{Peer, Store, pair, run_quietly, tools};
use crate::scoreboard::{METRICS, Row};

/// The form of the files that this program writes and reads.
pub const FORMAT: u32 = 1;
const GIT: Duration = Duration::from_secs(10);

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The form of the file: [`FORMAT`].
    pub format: u32,
    /// The day on which it was made, in UTC: `2026-11-21`.
    pub date: String,
    /// The commit that was measured; `+changes` where files differed from it.
    pub commit: String,
    /// Where.
    pub machine: Machine,
    /// The load average of the minute before, and of the last minute of it. Above 0.5 before it begins somebody
    /// else was busy too.
    pub load: [f64; 2],
    /// Whether it was a quick one, whose figures are not to be believed.
    pub quick: bool,
    /// Engines of others that took part.
    pub peers: Vec<PeerNote>,
    /// What came out.
    pub rows: Vec<Row>,
}

/// An engine of somebody else in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerNote {
    /// What rows call it.
    pub title: String,
    /// Its version; absent where it was not installed.
    pub version: Option<String>,
    /// Its settings.
    pub settings: String,
}

/// Why a result is not kept, or a kept one is not believed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ResultError {
    /// It is not of the form.
    #[error("this is no result of the scoreboard: {0}")]
    Form(#[from] serde_json::Error),
    /// Something in it cannot be.
    #[error("{place} of the result cannot be: {why}")]
    Content { place: String, why: &'static str },
    /// There is no folder to keep it in.
    #[error("there is no folder {0}: run this where the repository begins, or name a folder with --save FOLDER")]
    NoFolder(PathBuf),
    /// It could not be written.
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// The load average of the last minute; 0 where the kernel does not tell.
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|figure| figure.parse().ok()).unwrap_or(0.0)
}

impl Record {
    /// A run that has just ended; `load_before` is what [`load`] answered before it.
    pub fn of_this_run(rows: &[Row], store: Option<&Store>, load_before: f64, quick: bool) -> Self {
        Self {
            format: FORMAT,
            date: date(SystemTime::now()),
            commit: commit(),
            machine: Machine::this(),
            load: [load_before, load()],
            quick,
            peers: peer_notes(store),
            rows: rows.to_vec(),
        }
    }

    /// Reads a kept one and looks whether it can be.
    pub fn parse(text: &str) -> Result<Self, ResultError> {
        let record: Self = serde_json::from_str(text)?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<(), ResultError> {
        let refuse = |place: &str, why| Err(ResultError::Content { place: place.to_owned(), why });
        if self.format != FORMAT {
            return refuse("format", "this program reads format 1");
        }
        let digits = |part: &str, count| part.len() == count && part.chars().all(|c| c.is_ascii_digit());
        let day: Vec<&str> = self.date.split('-').collect();
        if !matches!(day[..], [year, month, day] if digits(year, 4) && digits(month, 2) && digits(day, 2)) {
            return refuse("date", "a date is YYYY-MM-DD");
        }
        if self.commit.is_empty() || self.machine.cpu.is_empty() || self.machine.cores == 0 {
            return refuse("commit or machine", "a figure without its origin says nothing");
        }
        if self.rows.is_empty() {
            return refuse("rows", "a run has at least one");
        }
        self.rows.iter().enumerate().try_for_each(|(index, row)| {
            check_row(row).map_err(|why| ResultError::Content { place: format!("row {index} ({})", row.id), why })
        })
    }

    /// The name of its files, without what comes after the dot.
    pub fn name(&self) -> String {
        format!("{}-{}", self.date, self.machine.slug())
    }

    /// Writes both files into a folder that is there, under its name and `part`. Answers where they are.
    pub fn save(&self, folder: &Path, part: &str) -> Result<[PathBuf; 2], ResultError> {
        if !folder.is_dir() {
            return Err(ResultError::NoFolder(folder.to_owned()));
        }
        let json = serde_json::to_string_pretty(self)? + "\n";
        let files = [("json", json), ("md", text::render(self))].map(|(kind, text)| {
            let path = folder.join(format!("{}{part}.{kind}", self.name()));
            std::fs::write(&path, text).map(|()| path.clone()).map_err(|source| ResultError::Write { path, source })
        });
        let [json, text] = files;
        Ok([json?, text?])
    }
}

/// Whether a row says something that can be.
fn check_row(row: &Row) -> Result<(), &'static str> {
    if !METRICS.iter().any(|metric| metric.id == row.id) {
        return Err("there is no such metric");
    }
    if row.transport.is_empty() || row.against.is_empty() || row.goal.is_empty() {
        return Err("it says what was measured, against what, and what was wanted");
    }
    let costs = [row.cpu_s_per_gb, row.against_cpu_s_per_gb];
    let figures = [row.figure, row.against_figure, row.ratio].into_iter().chain(costs).flatten();
    if { figures }.any(|figure| !figure.is_finite() || figure < 0.0) {
        return Err("figures are finite and not negative");
    }
    if row.met.is_some() && row.figure.is_none() {
        return Err("there is no verdict without a figure");
    }
    if row.ratio.is_some() && (row.figure.is_none() || row.against_figure.is_none()) {
        return Err("a ratio is of two figures");
    }
    if row.is_compared() && row.against_figure.is_none() && (row.met.is_some() || row.note.is_empty()) {
        return Err("where the comparator is absent there is no verdict, and the note says why");
    }
    Ok(())
}

/// What took part, or could have.
fn peer_notes(store: Option<&Store>) -> Vec<PeerNote> {
    let version = |peer: &str| {
        let installed = store.zip(Peer::find(peer).ok()).and_then(|(store, peer)| store.find(peer).ok());
        installed.map(|installed| installed.version().to_owned())
    };
    let pairs = pair::WAYS.iter().map(|way| (way.title, way.peer, way.settings_in_words()));
    let meters = tools::TOOLS.iter().map(|tool| (tool.title, tool.peer, tool.settings_in_words()));
    let note = |(title, peer, settings): (&str, &str, String)| PeerNote {
        title: title.to_owned(),
        version: version(peer),
        settings,
    };
    pairs.chain(meters).map(note).collect()
}

/// What is checked out here, as far as git tells.
fn commit() -> String {
    let git = |arguments: &[&str]| run_quietly("git", arguments, GIT);
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|changes| !changes.is_empty());
    if changed { format!("{commit}+changes") } else { commit }
}

/// The day in UTC.
fn date(now: SystemTime) -> String {
    let days = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    // The usual reckoning with years that begin in March, so that the day that is sometimes there is the last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests;
