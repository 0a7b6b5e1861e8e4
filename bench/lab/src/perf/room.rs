//! Whether there is memory for a measurement, before any of it is taken: the kernel gives pages to whoever asks and ends somebody when there
//! are none left.

use std::fs;
use std::path::{Path, PathBuf};

use super::options::Options;
use crate::error::LabError;
use crate::layout::PLACES_MAX;

/// Bytes that a place for a block takes beside the block: shuffled numbers, spans and plans.
const PLACE_BYTES: u64 = 64;

/// Refuses a measurement whose pools on this host, all together, are more than there is, or have more places than can be shuffled.
pub(super) fn refuse_too_large(options: &Options) -> Result<(), LabError> {
    let pools = if options.network.host.is_some() { 1 } else { 2 };
    let spec = options.layout();
    let beside = spec.places().saturating_mul(PLACE_BYTES);
    refuse_pools(pools, spec.pool_bytes(), beside)?;
    if spec.places() > PLACES_MAX {
        let mend =
            "its pool has more than 8 million places for blocks; use larger blocks or a smaller pool (--pool-mib)";
        return Err(LabError::Option { option: "the workload", mend });
    }
    Ok(())
}

/// Refuses so many pools of this host that are more than there is, with so many bytes beside them.
pub(crate) fn refuse_pools(pools: u64, each: u64, beside: u64) -> Result<(), LabError> {
    let asked = each.saturating_mul(pools).saturating_add(beside);
    // The rest of the system lives on the last tenth.
    match left().filter(|left| asked > left / 10 * 9) {
        Some(left) => Err(LabError::TooLarge { pools, each, left }),
        None => Ok(()),
    }
}

/// Bytes that this process and its children can still have, if the system says so: what the machine has, and every control group above.
fn left() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok();
    let machine = meminfo.and_then(|text| available(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").ok().map(|text| folders(&text)).unwrap_or_default();
    let of_groups = groups.iter().filter_map(|folder| left_in(folder));
    machine.into_iter().chain(of_groups).min()
}

fn available(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The folders of this process's control group and of those above it (version 2).
fn folders(groups: &str) -> Vec<PathBuf> {
    let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let own = Path::new("/sys/fs/cgroup").join(path);
    own.ancestors().take_while(|folder| folder.starts_with("/sys/fs/cgroup")).map(Path::to_owned).collect()
}

/// What a control group may still have: its limit without what it uses, of which cached files can be given up.
fn left_in(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let cached = fs::read_to_string(folder.join("memory.stat"))
        .ok()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("inactive_file "))?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn pools_are_refused_together_and_before_they_are_made() {
        let left = left().unwrap();
        let mut options = Options::new(Workload::find("kv16").unwrap());
        assert!(refuse_too_large(&options).is_ok() || left < 2 << 30);
        // Each of them alone would find room.
        options.pool_bytes_min = left / 10 * 6;
        let refused = refuse_too_large(&options).unwrap_err();
        assert!(matches!(refused, LabError::TooLarge { pools: 2, .. }), "{refused}");
        assert!(refused.to_string().contains("--pool-mib"), "{refused}");
        options.network.host = Some("another:1".to_owned());
        assert!(refuse_too_large(&options).is_ok(), "the other one is made elsewhere");
        assert!(refuse_pools(1, left / 10 * 6, 0).is_ok() && refuse_pools(2, left / 10 * 6, 0).is_err());
        options.pool_bytes_min = u64::MAX / 2;
        assert!(refuse_too_large(&options).is_err());
    }

    #[test]
    fn a_control_group_has_what_its_limit_leaves() {
        let folder = std::env::temp_dir().join(format!("penstock-lab-room-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        let unlimited = left_in(&folder);
        write("memory.max", "1000\n");
        write("memory.stat", "anon 500\ninactive_file 100\nactive_file 100\n");
        let limited = left_in(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((unlimited, limited), (None, Some(400)));
        assert_eq!(folders("0::/a/b\n").len(), 3);
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
    }
}
