//! Labs: thousands of connections that come and go, or break off in the middle, and hundreds of peers that are killed and
//! come back, leave nothing behind. A flood is refused, and over when it is over.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock::config::{TcpIo, TransportName};
use penstock::session::opening::channel_opening;
use penstock::session::{EngineDescriptor, Frame, Offer, OpeningCode, Refusal, Secret};
use penstock::{ConnectError, PoolSpec, Rights};
use penstock_conformance::churn::{Holding, churn};
use penstock_conformance::death::{die_far, far_settings};
use penstock_conformance::folder::Folder;
use penstock_conformance::gauge::STALLED_MAX;
use penstock_conformance::setting::{SECRET, Tuning};
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::stranger::{Guest, Said, Stranger, hello};
use penstock_conformance::{Engine, Place, Setting, skip};

const PEER: &str = env!("CARGO_BIN_EXE_penstock-conformance-peer");
/// The promises.
const BACK_WITHIN: Duration = Duration::from_millis(500);
const KNOWN_WITHIN: Duration = Duration::from_millis(100);
/// Restarts for each setting: two hundred of each kind of transport.
const CYCLES: usize = 250;
const EARLY: usize = 50;
/// Deaths that are judged in each mode, and how many are tried at most.
const DEATHS: usize = 12;
const DEATHS_MAX: usize = 40;
const CONNECTS: usize = 10_000;
const CONNECTS_EARLY: usize = 1_000;
/// Callers that break off at each stage of the handshake.
const BROKEN_OFF: usize = 2_000;

static ALONE: Mutex<()> = Mutex::new(());

/// These count descriptors and time things: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Pair {
    near: Engine,
    far: Engine,
    secret: Secret,
    _folder: Folder,
}

impl Pair {
    fn open(accepts_per_second: Option<u64>, io: TcpIo) -> Self {
        let folder = Folder::fresh();
        let setting = Setting::adaptive(TransportName::Tcp, 1, Place::Here).by(io);
        let tuning = Tuning { accepts_per_second, ..Tuning::default() };
        let start = |name: &str| Engine::start(setting.spec(folder.path(), name).tuned(tuning).config()).unwrap();
        let (far, near) = (start("far"), start("near"));
        let text = std::fs::read_to_string(folder.path().join(SECRET)).unwrap();
        let secret = Secret::parse(&text).unwrap();
        Self { near, far, secret, _folder: folder }
    }

    fn at(&self) -> SocketAddr {
        self.far.addresses()[0]
    }

    fn card(&self) -> EngineDescriptor {
        EngineDescriptor::decode(&self.far.descriptor()).unwrap()
    }

    fn connect_once(&self) -> Duration {
        let begun = Instant::now();
        let peer = self.near.connect_address(&self.at().to_string(), PATIENCE).expect("the engine listens");
        let took = begun.elapsed();
        assert!(peer.disconnect(PATIENCE));
        took
    }

    /// What this process holds once nobody has a session and all is closed.
    fn holding(&self, at_most: Option<Holding>) -> Holding {
        let until = Instant::now() + Duration::from_secs(5);
        let (mut now, mut still) = (Holding::now(), 0);
        while (still < 5 || !self.near.peers().is_empty() || !self.far.peers().is_empty()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            let again = Holding::now();
            let is_settled = at_most.is_none_or(|before| !again.is_more_than(&before));
            still = if again == now && is_settled { still + 1 } else { 0 };
            now = again;
        }
        now
    }
}

#[test]
fn two_hundred_and_fifty_restarts_are_back_in_time_and_leave_nothing_behind() {
    if let Some(reason) = skip::labs_are_off() {
        let name = "two_hundred_and_fifty_restarts_are_back_in_time_and_leave_nothing_behind";
        return skip::report(name, reason);
    }
    let _alone = alone();
    for setting in far_settings(PEER) {
        let told = churn(&setting, EARLY, CYCLES);
        eprintln!("{setting}: {told:?}");
        assert!(told.back[1] <= BACK_WITHIN, "{setting}: {:?}", told.back);
    }
}

#[test]
fn each_death_of_a_peer_on_another_host_is_known_within_100_ms() {
    if let Some(reason) = skip::labs_are_off() {
        return skip::report("each_death_of_a_peer_on_another_host_is_known_within_100_ms", reason);
    }
    let _alone = alone();
    for setting in far_settings(PEER) {
        let (mut judged, mut tried) = (Vec::new(), 0);
        while judged.len() < DEATHS && tried < DEATHS_MAX {
            let death = die_far(&setting);
            tried += 1;
            // A machine that is shared takes its processors away now and then, longer than the promise.
            judged.extend((death.stalled <= STALLED_MAX).then_some(death));
        }
        assert!(!judged.is_empty(), "this machine stands still too often to measure 100 ms");
        judged.sort_by_key(|death| death.ended);
        let (median, slowest) = (judged[judged.len() / 2].ended, judged[judged.len() - 1].ended);
        eprintln!("{setting}: all ended {median:?} after the kill, {slowest:?} at the most, {tried} tried");
        // One may be the machine's: a thread that only slept does not find out how slow the others were.
        let late = judged.iter().filter(|death| death.ended > KNOWN_WITHIN).count();
        assert!(late <= 1 && median <= KNOWN_WITHIN, "{setting}: {judged:?}");
    }
}

