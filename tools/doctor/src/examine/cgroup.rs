//! Control groups, of version 1 and 2, and mixtures of both.

use std::path::PathBuf;

use crate::finding::{By, Finding, Mend};
use crate::host::Host;
use crate::parse::{meminfo, size};
use crate::topic::Topic;

const TOPIC: Topic = Topic::Cgroup;

/// Whose memory a pool is. Said with every verdict: it surprises people.
const CHARGED: &str = "a pool's pages are charged to whoever touches them first, which is the engine that makes it";

/// Memory below which version 1 calls itself limited; it writes its absence as a huge number.
const NO_LIMIT: u64 = 1 << 60;

/// One controller's group of this process, and those around it up to where the file system shows them.
struct Groups {
    /// Innermost first, as paths of the host.
    folders: Vec<PathBuf>,
    version: u8,
}

/// A limit, and the group that sets it.
struct Bound {
    limit: u64,
    folder: PathBuf,
}

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    if !host.exists("/proc/self/cgroup") {
        return vec![Finding::unknown(
            TOPIC,
            "memory",
            "/proc/self/cgroup cannot be read, or this kernel has no such groups",
        )];
    }
    let mut findings = vec![memory(host)];
    findings.extend(throttled_memory(host));
    findings.push(processor(host));
    findings.push(threads(host));
    findings.extend(huge_pages(host));
    findings
}

/// Finds a controller's groups: in a hierarchy of its own (version 1), or in the common one.
fn groups(host: &Host, controller: &str) -> Option<Groups> {
    let own = host.text("/proc/self/cgroup")?;
    let mounts = host.text("/proc/self/mountinfo")?;
    let in_first = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    let in_second = own.lines().find_map(|line| line.strip_prefix("0::"));
    let (path, version) = in_first.map(|path| (path, 1)).or(in_second.map(|path| (path, 2)))?;
    let (root, mount) = mounts.lines().find_map(|line| mounted(line, (version == 1).then_some(controller)))?;
    let inside = path.strip_prefix(root.trim_end_matches('/')).unwrap_or("").trim_start_matches('/');
    let mut folder = PathBuf::from(mount).join(inside);
    let mut folders = Vec::new();
    while folder.starts_with(mount) {
        folders.push(folder.clone());
        if !folder.pop() {
            break;
        }
    }
    Some(Groups { folders, version })
}

/// Root and mount point of a line of mountinfo, if it is the common hierarchy or that of a controller.
fn mounted<'a>(line: &'a str, controller: Option<&str>) -> Option<(&'a str, &'a str)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, mount) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1).unwrap_or_default());
    let is_it = match controller {
        None => name == "cgroup2",
        Some(controller) => name == "cgroup" && options.split(',').any(|option| option == controller),
    };
    is_it.then_some((root, mount))
}

impl Groups {
    /// The tightest number in files of this name.
    fn tightest(&self, host: &Host, file: &str) -> Option<Bound> {
        let limits = self.folders.iter().filter_map(|folder| {
            let limit = host.number(folder.join(file)).filter(|&limit| limit < NO_LIMIT)?;
            Some(Bound { limit, folder: folder.clone() })
        });
        limits.min_by_key(|bound| bound.limit)
    }

    fn file(&self, first: &'static str, second: &'static str) -> &'static str {
        if self.version == 1 { first } else { second }
    }
}

fn memory(host: &Host) -> Finding {
    const NAME: &str = "memory";
    let Some(groups) = groups(host, "memory") else {
        return Finding::ok(TOPIC, NAME, "no control group for memory");
    };
    let file = groups.file("memory.limit_in_bytes", "memory.max");
    let machine = host.text("/proc/meminfo").and_then(|text| meminfo(&text, "MemTotal")).unwrap_or(u64::MAX);
    let bound = groups.tightest(host, file).filter(|bound| bound.limit < machine);
    let Some(Bound { limit, folder }) = bound else {
        return Finding::ok(TOPIC, NAME, format!("no limit; {CHARGED}"));
    };
    let used = host.number(folder.join(groups.file("memory.usage_in_bytes", "memory.current"))).unwrap_or(0);
    // The engine knows the limits of version 2 only.
    let refused = match groups.version {
        1 => "A pool that exceeds what is left wakes the kernel's out-of-memory killer",
        _ => "A pool above it is refused, and one that exceeds what is left wakes the kernel's out-of-memory killer",
    };
    Finding::limited(TOPIC, NAME, format!("{} at most, {} in use, caches included ({file})", size(limit), size(used)))
        .means(format!("{CHARGED}; what a peer writes into it later costs that peer nothing. {refused}"))
        .mends(raise(host, &groups, &folder, file, "MemoryMax", "docker update --memory 16g --memory-swap 16g …"))
}

