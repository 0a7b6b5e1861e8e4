//! A lab: the doctor in namespaces and control groups, and its mends, run as they stand.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penstock_conformance::kernel::{HUGE_PAGES, KernelSetting};
use penstock_conformance::skip;
use serde_json::Value;

const DOCTOR: &str = env!("CARGO_BIN_EXE_penstock-conformance-doctor");

/// Far longer than an examination takes, also on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether this lab can run; says why not.
fn can_run(test: &str, commands: &[&str]) -> bool {
    let lacks = commands.iter().find(|name| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        !std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
    });
    let reason = skip::lab_reason().map(str::to_owned);
    let reason = reason.or_else(|| lacks.map(|name| format!("needs command:{name}")));
    let reason = reason.or_else(|| (!is_real_root()).then(|| "needs root that may mount (CAP_SYS_ADMIN)".to_owned()));
    match reason {
        Some(reason) => skip::report(test, &reason),
        None => return true,
    }
    false
}

/// Root of a container may be root in name only.
fn is_real_root() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(bits.trim(), 16).unwrap() >> CAP_SYS_ADMIN & 1 == 1
}

/// A report.
#[derive(Debug)]
struct Found(Value);

impl Found {
    /// Runs a shell line in which `$DOCTOR` is the doctor.
    fn by(line: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("DOCTOR", DOCTOR).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let until = Instant::now() + LIMIT;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        Self(serde_json::from_str(&text).unwrap_or_else(|error| panic!("`{line}` printed {text:?}: {error}")))
    }

    fn ok(&self) -> bool {
        self.0["ok"].as_bool().unwrap()
    }

    fn find(&self, topic: &str, name: &str) -> Option<&Value> {
        self.0["findings"].as_array().unwrap().iter().find(|one| one["topic"] == topic && one["name"] == name)
    }

    fn status(&self, topic: &str, name: &str) -> &str {
        self.find(topic, name).unwrap_or_else(|| panic!("no {name} in {self:?}"))["status"].as_str().unwrap()
    }

