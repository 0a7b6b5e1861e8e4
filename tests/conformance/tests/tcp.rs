//! The suite between two processes over TCP, with io_uring and with epoll.

use penstock::config::{TcpIo, TransportName};
use penstock_conformance::{Memory, Place, Setting, Stage, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

const fn workers(count: usize, io: TcpIo) -> Setting {
    Setting::adaptive(TransportName::Tcp, count, THERE).by(io)
}

const fn no_threads(io: TcpIo) -> Setting {
    Setting::inline(TransportName::Tcp, THERE).by(io)
}

suite!(uring: workers(1, TcpIo::IoUring));
suite!(uring_two_workers_two_streams: workers(2, TcpIo::IoUring).streams(2));
suite!(uring_inline: no_threads(TcpIo::IoUring));
suite!(epoll: workers(1, TcpIo::Epoll).with(Memory::Caller));
suite!(epoll_two_workers_three_streams: workers(2, TcpIo::Epoll).streams(3));
suite!(epoll_inline: no_threads(TcpIo::Epoll));
suite_by_name!(uring_by_name: workers(1, TcpIo::IoUring));
suite_by_name!(epoll_inline_by_name: no_threads(TcpIo::Epoll));
suite_by_name!(small_parts_by_name: workers(1, TcpIo::Epoll).parts(64 << 10));

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    for io in [TcpIo::IoUring, TcpIo::Epoll] {
        let stage = Stage::open(&workers(1, io));
        assert_eq!(stage.far().access_path(), "tcp", "{}", stage.far().access_reason());
        assert!(stage.peer().path().contains(io.as_str()), "{}", stage.peer().path());
    }
}
