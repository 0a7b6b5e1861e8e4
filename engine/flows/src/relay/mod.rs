//! Chunks between stages: whatever one stage hands to the next, packed into one flat buffer and fetched by its readers.
//!
//! A [`put`] says where its bytes are as soon as they are there, before anybody waits; its readers [`get`] them and answer; what was lent
//! comes back by those answers. Puts, gets and words have credits of their own, each taken all at once in the order of asking, and none of
//! the three ever waits for one of another: so stages that hand to each other always make progress.
//!
//! Read in this order:
//!
//! - [`payload`]: what is in a buffer
//! - [`metadata`]: what names a put elsewhere
//! - [`berths`]: where bytes go through
//! - [`put`] and [`get`]: the two ends of a chunk
//! - [`stream`]: chunks behind each other
//! - [`join`]: chunks of several engines
//! - `early`, `tombs`: what comes before it is asked for, and after it has ended
//! - `settings`: how large everything is, and what goes in and comes out
//! - `aborts`: what is given up, and by whom
//! - `incoming`: what events do; `losses`: what becomes of chunks that nobody gets; `ordered`: what an application asks of streams and joins

mod aborts;
pub mod berths;
mod early;
mod error;
pub mod get;
mod incoming;
pub mod join;
mod losses;
pub mod metadata;
mod ordered;
mod out;
pub mod payload;
pub mod put;
mod settings;
pub mod stream;
mod tombs;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Epoch, Generation, RegionId, Timestamp};
use penstock_session::control::{ChunkKind, EXTENTS_MAX, SCHEMA_BYTES_MAX, WORDS_BYTES_MAX};
use penstock_session::{PeerKey, RequestId};

pub use berths::{StagingPlace, StagingPool};
pub use early::EarlyFrameBounds;
pub use error::{RelayError, RelayFailed};
pub use get::{Destination, Get, GetKey, GetPiece};
pub use join::{Announced, JoinKey};
pub use metadata::Metadata;
pub use out::RelayCounts;
pub use put::{Put, PutKey, PutSource, ToFill};
pub use settings::{Arrival, RelaySettings, ToPut};
pub use stream::{RelayStreamKey, Stream};

use crate::FlowCause;
use crate::action::{Action, BlocksRef, RegionRef, WatchId};
use crate::partners::Silence;
use early::{EarlyFrames, RelayFrame};
use get::Gets;
use join::{JoinEvent, Joins};
use out::Out;
use put::{PutOpening, Puts};
use stream::{RelayStreams, StreamEvent};
use tombs::{Grave, RelayTombs};

/// What is said of whatever ends by its own deadline.
const LATE: &str = "its time was over, and not all of it had come";

/// The most readers of one put.
pub const READERS_MAX: usize = 1024;
/// The most parts of one put.
pub const PARTS_MAX: u32 = 65_536;

#[derive(Debug)]
struct Known {
    name: EngineName,
    speaks: Result<(), Silence>,
}

/// The bounds of one that is not open.
const EARLY: EarlyFrameBounds = EarlyFrameBounds { messages: 4096, bytes: 4 << 20, age: Duration::from_secs(30) };
/// How many tombstones one has that is not open, and for how long.
const TOMBS: (usize, Duration) = (4096, Duration::from_secs(60));
/// The most incoming streams of one that is not open.
const MOST: usize = 1024;

/// Everything that is handed on between this engine's stages and others'.
#[derive(Debug)]
pub struct Relays {
    /// What this engine is called, and which life of it this is; nothing before it is open.
    me: Option<(EngineName, Epoch)>,
    most: usize,
    early_age: Duration,
    abort: Duration,
    peers: BTreeMap<PeerKey, Known>,
    puts: Puts,
    gets: Gets,
    streams: RelayStreams,
    joins: Joins,
    early: EarlyFrames,
    tombs: RelayTombs,
    watches: BTreeSet<WatchId>,
    out: Out,
    is_closed: bool,
}

