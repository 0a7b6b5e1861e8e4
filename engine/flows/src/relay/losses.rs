//! Chunks and streams that nobody gets any more, and who hears of it.

use penstock_core::Timestamp;
use penstock_session::control::Chunk;
use penstock_session::{PeerKey, RequestId};

use super::early::{EarlyOffer, OfferKey};
use super::get::GetEvent;
use super::join::{Announced, JoinEvent};
use super::out::Alarm;
use super::tombs::Grave;
use super::{RelayFailed, Relays, cut};
use crate::FlowCause;

impl Relays {
    /// A put was given up by its engine.
    pub(super) fn given_up_there(&mut self, key: OfferKey, chunk: &Chunk, now: Timestamp) {
        let words = String::from_utf8_lossy(&chunk.header);
        let failed = RelayFailed::new(FlowCause::SourceFailed, Some(key.0), cut(&words));
        let get = self.get_for(key);
        let is_known = self.early.get(key).is_some() || get.is_some_and(|number| self.gets.has_begun(number));
        if !is_known
            && self.tombs.cause(&Grave::Op(key.0, key.1)).is_none()
            && let Ok(request) = RequestId::new(&chunk.request)
        {
            // It waited for berths until it failed: who waits for it in a join, or behind it in a stream, has heard nothing of it yet.
            match chunk.stream {
                0 if get.is_some() => {} // It was asked for by its metadata: no join would have had it.
                0 => self.lost(key, &request, &failed, now),
                stream => self.fail_incoming((key.0, stream), failed.clone(), now),
            }
        }
        if let Some(number) = get {
            self.gets.stop(number, GetEvent::Fault, failed, now, &mut self.out);
        } else if self.early.get(key).is_some() {
            self.refuse_offer(key, FlowCause::SourceFailed, now);
        }
        // Whoever has its metadata and asks only now is told at once.
        self.tombs.bury(Grave::Op(key.0, key.1), FlowCause::SourceFailed, now);
    }

    /// An offer that nobody gets any more: its parts are answered, and whoever counted on it hears of it.
    pub(super) fn refuse_offer(&mut self, key: OfferKey, cause: FlowCause, now: Timestamp) {
        let Some(offer) = self.early.take(key) else { return };
        let (peer, op) = key;
        if self.peers.contains_key(&peer) {
            for part in offer.frames.keys() {
                self.out.answer(peer, op, *part, Some(cause));
            }
        }
        self.tombs.bury(Grave::Op(peer, op), cause, now);
        let failed = RelayFailed::new(cause, Some(peer), "a chunk that was announced is gone");
        let has = |_: &RequestId, sources: &[(_, Option<Announced>)]| {
            let is_it = |found: &Announced| (found.peer, found.op) == key;
            sources.iter().any(|(_, found)| found.as_ref().is_some_and(is_it))
        };
        self.joins.fail(has, JoinEvent::Fault, &failed, &mut self.out);
        match offer.stream {
            _ if offer.is_taken => {}
            0 => self.lost(key, &offer.request, &failed, now),
            stream => self.fail_incoming((peer, stream), failed, now),
        }
    }

    /// A stream of a peer has failed: nothing of it that was not handed over yet is.
    pub(super) fn fail_incoming(&mut self, key: (PeerKey, u32), failed: RelayFailed, now: Timestamp) {
        let Some(stream) = self.streams.incoming.get_mut(&key) else { return };
        // All its chunks were handed over, and its good end is known: nothing is left of it that could fail.
        if stream.is_complete() {
            return;
        }
        let cause = failed.cause;
        if !stream.fail(failed) {
            return;
        }
        self.out.arm(Alarm::Stream(key.0, key.1), now + self.early_age);
        self.out.tell();
        let is_of_it = |(peer, _): OfferKey, offer: &EarlyOffer| (peer, offer.stream) == key && !offer.is_taken;
        for offer in self.early.keys(is_of_it) {
            self.refuse_offer(offer, cause, now);
        }
    }

    pub(super) fn bury_stream(&mut self, key: (PeerKey, u32), cause: FlowCause, now: Timestamp) {
        if self.streams.incoming.remove(&key).is_some() {
            self.tombs.bury(Grave::Stream(key.0, key.1), cause, now);
        }
        self.out.disarm(Alarm::Stream(key.0, key.1));
        let is_of_it = |(peer, _): OfferKey, offer: &EarlyOffer| (peer, offer.stream) == key && !offer.is_taken;
        for offer in self.early.keys(is_of_it) {
            self.refuse_offer(offer, cause, now);
        }
    }

    /// A chunk of no stream that nobody had yet is gone. It would have gone to the oldest join that lacks one of this engine, so that one
    /// hears of it; where none waits, the next one that begins does.
    pub(super) fn lost(&mut self, key: OfferKey, request: &RequestId, failed: &RelayFailed, now: Timestamp) {
        let Some(name) = self.peers.get(&key.0).map(|known| &known.name) else { return };
        let graves =
            [Grave::Request(request.clone()), Grave::Cleaned(request.clone()), Grave::GivenUp(key.0, request.clone())];
        let is_over = || self.is_closed || graves.iter().any(|grave| self.tombs.cause(grave).is_some());
        if !self.joins.fail_oldest(request, name, failed, &mut self.out) && !is_over() {
            self.tombs.bury(Grave::Lost(key.0, request.clone(), key.1), failed.cause, now);
        }
    }

    /// A join that has just begun hears at once of a chunk that was lost before, unless an older one of that engine is still here. Each loss
    /// is told once; that a source has given the request up, to each.
    pub(super) fn tell_of_losses(&mut self, join: u64, request: &RequestId) {
        let mut first = None;
        let has_given_up = |peer: &PeerKey| self.tombs.cause(&Grave::GivenUp(*peer, request.clone()));
        for source in self.joins.lacking(join) {
            let mut sessions = self.peers.iter().filter(|(_, known)| known.name == source).map(|(peer, _)| *peer);
            let given_up = sessions.find_map(|peer| Some((peer, has_given_up(&peer)?)));
            if let Some((peer, cause)) = given_up {
                let failed = RelayFailed::new(cause, Some(peer), "it had given the request up before this join began");
                return self.joins.fault(join, failed, &mut self.out);
            }
        }
        for source in self.joins.lacking(join) {
            let mut sessions = self.peers.iter().filter(|(_, known)| known.name == source).map(|(peer, _)| *peer);
            let lost = sessions.find_map(|peer| {
                let here = self.early.untaken(request).filter(|((of, _), offer)| *of == peer && offer.stream == 0);
                let oldest = here.map(|((_, op), _)| op).min().unwrap_or(u64::MAX);
                Some((peer, self.tombs.take_lost(peer, request, oldest)?))
            });
            first = first.or(lost);
        }
        if let Some((peer, cause)) = first {
            let failed = RelayFailed::new(cause, Some(peer), "its chunk was lost before this join began");
            self.joins.fault(join, failed, &mut self.out);
        }
    }

    /// A source has failed: nothing of it comes to any join of this request.
    pub(super) fn joins_without(&mut self, peer: PeerKey, request: &RequestId, failed: &RelayFailed) {
        let Some(name) = self.peers.get(&peer).map(|known| known.name.clone()) else { return };
        let lacks = |of: &RequestId, sources: &[(_, Option<Announced>)]| {
            of == request && sources.iter().any(|(source, found)| *source == name && found.is_none())
        };
        self.joins.fail(lacks, JoinEvent::Fault, failed, &mut self.out);
    }
}
