//! A transport whose memory is reached by cards, without any: what a lane, a fence and transport messages do is up to the test.

#![allow(dead_code, unreachable_pub)] // Each of the tests uses a part of it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use penstock::Cause;
use penstock::memory::{MemoryError, Region};
use penstock::transport::link::{Join, Offering};
use penstock::transport::{
    AccessPath, AdvertisedRegion, Batch, CancelledOp, Caps, ControlSender, Exported, Failure, Fence, FlushRequest,
    ImportError, JoinError, Lane, LaneEvents, LaneFault, Link, LocalEnd, Note, NotifyPosted, NotifyRequest, PeerView,
    Placement, PostError, Posted, RdmaMemory, Registrar, RemoteEnd, RemoteGateLog, RemoteMemory, Scope, Transport,
    TransportMessages, Trust, lane,
};
use penstock_core::plan::RegionKey;
use penstock_core::{Generation, RegionId};

/// One engine's transport.
pub struct Cards {
    pub name: &'static str,
    pub splits: bool,
    pub seen: Arc<Seen>,
}

/// What one engine's transport has seen, and what it is to do.
#[derive(Default)]
pub struct Seen {
    /// The worker of each batch, in their order.
    pub posts: Mutex<Vec<usize>>,
    /// What batches end with; none: well.
    pub failure: Mutex<Option<Failure>>,
    /// What announcements end with; none: well.
    pub unreported: Mutex<Option<Failure>>,
    /// Whether batches do not end, and are at the peer when they are given up.
    pub keeps: AtomicBool,
    /// Whether nobody can be told anything for want of room.
    pub is_choked: AtomicBool,
    /// Whether there is no room for a proof, either; how many were asked for; whether those do not end.
    pub proves_later: AtomicBool,
    pub proofs: AtomicUsize,
    pub keeps_proofs: AtomicBool,
    /// Whether lanes have nothing to say to each other beside their path.
    pub is_silent: AtomicBool,
    /// Whether there is no room for another session.
    pub is_full: AtomicBool,
    /// Whether nothing joins the cards of the two sides.
    pub is_apart: AtomicBool,
    /// Whether lanes stay where they are when they are dropped.
    pub holds_lanes: AtomicBool,
    /// The regions it was told to forget, with their generations.
    pub forgotten: Mutex<Vec<(u32, u32)>>,
    /// All sessions, the oldest first.
    pub sessions: Mutex<Vec<Arc<Session>>>,
}

impl Seen {
    pub fn session(&self) -> Arc<Session> {
        Arc::clone(self.sessions.lock().unwrap().last().unwrap())
    }
}

/// One session, as its fence and its transport messages see it.
#[derive(Default)]
pub struct Session {
    pub told: Arc<RemoteGateLog>,
    /// Up to which revision nothing old can land.
    pub passed: AtomicU64,
    /// A card has not given back what a lane had.
    pub unproven: AtomicBool,
    /// Whether cutting off works.
    pub obeys: AtomicBool,
    /// The revisions for which it was asked to.
    pub forced: Mutex<Vec<u64>>,
    /// How often it heard that the peer has told of withdrawals.
    pub news: AtomicUsize,
    /// Lanes that are gone.
    pub dropped: AtomicUsize,
    sender: OnceLock<ControlSender>,
    pub heard: Mutex<Vec<Vec<u8>>>,
}

impl Session {
    pub fn say(&self, words: &[u8]) {
        (self.sender.get().unwrap())(words);
    }
}

impl Fence for Session {
    fn has_passed(&self, revision: u64) -> bool {
        self.passed.load(Ordering::SeqCst) >= revision
    }

    fn force(&self, revision: u64) {
        self.forced.lock().unwrap().push(revision);
        if self.obeys.load(Ordering::SeqCst) {
            self.passed.fetch_max(revision, Ordering::SeqCst);
        }
    }

    fn on_withdrawals(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
    }

    fn is_unproven(&self) -> bool {
        self.unproven.load(Ordering::SeqCst)
    }
}

impl TransportMessages for Session {
    fn start(&self, say: ControlSender) {
        assert!(self.sender.set(say).is_ok(), "a session begins once");
    }

    fn on_message(&self, words: &[u8]) -> Result<(), LaneFault> {
        self.heard.lock().unwrap().push(words.to_vec());
        match words {
            b"nonsense" => Err(LaneFault(Cause::PeerCorrupt)),
            b"no path" => Err(LaneFault(Cause::NoPath)),
            _ => Ok(()),
        }
    }
}

struct Rails {
    worker: usize,
    seen: Arc<Seen>,
    session: Arc<Session>,
    ended: Vec<(u64, Result<u64, Failure>)>,
    proofs: Vec<u64>,
}