impl Relays {
    /// An open one.
    pub fn new(settings: RelaySettings) -> Self {
        let mut relays = Self::shut(settings.first_number);
        relays.equip(settings);
        relays
    }

    /// One that has no berths yet. What peers announce is kept until it is opened, or for its time.
    pub fn shut(first_number: u64) -> Self {
        let region = RegionRef { region: RegionId(0), generation: Generation(0) };
        let none = StagingPool { region, base: 0, berth_bytes: 0, berths: 0 };
        Self {
            me: None,
            most: MOST,
            early_age: EARLY.age,
            abort: Duration::ZERO,
            peers: BTreeMap::new(),
            puts: Puts::new(none, 1, 0, 0, Duration::ZERO),
            gets: Gets::new(none, 0, Duration::ZERO),
            streams: RelayStreams::default(),
            joins: Joins::default(),
            early: EarlyFrames::new(EARLY),
            tombs: RelayTombs::new(TOMBS.0, TOMBS.1),
            watches: BTreeSet::new(),
            out: Out::new(first_number),
            is_closed: false,
        }
    }

    /// Opens one that is shut, or was closed and has everything back. Numbers go on from where they are.
    pub fn open(&mut self, settings: RelaySettings) -> Result<(), RelayError> {
        if self.me.is_some() && !self.is_closed {
            return Err(RelayError::Open);
        }
        if !self.has_rested() {
            return Err(RelayError::Closing);
        }
        self.equip(settings);
        Ok(())
    }

    fn equip(&mut self, settings: RelaySettings) {
        let RelaySettings { name, epoch, puts, gets, each, control, most, early, tombs, tomb, abort, .. } = settings;
        self.me = Some((name, epoch));
        (self.most, self.early_age, self.abort, self.is_closed) = (most, early.age, abort, false);
        self.puts.equip(puts, each, control, most, abort);
        self.gets.equip(gets, most, abort);
        self.early.bound(early);
        self.tombs.bound(tombs, tomb);
    }

    /// Hands something out. It goes on by itself: [`Relays::unwritten`] says what is to be written, [`Relays::put_result`] how it ended.
    pub fn put(&mut self, what: ToPut, now: Timestamp) -> Result<PutKey, RelayError> {
        let until = now + what.within;
        let opening = self.checked(what, None)?;
        self.puts.open(opening, until, now, &mut self.out).map(PutKey)
    }

    /// Hands out the next chunk of a stream; its request and readers are the stream's.
    pub fn put_next(
        &mut self,
        stream: RelayStreamKey,
        source: PutSource,
        schema: Vec<u8>,
        header: Vec<u8>,
        within: Duration,
        now: Timestamp,
    ) -> Result<PutKey, RelayError> {
        let ended = RelayError::StreamEnded(stream.0);
        let outgoing = self.streams.outgoing.get(&stream.0).filter(|outgoing| outgoing.state == Stream::Open);
        let outgoing = outgoing.ok_or(ended)?;
        let (request, readers, number) = (outgoing.request.clone(), outgoing.readers.clone(), outgoing.chunks);
        let what = ToPut { request, source, readers, schema, header, within };
        let opening = self.checked(what, Some((stream.0, number)))?;
        let op = self.puts.open(opening, now + within, now, &mut self.out)?;
        if let Some(outgoing) = self.streams.outgoing.get_mut(&stream.0) {
            outgoing.fire(StreamEvent::Chunk);
            outgoing.chunks += 1;
        }
        self.settle(now);
        Ok(PutKey(op))
    }

    /// The application has written this part, or its own memory is ready: readers may be told. Whoever wrote through a device waits for
    /// its fence before.
    pub fn filled(&mut self, put: PutKey, part: u32, now: Timestamp) -> Result<(), RelayError> {
        let result = self.puts.filled(put.0, part, now, &mut self.out);
        self.settle(now);
        result
    }

    /// What the application is to write now.
    ///
    /// From then on it may be writing: its berths come back when it says that it has, whatever becomes of the put.
    pub fn unwritten(&mut self, put: PutKey) -> Vec<ToFill> {
        self.puts.unwritten(put.0)
    }

