//! Labs: the commands of docs/DATAGRAM.md that use DPDK, as they stand there, and those between two processes with huge pages too.
//! Each runs in namespaces of its own: its addresses, its `/tmp` and its namespaces' names are nobody else's, and gone with it.

#![forbid(unsafe_code)]

#[allow(dead_code, reason = "the command is run by a shell here, and not by itself")]
#[path = "../command/run.rs"]
mod run;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Ran, finish, skip};

const PAGE: &str = include_str!("../../../../docs/DATAGRAM.md");
const SHIM: &str = "PENSTOCK_DPDK_SHIM";
/// What two processes want: their pools are not in them, DPDK's buffers are.
const HUGE_PAGES: u32 = 320;
const NR_HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Why this cannot run here, if it cannot.
fn why_not() -> Option<&'static str> {
    let are_on = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    let is_root = || fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    match () {
        () if !are_on => Some("labs run when PENSTOCK_LABS=1 is set"),
        () if std::env::var_os(SHIM).is_none() => Some("needs the library that `make dpdk` builds"),
        () if !is_root() => Some("needs root"),
        () => None,
    }
}

/// The indented lines after the one that begins so, to the next that is not indented.
fn block(begins: &str) -> Vec<&'static str> {
    let after = PAGE.lines().skip_while(|line| !line.starts_with(begins)).skip(1);
    let indented = after.skip_while(|line| !line.starts_with("    ")).take_while(|line| line.starts_with("    "));
    let lines: Vec<_> = indented.map(|line| line[4..].split(" # ").next().unwrap_or_default().trim_end()).collect();
    assert!(!lines.is_empty(), "docs/DATAGRAM.md has no commands after `{begins}`");
    lines
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs the lines as a user types them: what serves is waited for, and asked to end behind the last. `before` comes first.
fn type_in(before: &str, lines: &[&str]) -> Ran {
    let mut script = format!(
        "set -e; mount -t tmpfs none /mnt; mkdir -p /mnt/bin /run/netns; touch /mnt/bin/penstock /mnt/shim\n\
         mount --bind {program} /mnt/bin/penstock; mount --bind \"${SHIM}\" /mnt/shim; cp -r {repository}/configs /mnt\n\
         mount -t tmpfs none /run/netns; mount -t tmpfs none /tmp; mkdir /tmp/run /tmp/home /tmp/here\n\
         export PATH=/mnt/bin:$PATH {SHIM}=/mnt/shim TMPDIR=/tmp XDG_RUNTIME_DIR=/tmp/run HOME=/tmp/home\n\
         ip link set lo up; cp -r /mnt/configs /tmp/here; cd /tmp/here\n{before}\n",
        program = env!("CARGO_BIN_EXE_penstock"),
        repository = repository().display(),
    );
    for line in lines {
        match line.strip_suffix(" &") {
            Some(serve) => {
                script += &format!(
                    "{serve} >/tmp/home/served 2>&1 & server=$!\n\
                 until grep -q '^serving' /tmp/home/served; do kill -0 $server || {{ cat /tmp/home/served; exit 9; }}; sleep 0.02; done\n"
                )
            }
            None => script += &format!("{line}\n"),
        }
    }
    script += "test -z \"$server\" || { kill -INT $server; wait $server; cat /tmp/home/served; }\n\
               rm -r /tmp/home /tmp/here; find /tmp -mindepth 2; ls -A /tmp\n";
    let mut command = Command::new("unshare");
    let apart = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"];
    finish(command.args(apart).args(["sh", "-c", &script]).env_remove("PENSTOCK_LOG"))
}

/// All went well, every byte was looked at, this was the way, and nothing is left but the folder for sockets.
fn went_well(ran: &Ran, path: &str) {
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.contains(path), "{ran:?}");
    let verified = ran.out.lines().any(|line| line.split_whitespace().eq("verified yes, every byte".split(' ')));
    assert!(verified && ran.out.ends_with("\nrun\n"), "{ran:?}");
}

const MEMIF: &str = "in datagrams over dpdk net_memif, frame 8972, 1 connections";

#[test]
fn the_commands_that_need_no_configuration_do_what_they_say() {
    let test = "the_commands_that_need_no_configuration_do_what_they_say";
    if let Some(reason) = why_not() {
        return skip(test, reason);
    }
    let lines = block("On one host, between two processes");
    assert_eq!(lines.len(), 2, "{lines:?}");
    let ran = type_in("", &lines);
    went_well(&ran, MEMIF);
    assert_eq!(ran.out.matches(MEMIF).count(), 2, "{ran:?}");
}

