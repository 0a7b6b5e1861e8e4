//! Real shapes over bad wires: every byte arrives, whichever is lost, late, doubled or damaged on the way.

use std::time::{Duration, Instant};

use penstock::{Plan, Submit};
use penstock_conformance::Setting;
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_lab::Workload;
use penstock_lab::layout::{Destination, Layout, LayoutSpec};

use super::hosts::Hosted;

/// A transfer of the largest over the worst of wires.
const PATIENT: Duration = Duration::from_secs(120);
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What is moved of a workload.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// Of these layers one is moved.
    pub(crate) of_layers: u32,
    /// And of these blocks of a layer.
    pub(crate) of_blocks: u32,
}

pub(crate) const fn load(name: &'static str, of_layers: u32) -> Load {
    Load { name, of_layers, of_blocks: 1 }
}

/// One whole after the other over a wire, written and then read, with sessions whose path names this way. Prints how long each took.
pub(crate) fn move_all(setting: Setting, scenario: &str, mtu: u32, way: &str, loads: &[Load]) {
    for load in loads {
        let mut workload = Workload::find(load.name).expect("a built-in workload");
        workload.layers = workload.layers.div_ceil(load.of_layers);
        workload.blocks = workload.blocks.div_ceil(load.of_blocks);
        let spec = LayoutSpec { workload, pool_bytes_min: 0, concurrency: 1, seed: 7 };
        let layout = Layout::new(&spec);
        let mut hosted = Hosted::new(setting, scenario, mtu, layout.pool_bytes(), HEARTBEAT);
        assert!(hosted.peer.path().contains(way), "{}", hosted.peer.path());
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
                "{scenario}, mtu {mtu}, {way}: {} with {} of its layers, {} blocks, {:.1} MB {destination:?}: {took:.2?}, {:.1} MB/s",
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
