//! Requests that wait for the doorbell.

use penstock_core::{Direction, Span};

use crate::adapter::{DeviceAttr, Opcode, SendRequest, Sge};

/// Bytes of one request: half of what reliable connections carry in one.
pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// What is to be moved: memory of both sides as one adapter names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) direction: Direction,
    /// The address and the key of the local memory.
    pub(crate) local: (u64, u32),
    /// The address and the key of the peer's.
    pub(crate) remote: (u64, u32),
    /// Whether a processor reads the local memory, so that few bytes go with their request.
    pub(crate) is_host: bool,
}

/// Requests that wait for the doorbell, and their pieces.
#[derive(Default)]
pub(crate) struct PostingBatch {
    requests: Vec<SendRequest>,
    sges: Vec<Sge>,
}

impl PostingBatch {
    /// With room for so many requests.
    pub(crate) fn with_room(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests), sges: Vec::with_capacity(2 * requests) }
    }

    /// Stages spans, neighbours at the peer as one request, in at most `room` requests, which are numbered from `id` on. The last is
    /// signalled. Returns how many spans that were, of how many bytes, and in how many requests.
    pub(crate) fn move_spans(
        &mut self,
        ends: &Ends,
        spans: &[Span],
        (id, room): (u64, usize),
        attr: &DeviceAttr,
    ) -> (usize, u64, usize) {
        let (first, mut bytes, mut next_remote) = (self.requests.len(), 0, u64::MAX);
        let mut of_request = 0;
        let mut taken = 0;
        for span in spans {
            let goes_on = self.requests.len() > first
                && next_remote == span.remote
                && of_request + span.len <= REQUEST_BYTES_MAX
                && self.go_on(ends, span, attr.sges_max);
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
        if ends.direction == Direction::Write && ends.is_host {
            self.inline_from(first, attr.inline_max);
        }
        (taken, bytes, self.requests.len() - first)
    }

    fn begin(&mut self, ends: &Ends, span: &Span, id: u64) {
        // What reaches beyond the end of all addresses is refused by the peer's adapter.
        let (address, key) = (ends.remote.0.wrapping_add(span.remote), ends.remote.1);
        let kind = match ends.direction {
            Direction::Write => Opcode::Write { address, key },
            Direction::Read => Opcode::Read { address, key },
        };
        self.requests.push(SendRequest { id, opcode: kind, sges: 1, signalled: false, inline: false });
        self.sges.push(sge(ends, span));
    }

    /// The span belongs to the request before, if that takes it.
    fn go_on(&mut self, ends: &Ends, span: &Span, sges_max: usize) -> bool {
        let next = sge(ends, span);
        let (Some(request), Some(last)) = (self.requests.last_mut(), self.sges.last_mut()) else { return false };
        if last.address + u64::from(last.bytes) == next.address {
            last.bytes += next.bytes;
            return true;
        }
        if request.sges as usize >= sges_max {
            return false;
        }
        request.sges += 1;
        self.sges.push(next);
        true
    }

    fn inline_from(&mut self, first: usize, inline_max: usize) {
        let mut sges = &self.sges[..];
        // From behind, since only the pieces of what was staged now are known to be at the end.
        for request in self.requests[first..].iter_mut().rev() {
            let (rest, its) = sges.split_at(sges.len() - request.sges as usize);
            request.inline = its.iter().map(|sge| sge.bytes as usize).sum::<usize>() <= inline_max;
            sges = rest;
        }
    }

    /// Stages a message, or an immediate without memory.
    pub(crate) fn push(&mut self, request: SendRequest, sge: Option<Sge>) {
        self.requests.push(request);
        self.sges.extend(sge);
    }

    /// The request that was staged last.
    pub(crate) fn last_mut(&mut self) -> Option<&mut SendRequest> {
        self.requests.last_mut()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// What there is, for the doorbell.
    pub(crate) fn lists(&self) -> (&[SendRequest], &[Sge]) {
        (&self.requests, &self.sges)
    }

    /// All has left, or never will.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
    }
}

/// The local side of a span. Its bytes fit: spans of one request are bounded.
fn sge(ends: &Ends, span: &Span) -> Sge {
    Sge { address: ends.local.0 + span.local, bytes: span.len as u32, key: ends.local.1 }
}
