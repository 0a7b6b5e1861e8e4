//! Many callers from many addresses that never come to the point.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock_conformance::folder::Folder;
use penstock_conformance::gauge::measured;
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::stranger::dial_from;
use penstock_conformance::{Engine, Setting};

use super::{THERE, alone};

const DAWDLERS: usize = 300;
const CONNECTS: usize = 40;
const PAUSE: Duration = Duration::from_millis(10);
/// The promise: no handshake is delayed by more.
const DELAY: Duration = Duration::from_millis(100);
/// The beginning of a handshake, as they say it.
const WORDS: &[u8] = b"PNSN\x01\x00\x00\x00\x30\x00abcdefghijklmnopqrst";

struct Dawdler {
    from: Ipv4Addr,
    stream: Option<TcpStream>,
    said: usize,
}

/// Says one byte more, and comes again when it was turned away.
fn dawdle(dawdler: &mut Dawdler, to: SocketAddr, calls: &AtomicU64) {
    let Some(stream) = &mut dawdler.stream else {
        dawdler.stream = dial_from(dawdler.from, to).ok();
        dawdler.said = 0;
        calls.fetch_add(1, Ordering::Relaxed);
        return;
    };
    match stream.write(&WORDS[dawdler.said..=dawdler.said]) {
        Ok(1) if dawdler.said + 1 < WORDS.len() => dawdler.said += 1,
        _ => dawdler.stream = None,
    }
}

#[test]
fn three_hundred_dawdlers_delay_no_handshake_by_more_than_100_ms() {
    let _alone = alone();
    let folder = Folder::fresh();
    let setting = Setting::adaptive(TransportName::Tcp, 1, THERE);
    let far = Engine::start(setting.spec(folder.path(), "far").config()).unwrap();
    let near = Engine::start(setting.spec(folder.path(), "near").config()).unwrap();
    let to = far.addresses()[0];
    let (over, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let dawdlers = {
        let (over, calls) = (Arc::clone(&over), Arc::clone(&calls));
        std::thread::spawn(move || {
            let from = |number: usize| Ipv4Addr::new(127, 9, (number / 200) as u8, (number % 200) as u8 + 1);
            let mut all: Vec<Dawdler> =
                (0..DAWDLERS).map(|number| Dawdler { from: from(number), stream: None, said: 0 }).collect();
            while !over.load(Ordering::Relaxed) {
                for dawdler in &mut all {
                    dawdle(dawdler, to, &calls);
                }
                std::thread::sleep(PAUSE);
            }
        })
    };
    let deadline = Instant::now() + PATIENCE;
    while calls.load(Ordering::Relaxed) < DAWDLERS as u64 {
        assert!(Instant::now() < deadline, "the dawdlers do not come");
        std::thread::sleep(PAUSE);
    }
    let mut times: Vec<Duration> = (0..CONNECTS)
        .map(|_| {
            measured(DELAY, || {
                let begun = Instant::now();
                let peer = near.connect_address(&to.to_string(), PATIENCE).expect("it is heard among them");
                let took = begun.elapsed();
                assert!(peer.disconnect(PATIENCE));
                took
            })
        })
        .collect();
    over.store(true, Ordering::Relaxed);
    dawdlers.join().unwrap();
    times.sort_unstable();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    let calls = calls.load(Ordering::Relaxed);
    eprintln!("{CONNECTS} handshakes among {DAWDLERS} dawdlers ({calls} calls): {median:?}, the slowest {slowest:?}");
    eprintln!("{:?}", far.network_statistics());
    assert!(slowest <= DELAY, "{times:?}");
}
