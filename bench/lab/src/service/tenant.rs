//! One peer of the server: its requests one after the other, in a thread of its own, and the pools it was given.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock::config::PagesChoice;
use penstock::region::Pool;
use penstock::{Counter, Engine, Pages, Peer, PoolSpec, Rights, Submit, SubmitError, SystemEnv};

use super::charge::Ledger;
use super::message::{self, About, Answer, Refusal, Request};
use super::server::Event;
use crate::layout::{Destination, Layout, LayoutSpec, PLACES_MAX, Stretch};
use crate::measure::clock;
use crate::results::machine::Machine;

/// Pools of one peer.
const POOLS_MAX: usize = 8;
/// How long taking a pool back waits for a peer that still writes into it.
const TAKE_BACK: Duration = Duration::from_secs(2);
/// Refusals between two looks that are told of.
const REFUSED_MAX: usize = 64;
/// How long an answer waits for room at whoever asked.
const SAY: Duration = Duration::from_secs(5);

/// Bytes that are made for others.
#[derive(Debug)]
pub(super) struct Purse {
    most: u64,
    used: AtomicU64,
}

impl Purse {
    pub(super) fn of(most: u64) -> Self {
        Self { most, used: AtomicU64::new(0) }
    }

    fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let add = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.most);
        let taken = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.map(drop).map_err(|used| Refusal::TooMuchMemory { asked: bytes, left: self.most.saturating_sub(used) })
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// What all peers have in common.
pub(super) struct House<'a> {
    pub(super) engine: &'a Engine,
    pub(super) purse: Purse,
    /// Numbers pools, whose labels no two may share.
    pub(super) next: AtomicU64,
    /// Has this host examined.
    pub(super) doctor: &'a (dyn Fn() -> serde_json::Value + Sync),
    /// Whose part of this process's CPU time is which, by numbers of tenants.
    pub(super) ledger: Mutex<Ledger<u64>>,
    /// Who was refused, and is not told of yet.
    pub(super) refused: Mutex<Vec<Event>>,
}

impl House<'_> {
    /// Somebody was refused. Of too many at once the rest is not told of.
    pub(super) fn has_refused(&self, peer: &Peer<SystemEnv>, refusal: Refusal) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < REFUSED_MAX {
            refused.push(Event::Refused { peer: peer.name().clone(), address: peer.address(), refusal });
        }
    }

    pub(super) fn take_refused(&self) -> Vec<Event> {
        std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<u64>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One peer, served.
pub(super) struct Tenant<'a> {
    house: &'a House<'a>,
    peer: Peer<SystemEnv>,
    /// Its number in the ledger: the name of one that is gone may come again.
    number: u64,
    pools: Vec<Given>,
}

/// A pool that a peer was given.
struct Given {
    label: String,
    pool: Pool<SystemEnv>,
    /// Its arrival counter goes when this does.
    _arrivals: Counter<SystemEnv>,
    bytes: u64,
}

impl<'a> Tenant<'a> {
    pub(super) fn new(house: &'a House<'a>, peer: Peer<SystemEnv>) -> Self {
        let number = house.next.fetch_add(1, Ordering::Relaxed);
        Self { house, peer, number, pools: Vec::new() }
    }

    /// Does what it is asked until nobody can ask any more.
    pub(super) fn serve(mut self, requests: &Receiver<(u32, Vec<u8>)>) {
        for (number, bytes) in requests {
            if self.peer.ended().is_some() {
                continue; // Nobody waits for it.
            }
            let before = clock::thread_cpu();
            let done = message::request_of(&bytes).and_then(|request| self.perform(&request));
            self.house.ledger().set_aside(clock::thread_cpu() - before);
            say(&self.peer, number, &done.unwrap_or_else(Answer::Refused));
        }
    }

