//! Floors that go past every check: what the memory does when nobody looks.
#![allow(unsafe_code, reason = "a floor is the bare loop; a check in it would be measured with it")]

use std::alloc::{Layout, alloc_zeroed};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use penstock::memory::Window;
use penstock::{Direction, HostMemory, Span};

/// Copies each of these spans by itself, in order: words where all spans are words, else by the C library's `memcpy`.
///
/// # Panics
///
/// If the windows are shorter than what the spans were checked for, or the destination may not be written.
pub fn copy_each(local: &Window, remote: &Window, direction: Direction, spans: &CheckedSpans, part: Range<usize>) {
    let (source, destination) = match direction {
        Direction::Write => (local, remote),
        Direction::Read => (remote, local),
    };
    assert!(destination.is_writable(), "the destination of a floor is the lab's own");
    assert!(spans.local_len <= local.len() && spans.remote_len <= remote.len(), "the spans were checked for less");
    let (from, to) = (source.as_ptr().cast_const(), destination.as_ptr());
    let pick = |span: &Span| match direction {
        Direction::Write => (span.local as usize, span.remote as usize),
        Direction::Read => (span.remote as usize, span.local as usize),
    };
    if spans.all_words {
        for span in &spans.spans[part] {
            let (near, far) = pick(span);
            // SAFETY: `CheckedSpans` found both ends inside windows at most as long as these, which are
            // borrowed and so stay mapped.
            unsafe { to.add(far).cast::<u64>().write_unaligned(from.add(near).cast::<u64>().read_unaligned()) };
        }
        return;
    }
    for span in &spans.spans[part] {
        let (near, far) = pick(span);
        // SAFETY: as above; and the pools of two ends never overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.add(near), to.add(far), span.len as usize) };
    }
}

/// Spans whose ends are known, so that a bare loop over them stays inside its windows.
#[derive(Debug, Clone)]
pub struct CheckedSpans {
    spans: Arc<[Span]>,
    local_len: u64,
    remote_len: u64,
    all_words: bool,
}

impl CheckedSpans {
    /// Looks at every span once, long before anything is timed.
    pub fn new(spans: Arc<[Span]>) -> Self {
        let end = |of: fn(&Span) -> u64| {
            let ends = spans.iter().map(|span| of(span).checked_add(span.len).expect("an offset in a pool"));
            ends.max().unwrap_or(0)
        };
        let (local_len, remote_len) = (end(|span| span.local), end(|span| span.remote));
        let all_words = spans.iter().all(|span| span.len == 8);
        Self { spans, local_len, remote_len, all_words }
    }

    /// The spans.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }
}

/// Memory that is never written and so costs addresses only: for what looks at bounds and not at bytes.
///
/// It is never freed, so that whatever was told about it may go on looking.
#[derive(Debug)]
pub struct Untouched {
    base: NonNull<u8>,
    len: usize,
}

impl Untouched {
    /// So many bytes; none if the system gives no such range.
    pub fn new(len: usize) -> Option<Self> {
        // No more than the allocator's own alignment: for more it would clear the bytes by hand.
        let layout = Layout::from_size_align(len, align_of::<u64>()).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout has a size.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, len })
    }

    /// A part of it, as an application registers one array among others.
    pub fn view(&self, offset: usize, len: usize) -> Option<HostMemory> {
        let first = self.at(offset, len)?;
        // SAFETY: the range lies inside one allocation that is never freed and never borrowed.
        unsafe { HostMemory::from_raw(first, len).ok() }
    }

    /// The same by the door that asks the kernel.
    pub fn probed(&self, offset: usize, len: usize) -> Option<HostMemory> {
        let first = self.at(offset, len)?;
        // SAFETY: as for `view`.
        unsafe { HostMemory::probed(first, len).ok() }
    }

    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| self.base.as_ptr().wrapping_add(offset))
    }
}

/// Memory of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// The process.
    pub pid: i32,
    /// The first byte, as that process counts.
    pub address: u64,
    /// How many.
    pub bytes: u64,
}

/// Vectors for one system call.
#[derive(Debug)]
struct Vectors(Vec<libc::iovec>);

// SAFETY: they are read by the kernel alone, and what they point to is kept by whoever has them.
unsafe impl Send for Vectors {}
// SAFETY: as above.
unsafe impl Sync for Vectors {}

/// Spans of this process that the kernel writes into another one: the bare system call, ready to be made.
#[derive(Debug, Clone)]
pub struct ForeignWrite {
    pid: i32,
    /// Keeps what the vectors point to.
    _local: Window,
    /// For each call both sides' vectors, and the bytes that it moves.
    calls: Arc<[(Vectors, Vectors, usize)]>,
}

