//! Every machine's whole table, as a file: a transition that changes is seen where it is reviewed.
//!
//! `PENSTOCK_UPDATE=1` writes the files anew; the test then fails and says which.

use std::path::PathBuf;

use penstock_session::leases::Lease;
use penstock_session::machine::Declared;
use penstock_session::transfers::places::Place;

const MACHINES: [Declared; 2] = [Place::DECLARED, Lease::DECLARED];

fn path(machine: &Declared) -> PathBuf {
    let name = format!("{}.txt", machine.name.to_ascii_lowercase());
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(name)
}

#[test]
fn every_table_is_what_its_file_says() {
    let is_stale = |machine: &&Declared| std::fs::read_to_string(path(machine)).ok() != Some(machine.matrix());
    let stale: Vec<&Declared> = MACHINES.iter().filter(is_stale).collect();
    if std::env::var("PENSTOCK_UPDATE").as_deref() == Ok("1") {
        stale.iter().for_each(|machine| std::fs::write(path(machine), machine.matrix()).unwrap());
    }
    let names: Vec<&str> = stale.iter().map(|machine| machine.name).collect();
    assert!(names.is_empty(), "other tables than their files say: {names:?}; PENSTOCK_UPDATE=1 writes those anew");
}

#[test]
fn no_table_has_a_state_without_a_way_in_or_to_an_end() {
    for machine in MACHINES {
        assert_eq!(machine.faults(), Vec::<String>::new(), "{}", machine.name);
    }
}

#[test]
fn every_file_is_a_table() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("snapshots");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut expected: Vec<PathBuf> = MACHINES.iter().map(path).collect();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
}
