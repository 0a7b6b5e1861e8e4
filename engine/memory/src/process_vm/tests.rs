//! With real child processes: forks of this one, which have the same memory at the same addresses and obey
//! single bytes over pipes, by calls that are safe after a fork.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use penstock_core::Span;
use proptest::prelude::*;

use super::*;
use crate::HostMemory;

const PAGE: usize = 4096;
const PAGES: usize = 64;
const BYTES: usize = PAGES * PAGE;

/// A private mapping, which a forked child has of its own at the same address.
struct Theirs(*mut u8);

impl Theirs {
    fn map(byte: u8) -> Self {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice, filled while nobody else knows it.
        unsafe {
            let base = libc::mmap(ptr::null_mut(), BYTES, prot, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            ptr::write_bytes(base.cast::<u8>(), byte, BYTES);
            Self(base.cast())
        }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made; this process keeps no reference to it.
        unsafe { libc::munmap(self.0.cast(), BYTES) };
    }
}

/// A forked child that waits for orders, and its memory.
struct Child {
    pid: i32,
    memory: Theirs,
    orders: File,
    answers: File,
    process: Arc<ForeignProcess>,
}

impl Child {
    fn fork(byte: u8) -> Self {
        let probe_words = ProbeWords::of_this_process(0x5eed);
        let memory = Theirs::map(byte);
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let ((orders_in, orders), (answers, answers_out)): ((OwnedFd, OwnedFd), (OwnedFd, OwnedFd)) = (pipe(), pipe());
        // SAFETY: the child only makes calls that are safe after fork; see `obey`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // It must not outlive its parent, whose other children hold copies of its pipe.
            // SAFETY: a plain call, and safe after fork.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            obey(memory.0, orders_in.as_raw_fd(), answers_out.as_raw_fd());
        }
        assert!(pid > 0);
        let watch = Arc::new(ProcessWatch::of(pid as u32));
        let process = ForeignProcess::reach(&watch, probe_words).expect("a child of the same user can be reached");
        Self { pid, memory, orders: orders.into(), answers: answers.into(), process }
    }

    fn memory(&self) -> ProcessVmMemory {
        ProcessVmMemory::new(&self.process, self.memory.0.addr() as u64, BYTES as u64, true).unwrap()
    }

    /// What the child itself says that it has.
    fn dump(&mut self) -> Vec<u8> {
        self.orders.write_all(b"d").unwrap();
        let mut found = vec![0; BYTES];
        self.answers.read_exact(&mut found).unwrap();
        found
    }

    fn order(&mut self, order: &[u8]) {
        self.orders.write_all(order).unwrap();
        self.answers.read_exact(&mut [0]).unwrap();
    }

    /// The child unmaps one of its pages.
    fn unmap(&mut self, page: u8) {
        self.order(&[b'u', page]);
    }

