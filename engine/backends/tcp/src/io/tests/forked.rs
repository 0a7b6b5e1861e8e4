//! A ring in a forked child, which has not got its memory.

use std::ptr;

use super::{Manner, Uring};

/// Where the rings of this process lie.
fn rings() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let rings = maps.lines().filter(|line| line.ends_with("[io_uring]"));
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    rings
        .map(|line| {
            let (begin, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            (number(begin), number(end))
        })
        .collect()
}

/// Maps memory of the child's own there, and notes where that could be done.
fn fill(ranges: &[(usize, usize)], taken: &mut [bool]) {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    for (&(begin, end), taken) in ranges.iter().zip(taken) {
        // SAFETY: maps fresh memory, and only where nothing is; what it is filled with is this call's own.
        unsafe {
            let at = ptr::without_provenance_mut(begin);
            let mapped = libc::mmap(at, end - begin, prot, flags | libc::MAP_FIXED_NOREPLACE, -1, 0);
            *taken = mapped == at;
            if *taken {
                ptr::write_bytes(mapped.cast::<u8>(), 0xa5, end - begin);
            }
        }
    }
}

/// What a child maps where the ring was is its own: the end of the ring there takes nothing of it away.
#[test]
fn a_ring_that_ends_in_a_forked_child_unmaps_nothing() {
    let Some(mut uring) = [Manner::Deferred, Manner::Cooperative, Manner::Interrupting]
        .into_iter()
        .find_map(|manner| Uring::in_manner(manner).ok())
        .map(Some)
    else {
        return;
    };
    let ranges = rings();
    let mut taken = vec![false; ranges.len()];
    assert!(!ranges.is_empty());
    // SAFETY: the child uses what it has of this thread alone and maps and reads memory of its own, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        fill(&ranges, &mut taken);
        drop(uring.take());
        let mut mine = ranges.iter().zip(&taken).filter(|(_, taken)| **taken).peekable();
        let has_some = mine.peek().is_some();
        // SAFETY: mapped above, if the ring has not taken it away; then this ends the child, and the test says so.
        let is_whole = |begin: usize| unsafe { *ptr::without_provenance::<u8>(begin) == 0xa5 };
        let all = mine.all(|(&(begin, _), _)| is_whole(begin));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(if has_some && all { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(!libc::WIFSIGNALED(status), "the child's own memory was unmapped: signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "none of {ranges:x?} was free in the child, or its bytes changed");
    // The parent's ring is as it was.
    drop(uring);
}
