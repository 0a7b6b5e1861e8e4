//! Penstock's own Python package, as `make wheel` leaves it. It is unpacked anew for each measurement, so what is measured is what was
//! built last.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::child;
use super::error::PeerError;
use super::store::Installed;

/// Where `make wheel` leaves it, from the root of the tree, which is where the lab is run.
const FOLDER: &str = "target/wheels";
const UNPACK: Duration = Duration::from_secs(60);

/// Unpacks it into a folder beside the driver. Answers its name, which has its version.
pub(super) fn unpack(installed: &Installed, into: &Path) -> Result<String, PeerError> {
    let wheel = newest(Path::new(FOLDER))?;
    child::run(installed.python().args(["-m", "zipfile", "-e"]).arg(&wheel).arg(into), UNPACK)?;
    Ok(wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

/// The wheel that was made last.
fn newest(folder: &Path) -> Result<PathBuf, PeerError> {
    let made = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let wheels = files.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.max_by_key(made).ok_or_else(|| PeerError::NoWheel { folder: folder.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Folder;

    #[test]
    fn the_wheel_that_was_made_last_is_taken_and_an_absent_one_is_named_with_its_mend() {
        let folder = Folder::create().unwrap();
        let error = newest(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("there is no wheel in ") && error.ends_with(": make wheel"), "{error}");
        for (name, age) in [("old.whl", 20), ("new.whl", 10), ("newer.txt", 0)] {
            let file = fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        assert_eq!(newest(folder.path()).unwrap(), folder.path().join("new.whl"));
    }
}
