//! Wires that are cut, for a while and for good.

use std::time::Duration;

use penstock::config::TransportName;

use super::wired::alone;
use super::wired::breaks::{break_every_way, survive_break};
use super::wired::hosts::setting;

#[test]
fn a_way_that_breaks_ends_transfers_in_time_and_is_taken_again_at_once() {
    let Some(_alone) = alone("a_way_that_breaks_ends_transfers_in_time_and_is_taken_again_at_once") else { return };
    break_every_way(setting(TransportName::Datagram));
}

#[test]
fn a_cut_of_a_second_is_survived_and_no_byte_is_wrong() {
    let Some(_alone) = alone("a_cut_of_a_second_is_survived_and_no_byte_is_wrong") else { return };
    // Half of it: the control connection, which is asked in between, bears three fifths whenever they begin.
    survive_break(setting(TransportName::Datagram), Duration::from_secs(1), Duration::from_secs(2));
}
