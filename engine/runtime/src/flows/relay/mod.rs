//! Chunks between stages: what one stage has computed, handed to the next ones.
//!
//! A stage [puts](Relay::put) bytes, packed items or extents of its own memory, for readers that it names. What it put has a small blob of
//! [metadata](RelayOp::metadata), good from the beginning, that any means may carry to its readers; whoever has none of it asks for
//! what has [arrived](Relay::arrival) for a request. A reader [gets](Relay::get) it, and the memory is free again when the last one has.
//!
//! Bytes go through *berths*, places of one size in pools of this engine, one for puts and one for gets, so that two stages which hand to
//! each other never wait for what the other holds. What is larger than its berths goes through them in parts. The copy into a berth and out
//! of one is made by threads of the application: in the call itself, and after that in every call that waits or polls, by whichever handle
//! of the relay. So a stage of one thread that waits for its get brings its put forward meanwhile.
//!
//! ```
//! use std::time::Duration;
//!
//! use penstock::flows::RequestId;
//! use penstock::flows::relay::{Arrival, Destination, Dtype, PayloadItem, Put, RelaySpec};
//! use penstock::{Config, Engine};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("penstock-doc-relay-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! const SOON: Duration = Duration::from_secs(10);
//! // A thinker, a talker and a vocoder, here in one process.
//! let start = |name: &str| Engine::start(Config::default().named(name).directory(&folder));
//! let (thinker, talker, vocoder) = (start("thinker")?, start("talker")?, start("vocoder")?);
//! let open = |engine: &Engine| engine.relay(RelaySpec::new().berths(64 << 10, 4, 4));
//! let (think, talk, voice) = (open(&thinker)?, open(&talker)?, open(&vocoder)?);
//! let to_talker = thinker.connect(&talker.descriptor(), SOON)?;
//! let to_vocoder = talker.connect(&vocoder.descriptor(), SOON)?;
//! let request = RequestId::new("cmpl-7")?;
//!
//! // The thinker hands what it thinks to the talker, with words that nobody in between reads.
//! let (states, hidden) = (PayloadItem { path: "hidden", shape: &[3, 8], dtype: Dtype::Bf16 }, vec![7; 3 * 8 * 2]);
//! let put = think.put(Put::items(&[(states, &hidden)])?.header(b"step 1"), &request, &[&to_talker])?;
//!
//! // The talker finds it by the request, and streams codes on.
//! let Arrival::Chunk(chunk) = talk.arrival(&request, SOON)? else { panic!("a chunk was put") };
//! let thought = talk.get(&chunk.metadata, Destination::memory())?.wait(SOON)??;
//! let (field, bytes) = thought.item("hidden")?;
//! assert_eq!((field.shape, bytes, &thought.header[..]), (vec![3, 8], &hidden[..], &b"step 1"[..]));
//! let codes = talk.stream(&request, &[&to_vocoder])?;
//! let steps = [1, 2, 3].map(|step| codes.put(Put::owned(vec![step; 4])));
//! codes.finish(SOON)?;
//!
//! // The vocoder has them in their order, and then hears of the end.
//! let mut heard = Vec::new();
//! while let Arrival::Chunk(chunk) = voice.arrival(&request, SOON)? {
//!     heard.extend(voice.get(&chunk.metadata, Destination::memory())?.wait(SOON)??.bytes);
//! }
//! assert_eq!(heard, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
//! put.wait(SOON)??;
//! for step in steps {
//!     step?.wait(SOON)??;
//! }
//! codes.wait(SOON)??;
//! assert!([think, talk, voice].iter().all(|relay| relay.close(SOON)), "every berth is back");
//! # drop((thinker, talker, vocoder));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`put`](mod@put): what is handed out; [`get`](mod@get): what is fetched
//! - [`extents`]: parts of this engine's own memory, and what is kept of it
//! - [`stream`](mod@stream): chunks behind each other, and what arrives
//! - [`payload`]: items in a buffer
//! - `work`: the copies

pub mod extents;
pub mod get;
pub mod payload;
pub mod put;
pub mod stream;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_core::{Cause, Env, Rights, Timestamp};
use penstock_flows::action::RegionRef;
pub use penstock_flows::manager::RelayMetrics;
use penstock_flows::relay::{self as flow, RelaySettings, Relays};
pub use penstock_flows::relay::{EarlyFrameBounds, Metadata, RelayCounts, RelayError, RelayFailed};
use penstock_memory::PoolSpec;
use penstock_session::{PeerKey, RequestId};

pub use self::extents::Extents;
pub use self::get::{Destination, Fetch};
pub use self::payload::{Dtype, Field, Payload, PayloadError, PayloadItem, Schema};
pub use self::put::{Put, RelayOp};
pub use self::stream::{Announced, Arrival, Stream, StreamJoin};
use self::work::Work;
use super::FlowError;
use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::error::RegionError;
use crate::manager::key_of;
use crate::peer::Peer;
use crate::region::{LocalRegion, Pool};

