//! Compares the copy kernels with a plain `memcpy` loop on scattered blocks.
//!
//! ```text
//! cargo run --release -p penstock-memory --example kernels [rounds] [block bytes]...
//! ```
//!
//! Both pools are larger than any cache and rotated through in random order; the contenders take
//! turns within every round and start each round with another one, and their ratio to `memcpy`
//! is the median over rounds, so that a busy machine disturbs all alike.
#![allow(clippy::print_stdout, reason = "a report is what this program is for")]

use std::error::Error;
use std::time::Instant;

use penstock_core::{Direction, Rights, Span};
use penstock_memory::copy::{Hint, Kernels, hint_for, scatter_with};
use penstock_memory::{Blocks, Pages, Pool, PoolSpec, Window};

/// Larger than any cache.
const POOL_BYTES: u64 = 512 << 20;
/// Smaller than a second-level cache.
const HOT_POOL_BYTES: u64 = 256 << 10;
const BATCH_BYTES: u64 = 16_000 << 10;
const BATCH_BLOCKS_MAX: u64 = 10_000;
const BLOCK_BYTES: [u64; 6] = [8, 1_152, 4 << 10, 16 << 10, 32 << 10, 64 << 10];

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let rounds = numbers.next().transpose()?.unwrap_or(31).max(1) as usize;
    let chosen = numbers.collect::<Result<Vec<u64>, _>>()?;
    let sizes = if chosen.is_empty() { BLOCK_BYTES.to_vec() } else { chosen };
    for block_bytes in sizes {
        compare(POOL_BYTES, block_bytes, rounds)?;
        if block_bytes <= 1 << 10 {
            compare(HOT_POOL_BYTES, block_bytes, rounds)?;
        }
    }
    Ok(())
}

type CopyBatch = Box<dyn Fn(&Window, &Window, &[Span])>;

/// One way to copy a batch.
struct Contender {
    name: String,
    copy: CopyBatch,
}

fn contenders() -> Vec<Contender> {
    let mut all = vec![Contender { name: "memcpy loop".to_owned(), copy: Box::new(memcpy_loop) }];
    for kernels in Kernels::all_available() {
        for hint in [Hint::Cached, Hint::Streaming] {
            let copy = move |local: &Window, remote: &Window, spans: &[Span]| {
                scatter_with(kernels, local, remote, Direction::Write, spans, hint)
                    .expect("the spans lie in the pools");
            };
            let name = format!("{} {hint:?}", kernels.name());
            all.push(Contender { name, copy: Box::new(copy) });
        }
    }
    // As a worker does it that yields between pieces.
    let yielding = |local: &Window, remote: &Window, spans: &[Span]| {
        let per_turn = spans.first().map_or(1, |span| (64 << 10) / span.len).max(1);
        for turn in spans.chunks(per_turn as usize) {
            penstock_memory::copy::scatter(local, remote, Direction::Write, turn, Hint::Streaming)
                .expect("the spans lie in the pools");
        }
    };
    all.push(Contender { name: "best, 64 KiB a turn".to_owned(), copy: Box::new(yielding) });
    all
}

fn memcpy_loop(local: &Window, remote: &Window, spans: &[Span]) {
    for span in spans {
        // SAFETY: the spans come from blocks of the two pools, which are apart.
        unsafe {
            let src = local.as_ptr().add(span.local as usize).cast_const();
            let dst = remote.as_ptr().add(span.remote as usize);
            std::ptr::copy_nonoverlapping(src, dst, span.len as usize);
        }
    }
}

fn pool(bytes: u64, block_bytes: u64, seed: u64) -> Result<(Pool, Blocks), Box<dyn Error>> {
    // Tiny blocks would need millions of slots: spread them over the pool a cache line apart.
    let slot = block_bytes.next_multiple_of(64);
    let spec = PoolSpec::host(bytes).block(slot).pages(Pages::Small).rights(Rights::READ_WRITE);
    let pool = Pool::create(spec)?;
    pool.window().fill(0, pool.bytes(), seed as u8)?;
    pool.blocks().shuffle(seed);
    let blocks = pool.take(pool.blocks_total() as usize)?;
    Ok((pool, blocks))
}

fn compare(pool_bytes: u64, block_bytes: u64, rounds: usize) -> Result<(), Box<dyn Error>> {
    let (local, local_blocks) = pool(pool_bytes, block_bytes, 7)?;
    let (remote, remote_blocks) = pool(pool_bytes, block_bytes, 8)?;
    let spans: Vec<Span> = (0..local_blocks.len())
        .filter_map(|i| {
            let (local, remote) = (local_blocks.offset(i)?, remote_blocks.offset(i)?);
            Some(Span { local, remote, len: block_bytes })
        })
        .collect();
    let batch = (BATCH_BYTES / block_bytes).min(BATCH_BLOCKS_MAX).min(spans.len() as u64) as usize;
    let mut batches = spans.chunks_exact(batch).cycle();
    let contenders = contenders();
    let mut times_ns = vec![Vec::with_capacity(rounds); contenders.len()];
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            let which = (round + turn) % contenders.len();
            let batch = batches.next().ok_or("the pool holds less than a batch")?;
            let start = Instant::now();
            (contenders[which].copy)(local.window(), remote.window(), batch);
            times_ns[which].push(start.elapsed().as_nanos() as f64);
        }
    }
    let total = batch as u64 * block_bytes;
    let place = if pool_bytes == POOL_BYTES { "in large pools" } else { "in the cache" };
    println!("{batch} blocks of {block_bytes} B {place} (default hint: {:?})", hint_for(total));
    for (contender, times) in contenders.iter().zip(&times_ns) {
        let ratios = times_ns[0].iter().zip(times).map(|(base, time)| base / time).collect();
        let (half, least) = (median(times.clone()), times.iter().copied().fold(f64::MAX, f64::min));
        println!(
            "  {:<20} {:>9.1} us median {:>9.1} min {:>8.1} ns/block {:>6.2} GB/s {:>6.3}x memcpy",
            contender.name,
            half / 1e3,
            least / 1e3,
            half / batch as f64,
            total as f64 / half,
            median(ratios),
        );
    }
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