#[test]
fn two_processes_meet_over_memif_by_the_files_for_them() {
    if let Some(reason) = why_not() {
        return skip("two_processes_meet_over_memif_by_the_files_for_them", reason);
    }
    let ran = type_in("", &block("The same with engines of one's own"));
    went_well(&ran, MEMIF);
    assert!(ran.out.contains(" came over datagram from "), "{ran:?}");
}

#[test]
fn two_namespaces_meet_over_af_packet_by_the_files_for_them() {
    if let Some(reason) = why_not() {
        return skip("two_namespaces_meet_over_af_packet_by_the_files_for_them", reason);
    }
    went_well(
        &type_in("", &block("Two network namespaces, as root, each with an interface")),
        "in datagrams over dpdk net_af_packet, frame 1472, 1 connections",
    );
}

#[test]
fn mistakes_of_a_device_are_named_when_the_engine_starts() {
    if let Some(reason) = why_not() {
        return skip("mistakes_of_a_device_are_named_when_the_engine_starts", reason);
    }
    let lines = [
        "ip link add dp0 type veth peer name dp1; ip link set dp0 up; ip link set dp1 up",
        "sed 's/iface=dp0/iface=dp0,qpairs=2/' configs/datagram-af-packet.yaml > two.yaml",
        "printf '\\nworkers:\\n  count: 2\\n' >> two.yaml",
        "! penstock serve --config two.yaml",
        "sed s/dp0/dp7/ configs/datagram-af-packet.yaml > none.yaml",
        "! penstock serve --config none.yaml",
        // A station that has the address of another one hears of it, and the other does.
        "for end in 0 1; do sed s/iface=dp0/iface=dp$end/ configs/datagram-af-packet.yaml > $end.yaml; \
         penstock serve --listen 127.0.0.1:740$end --config $end.yaml --for 2 > $end.log 2>&1 & sleep 0.5; done; wait; cat 0.log 1.log",
    ];
    let ran = type_in("", &lines);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.err.contains("by their UDP port (rte_flow: "), "{ran:?}");
    assert!(ran.err.contains("names the interface `dp7`, and this host has none of that name"), "{ran:?}");
    assert_eq!(ran.out.matches("another station has this address too").count(), 2, "{ran:?}");
}

/// Huge pages for a while; the host has as many afterwards as before.
struct HugePages {
    before: String,
}

impl HugePages {
    fn take() -> Result<Self, String> {
        let before = fs::read_to_string(NR_HUGE_PAGES).map_err(|error| format!("{NR_HUGE_PAGES}: {error}"))?;
        let wanted = before.trim().parse::<u32>().unwrap() + HUGE_PAGES;
        fs::write(NR_HUGE_PAGES, wanted.to_string()).map_err(|error| format!("{NR_HUGE_PAGES}: {error}"))?;
        let pages = Self { before };
        let has = Self::count("HugePages_Free:");
        if has < HUGE_PAGES { Err(format!("needs {HUGE_PAGES} huge pages, and {has} can be had")) } else { Ok(pages) }
    }

    fn count(name: &str) -> u32 {
        let text = fs::read_to_string("/proc/meminfo").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(NR_HUGE_PAGES, &self.before);
    }
}

#[test]
fn two_processes_meet_over_memif_in_huge_pages() {
    let test = "two_processes_meet_over_memif_in_huge_pages";
    if let Some(reason) = why_not() {
        return skip(test, reason);
    }
    let pages = match HugePages::take() {
        Ok(pages) => pages,
        Err(reason) => return skip(test, &reason),
    };
    let free = HugePages::count("HugePages_Free:");
    let before = "mkdir /tmp/home/huge; mount -t hugetlbfs none /tmp/home/huge\n\
                  sed -i 's/^dpdk:/dpdk:\\n  huge_pages: true/' configs/datagram-memif*.yaml\n\
                  ( while sleep 0.02; do grep HugePages_Free /proc/meminfo; done ) >/tmp/home/free & watch=$!";
    let mut lines = block("The same with engines of one's own");
    lines.push(
        "kill $watch; wait $watch || true; echo least $(sort -k2n /tmp/home/free | head -1); umount -l /tmp/home/huge",
    );
    let ran = type_in(before, &lines);
    went_well(&ran, MEMIF);
    let least = ran.out.lines().find_map(|line| line.strip_prefix("least HugePages_Free: "));
    let least: u32 = least.and_then(|least| least.parse().ok()).unwrap_or_else(|| panic!("{ran:?}"));
    // Else they have met in ordinary memory.
    assert!(least + 20 <= free, "{least} of {free} huge pages were never used");
    assert_eq!(HugePages::count("HugePages_Free:"), free, "all of them are given back");
    drop(pages);
}
