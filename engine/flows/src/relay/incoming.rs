//! What events and the passing of time do to a relay.

use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::control::{CONTROL_VERSIONS, Chunk, ChunkKind, ControlMessage, EXTENTS_MAX, SCHEMA_BYTES_MAX};
use penstock_session::{PeerKey, RequestId};

use super::berths::{StagingPlace, bytes_of};
use super::early::{EarlyOffer, KeptFrame, OfferKey, RelayFrame};
use super::get::GetEvent;
use super::join::{Announced, JoinEvent};
use super::metadata::Metadata;
use super::out::Alarm;
use super::put::PutOpening;
use super::stream::{OutgoingStream, Stream, StreamEvent};
use super::tombs::Grave;
use super::{Known, LATE, PARTS_MAX, PutSource, RelayError, RelayFailed, Relays, cut};
use crate::action::{Action, WatchId};
use crate::partners::Silence;
use crate::{Event, FlowCause};

/// How long all parts but the last are, as one part says that was checked by itself: all of them have to say the same.
fn part_bytes(chunk: &Chunk, places: &[StagingPlace]) -> u64 {
    let len: u64 = places.iter().map(|place| place.len).sum();
    match u64::from(chunk.parts) - 1 {
        0 => chunk.bytes,
        before if u64::from(chunk.part) == before => (chunk.bytes - len) / before,
        _ => len,
    }
}

/// A part of a put, as far as it makes sense by itself.
fn checked(chunk: &Chunk) -> Option<(RequestId, Vec<StagingPlace>)> {
    let request = RequestId::new(&chunk.request).ok()?;
    let places: Vec<StagingPlace> = chunk.extents.iter().take(EXTENTS_MAX + 1).map(StagingPlace::of_extent).collect();
    let len = bytes_of(&places)?;
    let is_first = chunk.part == 0;
    let is_in_parts = (1..=PARTS_MAX).contains(&chunk.parts) && chunk.part < chunk.parts;
    let are_words = chunk.schema.len() <= SCHEMA_BYTES_MAX
        && chunk.header.len() <= SCHEMA_BYTES_MAX
        && (is_first || chunk.schema.is_empty() && chunk.header.is_empty());
    if !is_in_parts || !are_words || places.len() > EXTENTS_MAX {
        return None;
    }
    // All parts but the last are of one length, and the last one is not longer and not empty, unless nothing is.
    let before = u64::from(chunk.parts) - 1;
    let is_right = match chunk.bytes {
        0 => before == 0 && len == 0,
        bytes if u64::from(chunk.part) == before => {
            let others = bytes.checked_sub(len)?;
            len > 0 && (before == 0 && others == 0 || before > 0 && others % before == 0 && len <= others / before)
        }
        bytes => {
            let others = len.checked_mul(before)?;
            len > 0 && others < bytes && bytes - others <= len
        }
    };
    is_right.then_some((request, places))
}

