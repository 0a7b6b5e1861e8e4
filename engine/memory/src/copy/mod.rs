//! The copy kernels: moving many spans between two windows as fast as the memory allows.
//!
//! - `batch`: spans with their bounds checked, the only thing a kernel ever sees
//! - `cached`: plain stores, for what is small or will be read soon
//! - `streaming`: several spans at once past the cache, for what is larger than it
//! - `x86`: the instruction sets' own way to move a cache line
//! - `kernels`: which of them this processor can run, chosen once
//!
//! # Concurrent writers
//!
//! The bytes may be written by other threads and processes while they are copied: that is what
//! shared memory between cooperating peers is. So no kernel makes a reference to them, reads a
//! byte twice to decide anything, or branches on one: a race can only tear the *data*, whose
//! consistency is its owners' business and is announced by a notification or counter after it.

mod batch;
mod cached;
mod kernels;
#[cfg(target_arch = "x86_64")]
mod streaming;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::atomic::{Ordering, fence};

use penstock_core::{Direction, Span};

pub(crate) use self::batch::check_bounds;
use self::batch::{CopyBatch, Overlap};
pub use self::kernels::{Kernels, kernels};
use crate::window::Window;

/// From how many bytes in all a transfer goes past the cache.
///
/// Below, plain stores are as fast and leave the bytes in the cache, where the reader finds them;
/// above, they would push everything else out and read every destination line for nothing.
pub const STREAMING_BYTES_MIN: u64 = 1 << 20;

/// Shorter spans use plain stores in any case: their partial first and last lines would eat the
/// gain.
const STREAMING_SPAN_BYTES_MIN: u64 = 1 << 10;

const LINE_BYTES: u64 = 64;

/// Whether the bytes of a transfer should pass through the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// Plain stores: small, or read again soon.
    Cached,
    /// Non-temporal stores: much more than the cache should hold.
    Streaming,
}

/// The right hint for a *transfer* of `total_bytes`, also where it is copied in smaller pieces.
pub fn hint_for(total_bytes: u64) -> Hint {
    if total_bytes >= STREAMING_BYTES_MIN { Hint::Streaming } else { Hint::Cached }
}

/// Has bytes fetched that are to be read soon, so that the copy does not wait for memory. What lies beyond the window is not.
#[inline]
pub fn prefetch_read(window: &Window, offset: u64, len: u64) {
    lines(window, offset, len).for_each(|line| {
        #[cfg(target_arch = "x86_64")]
        x86::prefetch_line(line);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    });
}

/// The same for bytes that are to be written soon. A write that waits for memory holds up all writes behind it, whatever they are.
#[inline]
pub fn prefetch_write(window: &Window, offset: u64, len: u64) {
    lines(window, offset, len).for_each(|line| {
        #[cfg(target_arch = "x86_64")]
        x86::prefetch_line_to_write(line);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    });
}

/// An address in each line of cache that these bytes lie in; of a window that begins within a line the last one may be missing.
fn lines(window: &Window, offset: u64, len: u64) -> impl Iterator<Item = *const u8> {
    let end = offset.saturating_add(len).min(window.len());
    let first = offset.saturating_sub((window.as_ptr() as u64 + offset) % LINE_BYTES);
    (first..end).step_by(LINE_BYTES as usize).map(|at| window.as_ptr().wrapping_add(at as usize).cast_const())
}

/// Why a batch was refused. Nothing was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// A span leaves one of the windows.
    #[error("span {index} ({span:?}) leaves a window: {local_len} B local, {remote_len} B remote")]
    OutOfBounds {
        /// Which span of the batch.
        index: usize,
        span: Span,
        /// Bytes of the local window.
        local_len: u64,
        /// Bytes of the remote window.
        remote_len: u64,
    },
    /// The destination may not be written.
    #[error("the destination is mapped read only: its owner gives no right to write")]
    ReadOnly,
}

/// Copies `spans` between two windows, with the best kernel this processor has; answers the bytes
/// moved.
///
/// All bounds are checked before the first byte moves. When it returns, every byte is ordered
/// before whatever this thread publishes next with a release store: non-temporal stores are
/// fenced inside. A span whose two ranges overlap is moved as by `memmove`; what a destination
/// holds that overlaps *another* span's source or destination is not defined.
pub fn scatter(
    local: &Window,
    remote: &Window,
    direction: Direction,
    spans: &[Span],
    hint: Hint,
) -> Result<u64, CopyError> {
    scatter_by(kernels, local, remote, direction, spans, hint)
}

/// As [`scatter`], with chosen kernels: for tests and benches.
pub fn scatter_with(
    kernels: &Kernels,
    local: &Window,
    remote: &Window,
    direction: Direction,
    spans: &[Span],
    hint: Hint,
) -> Result<u64, CopyError> {
    scatter_by(|| kernels, local, remote, direction, spans, hint)
}

/// The kernels are asked for where they are needed.
#[inline(always)]
fn scatter_by<'k>(
    kernels: impl FnOnce() -> &'k Kernels,
    local: &Window,
    remote: &Window,
    direction: Direction,
    spans: &[Span],
    hint: Hint,
) -> Result<u64, CopyError> {
    if let [span] = spans
        && span.len < STREAMING_SPAN_BYTES_MIN
    {
        return cached::copy_single(local, remote, direction, span);
    }
    let batch = CopyBatch::checked(local, remote, direction, spans)?;
    let long = batch.span_bytes_mean() >= STREAMING_SPAN_BYTES_MIN;
    match (batch.overlap(), hint) {
        (Overlap::Some, _) => cached::move_in_order(&batch),
        (Overlap::None, Hint::Streaming) if long => kernels().streaming(&batch),
        (Overlap::None, _) => cached::copy(&batch),
    }
    Ok(batch.bytes())
}

/// Orders every earlier store of this thread, non-temporal ones included, before every later one.
///
/// [`scatter`] does this itself; it is here for other writers of non-temporal stores.
#[inline]
pub fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2, to which the instruction belongs.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    // SYNC copied-bytes: pairs with the Acquire by which a reader learns of the publication; also
    // keeps the compiler from moving stores across.
    fence(Ordering::Release);
}

#[cfg(test)]
mod tests;
