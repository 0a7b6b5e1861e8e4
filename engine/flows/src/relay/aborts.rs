//! What is given up, and by whom.
//!
//! An engine tells all its peers that it gives a request up. A peer that has a part in the request here ends it here, and that is passed
//! on once, so that it also comes to those that do not know that peer. Any other one ends what it has announced itself and nothing else:
//! names of requests can be guessed, and to say one is no right to end it for others.

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{ControlMessage, RelayAbort};
use penstock_session::{PeerKey, RequestId};

use super::join::JoinEvent;
use super::out::Alarm;
use super::tombs::Grave;
use super::{RelayFailed, Relays, cut};
use crate::FlowCause;
use crate::action::Action;

impl Relays {
    /// Gives a request up, here and on all engines that this one knows. A second time changes nothing.
    pub fn abort(&mut self, request: &RequestId, words: &str, now: Timestamp) {
        if self.tombs.cause(&Grave::Request(request.clone())).is_some() {
            return;
        }
        let words = cut(words);
        self.tell_abort(request, words, None);
        self.end_request(request, &RelayFailed::new(FlowCause::Aborted, None, words), now);
    }

    /// Tells all peers but the one that said so itself.
    fn tell_abort(&mut self, request: &RequestId, words: &str, but: Option<PeerKey>) {
        let told = self.peers.iter().filter(|(peer, known)| known.speaks.is_ok() && Some(**peer) != but);
        for (peer, _) in told.take(if planted::is(Bug::AbortToldToOne) { 1 } else { usize::MAX }) {
            let said = RelayAbort { request: request.as_str().to_owned(), words: words.to_owned() };
            self.out.act(Action::Say { peer: *peer, said: ControlMessage::RelayAbort(said) });
        }
    }

    /// A peer has given a request up.
    pub(super) fn aborted(&mut self, peer: PeerKey, abort: &RelayAbort, now: Timestamp) {
        let request = RequestId::new(&abort.request).ok().filter(|_| self.peers.contains_key(&peer));
        let Some(request) = request else {
            self.out.counts.senseless += 1;
            return;
        };
        if self.tombs.cause(&Grave::Request(request.clone())).is_some() {
            return;
        }
        let failed = RelayFailed::new(FlowCause::Aborted, Some(peer), cut(&abort.words));
        if self.has_part(peer, &request) {
            self.out.counts.aborts += 1;
            self.tell_abort(&request, &failed.words, Some(peer));
            self.end_request(&request, &failed, now);
        } else {
            self.out.counts.foreign_aborts += 1;
            self.given_up_by(peer, &request, &failed, now);
        }
    }

    /// Whether this engine has named that peer in something of a request: as a reader, as what it fetches from, or as a source of a join.
    /// What the peer has announced unasked is no part.
    fn has_part(&self, peer: PeerKey, request: &RequestId) -> bool {
        let Some(name) = self.peers.get(&peer).map(|known| &known.name) else { return false };
        let sessions: Vec<PeerKey> = self.sessions_of(peer).copied().collect();
        let is_it = |other: &PeerKey| sessions.contains(other);
        let reads = |readers: &[PeerKey]| readers.iter().any(is_it);
        self.puts.are_read(request, is_it)
            || self.streams.outgoing.values().any(|stream| stream.request == *request && reads(&stream.readers))
            || self.gets.are_from(request, is_it)
            || self.joins.have_named(request, name)
    }

    /// The sessions with the engine of this one: where both have called each other there are two.
    pub(super) fn sessions_of(&self, peer: PeerKey) -> impl Iterator<Item = &PeerKey> {
        let name = self.peers.get(&peer).map(|known| &known.name);
        let is_same = move |other: &PeerKey, its| other.epoch == peer.epoch && name == Some(its);
        self.peers.iter().filter(move |(other, known)| is_same(other, &known.name)).map(|(other, _)| other)
    }

    /// Ends what a peer has announced of a request, and remembers that nothing more of it comes from there.
    fn given_up_by(&mut self, peer: PeerKey, request: &RequestId, failed: &RelayFailed, now: Timestamp) {
        self.tombs.bury(Grave::GivenUp(peer, request.clone()), failed.cause, now);
        let incoming = self.streams.incoming.iter().filter(|(key, stream)| key.0 == peer && stream.request == *request);
        for key in incoming.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.fail_incoming(key, failed.clone(), now);
        }
        for key in self.early.keys(|key, offer| key.0 == peer && offer.request == *request) {
            self.refuse_offer(key, failed.cause, now);
        }
    }

    /// This engine wants nothing more of a request: what was not fetched is refused, what goes on being fetched is given up, and what comes
    /// late finds a tombstone. Puts of it to others go on to their ends.
    pub fn cleanup(&mut self, request: &RequestId, now: Timestamp) {
        let failed = RelayFailed::new(FlowCause::Aborted, None, "the request was cleaned up");
        self.tombs.bury(Grave::Cleaned(request.clone()), FlowCause::Aborted, now);
        self.end_reading(request, &failed, now);
        self.settle(now);
    }

    /// Ends everything of a request, and leaves a tombstone.
    fn end_request(&mut self, request: &RequestId, failed: &RelayFailed, now: Timestamp) {
        self.tombs.bury(Grave::Request(request.clone()), failed.cause, now);
        let streams = self.streams.going(|outgoing| outgoing.request == *request);
        // That one of its streams has failed is said all the same: who reads it may hear of that in no other way.
        self.puts.stop_all(|put| put.request == *request && !put.is_bad_news(), failed, true, now, &mut self.out);
        // Whoever gave it up need not know all who read from here.
        for stream in streams {
            self.fail_stream(stream, failed.clone(), self.abort, now);
            self.streams.forget(stream);
        }
        self.end_reading(request, failed, now);
        self.settle(now);
    }

    /// Ends all that this engine fetches, or has not fetched yet, of a request.
    fn end_reading(&mut self, request: &RequestId, failed: &RelayFailed, now: Timestamp) {
        self.gets.stop_all(|get| get.request == *request, failed, now, &mut self.out);
        self.joins.fail(|of, _| of == request, JoinEvent::Abort, failed, &mut self.out);
        for (key, stream) in &self.streams.incoming {
            if stream.request == *request {
                self.tombs.bury(Grave::Stream(key.0, key.1), failed.cause, now);
                self.out.disarm(Alarm::Stream(key.0, key.1));
            }
        }
        self.streams.incoming.retain(|_, stream| stream.request != *request);
        // Whoever waits for what arrives hears that nothing more does.
        self.out.tell();
        for key in self.early.keys(|_, offer| offer.request == *request) {
            self.refuse_offer(key, failed.cause, now);
        }
    }
}
