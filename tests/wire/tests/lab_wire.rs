//! Labs: each fault is really applied to real sockets of two kernels' worth of network.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock_wire::{Direction, Family, Side, TwoHosts};

/// Longest wait for anything that has to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest wait for something that should not come.
const SILENCE: Duration = Duration::from_millis(300);

/// Two hosts, or why not.
fn hosts(test: &str, scenario: &str) -> Option<TwoHosts> {
    hosts_with_mtu(test, scenario, 1500)
}

fn hosts_with_mtu(test: &str, scenario: &str, mtu: u32) -> Option<TwoHosts> {
    let are_on = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    let off = (!are_on).then(|| "labs run when PENSTOCK_LABS=1 is set".to_owned());
    if let Some(reason) = off.or_else(TwoHosts::why_not) {
        if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
            let mut notes = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(notes, "{test}: {reason}").unwrap();
        }
        return None;
    }
    Some(TwoHosts::with_mtu(scenario.parse().unwrap(), mtu).unwrap())
}

/// A socket on each host, connected to each other.
fn udp(hosts: &TwoHosts, family: Family) -> (UdpSocket, UdpSocket) {
    let bind = |side: Side| hosts.inside(side, || UdpSocket::bind((hosts.address(side, family), 0))).unwrap().unwrap();
    let (a, b) = (bind(Side::A), bind(Side::B));
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    for socket in [&a, &b] {
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        // Room for all that a test sends: a receiver that has to wait for its turn must lose nothing.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, 16 << 20).unwrap();
    }
    (a, b)
}

/// Receives what has to come, however late a busy machine lets it.
fn hear(socket: &UdpSocket, bytes: &mut [u8]) -> usize {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = socket.recv(bytes).unwrap();
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    heard
}

/// Sends numbers at a pace that no queue minds, and receives until there is silence.
fn count_over(a: &UdpSocket, b: &UdpSocket, count: u32) -> Vec<u32> {
    let is_sending = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut heard = Vec::new();
            let (mut bytes, mut is_silent) = ([0; 2048], false);
            while !is_silent {
                // Asked before: what was sent last may still be coming when the wait is over.
                let was_sending = is_sending.load(Ordering::Relaxed);
                let received = b.recv(&mut bytes);
                is_silent = received.is_err() && !was_sending;
                let Ok(length) = received else { continue };
                assert_eq!(length, 400, "a datagram is whole or not there");
                let number = u32::from_be_bytes(bytes[..4].try_into().unwrap());
                assert_eq!(bytes[4..400], [number as u8; 396], "what is wrong must not get past a checksum");
                heard.push(number);
            }
            heard
        });
        for number in 0..count {
            let mut bytes = [number as u8; 400];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            a.send(&bytes).unwrap();
            if number % 20 == 19 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // What is still on its way has time to come.
        std::thread::sleep(Duration::from_secs(1));
        is_sending.store(false, Ordering::Relaxed);
        receiver.join().unwrap()
    })
}

/// A connection from A to B.
fn tcp(hosts: &TwoHosts, family: Family) -> (TcpStream, TcpStream) {
    let address = SocketAddr::from((hosts.address(Side::B, family), 0));
    let listener = hosts.inside(Side::B, || TcpListener::bind(address)).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let a = hosts.inside(Side::A, || TcpStream::connect_timeout(&address, PATIENCE)).unwrap().unwrap();
    let (b, _) = listener.accept().unwrap();
    for stream in [&a, &b] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    (a, b)
}

/// Hangs up when it goes, also by a panic: the other side must not wait for somebody who has given up.
struct HangUp(TcpStream);

impl Drop for HangUp {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Sends that many bytes and checks each of them at the other end: how long it took.
fn transfer(a: &mut TcpStream, b: &mut TcpStream, bytes: usize) -> Duration {
    // A prime period, so that a piece in the wrong place is noticed.
    let pattern: Vec<u8> = (0..251u8).cycle().take(251 * 1024).collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = bytes;
            while rest > 0 {
                let piece = rest.min(pattern.len());
                a.write_all(&pattern[..piece]).unwrap();
                rest -= piece;
            }
            a.shutdown(Shutdown::Write).unwrap();
        });
        let _end = HangUp(b.try_clone().unwrap());
        let (mut buffer, mut got) = (vec![0; 251 * 512], 0);
        loop {
            let length = match b.read(&mut buffer) {
                // A read that has a time of its own is not begun again by the kernel when the machine was stopped and goes on.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap_or_else(|error| panic!("{error} after {got} of {bytes} bytes")),
            };
            if length == 0 {
                break;
            }
            let phase = got % 251;
            assert!(buffer[..length] == pattern[phase..phase + length], "other bytes than were sent, after {got}");
            got += length;
        }
        assert_eq!(got, bytes);
    });
    begun.elapsed()
}

