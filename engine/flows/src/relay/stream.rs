//! Chunks that belong behind each other.
//!
//! A stream numbers its chunks at the sender and hands them over in that order at the reader, whatever came first. That it has ended is
//! said by words without bytes: a good end comes behind all its chunks, a failure at once.

use std::collections::{BTreeMap, BTreeSet};

use penstock_session::machine::Step;
use penstock_session::{PeerKey, RequestId, machine};

use super::error::RelayFailed;
use crate::FlowCause;

machine! {
    /// A stream, at either side.
    pub Stream on StreamEvent {
        states {
            /// Chunks may follow.
            Open,
            /// It is known how many chunks there are; some are still to come, or to be heard of.
            Finishing,
        }
        ends {
            /// All chunks and its end were handed over.
            Done,
            /// It has failed.
            Error,
        }
        events {
            /// A chunk.
            Chunk,
            /// The number of chunks is said.
            End,
            /// Nothing is missing any more.
            Complete,
            /// A chunk is lost, or somebody says that it has failed.
            Fault,
        }
        Open { Chunk => Open, End => Finishing, Fault => Error }
        Finishing { Chunk => Finishing, Complete => Done, Fault => Error }
    }
}

/// A stream of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayStreamKey(pub(crate) u32);

#[derive(Debug)]
pub(super) struct OutgoingStream {
    pub(super) request: RequestId,
    pub(super) readers: Vec<PeerKey>,
    pub(super) state: Stream,
    /// How many chunks there are so far.
    pub(super) chunks: u64,
    pub(super) failed: Option<RelayFailed>,
    pub(super) is_let_go: bool,
}

#[derive(Debug)]
pub(super) struct IncomingStream {
    pub(super) request: RequestId,
    pub(super) state: Stream,
    /// The number that is handed over next.
    next: u64,
    /// Numbers above that were asked for by their metadata.
    claimed: BTreeSet<u64>,
    /// Operations of numbers that were announced.
    announced: BTreeMap<u64, u64>,
    end: Option<u64>,
    pub(super) failed: Option<RelayFailed>,
}

impl OutgoingStream {
    pub(super) fn fire(&mut self, event: StreamEvent) -> bool {
        fire(&mut self.state, event)
    }
}

impl IncomingStream {
    pub(super) fn new(request: RequestId) -> Self {
        let (claimed, announced) = (BTreeSet::new(), BTreeMap::new());
        Self { request, state: Stream::Open, next: 0, claimed, announced, end: None, failed: None }
    }

    pub(super) fn fire(&mut self, event: StreamEvent) -> bool {
        fire(&mut self.state, event)
    }

    /// A chunk of this number is announced; whether that can be.
    pub(super) fn announce(&mut self, number: u64, op: u64) -> bool {
        let is_new = number >= self.next && !self.claimed.contains(&number) && !self.announced.contains_key(&number);
        if !is_new || self.end.is_some_and(|end| number >= end) || !self.fire(StreamEvent::Chunk) {
            return false;
        }
        self.announced.insert(number, op);
        true
    }

    /// There are so many chunks; whether that can be.
    pub(super) fn end(&mut self, chunks: u64) -> bool {
        let last = self.announced.last_key_value().map(|(number, _)| *number).max(self.claimed.last().copied());
        if chunks < self.next || last.is_some_and(|last| last >= chunks) || !self.fire(StreamEvent::End) {
            return false;
        }
        self.end = Some(chunks);
        true
    }

    /// The number that is handed over next.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// A chunk was handed over, in its turn or asked for by its metadata.
    pub(super) fn handed(&mut self, number: u64) {
        self.announced.remove(&number);
        self.claimed.insert(number);
        while self.claimed.remove(&self.next) {
            self.next += 1;
        }
    }

    /// All its chunks were handed over.
    pub(super) fn is_complete(&self) -> bool {
        self.state == Stream::Finishing && self.end == Some(self.next)
    }

    /// It has failed; the first failure counts.
    pub(super) fn fail(&mut self, failed: RelayFailed) -> bool {
        let is_first = !self.state.is_end() && self.fire(StreamEvent::Fault);
        if is_first {
            self.failed = Some(failed);
        }
        is_first
    }
}