    /// Asserts how a thing stands and what was found; answers its first command.
    #[track_caller]
    fn assert(&self, topic: &str, name: &str, status: &str, found: &str) -> String {
        let finding = self.find(topic, name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        assert_eq!(finding["status"], status, "{finding:#}");
        assert!(finding["found"].as_str().unwrap().contains(found), "{finding:#}");
        let mends = finding["mends"].as_array().unwrap();
        assert!(!mends.is_empty(), "{finding:#}");
        mends.iter().find_map(|mend| mend["command"].as_str()).unwrap_or_default().to_owned()
    }
}

#[test]
fn in_a_user_namespace_engines_work_and_the_map_is_named() {
    const NAME: &str = "in_a_user_namespace_engines_work_and_the_map_is_named";
    if !can_run(NAME, &["unshare"]) {
        return;
    }
    let found = Found::by("exec unshare --user --map-root-user $DOCTOR");
    found.assert("namespaces", "user namespace", "limited", "user 0 here is 0 outside");
    assert!(found.ok(), "{found:?}");
    // Two processes inside reach each other as two outside do.
    let outside = Found::by("exec $DOCTOR process_vm");
    assert_eq!(found.status("process_vm", "copying"), outside.status("process_vm", "copying"));
    // Root in there is not root of the host: the limit binds it.
    assert_eq!(Found::by("ulimit -l 64; exec $DOCTOR limits").status("limits", "locked memory"), "ok");
    let bound = Found::by("ulimit -l 64; exec unshare --user --map-root-user $DOCTOR limits");
    bound.assert("limits", "locked memory", "limited", "64 KiB");
}

#[test]
fn in_a_pid_namespace_engines_work_and_a_foreign_proc_is_named() {
    const NAME: &str = "in_a_pid_namespace_engines_work_and_a_foreign_proc_is_named";
    if !can_run(NAME, &["unshare"]) {
        return;
    }
    let found = Found::by("exec unshare --pid --fork $DOCTOR");
    found.assert("namespaces", "pid namespace", "limited", "one of its own");
    let mend = found.assert("namespaces", "/proc", "limited", "this process is 1, and ");
    assert!(found.ok() && mend.ends_with("mount -t proc proc /proc"), "{mend}");
    // The mend mends: in a mount namespace, so that only this test sees it.
    let mend = mend.trim_start_matches("sudo ");
    let mended = Found::by(&format!("exec unshare --pid --fork --mount sh -c '{mend} && exec $DOCTOR'"));
    assert!(mended.find("namespaces", "/proc").is_none(), "{mended:?}");
    assert_eq!(mended.status("kernel", "pidfd"), found.status("kernel", "pidfd"));
    let outside = Found::by("exec $DOCTOR process_vm");
    assert_eq!(mended.status("process_vm", "copying"), outside.status("process_vm", "copying"));
}

#[test]
fn a_tiny_and_an_absent_dev_shm_are_named() {
    const NAME: &str = "a_tiny_and_an_absent_dev_shm_are_named";
    if !can_run(NAME, &["unshare", "mount"]) {
        return;
    }
    let tiny = "mount -t tmpfs -o size=1m shm /dev/shm";
    let found = Found::by(&format!("exec unshare --mount sh -c '{tiny} && exec $DOCTOR shm'"));
    let mend = found.assert("shm", "/dev/shm", "limited", "1 MiB, 1 MiB of it free");
    assert!(mend.contains("shm"), "{mend}");
    let found = Found::by("exec unshare --mount sh -c 'mount -t tmpfs dev /dev && exec $DOCTOR shm </proc/self/fd/0'");
    let mend = found.assert("shm", "/dev/shm", "missing", "it is not here");
    let mended = Found::by(&format!(
        "exec unshare --mount sh -c \"mount -t tmpfs dev /dev && {} && exec $DOCTOR shm </proc/self/fd/0\"",
        mend.trim_start_matches("sudo ")
    ));
    assert_eq!(mended.status("shm", "/dev/shm"), "ok");
}

/// A control group of this lab's own.
struct Group(PathBuf);

impl Group {
    /// In a hierarchy of the controller's own, or in the common one.
    fn of(controller: &str) -> Option<Self> {
        let own = PathBuf::from("/sys/fs/cgroup").join(controller);
        let common = Path::new("/sys/fs/cgroup");
        let controllers = std::fs::read_to_string(common.join("cgroup.subtree_control")).unwrap_or_default();
        let parent = if own.join("cgroup.procs").exists() {
            own
        } else if controllers.split_whitespace().any(|name| name == controller) {
            common.to_owned()
        } else {
            return None;
        };
        let group = parent.join(format!("penstock-lab-{}-{controller}", std::process::id()));
        std::fs::create_dir(&group).unwrap();
        Some(Self(group))
    }

    /// Writes the first of these files that is there.
    fn set(&self, files: &[&str], value: &str) {
        let file = files.iter().map(|file| self.0.join(file)).find(|file| file.exists()).unwrap();
        std::fs::write(file, value).unwrap();
    }

