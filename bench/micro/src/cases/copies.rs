//! The copy kernels by the size of a block: 16 MiB pools, in random order.

use penstock_core::plan::{Direction, Span};
use penstock_memory::HostMemory;
use penstock_memory::copy::{hint_for, scatter};

use crate::Refusal;
use crate::bench::{Bench, Body};
use crate::hot::scattered;

macro_rules! copies {
    ($($name:literal: $bytes:expr),*) => {
        &[$(Bench { name: $name, per: "block", each: blocks($bytes), prepare: || copy($bytes) }),*]
    };
}

pub(super) const ALL: &[Bench] = copies![
    "copy-8B": 8, "copy-64B": 64, "copy-512B": 512, "copy-4KiB": 4 << 10, "copy-16KiB": 16 << 10,
    "copy-64KiB": 64 << 10, "copy-1MiB": 1 << 20
];

/// Bytes of either side: larger than the caches nearest to a core.
const POOL_BYTES: u64 = 16 << 20;
const BLOCKS_MAX: u64 = 512;
const LINE: u64 = 64;

/// How many are copied at once: what a worker hands to a lane at most, or what the pool has.
const fn blocks(bytes: u64) -> u64 {
    let there = POOL_BYTES / bytes;
    if there < BLOCKS_MAX { there } else { BLOCKS_MAX }
}

fn copy(bytes: u64) -> Result<Body, Refusal> {
    let memory = |byte| HostMemory::from_vec(vec![byte; POOL_BYTES as usize]);
    let (near, far) = (memory(1)?, memory(2)?);
    let stride = bytes.next_multiple_of(LINE);
    let places = (POOL_BYTES / stride) as u32;
    let at = |seed| scattered(places, seed).into_iter().map(move |place| u64::from(place) * stride);
    let spans: Vec<Span> = at(1).zip(at(2)).map(|(local, remote)| Span { local, remote, len: bytes }).collect();
    let batch = blocks(bytes) as usize;
    let hint = hint_for(batch as u64 * bytes);
    let mut next = 0;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            // Another part of the pools each time, as a worker meets them.
            next = if next + 2 * batch <= spans.len() { next + batch } else { 0 };
            scatter(near.window(), far.window(), Direction::Write, &spans[next..next + batch], hint)?;
        }
        Ok(())
    }))
}
