//! Requests that have grown since their first blocks were reported.

use penstock::config::TransportName;
use penstock::flows::{LifecycleSpec, SchedulerReport, Send, SwapWay, block_refs};
use penstock::{Blocks, Engine, PoolSpec, Rights};

use super::Side;
use super::end::{End, Geometry, request, transfer};
use super::layers::{end_well, receive};
use crate::stage::PATIENCE;

/// What the next owner of the device's blocks writes to them.
const NEXT_OWNER: u8 = 0x66;
const TOKENS: u64 = 3 * 16;
/// What is swapped of a block is its own memory.
const LAYERS_OF_A_BLOCK: Geometry = Geometry { is_layer_major: false, ..Geometry::SMALL };

/// A request of three blocks, of which the third came by [`Report::Grown`], is swapped out whole or not at all: its blocks of the device are
/// given away then, and the other process has the bytes of all three from the host.
pub mod a_request_that_has_grown_is_not_swapped_in_part {
    use super::*;

    /// The scheduler, which is the source of what it has swapped out.
    pub fn test(side: &mut Side) {
        let geometry = LAYERS_OF_A_BLOCK;
        // Swaps go by the session with oneself, over `local`.
        let is_far = side.spec.transport == TransportName::Tcp.as_str();
        let own = if is_far { TransportName::Tcp } else { TransportName::Shm };
        let engine = Engine::start(side.spec.config().transports([TransportName::Local, own])).expect("it starts");
        let spec = PoolSpec::host(geometry.bytes()).block(geometry.block_bytes()).label("device");
        let device = engine.pool(spec.rights(Rights::READ_WRITE)).expect("there is memory");
        let end = End::pooled(engine, geometry);
        let layer_bytes = geometry.layer_block_bytes();
        let spec = LifecycleSpec::between(&end.pool, &device);
        let spec = spec.layers(&[(0, 0), (layer_bytes, layer_bytes)], layer_bytes);
        let lives = end.engine.lifecycle(spec).expect("both have blocks of one size");
        let peer = side.connect(&end);
        for round in 0..side.rounds {
            let all = device.take_within(geometry.blocks as usize, PATIENCE).expect("the last request is over");
            let run = |count: u64| {
                let blocks = device.memory().blocks();
                blocks.retain_range(0, count * geometry.block_bytes())
            };
            let (part, whole): (Blocks, Blocks) = (run(2), run(3));
            let refs = block_refs(&whole);
            let request = request(round);
            let life = lives.open(&request, 1).expect("its last life is over");
            let allocated = SchedulerReport::Allocated { fresh: refs[..2].to_vec(), cached: vec![] };
            for report in [allocated, SchedulerReport::Active, SchedulerReport::Grown { blocks: refs[2..].to_vec() }] {
                lives.report(&request, life, &report).expect("it lives");
            }
            for layer in 0..geometry.layers {
                geometry.compute(device.window(), (round, layer), whole.indices(), 0..TOKENS);
            }
            let host = end.take(3);
            let in_part = {
                let host = end.take(2);
                let swap = lives.swap(SwapWay::Out, (&request, life), &part, &host, PATIENCE);
                swap.and_then(|swap| swap.wait(PATIENCE).map(|moved| moved.is_ok()).and_then(|_| swap.commit()))
            };
            side.note_unless(round, in_part.is_err(), || "two of its three blocks were swapped out".to_owned());
            let swapped = lives.swap(SwapWay::Out, (&request, life), &whole, &host, PATIENCE).and_then(|swap| {
                swap.wait(PATIENCE)?.expect("there is nothing that could stop it");
                swap.commit()
            });
            side.note(round, swapped.map_err(|refused| format!("as a whole: {refused}")));
            // Nothing on the device is the request's any more.
            drop((part, whole));
            let left = lives.device_blocks(&request, life).expect("it lives");
            side.note_unless(round, left.is_empty(), || format!("{left:?} are left on the device"));
            device.window().fill(0, geometry.bytes(), NEXT_OWNER).expect("it is the whole pool");
            side.note(round, end.check(round, host.indices(), TOKENS));
            side.line.say("go");
            let output = end.engine.produce(transfer(round), &request, Send::from(&end.layout)).expect("a new name");
            output.chunk(&host, TOKENS, true).expect("it stands");
            end_well(side, round, &output);
            lives.report(&request, life, &SchedulerReport::Removed).expect("it lives");
            drop(all);
        }
        drop(peer);
    }

    /// The sink.
    pub fn child(side: &mut Side) {
        let end = side.pooled(LAYERS_OF_A_BLOCK);
        let peer = side.accept(&end);
        for round in 0..side.rounds {
            side.line.expect("go");
            receive(side, &end, &peer, (round, round, TOKENS));
        }
        end.assert_nothing_is_left();
    }
}
