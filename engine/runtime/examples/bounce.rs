//! What it costs when only the owner may touch its memory: 1,000 blocks of 16 KiB through bounce slots,
//! beside two plain copies of the same blocks, round by round in one run.
//!
//! `cargo run --release -p penstock --example bounce`
#![allow(clippy::print_stdout, reason = "the figures are the point")]

use std::time::{Duration, Instant};

use penstock::config::{Config, ProcessVmChoice, TransportName};
use penstock::{Engine, HostMemory, Plan, PoolSpec, Rights, Submit};

const BLOCKS: usize = 1000;
const BLOCK_BYTES: usize = 16 << 10;
const BYTES: usize = BLOCKS * BLOCK_BYTES;
const ROUNDS: usize = 200;
const STAGE_BYTES: usize = 64 << 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("penstock-bounce-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let config = |name| {
        let config = Config::default().named(name).directory(&folder).transports([TransportName::Shm]);
        config.process_vm(ProcessVmChoice::Off)
    };
    let (near_engine, far_engine) = (Engine::start(config("near"))?, Engine::start(config("far"))?);
    let memory = HostMemory::from_vec(vec![1; BYTES])?;
    let _far = far_engine.register(memory, "far", Rights::READ_WRITE)?;
    let near = near_engine.pool(PoolSpec::host(BYTES as u64).block(BLOCK_BYTES as u64).label("near"))?;
    near.window().fill(0, BYTES as u64, 2)?;
    let peer = near_engine.connect(&far_engine.descriptor(), Duration::from_secs(5))?;
    let remote = peer.wait_region("far", Duration::from_secs(5))?;
    // Every block goes somewhere else: 7 and 1,000 have no common divisor.
    let pairs: Vec<(u32, u32)> = (0..BLOCKS).map(|block| (block as u32, (block * 7 % BLOCKS) as u32)).collect();
    let block_bytes = BLOCK_BYTES as u64;
    let plans = [
        ("write", Plan::write(&near, &remote).blocks(&pairs).block_bytes(block_bytes).build()?),
        ("read", Plan::read(&near, &remote).blocks(&pairs).block_bytes(block_bytes).build()?),
    ];
    let (source, mut between, mut target) = (vec![3_u8; BYTES], vec![0_u8; BYTES], vec![0_u8; BYTES]);
    let mut times: [Vec<Duration>; 5] = Default::default();
    for _ in 0..ROUNDS {
        for (place, (_, plan)) in plans.iter().enumerate() {
            let start = Instant::now();
            peer.submit(plan, Submit::new())?.wait()?;
            times[place].push(start.elapsed());
        }
        let start = Instant::now();
        copy_blocks(&source, &mut between, &pairs, false);
        copy_blocks(&between, &mut target, &pairs, true);
        times[2].push(start.elapsed());
        let start = Instant::now();
        copy_through(&source, &mut between[..STAGE_BYTES], &mut target, &pairs);
        times[3].push(start.elapsed());
        let start = Instant::now();
        copy_blocks(&source, &mut target, &pairs, true);
        times[4].push(start.elapsed());
    }
    let names =
        ["bounce, write", "bounce, read", "two copies, all then all", "two copies, 64 KiB at a time", "one copy"];
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        println!("{name:<30} median {:>8.2?}  quickest {:>8.2?}", times[ROUNDS / 2], times[0]);
    }
    println!("under way at once: at most {} slots", near_engine.statistics().async_ops_most);
    drop((plans, remote, peer, near, near_engine, _far, far_engine));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn copy_blocks(from: &[u8], to: &mut [u8], pairs: &[(u32, u32)], scatter: bool) {
    for &(near, far) in pairs {
        let (near, far) =
            (near as usize * BLOCK_BYTES, if scatter { far as usize } else { near as usize } * BLOCK_BYTES);
        to[far..far + BLOCK_BYTES].copy_from_slice(&from[near..near + BLOCK_BYTES]);
    }
    std::hint::black_box(to);
}

fn copy_through(from: &[u8], between: &mut [u8], to: &mut [u8], pairs: &[(u32, u32)]) {
    for some in pairs.chunks(between.len() / BLOCK_BYTES) {
        for (stage, &(near, _)) in between.chunks_mut(BLOCK_BYTES).zip(some) {
            stage.copy_from_slice(&from[near as usize * BLOCK_BYTES..][..BLOCK_BYTES]);
        }
        for (stage, &(_, far)) in between.chunks(BLOCK_BYTES).zip(some) {
            to[far as usize * BLOCK_BYTES..][..BLOCK_BYTES].copy_from_slice(stage);
        }
    }
    std::hint::black_box(to);
}
