//! Settings of the kernel under this machine, as labs change them.

use std::fs;

/// The setting that says how many huge pages are set aside.
pub const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// A setting of the kernel's, put back at the end.
pub struct KernelSetting {
    path: &'static str,
    was: String,
}

impl KernelSetting {
    /// Changes it, if that can be.
    #[must_use]
    pub fn change(path: &'static str, value: &str) -> Option<Self> {
        let was = fs::read_to_string(path).ok()?;
        // Some files show all choices, and the one that is made in brackets.
        let was = was.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(was.trim(), |(word, _)| word);
        let setting = Self { path, was: was.to_owned() };
        fs::write(path, value).is_ok().then_some(setting)
    }
}

impl Drop for KernelSetting {
    fn drop(&mut self) {
        // What can be changed can be changed back.
        let _ = fs::write(self.path, &self.was);
    }
}
