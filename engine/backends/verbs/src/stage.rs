//! Requests that wait for the doorbell.

use penstock_core::{Direction, Span};

use crate::card::{Facts, Kind, Piece, Request};

/// Bytes of one request: half of what reliable connections carry in one.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// What is to be moved: memory of both sides as one card names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) direction: Direction,
    /// The address and the key of the local memory.
    pub(crate) local: (u64, u32),
    /// The address and the key of the peer's.
    pub(crate) remote: (u64, u32),
}

/// Requests that wait for the doorbell, and their pieces.
#[derive(Default)]
pub(crate) struct Stage {
    requests: Vec<Request>,
    pieces: Vec<Piece>,
}

impl Stage {
    /// With room for so many requests.
    pub(crate) fn with_room(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests), pieces: Vec::with_capacity(2 * requests) }
    }

    /// Stages spans, neighbours at the peer as one request, in at most `room` requests, which are numbered from `id` on. The last is
    /// signalled. Answers how many spans that were, of how many bytes, and in how many requests.
    pub(crate) fn move_spans(
        &mut self,
        ends: &Ends,
        spans: &[Span],
        (id, room): (u64, usize),
        facts: &Facts,
    ) -> (usize, u64, usize) {
        let (first, mut bytes, mut next_remote) = (self.requests.len(), 0, u64::MAX);
        let mut of_request = 0;
        let mut taken = 0;
        for span in spans {
            let goes_on = self.requests.len() > first
                && next_remote == span.remote
                && of_request + span.len <= REQUEST_BYTES_MAX
                && self.go_on(ends, span, facts.pieces_max);
            if !goes_on {
                if self.requests.len() - first == room {
                    break;
                }
                self.begin(ends, span, id + (self.requests.len() - first) as u64);
                of_request = 0;
            }
            (of_request, next_remote) = (of_request + span.len, span.remote + span.len);
            bytes += span.len;
            taken += 1;
        }
        if let Some(last) = self.requests[first..].last_mut() {
            last.signalled = true;
        }
        if ends.direction == Direction::Write {
            self.inline_from(first, facts.inline_max);
        }
        (taken, bytes, self.requests.len() - first)
    }

    fn begin(&mut self, ends: &Ends, span: &Span, id: u64) {
        // What reaches beyond the end of all addresses is refused by the peer's card.
        let (address, key) = (ends.remote.0.wrapping_add(span.remote), ends.remote.1);
        let kind = match ends.direction {
            Direction::Write => Kind::Write { address, key },
            Direction::Read => Kind::Read { address, key },
        };
        self.requests.push(Request { id, kind, pieces: 1, signalled: false, inline: false });
        self.pieces.push(piece(ends, span));
    }

    /// The span belongs to the request before, if that takes it.
    fn go_on(&mut self, ends: &Ends, span: &Span, pieces_max: usize) -> bool {
        let next = piece(ends, span);
        let (Some(request), Some(last)) = (self.requests.last_mut(), self.pieces.last_mut()) else { return false };
        if last.address + u64::from(last.bytes) == next.address {
            last.bytes += next.bytes;
            return true;
        }
        if request.pieces as usize >= pieces_max {
            return false;
        }
        request.pieces += 1;
        self.pieces.push(next);
        true
    }

    fn inline_from(&mut self, first: usize, inline_max: usize) {
        let mut pieces = &self.pieces[..];
        // From behind, since only the pieces of what was staged now are known to be at the end.
        for request in self.requests[first..].iter_mut().rev() {
            let (rest, its) = pieces.split_at(pieces.len() - request.pieces as usize);
            request.inline = its.iter().map(|piece| piece.bytes as usize).sum::<usize>() <= inline_max;
            pieces = rest;
        }
    }

    /// Stages a message, or an immediate without memory.
    pub(crate) fn push(&mut self, request: Request, piece: Option<Piece>) {
        self.requests.push(request);
        self.pieces.extend(piece);
    }

    /// The request that was staged last.
    pub(crate) fn last_mut(&mut self) -> Option<&mut Request> {
        self.requests.last_mut()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// What there is, for the doorbell.
    pub(crate) fn lists(&self) -> (&[Request], &[Piece]) {
        (&self.requests, &self.pieces)
    }

    /// All has left, or never will.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }
}

/// The local side of a span. Its bytes fit: spans of one request are bounded.
fn piece(ends: &Ends, span: &Span) -> Piece {
    Piece { address: ends.local.0 + span.local, bytes: span.len as u32, key: ends.local.1 }
}