impl Relays {
    /// Something has happened; whether it was any of this relay's business.
    pub fn handle(&mut self, event: &Event, now: Timestamp) -> bool {
        let is_mine = match event {
            Event::Joined { peer, name } => {
                self.peers.insert(*peer, Known { name: name.clone(), speaks: Err(Silence::NotYet) });
                true
            }
            Event::Said { peer, said: ControlMessage::PeerFeatures(able) } => {
                if let Some(known) = self.peers.get_mut(peer) {
                    let is_spoken = able.version_min <= CONTROL_VERSIONS.1 && able.version_max >= CONTROL_VERSIONS.0;
                    known.speaks = if is_spoken { Ok(()) } else { Err(Silence::NotSpoken) };
                }
                true
            }
            Event::Unable { peer } => {
                if let Some(known) = self.peers.get_mut(peer).filter(|known| known.speaks == Err(Silence::NotYet)) {
                    known.speaks = Err(Silence::NotSpoken);
                }
                true
            }
            Event::Left { peer, .. } => {
                self.left(*peer, now);
                true
            }
            Event::Said { peer, said } => self.said(*peer, said, now),
            Event::Ended { id, result, is_open_there } => {
                self.gets.ended(*id, *result, *is_open_there, now, &mut self.out)
            }
            Event::Closed { id } => self.gets.closed(*id, now, &mut self.out),
            Event::Quiet { id } => {
                let is_mine = self.watches.remove(id);
                if is_mine {
                    self.puts.quiet(*id, now, &mut self.out);
                }
                is_mine
            }
            Event::Landing { .. } | Event::Gate { .. } => false,
        };
        self.settle(now);
        is_mine
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some(alarm) = self.out.due(now) {
            match alarm {
                Alarm::Put(op) => self.puts.late(op, now, &mut self.out),
                Alarm::Get(number) => self.gets.late(number, now, &mut self.out),
                Alarm::Join(key) => {
                    self.joins.late(key, RelayFailed::new(FlowCause::Deadline, None, LATE), &mut self.out);
                }
                Alarm::Stream(peer, stream) => self.bury_stream((peer, stream), FlowCause::Deadline, now),
            }
            self.settle(now);
        }
        while let Some(key) = self.early.overdue(now) {
            self.out.counts.early_refused += 1;
            self.tombs.bury(Grave::Unasked(key.0, key.1), FlowCause::Deadline, now);
            self.refuse_offer(key, FlowCause::Deadline, now);
        }
        self.tombs.expire(now);
        self.settle(now);
    }

    fn said(&mut self, peer: PeerKey, said: &ControlMessage, now: Timestamp) -> bool {
        match said {
            ControlMessage::Chunk(chunk) => self.chunk(peer, chunk, now),
            ControlMessage::ChunkAck(ack) => {
                if !self.puts.answered(peer, *ack, now, &mut self.out) {
                    self.out.counts.senseless += 1;
                }
            }
            ControlMessage::RelayAbort(abort) => self.aborted(peer, abort, now),
            _ => return false,
        }
        true
    }

    fn chunk(&mut self, peer: PeerKey, chunk: &Chunk, now: Timestamp) {
        if !self.peers.contains_key(&peer) {
            self.out.counts.senseless += 1;
            return;
        }
        if chunk.parts == 0 {
            return self.signal_came(peer, chunk, now);
        }
        if chunk.kind == ChunkKind::Error {
            return self.given_up_there((peer, chunk.op), chunk, now);
        }
        let (Some((request, places)), ChunkKind::Data) = (checked(chunk), chunk.kind) else {
            return self.refuse_senseless(peer, chunk);
        };
        let key = (peer, chunk.op);
        let get = self.get_for(key);
        // The end of a stream may be told before all parts of its last chunk are here.
        let is_known = self.early.get(key).is_some() || get.is_some_and(|number| self.gets.has_begun(number));
        if let Some(cause) = self.is_buried(peer, chunk, &request, is_known) {
            self.out.counts.late += 1;
            self.out.answer(peer, chunk.op, chunk.part, Some(cause));
            return;
        }
        let size = (chunk.bytes, chunk.parts);
        let part_bytes = part_bytes(chunk, &places);
        let frame = RelayFrame { part: chunk.part, places, schema: chunk.schema.clone(), header: chunk.header.clone() };
        if let Some(number) = get {
            if !is_known && chunk.stream != 0 && self.announce(key, chunk.stream, chunk.number, &request).is_ok() {
                self.claim((peer, chunk.stream), chunk.number);
            }
            return self.fetch(number, key, &request, size, part_bytes, frame, now);
        }
        let is_new = self.early.get(key).is_none();
        if is_new
            && chunk.stream != 0
            && let Err(cause) = self.announce(key, chunk.stream, chunk.number, &request)
        {
            self.out.counts.senseless += u64::from(cause == FlowCause::Refused);
            self.out.answer(peer, chunk.op, chunk.part, Some(cause));
            return self.tombs.bury(Grave::Op(peer, chunk.op), cause, now);
        }
        let offer = EarlyOffer::new(request.clone(), (chunk.stream, chunk.number), size, part_bytes);
        match self.early.keep(key, offer, frame, now) {
            KeptFrame::Yes => {
                self.out.counts.early_kept += 1;
                self.out.tell();
                self.offer_to_joins(&request, now);
            }
            KeptFrame::Senseless => self.refuse_senseless(peer, chunk),
            KeptFrame::Full => {
                self.out.counts.early_refused += 1;
                self.out.answer(peer, chunk.op, chunk.part, Some(FlowCause::NoMemory));
                self.tombs.bury(Grave::Op(peer, chunk.op), FlowCause::NoMemory, now);
                self.refuse_offer(key, FlowCause::NoMemory, now);
                if !is_known {
                    let failed = RelayFailed::new(FlowCause::NoMemory, Some(peer), "too much has come early");
                    match chunk.stream {
                        0 => self.lost(key, &request, &failed, now),
                        stream => self.fail_incoming((peer, stream), failed, now),
                    }
                }
            }
        }
    }

