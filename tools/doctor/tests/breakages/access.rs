//! `/dev/shm`, the folder, other processes, namespaces, rights.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use penstock_doctor::host::Space;
use penstock_doctor::{Call, Refusal, Status, Topic, Way};

use crate::fixture::{Fixture, assert_finding};

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EROFS: i32 = 30;
const FOLDER: &str = "/run/user/7/penstock";

/// A host whose folder is there, with this mode, and belongs to its user.
fn with_folder(mode: u32) -> Fixture {
    let mut host = Fixture::new();
    std::fs::create_dir_all(host.at(FOLDER)).unwrap();
    std::fs::set_permissions(host.at(FOLDER), std::fs::Permissions::from_mode(mode)).unwrap();
    host.system.user = std::fs::metadata(host.at(FOLDER)).unwrap().uid();
    host
}

#[test]
fn a_small_or_absent_dev_shm_is_named_though_penstock_does_not_use_it() {
    let mut host = Fixture::new();
    host.system.shm = Space { bytes: 64 << 20, bytes_free: 63 << 20, has_files_free: true };
    let finding = host.one(Topic::Shm, "/dev/shm");
    assert_finding(&finding, Status::Limited, "64 MiB, 63 MiB of it free", "sudo mount -o remount,size=50% /dev/shm");
    assert!(finding.means.unwrap().starts_with("nothing for Penstock"));
    host.remove("/dev/shm");
    assert_finding(&host.one(Topic::Shm, "/dev/shm"), Status::Missing, "not here", "mount -t tmpfs");
}

#[test]
fn a_folder_of_another_user_is_named() {
    let mut host = with_folder(0o700);
    host.system.user += 1;
    let finding = host.one(Topic::Folder, "place");
    assert_finding(&finding, Status::Broken, "belongs to user", "set `engine.directory`");
    assert!(finding.mends[1].text().contains(&format!("chown {} {FOLDER}", host.system.user)), "{finding:?}");
}

#[test]
fn a_folder_that_cannot_be_written_or_made_is_named() {
    let mut host = with_folder(0o700);
    host.system.barred.insert(PathBuf::from(FOLDER), EROFS);
    let finding = host.one(Topic::Folder, "place");
    assert_finding(&finding, Status::Broken, "is on a read-only file system", "set `engine.directory`");
    host.remove(FOLDER);
    host.system.barred.insert(PathBuf::from("/run/user/7"), EACCES);
    assert_finding(
        &host.one(Topic::Folder, "place"),
        Status::Broken,
        "/run/user/7 cannot be written",
        "XDG_RUNTIME_DIR",
    );
    host.write(FOLDER, "a file");
    assert_finding(&host.one(Topic::Folder, "place"), Status::Broken, "is no folder", "set `engine.directory`");
}

#[test]
fn a_folder_that_others_can_write_is_named() {
    let host = with_folder(0o777);
    assert_finding(&host.one(Topic::Folder, "place"), Status::Broken, "mode 0777", &format!("chmod go-w {FOLDER}"));
    let host = with_folder(0o1777);
    let finding = host.one(Topic::Folder, "place");
    assert_finding(&finding, Status::Broken, "mode 1777", "chmod go-w");
    assert!(finding.mends[1].text().contains("set `engine.directory`"), "{finding:?}");
}

#[test]
fn a_folder_that_is_a_link_is_named() {
    let host = with_folder(0o700);
    std::fs::rename(host.at(FOLDER), host.at("/elsewhere")).unwrap();
    std::os::unix::fs::symlink("/elsewhere", host.at(FOLDER)).unwrap();
    let finding = host.one(Topic::Folder, "place");
    assert_finding(&finding, Status::Broken, "is a symbolic link", "set `engine.directory`");
}

#[test]
fn a_path_too_long_for_a_socket_is_named() {
    let mut host = Fixture::new();
    host.asked.folder = PathBuf::from("/run/user/7").join("x".repeat(90));
    assert_finding(&host.one(Topic::Folder, "path length"), Status::Broken, "109 bytes", "shorter path");
    host.asked.folder = PathBuf::from("/run/user/7").join("x".repeat(70));
    assert_finding(&host.one(Topic::Folder, "path length"), Status::Limited, "leaves 19 bytes", "shorter path");
}

#[test]
fn sockets_of_killed_engines_are_named() {
    let mut host = with_folder(0o700);
    for name in ["dead", "live"] {
        drop(UnixListener::bind(host.at(&format!("{FOLDER}/{name}.sock"))).unwrap());
    }
    host.system.silent.insert(PathBuf::from(format!("{FOLDER}/dead.sock")));
    let finding = host.one(Topic::Folder, "sockets");
    assert_finding(&finding, Status::Limited, "1 engine here; nobody answers", &format!("rm {FOLDER}/dead.sock"));
}

