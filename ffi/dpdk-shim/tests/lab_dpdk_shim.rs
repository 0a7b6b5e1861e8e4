//! The shim with DPDK's own virtual port that gives back what is sent to it. Needs DPDK's headers and a C compiler; neither root nor huge
//! pages.

#![allow(unsafe_code, reason = "the shim is as unsafe as C")]
#![allow(clippy::print_stdout, reason = "a lab says what it found")]

use std::ffi::{CString, c_char};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use penstock_dpdk_shim::{DpdkCounts, DpdkFacts, DpdkOptions, DpdkPacket, DpdkPiece, Shim};

/// DPDK makes a folder of this name, and leaves it behind.
const PREFIX: &str = "--file-prefix=penstock-lab-shim";
const ARGUMENTS: [&str; 9] = [
    "penstock",
    "--no-huge",
    "-m",
    "128",
    "--no-pci",
    "--no-shconf",
    PREFIX,
    "--no-telemetry",
    "--log-level=lib.eal:debug",
];
const BURST: usize = 32;
const BURSTS: usize = 5_000;
const PATIENCE: Duration = Duration::from_secs(60);

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a line of DPDK's log.
///
/// # Safety
///
/// There are so many bytes at `line`.
unsafe extern "C" fn log(_: u32, line: *const c_char, bytes: u32) {
    // SAFETY: the caller promises it.
    let line = unsafe { std::slice::from_raw_parts(line.cast::<u8>(), bytes as usize) };
    LOG.lock().unwrap().push(String::from_utf8_lossy(line).into_owned());
}

fn skip(test: &str, reason: &str) {
    println!("{test} is skipped: {reason}");
    if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        let mut notes = OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(notes, "{test}: {reason}").unwrap();
    }
}

/// Why the lab cannot run here, if it cannot.
fn why_not() -> Option<&'static str> {
    let is_set = |name| std::env::var_os(name).is_some();
    match () {
        () if !is_set("PENSTOCK_LABS") => Some("labs run with `make labs`"),
        () if !is_set("PENSTOCK_DPDK_SHIM") => Some("needs the library that `make dpdk` builds"),
        () => None,
    }
}

fn content(number: usize, len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(move |at| (number * 31 + at * 7 + at / 256) as u8)
}

/// Sends bursts to a port that gives them back, and looks at every byte.
fn loop_bursts(shim: &Shim, port: u16) {
    let (mut sent, mut received) = (0, 0);
    let mut packets = [DpdkPacket::NONE; BURST];
    let len = |number: usize| 60 + number * 13 % 1400;
    let start = Instant::now();
    while received < BURST * BURSTS {
        assert!(start.elapsed() < PATIENCE, "{sent} packets were sent, {received} have come");
        if sent < BURST * BURSTS {
            // SAFETY: there is room for a burst of packets.
            let taken = unsafe { shim.penstock_dpdk_take(port, packets.as_mut_ptr(), BURST as u32) } as usize;
            assert_eq!(taken, BURST, "buffers are given back");
            for (at, packet) in packets.iter_mut().enumerate() {
                assert!(packet.len >= 1514, "{} B of room", packet.len);
                packet.len = len(sent + at) as u32;
                // SAFETY: the packet has room for as much.
                let room = unsafe { std::slice::from_raw_parts_mut(packet.bytes, packet.len as usize) };
                room.iter_mut().zip(content(sent + at, len(sent + at))).for_each(|(place, byte)| *place = byte);
            }
            // SAFETY: they were taken just now.
            let left = unsafe { shim.penstock_dpdk_send(port, 0, packets.as_mut_ptr(), BURST as u32) } as usize;
            // SAFETY: what was not sent is still ours.
            unsafe { shim.penstock_dpdk_put_back(packets[left..].as_mut_ptr(), (BURST - left) as u32) };
            sent += left;
        }
        // SAFETY: there is room for a burst of packets.
        let came = unsafe { shim.penstock_dpdk_receive(port, 0, packets.as_mut_ptr(), BURST as u32) } as usize;
        for packet in &packets[..came] {
            assert_eq!((packet.len as usize, packet.flags), (len(received), 0));
            // SAFETY: the packet has so many bytes, and is ours until it is given back.
            let bytes = unsafe { std::slice::from_raw_parts(packet.bytes, packet.len as usize) };
            assert!(bytes.iter().copied().eq(content(received, bytes.len())), "packet {received}");
            received += 1;
        }
        // SAFETY: they have come, and are not looked at again.
        unsafe { shim.penstock_dpdk_put_back(packets.as_mut_ptr(), came as u32) };
    }
}

