//! Real shapes over bad wires: every byte arrives, whichever is lost, late, doubled or damaged on the way.

use penstock::config::{TcpIo, TransportName};

use super::wired::alone;
use super::wired::hosts::setting;
use super::wired::workloads::{Load, load, move_all};

fn move_by(scenario: &str, mtu: u32, io: TcpIo, loads: &[Load]) {
    move_all(setting(TransportName::Tcp).by(io), scenario, mtu, io.as_str(), loads);
}

#[test]
fn every_byte_arrives_over_a_wire_that_loses_delays_and_reorders() {
    let Some(_alone) = alone("every_byte_arrives_over_a_wire_that_loses_delays_and_reorders") else { return };
    let scenario = "seed=1; both loss=1%,delay=2ms,reorder=1%,reorder-by=1ms";
    let loads = [load("w2", 1), load("w3", 4), load("w5", 1), load("stress", 4)];
    move_by(scenario, 9000, TcpIo::IoUring, &loads);
    move_by(scenario, 1500, TcpIo::Epoll, &[load("w2", 4), load("stress", 16)]);
}

#[test]
fn every_byte_arrives_over_a_narrow_wire() {
    let Some(_alone) = alone("every_byte_arrives_over_a_narrow_wire") else { return };
    let loads = [load("w2", 2), load("w3", 8), load("w5", 1), load("stress", 8)];
    move_by("seed=2; both rate=200mbit,delay=1ms,queue=512KiB", 1500, TcpIo::Epoll, &loads);
}

#[test]
fn every_byte_arrives_over_a_wire_that_doubles_and_damages() {
    let Some(_alone) = alone("every_byte_arrives_over_a_wire_that_doubles_and_damages") else { return };
    let scenario = "seed=3; both duplicate=1%,corrupt=0.5%,delay=500us";
    let loads = [load("w2", 1), load("w3", 4), load("w5", 1), load("stress", 4)];
    move_by(scenario, 9000, TcpIo::IoUring, &loads);
}
