//! Sizes that are related to each other, with the relation checked when this crate is compiled.

/// Bytes of one line: a cache line, and the unit of every ring.
pub const LINE_BYTES: usize = 64;

/// The most bytes a notification may carry.
pub const NOTE_BYTES_MAX: usize = 4096;

/// Bytes of a note that travel in the record's first line, beside its header.
pub const NOTE_INLINE_BYTES: usize = 32;

/// Lines that the largest notification takes in a ring.
pub const NOTE_LINES_MAX: usize = 1 + (NOTE_BYTES_MAX - NOTE_INLINE_BYTES).div_ceil(LINE_BYTES);

/// Lines of one notification ring. A power of two.
pub const RING_LINES: usize = 1024;

/// How many bytes a worker moves before it looks at anything else while there is anything else: a small
/// transfer that waits behind gigabytes waits for at most this much copying.
pub const UNIT_BYTES: u64 = 64 * 1024;

/// Units that a worker moves in one go while nothing else waits for it: what begins a copy is paid once for
/// all. More makes a transfer that arrives meanwhile, or an owner who wants its memory back, wait longer.
pub const UNITS_AT_ONCE: u64 = 8;

/// The same where the kernel copies between two processes: each call costs several microseconds more.
pub const UNITS_AT_ONCE_BY_KERNEL: u64 = 2 * UNITS_AT_ONCE;

/// The longest copy that is not interrupted, and so the most that a writer frozen in it can still land.
pub const COPY_BYTES_MAX: u64 = UNITS_AT_ONCE_BY_KERNEL * UNIT_BYTES;

/// Spans that are expanded from a plan and handed to a lane at once.
pub const SPANS_PER_POST: usize = 64;

/// The most batches and announcements that one worker's lane to one peer may have under way.
pub const IN_FLIGHT_PER_LANE_MAX: usize = 256;

/// The most workers of one engine.
pub const WORKERS_MAX: usize = 16;

/// The most peers of one engine.
pub const PEERS_MAX: usize = 1024;

/// Words of a ready bitmap.
pub const READY_WORDS: usize = PEERS_MAX / 64;

/// The most arrival counters of one engine.
pub const COUNTERS_MAX: usize = 4096;

/// How many withdrawals of memory a peer may lag behind before it must build its plans again.
pub const WITHDRAWALS_KEPT: usize = 256;

/// The most transfers of one engine between submission and the drop of their handle.
pub const TRANSFERS_MAX: usize = 65_536;

/// The most bytes of one control frame, header included.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// The most descriptors that one control frame may carry (the kernel's own limit is 253).
pub const FRAME_TOKENS_MAX: usize = 64;

const _: () = assert!(RING_LINES.is_power_of_two(), "ring positions are masked, not divided");
const _: () = assert!(
    RING_LINES >= 4 * NOTE_LINES_MAX,
    "one largest notification must not fill a ring, or a second sender's turn never comes"
);
const _: () = assert!(PEERS_MAX.is_multiple_of(64), "a ready word holds 64 peers");
const _: () = assert!(
    FRAME_TOKENS_MAX >= 4 + 1 + WORKERS_MAX,
    "an offer carries its shared segments and one bell for each worker and the application"
);
const _: () = assert!(TRANSFERS_MAX <= u32::MAX as usize, "slots are named by 32-bit indices");