#[test]
fn without_faults_all_arrives_in_order_in_both_families() {
    let Some(mut hosts) = hosts("without_faults_all_arrives_in_order_in_both_families", "") else { return };
    for family in [Family::V4, Family::V6] {
        let (a, b) = udp(&hosts, family);
        assert_eq!(count_over(&a, &b, 1_000), (0..1_000).collect::<Vec<_>>());
        let (mut a, mut b) = tcp(&hosts, family);
        transfer(&mut a, &mut b, 4 << 20);
    }
    let stats = hosts.stats().unwrap();
    assert_eq!((stats.a_to_b.lost, stats.a_to_b.corrupted, stats.a_to_b.reordered), (0, 0, 0));
    assert!(stats.a_to_b.frames > 2_000 && stats.b_to_a.frames > 100);
}

#[test]
fn loss_is_seen_at_its_rate_and_the_same_frames_are_lost_again() {
    let name = "loss_is_seen_at_its_rate_and_the_same_frames_are_lost_again";
    let run = || {
        let mut hosts = hosts(name, "seed=11; a-to-b loss=5%")?;
        let (a, b) = udp(&hosts, Family::V4);
        let heard = count_over(&a, &b, 4_000);
        let lost = hosts.stats().unwrap().a_to_b.lost;
        assert_eq!(lost + heard.len() as u64, 4_000);
        Some(heard)
    };
    let Some(first) = run() else { return };
    // Expected 200, with a deviation of 14.
    assert!((3_730..3_870).contains(&first.len()), "{}", first.len());
    assert_eq!(Some(first), run(), "the seed decides which");
}

#[test]
fn a_delay_is_in_every_round_trip() {
    let Some(hosts) = hosts("a_delay_is_in_every_round_trip", "both delay=5ms") else { return };
    let (a, b) = udp(&hosts, Family::V4);
    let mut trips: Vec<Duration> = (0..50)
        .map(|_| {
            let begun = Instant::now();
            a.send(b"ping").unwrap();
            hear(&b, &mut [0; 4]);
            b.send(b"pong").unwrap();
            hear(&a, &mut [0; 4]);
            begun.elapsed()
        })
        .collect();
    trips.sort();
    assert!(trips[0] >= Duration::from_millis(10), "{:?}", trips[0]);
    assert!(trips[0] < Duration::from_millis(20), "even on a busy machine one is not twice as slow: {:?}", trips[0]);
}

#[test]
fn reordering_and_duplicates_are_seen() {
    let scenario = "seed=3; a-to-b reorder=5%,reorder-by=5ms,duplicate=5%";
    let Some(mut hosts) = hosts("reordering_and_duplicates_are_seen", scenario) else { return };
    let (a, b) = udp(&hosts, Family::V6);
    let heard = count_over(&a, &b, 4_000);
    let stats = hosts.stats().unwrap().a_to_b;
    let mut once = heard.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once, (0..4_000).collect::<Vec<_>>(), "nothing is lost");
    let twice = heard.len() as u64 - 4_000;
    // Expected 200 of each, with a deviation of 14.
    assert!((130..270).contains(&twice), "{twice}");
    assert_eq!(twice, stats.duplicated);
    let mut latest = 0;
    let mut late = 0;
    for number in heard {
        late += usize::from(number < latest);
        latest = latest.max(number);
    }
    assert!((130..300).contains(&late), "{late}");
}

#[test]
fn corrupted_frames_do_not_get_past_the_kernel_and_tcp_stays_whole() {
    let name = "corrupted_frames_do_not_get_past_the_kernel_and_tcp_stays_whole";
    let Some(mut hosts) = hosts(name, "seed=5; a-to-b corrupt=5%") else { return };
    let (a, b) = udp(&hosts, Family::V4);
    let heard = count_over(&a, &b, 4_000);
    let corrupted = hosts.stats().unwrap().a_to_b.corrupted;
    assert!((130..270).contains(&corrupted), "{corrupted}");
    assert_eq!(heard.len() as u64, 4_000 - corrupted, "checksums find every one of them");
    hosts.set(Direction::AToB, "corrupt=1%").unwrap();
    let (mut a, mut b) = tcp(&hosts, Family::V4);
    transfer(&mut a, &mut b, 8 << 20);
    assert!(hosts.stats().unwrap().a_to_b.corrupted > corrupted, "TCP met some too");
}

