//! Filters of system calls, as containers and services put them on.

use crate::broken::{Filter, Found, Place, filtered};

/// What has changed but for the filter itself, which must be named, and no-new-privileges, which filters need. Both
/// may have been there before.
fn changed(found: &Found, whole: &Found) -> Vec<String> {
    assert_eq!(found.find("seccomp", "filter")["status"], "limited");
    found.changed(whole).into_iter().filter(|name| !name.starts_with("seccomp: ")).collect()
}

#[test]
fn forbidden_memfds_are_broken_with_the_calls_to_let_through() {
    let place = Place::new();
    let found = Found::of(filtered(&mut place.command(&[]), libc::SYS_memfd_create, Filter::Refuse(libc::EPERM)));
    assert_eq!(changed(&found, &place.whole()), ["kernel: sealed memory"]);
    found.assert("kernel", "sealed memory", "broken", "a seccomp filter forbids it", "memfd_create, ftruncate");
    found.assert("seccomp", "filter", "limited", "memfd_create", "whoever set the seccomp filter");
    assert_eq!(found.status, 1);
}

#[test]
fn a_filter_that_kills_does_not_kill_the_doctor() {
    let place = Place::new();
    let found = Found::of(filtered(&mut place.command(&[]), libc::SYS_memfd_create, Filter::Kill));
    assert_eq!(changed(&found, &place.whole()), ["kernel: sealed memory"]);
    found.assert("kernel", "sealed memory", "broken", "a seccomp filter kills whoever tries", "memfd_create");
}

#[test]
fn forbidden_event_fds_are_broken() {
    let place = Place::new();
    let found = Found::of(filtered(&mut place.command(&["kernel"]), libc::SYS_eventfd2, Filter::Refuse(libc::EPERM)));
    found.assert("kernel", "event fds", "broken", "a seccomp filter forbids it", "eventfd2");
    assert_eq!(found.status, 1);
}

#[test]
fn forbidden_copies_between_processes_are_missing_but_not_broken() {
    let place = Place::new();
    let whole = place.whole();
    let forbidden = |call| Found::of(filtered(&mut place.command(&[]), call, Filter::Refuse(libc::EPERM)));
    let found = forbidden(libc::SYS_process_vm_readv);
    if whole.find("process_vm", "copying")["status"] == "ok" {
        assert_eq!(changed(&found, &whole), ["process_vm: copying"]);
        let half = forbidden(libc::SYS_process_vm_writev);
        assert_eq!(changed(&half, &whole), ["process_vm: copying"], "one direction is not enough");
    }
    found.assert(
        "process_vm",
        "copying",
        "missing",
        "a seccomp filter forbids it",
        "process_vm_readv, process_vm_writev",
    );
    assert_eq!(found.find("process_vm", "copying")["paths"], serde_json::json!(["process_vm"]));
    assert_eq!(found.status, 0);
}

#[test]
fn an_absent_pidfd_is_missing_but_not_broken() {
    let place = Place::new();
    let found = Found::of(filtered(&mut place.command(&[]), libc::SYS_pidfd_open, Filter::Refuse(libc::ENOSYS)));
    assert_eq!(changed(&found, &place.whole()), ["kernel: pidfd"]);
    found.assert("kernel", "pidfd", "missing", "hides it, or the kernel lacks it (it needs Linux 5.3)", "pidfd_open");
    assert_eq!(found.status, 0);
}

#[test]
fn forbidden_rings_are_missing_but_not_broken() {
    let place = Place::new();
    let whole = place.whole();
    let filter = Filter::Refuse(libc::EPERM);
    let found = Found::of(filtered(&mut place.command(&[]), libc::SYS_io_uring_setup, filter));
    if whole.find("io_uring", "rings")["status"] == "ok" {
        assert_eq!(changed(&found, &whole), ["io_uring: rings"]);
        found.assert("io_uring", "rings", "missing", "a seccomp filter forbids it", "io_uring_setup");
    }
    assert_eq!((found.find("io_uring", "rings")["status"].as_str(), found.status), (Some("missing"), 0));
}

#[test]
fn forbidden_placing_is_named_where_there_are_nodes_to_choose_from() {
    let place = Place::new();
    let found =
        Found::of(filtered(&mut place.command(&["numa", "seccomp"]), libc::SYS_mbind, Filter::Refuse(libc::EPERM)));
    found.assert("seccomp", "filter", "limited", "mbind get_mempolicy", "whoever set the seccomp filter");
    let placing = found.find("numa", "placing");
    assert!(placing["found"].as_str().unwrap().contains("a seccomp filter forbids it"), "{placing}");
    let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let status = if nodes.contains(['-', ',']) { "limited" } else { "ok" };
    assert_eq!(placing["status"], status, "with one node it costs nothing: {placing}");
}
