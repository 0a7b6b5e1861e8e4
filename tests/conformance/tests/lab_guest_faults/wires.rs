//! Breaking the wires of a guest, and what its kernel counts.

use std::process::Command;
use std::time::{Duration, Instant};

/// How long the kernel may take to have a device up.
const UP_WITHIN: Duration = Duration::from_secs(10);

fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split_whitespace()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {} {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Takes down the link of one side of a wire.
pub(crate) fn down(side: char, rail: u8) {
    run("ip", &format!("link set {side}{rail} down"));
}

/// Brings it up again. Its route was forgotten when it went down.
pub(crate) fn up(side: char, rail: u8) {
    let (mine, other, offset) = if side == 'a' { (1, 2, 0) } else { (2, 1, 1) };
    let (link, table) = (format!("{side}{rail}"), 200 + 2 * u32::from(rail) + offset);
    run("ip", &format!("link set {link} up"));
    run("ip", &format!("route replace 10.77.{rail}.{other} dev {link} src 10.77.{rail}.{mine} table {table}"));
    let state = format!("/sys/class/infiniband/rxe_{link}/ports/1/state");
    let since = Instant::now();
    while !std::fs::read_to_string(&state).is_ok_and(|state| state.contains("ACTIVE")) {
        assert!(since.elapsed() < UP_WITHIN, "rxe_{link} does not become active");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What happens to the frames of RDMA that leave a side, in netem's words. What is said over TCP goes unharmed.
pub(crate) fn faults(side: char, rail: u8, words: &str) {
    let link = format!("{side}{rail}");
    clear(side, rail);
    let classes = "prio bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
    run("tc", &format!("qdisc add dev {link} root handle 1: {classes}"));
    run("tc", &format!("qdisc add dev {link} parent 1:3 handle 30: netem limit 100000 {words}"));
    let of_rdma = "u32 match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3";
    run("tc", &format!("filter add dev {link} parent 1: protocol ip prio 1 {of_rdma}"));
}

/// Ends the faults of a side.
pub(crate) fn clear(side: char, rail: u8) {
    // A link without faults says that there is nothing to remove.
    let _ = Command::new("tc").args(["qdisc", "del", "dev", &format!("{side}{rail}"), "root"]).output();
}

/// Frames that were lost on purpose since the faults of a side were set.
pub(crate) fn lost(side: char, rail: u8) -> u64 {
    let text = run("tc", &format!("-s -j qdisc show dev {side}{rail}"));
    let kinds: serde_json::Value = serde_json::from_str(&text).expect("tc writes JSON when it is asked to");
    let netem = kinds.as_array().and_then(|kinds| kinds.iter().find(|kind| kind["kind"] == "netem"));
    netem.and_then(|netem| netem["drops"].as_u64()).expect("the faults are set")
}

/// Makes all wires whole.
pub(crate) fn mend(rails: u8) {
    for rail in 0..rails {
        for side in ['a', 'b'] {
            if std::path::Path::new(&format!("/sys/class/net/{side}{rail}")).exists() {
                clear(side, rail);
                up(side, rail);
            }
        }
    }
}

/// Wires that are whole again when this is dropped, also by a test that fails.
pub(crate) struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        mend(2);
    }
}

/// A counter of a device, by its name in `hw_counters`.
pub(crate) fn counter(side: char, rail: u8, name: &str) -> u64 {
    let path = format!("/sys/class/infiniband/rxe_{side}{rail}/ports/1/hw_counters/{name}");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().parse().expect("a counter is a number")
}

/// Packets of RDMA that a side has sent.
pub(crate) fn sent(side: char, rail: u8) -> u64 {
    counter(side, rail, "sent_pkts")
}

/// All RDMA resources of the machine, in words.
pub(crate) fn resources() -> String {
    run("rdma", "resource")
}

/// Waits until the kernel has taken back what it had not before, in its own time.
pub(crate) fn wait_for_resources(before: &str, within: Duration) {
    let since = Instant::now();
    loop {
        let now = resources();
        if now == before {
            return;
        }
        assert!(since.elapsed() < within, "after {within:?} there is still\n{now}where there was\n{before}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