    fn examined(&self) -> Found {
        Found::by(&format!("echo 0 > {}/cgroup.procs && exec $DOCTOR cgroup", self.0.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment until it has forgotten the last process.
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_groups_memory_limit_is_named_and_its_mend_mends() {
    const NAME: &str = "a_groups_memory_limit_is_named_and_its_mend_mends";
    if !can_run(NAME, &[]) {
        return;
    }
    let Some(group) = Group::of("memory") else {
        return skip::report(NAME, "needs path:/sys/fs/cgroup/memory/cgroup.procs, or a common hierarchy with memory");
    };
    group.set(&["memory.max", "memory.limit_in_bytes"], "268435456");
    let found = group.examined();
    let mend = found.assert("cgroup", "memory", "limited", "256 MiB at most");
    assert!(found.ok() && mend.contains(&group.0.display().to_string()), "{mend}");
    let means = found.find("cgroup", "memory").unwrap()["means"].as_str().unwrap();
    assert!(means.contains("charged to whoever touches them first"), "{means}");
    assert!(Command::new("sh").args(["-c", &mend]).status().unwrap().success(), "{mend}");
    let mended = group.examined();
    let text = mended.find("cgroup", "memory").unwrap()["found"].as_str().unwrap();
    // A limit of the group around it may remain.
    assert!(!text.contains("256 MiB"), "{text}");
}

#[test]
fn a_group_without_room_for_an_engines_threads_is_broken_and_its_mend_mends() {
    const NAME: &str = "a_group_without_room_for_an_engines_threads_is_broken_and_its_mend_mends";
    if !can_run(NAME, &[]) {
        return;
    }
    let Some(group) = Group::of("pids") else {
        return skip::report(NAME, "needs path:/sys/fs/cgroup/pids/cgroup.procs, or a common hierarchy with pids");
    };
    group.set(&["pids.max"], "2");
    let found = group.examined();
    let mend = found.assert("cgroup", "threads", "broken", "1 of 2 left (pids.max)");
    assert!(!found.ok());
    assert!(Command::new("sh").args(["-c", &mend]).status().unwrap().success(), "{mend}");
    assert!(group.examined().ok());
}

/// Breaks a setting of this machine for a moment, and has the doctor's own command mend it.
fn broken_and_mended(test: &str, path: &'static str, value: &str, (topic, name, status): (&str, &str, &str)) {
    if !can_run(test, &[]) {
        return;
    }
    let Some(setting) = KernelSetting::change(path, value) else {
        return skip::report(test, &format!("needs path:{path} that can be written"));
    };
    let found = Found::by(&format!("exec $DOCTOR {topic}"));
    let mend = found.assert(topic, name, status, "");
    assert!(Command::new("sh").args(["-c", &mend]).stdout(Stdio::null()).status().unwrap().success(), "{mend}");
    let mended = Found::by(&format!("exec $DOCTOR {topic}"));
    drop(setting);
    assert_eq!(mended.status(topic, name), "ok", "{mend}");
}

#[test]
fn huge_pages_that_are_not_set_aside_are_named_and_the_mend_mends() {
    const NAME: &str = "huge_pages_that_are_not_set_aside_are_named_and_the_mend_mends";
    broken_and_mended(NAME, HUGE_PAGES, "0", ("hugepages", "set aside", "limited"));
}

#[test]
fn transparent_pages_that_are_off_are_named_and_the_mend_mends() {
    const NAME: &str = "transparent_pages_that_are_off_are_named_and_the_mend_mends";
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    broken_and_mended(NAME, path, "never", ("hugepages", "transparent", "limited"));
}

#[test]
fn rings_that_are_switched_off_are_named_and_the_mend_mends() {
    const NAME: &str = "rings_that_are_switched_off_are_named_and_the_mend_mends";
    broken_and_mended(NAME, "/proc/sys/kernel/io_uring_disabled", "2", ("io_uring", "rings", "missing"));
}

#[test]
fn the_ptrace_scope_is_named_and_the_mend_mends() {
    const NAME: &str = "the_ptrace_scope_is_named_and_the_mend_mends";
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    if !can_run(NAME, &["setpriv"]) {
        return;
    }
    let Some(_setting) = KernelSetting::change(SCOPE, "1") else {
        return skip::report(NAME, &format!("needs path:{SCOPE}, which kernels with Yama have"));
    };
    // Root is above the scope; nobody is not.
    let folder = std::env::temp_dir().join(format!("penstock-lab-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let program = folder.join("doctor");
    assert!(Command::new("cp").arg(DOCTOR).arg(&program).status().unwrap().success());
    let line = format!("exec setpriv --reuid 65534 --regid 65534 --clear-groups {} process_vm", program.display());
    let found = Found::by(&line);
    let mend = found.assert("process_vm", "ptrace scope", "missing", "its own children only");
    found.assert("process_vm", "copying", "missing", "as the ptrace scope says");
    let mend = mend.trim_start_matches("sudo ").to_owned();
    assert!(Command::new("sh").args(["-c", &mend]).stdout(Stdio::null()).status().unwrap().success(), "{mend}");
    let mended = Found::by(&line);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(mended.status("process_vm", "copying"), "ok");
}