impl Lane for Rails {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        self.seen.posts.lock().unwrap().push(self.worker);
        if self.seen.keeps.load(Ordering::SeqCst) {
            return Ok(Posted::Accepted(batch.spans.len()));
        }
        let bytes = batch.spans.iter().map(|span| span.len).sum();
        self.ended.push((batch.completion_id, self.seen.failure.lock().unwrap().map_or(Ok(bytes), Err)));
        Ok(Posted::Accepted(batch.spans.len()))
    }

    fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        if self.seen.is_choked.load(Ordering::SeqCst) {
            return Err(PostError::Full);
        }
        // Nobody is told of what has failed.
        let failure = self.seen.failure.lock().unwrap().or(*self.seen.unreported.lock().unwrap());
        self.ended.push((arrival.completion_id, failure.map_or(Ok(1), Err)));
        Ok(NotifyPosted::Accepted)
    }

    fn hand_over(&mut self, _: Note<'_>, _: &lane::Handle) -> Result<(), PostError> {
        Err(PostError::Refused(Cause::NoPath))
    }

    fn cancel_op(&mut self, token: u64) -> CancelledOp {
        self.ended.retain(|(ended, _)| *ended != token);
        if self.seen.keeps.load(Ordering::SeqCst) { CancelledOp::RemotePending } else { CancelledOp::Quiesced }
    }

    fn completes_before_placement(&self) -> bool {
        true
    }

    fn flush_remote(&mut self, proof: &FlushRequest) -> Result<NotifyPosted, PostError> {
        if self.seen.proves_later.load(Ordering::SeqCst) {
            return Err(PostError::Full);
        }
        self.seen.proofs.fetch_add(1, Ordering::SeqCst);
        self.proofs.push(proof.completion_id);
        Ok(NotifyPosted::Accepted)
    }

    fn poll(&mut self, sink: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        if !self.seen.keeps_proofs.load(Ordering::SeqCst) {
            self.proofs.drain(..).for_each(|token| sink.completed(token, Ok(1)));
        }
        self.ended.drain(..).for_each(|(token, result)| sink.completed(token, result));
        Ok(false)
    }
}

impl Drop for Rails {
    fn drop(&mut self) {
        while self.seen.holds_lanes.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.session.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

struct Keys;

impl Registrar for Keys {
    fn export(&self, _: &Arc<Region>) -> Exported {
        Exported::default()
    }

    fn import(&self, region: &AdvertisedRegion<'_>, _: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        let key = RegionKey { region: region.id, generation: region.generation };
        let memory = RdmaMemory { key, iova: region.base, bytes: region.bytes, rkeys: vec![1, 2] };
        Ok(RemoteMemory::Rdma(Arc::new(memory)))
    }

    fn access_path(&self, _: &AdvertisedRegion<'_>) -> AccessPath {
        AccessPath { name: AccessPath::VERBS, reason: "for a test".to_owned() }
    }
}

impl Transport for Cards {
    fn name(&self) -> &'static str {
        self.name
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Hardware,
            placement: Placement::AtNotification,
            synchronous: false,
            ordered: true,
            multi_worker: self.splits,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, _: &LocalEnd, _: &RemoteEnd) -> Result<&'static str, &'static str> {
        Ok("for a test")
    }

    fn release_registrations(&self, region: RegionId, last: Generation) {
        self.seen.forgotten.lock().unwrap().push((region.0, last.0));
    }

    fn scope(&self) -> Scope {
        Scope::Network
    }

    fn offer(&self, here: LocalEnd, _: RemoteEnd) -> Result<Offering, MemoryError> {
        let seen = Arc::clone(&self.seen);
        if seen.is_full.load(Ordering::SeqCst) {
            return Err(MemoryError::NotHere { what: "a queue", why: "the card is full", mend: "close sessions" });
        }
        let join: Join = Box::new(move |_, _| {
            if seen.is_apart.load(Ordering::SeqCst) {
                return Err(JoinError::NoPath("their cards are on different networks".to_owned()));
            }
            let session = Arc::new(Session::default());
            seen.sessions.lock().unwrap().push(Arc::clone(&session));
            let lane = |worker| {
                let (seen, session) = (Arc::clone(&seen), Arc::clone(&session));
                Box::new(Rails { worker, seen, session, ended: Vec::new(), proofs: Vec::new() }) as Box<dyn Lane>
            };
            Ok(Link {
                lanes: (0..here.workers).map(lane).collect(),
                registrar: Arc::new(Keys),
                peer_view: PeerView::Fenced(Arc::clone(&session.told), Arc::clone(&session) as Arc<dyn Fence>),
                streams: None,
                transport_messages: (!seen.is_silent.load(Ordering::SeqCst))
                    .then_some(session as Arc<dyn TransportMessages>),
                rails: vec!["a0/1".to_owned(), "a1/1".to_owned()],
                path: "for a test".to_owned(),
            })
        });
        Ok(Offering { blob: Vec::new(), fds: Vec::new(), join })
    }
}