    fn perform(&mut self, request: &Request) -> Result<Answer, Refusal> {
        match request {
            Request::About => Ok(Answer::About(about(self.house))),
            Request::Pool { bytes, pages } => {
                self.make(*bytes, *pages).inspect_err(|refusal| self.house.has_refused(&self.peer, refusal.clone()))
            }
            Request::Fill { pool, layout } => {
                let given = self.find(pool)?;
                fitting(layout, given.bytes)?.fill(given.pool.window());
                Ok(Answer::Done)
            }
            Request::Wipe { pool } => {
                crate::pattern::wipe(self.find(pool)?.pool.window());
                Ok(Answer::Done)
            }
            Request::Check { pool, layout, first_bytes, from_byte } => {
                let given = self.find(pool)?;
                let layout = fitting(layout, given.bytes)?;
                // What is looked at are words.
                let word = |bytes: u64| bytes / 8 * 8;
                let stretch = Stretch { from: word(*from_byte), bytes: word(first_bytes.unwrap_or(u64::MAX)) };
                let (window, is_gone) = (given.pool.window(), || self.peer.ended().is_some());
                let checked = layout.check_stretch(window, Destination::Remote, stretch, &is_gone);
                Ok(checked.map_or_else(Answer::Wrong, |bytes| Answer::Checked { bytes }))
            }
            Request::Drop { pool } => {
                let place = self.pools.iter().position(|given| given.label == *pool);
                let place = place.ok_or_else(|| Refusal::NoSuchPool { label: pool.clone() })?;
                let given = self.pools.swap_remove(place);
                take_back(&self.house.purse, given);
                Ok(Answer::Done)
            }
            Request::Cpu => Ok(Answer::Cpu { nanos: clock::process_cpu().as_nanos() as u64 }),
            Request::Charge { moved, is_last } => {
                let process = clock::process_cpu();
                let charged = self.house.ledger().report(self.number, *moved, *is_last, Instant::now(), process);
                Ok(Answer::Cpu { nanos: charged.as_nanos() as u64 })
            }
            Request::Doctor => Ok(Answer::Doctor((self.house.doctor)())),
        }
    }

    fn find(&self, label: &str) -> Result<&Given, Refusal> {
        let found = self.pools.iter().find(|given| given.label == label);
        found.ok_or_else(|| Refusal::NoSuchPool { label: label.to_owned() })
    }

    fn make(&mut self, bytes: u64, pages: PagesChoice) -> Result<Answer, Refusal> {
        if self.pools.len() == POOLS_MAX {
            return Err(Refusal::Busy { what: format!("{POOLS_MAX} pools of this session") });
        }
        self.house.purse.take(bytes)?;
        let label = format!("served-{}", self.house.next.fetch_add(1, Ordering::Relaxed));
        let pages = match pages {
            PagesChoice::Auto => Pages::Auto,
            PagesChoice::Small => Pages::Small,
            PagesChoice::Huge => Pages::Huge,
        };
        let spec = PoolSpec::host(bytes).label(&label).pages(pages).rights(Rights::READ_WRITE);
        let made = self.house.engine.pool(spec).and_then(|pool| {
            let arrivals = pool.counter(&label)?;
            Ok((pool, arrivals))
        });
        match made {
            Ok((pool, arrivals)) => {
                let answer = Answer::Pool { counter: label.clone(), label: label.clone(), bytes };
                self.pools.push(Given { label, pool, _arrivals: arrivals, bytes });
                Ok(answer)
            }
            Err(refused) => {
                self.house.purse.give_back(bytes);
                Err(Refusal::Failed { why: format!("cannot make a pool: {refused}") })
            }
        }
    }
}

impl Drop for Tenant<'_> {
    fn drop(&mut self) {
        self.house.ledger().forget(&self.number, Instant::now(), clock::process_cpu());
        for given in self.pools.drain(..) {
            take_back(&self.house.purse, given);
        }
    }
}

