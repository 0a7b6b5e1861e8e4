//! Real shapes over bad wires: every byte arrives, whichever is lost, late, doubled or damaged on the way.

use std::time::{Duration, Instant};

use penstock::config::TcpIo;
use penstock::{Plan, Submit};
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_lab::Workload;
use penstock_lab::layout::{Destination, Layout, LayoutSpec};

use super::alone;
use super::hosts::{Hosted, setting};

/// A transfer of the largest over the worst of wires.
const PATIENT: Duration = Duration::from_secs(120);
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What is moved, and one layer of how many of it: the blocks of a layer are always all there.
struct Load {
    name: &'static str,
    /// Of these layers one is moved.
    of_layers: u32,
}

const fn load(name: &'static str, of_layers: u32) -> Load {
    Load { name, of_layers }
}

/// One whole after the other over a wire, written and then read. Prints how long each took.
fn move_all(scenario: &str, mtu: u32, io: TcpIo, loads: &[Load]) {
    for load in loads {
        let mut workload = Workload::find(load.name).expect("a built-in workload");
        workload.layers = workload.layers.div_ceil(load.of_layers);
        let spec = LayoutSpec { workload, pool_bytes_min: 0, concurrency: 1, seed: 7 };
        let layout = Layout::new(&spec);
        let mut hosted = Hosted::new(setting().by(io), scenario, mtu, layout.pool_bytes(), HEARTBEAT);
        assert!(hosted.peer.path().contains(io.as_str()), "{}", hosted.peer.path());
        let far = hosted.peer.wait_region(KV, PATIENCE).expect("it was announced");
        let bases: Vec<_> = layout.batches().concat();
        let (block, stride) = (layout.workload().block_bytes, layout.workload().stride_bytes());
        let pairs = &layout.sets()[0];
        for destination in [Destination::Remote, Destination::Local] {
            let (source, to) = match destination {
                Destination::Remote => (&hosted.near, &hosted.far),
                Destination::Local => (&hosted.far, &hosted.near),
            };
            layout.fill(source.window());
            layout.wipe(to.window());
            let plan = match destination {
                Destination::Remote => Plan::write(&hosted.near, &far),
                Destination::Local => Plan::read(&hosted.near, &far),
            };
            let plan = plan.block_bytes(block).strides(stride, stride).layers(&bases).blocks(pairs);
            let plan = plan.build().expect("a sound plan");
            let begun = Instant::now();
            let transfer = hosted.peer.submit(&plan, Submit::new().within(PATIENT)).expect("there is room");
            let done = transfer.wait().expect("a bad wire is a slow one");
            let took = begun.elapsed();
            let verified = layout.check(to.window(), destination).expect("every byte is as it was sent");
            assert_eq!((verified, done.bytes), (layout.workload().bytes(), layout.workload().bytes()));
            eprintln!(
                "{scenario}, mtu {mtu}, {io}: {} with {} of its layers, {} blocks, {:.1} MB {destination:?}: {took:.2?}, {:.1} MB/s",
                load.name,
                layout.workload().layers,
                layout.workload().blocks_total(),
                done.bytes as f64 / 1e6,
                done.bytes as f64 / 1e6 / took.as_secs_f64(),
            );
        }
        eprintln!("    {:?}", hosted.hosts.stats().expect("the wire counts"));
        assert_eq!(hosted.peer.ended(), None);
    }
}

#[test]
fn every_byte_arrives_over_a_wire_that_loses_delays_and_reorders() {
    let Some(_alone) = alone("every_byte_arrives_over_a_wire_that_loses_delays_and_reorders") else { return };
    let scenario = "seed=1; both loss=1%,delay=2ms,reorder=1%,reorder-by=1ms";
    let loads = [load("w2", 1), load("w3", 4), load("w5", 1), load("stress", 4)];
    move_all(scenario, 9000, TcpIo::IoUring, &loads);
    move_all(scenario, 1500, TcpIo::Epoll, &[load("w2", 4), load("stress", 16)]);
}

#[test]
fn every_byte_arrives_over_a_narrow_wire() {
    let Some(_alone) = alone("every_byte_arrives_over_a_narrow_wire") else { return };
    let loads = [load("w2", 2), load("w3", 8), load("w5", 1), load("stress", 8)];
    move_all("seed=2; both rate=200mbit,delay=1ms,queue=512KiB", 1500, TcpIo::Epoll, &loads);
}

#[test]
fn every_byte_arrives_over_a_wire_that_doubles_and_damages() {
    let Some(_alone) = alone("every_byte_arrives_over_a_wire_that_doubles_and_damages") else { return };
    let scenario = "seed=3; both duplicate=1%,corrupt=0.5%,delay=500us";
    let loads = [load("w2", 1), load("w3", 4), load("w5", 1), load("stress", 4)];
    move_all(scenario, 9000, TcpIo::IoUring, &loads);
}
