use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use penstock_datagram::wire::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::call::{KERNEL, Kernel, PacketRun};
use super::*;

const PATIENCE: Duration = Duration::from_secs(5);
const FRAME_BYTES: usize = 1472;

fn options(ip: IpAddr) -> UdpOptions {
    UdpOptions { bind: SocketAddr::new(ip, 0), receive_bytes: 0, send_bytes: 0, segmentation: true }
}

fn port(ip: IpAddr, segmentation: bool) -> UdpPort {
    UdpPort::open(UdpOptions { segmentation, ..options(ip) }).unwrap()
}

fn v4(segmentation: bool) -> UdpPort {
    port(Ipv4Addr::LOCALHOST.into(), segmentation)
}

/// The addresses of this host by which it reaches itself.
fn loopbacks(test: &str) -> Vec<IpAddr> {
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    if let Err(error) = UdpSocket::bind((v6, 0)) {
        skipped(test, &format!("::1 cannot be bound ({error}): IPv4 alone is tested"));
        return vec![Ipv4Addr::LOCALHOST.into()];
    }
    vec![Ipv4Addr::LOCALHOST.into(), v6]
}

#[allow(clippy::print_stdout, reason = "a test says what it cannot test here")]
fn skipped(test: &str, reason: &str) {
    println!("{test} is skipped in part: {reason}");
    if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        let mut notes = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(notes, "{test}: {reason}").unwrap();
    }
}

/// Packet number `number`, of so many bytes: no two are the same but very short ones.
fn packet(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number * 31 + at * 7 + at / 256) as u8).collect()
}

fn packets(lengths: &[usize]) -> Vec<Vec<u8>> {
    lengths.iter().enumerate().map(|(number, bytes)| packet(number, *bytes)).collect()
}

/// What a burst is filled with: these packets, one after the other.
fn from<'a>(packets: &'a [Vec<u8>], next: &'a mut usize) -> impl FnMut(PacketRoom<'_>) -> Option<usize> + 'a {
    move |room| {
        let packet = packets.get(*next)?;
        room.bytes[..packet.len()].copy_from_slice(packet);
        *next += 1;
        Some(packet.len())
    }
}

fn send_all(sender: &mut UdpPort, to: SocketAddr, packets: &[Vec<u8>]) {
    let mut next = 0;
    while sender.send(to, FRAME_BYTES, &mut from(packets, &mut next)) == BurstSent::Full {}
    assert_eq!(next, packets.len());
}

fn is_readable(port: &UdpPort, wait: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(port.descriptor().unwrap(), PollFlags::IN)];
    let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    poll(&mut polled, Some(&wait)).unwrap() > 0
}

/// Receives until so many packets are there, and checks that these are all.
fn receive_all(receiver: &mut UdpPort, count: usize) -> Vec<Vec<u8>> {
    let mut arrived: Vec<Vec<u8>> = Vec::new();
    let start = Instant::now();
    while arrived.len() < count && start.elapsed() < PATIENCE {
        let before = arrived.len();
        let passed = receiver.receive(&mut |train| arrived.extend(train.packets().map(<[u8]>::to_vec)));
        assert_eq!(passed, arrived.len() - before);
        assert!(passed <= RECEIVE_BURST_MAX);
        if passed == 0 {
            is_readable(receiver, Duration::from_millis(100));
        }
    }
    receiver.receive(&mut |train| arrived.extend(train.packets().map(<[u8]>::to_vec)));
    arrived
}

fn dropped(port: &UdpPort) -> u64 {
    let mut sum = PacketStatistics::default();
    port.add_statistics(&mut sum);
    sum.dropped_by_port
}

fn lengths_of(packets: &[Vec<u8>]) -> Vec<usize> {
    packets.iter().map(Vec::len).collect()
}

fn assert_same(arrived: &[Vec<u8>], sent: &[Vec<u8>]) {
    assert_eq!(lengths_of(arrived), lengths_of(sent));
    assert!(arrived == sent, "the bytes are not those that were sent");
}

