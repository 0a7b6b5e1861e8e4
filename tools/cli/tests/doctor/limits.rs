//! Limits of processes, cores, rights.

use std::os::unix::fs::PermissionsExt;

use crate::broken::{Found, Place, limited, limited_to, own_mend, pinned, skip, without_new_privileges};
use crate::run::finish;

#[test]
fn too_few_open_files_are_broken_and_the_status_says_so() {
    let place = Place::new();
    let found = Found::of(limited(&mut place.command(&[]), libc::RLIMIT_NOFILE, 20));
    assert_eq!((found.changed(&place.whole()), found.status), (vec!["limits: open files".to_owned()], 1));
    found.assert("limits", "open files", "broken", "20, too few for an engine and one peer", "65536");
}

#[test]
fn a_soft_limit_of_open_files_is_raised_by_the_mend() {
    let place = Place::new();
    let found = Found::of(limited_to(&mut place.command(&["files"]), libc::RLIMIT_NOFILE, 64, 4096));
    found.assert("limits", "open files", "limited", "64, enough for about 5 peers", "ulimit -n 4096");
    let mend = own_mend(found.find("limits", "open files"));
    let mended = Found::of(limited_to(&mut place.mended(&mend, "limits"), libc::RLIMIT_NOFILE, 64, 4096));
    assert_eq!(mended.find("limits", "open files")["status"], "ok", "{mend}");
}

#[test]
fn locked_memory_is_limited_for_an_ordinary_user() {
    let place = Place::ordinary();
    let found = Found::of(limited(&mut place.command(&["memlock"]), libc::RLIMIT_MEMLOCK, 64 << 10));
    found.assert("limits", "locked memory", "limited", "64 KiB", "memlock");
    assert_eq!(found.status, 0, "this release locks nothing");
}

#[test]
fn a_limit_of_file_sizes_that_kills_engines_does_not_kill_the_doctor() {
    let place = Place::new();
    let found = Found::of(limited(&mut place.command(&[]), libc::RLIMIT_FSIZE, 4096));
    assert_eq!(found.changed(&place.whole()), ["kernel: sealed memory", "limits: file size"]);
    found.assert(
        "kernel",
        "sealed memory",
        "broken",
        "the file size limit kills whoever tries",
        "penstock doctor limits",
    );
    found.assert("limits", "file size", "limited", "4 KiB", "fsize=unlimited");
}

#[test]
fn a_limited_address_space_is_named() {
    let place = Place::new();
    let found = Found::of(limited(&mut place.command(&[]), libc::RLIMIT_AS, 1 << 30));
    assert_eq!((found.changed(&place.whole()), found.status), (vec!["limits: address space".to_owned()], 0));
    found.assert("limits", "address space", "limited", "1 GiB", "unlimited");
}

#[test]
fn a_user_who_may_start_nothing_more_gets_a_report_all_the_same() {
    let place = Place::ordinary();
    let found = Found::of(limited(&mut place.command(&["kernel", "limits"]), libc::RLIMIT_NPROC, 0));
    found.assert("kernel", "threads", "broken", "a limit is reached", "penstock doctor limits");
    found.assert("limits", "processes", "limited", "not one more can be started", "unlimited");
    let untried = found.find("kernel", "sealed memory");
    assert_eq!(untried["status"], "unknown");
    assert!(untried["found"].as_str().unwrap().contains("no other process could be started"), "{untried}");
}

#[test]
fn one_core_of_several_is_named() {
    let place = Place::new();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    if online.trim() == "0" {
        return skip("limits::one_core_of_several_is_named", "this machine has one core");
    }
    let core = allowed.split(['-', ',']).next().unwrap().parse().unwrap();
    let found = Found::of(pinned(&mut place.command(&["processor"]), core));
    found.assert("processor", "cores", "limited", "1 of ", "taskset -pc 0-");
    let mended = Found::of(pinned(&mut place.mended(&own_mend(found.find("processor", "cores")), "processor"), core));
    assert_eq!(mended.find("processor", "cores")["status"], place.whole().find("processor", "cores")["status"]);
    let config = place.folder.write("mine.yaml", &format!("workers: {{ cores: [{}] }}\n", core + 1));
    let found = Found::of(pinned(&mut place.command(&["cpu", "--config", &config]), core));
    found.assert("processor", "workers.cores", "limited", &format!("core {}", core + 1), "workers.cores");
}

#[test]
fn no_new_privileges_is_named() {
    let place = Place::new();
    let found = Found::of(without_new_privileges(&mut place.command(&[])));
    let whole = place.whole();
    if whole.find("seccomp", "new privileges")["status"] == "ok" {
        assert_eq!(found.changed(&whole), ["seccomp: new privileges"]);
    }
    found.assert("seccomp", "new privileges", "limited", "no_new_privs", "open a new login");
}

/// The kernel lets nobody look into a program whose file its user cannot read.
#[test]
fn a_program_that_nobody_may_look_into_is_named() {
    let place = Place::ordinary();
    let whole = place.whole();
    std::fs::set_permissions(place.program(), std::fs::Permissions::from_mode(0o111)).unwrap();
    if place.program().metadata().unwrap().permissions().mode() & 0o777 != 0o111 {
        return skip("limits::a_program_that_nobody_may_look_into_is_named", "this file system has no modes");
    }
    let found = Found::of(&mut place.command(&["process_vm"]));
    found.assert("process_vm", "dumpable", "missing", "not even processes of this user", "chmod u+r");
    if whole.find("process_vm", "copying")["status"] == "ok" {
        let mend = "penstock doctor process_vm";
        found.assert("process_vm", "copying", "missing", "because this process is not dumpable", mend);
    }
    assert_eq!(found.status, 0, "bytes take another path");
}

/// For people: the broken thing stands out, and its mend beside it.
#[test]
fn the_text_names_the_broken_thing_and_its_mend() {
    let place = Place::new();
    let mut command = place.around(std::process::Command::new(place.program()), &["doctor"]);
    let ran = finish(limited(&mut command, libc::RLIMIT_NOFILE, 20));
    assert_eq!((ran.status, ran.err.as_str()), (1, ""), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    let at = lines.iter().position(|line| line.contains("open files       BROKEN   20, too few")).unwrap();
    assert!(lines[at + 1].trim_start().starts_with("means "), "{}", ran.out);
    assert!(lines[at + 2].contains("65536"), "{}", ran.out);
    for path in ["local", "shm"] {
        let head = format!("{path:<16} no ");
        assert!(lines.iter().any(|line| line.contains(&head)), "{}", ran.out);
    }
    assert!(ran.out.contains("1 thing that this release needs does not work here"), "{}", ran.out);
}