    fn kill(&self) {
        // SAFETY: our own child, waited for below.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), 0);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The child's life: reads, writes, unmapping and the end, all safe after a fork.
fn obey(memory: *mut u8, orders: i32, answers: i32) -> ! {
    let next = || {
        let mut order = 0_u8;
        // SAFETY: one byte of this stack; the end of the pipe ends the child.
        match unsafe { libc::read(orders, (&raw mut order).cast(), 1) } {
            1 => order,
            // SAFETY: ends the child without running anything of the parent's.
            _ => unsafe { libc::_exit(0) },
        }
    };
    loop {
        let order = next();
        let (mut from, mut left) = (memory.cast_const(), BYTES);
        if order != b'd' {
            let page = usize::from(next());
            // SAFETY: a page of the child's own memory, which nothing of the child uses.
            unsafe { libc::munmap(memory.add(page * PAGE).cast(), PAGE) };
            left = 1;
            from = (&raw const order).cast();
        }
        while left > 0 {
            // SAFETY: the kernel reads what is mapped of this child's memory.
            let written = unsafe { libc::write(answers, from.cast(), left) };
            if written <= 0 {
                // SAFETY: as above.
                unsafe { libc::_exit(1) };
            }
            from = from.wrapping_add(written as usize);
            left -= written as usize;
        }
    }
}

fn here(bytes: Vec<u8>) -> Window {
    HostMemory::from_vec(bytes).unwrap().window().clone()
}

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn bytes_of(window: &Window) -> Vec<u8> {
    let mut found = vec![0; window.len() as usize];
    window.read_into(0, &mut found).unwrap();
    found
}

#[test]
fn bytes_go_to_another_process_and_come_back_at_any_alignment() {
    let mut child = Child::fork(1);
    let (ours, source) = (here(pattern()), pattern());
    let spans = [
        Span { local: 3, remote: 0, len: 1 },
        Span { local: 5, remote: 4093, len: 9 },
        Span { local: 100, remote: 8191, len: 0 },
        Span { local: 4095, remote: 20_001, len: 70_003 },
        Span { local: (BYTES - 1) as u64, remote: (BYTES - 1) as u64, len: 1 },
    ];
    let total = spans.iter().map(|span| span.len).sum::<u64>();
    assert_eq!(scatter(&ours, &child.memory(), Direction::Write, &spans), Ok(total));
    let mut model = vec![1; BYTES];
    for span in spans {
        let (from, to, len) = (span.local as usize, span.remote as usize, span.len as usize);
        model[to..to + len].copy_from_slice(&source[from..from + len]);
    }
    assert!(child.dump() == model, "the child does not hold what was written");
    let back = here(vec![0; BYTES]);
    let whole = [Span { local: 0, remote: 0, len: BYTES as u64 }];
    assert_eq!(scatter(&back, &child.memory(), Direction::Read, &whole), Ok(BYTES as u64));
    assert!(bytes_of(&back) == model, "what was read is not what the child holds");
}

#[test]
fn more_ranges_than_one_call_takes_are_moved_and_neighbours_are_one_range() {
    let mut child = Child::fork(9);
    let (ours, source) = (here(pattern()), pattern());
    // Every other 16 bytes: no neighbours, so 5,000 of them take five calls.
    let spans: Vec<Span> = (0..5000).map(|at| Span { local: at * 48, remote: at * 32, len: 16 }).collect();
    assert_eq!(scatter(&ours, &child.memory(), Direction::Write, &spans), Ok(80_000));
    let mut model = vec![9; BYTES];
    for span in &spans {
        let (from, to) = (span.local as usize, span.remote as usize);
        model[to..to + 16].copy_from_slice(&source[from..from + 16]);
    }
    assert!(child.dump() == model);
    let mut call = VmCall::new();
    for at in 0..3000_usize {
        // SAFETY: the call is never made.
        unsafe { call.push(ours.as_ptr().add(at * 8), (at * 16) as u64, 8) };
        assert!(!call.is_full() || at == 1023, "one side's neighbours are one range");
        if call.is_full() {
            call.clear();
            break;
        }
    }
    // SAFETY: the call is never made.
    (0..3000_usize).for_each(|at| unsafe { call.push(ours.as_ptr().add(at * 8), (at * 8) as u64, 8) });
    assert!(!call.is_full(), "neighbours on both sides are one range on both sides");
    assert_eq!(call.bytes(), 24_000);
}

#[test]
fn a_missing_page_ends_the_move_typed_with_the_bytes_before_it() {
    let mut child = Child::fork(4);
    child.unmap(5);
    // The second range runs into the hole in its middle.
    let spans = [Span { local: 0, remote: 0, len: 100 }, Span { local: 200, remote: 3 * PAGE as u64, len: 30_000 }];
    let moved = 100 + 2 * PAGE as u64;
    let (ours, back) = (here(vec![8; BYTES]), here(vec![0; BYTES]));
    let ended = scatter(&ours, &child.memory(), Direction::Write, &spans);
    assert_eq!(ended, Err(ProcessVmError::NotThere { moved }));
    let ended = scatter(&back, &child.memory(), Direction::Read, &spans);
    assert_eq!(ended, Err(ProcessVmError::NotThere { moved }));
    let found = bytes_of(&back);
    assert!(found[..100] == [8; 100] && found[100..200] == [0; 100] && found[200..200 + 2 * PAGE] == [8; 2 * PAGE]);
    assert!(found[200 + 2 * PAGE..].iter().all(|&byte| byte == 0), "nothing came from behind the hole");
    let beyond = [Span { local: 0, remote: 6 * PAGE as u64, len: 10_000 }];
    assert_eq!(scatter(&ours, &child.memory(), Direction::Write, &beyond), Ok(10_000), "other pages are not affected");
    let first_missing = [Span { local: 0, remote: 5 * PAGE as u64, len: 1 }];
    let ended = scatter(&ours, &child.memory(), Direction::Write, &first_missing);
    assert_eq!(ended, Err(ProcessVmError::NotThere { moved: 0 }));
    assert!(ended.unwrap_err().to_string().contains("deregister"));
}

#[test]
fn a_short_count_is_resumed_in_the_middle_of_a_range() {
    let mut child = Child::fork(4);
    child.unmap(2);
    let (ours, source) = (here(pattern()), pattern());
    let mut call = VmCall::new();
    let base = child.memory.0.addr() as u64;
    // SAFETY: the spans lie inside the window, which outlives the call.
    unsafe {
        call.push(ours.as_ptr(), base + 100, 1000);
        call.push(ours.as_ptr().add(5000), base + PAGE as u64 + 50, 2 * PAGE);
    }
    let first = call.make(child.pid, Direction::Write).expect("the pages before the hole are there");
    assert_eq!(first, 1000 + PAGE - 50, "the kernel stops at the hole");
    assert_eq!(call.bytes(), PAGE + 50);
    assert_eq!(call.make(child.pid, Direction::Write), Err(libc::EFAULT), "and goes on there, where nothing is");
    let left = PAGE + 50;
    let ours_next = ours.as_ptr().addr() + 5000 + PAGE - 50;
    assert_eq!(call.next(), Some(((ours_next, left), (base as usize + 2 * PAGE, left))));
    let back = here(vec![0; BYTES]);
    let spans = [Span { local: 0, remote: 100, len: 1000 }, Span { local: 1000, remote: PAGE as u64 + 50, len: 1000 }];
    assert_eq!(scatter(&back, &child.memory(), Direction::Read, &spans), Ok(2000));
    assert!(bytes_of(&back)[..1000] == source[..1000] && bytes_of(&back)[1000..2000] == source[5000..6000]);
}

#[test]
fn a_process_that_dies_between_two_moves_is_gone() {
    let child = Child::fork(2);
    let ours = here(vec![1; BYTES]);
    let whole = [Span { local: 0, remote: 0, len: BYTES as u64 }];
    assert_eq!(scatter(&ours, &child.memory(), Direction::Write, &whole), Ok(BYTES as u64));
    assert!(child.process.is_alive());
    child.kill();
    assert!(!child.process.is_alive());
    assert_eq!(scatter(&ours, &child.memory(), Direction::Write, &whole), Err(ProcessVmError::Gone { moved: 0 }));
    let memory = child.memory();
    assert_eq!(
        empty(&mut one_byte(&ours, &memory), &child.process, Direction::Write, 5),
        Err(ProcessVmError::Gone { moved: 5 })
    );
    let again = ForeignProcess::reach(&Arc::new(ProcessWatch::of(child.pid as u32)), child.process.probe_words);
    assert_eq!(again.map(drop), Err(WhyNot::Gone));
}

fn one_byte(ours: &Window, memory: &ProcessVmMemory) -> VmCall {
    let mut call = VmCall::new();
    // SAFETY: one byte inside the window.
    unsafe { call.push(ours.as_ptr(), memory.base, 1) };
    call
}

#[test]
fn a_process_that_has_another_value_at_the_place_is_not_written() {
    let mut child = Child::fork(3);
    let watch = Arc::clone(&child.process.watch);
    let probe_words = child.process.probe_words;
    let place = child.memory.0.addr() as u64;
    let wrong = ProbeWords { value: probe_words.value ^ 1, scratch: place, ..probe_words };
    assert_eq!(ForeignProcess::reach(&watch, wrong).map(drop), Err(WhyNot::OtherProcess));
    let nowhere = ProbeWords { probe: 8, scratch: place, ..probe_words };
    assert_eq!(ForeignProcess::reach(&watch, nowhere).map(drop), Err(WhyNot::OtherProcess));
    assert!(child.dump() == vec![3; BYTES], "something was written all the same");
    // As after an exec: alive, with the same id, but another program.
    let has_stalled = AtomicBool::new(false);
    let replaced = Arc::new(ForeignProcess { pid: child.pid, watch, probe_words: wrong, has_stalled });
    let memory = ProcessVmMemory::new(&replaced, place, BYTES as u64, true).unwrap();
    let one = [Span { local: 0, remote: 0, len: 1 }];
    assert_eq!(scatter(&here(vec![1; 8]), &memory, Direction::Write, &one), Err(ProcessVmError::Gone { moved: 0 }));
    assert!(child.dump() == vec![3; BYTES]);
}

#[test]
fn nothing_moves_when_a_span_is_out_of_bounds_or_the_destination_read_only() {
    let mut child = Child::fork(6);
    let ours = here(vec![1; 1000]);
    let good = Span { local: 0, remote: 0, len: 10 };
    let end = BYTES as u64;
    for bad in [
        Span { local: 991, remote: 0, len: 10 },
        Span { local: 0, remote: end - 9, len: 10 },
        Span { local: 0, remote: u64::MAX, len: 1 },
        Span { local: u64::MAX, remote: 0, len: 1 },
        Span { local: 0, remote: 0, len: u64::MAX },
    ] {
        let ended = scatter(&ours, &child.memory(), Direction::Write, &[good, bad]);
        assert!(matches!(ended, Err(ProcessVmError::Refused(CopyError::OutOfBounds { index: 1, .. }))), "{ended:?}");
    }
    let read_only = ProcessVmMemory { writable: false, ..child.memory() };
    assert_eq!(scatter(&ours, &read_only, Direction::Write, &[good]), Err(CopyError::ReadOnly.into()));
    assert_eq!(scatter(&ours, &read_only, Direction::Read, &[good]), Ok(10));
    let refused = scatter(&ours.read_only(), &child.memory(), Direction::Read, &[good]);
    assert_eq!(refused, Err(CopyError::ReadOnly.into()));
    assert!(child.dump() == vec![6; BYTES]);
    for (base, bytes) in [(u64::MAX, 2), (1 << 63, 8), (1 << 62, 1 << 62)] {
        assert!(ProcessVmMemory::new(&child.process, base, bytes, true).is_none(), "{base:#x} + {bytes:#x}");
    }
}

#[test]
fn a_process_may_always_reach_itself() {
    calls::try_own_memory().expect("no filter stands in the way of this test");
    let watch = Arc::new(ProcessWatch::of(std::process::id()));
    let process = ForeignProcess::reach(&watch, ProbeWords::of_this_process(1)).unwrap();
    let theirs = here(vec![0; 100]);
    let memory = ProcessVmMemory::new(&process, theirs.base_address(), 100, true).unwrap();
    let span = [Span { local: 0, remote: 90, len: 10 }];
    assert_eq!(scatter(&here(vec![7; 10]), &memory, Direction::Write, &span), Ok(10));
    assert_eq!(bytes_of(&theirs)[85..], [0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_spans_move_as_a_naive_loop_would(
        is_write in any::<bool>(),
        // Destinations one after another with gaps; sources anywhere.
        pieces in prop::collection::vec((0_u64..40, 0_u64..3000, 0_u64..200_000), 1..60),
    ) {
        let mut child = Child::fork(5);
        let ours = here(pattern());
        let (source, mut at, mut spans) = (pattern(), 0, Vec::new());
        let (mut near, mut far) = (source.clone(), vec![5; BYTES]);
        for (gap, len, from) in pieces {
            at += gap;
            let (local, remote) = if is_write { (from, at) } else { (at, from) };
            spans.push(Span { local, remote, len });
            at += len;
        }
        for span in &spans {
            let (local, remote, len) = (span.local as usize, span.remote as usize, span.len as usize);
            if is_write {
                far[remote..remote + len].copy_from_slice(&source[local..local + len]);
            } else {
                near[local..local + len].fill(5);
            }
        }
        let direction = if is_write { Direction::Write } else { Direction::Read };
        let total = spans.iter().map(|span| span.len).sum::<u64>();
        prop_assert_eq!(scatter(&ours, &child.memory(), direction, &spans), Ok(total));
        prop_assert!(child.dump() == far);
        prop_assert!(bytes_of(&ours) == near);
    }
}
