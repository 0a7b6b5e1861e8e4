//! Orders that look like those of a free list after long use, and are the same in every run.

/// Shuffles so that the order follows from the seed alone.
pub fn shuffle(items: &mut [u32], seed: u64) {
    let mut state = seed;
    for last in (1..items.len()).rev() {
        items.swap(last, (next_random(&mut state) % (last as u64 + 1)) as usize);
    }
}

/// Split-mix: good enough to scatter.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