/// How long a put or get may take where nothing else is said.
const WITHIN: Duration = Duration::from_secs(30);
/// How long a peer has to answer for what was given up, before its memory is quarantined.
const ABORT: Duration = Duration::from_millis(500);
/// How many ended requests, chunks and streams are remembered, and for how long.
const TOMBS: (usize, Duration) = (16_384, Duration::from_secs(60));

/// What a relay is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelaySpec {
    berth_bytes: u64,
    puts: u32,
    gets: u32,
    each: u32,
    ends: u32,
    most: usize,
    early: EarlyFrameBounds,
    largest: u64,
}

impl Default for RelaySpec {
    fn default() -> Self {
        let early = EarlyFrameBounds { messages: 4096, bytes: 4 << 20, age: Duration::from_secs(30) };
        Self { berth_bytes: 16 << 20, puts: 4, gets: 4, each: u32::MAX, ends: 64, most: 1024, early, largest: 1 << 30 }
    }
}

impl RelaySpec {
    /// Four berths of 16 MiB for puts and four for gets.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many berths of so many bytes for puts, and for gets. Larger ones take large chunks in fewer parts and cost memory; more of them
    /// let more chunks be under way.
    #[must_use]
    pub fn berths(mut self, bytes: u64, puts: u32, gets: u32) -> Self {
        (self.berth_bytes, self.puts, self.gets) = (bytes, puts, gets);
        self
    }

    /// The most berths of one put. A put takes as many as it can use, all at once; without this, all that there are.
    #[must_use]
    pub fn each(mut self, berths: u32) -> Self {
        self.each = berths;
        self
    }

    /// The most puts, gets, joins, and streams of either direction, at once.
    #[must_use]
    pub fn most(mut self, most: usize) -> Self {
        self.most = most;
        self
    }

    /// How much is kept of what peers announce and nobody has asked for yet; what is more, or older, is refused.
    #[must_use]
    pub fn early(mut self, bounds: EarlyFrameBounds) -> Self {
        self.early = bounds;
        self
    }

    /// The most bytes that a get takes into memory of its own; into extents more may be had.
    #[must_use]
    pub fn largest(mut self, bytes: u64) -> Self {
        self.largest = bytes;
        self
    }
}

/// Why a relay could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields of an error are what its text names")]
pub enum OpenError {
    /// The call cannot be made.
    #[error("{0}")]
    Engine(Cause),
    /// There cannot be one with berths like these.
    #[error(
        "a relay needs berths, of at least one byte: {puts} for puts and {gets} for gets of {bytes} bytes are none"
    )]
    NoBerths { puts: u32, gets: u32, bytes: u64 },
    /// The berths could not be made.
    #[error("the berths could not be made: {0}")]
    Berths(#[from] RegionError),
    /// There is one.
    #[error(transparent)]
    Relay(#[from] RelayError),
}

/// Hands chunks to other stages, and takes theirs. Clones are handles of the same relay; it closes with the last one.
pub struct Relay<E: Env> {
    inner: Arc<Inner<E>>,
}

impl<E: Env> Clone for Relay<E> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<E: Env> std::fmt::Debug for Relay<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("engine", &self.inner.engine.shared.name).finish_non_exhaustive()
    }
}

/// What all handles of a relay share.
struct Inner<E: Env> {
    engine: Arc<EngineInner<E>>,
    puts: Pool<E>,
    gets: Pool<E>,
    largest: u64,
    work: Work,
    /// Changed and looked at under the transfer manager's lock, so that a handle that is closed cannot touch the next relay.
    is_closed: AtomicBool,
    is_taken_back: AtomicBool,
}

impl<E: Env> Engine<E> {
    /// Opens this engine's relay, with berths of its own. There is one at a time; what peers announced before is kept for it.
    pub fn relay(&self, spec: RelaySpec) -> Result<Relay<E>, OpenError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(OpenError::Engine)?;
        let RelaySpec { berth_bytes, puts, gets, each, ends, most, early, largest } = spec;
        if berth_bytes == 0 || puts == 0 || gets == 0 {
            return Err(OpenError::NoBerths { puts, gets, bytes: berth_bytes });
        }
        let berths = |count: u32, label: &str, rights: Rights| {
            let bytes = berth_bytes.saturating_mul(count.into());
            self.pool(PoolSpec::host(bytes).block(berth_bytes).label(label).rights(rights))
        };
        let puts_pool = berths(puts, "penstock.relay.puts", Rights::READ)?;
        let gets_pool = berths(gets, "penstock.relay.gets", Rights::NONE)?;
        let pool = |of: &Pool<E>, berths| flow::StagingPool { region: region_of(of), base: 0, berth_bytes, berths };
        let settings = RelaySettings {
            name: shared.name.clone(),
            epoch: shared.epoch,
            puts: pool(&puts_pool, puts),
            gets: pool(&gets_pool, gets),
            each: each.clamp(1, puts),
            control: ends,
            most,
            early,
            tombs: TOMBS.0,
            tomb: TOMBS.1,
            abort: ABORT,
            first_number: 0,
        };
        let engine = Arc::clone(&self.engine);
        let opened = shared.call_manager(|manager, _| manager.relays_mut().open(settings));
        if let Err(error) = opened {
            for pool in [&puts_pool, &gets_pool] {
                // Nobody was told of it by name: whatever is answered, nobody touches it.
                let _ = pool.deregister(Duration::ZERO);
            }
            return Err(error.into());
        }
        let inner = Inner {
            engine,
            puts: puts_pool,
            gets: gets_pool,
            largest,
            work: Work::default(),
            is_closed: AtomicBool::new(false),
            is_taken_back: AtomicBool::new(false),
        };
        Ok(Relay { inner: Arc::new(inner) })
    }
}

