//! User, pid and mount namespaces, where this kernel lets users make them.

use std::path::Path;
use std::process::Command;

use crate::broken::{Found, Place, skip};
use crate::run::finish;

/// Runs a shell line, in which `$DOCTOR` is the command, in namespaces of its own; or says why that cannot be.
fn in_namespaces(test: &str, options: &[&str], line: &str) -> Option<Found> {
    let test = format!("namespaces::{test}");
    let program = Path::new("/usr/bin/unshare");
    if !program.exists() {
        skip(&test, "needs path:/usr/bin/unshare");
        return None;
    }
    let place = Place::ordinary();
    let options = [&["--user", "--map-root-user"], options].concat();
    let probe = finish(&mut place.around(Command::new(program), &[&options[..], &["true"]].concat()));
    if probe.status != 0 {
        skip(&test, &format!("this system lets users make no namespaces ({})", probe.err.trim()));
        return None;
    }
    let mut command = place.around(Command::new(program), &[&options[..], &["sh", "-c", line]].concat());
    command.env("DOCTOR", format!("{} doctor --json", place.program().display()));
    Some(Found::of(&mut command))
}

#[test]
fn a_user_namespace_is_named_with_its_map_and_engines_work_in_it() {
    let test = "a_user_namespace_is_named_with_its_map_and_engines_work_in_it";
    let Some(found) = in_namespaces(test, &[], "exec $DOCTOR") else { return };
    found.assert("namespaces", "user namespace", "limited", "one of its own: user 0 here is ", "user");
    assert_eq!((found.status, found.find("kernel", "sealed memory")["status"].as_str()), (0, Some("ok")));
}

#[test]
fn a_pid_namespace_is_named_and_so_is_a_proc_of_another() {
    let test = "a_pid_namespace_is_named_and_so_is_a_proc_of_another";
    let pids = ["--pid", "--fork"];
    let Some(found) = in_namespaces(test, &pids, "exec $DOCTOR") else { return };
    found.assert("namespaces", "pid namespace", "limited", "one of its own", "pid");
    found.assert("namespaces", "/proc", "limited", "this process is 1, and ", "mount -t proc proc /proc");
    let Some(found) = in_namespaces(test, &[&pids[..], &["--mount-proc"]].concat(), "exec $DOCTOR namespaces") else {
        return;
    };
    found.assert("namespaces", "pid namespace", "limited", "one of its own", "pid");
    assert!(!format!("{found:?}").contains("shows another pid namespace"), "{found:?}");
}

#[test]
fn a_tiny_dev_shm_is_named() {
    let line = "mount -t tmpfs -o size=1m shm /dev/shm && exec $DOCTOR shm";
    let Some(found) = in_namespaces("a_tiny_dev_shm_is_named", &["--mount"], line) else { return };
    found.assert("shm", "/dev/shm", "limited", "1 MiB, 1 MiB of it free", "shm");
}

#[test]
fn a_place_without_proc_is_looked_at_as_far_as_it_goes() {
    let test = "a_place_without_proc_is_looked_at_as_far_as_it_goes";
    let line = "mount -t tmpfs nothing /proc && exec $DOCTOR";
    let Some(found) = in_namespaces(test, &["--mount"], line) else { return };
    found.assert("kernel", "version", "unknown", "/proc cannot be read", "mount -t proc proc /proc");
    assert_eq!(
        found.find("kernel", "sealed memory")["status"],
        "ok",
        "tried in this process, for want of its own path"
    );
    assert_eq!(found.find("namespaces", "user namespace")["status"], "unknown");
}
