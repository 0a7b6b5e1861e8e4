//! The kernel: the newest of its line that the distribution offers, unpacked into a folder and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::LabError;
use crate::host;

/// Longest time for the package manager's answers.
const SEARCH_LIMIT: Duration = Duration::from_secs(120);

/// Longest time for a hundred megabytes.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(300);

/// Packages of the line that the labs were written for, whole kernels for plain machines only.
const PATTERN: &str = "^linux-image-6\\.12\\.[0-9.]+\\+deb[0-9]+-amd64$";

/// A kernel with its modules, on disk.
pub(super) struct Unpacked {
    /// Its release, as `uname -r` says it.
    pub(super) release: String,
    /// What is booted.
    pub(super) kernel: PathBuf,
    /// What `lib/modules` is in.
    pub(super) root: PathBuf,
}

/// Fetches and unpacks the newest kernel below `folder`.
pub(super) fn unpack(folder: &Path, progress: &dyn Fn(&str)) -> Result<Unpacked, LabError> {
    let package = newest_package(progress)?;
    let release = package.trim_start_matches("linux-image-").to_owned();
    progress(&format!("fetching {package}, about 100 MB"));
    let download = folder.join("package");
    fs::create_dir(&download).map_err(LabError::file("make", &download))?;
    let fetch = ["-o", "Acquire::Retries=3", "download", &package];
    host::run(host::program("apt-get").args(fetch).current_dir(&download), DOWNLOAD_LIMIT)?;
    let archive = only_file(&download)?;
    let root = folder.join("root");
    host::run(host::program("dpkg").arg("-x").arg(&archive).arg(&root), SEARCH_LIMIT)?;
    // Newer distributions keep all of /lib in /usr.
    let base = if root.join("lib/modules").is_dir() { root.clone() } else { root.join("usr") };
    host::run(host::program("depmod").arg("-b").arg(&base).arg(&release), SEARCH_LIMIT)?;
    let kernel = root.join(format!("boot/vmlinuz-{release}"));
    if kernel.is_file() {
        Ok(Unpacked { release, kernel, root: base })
    } else {
        Err(LabError::NoKernel(format!("{package} holds no {}", kernel.display())))
    }
}

fn newest_package(progress: &dyn Fn(&str)) -> Result<String, LabError> {
    let search = || host::run(host::program("apt-cache").args(["search", "--names-only", PATTERN]), SEARCH_LIMIT);
    if let Some(package) = newest_of(&search()?) {
        return Ok(package);
    }
    progress("no kernel is known to the package manager; fetching its lists");
    host::run(host::program("apt-get").args(["-o", "Acquire::Retries=3", "update"]), DOWNLOAD_LIMIT)?;
    newest_of(&search()?).ok_or_else(|| LabError::NoKernel(format!("apt-cache search {PATTERN} finds nothing")))
}

/// The newest of the packages in a list of names and descriptions.
fn newest_of(list: &str) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    names.max_by_key(|name| order(name)).map(str::to_owned)
}

/// What versions are ordered by: their numbers, in turn.
pub(super) fn order(name: &str) -> Vec<u64> {
    let is_digit = |letter: char| letter.is_ascii_digit();
    name.split(|letter| !is_digit(letter)).filter_map(|number| number.parse().ok()).collect()
}

fn only_file(folder: &Path) -> Result<PathBuf, LabError> {
    let entries = fs::read_dir(folder).map_err(LabError::file("read", folder))?;
    let found = entries.flatten().map(|entry| entry.path()).next();
    found.ok_or_else(|| LabError::NoKernel("the package manager downloaded nothing".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let list = "linux-image-6.12.9+deb12-amd64 - Linux 6.12\nlinux-image-6.12.117+deb12-amd64 - Linux 6.12\n\
                    linux-image-6.12.20+deb12-amd64 - Linux 6.12\n";
        assert_eq!(newest_of(list).as_deref(), Some("linux-image-6.12.117+deb12-amd64"));
        assert_eq!(newest_of(""), None);
    }
}