/// Takes a pool back. What a stopped peer may still write into stays counted: it is not free.
fn take_back(purse: &Purse, given: Given) {
    let bytes = given.bytes;
    let quiesced = given.pool.deregister(TAKE_BACK).is_ok_and(|hold| hold.is_quiesced());
    drop(given);
    if quiesced {
        purse.give_back(bytes);
    }
}

/// The layout, if it is one and lies within a pool of so many bytes.
fn fitting(spec: &LayoutSpec, pool_bytes: u64) -> Result<Layout, Refusal> {
    let refuse = |why: &str| Err(Refusal::Layout { why: why.to_owned() });
    if let Err(wrong) = spec.workload.check() {
        return Err(Refusal::Layout { why: wrong.to_string() });
    }
    if spec.places() > PLACES_MAX {
        return refuse("it has more than 8 million places for blocks; use larger blocks or a smaller pool");
    }
    if spec.pool_bytes() > pool_bytes {
        return refuse("it is larger than the pool");
    }
    Ok(Layout::new(spec))
}

fn about(house: &House<'_>) -> About {
    let machine = Machine::this();
    let config = house.engine.config();
    let at_device = config.dpdk.address.filter(|_| config.dpdk.device.is_some());
    About {
        protocol: message::VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        name: house.engine.name().to_string(),
        cpu: machine.cpu,
        cores: machine.cores,
        kernel: machine.kernel,
        memory_gib: machine.memory_gib,
        pool_bytes_max: house.purse.most,
        machine: machine_mark(),
        dpdk: at_device.map(|address| address.to_string()),
        transports: config.transports.allow.iter().map(|name| name.as_str().to_owned()).collect(),
    }
}

/// What tells machines apart whose memory is not the same: a digest of the number that a kernel gives itself as it starts. None where it
/// does not say it.
pub(crate) fn machine_mark() -> Option<u64> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().filter(|id| !id.trim().is_empty())?;
    Some(
        id.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)),
    )
}

/// Sends an answer. Whoever takes none waits alone: its own thread is the one that ends up here.
pub(super) fn say(peer: &Peer<SystemEnv>, number: u32, answer: &Answer) {
    for (id, bytes) in message::notes_of(number, answer) {
        let deadline = Instant::now() + SAY;
        loop {
            match peer.notify(id, &bytes, Submit::new().within(SAY)) {
                // The next part follows when this one has arrived, so that a slow peer has one note under way.
                Ok(transfer) => match transfer.wait() {
                    Ok(_) => break,
                    Err(_) => return,
                },
                Err(SubmitError::Full { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn no_more_is_given_than_there_is() {
        let purse = Purse::of(100);
        assert_eq!(purse.take(60), Ok(()));
        assert_eq!(purse.take(41), Err(Refusal::TooMuchMemory { asked: 41, left: 40 }));
        assert_eq!(purse.take(u64::MAX), Err(Refusal::TooMuchMemory { asked: u64::MAX, left: 40 }));
        purse.give_back(60);
        assert_eq!((purse.take(100), purse.used()), (Ok(()), 100));
    }

    #[test]
    fn layouts_from_outside_are_looked_at_first() {
        let spec = |pool_bytes_min, concurrency| {
            let workload = Workload::find("kv16").unwrap();
            LayoutSpec { workload, pool_bytes_min, concurrency, seed: 1 }
        };
        assert!(fitting(&spec(1 << 25, 1), 1 << 25).is_ok());
        for wrong in [spec(1 << 26, 1), spec(u64::MAX, 1), spec(0, 3), spec(0, usize::MAX)] {
            assert!(matches!(fitting(&wrong, 1 << 25), Err(Refusal::Layout { .. })), "{wrong:?}");
        }
        let mut none = spec(0, 1);
        none.workload.layers = 0;
        assert!(fitting(&none, 1 << 25).is_err());
        let mut tiny = spec(1 << 40, 1);
        tiny.workload.block_bytes = 8;
        tiny.workload.stride_bytes = None;
        assert!(fitting(&tiny, 1 << 40).is_err(), "its table would take gigabytes");
    }
}