    /// Whether the application is to write something now.
    pub fn is_to_fill(&self, put: PutKey) -> bool {
        self.puts.is_to_fill(put.0)
    }

    /// Whether the application has nothing to write any more: all is written, or the put has failed.
    pub fn is_written(&self, put: PutKey) -> bool {
        self.puts.is_written(put.0)
    }

    /// What names this put elsewhere; it is good from the beginning.
    pub fn metadata(&self, put: PutKey) -> Option<Vec<u8>> {
        let (op, (bytes, parts)) = (self.puts.get(put.0)?, self.puts.size(put.0)?);
        let (engine, epoch) = self.me.clone()?;
        Some(Metadata { engine, epoch, op: put.0, request: op.request.clone(), bytes, parts }.encode())
    }

    /// Where a put is.
    pub fn put_state(&self, put: PutKey) -> Option<Put> {
        self.puts.state(put.0)
    }

    /// How a put has ended: well when every reader has everything. Its memory may come back later.
    pub fn put_result(&self, put: PutKey) -> Option<&Result<(), RelayFailed>> {
        self.puts.result(put.0)
    }

    /// Nobody asks for this put any more; it goes on by itself, unless the application was still to write.
    pub fn let_go_put(&mut self, put: PutKey, now: Timestamp) {
        self.puts.let_go(put.0, now, &mut self.out);
        self.settle(now);
    }

    /// Fetches what this metadata names, now or when it is announced.
    pub fn get(
        &mut self,
        metadata: &[u8],
        into: Destination,
        within: Duration,
        now: Timestamp,
    ) -> Result<GetKey, RelayError> {
        let named = Metadata::parse(metadata)?;
        self.may_read(&named.request)?;
        let mut lives =
            self.peers.iter().filter(|(_, known)| known.name == named.engine).map(|(peer, _)| *peer).peekable();
        if lives.peek().is_none() {
            return Err(RelayError::Unknown(named.engine));
        }
        // Where both have called each other there are two sessions: what is announced already says in which it comes.
        let sessions: Vec<PeerKey> = lives.filter(|peer| peer.epoch == named.epoch).collect();
        let announcing = sessions
            .iter()
            .find(|peer| self.early.get((**peer, named.op)).is_some() && !planted::is(Bug::GetWaitsInAnotherSession));
        let life = announcing.or(sessions.first()).copied();
        let from = (life.ok_or(RelayError::Restarted(named.engine))?, named.op);
        let given_up = |peer: &PeerKey| self.tombs.cause(&Grave::GivenUp(*peer, named.request.clone()));
        if let Some(cause) = sessions.iter().find_map(given_up) {
            return Err(RelayError::Ended { request: named.request, cause });
        }
        if self.tombs.cause(&Grave::Unasked(from.0, from.1)).is_some() {
            return Err(RelayError::TooLate(self.early_age));
        }
        if self.tombs.cause(&Grave::Op(from.0, from.1)).is_some() {
            return Err(RelayError::Over);
        }
        let size = (named.bytes, named.parts);
        let number = self.gets.open(from, named.request, size, into, now + within, &mut self.out)?;
        if let Some(offer) = self.early.take(from) {
            if offer.stream != 0 && !offer.is_taken {
                self.claim((from.0, offer.stream), offer.number);
            }
            let (size, part_bytes, request) = ((offer.bytes, offer.parts), offer.part_bytes, offer.request);
            let (mut schema, mut header) = (Some(offer.schema), Some(offer.header));
            for (part, places) in offer.frames {
                // Both belong to the first part, which comes first here.
                let (schema, header) = (schema.take().unwrap_or_default(), header.take().unwrap_or_default());
                let frame = RelayFrame { part, places, schema, header };
                self.fetch(number, from, &request, size, part_bytes, frame, now);
            }
        }
        self.settle(now);
        Ok(GetKey(number))
    }

