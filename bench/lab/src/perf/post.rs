//! What the engine does between `submit` and the copies, without the copies.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Instant;

use penstock::limits::SPANS_PER_POST;
use penstock::memory::copy::hint_for;
use penstock::memory::{Memory, Window};
use penstock::transport::lane::{Handle, LaneFault};
use penstock::transport::{
    Batch, Lane, LaneEvents, Note, NotifyPosted, NotifyRequest, PostError, Posted, RemoteMemory, Revisions,
};
use penstock::{Cause, Plan, Span};

/// A lane that takes its hazard, looks at the gates and checks every span, and copies nothing.
#[derive(Default)]
struct NoCopy {
    hazard: CacheLine,
    gates: [CacheLine; 2],
}

#[derive(Default)]
#[repr(align(128))]
struct CacheLine(AtomicU64);

impl Lane for NoCopy {
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        self.hazard.0.swap(1, Ordering::SeqCst);
        let now = Revisions {
            local: self.gates[0].0.load(Ordering::Acquire),
            remote: self.gates[1].0.load(Ordering::Acquire),
        };
        if now != batch.checked_at {
            return Err(PostError::StaleRevisions(now));
        }
        let (mut outside, mut bytes) = (false, 0);
        for span in batch.spans {
            outside |= span.local.wrapping_add(span.len) > batch.local.len();
            outside |= span.remote.wrapping_add(span.len) > batch.remote.bytes();
            bytes += span.len;
        }
        fence(Ordering::Release);
        self.hazard.0.store(0, Ordering::Release);
        if outside { Err(PostError::OutOfBounds) } else { Ok(Posted::Moved(bytes)) }
    }

    fn notify(&mut self, _: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        Ok(NotifyPosted::Delivered(true))
    }

    fn hand_over(&mut self, _: Note<'_>, _: &Handle) -> Result<(), PostError> {
        Err(PostError::Fault(LaneFault(Cause::NoPath)))
    }

    fn poll(&mut self, _: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        Ok(false)
    }
}

/// Claims, expands and posts every unit of these plans as a worker does. Answers how long that took, in nanoseconds.
pub(super) fn post_all<'a>(plans: impl Iterator<Item = &'a Plan>, local: &Window, remote: &Window) -> f64 {
    let mut lane = NoCopy::default();
    // Not known to the compiler, as the engine's lanes are not.
    let lane: &mut dyn Lane = std::hint::black_box(&mut lane);
    let mut spans = [Span::default(); SPANS_PER_POST];
    let (local, remote) = (Memory::from(local.clone()), RemoteMemory::from(remote.clone()));
    let start = Instant::now();
    for plan in plans {
        post_one(plan, lane, (&local, &remote), &mut spans);
    }
    start.elapsed().as_nanos() as f64
}

fn post_one(plan: &Plan, lane: &mut dyn Lane, (local, remote): (&Memory, &RemoteMemory), spans: &mut [Span]) {
    let shape = plan.shape();
    let (claims, moved) = (AtomicU64::new(0), AtomicU64::new(0));
    let hint = hint_for(plan.bytes());
    loop {
        // The words of a slot, as a worker takes and gives back each unit.
        let number = claims.fetch_add(1 << 48 | 1, Ordering::AcqRel) & ((1 << 48) - 1);
        let Some(unit) = shape.unit(number) else { return };
        let mut from = 0;
        loop {
            let count = unit.fill(from, spans);
            if count == 0 {
                break;
            }
            let (direction, expected) = (shape.direction(), Revisions::default());
            let (section, spans) = (&shape.sections()[unit.section()], &spans[..count]);
            let batch = Batch {
                direction,
                local,
                local_region: section.local(),
                remote_region: section.remote(),
                remote,
                spans,
                hint,
                checked_at: expected,
                completion_id: 0,
                transfer: 0,
                transfer_bytes: 0,
            };
            match lane.post(&batch) {
                Ok(Posted::Moved(bytes)) => moved.fetch_add(bytes, Ordering::Relaxed),
                refused => unreachable!("a checked plan lies in its pools and nothing is withdrawn: {refused:?}"),
            };
            from += count;
        }
        claims.fetch_sub(1 << 48, Ordering::AcqRel);
    }
}