#[test]
fn ten_thousand_connections_come_and_go_and_leave_nothing() {
    if let Some(reason) = skip::labs_are_off() {
        return skip::report("ten_thousand_connections_come_and_go_and_leave_nothing", reason);
    }
    let _alone = alone();
    let pair = Pair::open(Some(1_000_000), TcpIo::Auto);
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut early = None;
    for count in 1..=CONNECTS {
        times.push(pair.connect_once());
        if count == CONNECTS_EARLY {
            early = Some(pair.holding(None));
        }
    }
    let took = begun.elapsed();
    let early = early.expect("the first look is before the last connection");
    let late = pair.holding(Some(early));
    times.sort_unstable();
    let [median, most] = [times[CONNECTS / 2], times[CONNECTS * 99 / 100]];
    eprintln!(
        "{CONNECTS} connections in {took:?}: {median:?} each, 99 of 100 within {most:?}; {early:?}, then {late:?}"
    );
    assert!(!late.is_more_than(&early), "{early:?}, then {late:?}");
}

/// Says a part of what a caller says, and goes.
fn break_off(pair: &Pair, stage: usize) {
    let raw = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(pair.at()).unwrap();
        let _ = stream.write_all(bytes);
    };
    let card = || pair.card();
    match stage {
        0 => raw(b""),
        1 => raw(&channel_opening()[..3]),
        2 => raw(&channel_opening()),
        3 => raw(&[&channel_opening()[..], &[48, 0], &[7; 20]].concat()),
        4 => drop(Stranger::call(pair.at(), &pair.secret).unwrap()),
        5 => drop(Stranger::open(pair.at(), &pair.secret)),
        6 => {
            let mut stranger = Stranger::open(pair.at(), &pair.secret);
            stranger.send(&Frame::Hello(hello(&card(), "breaker")));
        }
        7 => {
            let mut stranger = Stranger::open(pair.at(), &pair.secret);
            stranger.send(&Frame::Hello(hello(&card(), "breaker")));
            assert!(matches!(stranger.hear(PATIENCE), Said::Frame(Frame::Hello(_))));
            stranger.send(&Frame::Offer(Offer { transport: "tcp".to_owned(), blob: vec![1; 7] }));
        }
        8 => drop(Stranger::open(pair.at(), &pair.secret).greet(&card(), "breaker")),
        9 => {
            let guest = Stranger::open(pair.at(), &pair.secret).greet(&card(), "breaker");
            let token = guest.stranger.stream_key().token(0).encode();
            drop(Guest::stream(pair.at(), &token[..17]));
        }
        _ => {
            let guest = Stranger::open(pair.at(), &pair.secret).greet(&card(), "breaker");
            drop(guest.streams(pair.at()));
        }
    }
}

const STAGES: usize = 11;

#[test]
fn callers_that_break_off_anywhere_leave_nothing() {
    if let Some(reason) = skip::labs_are_off() {
        return skip::report("callers_that_break_off_anywhere_leave_nothing", reason);
    }
    let _alone = alone();
    let pair = Pair::open(Some(1_000_000), TcpIo::Auto);
    let _pool = pair.far.pool(PoolSpec::host(1 << 20).label("kv").rights(Rights::READ_WRITE)).unwrap();
    let begun = Instant::now();
    let round = |from: usize, to: usize| {
        for _ in from..to {
            (0..STAGES).for_each(|stage| break_off(&pair, stage));
        }
    };
    round(0, BROKEN_OFF / 10);
    // Streams whose session never stands are kept for as long as a greeting may take.
    let rest = || std::thread::sleep(2 * pair.far.config().session.greeting_timeout());
    rest();
    let early = pair.holding(None);
    round(BROKEN_OFF / 10, BROKEN_OFF);
    rest();
    let late = pair.holding(Some(early));
    let all = STAGES * BROKEN_OFF;
    eprintln!("{all} callers broke off in {:?}: {early:?}, then {late:?}", begun.elapsed());
    eprintln!("{:?}", pair.far.network_statistics());
    assert!(!late.is_more_than(&early), "{early:?}, then {late:?}");
    pair.connect_once();
}

#[test]
fn a_flood_is_refused_by_default_and_the_next_second_is_another() {
    if let Some(reason) = skip::labs_are_off() {
        return skip::report("a_flood_is_refused_by_default_and_the_next_second_is_another", reason);
    }
    let _alone = alone();
    let pair = Pair::open(None, TcpIo::Auto);
    let hello = {
        // What a caller says first, so that the refusal is for how often, not for what.
        let stranger = Stranger::call(pair.at(), &pair.secret).unwrap();
        stranger.said.clone()
    };
    let begun = Instant::now();
    let mut refused = 0;
    for _ in 0..3_000 {
        let mut stream = TcpStream::connect(pair.at()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let _ = stream.write_all(&hello);
        let mut answer = [0; 264];
        let heard = stream.read(&mut answer).unwrap_or(0);
        let code = Refusal::decode(&answer[..heard]).map(|refusal| refusal.code);
        refused += usize::from(code == Ok(OpeningCode::RateLimited));
        let _ = stream.shutdown(Shutdown::Both);
    }
    let seen = pair.far.network_statistics();
    let flooded = begun.elapsed();
    let error = pair.near.connect_address(&pair.at().to_string(), PATIENCE).map(drop);
    let recovering = Instant::now();
    while pair.near.connect_address(&pair.at().to_string(), PATIENCE).is_err() {
        assert!(recovering.elapsed() < Duration::from_secs(2), "a flood that is over still counts");
        std::thread::sleep(Duration::from_millis(5));
    }
    let back = recovering.elapsed();
    eprintln!(
        "3000 calls in {flooded:?}: {refused} refused in words, {seen:?}; then {error:?}, heard again in {back:?}"
    );
    assert!(seen.limited > 0 && refused > 0, "{seen:?}");
    assert!(matches!(error, Ok(()) | Err(ConnectError::RateLimited { .. } | ConnectError::Lost { .. })), "{error:?}");
}
