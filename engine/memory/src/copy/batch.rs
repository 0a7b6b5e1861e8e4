//! Spans with their bounds checked.

use std::marker::PhantomData;

use penstock_core::{Direction, Span};

use super::CopyError;
use crate::window::Window;

/// One copy: `len` bytes from `src` to `dst`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
    pub(super) len: usize,
}

impl Move {
    /// The one span of a batch, with its bounds checked.
    #[inline]
    pub(super) fn checked(
        local: &Window,
        remote: &Window,
        direction: Direction,
        span: &Span,
    ) -> Result<Self, CopyError> {
        let (source, from, destination, to) = match direction {
            Direction::Write => (local, span.local, remote, span.remote),
            Direction::Read => (remote, span.remote, local, span.local),
        };
        if !destination.is_writable() {
            return Err(CopyError::ReadOnly);
        }
        check_bounds(std::slice::from_ref(span), local.len(), remote.len())?;
        // SAFETY: both ranges were found inside their windows just now.
        let (dst, src) = unsafe { (destination.as_ptr().add(to as usize), source.as_ptr().add(from as usize)) };
        Ok(Self { dst, src, len: span.len as usize })
    }
}

/// Whether any span's two ranges overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlap {
    None,
    Some,
}

/// Spans whose ranges all lie in their windows, with a writable destination. That they do is what
/// every kernel's safety rests on, and only `checked` makes one.
pub(super) struct CopyBatch<'a> {
    dst: *mut u8,
    src: *const u8,
    direction: Direction,
    spans: &'a [Span],
    bytes: u64,
    windows_overlap: bool,
    windows: PhantomData<&'a Window>,
}

impl<'a> CopyBatch<'a> {
    pub(super) fn checked(
        local: &'a Window,
        remote: &'a Window,
        direction: Direction,
        spans: &'a [Span],
    ) -> Result<Self, CopyError> {
        let (source, destination) = match direction {
            Direction::Write => (local, remote),
            Direction::Read => (remote, local),
        };
        if !destination.is_writable() {
            return Err(CopyError::ReadOnly);
        }
        let bytes = check_bounds(spans, local.len(), remote.len())?;
        Ok(Self {
            dst: destination.as_ptr(),
            src: source.as_ptr().cast_const(),
            direction,
            spans,
            bytes,
            windows_overlap: overlapping(local, remote),
            windows: PhantomData,
        })
    }

    /// Bytes of all spans.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a span on average; 0 where there are none.
    pub(super) fn span_bytes_mean(&self) -> u64 {
        self.bytes.checked_div(self.spans.len() as u64).unwrap_or(0)
    }

    /// The copies to make, in the order of the spans.
    #[inline(always)]
    pub(super) fn moves(&self) -> impl Iterator<Item = Move> + '_ {
        let (dst, src, write) = (self.dst, self.src, self.direction == Direction::Write);
        self.spans.iter().map(move |span| {
            let (from, to) = if write { (span.local, span.remote) } else { (span.remote, span.local) };
            // SAFETY: `checked` found both ranges inside their windows, which stay mapped for 'a.
            unsafe { Move { dst: dst.add(to as usize), src: src.add(from as usize), len: span.len as usize } }
        })
    }

    /// Calls `each` with every copy to make, in the order of the spans: `moves` with the direction
    /// decided once and not per span, which the shortest spans feel.
    #[inline(always)]
    pub(super) fn for_each(&self, mut each: impl FnMut(Move)) {
        let (dst, src) = (self.dst, self.src);
        // SAFETY: `checked` found both ranges inside their windows, which stay mapped for 'a.
        let mut one = |to: u64, from: u64, len: u64| unsafe {
            each(Move { dst: dst.add(to as usize), src: src.add(from as usize), len: len as usize });
        };
        match self.direction {
            Direction::Write => self.spans.iter().for_each(|span| one(span.remote, span.local, span.len)),
            Direction::Read => self.spans.iter().for_each(|span| one(span.local, span.remote, span.len)),
        }
    }

    /// Looks for spans that overlap themselves, which only windows that overlap can have.
    pub(super) fn overlap(&self) -> Overlap {
        let meets = |m: Move| m.dst.addr().abs_diff(m.src.addr()) < m.len;
        if self.windows_overlap && self.moves().any(meets) { Overlap::Some } else { Overlap::None }
    }
}

/// The bytes of all spans if every one lies in both windows.
#[inline]
pub(crate) fn check_bounds(spans: &[Span], local_len: u64, remote_len: u64) -> Result<u64, CopyError> {
    // One pass without an early exit and without a comparison, as refusals are bugs. Where no number has one of its two
    // highest bits, no end wraps, and an end that is not behind its window is less than that one's length and one...
    let (local_end, remote_end) = (local_len.wrapping_add(1), remote_len.wrapping_add(1));
    let (mut locals, mut remotes, mut lens) = (local_len, remote_len, 0_u64);
    let (mut below, mut bytes) = (u64::MAX, 0_u64);
    for span in spans {
        (locals, remotes, lens) = (locals | span.local, remotes | span.remote, lens | span.len);
        below &= span.local.wrapping_add(span.len).wrapping_sub(local_end);
        below &= span.remote.wrapping_add(span.len).wrapping_sub(remote_end);
        bytes = bytes.wrapping_add(span.len);
    }
    if (locals | remotes | lens) >> 62 == 0 && below >> 63 == 1 {
        return Ok(bytes);
    }
    let shorter = local_len.min(remote_len);
    // ... and the one to blame is looked for only now.
    let Some(index) = spans.iter().position(|span| leaves(span, local_len, remote_len, shorter)) else {
        return Ok(bytes);
    };
    Err(CopyError::OutOfBounds { index, span: spans[index], local_len, remote_len })
}

#[inline(always)]
fn leaves(span: &Span, local_len: u64, remote_len: u64, shorter: u64) -> bool {
    // The subtractions wrap only where `len` is too long for a window, which the first test saw.
    (span.len > shorter)
        | (span.local > local_len.wrapping_sub(span.len))
        | (span.remote > remote_len.wrapping_sub(span.len))
}

fn overlapping(a: &Window, b: &Window) -> bool {
    let (a_start, b_start) = (a.base_address(), b.base_address());
    a_start < b_start + b.len() && b_start < a_start + a.len()
}
