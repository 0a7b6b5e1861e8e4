//! Plain stores: for what is small, or will be read soon.

use std::ptr;

use penstock_core::{Direction, Span};

use super::CopyError;
use super::batch::{CopyBatch, Move};
use crate::window::Window;

/// The longest copy that is cheaper in place than as a call, in bytes.
const IN_PLACE_BYTES_MAX: usize = 64;

/// Spans of this many bytes on average have the start of a later one asked for in advance: among
/// shorter ones the processor looks far enough ahead by itself.
const PREFETCH_BYTES_MIN: u64 = 64;
/// How many spans in advance.
const PREFETCH_SPANS: usize = 8;

/// Copies every span, in order, through the cache.
pub(super) fn copy(batch: &CopyBatch<'_>) {
    if batch.span_bytes_mean() >= PREFETCH_BYTES_MIN {
        return copy_with_prefetch(batch);
    }
    batch.for_each(|one| {
        // SAFETY: a batch's ranges are in bounds and writable, and this batch's spans do not
        // overlap themselves (`scatter` asked).
        unsafe { copy_one(one) };
    });
}

/// Copies one short span: what a batch costs is felt only there.
#[inline]
pub(super) fn copy_single(
    local: &Window,
    remote: &Window,
    direction: Direction,
    span: &Span,
) -> Result<u64, CopyError> {
    let one = Move::checked(local, remote, direction, span)?;
    // SAFETY: `checked` found both ranges in bounds and the destination writable, and they do not
    // overlap, or `ptr::copy` allows it.
    unsafe {
        if one.dst.addr().abs_diff(one.src.addr()) < one.len {
            ptr::copy(one.src, one.dst, one.len);
        } else {
            copy_one(one);
        }
    }
    Ok(span.len)
}

fn copy_with_prefetch(batch: &CopyBatch<'_>) {
    let mut later = batch.moves().skip(PREFETCH_SPANS);
    for one in batch.moves() {
        if let Some(later) = later.next() {
            prefetch(later);
        }
        // SAFETY: as in `copy`.
        unsafe { copy_one(one) };
    }
}

/// Asks for the first line of both sides, the destination's to be written.
#[inline(always)]
fn prefetch(_one: Move) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE, and takes a prefetch for writing for nothing where
    // it does not know it; a prefetch never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(_one.src.cast::<i8>());
        _mm_prefetch::<_MM_HINT_ET0>(_one.dst.cast_const().cast::<i8>());
    }
}

/// Copies every span, in order, where a span's ranges may overlap.
pub(super) fn move_in_order(batch: &CopyBatch<'_>) {
    for one in batch.moves() {
        // SAFETY: a batch's ranges are in bounds and writable; `ptr::copy` allows overlap.
        unsafe { ptr::copy(one.src, one.dst, one.len) };
    }
}

/// # Safety
/// Both ranges are valid for `len` bytes, writable at `dst`, and do not overlap.
#[inline(always)]
pub(super) unsafe fn copy_one(one: Move) {
    // SAFETY: as promised to this function.
    unsafe {
        if one.len <= IN_PLACE_BYTES_MAX {
            copy_in_place(one);
        } else {
            ptr::copy_nonoverlapping(one.src, one.dst, one.len);
        }
    }
}

/// Copies up to 64 bytes as two pieces of fixed size that may cover a byte twice: no loop and no
/// call. Eight bytes are one store, so that where they are aligned they are seen whole.
///
/// # Safety
/// As for [`copy_one`], and `len <= IN_PLACE_BYTES_MAX`.
#[inline(always)]
unsafe fn copy_in_place(one: Move) {
    // SAFETY: `len` is at least the size of one piece in every arm.
    unsafe {
        match one.len {
            8 => one.dst.cast::<u64>().write_unaligned(one.src.cast::<u64>().read_unaligned()),
            33.. => copy_ends::<32>(one),
            17.. => copy_ends::<16>(one),
            9.. => copy_ends::<8>(one),
            4.. => copy_ends::<4>(one),
            2.. => copy_ends::<2>(one),
            1 => copy_ends::<1>(one),
            0 => {}
        }
    }
}

/// Copies the first and the last `PIECE` bytes.
///
/// # Safety
/// As for [`copy_one`], and `len` is from `PIECE` to twice `PIECE`.
#[inline(always)]
unsafe fn copy_ends<const PIECE: usize>(Move { dst, src, len }: Move) {
    let last = len - PIECE;
    // SAFETY: both pieces lie in the ranges, as promised to this function.
    unsafe {
        ptr::copy_nonoverlapping(src, dst, PIECE);
        ptr::copy_nonoverlapping(src.add(last), dst.add(last), PIECE);
    }
}