/// Whether this can happen there.
fn fire(state: &mut Stream, event: StreamEvent) -> bool {
    match state.step(event) {
        Step::Go(next) => {
            *state = next;
            true
        }
        Step::Stay => true,
        Step::Refused => false,
    }
}

#[derive(Debug, Default)]
pub(super) struct RelayStreams {
    pub(super) outgoing: BTreeMap<u32, OutgoingStream>,
    pub(super) incoming: BTreeMap<(PeerKey, u32), IncomingStream>,
    last: u32,
}

impl RelayStreams {
    pub(super) fn open(&mut self, request: RequestId, readers: Vec<PeerKey>) -> u32 {
        // Zero is no stream; after four thousand million the numbers begin anew, and those in use are left out.
        self.last = self.last.checked_add(1).unwrap_or(1);
        while self.outgoing.contains_key(&self.last) {
            self.last = self.last.checked_add(1).unwrap_or(1);
        }
        let (state, chunks) = (Stream::Open, 0);
        self.outgoing
            .insert(self.last, OutgoingStream { request, readers, state, chunks, failed: None, is_let_go: false });
        self.last
    }

    /// A chunk or an end of a stream that may be new here; nothing if there is no room.
    pub(super) fn incoming(
        &mut self,
        key: (PeerKey, u32),
        request: &RequestId,
        most: usize,
    ) -> Option<&mut IncomingStream> {
        if !self.incoming.contains_key(&key) && self.incoming.len() >= most {
            return None;
        }
        let stream = self.incoming.entry(key).or_insert_with(|| IncomingStream::new(request.clone()));
        (stream.request == *request).then_some(stream)
    }

    /// Everybody has heard of the end, or not.
    pub(super) fn ended(&mut self, stream: u32, is_heard: bool) {
        if let Some(outgoing) = self.outgoing.get_mut(&stream) {
            if is_heard {
                outgoing.fire(StreamEvent::Complete);
            } else if outgoing.state == Stream::Finishing {
                outgoing.fire(StreamEvent::Fault);
                outgoing.failed =
                    Some(RelayFailed::new(FlowCause::PeerLost, None, "not every reader heard of its end"));
            }
        }
        self.forget(stream);
    }

    /// Those of this engine that have not ended and of which this is so.
    pub(super) fn going(&self, which: impl Fn(&OutgoingStream) -> bool) -> Vec<u32> {
        let going = self.outgoing.iter().filter(|(_, outgoing)| !outgoing.state.is_end() && which(outgoing));
        going.map(|(stream, _)| *stream).collect()
    }

    pub(super) fn forget(&mut self, stream: u32) {
        if self.outgoing.get(&stream).is_some_and(|outgoing| outgoing.is_let_go && outgoing.state.is_end()) {
            self.outgoing.remove(&stream);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn incoming() -> IncomingStream {
        IncomingStream::new(RequestId::new("r").unwrap())
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut stream = incoming();
        assert!(stream.announce(3, 30) && !stream.announce(3, 31), "a number is announced once");
        assert!(!stream.end(3), "there is a chunk 3 already");
        assert!(stream.end(4) && !stream.announce(4, 40), "there is none behind the last");
        assert!(!stream.end(5), "it ends once");
        for number in 0..3 {
            assert!(!stream.is_complete() && stream.announce(number, number));
            stream.handed(number);
        }
        assert!(!stream.announce(2, 2), "handed over already");
        stream.handed(3);
        assert!(stream.is_complete());
    }

    proptest! {
        /// In whatever order chunks are announced: each is next once, in the order of the numbers.
        #[test]
        fn chunks_are_handed_over_in_order(count in 0u64..40, keys in prop::collection::vec(any::<u32>(), 40), end_at in 0usize..40) {
            let mut order: Vec<u64> = (0..count).collect();
            order.sort_by_key(|&number| keys[number as usize]);
            let (mut stream, mut handed) = (incoming(), Vec::new());
            for (place, &number) in order.iter().enumerate() {
                if place == end_at {
                    prop_assert!(stream.end(count));
                }
                prop_assert!(stream.announce(number, number));
                while stream.announced.contains_key(&stream.next()) {
                    handed.push(stream.next());
                    stream.handed(stream.next());
                }
            }
            if end_at >= order.len() {
                prop_assert!(stream.end(count));
            }
            prop_assert_eq!(handed, (0..count).collect::<Vec<_>>());
            prop_assert!(stream.is_complete());
        }
    }
}
