//! M14: instructions a block, counted by callgrind and held against a baseline that is in the repository.
//!
//! - [`callgrind`]: runs the measured program under valgrind and reads what each instruction cost
//! - [`stages`]: which part of the hot path an instruction belongs to
//! - [`library`]: the same through the C library
//! - [`baseline`]: what is expected, and the judgement
//!
//! Counts are exact and the same in every run of the same program, so two per cent is a change of the program and
//! never noise. The copy is left out: what counts as one is said in [`stages`].

pub mod baseline;
pub mod callgrind;
mod error;
mod library;
pub mod stages;

use std::path::{Path, PathBuf};

pub use self::baseline::{Baseline, Judgement};
pub use self::error::GuardError;
pub use self::stages::{Counted, Stage};

/// The measured program, beside this one where Cargo puts both.
const PROGRAM: &str = "penstock-hot-path";
/// The baseline, from the root of the repository.
const BASELINE: &str = "bench/baselines/m14.json";

/// How to guard.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The measured program; the one beside this program where absent.
    pub program: Option<PathBuf>,
    /// The baseline; the repository's where absent.
    pub baseline: Option<PathBuf>,
}

/// Counts every case, with the stages of each.
pub fn count(options: &Options) -> Result<Baseline, GuardError> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => beside()?,
    };
    if !program.is_file() {
        return Err(GuardError::NoProgram { program });
    }
    let mut counted = Baseline::measure(&program)?;
    library::add(&program, &mut counted)?;
    Ok(counted)
}

/// Where the baseline is: as asked, or in the repository that the working folder is in.
pub fn baseline_path(options: &Options) -> Result<PathBuf, GuardError> {
    if let Some(path) = &options.baseline {
        return Ok(path.clone());
    }
    let here = std::env::current_dir().unwrap_or_default();
    let found = here.ancestors().map(|folder| folder.join(BASELINE)).find(|path| path.is_file());
    found.ok_or(GuardError::NoBaseline)
}

fn beside() -> Result<PathBuf, GuardError> {
    let own =
        std::env::current_exe().map_err(|source| GuardError::File { path: PathBuf::from("this program"), source })?;
    Ok(own.parent().unwrap_or(Path::new(".")).join(PROGRAM))
}