impl<E: Env> Relay<E> {
    /// Gives a request up: puts, gets, streams and joins of it end here, with these words, and what is begun for it later is refused. A
    /// second time changes nothing.
    ///
    /// All engines that this one is in session with are told. One at which this one has a part in the request, as it reads what is put
    /// there, is a source of a join there, or has what is fetched there, ends it as well and tells all that it is in session with; so do
    /// those. At any other one, only what this one has put of the request ends. A wait for what arrives there goes on: by a
    /// [`join`](Self::join) that names its source, or a stream, it hears that nothing comes.
    pub fn abort(&self, request: &RequestId, words: &str) {
        self.inner.change(|relays, now| relays.abort(request, words, now));
    }

    /// This engine wants nothing more of a request: what was not fetched is refused, what is being fetched is given up, and what comes late
    /// finds a tombstone. What it puts for others under that name goes on.
    pub fn cleanup(&self, request: &RequestId) {
        self.inner.change(|relays, now| relays.cleanup(request, now));
    }

    /// Ends everything, tells all readers, and waits until nobody is at a berth any more. If that is so in time the berths' memory is given
    /// back and this answers `true`; if not, it may be called again.
    pub fn close(&self, timeout: Duration) -> bool {
        let Inner { engine, puts, gets, is_taken_back, .. } = &*self.inner;
        let shared = &engine.shared;
        if self.inner.engine.shared.is_inherited() {
            return false;
        }
        if is_taken_back.load(Ordering::Relaxed) {
            return true;
        }
        let until = shared.env.now() + timeout;
        self.inner.close_manager();
        self.inner.bring_forward();
        let is_quiet =
            engine.wait_for_manager(timeout, |manager| manager.relays().has_rested().then_some(())).is_some();
        if !is_quiet || is_taken_back.swap(true, Ordering::Relaxed) {
            return is_quiet;
        }
        // Nobody is at them: this is said at once, and what it says is known.
        for pool in [puts, gets] {
            let _ = pool.deregister(until.since(shared.env.now()).max(ABORT));
        }
        true
    }
}

impl<E: Env> Inner<E> {
    /// Calls the transfer manager's relay, as long as it is this one.
    pub(super) fn call<R>(
        &self,
        call: impl FnOnce(&mut Relays, Timestamp) -> Result<R, RelayError>,
    ) -> Result<R, RelayError> {
        self.engine.shared.call_manager(|manager, now| match self.is_closed.load(Ordering::Relaxed) {
            true => Err(RelayError::Closed),
            false => call(manager.relays_mut(), now),
        })
    }

    /// The same for what ends something: a closed one has ended everything already.
    fn change(&self, change: impl FnOnce(&mut Relays, Timestamp)) {
        self.engine.shared.call_manager(|manager, now| {
            if !self.is_closed.load(Ordering::Relaxed) {
                change(manager.relays_mut(), now);
            }
        });
    }

    fn close_manager(&self) {
        self.engine.shared.call_manager(|manager, now| {
            if !self.is_closed.swap(true, Ordering::Relaxed) {
                manager.relays_mut().close(now);
            }
        });
    }

    /// These peers as the transfer manager knows them.
    pub(super) fn readers(&self, peers: &[&Peer<E>]) -> Result<Vec<PeerKey>, FlowError> {
        self.engine.shared.check_usable().map_err(FlowError::Engine)?;
        if let Some(foreign) = peers.iter().find(|peer| !Arc::ptr_eq(&peer.engine, &self.engine)) {
            return Err(FlowError::ForeignPeer { peer: foreign.state.name.clone() });
        }
        Ok(peers.iter().map(|peer| key_of(&peer.state)).collect())
    }
}

impl<E: Env> Drop for Inner<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.close_manager();
        }
    }
}

pub(super) fn region_of<E: Env>(region: &LocalRegion<E>) -> RegionRef {
    RegionRef { region: region.region.id(), generation: region.region.generation() }
}