#[test]
fn each_ptrace_scope_is_named_with_what_it_forbids() {
    let mut host = Fixture::new();
    host.system.refused.insert(Call::CopyOther, Refusal::Errno(EPERM));
    for (scope, found, mend) in [
        ("1\n", "its own children only", "sudo sysctl -w kernel.yama.ptrace_scope=0"),
        ("2\n", "only root", "sudo sysctl -w kernel.yama.ptrace_scope=0"),
        ("3\n", "until the next boot", "reboot"),
    ] {
        host.write("/proc/sys/kernel/yama/ptrace_scope", scope);
        let findings = host.only(&[(Topic::ProcessVm, "ptrace scope"), (Topic::ProcessVm, "copying")]);
        assert_finding(&findings[0], Status::Missing, found, mend);
        assert!(findings[1].found.contains("as the ptrace scope says"), "{findings:?}");
    }
    let report = host.report();
    assert!(report.ok, "bytes take another path");
    let path = report.paths.iter().find(|path| path.path == Way::ProcessVm).unwrap();
    assert_eq!(path.lacks, ["process_vm: ptrace scope", "process_vm: copying"]);
}

#[test]
fn a_process_that_nobody_may_look_into_is_named_with_its_program() {
    let mut host = Fixture::new();
    host.system.is_dumpable = false;
    host.system.refused.insert(Call::CopyOther, Refusal::Errno(EPERM));
    let findings = host.only(&[(Topic::ProcessVm, "dumpable"), (Topic::ProcessVm, "copying")]);
    assert_finding(&findings[0], Status::Missing, "not even processes of this user", "chmod u+r,go+r /opt/penstock");
    assert!(findings[1].found.contains("not dumpable"), "{findings:?}");
}

#[test]
fn a_filter_against_process_vm_is_told_from_a_forbidden_process() {
    let mut host = Fixture::new();
    host.edit("/proc/4711/status", "Seccomp:\t0", "Seccomp:\t2");
    host.system.refused.insert(Call::CopyOther, Refusal::Errno(EPERM));
    let finding = host.one(Topic::ProcessVm, "copying");
    assert!(finding.found.contains("a security module does"), "the call itself is let through: {finding:?}");
    host.system.refused.insert(Call::CopySelf, Refusal::Errno(EPERM));
    let findings = host.only(&[(Topic::ProcessVm, "copying"), (Topic::Seccomp, "filter")]);
    assert_finding(&findings[0], Status::Missing, "a seccomp filter forbids it", "process_vm_readv, process_vm_writev");
}

#[test]
fn a_user_namespace_is_named_with_its_map() {
    let host = Fixture::new();
    host.link("/proc/4711/ns/user", "user:[4026532177]");
    host.write("/proc/4711/uid_map", "         0       1000          1\n");
    let found = "user 0 here is 1000 outside";
    assert_finding(&host.one(Topic::Namespaces, "user namespace"), Status::Limited, found, "in one user namespace");
    host.write("/proc/4711/uid_map", "0 100000 65536\n");
    let found = "users 0-65535 here are 100000-165535 outside";
    assert_finding(&host.one(Topic::Namespaces, "user namespace"), Status::Limited, found, "in one user namespace");
    host.write("/proc/4711/uid_map", "");
    assert!(host.one(Topic::Namespaces, "user namespace").found.contains("no users mapped"));
}

#[test]
fn a_pid_namespace_and_a_proc_of_another_are_named() {
    let host = Fixture::new();
    host.link("/proc/4711/ns/pid", "pid:[4026532178]");
    let finding = host.one(Topic::Namespaces, "pid namespace");
    assert_finding(&finding, Status::Limited, "one of its own", "in one pid namespace");
    host.link("/proc/5000", "4711");
    host.link("/proc/self", "5000");
    let findings = host.only(&[(Topic::Namespaces, "pid namespace"), (Topic::Namespaces, "/proc")]);
    assert_finding(&findings[1], Status::Limited, "this process is 4711, and 5000 there", "sudo mount -t proc");
}

#[test]
fn no_new_privileges_is_named() {
    let host = Fixture::new();
    host.edit("/proc/4711/status", "NoNewPrivs:\t0", "NoNewPrivs:\t1");
    let finding = host.one(Topic::Seccomp, "new privileges");
    assert_finding(&finding, Status::Limited, "no_new_privs", "open a new login");
    assert!(finding.means.unwrap().contains("sudo"));
}

#[test]
fn a_security_module_is_named_without_being_blamed() {
    let host = Fixture::new();
    host.write("/proc/4711/attr/current", "docker-default (enforce)\n");
    let report = host.report();
    let finding = report.find(Topic::Seccomp, "security module").unwrap();
    assert_eq!(finding.status, Status::Ok);
    assert!(finding.found.contains("`docker-default (enforce)`"), "{finding:?}");
}
