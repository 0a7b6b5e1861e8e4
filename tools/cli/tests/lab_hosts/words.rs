//! What `serve` says of itself and of whom it turned away, and what clients say that were.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use penstock_wire::{Family, Side};

use crate::run::finish;
use crate::stage::Stage;

#[test]
fn the_addresses_that_serve_prints_lead_there() {
    let Some(stage) = Stage::new("the_addresses_that_serve_prints_lead_there") else { return };
    let serving = stage.serve(&["--memory-mib", "64", "--json"]);
    let first = serving.event("serving");
    let addresses: Vec<&str> = first["addresses"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
    assert_eq!(addresses, [stage.there(Family::V4), stage.there(Family::V6)], "{first}");
    assert_eq!((&first["this_host_only"], &first["secret_made"]), (&false.into(), &true.into()), "{first}");
    for address in addresses {
        let ran = stage.run(&["ping", address, "-c", "1", "--within", "10", "--json"]);
        assert_eq!((ran.status, &ran.json()["received"]), (0, &1.into()), "{ran:?}");
    }
    serving.end();
    // And the lines that are to be pasted there.
    let serving = stage.serve(&["--memory-mib", "512"]);
    let text = serving.out.get();
    let lines = text.lines().filter_map(|line| line.split_once("  penstock ")).map(|(_, line)| line.trim());
    let lines: Vec<&str> = lines.filter(|line| !line.contains("verbs")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    for line in lines {
        let bounds = if line.starts_with("ping") { " -c 2 --within 10" } else { " --rounds 2 --pool-mib 64" };
        let line = format!("{line}{bounds}");
        let ran = stage.run(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(ran.status, 0, "{line}: {ran:?}");
    }
}

#[test]
fn whom_it_turns_away_serve_logs_with_the_address_and_why() {
    let Some(stage) = Stage::new("whom_it_turns_away_serve_logs_with_the_address_and_why") else { return };
    let serving = stage.serve(&["--memory-mib", "64"]);
    let there: SocketAddr = stage.there(Family::V4).parse().unwrap();
    let dial = || stage.hosts.inside(Side::B, || TcpStream::connect(there).unwrap()).unwrap();
    // What is not Penstock.
    let mut web = dial();
    let own = web.local_addr().unwrap();
    web.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let _ = web.read_to_end(&mut Vec::new());
    let log = serving.err.wait_for(&format!("address=\"{own}\""));
    assert!(log.contains("another program is talking to this port"), "{log}");
    // Who has another secret.
    let other = stage.folder.write("other.secret", &"5a".repeat(32));
    let mut command = stage.here(&["ping", &there.to_string(), "-c", "1", "--secret-file", &other]);
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let ran = finish(&mut command);
    assert!(ran.status == 1 && ran.err.contains("scp 10.77.0.1:.config/penstock/secret"), "{ran:?}");
    let log = serving.err.wait_for("it does not share this engine's secret");
    assert!(
        log.lines().any(|line| line.contains("share this engine's secret") && line.contains("\"10.77.0.2:")),
        "{log}"
    );
    // Who says nothing, and who is one too many of those.
    let idle: Vec<TcpStream> = (0..200).map(|_| dial()).collect();
    let log = serving.err.wait_for("have not shown yet whose they are");
    assert!(log.lines().any(|line| line.contains("not shown yet") && line.contains("\"10.77.0.2:")), "{log}");
    serving.err.wait_for("it said nothing within 5000 ms");
    drop(idle);
    std::thread::sleep(Duration::from_millis(1100));
    let before = serving.err.get().lines().count();
    assert!(before < 60, "{before} lines for 200 connections");
    assert_eq!(stage.run(&["ping", &there.to_string(), "-c", "1", "--within", "10"]).status, 0);
}
