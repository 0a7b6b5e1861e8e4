//! Which pages a mapping really got, and what the machine has to give.

use std::fs;

use crate::error::{MemoryError, MemoryLimit};
use crate::mapping::HUGE_PAGE_BYTES;
use crate::pool_spec::Pages;

/// The kind of pages that back a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// 2 MiB pages reserved by the administrator.
    HugeTlb,
    /// 2 MiB pages given by the kernel where it found them.
    Transparent,
    Small,
}

/// Which pages were asked for, which were got, and why not better ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagesReport {
    /// What the pool's specification said.
    pub asked: Pages,
    /// What backs the pool.
    pub got: PageKind,
    /// Why larger pages could not be had, and the mend; `None` when nothing was missing.
    pub reason: Option<String>,
}

/// Whether `bytes` bytes of shared memory that ask for transparent huge pages may get them, else
/// why not.
pub(crate) fn transparent_allowed(bytes: u64) -> Result<(), String> {
    if bytes < HUGE_PAGE_BYTES {
        return Err("a pool smaller than 2 MiB has no room for a huge page".to_owned());
    }
    const ROOT: &str = "/sys/kernel/mm/transparent_hugepage";
    let own = chosen(&format!("{ROOT}/hugepages-2048kB/shmem_enabled"));
    let (file, word) = match own.as_deref() {
        Some(word) if word != "inherit" => ("hugepages-2048kB/shmem_enabled", own),
        _ => ("shmem_enabled", chosen(&format!("{ROOT}/shmem_enabled"))),
    };
    match word.as_deref() {
        Some("always" | "within_size" | "advise" | "force") => Ok(()),
        Some(word) => Err(format!(
            "transparent huge pages are off for shared memory ({word}): \
             echo advise > {ROOT}/{file}"
        )),
        None => Err("this kernel has no transparent huge pages for shared memory".to_owned()),
    }
}

/// The word in brackets of a kernel setting such as `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    bracketed(&fs::read_to_string(path).ok()?).map(str::to_owned)
}

fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// Bytes of the mapping at `base` that are mapped by transparent huge pages.
///
/// This reads the whole of `/proc/self/smaps`, milliseconds for a large process: only at the
/// creation of a pool.
pub(crate) fn transparent_bytes(base: u64) -> u64 {
    let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else { return 0 };
    pmd_mapped_bytes(&smaps, base)
}

fn pmd_mapped_bytes(smaps: &str, base: u64) -> u64 {
    let start = format!("{base:08x}-");
    smaps
        .lines()
        .skip_while(|line| !line.starts_with(&start))
        .find_map(|line| line.strip_prefix("ShmemPmdMapped:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib.saturating_mul(1024))
}

/// The memory of this machine and its swap, if it says.
pub fn machine_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    bytes_of(&text, "MemTotal:")?.checked_add(bytes_of(&text, "SwapTotal:").unwrap_or(0))
}

/// Refuses what the machine or the control group can certainly not give, before populating it
/// would wake the kernel's out-of-memory killer.
pub(crate) fn refuse_impossible(asked: u64, what: &'static str) -> Result<(), MemoryError> {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    if let Some(available) = available
        && asked > available
    {
        let limit = MemoryLimit::Machine { available };
        let mend = "ask for less, or free memory first";
        return Err(MemoryError::OutOfMemory { what, asked, limit, mend });
    }
    if let Some(allowed) = control_group_allows()
        && asked > allowed
    {
        let limit = MemoryLimit::ControlGroup { allowed };
        let mend = "raise memory.max of the group (`penstock doctor cgroup` names its file)";
        return Err(MemoryError::OutOfMemory { what, asked, limit, mend });
    }
    Ok(())
}

fn available(meminfo: &str) -> Option<u64> {
    bytes_of(meminfo, "MemAvailable:")
}

fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest `memory.max` from this process's control group up to the root (version 2 only).
fn control_group_allows() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder = std::path::PathBuf::from("/sys/fs/cgroup").join(path);
    let mut smallest: Option<u64> = None;
    while folder.starts_with("/sys/fs/cgroup") {
        let limit = fs::read_to_string(folder.join("memory.max")).ok().and_then(|text| text.trim().parse::<u64>().ok());
        smallest = smallest.into_iter().chain(limit).min();
        if !folder.pop() {
            break;
        }
    }
    smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_words_are_read() {
        assert_eq!(bracketed("always [madvise] never\n"), Some("madvise"));
        assert_eq!(bracketed("nothing chosen"), None);
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
    }

    #[test]
    fn the_right_mapping_is_looked_at() {
        let smaps = "7f0000000000-7f0000200000 rw-s 0 00:01 1 /memfd:a\n\
                     ShmemPmdMapped:        0 kB\n\
                     7f0000400000-7f0000800000 rw-s 0 00:01 2 /memfd:b\n\
                     Rss: 4096 kB\n\
                     ShmemPmdMapped:     4096 kB\n";
        assert_eq!(pmd_mapped_bytes(smaps, 0x7f00_0040_0000), 4 << 20);
        assert_eq!(pmd_mapped_bytes(smaps, 0x7f00_0000_0000), 0);
        assert_eq!(pmd_mapped_bytes(smaps, 0x1000), 0);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_up_front() {
        assert!(refuse_impossible(1 << 20, "a pool").is_ok());
        let refused = refuse_impossible(1 << 60, "a pool").unwrap_err();
        assert!(matches!(refused, MemoryError::OutOfMemory { asked, .. } if asked == 1 << 60));
    }
}
