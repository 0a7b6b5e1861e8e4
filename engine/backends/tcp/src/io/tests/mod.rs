//! Every test runs on each kind that there is.

mod forbidden;
mod forked;
mod zero_copy;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use penstock_core::config::TcpIo;
use penstock_memory::{HostMemory, Window};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::manner::Manner;
use super::pieces::PiecesRefused;
use super::uring::Uring;
use super::{Io, IoPieces, MOVES_MAX, PIECES_MAX, PieceSpace, Readiness};

/// Longer than anything here takes, however busy the machine is.
const LONG: Duration = Duration::from_secs(20);

const READABLE: Readiness = Readiness { readable: true, writable: false, hung_up: false };

/// Rings in every manner the kernel here has, and epoll. What is newer than the kernel is left out.
fn each_kind() -> Vec<Io> {
    let manners = [Manner::Deferred, Manner::Cooperative, Manner::Interrupting];
    let rings = manners.into_iter().filter_map(|manner| Uring::in_manner(manner).ok());
    let kinds = rings.map(Ok).chain([Err(None)]);
    kinds.map(|kind| Io::with(kind).unwrap()).collect()
}

fn on_each_kind(test: impl Fn(Io)) {
    each_kind().into_iter().for_each(test);
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let there = listener.accept().unwrap().0;
    here.set_nodelay(true).unwrap();
    there.set_nodelay(true).unwrap();
    (here, there)
}

/// A pair that takes little before it is full.
fn narrow_pair() -> (TcpStream, TcpStream) {
    let (here, there) = pair();
    sockopt::set_socket_send_buffer_size(&here, 4096).unwrap();
    sockopt::set_socket_recv_buffer_size(&there, 128 << 10).unwrap();
    (here, there)
}

fn window(bytes: usize) -> Window {
    let pattern = (0..bytes).map(|index| (index % 251) as u8).collect();
    HostMemory::from_vec(pattern).unwrap().window().clone()
}

fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len() as usize];
    window.read_into(0, &mut bytes).unwrap();
    bytes
}

/// What one turn reports.
fn turn(io: &mut Io) -> Vec<(u64, Readiness)> {
    let mut heard = Vec::new();
    let any = io.turn(&mut |key, readiness| heard.push((key, readiness)));
    // A ring that was given up is also something.
    assert!(any || heard.is_empty());
    heard
}

/// Turns until `key` is reported with something that is wanted.
fn turn_until(io: &mut Io, key: u64, mut wanted: impl FnMut(Readiness) -> bool) -> Readiness {
    let since = Instant::now();
    while since.elapsed() < LONG {
        if let Some((_, readiness)) = turn(io).into_iter().find(|(heard, is)| *heard == key && wanted(*is)) {
            return readiness;
        }
    }
    panic!("{}: {key} was not reported", io.name());
}

/// Turns until nothing has been reported for a while.
fn settle(io: &mut Io) -> Vec<(u64, Readiness)> {
    let mut heard = Vec::new();
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(30) {
        let now = turn(io);
        if !now.is_empty() {
            last = Instant::now();
            heard.extend(now);
        }
    }
    heard
}

fn receive(io: &mut Io, stream: &TcpStream, room: &mut [u8]) -> std::io::Result<usize> {
    let mut space = PieceSpace::new();
    let mut pieces = IoPieces::new(&mut space);
    pieces.push_space(room).unwrap();
    io.receive(stream.as_fd(), &mut pieces)
}

fn send(io: &mut Io, stream: &TcpStream, bytes: &[u8]) -> std::io::Result<usize> {
    let mut space = PieceSpace::new();
    let mut pieces = IoPieces::new(&mut space);
    pieces.push_bytes(bytes).unwrap();
    io.send(stream.as_fd(), &pieces)
}

