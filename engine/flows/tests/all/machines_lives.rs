//! The tables of requests, swaps and pins, as they are committed: a change of one is seen in review.

use std::path::Path;

use penstock_flows::continuation::Pin;
use penstock_flows::lifecycle::request::verdicts;
use penstock_flows::lifecycle::{Request, Swap};
use penstock_session::machine::Declared;

/// Compares a table with its file, or writes the file where `PENSTOCK_UPDATE` is set.
fn is_as_committed(name: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(format!("{name}.txt"));
    if std::env::var_os("PENSTOCK_UPDATE").is_some() {
        std::fs::write(&path, made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found, made,
        "snapshots/{name}.txt differs: run PENSTOCK_UPDATE=1 cargo test -p penstock-flows --test all machines"
    );
}

fn has_no_faults(declared: Declared) {
    assert_eq!(declared.faults(), Vec::<String>::new());
}

#[test]
fn the_life_of_a_request_is_as_committed() {
    has_no_faults(Request::DECLARED);
    is_as_committed("request", &format!("{}\n{}", Request::DECLARED.matrix(), verdicts()));
}

#[test]
fn a_swap_is_as_committed() {
    has_no_faults(Swap::DECLARED);
    is_as_committed("swap", &Swap::DECLARED.matrix());
}

#[test]
fn a_pin_is_as_committed() {
    has_no_faults(Pin::DECLARED);
    is_as_committed("pin", &Pin::DECLARED.matrix());
}