    fn refuse_senseless(&mut self, peer: PeerKey, chunk: &Chunk) {
        self.out.counts.senseless += 1;
        self.out.answer(peer, chunk.op, chunk.part, Some(FlowCause::Refused));
    }

    fn is_buried(&self, peer: PeerKey, chunk: &Chunk, request: &RequestId, is_known: bool) -> Option<FlowCause> {
        let closed = self.is_closed.then_some(FlowCause::EngineClosed);
        let of_request = || self.tombs.cause(&Grave::Request(request.clone()));
        let cleaned = || self.tombs.cause(&Grave::Cleaned(request.clone()));
        // That a stream has failed is taken all the same: where none of it was announced, its reader hears of it in no other way.
        let is_failure = chunk.kind == ChunkKind::Error;
        let given_up = || self.tombs.cause(&Grave::GivenUp(peer, request.clone())).filter(|_| !is_failure);
        let of_op = || self.tombs.cause(&Grave::Op(peer, chunk.op));
        let of_stream =
            || self.tombs.cause(&Grave::Stream(peer, chunk.stream)).filter(|_| chunk.stream != 0 && !is_known);
        closed.or_else(of_request).or_else(cleaned).or_else(given_up).or_else(of_op).or_else(of_stream)
    }

    /// Hands a part to the get that has asked for it.
    #[expect(clippy::too_many_arguments, reason = "what one frame says, and when")]
    pub(super) fn fetch(
        &mut self,
        number: u64,
        key: OfferKey,
        request: &RequestId,
        size: (u64, u32),
        part_bytes: u64,
        frame: RelayFrame,
        now: Timestamp,
    ) {
        if self.gets.get(number).is_some_and(|get| get.request != *request) {
            let failed = RelayFailed::new(
                FlowCause::Refused,
                Some(key.0),
                "it announces another request than its metadata says",
            );
            self.gets.stop(number, GetEvent::Fault, failed, now, &mut self.out);
            self.out.answer(key.0, key.1, frame.part, Some(FlowCause::Refused));
        } else if !self.gets.chunk(number, size, part_bytes, frame, now, &mut self.out) {
            self.out.counts.senseless += 1;
        }
    }

    /// The get for an operation of a peer. One that waits for it in another session with the same engine goes on in this one.
    pub(super) fn get_for(&mut self, key: OfferKey) -> Option<u64> {
        if let Some(number) = self.gets.of_offer(key) {
            return Some(number);
        }
        let waiting =
            |peer: &PeerKey| self.gets.of_offer((*peer, key.1)).filter(|number| !self.gets.has_begun(*number));
        let number = self.sessions_of(key.0).find_map(waiting)?;
        self.gets.goes_on_from(number, key);
        Some(number)
    }