/// Until the guard goes, this thread's sends are answered by this.
struct Answered;

impl Answered {
    fn by(kernel: Kernel) -> Self {
        KERNEL.set(Some(kernel));
        Self
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        KERNEL.set(None);
    }
}

#[test]
fn bursts_of_mixed_lengths_arrive_whole_and_in_order() {
    let mut lengths = vec![1472; 50];
    lengths.extend([700, 1472, 1472, 64, 64, 64, 1, 1472, 1, 1, 1400, 1472]);
    lengths.extend((1..140).map(|number| number * 397 % FRAME_BYTES + 1));
    lengths.extend([128; 130]);
    let sent = packets(&lengths);
    for ip in loopbacks("bursts_of_mixed_lengths_arrive_whole_and_in_order") {
        for (cuts, joins) in [(true, true), (true, false), (false, true), (false, false)] {
            let (mut sender, mut receiver) = (port(ip, cuts), port(ip, joins));
            let to = receiver.facts().address;
            // Part by part, so that they fit into any receive buffer.
            for part in sent.chunks(100) {
                send_all(&mut sender, to, part);
                assert_same(&receive_all(&mut receiver, part.len()), part);
            }
            let (sending, receiving) = (sender.statistics(), receiver.statistics());
            assert_eq!((sending.sent, receiving.received), (sent.len() as u64, sent.len() as u64));
            let lost = [sending.sent_errors, sending.too_long, receiving.received_errors, receiving.truncated];
            assert_eq!(lost, [0; 4]);
        }
    }
}

#[test]
fn a_burst_is_full_at_64_packets_or_at_what_one_call_carries() {
    let (mut sender, mut receiver) = (v4(true), v4(true));
    let to = receiver.facts().address;
    for (bytes, count) in [(1, 64), (1000, 64), (1472, 44), (20_000, 3), (65_507, 1)] {
        let mut filled = 0;
        let mut fill = |room: PacketRoom<'_>| {
            assert_eq!(room.bytes.len(), bytes);
            room.bytes.fill(filled as u8);
            filled += 1;
            Some(bytes)
        };
        assert_eq!(sender.send(to, bytes, &mut fill), BurstSent::Full);
        assert_eq!(filled, count);
        let arrived = receive_all(&mut receiver, count);
        assert_same(&arrived, &(0..count).map(|number| vec![number as u8; bytes]).collect::<Vec<_>>());
    }
    assert_eq!(sender.send(to, FRAME_BYTES, &mut |_| None), BurstSent::Whole);
}

#[test]
fn the_name_says_what_works_and_the_buffer_is_what_the_kernel_gave() {
    assert_eq!(v4(false).facts().name, "udp");
    let wished = UdpOptions { receive_bytes: 100 << 10, ..options(Ipv4Addr::LOCALHOST.into()) };
    let port = UdpPort::open(wished).unwrap();
    assert!(["udp, GSO, GRO", "udp, GSO", "udp, GRO", "udp"].contains(&port.facts().name.as_str()));
    assert_eq!(port.facts().receive_bytes, (200 << 10) / 4 * 3, "the kernel doubles it");
    assert_ne!(port.facts().address.port(), 0);
    assert!(v4(true).facts().receive_bytes >= 100 << 10, "every host allows as much");
}

#[test]
fn a_frame_is_what_the_route_carries_and_no_more_than_ip_does() {
    for ip in loopbacks("a_frame_is_what_the_route_carries_and_no_more_than_ip_does") {
        let (sender, receiver) = (port(ip, true), port(ip, true));
        let frame_bytes = sender.frame_bytes(receiver.facts().address).unwrap();
        assert!((FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes), "{frame_bytes}");
    }
    let (v4, v6) = (SocketAddr::from(([10, 0, 0, 1], 7)), SocketAddr::from((Ipv6Addr::LOCALHOST, 7)));
    let frames = [(v4, 1500, 1472), (v4, 9000, 8972), (v4, 65_536, 65_507), (v6, 1500, 1452), (v6, 65_536, 65_488)];
    for (to, mtu, frame_bytes) in frames {
        assert_eq!(socket::frame_of(to, mtu), Ok(frame_bytes));
    }
    let narrow = io::Error::from(socket::frame_of(v4, 1000).unwrap_err());
    assert_eq!(narrow.kind(), ErrorKind::Unsupported);
    let narrow = narrow.to_string();
    for said in ["10.0.0.1:7", "1000", "972", "1188", "216 bytes or more"] {
        assert!(narrow.contains(said), "{narrow}");
    }
}

