//! Scattered blocks over bad wires: every byte arrives, whichever is lost, late, doubled or damaged on the way.

use penstock::config::TransportName;

use super::wired::alone;
use super::wired::hosts::setting;
use super::wired::workloads::{Load, load, move_all};

/// A thousand blocks of 16 KiB.
const ALL: Load = load("kv16", 1);
/// Half of them, where it is slow.
const HALF: Load = Load { of_blocks: 2, ..ALL };

fn moves_over(test: &str, scenarios: &[(&str, Load)]) {
    let Some(_alone) = alone(test) else { return };
    for &(scenario, load) in scenarios {
        move_all(setting(TransportName::Datagram), scenario, 1500, "udp", &[load]);
    }
}

#[test]
fn every_byte_arrives_over_a_wire_that_loses() {
    let scenarios = [
        ("seed=1; both loss=0.1%,delay=500us", ALL),
        ("seed=2; both loss=1%,delay=500us", ALL),
        ("seed=3; a-to-b loss=10%; both delay=500us", HALF),
        ("seed=4; b-to-a loss=10%; both delay=500us", HALF),
        ("seed=5; both loss=10%,delay=500us", HALF),
    ];
    moves_over("every_byte_arrives_over_a_wire_that_loses", &scenarios);
}

#[test]
fn every_byte_arrives_over_a_wire_that_jitters_reorders_and_doubles() {
    let scenarios = [
        ("seed=6; both delay=1ms,jitter=2ms", HALF),
        ("seed=7; both delay=500us,reorder=5%,reorder-by=3ms", ALL),
        ("seed=8; both delay=500us,duplicate=10%", ALL),
        ("seed=9; both loss=1%,delay=1ms,jitter=1ms,reorder=2%,duplicate=2%,corrupt=1%", HALF),
    ];
    moves_over("every_byte_arrives_over_a_wire_that_jitters_reorders_and_doubles", &scenarios);
}

#[test]
fn every_byte_arrives_over_a_narrow_wire_with_a_short_queue() {
    let scenarios = [("seed=10; both rate=200mbit,delay=1ms,queue=128KiB", ALL)];
    moves_over("every_byte_arrives_over_a_narrow_wire_with_a_short_queue", &scenarios);
}

#[test]
fn every_byte_arrives_over_a_wire_that_damages() {
    let scenarios = [("", ALL), ("seed=11; both corrupt=1%,delay=500us", ALL)];
    moves_over("every_byte_arrives_over_a_wire_that_damages", &scenarios);
}
