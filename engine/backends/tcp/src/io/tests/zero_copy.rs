//! Sends without a copy: nothing here says that they are quicker, for on one host the kernel copies.

use std::io::{Error, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use penstock_memory::{Segment, Window};
use rustix::net::sockopt;

use super::super::manner::Manner;
use super::super::uring::Uring;
use super::super::zero_copy::{SendReleased, ZERO_COPY_BYTES_MIN, ZeroCopy, ZeroCopyId};
use super::{Io, LONG, contents, is_readable, narrow_pair, pair, settle, turn, window};

const KEY: u64 = 77;

/// A ring that can send without a copy, awake on this thread.
fn ring() -> Option<Io> {
    let mut io = Io::with(Ok(Uring::in_manner(Manner::Deferred).ok()?)).unwrap();
    turn(&mut io);
    Some(io)
}

fn send(io: &mut Io, stream: &TcpStream, window: &Window) -> std::io::Result<(usize, ZeroCopyId)> {
    let mut held = io.held_pieces().expect("there is a ring");
    held.push_window(window, 0, window.len()).unwrap();
    assert_eq!(held.bytes() as u64, window.len());
    io.send_without_copy(stream.as_fd(), KEY, held)
}

fn released(io: &mut Io, within: Duration) -> Option<SendReleased> {
    let since = Instant::now();
    loop {
        turn(io);
        if let Some(released) = io.next_released() {
            return Some(released);
        }
        if since.elapsed() > within {
            return None;
        }
    }
}

/// Memory of which can be seen whether anybody still holds it.
fn mapped() -> (Window, impl Fn() -> bool) {
    let window = Segment::create("held", 1 << 20).unwrap().window().clone();
    window.fill(0, 1 << 20, 9).unwrap();
    let first = window.base_address();
    let is_mapped = move || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.contains("held") && line.starts_with(&format!("{first:x}-")))
    };
    assert!(is_mapped());
    (window, is_mapped)
}

/// A stream whose peer takes little, and whose own kernel takes much.
fn stuck_pair() -> (TcpStream, TcpStream) {
    let (here, there) = pair();
    sockopt::set_socket_recv_buffer_size(&there, 64 << 10).unwrap();
    sockopt::set_socket_send_buffer_size(&here, 8 << 20).unwrap();
    (here, there)
}

#[test]
fn on_one_host_it_arrives_and_the_kernel_says_that_it_copied() {
    let Some(mut io) = ring() else { return };
    let (here, mut there) = pair();
    io.watch(here.as_fd(), KEY).unwrap();
    let window = window(ZERO_COPY_BYTES_MIN);
    let mut policy = ZeroCopy::default();
    assert!(!policy.is_for(ZERO_COPY_BYTES_MIN - 1) && policy.is_for(ZERO_COPY_BYTES_MIN));
    let (sent, ticket) = send(&mut io, &here, &window).unwrap();
    policy.sent(ticket);
    assert!(!policy.is_for(ZERO_COPY_BYTES_MIN), "one send is the trial");
    let mut bytes = vec![0; sent];
    there.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, contents(&window)[..sent]);
    let told = released(&mut io, LONG).expect("the kernel lets go");
    assert_eq!(told, SendReleased { key: KEY, ticket, was_copied: true });
    policy.heard(&told);
    assert!(matches!(policy, ZeroCopy::Off(_)) && !policy.is_for(1 << 30));
    assert_eq!(io.next_released(), None);
}

#[test]
fn memory_is_held_until_the_kernel_lets_go_of_it() {
    let Some(mut io) = ring() else { return };
    let (here, mut there) = stuck_pair();
    io.watch(here.as_fd(), KEY).unwrap();
    let (window, is_mapped) = mapped();
    let (sent, ticket) = send(&mut io, &here, &window).unwrap();
    drop(window);
    assert_eq!(released(&mut io, Duration::from_millis(50)), None);
    assert!(is_mapped());
    let mut bytes = vec![0; sent];
    there.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 9));
    assert_eq!(released(&mut io, LONG).map(|released| released.ticket), Some(ticket));
    assert!(!is_mapped());
}

#[test]
fn who_sleeps_is_woken_when_pages_come_back() {
    let Some(mut io) = ring() else { return };
    let (here, mut there) = stuck_pair();
    io.watch(here.as_fd(), KEY).unwrap();
    let (sent, _) = send(&mut io, &here, &window(1 << 20)).unwrap();
    settle(&mut io);
    let reader = std::thread::spawn(move || there.read_exact(&mut vec![0; sent]).map(|()| there));
    let since = Instant::now();
    while io.next_released().is_none() {
        assert!(since.elapsed() < LONG);
        assert!(!io.prepare_to_sleep() || is_readable(&io, LONG), "slept through it");
        turn(&mut io);
    }
    reader.join().unwrap().unwrap();
}

