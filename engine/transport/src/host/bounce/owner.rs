//! The banks of a peer's workers, checked and served by the owner of the memory.
//!
//! Slots are untrusted. The request is copied out once, parsed, and checked against this engine's registry, rights and
//! withdrawals, under this engine's own hazard. So a revocation waits only for this engine's own workers.

use std::sync::Arc;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Direction, Span};
use penstock_memory::{Registry, Window, copy};
use penstock_ring::bounce::Responder;
use penstock_ring::{Published, ReadyBits};

use super::{Banks, BounceRequest, REQUEST_WORDS, SLOTS};
use crate::host::{Bell, EngineSegments, LastRegion, check_withdrawals};
use crate::lane::LaneFault;
use crate::mediated::Touch;

/// Slots served before the worker looks at anything else.
const SERVED_PER_POLL: usize = 4;

/// How the worker that asked is told of the answer.
pub(crate) struct AnswerBell {
    pub(crate) worker: usize,
    pub(crate) ready: ReadyBits,
    pub(crate) bell: Bell,
}

/// The banks that one worker serves.
pub(crate) struct ServedBanks {
    registry: Arc<Registry>,
    banks: Banks,
    served: Vec<Bank>,
    /// Our place in the peer's table.
    index_at_peer: usize,
    /// The bank to begin with next time, so that one busy bank does not starve the others.
    first: usize,
    request: Box<[u64; REQUEST_WORDS]>,
    spans: Box<[Span; SPANS_PER_POST]>,
}

struct Bank {
    requester: AnswerBell,
    posts: Published,
    /// The request counter when the bank was last polled.
    seen: u64,
    /// The last look was broken off.
    unfinished: bool,
    next: usize,
    slots: Vec<Slot>,
    /// The region asked for last; not held, so that it can go.
    last_region: LastRegion,
}

struct Slot {
    answerer: Responder,
    data: Window,
    populated: bool,
}

impl ServedBanks {
    pub(crate) fn new(registry: &Arc<Registry>, banks: &Banks, index_at_peer: usize, senders: Vec<AnswerBell>) -> Self {
        let range = banks.segment().range();
        let bank = |sender: AnswerBell| {
            let worker = sender.worker;
            let slot = |slot| Slot {
                answerer: Responder::mapped(&range, Banks::slot_offset(worker, slot), REQUEST_WORDS)
                    .expect("slots are bounded by their banks"),
                data: banks.data(worker, slot),
                populated: false,
            };
            let posts = Published::mapped(&range, Banks::posts_offset(worker)).expect("workers are bounded");
            Bank {
                requester: sender,
                posts,
                seen: 0,
                unfinished: false,
                next: 0,
                slots: (0..SLOTS).map(slot).collect(),
                last_region: LastRegion::default(),
            }
        };
        Self {
            registry: Arc::clone(registry),
            banks: banks.clone(),
            served: senders.into_iter().map(bank).collect(),
            index_at_peer,
            first: 0,
            request: Box::new([0; REQUEST_WORDS]),
            spans: Box::new([Span::default(); SPANS_PER_POST]),
        }
    }

    /// Serves a bounded number of requests. Returns whether there may be more.
    pub(crate) fn serve(&mut self, segments: &EngineSegments, touch: &mut Touch) -> Result<bool, LaneFault> {
        let mut left = SERVED_PER_POLL;
        let banks = self.served.len();
        for step in 0..banks {
            let bank_index = (self.first + step) % banks;
            let posts = self.served[bank_index].posts.read();
            let bank = &mut self.served[bank_index];
            if posts == bank.seen && !bank.unfinished {
                continue;
            }
            bank.seen = posts;
            let finished = self.serve_bank(bank_index, &mut left, segments, touch)?;
            self.served[bank_index].unfinished = !finished;
            if left == 0 {
                self.first = (bank_index + 1) % banks;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Serves one bank. Returns whether every slot of it was looked at.
    fn serve_bank(
        &mut self,
        bank_index: usize,
        left: &mut usize,
        segments: &EngineSegments,
        touch: &mut Touch,
    ) -> Result<bool, LaneFault> {
        let Self { registry, banks, served: filled, request, spans, index_at_peer, .. } = self;
        let bank = &mut filled[bank_index];
        let first = bank.next;
        for index in (first..SLOTS).chain(0..first) {
            if *left == 0 {
                return Ok(false);
            }
            let slot = &mut bank.slots[index];
            let Some(taken) = slot.answerer.take(&mut request[..]) else { continue };
            *left -= 1;
            bank.next = (index + 1) % SLOTS;
            let (parsed, count) = BounceRequest::parse(request, spans).map_err(|_| LaneFault(Cause::PeerCorrupt))?;
            // Its pages are there already if the peer keeps to the protocol; if not, they come now or
            // the request is refused.
            slot.populated = slot.populated || banks.populate(bank.requester.worker, index).is_ok();
            touch.enter();
            let moved = match slot.populated {
                true => checked(segments, registry, &mut bank.last_region, &parsed, &spans[..count], &slot.data),
                false => Ok(Err(Cause::NoPath)),
            };
            touch.leave();
            let answer = match moved? {
                Ok(bytes) => [0, bytes],
                Err(cause) => [u64::from(cause.code()), 0],
            };
            slot.answerer.answer(&taken, answer);
            bank.requester.bell.mark_and_ring(&bank.requester.ready, *index_at_peer);
        }
        Ok(true)
    }
}

/// Moves the bytes of a request if it is allowed; the cause to answer with if not.
fn checked(
    segments: &EngineSegments,
    registry: &Registry,
    known: &mut LastRegion,
    request: &BounceRequest,
    spans: &[Span],
    data: &Window,
) -> Result<Result<u64, Cause>, LaneFault> {
    let view = segments.owner_state.view();
    if request.revision > view.revision() {
        return Err(LaneFault(Cause::PeerCorrupt)); // Nobody can have read it.
    }
    let extents = spans.iter().map(|span| (span.local, span.len));
    if let Err(withdrawn) = check_withdrawals(view, request.revision, request.key, extents) {
        return Ok(Err(withdrawn.cause_for_peer()));
    }
    let Some(region) = known.find(registry, request.key) else { return Ok(Err(Cause::RevokedByPeer)) };
    let rights = region.rights();
    let (allowed, copy_direction) = match request.direction {
        Direction::Write => (rights.allows_write(), Direction::Read),
        Direction::Read => (rights.allows_read(), Direction::Write),
    };
    if !allowed {
        return Ok(Err(Cause::OutOfBounds));
    }
    let Some(window) = region.host() else { return Ok(Err(Cause::NoPath)) };
    // All bounds are checked before the first byte moves, against the region as it is here.
    let moved = copy::scatter(window, data, copy_direction, spans, request.hint);
    Ok(moved.map_err(|_| Cause::OutOfBounds))
}