    /// A stream has ended there. The words are answered at once: no memory is behind them.
    fn signal_came(&mut self, peer: PeerKey, chunk: &Chunk, now: Timestamp) {
        let Ok(request) = RequestId::new(&chunk.request) else { return self.refuse_senseless(peer, chunk) };
        let is_sound = chunk.stream != 0 && chunk.bytes == 0 && chunk.extents.is_empty() && chunk.part == 0;
        if !is_sound || chunk.kind == ChunkKind::Data {
            return self.refuse_senseless(peer, chunk);
        }
        if let Some(cause) = self.is_buried(peer, chunk, &request, false) {
            self.out.counts.late += 1;
            self.out.answer(peer, chunk.op, 0, Some(cause));
            return;
        }
        let key = (peer, chunk.stream);
        let Some(stream) = self.streams.incoming(key, &request, self.most) else {
            self.out.answer(peer, chunk.op, 0, Some(FlowCause::NoMemory));
            return;
        };
        if chunk.kind == ChunkKind::Done && !stream.end(chunk.number) {
            return self.refuse_senseless(peer, chunk);
        }
        self.out.arm(Alarm::Stream(peer, chunk.stream), now + self.early_age);
        self.out.answer(peer, chunk.op, 0, None);
        self.out.tell();
        if chunk.kind == ChunkKind::Error {
            let words = String::from_utf8_lossy(&chunk.header);
            let failed = RelayFailed::new(FlowCause::SourceFailed, Some(peer), cut(&words));
            self.joins_without(peer, &request, &failed);
            self.fail_incoming(key, failed, now);
        }
    }

    fn announce(&mut self, key: OfferKey, stream: u32, number: u64, request: &RequestId) -> Result<(), FlowCause> {
        let incoming = self.streams.incoming((key.0, stream), request, self.most).ok_or(FlowCause::NoMemory)?;
        if incoming.announce(number, key.1) { Ok(()) } else { Err(FlowCause::Refused) }
    }

    pub(super) fn claim(&mut self, stream: (PeerKey, u32), number: u64) {
        if let Some(stream) = self.streams.incoming.get_mut(&stream) {
            stream.handed(number);
        }
    }

    /// What the application is told of an offer; from then on it is not told again.
    pub(super) fn announced(&mut self, key: OfferKey, _now: Timestamp) -> Option<Announced> {
        let engine = self.peers.get(&key.0)?.name.clone();
        let offer = self.early.get_mut(key)?;
        offer.is_taken = true;
        let request = offer.request.clone();
        let metadata = Metadata {
            engine: engine.clone(),
            epoch: key.0.epoch,
            op: key.1,
            request,
            bytes: offer.bytes,
            parts: offer.parts,
        };
        let announced = Announced {
            peer: key.0,
            engine,
            stream: (offer.stream != 0).then_some((offer.stream, offer.number)),
            bytes: offer.bytes,
            schema: offer.schema.clone(),
            header: offer.header.clone(),
            metadata: metadata.encode(),
            op: key.1,
        };
        if let Some((stream, number)) = announced.stream {
            self.claim((key.0, stream), number);
        }
        Some(announced)
    }

    /// Chunks of no stream go to the joins that wait for them.
    pub(super) fn offer_to_joins(&mut self, request: &RequestId, now: Timestamp) {
        let name = |peer: &PeerKey| self.peers.get(peer).map(|known| &known.name);
        let wanted = |key: &OfferKey| name(&key.0).is_some_and(|name| self.joins.wants(request, name));
        let offers = self.early.untaken(request).filter(|(_, offer)| offer.stream == 0).map(|(key, _)| key);
        for key in offers.filter(wanted).collect::<Vec<_>>() {
            let name = self.peers.get(&key.0).map(|known| known.name.clone());
            if name.is_some_and(|name| self.joins.wants(request, &name))
                && let Some(announced) = self.announced(key, now)
            {
                self.joins.arrived(request, announced, &mut self.out);
            }
        }
    }

