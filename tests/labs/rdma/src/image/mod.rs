//! What a guest boots: a kernel of the distribution and a small file system with the modules it needs, made once and
//! kept.
//!
//! Each recipe (kernel, modules, first script) has a folder of its own. It is made under another name and then moved, and
//! a file beside the parts says what they have to look like, so that half of an image is never taken for a whole one.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::LabError;

mod initramfs;
mod kernel;

/// The file that says what the parts of an image look like.
const RECORD: &str = "image.json";

/// Longest wait for another process that makes the same image.
const PATIENCE: Duration = Duration::from_secs(300);

/// A kernel and the file system it begins with.
#[derive(Debug, Clone)]
pub struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
    /// Which kernel it is.
    pub release: String,
    /// How long it took to make, if it was not there.
    pub made_in: Option<Duration>,
}

/// What is written down about an image.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Record {
    release: String,
    /// Names, lengths and sums of its parts.
    parts: Vec<Part>,
}

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Part {
    name: String,
    length: u64,
    sum: u64,
}

const KERNEL: &str = "vmlinuz";
const INITRAMFS: &str = "initramfs.cpio";

impl Image {
    /// The newest image that is kept, or a new one: `progress` is told what is being done.
    pub fn provide(progress: &dyn Fn(&str)) -> Result<Self, LabError> {
        let store = Store::of_user()?;
        store.provide(progress)
    }

    fn at(folder: &Path, record: &Record, made_in: Option<Duration>) -> Self {
        let release = record.release.clone();
        Self { kernel: folder.join(KERNEL), initramfs: folder.join(INITRAMFS), release, made_in }
    }
}

/// Where images are kept.
struct Store {
    folder: PathBuf,
    /// What tells images of one recipe from those of another.
    recipe: String,
}

impl Store {
    /// `$XDG_CACHE_HOME/penstock/guests`, or the same below `~/.cache`.
    fn of_user() -> Result<Self, LabError> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        let folder = cache.ok_or(LabError::NoCacheFolder)?.join("penstock/guests");
        Ok(Self { folder, recipe: format!("{:016x}", initramfs::recipe()) })
    }

    fn provide(&self, progress: &dyn Fn(&str)) -> Result<Image, LabError> {
        fs::create_dir_all(&self.folder).map_err(LabError::file("make", &self.folder))?;
        let _lock = self.lock(progress)?;
        if let Some(image) = self.newest() {
            return Ok(image);
        }
        let started = Instant::now();
        let staged = self.folder.join(".new");
        remove(&staged)?;
        let result = self.make(&staged, progress);
        remove(&staged)?;
        let (folder, record) = result?;
        Ok(Image::at(&folder, &record, Some(started.elapsed())))
    }

    /// One process at a time looks and makes. The lock goes with the process that held it.
    fn lock(&self, progress: &dyn Fn(&str)) -> Result<File, LabError> {
        let path = self.folder.join("lock");
        let file = File::create(&path).map_err(LabError::file("open", &path))?;
        let started = Instant::now();
        let mut has_said = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => {
                    if !has_said {
                        progress("another process is making the guest's image; waiting for it");
                        has_said = true;
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(TryLockError::WouldBlock) => return Err(LabError::Locked { path, waited: started.elapsed() }),
                Err(TryLockError::Error(error)) => return Err(LabError::file("lock", &path)(error)),
            }
        }
    }

    /// The newest whole image of this recipe. One with damage is taken for none.
    fn newest(&self) -> Option<Image> {
        let entries = fs::read_dir(&self.folder).ok()?.flatten().map(|entry| entry.path());
        let whole = entries.filter(|path| self.is_of_recipe(path));
        let mut images: Vec<Image> =
            whole.filter_map(|path| verified(&path).map(|record| Image::at(&path, &record, None))).collect();
        images.sort_by_key(|image| kernel::order(&image.release));
        images.pop()
    }

    fn is_of_recipe(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.ends_with(&format!("-{}", self.recipe)))
    }

    fn make(&self, staged: &Path, progress: &dyn Fn(&str)) -> Result<(PathBuf, Record), LabError> {
        fs::create_dir_all(staged).map_err(LabError::file("make", staged))?;
        let unpacked = kernel::unpack(staged, progress)?;
        progress(&format!("making the guest's first file system for kernel {}", unpacked.release));
        let image = staged.join("image");
        fs::create_dir(&image).map_err(LabError::file("make", &image))?;
        fs::copy(&unpacked.kernel, image.join(KERNEL)).map_err(LabError::file("copy", &unpacked.kernel))?;
        initramfs::make(&unpacked, &staged.join("initramfs"), &image.join(INITRAMFS))?;
        let parts = [KERNEL, INITRAMFS].iter().map(|name| part(&image, name)).collect::<Result<_, _>>()?;
        let record = Record { release: unpacked.release, parts };
        let text = serde_json::to_vec_pretty(&record).expect("a record of strings and numbers can be written down");
        fs::write(image.join(RECORD), text).map_err(LabError::file("write", &image))?;
        let place = self.folder.join(format!("{}-{}", record.release, self.recipe));
        remove(&place)?;
        fs::rename(&image, &place).map_err(LabError::file("move to its place", &image))?;
        Ok((place, record))
    }
}

/// What an image says of itself, if its parts are still so.
fn verified(folder: &Path) -> Option<Record> {
    let record: Record = serde_json::from_slice(&fs::read(folder.join(RECORD)).ok()?).ok()?;
    let names: Vec<&str> = record.parts.iter().map(|part| part.name.as_str()).collect();
    let is_whole = names == [KERNEL, INITRAMFS]
        && record.parts.iter().all(|written| part(folder, &written.name).is_ok_and(|found| found == *written));
    is_whole.then_some(record)
}

fn part(folder: &Path, name: &str) -> Result<Part, LabError> {
    let path = folder.join(name);
    let bytes = fs::read(&path).map_err(LabError::file("read", &path))?;
    Ok(Part { name: name.to_owned(), length: bytes.len() as u64, sum: sum(&bytes) })
}

/// A sum (FNV-1a) that tells damage, not malice.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn remove(folder: &Path) -> Result<(), LabError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(LabError::file("remove", folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