impl ForeignWrite {
    /// Vectors that one call takes at most.
    const VECTORS_MAX: usize = 1024;

    /// Prepares it, long before anything is timed. Refused where a span lies outside either memory.
    pub fn new(local: &Window, target: Foreign, spans: &CheckedSpans) -> io::Result<Self> {
        if spans.local_len > local.len() || spans.remote_len > target.bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a span lies outside its memory"));
        }
        let base = local.as_ptr() as u64;
        let vector = |address: u64, len: u64| libc::iovec { iov_base: address as *mut _, iov_len: len as usize };
        let call = |spans: &[Span]| {
            let here = spans.iter().map(|span| vector(base + span.local, span.len)).collect();
            let there = spans.iter().map(|span| vector(target.address + span.remote, span.len)).collect();
            (Vectors(here), Vectors(there), spans.iter().map(|span| span.len as usize).sum())
        };
        let calls = spans.spans.chunks(Self::VECTORS_MAX).map(call).collect();
        Ok(Self { pid: target.pid, _local: local.clone(), calls })
    }

    /// Writes every span once.
    pub fn write(&self) -> io::Result<()> {
        for (Vectors(here), Vectors(there), bytes) in &*self.calls {
            let (count, far_count) = (here.len() as libc::c_ulong, there.len() as libc::c_ulong);
            // SAFETY: `here` points into a window that this keeps mapped, within its bounds; the kernel checks
            // what `there` points to in the other process, whose memory it is.
            let moved =
                unsafe { libc::process_vm_writev(self.pid, here.as_ptr(), count, there.as_ptr(), far_count, 0) };
            if moved < 0 {
                return Err(io::Error::last_os_error());
            }
            if moved as usize != *bytes {
                return Err(io::Error::new(io::ErrorKind::WriteZero, "the kernel stopped within the spans"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(byte: u8) -> Window {
        HostMemory::from_vec(vec![byte; 64]).unwrap().window().clone()
    }

    fn bytes(window: &Window) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        window.read_into(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn words_and_longer_spans_are_copied_in_both_directions() {
        for len in [8, 9] {
            let spans = CheckedSpans::new([Span { local: 1, remote: 20, len }].into());
            let (local, remote) = (window(1), window(2));
            copy_each(&local, &remote, Direction::Write, &spans, 0..1);
            assert_eq!(bytes(&remote).iter().filter(|&&byte| byte == 1).count(), len as usize);
            let (local, remote) = (window(1), window(2));
            copy_each(&local, &remote, Direction::Read, &spans, 0..1);
            assert_eq!(bytes(&local)[..12].iter().filter(|&&byte| byte == 2).count(), len as usize);
        }
    }

    #[test]
    fn untouched_memory_is_viewed_within_its_bounds() {
        let memory = Untouched::new(1 << 30).unwrap();
        assert_eq!(memory.view(1 << 29, 1 << 29).unwrap().window().len(), 1 << 29);
        assert!(memory.view(1 << 29, (1 << 29) + 1).is_none() && memory.view(usize::MAX, 2).is_none());
        assert!(Untouched::new(0).is_none() && Untouched::new(usize::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "checked for less")]
    fn a_shorter_window_is_noticed() {
        let spans = CheckedSpans::new([Span { local: 60, remote: 0, len: 8 }].into());
        copy_each(&window(1), &window(2), Direction::Write, &spans, 0..1);
    }

    #[test]
    fn the_kernel_writes_spans_of_more_than_one_call_and_no_span_outside() {
        let bytes = 4096 * 16;
        let pool = |byte| HostMemory::from_vec(vec![byte; bytes]).unwrap().window().clone();
        let (local, remote) = (pool(1), pool(2));
        let spans: Arc<[Span]> =
            (0..2048).map(|at| Span { local: at * 32, remote: (2047 - at) * 32, len: 16 }).collect();
        let target = Foreign { pid: std::process::id() as i32, address: remote.as_ptr() as u64, bytes: bytes as u64 };
        let write = ForeignWrite::new(&local, target, &CheckedSpans::new(spans)).unwrap();
        assert_eq!(write.calls.len(), 2);
        write.write().unwrap();
        let mut found = vec![0; bytes];
        remote.read_into(0, &mut found).unwrap();
        assert_eq!(found.iter().filter(|&&byte| byte == 1).count(), 2048 * 16);
        let outside = CheckedSpans::new([Span { local: 0, remote: bytes as u64 - 8, len: 16 }].into());
        assert_eq!(ForeignWrite::new(&local, target, &outside).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let gone = Foreign { pid: i32::MAX, ..target };
        let write = ForeignWrite::new(&local, gone, &CheckedSpans::new([Span { local: 0, remote: 0, len: 8 }].into()));
        assert_eq!(write.unwrap().write().unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