/// Packets that lend memory go from one end of a memif to the other: those that leave at once are read where they lie, those for which there
/// is no room are settled, and then nobody reads what was lent.
///
/// # Safety
/// DPDK was started, and this thread has entered.
unsafe fn lend_memory(shim: &Shim) {
    const PIECES: [usize; 3] = [700, 1, 3000];
    let socket = std::env::temp_dir().join(format!("penstock-lab-shim-{}", std::process::id()));
    let open = |role: &str| {
        let device = format!(
            "net_memif_{role},role={role},id=0,socket={},socket-abstract=no,bsize=4096,rsize=4",
            socket.display()
        );
        let device = CString::new(device).expect("no zeros");
        let options = DpdkOptions { queues: 1, receive_packets: 32, send_packets: 32, mtu: 4000, waits: 0 };
        // SAFETY: the caller's; all pointers name what lives here.
        unsafe {
            let port = shim.penstock_dpdk_add(device.as_ptr(), 1);
            assert!(port >= 0, "{}", shim.words(port));
            let opened = shim.penstock_dpdk_open(port as u16, &raw const options);
            assert_eq!(opened, 0, "{}", shim.words(opened));
            assert_eq!(shim.penstock_dpdk_lends(port as u16), 1);
            port as u16
        }
    };
    let (server, client) = (open("server"), open("client"));
    let start = Instant::now();
    // SAFETY: both ports are open.
    while unsafe { shim.penstock_dpdk_link(server) + shim.penstock_dpdk_link(client) } < 2 {
        assert!(start.elapsed() < PATIENCE, "the ends do not meet");
        std::thread::sleep(Duration::from_millis(1));
    }
    let bytes: usize = PIECES.iter().sum();
    let mut memory: Vec<Vec<u8>> = (0..BURST).map(|number| content(number, bytes).collect()).collect();
    let mut packets = [DpdkPacket::NONE; BURST];
    // SAFETY: there is room for a burst; the packets have room for more than is written; memory stays until they are sent or settled.
    let left = unsafe {
        assert_eq!(shim.penstock_dpdk_take(client, packets.as_mut_ptr(), BURST as u32) as usize, BURST);
        for (packet, memory) in packets.iter_mut().zip(&memory) {
            packet.bytes.write_bytes(7, 60);
            packet.len = 60;
            let mut at = memory.as_ptr() as u64;
            let pieces = PIECES.map(|len| {
                at += len as u64;
                DpdkPiece { address: at - len as u64, len: len as u64 }
            });
            shim.penstock_dpdk_lend(client, packet, pieces.as_ptr(), PIECES.len() as u32);
        }
        let left = shim.penstock_dpdk_send(client, 0, packets.as_mut_ptr(), BURST as u32) as usize;
        shim.penstock_dpdk_settle(packets[left..].as_mut_ptr(), (BURST - left) as u32);
        left
    };
    assert!((1..BURST).contains(&left), "{left} of a burst found room in a ring of 16");
    memory.iter_mut().for_each(|memory| memory.fill(0));
    let (mut sent, mut came) = (left, 0);
    while came < BURST {
        assert!(start.elapsed() < PATIENCE, "{sent} packets have left, {came} have come");
        let mut arrived = [DpdkPacket::NONE; BURST];
        // SAFETY: there is room for a burst; what has not left is still ours; what has come is, until it is given back.
        unsafe {
            let count = shim.penstock_dpdk_receive(server, 0, arrived.as_mut_ptr(), BURST as u32) as usize;
            for packet in &arrived[..count] {
                let found = std::slice::from_raw_parts(packet.bytes, packet.len as usize);
                assert_eq!((found.len(), packet.flags), (60 + bytes, 0), "packet {came}");
                assert!(found[..60].iter().all(|&byte| byte == 7));
                assert!(found[60..].iter().copied().eq(content(came, bytes)), "packet {came}");
                came += 1;
            }
            shim.penstock_dpdk_put_back(arrived.as_mut_ptr(), count as u32);
            let rest = (BURST - sent) as u32;
            sent += shim.penstock_dpdk_send(client, 0, packets[sent..].as_mut_ptr(), rest) as usize;
        }
    }
    // SAFETY: all that were taken have left.
    unsafe {
        assert_eq!(shim.penstock_dpdk_in_use(client), 0, "nothing is lent any more");
        assert_eq!((shim.penstock_dpdk_close(client), shim.penstock_dpdk_close(server)), (0, 0));
    }
}