#[test]
fn tcp_gets_through_a_bad_wire_whole() {
    let scenario = "seed=9; both loss=1%,delay=1ms,jitter=1ms,reorder=1%,duplicate=1%,corrupt=0.5%";
    let Some(mut hosts) = hosts("tcp_gets_through_a_bad_wire_whole", scenario) else { return };
    let (mut a, mut b) = tcp(&hosts, Family::V6);
    transfer(&mut a, &mut b, 2 << 20);
    let stats = hosts.stats().unwrap().a_to_b;
    assert!(stats.lost > 0 && stats.corrupted > 0 && stats.duplicated > 0 && stats.reordered > 0, "{stats:?}");
}

#[test]
fn udp_alone_is_kept_back_in_the_direction_that_is_named() {
    let name = "udp_alone_is_kept_back_in_the_direction_that_is_named";
    let Some(mut hosts) = hosts(name, "a-to-b udp-loss=100%") else { return };
    for family in [Family::V4, Family::V6] {
        let (a, b) = udp(&hosts, family);
        a.send(b"lost").unwrap();
        assert!(b.recv(&mut [0; 8]).is_err(), "closed from A to B");
        b.send(b"there").unwrap();
        assert_eq!(hear(&a, &mut [0; 8]), 5, "open from B to A");
        let (mut a, mut b) = tcp(&hosts, family);
        transfer(&mut a, &mut b, 1 << 20);
    }
    hosts.set(Direction::AToB, "udp-loss=0%").unwrap();
    let (a, b) = udp(&hosts, Family::V4);
    a.send(b"again").unwrap();
    assert_eq!(hear(&b, &mut [0; 8]), 5, "open again");
}

#[test]
fn a_rate_is_kept() {
    let Some(mut hosts) = hosts("a_rate_is_kept", "a-to-b rate=50mbit,queue=256KiB") else { return };
    let (mut a, mut b) = tcp(&hosts, Family::V4);
    let bytes = 12 << 20;
    let took = transfer(&mut a, &mut b, bytes).as_secs_f64();
    let rate = bytes as f64 * 8.0 / took / 1e6;
    // Headers take about a twentieth. A busy machine makes it slower, never faster.
    assert!((30.0..=50.5).contains(&rate), "{rate} Mbit/s");
    assert!(hosts.stats().unwrap().a_to_b.held_bytes_max <= 256 << 10);
}

#[test]
fn a_cut_is_silence_until_it_heals_and_a_connection_survives_it() {
    let name = "a_cut_is_silence_until_it_heals_and_a_connection_survives_it";
    let Some(mut hosts) = hosts(name, "") else { return };
    let (a, b) = udp(&hosts, Family::V4);
    let (mut stream, mut peer) = tcp(&hosts, Family::V4);
    hosts.cut(Direction::AToB).unwrap();
    a.send(b"lost").unwrap();
    assert!(b.recv(&mut [0; 8]).is_err(), "cut from A to B");
    b.send(b"there").unwrap();
    assert_eq!(hear(&a, &mut [0; 8]), 5, "open from B to A");
    hosts.cut(Direction::Both).unwrap();
    b.send(b"lost").unwrap();
    assert!(a.recv(&mut [0; 8]).is_err(), "cut from B to A");
    stream.write_all(b"later").unwrap();
    std::thread::sleep(SILENCE);
    hosts.heal(Direction::Both).unwrap();
    a.send(b"again").unwrap();
    assert_eq!(hear(&b, &mut [0; 8]), 5, "healed");
    let mut bytes = [0; 5];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"later", "TCP sends again until it arrives");
    assert!(hosts.stats().unwrap().a_to_b.cut > 0);
}

