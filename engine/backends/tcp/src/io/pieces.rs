//! Where the bytes of one call come from or go to.

use std::marker::PhantomData;
use std::mem;

use penstock_memory::Window;

/// Pieces that one call takes: as many as the kernel accepts (`UIO_MAXIOV`).
pub(crate) const PIECES_MAX: usize = 1024;

/// A list of pieces without the pieces: made once, filled again for each call.
pub(crate) struct PieceSpace {
    vectors: Vec<libc::iovec>,
}

// SAFETY: its pointers are used only through a `Pieces`, which empties the list when it is made and is not `Send`
// itself. What is left in the list when that goes is numbers that nobody looks at.
unsafe impl Send for PieceSpace {}

impl PieceSpace {
    pub(crate) fn new() -> Self {
        Self { vectors: Vec::with_capacity(PIECES_MAX) }
    }
}

/// Why a piece was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PiecesRefused {
    /// It leaves its window.
    OutOfBounds,
    /// There are [`PIECES_MAX`] of them already: do this call first.
    Full,
}

/// The pieces of one call, in order. Whatever they name is borrowed for as long as the call can use it.
pub(crate) struct IoPieces<'a> {
    vectors: &'a mut Vec<libc::iovec>,
    bytes: usize,
    /// More follows at once.
    has_more: bool,
    /// All of it may be written by the kernel.
    is_writable: bool,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl<'a> IoPieces<'a> {
    /// No pieces yet. Nothing is allocated, now or later.
    pub(crate) fn new(space: &'a mut PieceSpace) -> Self {
        space.vectors.clear();
        Self { vectors: &mut space.vectors, bytes: 0, has_more: false, is_writable: true, borrowed: PhantomData }
    }

    /// A part of a window, to send or to receive into. A list with a window that may not be written can only
    /// be sent.
    pub(crate) fn push_window(&mut self, window: &'a Window, offset: u64, len: u64) -> Result<(), PiecesRefused> {
        let (base, len) = range_of(window, offset, len)?;
        self.push(base, len)?;
        self.is_writable &= window.is_writable() || len == 0;
        Ok(())
    }

    /// Bytes to send. A list with such a piece can only be sent.
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) -> Result<(), PiecesRefused> {
        self.push(bytes.as_ptr().cast_mut(), bytes.len())?;
        self.is_writable &= bytes.is_empty();
        Ok(())
    }

    /// Room to receive into.
    pub(crate) fn push_space(&mut self, space: &'a mut [u8]) -> Result<(), PiecesRefused> {
        self.push(space.as_mut_ptr(), space.len())
    }

    fn push(&mut self, base: *mut u8, len: usize) -> Result<(), PiecesRefused> {
        if len == 0 {
            return Ok(());
        }
        let total = self.bytes.checked_add(len).ok_or(PiecesRefused::Full)?;
        join(self.vectors, base, len)?;
        self.bytes = total;
        Ok(())
    }

    /// What is sent next belongs to it: the kernel need not send a packet for this alone.
    pub(crate) fn more_follows(&mut self) {
        self.has_more = true;
    }

    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Bytes in all pieces.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there may be no room for one more piece.
    pub(crate) fn is_full(&self) -> bool {
        self.vectors.len() >= PIECES_MAX
    }

    /// Whether the kernel may write into every piece.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The list as the kernel takes it.
    pub(super) fn vectors(&self) -> &[libc::iovec] {
        self.vectors
    }

    /// A message of these pieces and nothing else. It is good for as long as the pieces are.
    pub(super) fn message(&self) -> libc::msghdr {
        // SAFETY: a plain structure of numbers and pointers, for which zeros mean: no name, no list, no control data.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        // The kernel reads the list and never writes it, whatever the type of the field says.
        message.msg_iov = self.vectors.as_ptr().cast_mut();
        message.msg_iovlen = self.vectors.len() as _;
        message
    }
}

/// Address and length of a part of a window.
pub(super) fn range_of(window: &Window, offset: u64, len: u64) -> Result<(*mut u8, usize), PiecesRefused> {
    let is_inside = offset.checked_add(len).is_some_and(|end| end <= window.len());
    // What is in bounds of mapped memory has an address, so neither number is cut.
    if is_inside {
        Ok((window.as_ptr().wrapping_add(offset as usize), len as usize))
    } else {
        Err(PiecesRefused::OutOfBounds)
    }
}

/// One more range at the end of a list. Neighbours become one piece: the kernel walks a list more slowly than a range.
pub(super) fn join(vectors: &mut Vec<libc::iovec>, base: *mut u8, len: usize) -> Result<(), PiecesRefused> {
    let is_full = vectors.len() == PIECES_MAX;
    match vectors.last_mut() {
        Some(last) if last.iov_base.addr() + last.iov_len == base.addr() => last.iov_len += len,
        _ if is_full => return Err(PiecesRefused::Full),
        _ => vectors.push(libc::iovec { iov_base: base.cast(), iov_len: len }),
    }
    Ok(())
}