    /// What has come into berths and is to be copied out.
    ///
    /// From then on the application may be copying: each berth comes back when it says that it has, whatever becomes of the get.
    pub fn pieces(&mut self, get: GetKey) -> Vec<GetPiece> {
        if planted::is(Bug::OnePurseForPutsAndGets) && self.held().0 > 1 {
            return Vec::new();
        }
        self.gets.pieces(get.0)
    }

    /// Whether something is to be copied out now.
    pub fn has_pieces(&self, get: GetKey) -> bool {
        self.gets.has_pieces(get.0)
    }

    /// A piece was copied out: its berth may be used again.
    pub fn taken(&mut self, get: GetKey, piece: u64, now: Timestamp) -> Result<(), RelayError> {
        let result = self.gets.taken(get.0, piece, now, &mut self.out);
        self.settle(now);
        result
    }

    /// The schema and the header of what is fetched, once it is announced.
    pub fn words(&self, get: GetKey) -> Option<(&[u8], &[u8])> {
        self.gets.words(get.0)
    }

    /// Where a get is.
    pub fn get_state(&self, get: GetKey) -> Option<Get> {
        self.gets.state(get.0)
    }

    /// How a get has ended: well when everything has come. After a failure, its memory comes back when nothing can land any more.
    pub fn get_result(&self, get: GetKey) -> Option<&Result<(), RelayFailed>> {
        self.gets.result(get.0)
    }

    /// Nobody asks for this get any more: what has not come is given up.
    pub fn let_go_get(&mut self, get: GetKey, now: Timestamp) {
        self.gets.let_go(get.0, now, &mut self.out);
        self.settle(now);
    }

    /// Ends everything; what peers are at still comes back by their answers.
    pub fn close(&mut self, now: Timestamp) {
        self.is_closed = true;
        let failed = RelayFailed::new(FlowCause::EngineClosed, None, "");
        self.puts.stop_all(|put| !put.is_bad_news(), &failed, true, now, &mut self.out);
        self.gets.stop_all(|_| true, &failed, now, &mut self.out);
        self.joins.fail(|_, _| true, JoinEvent::Abort, &failed, &mut self.out);
        for key in self.early.keys(|_, _| true) {
            self.refuse_offer(key, FlowCause::EngineClosed, now);
        }
        // Also those who read a stream of which no chunk is under way hear that nothing more comes.
        for stream in self.streams.going(|_| true) {
            self.fail_stream(stream, failed.clone(), self.abort, now);
            self.streams.forget(stream);
        }
        for key in self.streams.incoming.keys().copied().collect::<Vec<_>>() {
            self.bury_stream(key, FlowCause::EngineClosed, now);
        }
        self.settle(now);
    }

    /// When [`Relays::expire`] is to be called next.
    pub fn deadline(&self) -> Option<Timestamp> {
        [self.out.deadline(), self.early.deadline(), self.tombs.deadline()].into_iter().flatten().min()
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.poll()
    }

    /// What has been counted.
    pub fn counts(&self) -> RelayCounts {
        self.out.counts
    }

    /// Berths of puts, berths of gets and ends of streams that are taken.
    pub fn held(&self) -> (u64, u64, u64) {
        let (puts, control) = self.puts.held();
        (puts[0], self.gets.held(), control)
    }

