//! Non-temporal stores over several spans at once.
//!
//! A single core's copy is limited by how many cache misses it has under way. The hardware
//! prefetcher follows one run of addresses at a time and stops at every page's end, so with
//! scattered blocks it is cold again every few kilobytes. Walking several spans in turn keeps
//! that many runs going, asking for the next page shortly before its turn warms the address
//! translation as well, and stores that pass the cache need not read a line to overwrite it.
//!
//! The numbers below were chosen with `examples/kernels.rs`: the processor has some ten to sixteen line
//! buffers, which loads and non-temporal stores share. How long a step should be is the processor's
//! own matter. Intel's like the short one, by a few per cent; AMD's (seen on Zen 3) close their buffers when
//! the stores change their place too early, and are twice as quick with the long one.

use std::ptr;

use super::batch::{CopyBatch, Move};
use super::{STREAMING_SPAN_BYTES_MIN, cached};

/// Bytes of a cache line, the unit of a non-temporal store.
const LINE: usize = 64;
/// Spans walked in turn.
const WAYS: usize = 4;
/// Bytes copied of one span before the next has its turn, on processors that like it short.
pub(super) const SHORT_STEP: usize = 256;
/// The same, on processors that like it long.
pub(super) const LONG_STEP: usize = 512;
/// Bytes of a page, at whose end the prefetcher stops.
const PAGE: usize = 4 << 10;
/// Spans too few for all ways are cut in pieces, none smaller than this.
const PIECE_BYTES_MIN: usize = 4 << 10;

/// An instruction set's way to copy whole cache lines past the cache.
pub(super) trait Lines {
    /// Copies `bytes`, a multiple of 64 and not zero.
    ///
    /// # Safety
    /// The processor has the instruction set; both ranges are valid for `bytes` and apart; `dst`
    /// is aligned to 64.
    unsafe fn stream(dst: *mut u8, src: *const u8, bytes: usize);

    /// Asks for the line at `src` to be read into the cache. Any address will do.
    fn prefetch(src: *const u8);
}

/// Whole lines still to copy of one piece.
#[derive(Clone, Copy)]
struct Stream {
    dst: *mut u8,
    src: *const u8,
    left: usize,
}

impl Stream {
    /// Once a page, in the step that comes so close to its end: asks for the next one's start.
    #[inline(always)]
    fn prefetch_next_page<L: Lines, const STEP: usize>(&self) {
        let page_left = PAGE - self.src.addr() % PAGE;
        if page_left <= 2 * STEP && page_left > STEP && page_left < self.left {
            let next = self.src.wrapping_add(page_left);
            L::prefetch(next);
            // A second miss in a row is what starts the hardware prefetcher on the new page.
            L::prefetch(next.wrapping_add(LINE));
        }
    }
}

/// Copies the batch with `L`, `STEP` bytes of a span at a time. The stores are only ordered by a fence after it.
///
/// # Safety
/// The processor has `L`'s instruction set; no span overlaps itself.
#[inline(always)]
pub(super) unsafe fn copy<L: Lines, const STEP: usize>(batch: &CopyBatch<'_>) {
    let mut source = cut(batch);
    let mut streams = [Stream { dst: ptr::null_mut(), src: ptr::null(), left: 0 }; WAYS];
    let mut live = 0;
    while live < WAYS {
        // SAFETY: a batch's ranges are valid, and apart as promised to this function.
        let Some(stream) = (unsafe { source.next_stream() }) else { break };
        streams[live] = stream;
        live += 1;
    }
    let mut turn = 0;
    while live > 0 {
        if turn >= live {
            turn = 0;
        }
        let stream = &mut streams[turn];
        let bytes = stream.left.min(STEP);
        stream.prefetch_next_page::<L, STEP>();
        // SAFETY: `bytes` is not zero, a multiple of 64 and at most what is left of a valid
        // piece whose `dst` next_stream() aligned.
        unsafe {
            // A whole step has a length known to the compiler, which then unrolls it.
            if bytes == STEP {
                L::stream(stream.dst, stream.src, STEP);
            } else {
                L::stream(stream.dst, stream.src, bytes);
            }
            stream.dst = stream.dst.add(bytes);
            stream.src = stream.src.add(bytes);
        }
        stream.left -= bytes;
        turn += 1;
        if stream.left == 0 {
            // SAFETY: as above.
            if let Some(next) = unsafe { source.next_stream() } {
                *stream = next;
            } else {
                live -= 1;
                turn -= 1;
                streams.swap(turn, live);
            }
        }
    }
}

/// The batch's spans, cut so that there is work for every way.
struct Pieces<M> {
    moves: M,
    rest: Move,
    piece_bytes_max: usize,
}

#[inline(always)]
fn cut<'a>(batch: &'a CopyBatch<'_>) -> Pieces<impl Iterator<Item = Move> + 'a> {
    let share = (batch.bytes() as usize / WAYS).next_multiple_of(PIECE_BYTES_MIN);
    Pieces {
        moves: batch.moves(),
        rest: Move { dst: ptr::null_mut(), src: ptr::null(), len: 0 },
        piece_bytes_max: share.max(PIECE_BYTES_MIN),
    }
}

impl<M: Iterator<Item = Move>> Pieces<M> {
    /// Copies everything that is too short or not a whole line by plain stores, up to the next
    /// piece with whole lines, and answers those.
    ///
    /// # Safety
    /// The ranges of all moves are valid and apart.
    #[inline(always)]
    unsafe fn next_stream(&mut self) -> Option<Stream> {
        loop {
            if self.rest.len == 0 {
                self.rest = self.moves.next()?;
            }
            // SAFETY: every part taken lies in the move it was cut from.
            unsafe {
                if self.rest.len < STREAMING_SPAN_BYTES_MIN as usize {
                    let short = take(&mut self.rest, usize::MAX);
                    cached::copy_one(short);
                    continue;
                }
                let mut piece = take(&mut self.rest, self.piece_bytes_max);
                let before_lines = piece.dst.addr().wrapping_neg() % LINE;
                let head = take(&mut piece, before_lines);
                cached::copy_one(head);
                let lines = piece.len / LINE * LINE;
                let body = take(&mut piece, lines);
                cached::copy_one(piece);
                if body.len > 0 {
                    return Some(Stream { dst: body.dst, src: body.src, left: body.len });
                }
            }
        }
    }
}

/// Cuts up to `bytes` off the front of `from`.
///
/// # Safety
/// `from`'s ranges are valid.
#[inline(always)]
unsafe fn take(from: &mut Move, bytes: usize) -> Move {
    let len = from.len.min(bytes);
    let front = Move { len, ..*from };
    // SAFETY: len is at most the move's own, so both stay in or at the end of their ranges.
    unsafe {
        from.dst = from.dst.add(len);
        from.src = from.src.add(len);
    }
    from.len -= len;
    front
}
