//! Where shared libraries lie. Nothing is loaded: a library's constructors are not the doctor's to run, but a companion's.

use std::fs;
use std::path::{Path, PathBuf};

use super::Host;

/// Where the loader looks without being told.
const FOLDERS: [&str; 9] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Paths that the loader's cache lists.
pub(crate) struct Libraries<'a> {
    host: &'a Host,
    cached: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Host {
    /// The libraries that a program started here would find.
    pub(crate) fn libraries(&self) -> Libraries<'_> {
        let cache = fs::read(self.at("/etc/ld.so.cache")).unwrap_or_default();
        // The cache keeps its strings one after the other, each ended by a zero: that is all we need of its format.
        let texts = cache.split(|&byte| byte == 0).filter(|text| text.starts_with(b"/"));
        let cached = texts.filter_map(|text| std::str::from_utf8(text).ok()).map(PathBuf::from).collect();
        let told = self.system().variable("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = std::env::split_paths(&told).filter(|folder| folder.is_absolute());
        let folders = folders.chain(FOLDERS.map(PathBuf::from)).collect();
        Libraries { host: self, cached, folders }
    }
}

impl Libraries<'_> {
    /// The first library whose file name is `name` or begins with `name` and a dot.
    pub(crate) fn find(&self, name: &str) -> Option<PathBuf> {
        let is_it = |file: &str| file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let listed =
            self.cached.iter().filter(|path| path.file_name().and_then(|file| file.to_str()).is_some_and(is_it));
        // The cache may be older than the folder it speaks of.
        if let Some(path) = listed.into_iter().find(|path| self.host.exists(path)) {
            return Some(path.clone());
        }
        self.folders.iter().find_map(|folder| self.in_folder(folder, &is_it))
    }

    fn in_folder(&self, folder: &Path, is_it: &impl Fn(&str) -> bool) -> Option<PathBuf> {
        let names = self.host.names(folder);
        names.iter().find(|name| is_it(name)).map(|name| folder.join(name)).filter(|path| self.host.exists(path))
    }

    /// Those of `names` that are not here.
    pub(crate) fn lacks(&self, names: &[&'static str]) -> Vec<&'static str> {
        names.iter().filter(|name| self.find(name).is_none()).copied().collect()
    }
}