fn with_a_port(shim: &'static Shim) {
    let arguments = ARGUMENTS.map(|argument| CString::new(argument).expect("no zeros").into_raw());
    let mut pointers = arguments.to_vec();
    pointers.push(std::ptr::null_mut());
    // SAFETY: the arguments are C strings that are never freed, with a null behind them.
    let started = unsafe { shim.penstock_dpdk_start(ARGUMENTS.len() as i32, pointers.as_mut_ptr(), log) };
    assert_eq!(started, 0, "{}; {:?}", shim.words(started), LOG.lock().unwrap());
    assert!(!LOG.lock().unwrap().is_empty(), "the log comes here");

    std::thread::spawn(|| {
        // SAFETY: DPDK was started; all pointers name what lives here.
        unsafe {
            assert_eq!(shim.penstock_dpdk_enter(), 0);
            assert_eq!(shim.penstock_dpdk_ports(), 0);
            assert!(shim.penstock_dpdk_add(c"net_nothing0".as_ptr(), 1) < 0);
            let port = shim.penstock_dpdk_add(c"net_ring0".as_ptr(), 1);
            assert_eq!((port, shim.penstock_dpdk_ports()), (0, 1), "{}", shim.words(port));
            let mut facts = DpdkFacts::default();
            assert_eq!(shim.penstock_dpdk_facts(0, &raw mut facts), 0);
            println!("{}: {facts:?}", facts.driver());
            assert_eq!((facts.driver(), facts.queues_max), ("net_ring".to_owned(), 16));
            let options = DpdkOptions { queues: 17, receive_packets: 256, send_packets: 256, mtu: 1500, waits: 0 };
            assert!(shim.penstock_dpdk_open(0, &raw const options) < 0, "it has 16 queues of each kind");
            let options = DpdkOptions { queues: 1, ..options };
            let opened = shim.penstock_dpdk_open(0, &raw const options);
            assert_eq!(opened, 0, "{}", shim.words(opened));
            assert_eq!(
                shim.penstock_dpdk_lends(0),
                0,
                "what is sent over a ring is its receiver's for as long as it likes"
            );
            loop_bursts(shim, 0);
            assert_eq!(shim.penstock_dpdk_in_use(0), 0, "all buffers came back");
            let mut counts = DpdkCounts::default();
            assert_eq!(shim.penstock_dpdk_counts(0, &raw mut counts), 0);
            let total = (BURST * BURSTS) as u64;
            assert_eq!((counts.received, counts.sent, counts.send_errors), (total, total, 0));
            assert_eq!(shim.penstock_dpdk_close(0), 0);
            assert_eq!(shim.penstock_dpdk_ports(), 0);
            lend_memory(shim);
            shim.penstock_dpdk_leave();
        }
    })
    .join()
    .expect("the thread of the port ends well");
}

#[test]
fn what_is_sent_comes_back_whole_and_buffers_are_given_back() {
    if let Some(reason) = why_not() {
        return skip("what_is_sent_comes_back_whole_and_buffers_are_given_back", reason);
    }
    let shim = Shim::find().unwrap_or_else(|unusable| panic!("{unusable}"));
    println!("DPDK {}", shim.release());
    std::thread::spawn(|| with_a_port(shim)).join().expect("the thread of DPDK ends well");
    let folders = ["/var/run".to_owned(), std::env::var("XDG_RUNTIME_DIR").unwrap_or_default()];
    let left = folders.map(|folder| Path::new(&folder).join("dpdk/penstock-lab-shim"));
    left.iter().filter(|left| left.exists()).for_each(|left| std::fs::remove_dir(left).expect("it is empty"));
}