#[test]
fn closing_a_stream_that_is_forgotten_gives_the_pages_back() {
    let Some(mut io) = ring() else { return };
    let (here, _there) = stuck_pair();
    io.watch(here.as_fd(), KEY).unwrap();
    let (window, is_mapped) = mapped();
    send(&mut io, &here, &window).unwrap();
    drop(window);
    assert_eq!(released(&mut io, Duration::from_millis(20)), None);
    io.unwatch(here.as_fd(), KEY);
    assert!(is_mapped());
    drop(here);
    let since = Instant::now();
    while is_mapped() && since.elapsed() < LONG {
        assert_eq!(released(&mut io, Duration::ZERO), None, "nobody wants to hear of it");
    }
    assert!(!is_mapped());
}

#[test]
fn a_ring_that_goes_waits_for_pages_but_not_for_ever() {
    for is_closed in [true, false] {
        let Some(mut io) = ring() else { return };
        let (here, there) = stuck_pair();
        io.watch(here.as_fd(), KEY).unwrap();
        let (window, is_mapped) = mapped();
        send(&mut io, &here, &window).unwrap();
        drop(window);
        if is_closed {
            io.unwatch(here.as_fd(), KEY);
            drop(here);
            drop(io);
            assert!(!is_mapped(), "closed streams give their pages back");
        } else {
            drop(io);
            assert!(is_mapped(), "the kernel may still read it");
        }
        drop(there);
    }
}

#[test]
fn a_ring_that_is_left_behind_counts_as_having_let_go_and_its_memory_stays() {
    let Some(mut io) = ring() else { return };
    let (here, mut there) = stuck_pair();
    io.watch(here.as_fd(), KEY).unwrap();
    let (window, is_mapped) = mapped();
    let (sent, ticket) = send(&mut io, &here, &window).unwrap();
    drop(window);
    io = std::thread::spawn(move || {
        io.prepare_to_sleep();
        turn(&mut io);
        let told = io.next_released().expect("the old ring is no more");
        assert_eq!((told.key, told.ticket), (KEY, ticket));
        io
    })
    .join()
    .unwrap();
    assert!(is_mapped());
    there.read_exact(&mut vec![0; sent]).unwrap();
    assert_eq!(io.next_released(), None);
}

#[test]
fn where_it_does_not_go_the_stream_copies() {
    let mut io = Io::with(Err(None)).unwrap();
    assert!(io.held_pieces().is_none());
    let mut policy = ZeroCopy::default();
    assert!(!policy.refused(&ErrorKind::WouldBlock.into()));
    assert!(!policy.refused(&Error::from_raw_os_error(libc::EPIPE)));
    assert_eq!(policy, ZeroCopy::Untried);
    assert!(policy.refused(&ErrorKind::Unsupported.into()));
    assert!(!policy.is_for(1 << 20));
    let Some(mut io) = ring() else { return };
    let (here, there) = pair();
    // From a thread that the ring does not belong to, nothing is sent at all.
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| send(&mut io, &here, &window(1 << 20)).map(|(sent, _)| sent).unwrap_err().kind()).join()
    });
    assert_eq!(refused.unwrap(), ErrorKind::Unsupported);
    there.set_nonblocking(true).unwrap();
    assert_eq!((&there).read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // A stream without room says so, and one that is broken says that.
    let (here, there) = narrow_pair();
    let window = window(1 << 20);
    let full = std::iter::repeat_with(|| send(&mut io, &here, &window)).find_map(Result::err);
    assert_eq!(full.unwrap().kind(), ErrorKind::WouldBlock);
    drop(there);
    let since = Instant::now();
    while send(&mut io, &here, &window).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        assert!(since.elapsed() < LONG);
    }
    assert!(!policy.refused(&send(&mut io, &here, &window).unwrap_err()));
}

#[test]
fn a_way_on_which_the_kernel_does_not_copy_stays() {
    let Some(mut io) = ring() else { return };
    let (here, _there) = pair();
    let (_, ticket) = send(&mut io, &here, &window(ZERO_COPY_BYTES_MIN)).unwrap();
    let mut policy = ZeroCopy::default();
    policy.sent(ticket);
    policy.heard(&SendReleased { key: KEY, ticket, was_copied: false });
    assert_eq!(policy, ZeroCopy::On);
    policy.sent(ticket);
    assert!(policy.is_for(ZERO_COPY_BYTES_MIN));
    policy.heard(&SendReleased { key: KEY, ticket, was_copied: true });
    assert!(!policy.is_for(ZERO_COPY_BYTES_MIN));
}
