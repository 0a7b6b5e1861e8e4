//! What an application asks of streams and joins, and what has arrived for it.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Timestamp};
use penstock_session::control::ChunkKind;
use penstock_session::{PeerKey, RequestId};

use super::early::OfferKey;
use super::out::Alarm;
use super::stream::StreamEvent;
use super::{Announced, Arrival, JoinKey, READERS_MAX, RelayError, RelayFailed, RelayStreamKey, Relays, Stream};
use crate::FlowCause;

/// What is the next thing of a request.
enum Next {
    Failed(PeerKey, u32),
    Chunk(OfferKey),
    Done(PeerKey, u32),
}

impl Relays {
    /// Begins a stream of chunks.
    pub fn stream(&mut self, request: &RequestId, readers: &[PeerKey]) -> Result<RelayStreamKey, RelayError> {
        self.may_begin(request)?;
        self.check_readers(readers)?;
        if self.streams.outgoing.len() >= self.most {
            return Err(RelayError::Full { what: "streams", most: self.most });
        }
        Ok(RelayStreamKey(self.streams.open(request.clone(), readers.to_vec())))
    }

    /// Ends a stream, behind all its chunks, or with words at once.
    pub fn finish(
        &mut self,
        stream: RelayStreamKey,
        error: Option<&str>,
        within: Duration,
        now: Timestamp,
    ) -> Result<(), RelayError> {
        let ended = RelayError::StreamEnded(stream.0);
        let outgoing = self.streams.outgoing.get(&stream.0).filter(|outgoing| outgoing.state == Stream::Open);
        outgoing.ok_or(ended)?;
        match error {
            Some(words) => {
                self.fail_stream(stream.0, RelayFailed::new(FlowCause::SourceFailed, None, words), within, now)
            }
            None => {
                self.signal(stream.0, ChunkKind::Done, "", within, now)?;
                if let Some(outgoing) = self.streams.outgoing.get_mut(&stream.0) {
                    outgoing.fire(StreamEvent::End);
                }
            }
        }
        self.settle(now);
        Ok(())
    }

    /// Where a stream of this engine is, and how it has failed.
    pub fn stream_state(&self, stream: RelayStreamKey) -> Option<(Stream, Option<&RelayFailed>)> {
        self.streams.outgoing.get(&stream.0).map(|outgoing| (outgoing.state, outgoing.failed.as_ref()))
    }

    /// Nobody asks for this stream any more. One that was not ended has failed.
    pub fn let_go_stream(&mut self, stream: RelayStreamKey, now: Timestamp) {
        let Some(outgoing) = self.streams.outgoing.get_mut(&stream.0) else { return };
        outgoing.is_let_go = true;
        if outgoing.state == Stream::Open {
            let failed = RelayFailed::new(FlowCause::SourceFailed, None, "its application let go of it before its end");
            self.fail_stream(stream.0, failed, self.abort, now);
        }
        self.streams.forget(stream.0);
        self.settle(now);
    }

    /// The next thing of a request for the application: streams in the order of their numbers, everything else as it came.
    pub fn next_arrival(&mut self, request: &RequestId, now: Timestamp) -> Option<Arrival> {
        match self.next_of(request)? {
            Next::Failed(peer, stream) => {
                let failed = self.streams.incoming.get_mut(&(peer, stream))?.failed.take()?;
                self.bury_stream((peer, stream), failed.cause, now);
                Some(Arrival::Failed { peer, stream, failed })
            }
            Next::Chunk(key) => self.announced(key, now).map(Arrival::Chunk),
            Next::Done(peer, stream) => {
                self.bury_stream((peer, stream), FlowCause::Refused, now);
                Some(Arrival::Done { peer, stream })
            }
        }
    }

    /// Whether there is something of a request for the application.
    pub fn has_arrival(&self, request: &RequestId) -> bool {
        self.next_of(request).is_some()
    }

    fn next_of(&self, request: &RequestId) -> Option<Next> {
        let mut of_it = self.streams.incoming.iter().filter(|(_, stream)| stream.request == *request);
        if let Some((&(peer, stream), _)) = of_it.clone().find(|(_, stream)| stream.failed.is_some()) {
            return Some(Next::Failed(peer, stream));
        }
        let in_turn = self.early.untaken(request).find(|((peer, _), offer)| {
            let stream = self.streams.incoming.get(&(*peer, offer.stream));
            offer.stream == 0
                || stream
                    .is_some_and(|stream| stream.next() == offer.number || planted::is(Bug::ChunkBeforeAMissingOne))
        });
        if let Some((key, _)) = in_turn {
            return Some(Next::Chunk(key));
        }
        of_it.find(|(_, stream)| stream.is_complete()).map(|(&(peer, stream), _)| Next::Done(peer, stream))
    }

    /// Waits for a chunk of each of these engines; fires once, when all are announced or one has failed.
    pub fn join(
        &mut self,
        request: &RequestId,
        sources: &[EngineName],
        within: Duration,
        now: Timestamp,
    ) -> Result<JoinKey, RelayError> {
        self.may_read(request)?;
        let distinct: BTreeSet<&EngineName> = sources.iter().collect();
        if sources.is_empty() || sources.len() > READERS_MAX || distinct.len() != sources.len() {
            return Err(RelayError::Sources(READERS_MAX));
        }
        if self.joins.len() >= self.most {
            return Err(RelayError::Full { what: "joins", most: self.most });
        }
        let key = self.joins.open(request.clone(), sources.to_vec());
        self.out.arm(Alarm::Join(key), now + within);
        self.tell_of_losses(key, request);
        self.offer_to_joins(request, now);
        Ok(JoinKey(key))
    }

    /// What a join came to.
    pub fn join_result(&self, join: JoinKey) -> Option<&Result<Vec<Announced>, RelayFailed>> {
        self.joins.result(join.0)
    }

    /// What a join has by now; nothing of one that has failed. It may be fetched before the last source is there.
    pub fn join_found(&self, join: JoinKey) -> Vec<Announced> {
        self.joins.found(join.0)
    }

    /// Nobody asks for this join any more.
    pub fn let_go_join(&mut self, join: JoinKey) {
        self.joins.let_go(join.0, &mut self.out);
    }
}
