//! The machines of legs are what they were when somebody last looked at them.

use penstock_flows::input::Leg;
use penstock_flows::status::Status;
use penstock_session::machine::Declared;

fn compare(name: &str, declared: Declared) {
    assert_eq!(declared.faults(), Vec::<String>::new());
    let path = format!("{}/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let made = declared.matrix();
    if std::env::var_os("PENSTOCK_UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == made,
        "{path} is out of date: run PENSTOCK_UPDATE=1 cargo test -p penstock-flows --test all machines_legs"
    );
}

#[test]
fn a_leg_is_as_it_was_reviewed() {
    compare("leg", Leg::DECLARED);
}

#[test]
fn a_status_is_as_it_was_reviewed() {
    compare("status", Status::DECLARED);
}

#[test]
fn a_rank_of_the_source_is_as_it_was_reviewed() {
    compare("link", penstock_flows::input::Link::DECLARED);
}

#[test]
fn what_is_lent_is_as_it_was_reviewed() {
    compare("lent", penstock_flows::output::lend::Lent::DECLARED);
    compare("loan", penstock_flows::input::pull::Loan::DECLARED);
}