/// How a limit is lifted: by the service's own manager, by the container's, or in the file itself.
fn raise(host: &Host, groups: &Groups, folder: &std::path::Path, file: &str, key: &str, container: &str) -> Vec<Mend> {
    let unit = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_unit = [".service", ".scope", ".slice"].iter().any(|kind| unit.ends_with(kind));
    if host.in_container() {
        let words = "Kubernetes: raise resources.limits of the pod's container";
        return vec![Mend::outside(container), Mend::advice(By::Outside, words)];
    }
    if is_unit && !key.is_empty() {
        let user = if folder.to_string_lossy().contains("/user@") { "--user " } else { "" };
        let command = format!("systemctl {user}set-property '{unit}' {key}=infinity");
        return vec![if user.is_empty() { host.as_root(&command) } else { Mend::you(command) }];
    }
    let none = if groups.version == 1 { "-1" } else { "max" };
    let none = if file == "pids.max" { "max" } else { none };
    vec![host.setting(&folder.join(file).display().to_string(), none)]
}

/// `memory.high`: beyond it the kernel makes whoever asks wait.
fn throttled_memory(host: &Host) -> Option<Finding> {
    let groups = groups(host, "memory").filter(|groups| groups.version == 2)?;
    let Bound { limit, folder } = groups.tightest(host, "memory.high")?;
    let used = host.number(folder.join("memory.current")).unwrap_or(0);
    let found = format!("beyond {} the kernel makes this group wait; {} in use", size(limit), size(used));
    Some(
        Finding::limited(TOPIC, "memory.high", found)
            .means("making a pool beyond it takes very long, and pages of pools may be swapped out")
            .mends(raise(
                host,
                &groups,
                &folder,
                "memory.high",
                "MemoryHigh",
                "docker run … without --memory-reservation",
            )),
    )
}

fn processor(host: &Host) -> Finding {
    const NAME: &str = "processor time";
    let Some(groups) = groups(host, "cpu") else {
        return Finding::ok(TOPIC, NAME, "no control group for processor time");
    };
    let shares = groups.folders.iter().filter_map(|folder| {
        let (quota, period) = if groups.version == 1 {
            (host.word(folder.join("cpu.cfs_quota_us"))?, host.word(folder.join("cpu.cfs_period_us"))?)
        } else {
            let text = host.word(folder.join("cpu.max"))?;
            text.split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned()))?
        };
        let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
        (period > 0).then(|| (quota as f64 / period as f64, period, folder))
    });
    let Some((cores, period, folder)) = shares.min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return Finding::ok(TOPIC, NAME, "no limit");
    };
    let file = groups.file("cpu.cfs_quota_us", "cpu.max");
    Finding::limited(TOPIC, NAME, format!("{cores:.2} cores' worth in each {} ms ({file})", period / 1000))
        .means(
            "a group that has used its share stands still until the next period: busy workers use it up, and \
                transfers then take milliseconds longer or miss their deadlines",
        )
        .mends(raise(host, &groups, folder, file, "CPUQuota", "docker run … without --cpus and --cpu-quota"))
}

fn threads(host: &Host) -> Finding {
    const NAME: &str = "threads";
    let Some(groups) = groups(host, "pids") else {
        return Finding::ok(TOPIC, NAME, "no control group for threads");
    };
    let Some(Bound { limit, folder }) = groups.tightest(host, "pids.max") else {
        return Finding::ok(TOPIC, NAME, "no limit");
    };
    let used = host.number(folder.join("pids.current")).unwrap_or(0);
    let left = limit.saturating_sub(used);
    // The control thread, and the workers.
    let needs = if host.asked().workers == 0 { 0 } else { host.asked().workers as u64 + 1 };
    let found = format!("{left} of {limit} left (pids.max)");
    if left >= 2 * needs {
        return Finding::ok(TOPIC, NAME, found);
    }
    let mends = raise(host, &groups, &folder, "pids.max", "TasksMax", "docker update --pids-limit -1 …");
    let means = format!("an engine as configured takes {needs}");
    if left < needs {
        return Finding::broken(TOPIC, NAME, found).means(format!("{means}: it does not start")).mends(mends);
    }
    Finding::limited(TOPIC, NAME, found).means(format!("{means}: there is not room for two")).mends(mends)
}

/// Said only where there is a limit: few hosts have one.
fn huge_pages(host: &Host) -> Option<Finding> {
    let groups = groups(host, "hugetlb")?;
    let file = groups.file("hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max");
    let Bound { limit, folder } = groups.tightest(host, file)?;
    Some(
        Finding::limited(TOPIC, "huge pages", format!("{} at most ({file})", size(limit)))
            .means("pools beyond it get other pages, even if huge ones are set aside")
            .mends(raise(
                host,
                &groups,
                &folder,
                file,
                "",
                "whoever starts the container must raise its hugetlb limit",
            )),
    )
}