#[test]
fn a_port_of_ipv4_says_that_it_does_not_reach_ipv6() {
    let mut sender = v4(true);
    let to = SocketAddr::from((Ipv6Addr::LOCALHOST, 9));
    let error = sender.frame_bytes(to).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("[::1]:9"), "{error}");
    let lost = packets(&[100, 100, 50]);
    send_all(&mut sender, to, &lost);
    let statistics = sender.statistics();
    assert_eq!((statistics.sent, statistics.sent_errors), (0, 3), "packets that cannot leave are lost");
}

#[test]
fn a_port_of_both_versions_reaches_a_peer_of_ipv4_and_is_reached() {
    let all = UdpPort::open(options(Ipv6Addr::UNSPECIFIED.into()));
    let mut both = match all {
        Ok(port) => port,
        Err(error) => {
            let reason = format!("there is no IPv6 here ({error})");
            return skipped("a_port_of_both_versions_reaches_a_peer_of_ipv4_and_is_reached", &reason);
        }
    };
    let mut peer = v4(true);
    let to = peer.facts().address;
    assert!(both.facts().address.ip().is_unspecified());
    assert_eq!(both.frame_bytes(to).unwrap(), peer.frame_bytes(to).unwrap(), "the way is IPv4's");
    let sent = packets(&[1472, 1472, 1472, 3]);
    send_all(&mut both, to, &sent);
    assert_same(&receive_all(&mut peer, sent.len()), &sent);
    send_all(&mut peer, SocketAddr::new(Ipv4Addr::LOCALHOST.into(), both.facts().address.port()), &sent);
    assert_same(&receive_all(&mut both, sent.len()), &sent);
    let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), both.facts().address.port());
    assert_eq!(peer.frame_bytes(mapped).unwrap(), both.frame_bytes(to).unwrap());
    send_all(&mut peer, mapped, &sent);
    assert_same(&receive_all(&mut both, sent.len()), &sent);
}

#[test]
fn a_packet_that_no_network_carries_is_too_long_and_others_arrive() {
    for ip in loopbacks("a_packet_that_no_network_carries_is_too_long_and_others_arrive") {
        let (mut sender, mut receiver) = (port(ip, true), port(ip, true));
        let to = receiver.facts().address;
        let sent = [packet(0, 65_508), packet(1, 10)];
        let mut next = 0;
        assert_eq!(sender.send(to, 65_508, &mut from(&sent[..1], &mut next)), BurstSent::TooLong);
        assert_eq!(sender.statistics().too_long, 1);
        next = 0;
        assert_eq!(sender.send(to, FRAME_BYTES, &mut from(&sent[1..], &mut next)), BurstSent::Whole);
        assert_same(&receive_all(&mut receiver, 1), &sent[1..]);
    }
}

#[test]
fn with_a_small_send_buffer_nothing_is_lost_or_doubled() {
    let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
    let small = UdpOptions { send_bytes: 1, ..options(ip) };
    let (mut sender, mut receiver) = (UdpPort::open(small).unwrap(), v4(true));
    let to = receiver.facts().address;
    let sent = packets(&[FRAME_BYTES; 400]);
    let (mut next, mut arrived) = (0, Vec::new());
    let start = Instant::now();
    while arrived.len() < sent.len() && start.elapsed() < PATIENCE {
        sender.send(to, FRAME_BYTES, &mut from(&sent, &mut next));
        sender.flush();
        receiver.receive(&mut |train| arrived.extend(train.packets().map(<[u8]>::to_vec)));
    }
    assert_same(&arrived, &sent);
}

