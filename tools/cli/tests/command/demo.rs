//! `penstock demo pd`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::run::{Folder, LIMIT, Ran, finish};

/// Runs it in a folder of its own, and sees that neither a process nor a folder is left.
fn demo(arguments: &[&str]) -> Ran {
    let folder = Folder::new();
    let ran = finish(&mut folder.command(&[&["demo", "pd"], arguments].concat()));
    assert_eq!(folder.left_behind(), Vec::<String>::new(), "{arguments:?}");
    assert_eq!(processes_of(&folder), Vec::<u32>::new(), "{arguments:?}");
    ran
}

/// Processes whose command line names the folder.
fn processes_of(folder: &Folder) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let name = format!("{}/", folder.path().display());
    let names = |process: &u32| {
        let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&name)
    };
    all.filter(names).collect()
}

fn events(ran: &Ran) -> Vec<Value> {
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of one kind over one transport.
fn of<'a>(events: &'a [Value], transport: &str, event: &str) -> Vec<&'a Value> {
    events.iter().filter(|found| found["transport"] == transport && found["event"] == event).collect()
}

#[test]
fn every_act_is_verified_over_both_transports() {
    let ran = demo(&["--json"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let events = events(&ran);
    assert_eq!((&events.last().unwrap()["event"], &events.last().unwrap()["ok"]), (&"ended".into(), &true.into()));
    for transport in ["shm", "tcp"] {
        let acts: Vec<u64> =
            of(&events, transport, "verified").iter().map(|event| event["act"].as_u64().unwrap()).collect();
        assert_eq!(acts, ACTS, "{transport}");
        let layers = |event: &str| of(&events, transport, event).iter().filter(|event| event["act"] == 1).count();
        assert_eq!((layers("ready"), layers("landed")), (8, 8), "{transport}");
        // Each side is told that its own name for the request has finished.
        for act in [1, 2, 3, 4] {
            let names = |event: &str| -> Vec<String> {
                let of_act = of(&events, transport, event).into_iter().filter(|found| found["act"] == act);
                of_act.map(|event| event["request"].as_str().unwrap().to_owned()).collect()
            };
            let mut begun = [names("produce"), names("consume")].concat();
            let mut finished = names("finished");
            begun.sort();
            finished.sort();
            assert_eq!(begun, finished, "{transport}, act {act}");
            begun.dedup();
            let requests = ACTS.iter().filter(|&&of| of == act).count();
            assert!(begun.len() == 2 * requests && begun.iter().all(|name| name.starts_with("cmpl-")), "{begun:?}");
        }
        assert_second_turn_is_short(&events, transport);
        let times: Vec<f64> = events
            .iter()
            .filter(|event| event["transport"] == transport)
            .map(|event| event["t_ms"].as_f64().unwrap())
            .collect();
        assert!(times.is_sorted(), "{times:?}");
    }
}

/// The acts that there are, once for each request.
const ACTS: [u64; 6] = [1, 2, 3, 4, 4, 5];

/// Of 705 tokens 688 are kept from the turn before: 17 come, of 8 KiB each, and no other byte moves.
fn assert_second_turn_is_short(events: &[Value], transport: &str) {
    let of_act = |event: &str, figure: &str| -> Vec<u64> {
        let found = of(events, transport, event).into_iter().filter(|found| found["act"] == 4);
        found.filter_map(|event| event[figure].as_u64()).collect()
    };
    assert_eq!((of_act("pinned", "tokens"), of_act("pinned", "blocks")), (vec![700], vec![44]), "{transport}");
    assert_eq!((of_act("inherited", "tokens"), of_act("inherited", "blocks")), (vec![688], vec![43]), "{transport}");
    assert_eq!(of_act("grant", "blocks"), [44, 2], "{transport}");
    assert_eq!(of_act("finished", "tokens"), [500, 17], "{transport}");
    assert_eq!(of_act("finished", "bytes"), [500 * 8192, 17 * 8192], "{transport}");
}

fn killed_in_the_middle(transport: &str, role: &str, survivor: &str) {
    let ran = demo(&["--json", "--transport", transport, "--kill", role]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    let events = events(&ran);
    let one = |event: &str| match of(&events, transport, event)[..] {
        [event] => event,
        ref found => panic!("{event}: {found:?}"),
    };
    let (killed, failed) = (one("killed"), one("failed"));
    assert_eq!((&killed["killed"], &failed["who"]), (&role.into(), &survivor.into()));
    let took = failed["t_ms"].as_f64().unwrap() - killed["t_ms"].as_f64().unwrap();
    assert!((0.0..1000.0).contains(&took), "{took} ms");
    assert!(failed["cause"].as_str().unwrap().contains("PeerLost"), "{failed}");
    let blocks = failed["blocks"].as_array().unwrap().len();
    assert_eq!(blocks, if survivor == "decode" { 63 } else { 0 }, "no granted block is whole: {failed}");
    let started: Vec<(&str, u64)> = of(&events, transport, "started")
        .iter()
        .map(|event| (event["engine"].as_str().unwrap(), event["life"].as_u64().unwrap()))
        .collect();
    assert_eq!(started[2], (&*format!("{role}-0"), 2), "{started:?}");
    assert_eq!(one("verified")["act"], 1, "the second time");
    // A retry has a name of its own.
    let minted: Vec<&Value> = of(&events, transport, "mint").iter().map(|event| &event["transfer"]).collect();
    assert!(minted.len() == 2 && minted[0] != minted[1], "{minted:?}");
}

#[test]
fn who_is_killed_is_replaced_and_the_other_one_knows_at_once() {
    for transport in ["shm", "tcp"] {
        for (role, survivor) in [("prefill", "decode"), ("decode", "prefill")] {
            killed_in_the_middle(transport, role, survivor);
        }
    }
}

#[test]
fn a_seed_decides_the_names_and_a_wrong_byte_is_noticed() {
    let names = |arguments: &[&str]| {
        let ran = demo(&[&["--json", "--transport", "shm", "--seed", "7"], arguments].concat());
        let events = events(&ran);
        let minted: Vec<Value> = of(&events, "shm", "mint").iter().map(|event| event["transfer"].clone()).collect();
        (ran, events, minted)
    };
    let (ran, events, minted) = names(&["--sabotage"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert_eq!(of(&events, "shm", "verified"), Vec::<&Value>::new());
    let wrong = of(&events, "shm", "wrong");
    assert!(wrong.len() == 1 && wrong[0]["says"].as_str().unwrap().starts_with("wrong bytes"), "{wrong:?}");
    assert_eq!((&events.last().unwrap()["event"], &events.last().unwrap()["ok"]), (&"ended".into(), &false.into()));
    let (_, _, again) = names(&[]);
    assert_eq!(again[0], minted[0]);
}

#[test]
fn the_timeline_is_for_people() {
    let ran = demo(&["--transport", "shm", "--seed", "7"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.starts_with("penstock demo pd, seed 7; times in ms\n\n      shm   proxy "), "{}", ran.out);
    assert!(ran.out.contains("\nAct 1: ") && ran.out.ends_with("everything was verified\n"), "{}", ran.out);
    assert_eq!(ran.out.matches("   verified: ").count(), ACTS.len(), "{}", ran.out);
}

/// Not even one that is killed leaves processes or a folder behind; one that is interrupted says so.
#[test]
fn the_processes_and_the_folder_do_not_outlive_the_proxy() {
    for (signal, expected) in [(None, None), (Some("INT"), Some(1))] {
        let folder = Folder::new();
        let mut command = folder.command(&["demo", "pd", "--json"]);
        let mut proxy = command.stdout(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + LIMIT;
        while processes_of(&folder).len() < 2 {
            assert!(Instant::now() < until, "no two processes were started");
            std::thread::sleep(Duration::from_millis(1));
        }
        match signal {
            None => proxy.kill().unwrap(),
            Some(signal) => {
                let id = proxy.id().to_string();
                let status = std::process::Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
                assert!(status.success());
            }
        }
        let ran = proxy.wait_with_output().unwrap();
        assert_eq!(ran.status.code(), expected);
        let text = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(text.contains("it was interrupted"), signal.is_some(), "{text}");
        while !processes_of(&folder).is_empty() || !folder.left_behind().is_empty() {
            assert!(Instant::now() < until, "{:?} {:?}", processes_of(&folder), folder.left_behind());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