/// Takes all that is there, listens for more, and answers how much that was.
fn drain(io: &mut Io, stream: &TcpStream) -> usize {
    let mut total = 0;
    loop {
        match receive(io, stream, &mut [0; 4096]) {
            Ok(bytes) => total += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                io.listen(stream.as_fd());
                return total;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends until there is no room.
fn fill(io: &mut Io, stream: &TcpStream) -> usize {
    let mut total = 0;
    loop {
        match send(io, stream, &[7; 4096]) {
            Ok(bytes) => total += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return total,
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_readable(io: &Io, within: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(io.descriptor(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::try_from(within).unwrap())).unwrap() == 1
}

#[test]
fn pieces_stay_in_their_windows_and_neighbours_become_one() {
    let window = window(100);
    let mut space = PieceSpace::new();
    let mut pieces = IoPieces::new(&mut space);
    assert_eq!(pieces.push_window(&window, 90, 11), Err(PiecesRefused::OutOfBounds));
    assert_eq!(pieces.push_window(&window, u64::MAX, 2), Err(PiecesRefused::OutOfBounds));
    assert_eq!((pieces.bytes(), pieces.vectors().len()), (0, 0));
    for offset in [0, 10, 30] {
        pieces.push_window(&window, offset, 10).unwrap();
    }
    pieces.push_window(&window, 100, 0).unwrap();
    assert_eq!((pieces.bytes(), pieces.vectors().len()), (30, 2));
    assert!(pieces.is_writable());
    let read_only = window.read_only();
    pieces.push_window(&read_only, 50, 1).unwrap();
    assert!(!pieces.is_writable());
}

#[test]
fn there_are_so_many_pieces_and_no_more() {
    let window = window(4096);
    let mut space = PieceSpace::new();
    let mut pieces = IoPieces::new(&mut space);
    for piece in 0..PIECES_MAX as u64 {
        assert!(!pieces.is_full());
        pieces.push_window(&window, piece * 2, 1).unwrap();
    }
    assert!(pieces.is_full());
    assert_eq!(pieces.push_window(&window, 4000, 1), Err(PiecesRefused::Full));
    assert_eq!(pieces.bytes(), PIECES_MAX);
    let (here, mut there) = pair();
    let mut io = Io::open(TcpIo::Epoll).unwrap();
    assert_eq!(io.send(here.as_fd(), &pieces).unwrap(), PIECES_MAX);
    there.read_exact(&mut [0; PIECES_MAX]).unwrap();
}

#[test]
fn bytes_are_gathered_and_scattered() {
    on_each_kind(|mut io| {
        let (here, there) = pair();
        io.watch(there.as_fd(), 1).unwrap();
        let (source, target) = (window(10_000), HostMemory::from_vec(vec![0; 10_000]).unwrap().window().clone());
        let (mut from, mut to) = (PieceSpace::new(), PieceSpace::new());
        let mut out = IoPieces::new(&mut from);
        out.push_bytes(b"before").unwrap();
        out.push_window(&source, 100, 4000).unwrap();
        out.push_window(&source, 9000, 1000).unwrap();
        out.push_bytes(b"after").unwrap();
        assert_eq!(io.send(here.as_fd(), &out).unwrap(), 5011);
        turn_until(&mut io, 1, |is| is.readable);
        let (mut head, mut tail) = ([0; 6], [0; 64]);
        let mut into = IoPieces::new(&mut to);
        into.push_space(&mut head).unwrap();
        into.push_window(&target, 5000, 5000).unwrap();
        into.push_space(&mut tail).unwrap();
        assert_eq!(io.receive(there.as_fd(), &mut into).unwrap(), 5011);
        assert_eq!((&head, &tail[..5]), (b"before", &b"after"[..]));
        let (source, target) = (contents(&source), contents(&target));
        assert_eq!(target[5000..9000], source[100..4100]);
        assert_eq!(target[9000..], source[9000..]);
        assert_eq!(target[..5000], [0; 5000]);
    });
}

#[test]
fn nothing_is_received_into_what_may_not_be_written_or_has_no_room() {
    on_each_kind(|mut io| {
        let (here, there) = pair();
        send(&mut io, &here, b"something").unwrap();
        let window = window(64).read_only();
        let mut space = PieceSpace::new();
        let mut pieces = IoPieces::new(&mut space);
        assert_eq!(io.receive(there.as_fd(), &mut pieces).unwrap_err().kind(), ErrorKind::InvalidInput);
        pieces.push_window(&window, 0, 64).unwrap();
        assert_eq!(io.receive(there.as_fd(), &mut pieces).unwrap_err().kind(), ErrorKind::InvalidInput);
        let mut pieces = IoPieces::new(&mut space);
        pieces.push_bytes(b"constant").unwrap();
        assert_eq!(io.receive(there.as_fd(), &mut pieces).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn an_arrival_is_reported_and_each_one_after_it() {
    on_each_kind(|mut io| {
        let (mut here, there) = pair();
        here.write_all(b"early").unwrap();
        io.watch(there.as_fd(), 9).unwrap();
        for _ in 0..50 {
            assert_eq!(turn_until(&mut io, 9, |is| is.readable), READABLE);
            assert!(drain(&mut io, &there) > 0);
            assert_eq!(receive(&mut io, &there, &mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
            here.write_all(b"next").unwrap();
        }
    });
}

#[test]
fn who_does_not_listen_is_not_told_by_a_ring_and_hears_of_what_came_meanwhile() {
    on_each_kind(|mut io| {
        let (mut here, there) = pair();
        io.watch(there.as_fd(), 9).unwrap();
        here.write_all(b"first").unwrap();
        turn_until(&mut io, 9, |is| is.readable);
        assert_eq!(receive(&mut io, &there, &mut [0; 64]).unwrap(), 5);
        here.write_all(b"second").unwrap();
        if io.name() == "io_uring" {
            assert_eq!(settle(&mut io), []);
        }
        io.listen(there.as_fd());
        io.listen(there.as_fd());
        assert_eq!(turn_until(&mut io, 9, |is| is.readable), READABLE);
        assert_eq!(settle(&mut io), [], "it was asked for once");
    });
}

#[test]
fn who_does_not_listen_still_hears_of_room() {
    on_each_kind(|mut io| {
        let (here, there) = narrow_pair();
        io.watch(here.as_fd(), 3).unwrap();
        settle(&mut io);
        // What is there to be read takes the one report of arrivals; the one of room is another.
        send(&mut io, &there, b"unread").unwrap();
        turn_until(&mut io, 3, |is| is.readable);
        fill(&mut io, &here);
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < LONG, "{}: room was not reported", io.name());
            drain(&mut io, &there);
            if turn(&mut io).iter().any(|(key, is)| *key == 3 && is.writable) {
                break;
            }
        }
    });
}

#[test]
fn a_stream_that_is_quiet_is_not_reported() {
    on_each_kind(|mut io| {
        let (_here, there) = pair();
        io.watch(there.as_fd(), 9).unwrap();
        assert_eq!(settle(&mut io), []);
        assert!(io.prepare_to_sleep());
        assert!(!is_readable(&io, Duration::ZERO));
    });
}

#[test]
fn room_is_reported_to_who_waits_for_it_and_once() {
    on_each_kind(|mut io| {
        let (here, there) = narrow_pair();
        io.watch(here.as_fd(), 3).unwrap();
        for _ in 0..3 {
            let sent = fill(&mut io, &here);
            assert!(sent > 0);
            io.want_room(here.as_fd(), 3).unwrap();
            let mut taken = 0;
            // The peer's kernel takes some of it in the meantime, so room may come before anything is received.
            while taken < sent {
                taken += drain(&mut io, &there);
                turn(&mut io);
            }
            settle(&mut io);
            assert_eq!(settle(&mut io), [], "{}: room nobody waits for", io.name());
        }
        fill(&mut io, &here);
        settle(&mut io);
        fill(&mut io, &here);
        assert!(drain(&mut io, &there) > 0);
        let since = Instant::now();
        while since.elapsed() < LONG {
            drain(&mut io, &there);
            if turn(&mut io).iter().any(|(key, is)| *key == 3 && is.writable) {
                return;
            }
        }
        panic!("{}: room was not reported", io.name());
    });
}

#[test]
fn all_of_it_arrives_through_buffers_that_take_little() {
    on_each_kind(|mut io| {
        const TOTAL: usize = 1 << 17;
        let (here, there) = narrow_pair();
        io.watch(here.as_fd(), 1).unwrap();
        io.watch(there.as_fd(), 2).unwrap();
        let (source, target) = (window(TOTAL), HostMemory::from_vec(vec![0; TOTAL]).unwrap().window().clone());
        let (mut space, mut sent, mut received) = (PieceSpace::new(), 0, 0);
        let (mut may_send, mut may_receive) = (true, true);
        let since = Instant::now();
        while received < TOTAL {
            assert!(since.elapsed() < LONG, "{}: {sent} sent, {received} received", io.name());
            while may_send && sent < TOTAL {
                let mut pieces = IoPieces::new(&mut space);
                pieces.push_window(&source, sent as u64, (TOTAL - sent) as u64).unwrap();
                match io.send(here.as_fd(), &pieces) {
                    Ok(bytes) => sent += bytes,
                    Err(_) => may_send = false,
                }
            }
            while may_receive && received < TOTAL {
                let mut pieces = IoPieces::new(&mut space);
                pieces.push_window(&target, received as u64, (TOTAL - received) as u64).unwrap();
                match io.receive(there.as_fd(), &mut pieces) {
                    Ok(bytes) => received += bytes,
                    Err(_) => {
                        may_receive = false;
                        io.listen(there.as_fd());
                    }
                }
            }
            // Only what is reported is tried again: a report that is missed would end the test.
            for (key, readiness) in turn(&mut io) {
                may_send |= key == 1 && readiness.writable;
                may_receive |= key == 2 && readiness.readable;
            }
        }
        assert_eq!(contents(&source), contents(&target));
    });
}

#[test]
fn a_peer_that_goes_is_reported_behind_what_it_sent() {
    on_each_kind(|mut io| {
        let (mut here, there) = pair();
        io.watch(there.as_fd(), 4).unwrap();
        here.write_all(b"last words").unwrap();
        drop(here);
        assert!(turn_until(&mut io, 4, |is| is.hung_up).readable);
        assert_eq!(receive(&mut io, &there, &mut [0; 64]).unwrap(), 10);
        assert_eq!(receive(&mut io, &there, &mut [0; 64]).unwrap(), 0);
    });
}

#[test]
fn a_stream_that_breaks_is_reported_to_who_waits_for_room() {
    on_each_kind(|mut io| {
        let (here, there) = narrow_pair();
        io.watch(here.as_fd(), 5).unwrap();
        fill(&mut io, &here);
        settle(&mut io);
        fill(&mut io, &here);
        // Closing with bytes that nobody read is a reset.
        drop(there);
        // Room may be reported before the end, by itself.
        let mut has_room = false;
        let readiness = turn_until(&mut io, 5, |is| {
            has_room |= is.writable;
            has_room && is.hung_up
        });
        assert!(readiness.readable);
        assert!(receive(&mut io, &here, &mut [0; 8]).is_err());
        assert!(send(&mut io, &here, b"more").is_err());
    });
}

#[test]
fn a_stream_is_watched_once() {
    on_each_kind(|mut io| {
        let (here, _there) = pair();
        io.watch(here.as_fd(), 1).unwrap();
        assert_eq!(io.watch(here.as_fd(), 2).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(io.want_room(_there.as_fd(), 2).unwrap_err().kind(), ErrorKind::NotFound);
        io.unwatch(here.as_fd(), 2);
        assert!(io.want_room(here.as_fd(), 1).is_ok(), "another key's word took it out");
        io.unwatch(here.as_fd(), 1);
        io.unwatch(here.as_fd(), 1);
        io.watch(here.as_fd(), 2).unwrap();
    });
}

#[test]
fn word_of_a_stream_that_was_forgotten_is_not_given_to_the_next() {
    on_each_kind(|mut io| {
        for round in 0..200 {
            let (mut here, there) = pair();
            io.watch(there.as_fd(), round).unwrap();
            if round % 2 == 0 {
                turn(&mut io);
            }
            // The kernel has something to say of it when it goes; the next one has its descriptor and its place.
            here.write_all(b"late").unwrap();
            io.unwatch(there.as_fd(), round);
            drop((here, there));
            let (_here, there) = pair();
            io.watch(there.as_fd(), 1000 + round).unwrap();
            for _ in 0..3 {
                assert_eq!(turn(&mut io), [], "{} in round {round}", io.name());
            }
            io.unwatch(there.as_fd(), 1000 + round);
        }
    });
}

#[test]
fn coming_and_going_leaves_nothing() {
    on_each_kind(|mut io| {
        let (mut here, there) = pair();
        io.watch(there.as_fd(), 1).unwrap();
        for round in 2..5000 {
            io.unwatch(there.as_fd(), round - 1);
            io.watch(there.as_fd(), round).unwrap();
            if round % 7 == 0 {
                turn(&mut io);
            }
        }
        assert_eq!(io.table.capacity(), 1, "a place is used again");
        here.write_all(b"x").unwrap();
        turn_until(&mut io, 4999, |is| is.readable);
    });
}

#[test]
fn who_sleeps_on_the_descriptor_is_woken() {
    on_each_kind(|mut io| {
        let (mut here, there) = pair();
        io.watch(there.as_fd(), 6).unwrap();
        settle(&mut io);
        for _ in 0..20 {
            assert!(io.prepare_to_sleep());
            assert!(!is_readable(&io, Duration::ZERO));
            let mut sender = here.try_clone().unwrap();
            let late = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                sender.write_all(b"wake").unwrap();
            });
            assert!(is_readable(&io, LONG), "{}: slept through it", io.name());
            late.join().unwrap();
            turn_until(&mut io, 6, |is| is.readable);
            drain(&mut io, &there);
            settle(&mut io);
        }
        here.write_all(b"before").unwrap();
        let may_sleep = io.prepare_to_sleep();
        assert!(!may_sleep || is_readable(&io, LONG));
    });
}

#[test]
fn a_turn_on_another_thread_loses_nothing_and_many_of_them_end_in_epoll() {
    on_each_kind(|mut io| {
        let (mut here, there) = pair();
        io.watch(there.as_fd(), 1).unwrap();
        settle(&mut io);
        let descriptor = io.descriptor().as_raw_fd();
        let kind = io.name();
        for round in 0..=MOVES_MAX {
            here.write_all(b"before the move").unwrap();
            io = std::thread::scope(|scope| {
                let moved = scope.spawn(|| {
                    turn_until(&mut io, 1, |is| is.readable);
                    assert!(drain(&mut io, &there) > 0);
                    here.write_all(b"after it").unwrap();
                    turn_until(&mut io, 1, |is| is.readable);
                    drain(&mut io, &there);
                    settle(&mut io);
                    assert!(io.prepare_to_sleep(), "round {round}");
                    io
                });
                moved.join().unwrap()
            });
            here.write_all(b"while it sleeps").unwrap();
            assert_eq!(io.descriptor().as_raw_fd(), descriptor);
            assert!(is_readable(&io, LONG), "{kind} in round {round}");
        }
        // Only a ring that belongs to one thread minds.
        assert_eq!(io.why().is_some(), kind != io.name());
    });
    let mut io = Io::with(Ok(Uring::in_manner(Manner::Deferred).unwrap())).unwrap();
    for round in 0..=MOVES_MAX + 1 {
        assert_eq!(io.name(), "io_uring", "round {round}");
        io = std::thread::spawn(move || {
            assert!(settle(&mut io).is_empty());
            // The first call notices the move, the next one makes the new ring this thread's.
            io.prepare_to_sleep();
            turn(&mut io);
            io
        })
        .join()
        .unwrap();
    }
    assert_eq!(io.name(), "epoll");
    assert!(io.why().unwrap().contains("threads"));
}

#[test]
fn a_ring_that_goes_on_another_thread_lets_go_of_its_streams() {
    on_each_kind(|mut io| {
        let (here, mut there) = pair();
        io.watch(here.as_fd(), 1).unwrap();
        settle(&mut io);
        drop(here);
        std::thread::spawn(move || drop(io)).join().unwrap();
        assert_ends(&mut there);
    });
}

#[test]
fn a_stream_that_is_forgotten_by_its_worker_can_be_closed_at_once() {
    on_each_kind(|mut io| {
        let (here, mut there) = pair();
        io.watch(here.as_fd(), 1).unwrap();
        settle(&mut io);
        io.unwatch(here.as_fd(), 1);
        drop(here);
        assert_ends(&mut there);
    });
}

/// The other side has closed the stream, and its kernel says so.
fn assert_ends(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    // A ring that goes away interrupts the thread that had it.
    let ended = std::iter::repeat_with(|| stream.read(&mut [0; 8]));
    let ended = ended.into_iter().find(|end| !matches!(end, Err(error) if error.kind() == ErrorKind::Interrupted));
    assert_eq!(ended.unwrap().expect("the socket is still held"), 0);
}