#[test]
fn what_the_kernel_has_no_room_for_is_kept_and_sent_in_order() {
    std::thread_local! {
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }
    /// Takes one run, has no room, has no memory, takes one run, and so on.
    fn narrow(_: &[PacketRun<'_>]) -> Result<usize, i32> {
        CALLS.set(CALLS.get() + 1);
        match CALLS.get() % 3 {
            1 => Ok(1),
            2 => Err(libc::EAGAIN),
            _ => Err(libc::ENOBUFS),
        }
    }
    let sent = packets(&[1472, 1472, 9, 1472, 3, 700, 1472, 1472, 1472]);
    for segmentation in [true, false] {
        let (mut sender, mut receiver) = (v4(segmentation), v4(true));
        let to = receiver.facts().address;
        CALLS.set(0);
        let answered = Answered::by(narrow);
        let mut next = 0;
        assert_eq!(sender.send(to, FRAME_BYTES, &mut from(&sent, &mut next)), BurstSent::Blocked);
        assert_eq!(next, sent.len(), "it has taken all");
        let mut fill = |_: PacketRoom<'_>| panic!("it takes nothing while something is kept");
        assert_eq!(sender.send(to, FRAME_BYTES, &mut fill), BurstSent::Blocked);
        let mut flushes = 0;
        while !sender.flush() {
            flushes += 1;
            assert!(flushes < 100);
        }
        drop(answered);
        assert!(sender.flush(), "nothing is kept any more");
        assert_same(&receive_all(&mut receiver, sent.len()), &sent);
        let statistics = sender.statistics();
        assert_eq!((statistics.sent, statistics.sent_errors), (sent.len() as u64, 0));
        assert_eq!(statistics.blocked, 2 + flushes);
    }
}

#[test]
fn what_is_refused_as_a_whole_is_sent_one_by_one_to_that_address_from_then_on() {
    fn cuts_not(runs: &[PacketRun<'_>], error: i32) -> Result<usize, i32> {
        if runs[0].packet_bytes.is_some() { Err(error) } else { Ok(runs.len()) }
    }
    let kernels: [Kernel; 3] =
        [|runs| cuts_not(runs, libc::EINVAL), |runs| cuts_not(runs, libc::EIO), |runs| cuts_not(runs, libc::EMSGSIZE)];
    let sent = packets(&[1472, 1472, 1472, 9, 1472, 1472]);
    for kernel in kernels {
        let (mut sender, mut receiver) = (v4(true), v4(true));
        let to = receiver.facts().address;
        let answered = Answered::by(kernel);
        for _ in 0..2 {
            send_all(&mut sender, to, &sent);
            assert_same(&receive_all(&mut receiver, sent.len()), &sent);
        }
        drop(answered);
        let statistics = sender.statistics();
        let expected = if sender.cuts { 1 } else { 0 };
        assert_eq!((statistics.uncut, statistics.too_long, statistics.sent_errors), (expected, 0, 0));
        assert_eq!(sender.uncut.len(), expected as usize);
        for last in 1..=UNCUT_MAX as u8 {
            sender.remember_uncut(Ipv4Addr::new(10, 0, 0, last).into());
        }
        assert!(!sender.uncut.contains(&to.ip()), "the oldest is forgotten");
        assert_eq!(sender.uncut.len(), UNCUT_MAX);
    }
}

#[test]
fn packets_leave_one_by_one_to_whom_they_have_to_come_so() {
    std::thread_local! {
        static CUT: Cell<bool> = const { Cell::new(false) };
    }
    fn watched(runs: &[PacketRun<'_>]) -> Result<usize, i32> {
        CUT.set(CUT.get() || runs.iter().any(|run| run.packet_bytes.is_some()));
        Ok(runs.len())
    }
    let sent = packets(&[1472; 9]);
    let ips = loopbacks("packets_leave_one_by_one_to_whom_they_have_to_come_so");
    // A socket of IPv6 says addresses of IPv4 in its own way.
    let any = ips.contains(&Ipv6Addr::LOCALHOST.into()).then_some((Ipv6Addr::UNSPECIFIED.into(), ips[0]));
    for (own, peer) in ips.iter().map(|&ip| (ip, ip)).chain(any) {
        let mut sender = port(own, true);
        let _answered = Answered::by(watched);
        for comes_apart in [false, true] {
            if comes_apart {
                (0..2).for_each(|_| sender.send_apart(peer));
                assert_eq!(sender.uncut.len(), 1);
            }
            CUT.set(false);
            send_all(&mut sender, SocketAddr::new(peer, 9), &sent);
            assert_eq!(CUT.get(), sender.cuts && !comes_apart, "{own} to {peer}");
        }
    }
}

#[test]
fn what_is_too_long_for_its_route_is_not_blamed_on_the_cutting() {
    fn narrow(runs: &[PacketRun<'_>]) -> Result<usize, i32> {
        let fits = |run: &PacketRun<'_>| run.packet_bytes.map_or(run.bytes.len(), usize::from) <= 1000;
        match runs.iter().take_while(|run| fits(run)).count() {
            0 => Err(libc::EMSGSIZE),
            taken => Ok(taken),
        }
    }
    let (mut sender, mut receiver) = (v4(true), v4(true));
    let to = receiver.facts().address;
    let _answered = Answered::by(narrow);
    let (sent, mut next) = (packets(&[50, 1472, 1472, 1472, 900, 900]), 0);
    assert_eq!(sender.send(to, FRAME_BYTES, &mut from(&sent, &mut next)), BurstSent::TooLong);
    assert_eq!(sender.statistics().too_long, 3);
    let arrived = receive_all(&mut receiver, 3);
    assert_same(&arrived, &[sent[0].clone(), sent[4].clone(), sent[5].clone()]);
    let uncut = sender.statistics().uncut;
    send_all(&mut sender, to, &sent[4..]);
    assert_eq!(sender.statistics().uncut, uncut);
    assert!(sender.uncut.is_empty(), "packets that fit are cut again");
    assert_same(&receive_all(&mut receiver, 2), &sent[4..]);
}

#[test]
fn what_comes_in_a_longer_train_is_kept_for_the_next_call() {
    let (mut sender, mut receiver) = (v4(true), v4(true));
    let sent = packets(&[20; 3]);
    send_all(&mut sender, receiver.facts().address, &sent);
    assert!(is_readable(&receiver, PATIENCE));
    for (at, byte) in receiver.arrived[..200].iter_mut().enumerate() {
        *byte = at as u8;
    }
    receiver.train = TrainRest { at: 0, end: 200, packet_bytes: 1 };
    let mut arrived: Vec<Vec<u8>> = Vec::new();
    assert_eq!(receiver.receive(&mut |train| arrived.extend(train.packets().map(<[u8]>::to_vec))), RECEIVE_BURST_MAX);
    assert_eq!(
        receiver.receive(&mut |train| arrived.extend(train.packets().map(<[u8]>::to_vec))),
        200 - RECEIVE_BURST_MAX
    );
    let expected: Vec<Vec<u8>> = (0..200).map(|at| vec![at as u8]).collect();
    assert_same(&arrived, &expected);
    assert_same(&receive_all(&mut receiver, 3), &sent);
}

#[test]
fn its_descriptor_is_readable_while_something_is_there() {
    let (mut sender, mut receiver) = (v4(true), v4(true));
    assert!(!is_readable(&receiver, Duration::ZERO));
    send_all(&mut sender, receiver.facts().address, &packets(&[100; 10]));
    assert!(is_readable(&receiver, PATIENCE));
    assert_eq!(receive_all(&mut receiver, 10).len(), 10);
    assert!(!is_readable(&receiver, Duration::ZERO));
}

#[test]
fn a_packet_of_nothing_is_passed_on_as_such() {
    let mut receiver = v4(true);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for bytes in [&b""[..], b"x", b""] {
        stranger.send_to(bytes, receiver.facts().address).unwrap();
    }
    assert_same(&receive_all(&mut receiver, 3), &[vec![], b"x".to_vec(), vec![]]);
}

#[test]
fn what_the_kernel_drops_for_want_of_room_is_counted() {
    let small = UdpOptions { receive_bytes: 1, ..options(Ipv4Addr::LOCALHOST.into()) };
    let (mut sender, receiver) = (v4(false), UdpPort::open(small).unwrap());
    assert_eq!(dropped(&receiver), 0);
    send_all(&mut sender, receiver.facts().address, &packets(&[1000; 60]));
    assert!((1..60).contains(&dropped(&receiver)), "{}", dropped(&receiver));
}

const PREFIX: u32 = 0x1234_abcd;
const OTHER_FRAME_BYTES: usize = 1200;

/// Packets of so many bytes with ids of these prefixes.
fn with_prefixes(prefixes: &[u32], bytes: usize) -> Vec<Vec<u8>> {
    let with_prefix = |(number, prefix): (usize, &u32)| {
        let mut packet = packet(number, bytes);
        packet[4..8].copy_from_slice(&prefix.to_le_bytes());
        packet
    };
    prefixes.iter().enumerate().map(with_prefix).collect()
}

#[test]
fn what_has_another_prefix_is_dropped_unseen_from_the_first_session_on() {
    let name = "what_has_another_prefix_is_dropped_unseen_from_the_first_session_on";
    for ip in loopbacks(name) {
        let (mut sender, mut receiver) = (port(ip, false), port(ip, true));
        let sent = with_prefixes(&[PREFIX, 1, PREFIX, PREFIX.swap_bytes(), PREFIX], 200);
        let to = receiver.facts().address;
        send_all(&mut sender, to, &sent);
        assert_same(&receive_all(&mut receiver, 5), &sent);
        receiver.admit(PREFIX, FRAME_BYTES);
        send_all(&mut sender, to, &sent);
        // Too short for a prefix.
        send_all(&mut sender, to, &packets(&[7, 1]));
        let [own0, _, own1, _, own2] = <[Vec<u8>; 5]>::try_from(sent).unwrap();
        assert_same(&receive_all(&mut receiver, 3), &[own0, own1, own2]);
        assert!(!is_readable(&receiver, Duration::from_millis(20)), "nobody is woken for what was dropped");
        assert_eq!(dropped(&receiver), 4);
    }
}

#[test]
fn a_stranger_at_the_head_of_a_train_takes_nothing_with_it() {
    let name = "a_stranger_at_the_head_of_a_train_takes_nothing_with_it";
    for ip in loopbacks(name) {
        let (mut sender, mut receiver) = (port(ip, true), port(ip, true));
        if !receiver.facts().name.contains("GRO") {
            return skipped(name, "this kernel joins nothing");
        }
        let to = receiver.facts().address;
        // More frames than are looked into: the newest count.
        for frame_bytes in [1300, 1301, 1302, 1303, OTHER_FRAME_BYTES, FRAME_BYTES] {
            receiver.admit(PREFIX, frame_bytes);
        }
        for frame_bytes in [FRAME_BYTES, OTHER_FRAME_BYTES] {
            for own in [1, 2, 20, 40] {
                let mut prefixes = vec![1; 41];
                prefixes[own] = PREFIX;
                let sent = with_prefixes(&prefixes, frame_bytes);
                send_all(&mut sender, to, &sent);
                assert_same(&receive_all(&mut receiver, 41), &sent);
            }
            let strangers = with_prefixes(&[1; 41], frame_bytes);
            send_all(&mut sender, to, &strangers);
            assert_same(&receive_all(&mut receiver, 0), &[]);
        }
    }
}