    fn left(&mut self, peer: PeerKey, now: Timestamp) {
        let Some(known) = self.peers.remove(&peer) else { return };
        let failed = RelayFailed::new(FlowCause::PeerLost, Some(peer), "");
        self.joins.fail(
            |_, sources| sources.iter().any(|(name, _)| *name == known.name),
            JoinEvent::Fault,
            &failed,
            &mut self.out,
        );
        self.gets.left(peer, now, &mut self.out);
        for key in self.streams.incoming.keys().copied().filter(|key| key.0 == peer).collect::<Vec<_>>() {
            if !self.streams.incoming.get(&key).is_some_and(|stream| stream.is_complete()) {
                self.fail_incoming(key, failed.clone(), now);
            }
        }
        for key in self.early.keys(|key, _| key.0 == peer) {
            self.refuse_offer(key, FlowCause::PeerLost, now);
        }
        // Whoever reads a stream reads all of it: between two chunks there is no put that would say so.
        let is_read = |outgoing: &OutgoingStream| outgoing.state == Stream::Open && outgoing.readers.contains(&peer);
        let streams = self.streams.outgoing.iter().filter(|(_, outgoing)| is_read(outgoing)).map(|(stream, _)| *stream);
        for stream in streams.collect::<Vec<_>>() {
            self.fail_stream(stream, failed.clone(), self.abort, now);
            self.streams.forget(stream);
        }
        let watch = WatchId(self.out.number());
        if self.puts.left(peer, watch, now, &mut self.out) {
            self.watches.insert(watch);
            self.out.act(Action::Watch { id: watch, peer });
        }
    }

    /// Says that a stream has ended, to all its readers.
    pub(super) fn signal(
        &mut self,
        stream: u32,
        kind: ChunkKind,
        words: &str,
        within: Duration,
        now: Timestamp,
    ) -> Result<(), RelayError> {
        let Some(outgoing) = self.streams.outgoing.get(&stream) else { return Err(RelayError::StreamEnded(stream)) };
        let here = |peer: &&PeerKey| self.peers.get(peer).is_some_and(|known| known.speaks.is_ok());
        let opening = PutOpening {
            request: outgoing.request.clone(),
            stream: Some((stream, outgoing.chunks)),
            kind,
            source: PutSource::Berths { bytes: 0 },
            readers: outgoing.readers.iter().filter(here).copied().collect(),
            schema: Vec::new(),
            header: cut(words).as_bytes().to_vec(),
        };
        self.puts.open(opening, now + within, now, &mut self.out).map(drop)
    }

    /// A stream of this engine has failed; the first failure is told to its readers.
    pub(super) fn fail_stream(&mut self, stream: u32, failed: RelayFailed, within: Duration, now: Timestamp) {
        let Some(outgoing) = self.streams.outgoing.get_mut(&stream) else { return };
        if outgoing.state.is_end() || !outgoing.fire(StreamEvent::Fault) {
            return;
        }
        let words = failed.to_string();
        outgoing.failed = Some(failed);
        // If so many ends are under way that none more can be, readers hear of it by their own deadlines.
        let _ = self.signal(stream, ChunkKind::Error, &words, within, now);
        self.out.tell();
    }

    /// What the books have to say to each other.
    pub(super) fn settle(&mut self, now: Timestamp) {
        for ((peer, op), cause) in self.gets.take_over() {
            self.tombs.bury(Grave::Op(peer, op), cause.unwrap_or(FlowCause::Refused), now);
        }
        loop {
            let torn = self.puts.take_torn();
            let ended = self.puts.take_ended_signals();
            if torn.is_empty() && ended.is_empty() {
                return;
            }
            for (stream, is_heard) in ended {
                let is_done =
                    self.streams.outgoing.get(&stream).is_some_and(|outgoing| outgoing.state == Stream::Finishing);
                if is_done {
                    self.streams.ended(stream, is_heard);
                }
            }
            for torn in torn {
                self.fail_stream(torn.stream, torn.failed, self.abort, now);
                self.streams.forget(torn.stream);
            }
        }
    }
}
