//! What the doctor says of the way to another host.

use std::time::{Duration, Instant};

use penstock_wire::{Direction, Family};
use serde_json::Value;

use crate::stage::Stage;

/// A doctor that waits for a session's first second only takes no longer than this in all.
const WITHIN: Duration = Duration::from_secs(10);

#[test]
fn datagrams_that_do_not_pass_are_told_with_what_to_do_and_the_rest_is_well() {
    let name = "datagrams_that_do_not_pass_are_told_with_what_to_do_and_the_rest_is_well";
    let Some(mut stage) = Stage::new(name) else { return };
    let (_serving, there) = (stage.serve(&["--memory-mib", "64"]), stage.there(Family::V4));
    let datagrams = |stage: &Stage| {
        let begun = Instant::now();
        let ran = stage.run(&["doctor", &there, "--json"]);
        assert!(begun.elapsed() < WITHIN, "{:?}", begun.elapsed());
        let report = ran.json();
        assert_eq!(report["ok"], report["here"]["ok"], "{report}");
        let steps = report["steps"].as_array().unwrap();
        assert_eq!(steps.last().unwrap()["name"], "its doctor", "{report}");
        steps.iter().find(|step| step["name"] == "datagrams").unwrap().clone()
    };
    for direction in [Direction::AToB, Direction::BToA, Direction::Both] {
        stage.hosts.set(direction, "udp-loss=100%").unwrap();
        let step: Value = datagrams(&stage);
        assert_eq!(step["status"], "missing", "{direction}: {step}");
        assert!(step["found"].as_str().unwrap().contains("UDP does not pass"), "{direction}: {step}");
        assert!(step["means"].as_str().unwrap().contains("`tcp` is not touched"), "{direction}: {step}");
        assert!(step["mends"][0]["advice"].as_str().unwrap().contains("let UDP pass"), "{direction}: {step}");
        stage.hosts.set(direction, "udp-loss=0%").unwrap();
        let step = datagrams(&stage);
        assert_eq!(step["status"], "ok", "{direction}, and mended: {step}");
    }
}