#[test]
fn a_script_partitions_by_itself() {
    let Some(hosts) = hosts("a_script_partitions_by_itself", "at=500ms partition for=1s") else { return };
    let begun = Instant::now();
    let (a, b) = udp(&hosts, Family::V4);
    b.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut heard_at = Vec::new();
    while begun.elapsed() < Duration::from_secs(3) {
        a.send(b"tick").unwrap();
        if b.recv(&mut [0; 8]).is_ok() {
            heard_at.push(begun.elapsed());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let gap = heard_at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    // The wire's clock began a moment before this one; one tick and the machine's business are the room.
    assert!((900..1_900).contains(&gap.as_millis()), "{gap:?}");
}

#[test]
fn a_link_goes_down_and_comes_up_again() {
    let Some(hosts) = hosts("a_link_goes_down_and_comes_up_again", "") else { return };
    let (mut stream, mut peer) = tcp(&hosts, Family::V6);
    let (a, b) = udp(&hosts, Family::V4);
    hosts.link_down(Side::B).unwrap();
    a.send(b"lost").unwrap();
    assert!(b.recv(&mut [0; 8]).is_err(), "down");
    assert!(b.send(b"lost").is_err(), "the host itself knows that it has no network");
    stream.write_all(b"later").unwrap();
    hosts.link_up(Side::B).unwrap();
    a.send(b"again").unwrap();
    assert_eq!(hear(&b, &mut [0; 8]), 5, "up");
    let mut bytes = [0; 5];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"later");
}

#[test]
fn a_program_runs_on_its_host_and_nothing_is_left_behind() {
    let Some(hosts) = hosts("a_program_runs_on_its_host_and_nothing_is_left_behind", "") else { return };
    for side in [Side::A, Side::B] {
        let output = hosts.command(side, "ip").args(["-o", "addr"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for family in [Family::V4, Family::V6] {
            assert!(text.contains(&hosts.address(side, family).to_string()), "{text}");
            assert!(!text.contains(&format!("{}/", hosts.address(side.other(), family))), "{text}");
        }
    }
    let id = hosts.command(Side::A, "ip").args(["netns", "identify"]).output().unwrap();
    let own = String::from_utf8(id.stdout).unwrap().trim().to_owned();
    assert!(std::path::Path::new("/run/netns").join(&own).exists(), "{own:?}");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _hosts = hosts;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    assert!(!std::path::Path::new("/run/netns").join(&own).exists(), "gone, also after a panic");
}

#[test]
fn a_wire_without_faults_is_fast_enough_to_be_used() {
    for mtu in [1500, 9000] {
        let name = "a_wire_without_faults_is_fast_enough_to_be_used";
        let Some(hosts) = hosts_with_mtu(name, "", mtu) else { return };
        let (mut a, mut b) = tcp(&hosts, Family::V4);
        let bytes = 128 << 20;
        let took = transfer(&mut a, &mut b, bytes).as_secs_f64();
        let rate = bytes as f64 * 8.0 / took / 1e9;
        writeln!(std::io::stderr(), "{rate:.2} Gbit/s at an MTU of {mtu}").unwrap();
        // What it does on an idle machine is far more; this only finds a wire that has become useless.
        assert!(rate > 0.1, "{rate} Gbit/s at an MTU of {mtu}");
    }
}

#[test]
fn the_program_obeys_its_input_and_takes_its_ends_with_it() {
    let name = "the_program_obeys_its_input_and_takes_its_ends_with_it";
    let Some(hosts) = hosts(name, "") else { return };
    // Any namespace will do for its ends; this one is ours.
    let mut program = hosts.command(Side::A, env!("CARGO_BIN_EXE_penstock-wire"));
    program.args(["left", "right", "--seed", "7", "--both", "delay=1ms"]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut orders = program.stdin.take().unwrap();
    let mut answers = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut next = || answers.next().unwrap().unwrap();
    assert_eq!(next(), r#"{"ready":{"seed":7}}"#);
    let has_ends = || hosts.command(Side::A, "ip").args(["link", "show", "left"]).output().unwrap().status.success();
    assert!(has_ends());
    for (order, answer) in [
        ("set a-to-b loss=5%", r#""done""#),
        ("partition a-to-b", r#""done""#),
        ("heal", r#""done""#),
        ("explode", r#"{"error":"#),
        ("stats", r#"{"stats":{"a_to_b":{"frames":"#),
    ] {
        writeln!(orders, "{order}").unwrap();
        let heard = next();
        assert!(heard.starts_with(answer), "{order}: {heard}");
    }
    drop(orders);
    assert!(program.wait().unwrap().success(), "the end of its input is its end");
    assert!(!has_ends());
}
