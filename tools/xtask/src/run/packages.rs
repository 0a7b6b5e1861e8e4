//! What labs need besides Rust: programs of Debian packages, installed where that is possible.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::process;
use super::skips::{finds_command, is_root};

/// A program and the package it is in.
struct Tool {
    command: &'static str,
    package: &'static str,
}

const fn tool(command: &'static str, package: &'static str) -> Tool {
    Tool { command, package }
}

/// Everything that a lab runs and a build does not need.
const TOOLS: [Tool; 13] = [
    tool("valgrind", "valgrind"),
    tool("addr2line", "binutils"),
    tool("ip", "iproute2"),
    tool("nft", "nftables"),
    tool("pkg-config", "pkg-config"),
    tool("python3", "python3-venv"),
    // The virtual machine of the RDMA labs, and what runs in it.
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("busybox", "busybox-static"),
    tool("cpio", "cpio"),
    tool("depmod", "kmod"),
    tool("xz", "xz-utils"),
    tool("ibv_devinfo", "ibverbs-utils"),
    tool("ib_write_bw", "perftest"),
];

/// A file that no command shows, and the package it is in.
struct File {
    path: &'static str,
    package: &'static str,
}

const fn file(path: &'static str, package: &'static str) -> File {
    File { path, package }
}

/// What a lab compiles with, or loads.
const FILES: [File; 6] = [
    file("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    file("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    file("/usr/lib/llvm-14/lib/libclang.so.1", "libclang-14-dev"),
    file("/usr/include/dpdk/rte_ethdev.h", "libdpdk-dev"),
    file("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    file("/usr/lib/x86_64-linux-gnu/librdmacm.so.1", "librdmacm1"),
];

/// Somebody else may be installing, and a network may fail for a moment.
const PATIENT: [&str; 4] = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"];

/// Longest time that the package manager may take.
const LIMIT: Duration = Duration::from_secs(900);

/// Installs what is missing, as root and where there is `apt-get`; says what is still missing otherwise. A lab that misses
/// something then says so itself.
pub(crate) fn provide() {
    let missing = missing(finds_command, |path| Path::new(path).exists());
    if missing.is_empty() {
        return;
    }
    let packages = missing.join(" ");
    if !is_root() || !finds_command("apt-get") {
        println!("labs: some need packages that are not installed: apt-get install {packages}");
        return;
    }
    println!("labs: installing {packages}");
    // The lists of packages may be absent or old: they are fetched only if it does not go without. A package that this system
    // does not know keeps none of the others away.
    if install(&missing).is_ok() {
        return;
    }
    let updated = apt_get(&["update"]);
    if updated.is_ok() && install(&missing).is_ok() {
        return;
    }
    for package in missing {
        if let Err(why) = install(&[package]) {
            println!("labs: {package} could not be installed: {why}");
        }
    }
    if let Err(why) = updated {
        println!("labs: the lists of packages could not be fetched: {why}");
    }
}

/// The packages of the tools and files that are not found.
fn missing(finds: impl Fn(&str) -> bool, exists: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let tools = TOOLS.iter().filter(|tool| !finds(tool.command)).map(|tool| tool.package);
    let files = FILES.iter().filter(|file| !exists(file.path)).map(|file| file.package);
    tools.chain(files).collect()
}

fn install(packages: &[&str]) -> Result<(), String> {
    apt_get(&[&["install", "--yes", "--no-install-recommends"], packages].concat())
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let mut last = String::new();
    let mut command = Command::new("apt-get");
    command.args(PATIENT).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let ended = process::run(&mut command, LIMIT, |line| last = line.to_owned())?;
    if ended.is_success() { Ok(()) } else { Err(format!("apt-get {}: {last}", arguments.join(" "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_found_is_missing() {
        assert_eq!(missing(|_| true, |_| true), Vec::<&str>::new());
        assert_eq!(missing(|command| command != "addr2line", |_| true), ["binutils"]);
        assert_eq!(missing(|_| true, |path| !path.ends_with("verbs.h")), ["libibverbs-dev"]);
        assert_eq!(missing(|_| false, |_| false).len(), TOOLS.len() + FILES.len());
    }
}
