//! Where the kernel does not let this process have a ring.

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Instant;

use penstock_core::config::TcpIo;

use super::{Io, LONG, drain, fill, narrow_pair, pair, settle, turn};

/// From here on this thread gets an error for a call.
fn forbid(call: libc::c_long, error: i32) {
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(0x20, 0, 0, 0), // load the number of the call
        step(0x15, 0, 1, call as u32),
        step(0x06, 0, 0, ERRNO | error as u32),
        step(0x06, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: both calls concern this thread alone; the program is copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}

#[test]
fn where_a_filter_forbids_rings_epoll_is_chosen_and_says_why() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    for call in calls {
        for (error, word) in [(libc::EPERM, "forbids"), (libc::ENOSYS, "no io_uring")] {
            let tried = std::thread::spawn(move || {
                forbid(call, error);
                let io = Io::open(TcpIo::Auto).unwrap();
                assert_eq!(io.name(), "epoll");
                let why = io.why().unwrap().to_owned();
                assert!(why.contains(word), "{why}");
                let refused = Io::open(TcpIo::IoUring).err().expect("a ring was asked for").to_string();
                assert_eq!(refused, why);
            });
            tried.join().unwrap();
        }
    }
    let io = Io::open(TcpIo::Epoll).unwrap();
    assert_eq!((io.name(), io.why()), ("epoll", None), "what was asked for has no reason");
}

#[test]
fn a_ring_that_is_forbidden_later_is_given_up_without_losing_a_stream() {
    let tried = std::thread::spawn(|| {
        let mut io = Io::open(TcpIo::Auto).unwrap();
        if io.name() == "epoll" {
            return;
        }
        let (mut here, there) = pair();
        let (sender, taker) = narrow_pair();
        io.watch(there.as_fd(), 1).unwrap();
        io.watch(sender.as_fd(), 2).unwrap();
        settle(&mut io);
        fill(&mut io, &sender);
        forbid(libc::SYS_io_uring_enter, libc::EPERM);
        here.write_all(b"word").unwrap();
        let (mut has_word, mut has_room) = (false, false);
        let since = Instant::now();
        while !(has_word && has_room) {
            assert!(since.elapsed() < LONG, "word {has_word}, room {has_room}");
            drain(&mut io, &taker);
            for (key, is) in turn(&mut io) {
                has_word |= key == 1 && is.readable;
                has_room |= key == 2 && is.writable;
            }
        }
        assert_eq!(io.name(), "epoll");
    });
    tried.join().unwrap();
}
