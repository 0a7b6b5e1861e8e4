//! docs/PROTOCOL.md says what is said: its tables of frames are made from the declarations of their bodies, its pictures of machines from
//! their tables. `PENSTOCK_UPDATE=1` writes them anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use penstock_flows::continuation::Pin;
use penstock_flows::input::Leg;
use penstock_flows::input::pull::Loan;
use penstock_flows::lifecycle::{Request, Swap};
use penstock_flows::output::lend::Lent;
use penstock_flows::relay::join::Join;
use penstock_flows::relay::{Get, Put, Stream};
use penstock_flows::status::Status;
use penstock_session::leases::Lease;
use penstock_session::machine;
use penstock_session::transfers::places::Place;

use crate::declarations::{Declared, constants, declared, kinds, limits, source, table, variants};

const MACHINES: [machine::Declared; 14] = [
    Place::DECLARED,
    penstock_flows::input::Link::DECLARED,
    Leg::DECLARED,
    Status::DECLARED,
    Lease::DECLARED,
    Lent::DECLARED,
    Loan::DECLARED,
    Request::DECLARED,
    Swap::DECLARED,
    Pin::DECLARED,
    Put::DECLARED,
    Get::DECLARED,
    Stream::DECLARED,
    Join::DECLARED,
];

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PROTOCOL.md")
}

/// What stands between the marks of this name is to be this.
fn is_as_made(name: &str, made: &str) {
    // Tests of this file run beside each other, and all write the same page.
    static PAGE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = PAGE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let text = std::fs::read_to_string(page()).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->\n"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("docs/PROTOCOL.md has no mark `{name}`"));
    let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/PROTOCOL.md has no end of `{name}`"));
    if std::env::var_os("PENSTOCK_UPDATE").is_some() {
        return std::fs::write(page(), format!("{before}{begin}{made}{end}{after}")).unwrap();
    }
    assert!(
        found == made,
        "`{name}` of docs/PROTOCOL.md is out of date: run PENSTOCK_UPDATE=1 cargo test -p penstock-flows --test all protocol"
    );
}

struct Words {
    bodies: BTreeMap<String, Declared>,
    /// Kinds by number.
    kinds: BTreeMap<u64, String>,
    limits: BTreeMap<(String, String), u64>,
}

fn transfers_by_name() -> Words {
    let (frame, control) = (source("frame.rs"), source("control.rs"));
    let mut known = constants(&frame);
    known.extend(constants(&source("transfers/id.rs")));
    // It stands in terms of the constants of the other file.
    let of_both = constants(&format!("{frame}\n{control}"));
    known.extend(of_both);
    let kinds = kinds(&control, known["FIRST_KIND"], &known);
    Words {
        bodies: declared(&control).into_iter().map(|body| (body.name.clone(), body)).collect(),
        kinds: kinds.into_iter().map(|(name, kind)| (kind, name)).collect(),
        limits: limits(&source("codec/control_message.rs"), &known),
    }
}

#[test]
fn the_frames_of_transfers_by_name_are_as_declared() {
    let Words { mut bodies, kinds, limits } = transfers_by_name();
    assert!(kinds.len() >= 19 && limits.len() >= 15, "something was not read: {kinds:?} {limits:?}");
    let mut text = String::new();
    for (kind, name) in &kinds {
        let body = bodies.remove(name).unwrap_or_else(|| panic!("the body of {name} was not read"));
        let _ = writeln!(text, "#### {kind:#06x} {name}\n\n{}\n\n{}", body.about, table(&body, &limits));
    }
    let _ = writeln!(text, "What these are made of:\n");
    for body in bodies.values() {
        let _ = writeln!(text, "#### {}\n\n{}\n\n{}", body.name, body.about, table(body, &limits));
    }
    is_as_made("frames of transfers", &text);
}

#[test]
fn the_frames_of_sessions_are_as_declared() {
    let frame = source("frame.rs");
    let kinds = kinds(&frame, 0, &constants(&frame));
    let mut text = String::from("| kind | frame | carries | |\n|---|---|---|---|\n");
    let by_number: BTreeMap<u64, &String> = kinds.iter().map(|(name, kind)| (*kind, name)).collect();
    let variants = variants(&frame, "Frame");
    for (kind, name) in &by_number {
        let (carries, about) = &variants[*name];
        let _ = writeln!(text, "| {kind:#06x} | {name} | {carries} | {about} |");
    }
    assert!(by_number.len() >= 16, "something was not read: {by_number:?}");
    let _ = writeln!(text);
    for body in declared(&frame) {
        let _ = writeln!(text, "#### {}\n\n{}\n\n{}", body.name, body.about, table(&body, &BTreeMap::new()));
    }
    is_as_made("frames of sessions", &text);
}

#[test]
fn the_landing_is_as_declared() {
    let all = declared(&source("landing.rs"));
    let landing = all.iter().find(|body| body.name == "ArrivalNote").expect("it is declared");
    is_as_made("landing", &format!("\n{}\n", table(landing, &BTreeMap::new())));
}

#[test]
fn every_machine_is_drawn_as_it_is() {
    let mut text = String::new();
    for machine in MACHINES {
        let _ = writeln!(text, "#### {}\n\n```mermaid\n{}```\n", machine.name, machine.mermaid());
    }
    is_as_made("machines", &text);
}

/// Files with the matrix of a machine, of both crates: each has its picture, and the other way round.
#[test]
fn no_machine_is_left_out() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in [here.join("snapshots"), here.join("../session/snapshots")] {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(names.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()));
    }
    let mut drawn: Vec<String> = MACHINES.iter().map(|machine| machine.name.to_lowercase()).collect();
    files.sort();
    drawn.sort();
    assert_eq!(files, drawn);
}

#[test]
fn every_kind_has_a_committed_encoding_of_this_kind() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../session/vectors/0.4");
    let texts = std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    let bytes = |text: &str| text.lines().filter(|line| !line.starts_with('#')).collect::<String>();
    let encoded: Vec<String> = texts.map(|text| bytes(&text)).filter(|bytes| bytes.starts_with("504e534b")).collect();
    for (kind, name) in transfers_by_name().kinds {
        // Behind the magic and the version, little endian.
        let kind = format!("{:02x}{:02x}", kind & 0xff, kind >> 8);
        assert!(encoded.iter().any(|bytes| bytes[12..16] == kind), "no vector of {name}");
    }
}