    /// What the runtime keeps of the application's memory for puts and gets, and tickets that are let go and not carried out yet.
    pub fn tickets(&self) -> impl Iterator<Item = BlocksRef> + '_ {
        self.puts.keeps().chain(self.gets.keeps()).chain(self.out.let_go())
    }

    /// Whether this ticket is let go, and that was not carried out yet.
    pub fn is_let_go(&self, ticket: BlocksRef) -> bool {
        self.out.let_go().any(|its| its == ticket)
    }

    /// Early frames and their bytes, and tombstones.
    pub fn kept(&self) -> (usize, usize, usize) {
        let (frames, bytes) = self.early.kept();
        (frames, bytes, self.tombs.len())
    }

    /// Whether nothing is going on, nothing is kept and nobody is waited for; tombstones do not count.
    pub fn is_empty(&self) -> bool {
        let is_idle = self.puts.is_empty() && self.gets.is_empty() && self.streams.is_empty() && self.joins.len() == 0;
        is_idle && self.early.is_empty() && self.watches.is_empty() && !self.out.has_alarms()
    }

    /// Whether every put and get has ended and nothing of them is in a berth, whoever may still ask how.
    pub fn has_rested(&self) -> bool {
        self.puts.have_ended() && self.gets.have_ended()
    }

    /// Whether all books agree: credits, berths, states and what is kept.
    pub fn check(&self) -> Result<(), String> {
        self.puts.check()?;
        self.gets.check()?;
        self.early.check()
    }

    fn checked(&self, what: ToPut, stream: Option<(u32, u64)>) -> Result<PutOpening, RelayError> {
        self.may_begin(&what.request)?;
        self.check_readers(&what.readers)?;
        for (name, words) in [("schema", &what.schema), ("header", &what.header)] {
            if words.len() > SCHEMA_BYTES_MAX {
                return Err(RelayError::TooLong { what: name, bytes: words.len() });
            }
        }
        match &what.source {
            PutSource::Berths { bytes: 0 } => {}
            PutSource::Berths { .. } if !self.puts.has_berths() => {
                return Err(RelayError::NoBerths);
            }
            PutSource::Berths { bytes } => {
                let most = self.puts.berth_bytes().saturating_mul(PARTS_MAX.into());
                if *bytes > most {
                    return Err(RelayError::TooLarge { asked: *bytes, most });
                }
            }
            PutSource::Extents { extents, .. } if extents.is_empty() || extents.len() > EXTENTS_MAX => {
                return Err(RelayError::Extents);
            }
            PutSource::Extents { .. } => {}
        }
        let ToPut { request, source, readers, schema, header, .. } = what;
        Ok(PutOpening { request, stream, kind: ChunkKind::Data, source, readers, schema, header })
    }

    fn may_begin(&self, request: &RequestId) -> Result<(), RelayError> {
        if self.is_closed || self.me.is_none() {
            return Err(RelayError::Closed);
        }
        match self.tombs.cause(&Grave::Request(request.clone())) {
            Some(cause) => Err(RelayError::Ended { request: request.clone(), cause }),
            None => Ok(()),
        }
    }

    /// Whether anything of a request may still be fetched here. Nothing may when it was given up, here or elsewhere, or cleaned up here:
    /// whoever waits for what arrives waits in vain then.
    pub fn may_read(&self, request: &RequestId) -> Result<(), RelayError> {
        self.may_begin(request)?;
        match self.tombs.cause(&Grave::Cleaned(request.clone())) {
            Some(cause) => Err(RelayError::Ended { request: request.clone(), cause }),
            None => Ok(()),
        }
    }

    fn check_readers(&self, readers: &[PeerKey]) -> Result<(), RelayError> {
        if readers.is_empty() || readers.len() > READERS_MAX {
            return Err(RelayError::Readers { found: readers.len(), most: READERS_MAX });
        }
        let mut seen = BTreeSet::new();
        for peer in readers {
            match self.peers.get(peer).map_or(Err(Silence::Gone), |known| known.speaks) {
                Ok(()) => {}
                Err(Silence::Gone) => return Err(RelayError::PeerLost(*peer)),
                Err(Silence::NotYet) => return Err(RelayError::NotYet(*peer)),
                Err(Silence::NotSpoken) => return Err(RelayError::NotSpoken(*peer)),
            }
            if !seen.insert(peer) {
                return Err(RelayError::ReaderTwice(*peer));
            }
        }
        Ok(())
    }
}

/// The beginning of words that are too long to be said.
fn cut(words: &str) -> &str {
    let end = words.char_indices().map(|(at, letter)| at + letter.len_utf8()).take_while(|&end| end <= WORDS_BYTES_MAX);
    &words[..end.last().unwrap_or(0)]
}
