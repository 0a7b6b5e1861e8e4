//! `penstock doctor gpu`, with a stand-in for the driver and without any.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{Folder, finish};

/// The stand-in, which cargo has built beside this program.
pub(crate) fn stand_in() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libpenstock_cuda_driver.so");
    assert!(path.exists(), "{} was built", path.display());
    path
}

/// What it says of a driver that pretends to be this.
fn doctor(library: &str, pretends: &str) -> String {
    let folder = Folder::new();
    let mut command = folder.command(&["doctor", "gpu"]);
    command.env("PENSTOCK_CUDA_DRIVER", library).env("PENSTOCK_CUDA_STAND_IN", pretends);
    let ran = finish(&mut command);
    assert_eq!(ran.err, "", "{ran:?}");
    // Lines are broken where they are long.
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn doctor_of_stand_in(pretends: &str) -> String {
    doctor(stand_in().to_str().unwrap(), pretends)
}

#[test]
fn a_stand_in_for_the_driver_is_described() {
    let said = doctor_of_stand_in("devices=2");
    assert!(said.contains("of CUDA 13.0"), "{said}");
    let device = "1: Penstock stand-in for a GPU, 8 GiB, GPU-70656e73-746f-636b-2073-74616e642d01, at 0000:18:00.0";
    assert!(said.contains(device), "{said}");
    assert!(!said.contains("lacks") && !said.contains("cannot") && !said.contains("missing"), "{said}");
}

#[test]
fn what_a_stand_in_cannot_is_said_with_what_it_means() {
    let said = doctor_of_stand_in("version=12020 without=vmm,dma-buf,compute");
    assert!(said.contains("of CUDA 12.2") && said.contains("the driver lacks cuMemcpyBatchAsync"), "{said}");
    for words in ["cannot make and map memory by itself", "0 has no dma-buf", "nvidia-smi -i 0 -c DEFAULT"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn how_memory_of_a_stand_in_can_be_passed_to_other_processes_is_said() {
    for (pretends, words, means) in [
        ("", "0 can pass its memory to other processes: as file descriptors (VMM), and by legacy handles", ""),
        ("without=ipc", "as file descriptors (VMM), and not by legacy handles", "memory of `cudaMalloc` stays within"),
        ("without=descriptors", "by legacy handles, and not as file descriptors (VMM)", "memory of pools stays within"),
        ("without=vmm,ipc", "0 can pass its memory to no other process", "its memory stays within a process"),
    ] {
        let said = doctor_of_stand_in(pretends);
        assert!(said.contains(words) && said.contains(means), "{pretends}: {said}");
        assert_eq!(said.contains("shares of a device (vGPU) lack it"), !means.is_empty(), "{pretends}: {said}");
    }
}

#[test]
fn a_limit_of_locked_memory_is_said_with_what_it_means_for_pinned_pools() {
    let folder = Folder::new();
    let program = folder.command(&[]).get_program().to_owned();
    let said = |limit: &str| {
        let mut command = Command::new("sh");
        folder.furnish(&mut command);
        command.args(["-c", &format!("ulimit -l {limit} && exec \"$0\" doctor gpu")]).arg(&program);
        let ran = finish(command.env("PENSTOCK_CUDA_DRIVER", stand_in()).env("PENSTOCK_CUDA_STAND_IN", ""));
        assert_eq!(ran.err, "", "{ran:?}");
        ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let limited = said("64");
    assert!(limited.contains("locked memory") && limited.contains("64 KiB"), "{limited}");
    // Who has the capability is above it.
    let is_above = limited.contains("CAP_IPC_LOCK");
    assert_eq!(limited.contains("did not hold pinned pools against it"), !is_above, "{limited}");
    assert_eq!(limited.contains("memlock"), !is_above, "{limited}");
}

#[test]
fn a_driver_that_cannot_be_used_is_words() {
    for (pretends, words) in [
        ("version=12010", "is the driver of CUDA 12.1, and 12.2 is the oldest that is used"),
        ("devices=0", "the CUDA driver does not start: CUDA error 100, no device"),
        ("init=803", "the library and the kernel's driver are of different releases"),
    ] {
        let said = doctor_of_stand_in(pretends);
        assert!(said.contains(words), "{pretends}: {said}");
    }
    let said = doctor("/nowhere/libcuda.so.1", "");
    assert!(said.contains("/nowhere/libcuda.so.1 cannot be opened"), "{said}");
}

#[test]
fn the_selftest_moves_bytes_through_a_stand_in_and_looks_at_them() {
    let run = |more: &[&str]| {
        let folder = Folder::new();
        let mut command = folder.command(&[&["selftest", "--quick", "--json"], more].concat());
        finish(command.env("PENSTOCK_CUDA_DRIVER", stand_in()).env("PENSTOCK_CUDA_STAND_IN", ""))
    };
    let ran = run(&[]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let report = ran.json();
    let row = report["transports"].as_array().unwrap().last().unwrap();
    assert_eq!((&row["transport"], &row["verified"]), (&"cuda".into(), &true.into()), "{row}");
    assert_eq!(row["path"], "Penstock stand-in for a GPU, CUDA 13.0");
    let checks: Vec<&str> = row["checks"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(checks, ["connect", "bytes", "measure", "bytes"]);
    let absent: Vec<&str> =
        report["absent"].as_array().unwrap().iter().map(|row| row["transport"].as_str().unwrap()).collect();
    assert_eq!(absent, ["verbs", "dpdk"]);
    let broken = run(&["--sabotage", "write"]).json();
    let row = broken["transports"].as_array().unwrap().last().unwrap();
    let last = row["checks"].as_array().unwrap().last().unwrap();
    assert_eq!((&row["verified"], &last["name"], &last["ok"]), (&false.into(), &"bytes".into(), &false.into()));
}

#[test]
fn perf_measures_memory_of_a_stand_in_and_looks_at_it() {
    let run = |library: &str, more: &[&str]| {
        let folder = Folder::new();
        let asked = ["perf", "--memory", "device", "--rounds", "2", "--json"];
        let ran = finish(folder.command(&[&asked[..], more].concat()).env("PENSTOCK_CUDA_DRIVER", library));
        assert_eq!(folder.left_behind(), Vec::<String>::new());
        ran
    };
    let library = stand_in();
    let ran = run(library.to_str().unwrap(), &[]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let report = ran.json();
    assert_eq!((&report["verified"], &report["bytes"]), (&true.into(), &(16_384 * 1000).into()), "{report}");
    let ways: Vec<&str> = report["ways"].as_array().unwrap().iter().map(|way| way["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["to the device", "within it", "from it"]);
    assert!(report["ways"].as_array().unwrap().iter().all(|way| way["vs_one_copy"].as_f64().unwrap() > 0.0));
    let broken = run(library.to_str().unwrap(), &["--sabotage"]);
    assert_eq!((broken.status, &broken.json()["verified"]), (1, &false.into()));
    assert!(broken.err.contains("wrong bytes in the target's"), "{broken:?}");
    let absent = run("/nowhere/libcuda.so.1", &[]);
    assert_eq!(absent.status, 1);
    assert!(absent.err.contains("/nowhere/libcuda.so.1 cannot be opened"), "{absent:?}");
    let misasked = run(library.to_str().unwrap(), &["--op", "read"]);
    assert_eq!(misasked.status, 2, "{misasked:?}");
    assert!(misasked.err.contains("--op says nothing") || misasked.err.contains("to which --op"), "{misasked:?}");
    for (transport, op) in [("shm", "write"), ("tcp", "read")] {
        let options = ["--transport", transport, "--op", op, "--pool-mib", "64"];
        let ran = run(library.to_str().unwrap(), &options);
        assert_eq!(ran.status, 0, "{ran:?}");
        let report = ran.json();
        assert_eq!((&report["transport"], &report["verified"]), (&transport.into(), &true.into()), "{report}");
        let device = serde_json::json!({ "name": "Penstock stand-in for a GPU", "staged": true });
        assert_eq!(report["device"], device, "{report}");
    }
    let broken =
        run(library.to_str().unwrap(), &["--transport", "shm", "--op", "read", "--pool-mib", "64", "--sabotage"]);
    assert_eq!(broken.status, 1, "{broken:?}");
}
