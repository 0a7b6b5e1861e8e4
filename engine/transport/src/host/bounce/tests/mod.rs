//! Two lanes of one process, and ends of slots that do what they like.

mod hostile;
mod stopping;

use std::sync::Arc;

use crate::Failure;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Rights, Span};
use penstock_memory::copy::Hint;
use penstock_memory::{HostMemory, Region, Registry, Window};
use penstock_ring::SharedRange;
use proptest::prelude::*;

use super::*;
use crate::host::{CopyLane, CopyLaneParts, EngineSegments, InboundRings, ring_segment_bytes};
use crate::lane::{Batch, CancelledOp, Handle, Lane, LaneEvents, LaneFault, Note, PostError, Posted, Revisions};
use crate::remote::{RemoteMemory, TargetMediatedMemory};

/// A token and how it ended.
type Report = (u64, Result<u64, Cause>);

/// What an initiator's lane has reported.
#[derive(Default)]
struct Reports(Vec<Report>);

impl LaneEvents for Reports {
    fn reserve_note(&mut self) -> bool {
        true
    }

    fn note(&mut self, _: Note<'_>) {}

    fn handed_over(&mut self, _: Note<'_>, _: Handle) {}

    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        self.0.push((completion_id, result.map_err(|failure| failure.cause)));
    }
}

struct Side {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    slots: Banks,
    lane: Box<dyn Lane>,
}

impl Side {
    fn register(&self, bytes: Vec<u8>, label: &str, rights: Rights) -> Arc<Region> {
        let memory = HostMemory::from_vec(bytes).unwrap();
        self.registry.register_host(memory, label, rights).unwrap()
    }
}

/// The initiator and the owner.
struct Two {
    near: Side,
    far: Side,
}

fn key(region: &Region) -> RegionKey {
    RegionKey { region: region.id(), generation: region.generation() }
}

fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len() as usize];
    window.read_into(0, &mut bytes).unwrap();
    bytes
}

impl Two {
    fn new() -> Self {
        let segments = [EngineSegments::create(1).unwrap(), EngineSegments::create(1).unwrap()];
        let registries = [Arc::new(Registry::new()), Arc::new(Registry::new())];
        let rings = [SharedRange::heap(ring_segment_bytes(1)), SharedRange::heap(ring_segment_bytes(1))];
        let slots = [Banks::create(1).unwrap(), Banks::create(1).unwrap()];
        let side = |own: usize| {
            let other = 1 - own;
            let theirs = slots[other].segment().fd().try_clone_to_owned().unwrap();
            let parts = CopyLaneParts {
                segments: &segments[own],
                peer_segments: &Arc::new(segments[other].as_local_peer()),
                peer_index: 0,
                index_at_peer: 0,
                outbound: &rings[own],
                inbound: InboundRings::over(&rings[other], 1).unwrap(),
                hand_overs: None,
                bounce: Some(BounceParts {
                    registry: Arc::clone(&registries[own]),
                    outgoing: slots[own].clone(),
                    incoming: Banks::open(theirs, 1).unwrap(),
                }),
                devices: None,
                kernel: None,
            };
            let lane = CopyLane::for_each_worker(parts).unwrap().pop().unwrap();
            let (segments, registry) = (Arc::clone(&segments[own]), Arc::clone(&registries[own]));
            Side { segments, registry, slots: slots[own].clone(), lane }
        };
        Self { near: side(0), far: side(1) }
    }

    fn revisions(&self) -> Revisions {
        let revision = |side: &Side| side.segments.owner_state.view().revision();
        Revisions { local: revision(&self.near), remote: revision(&self.far) }
    }

    fn post(
        &mut self,
        completion_id: u64,
        direction: Direction,
        local: &Region,
        remote: &Region,
        spans: &[Span],
    ) -> Result<Posted, PostError> {
        let memory = RemoteMemory::TargetMediated(TargetMediatedMemory { key: key(remote), bytes: remote.bytes() });
        self.near.lane.post(&Batch {
            direction,
            local: local.memory(),
            local_region: key(local),
            remote_region: key(local),
            remote: &memory,
            spans,
            hint: Hint::Cached,
            checked_at: self.revisions(),
            completion_id,
            transfer: 0,
            transfer_bytes: 0,
        })
    }

    /// Lets the owner serve until there is nothing left.
    fn serve(&mut self) -> Result<(), LaneFault> {
        while self.far.lane.poll(&mut Reports::default())? {}
        Ok(())
    }

    /// What the initiator hears.
    fn collect(&mut self) -> Result<Vec<Report>, LaneFault> {
        let mut reports = Reports::default();
        while self.near.lane.poll(&mut reports)? {}
        Ok(reports.0)
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn a_write_has_landed_when_it_is_reported_and_not_before_the_owner_runs() {
    let mut two = Two::new();
    let near = two.near.register(pattern(1000, 1), "near", Rights::NONE);
    let far = two.far.register(vec![0; 1000], "far", Rights::WRITE);
    let spans = [Span { local: 3, remote: 500, len: 100 }, Span { local: 700, remote: 1, len: 300 }];
    assert_eq!(two.post(9, Direction::Write, &near, &far, &spans), Ok(Posted::Accepted(2)));
    assert_eq!(two.collect().unwrap(), [], "the owner has not run");
    assert_eq!(contents(far.host().unwrap()), vec![0; 1000]);
    // The source is free as soon as it was gathered.
    near.host().unwrap().fill(0, 1000, 0).unwrap();
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(9, Ok(400))]);
    let (found, source) = (contents(far.host().unwrap()), pattern(1000, 1));
    assert_eq!((&found[500..600], &found[1..301]), (&source[3..103], &source[700..1000]));
    assert_eq!(two.collect().unwrap(), [], "reported once");
}

#[test]
fn slots_are_credits_and_all_of_them_can_be_under_way() {
    let mut two = Two::new();
    let near = two.near.register(pattern(1 << 16, 2), "near", Rights::NONE);
    let far = two.far.register(vec![0; 1 << 20], "far", Rights::READ_WRITE);
    let span = |place: u64| [Span { local: 0, remote: place << 16, len: 1 << 16 }];
    for slot in 0..SLOTS as u64 {
        assert_eq!(two.post(slot, Direction::Write, &near, &far, &span(slot)), Ok(Posted::Accepted(1)));
    }
    assert_eq!(two.post(99, Direction::Write, &near, &far, &span(0)), Err(PostError::Full));
    // The owner takes a few at a time, so that its other work goes on.
    assert_eq!(two.far.lane.poll(&mut Reports::default()), Ok(true));
    let first = two.collect().unwrap().len();
    assert!(first > 0 && first < SLOTS, "{first} of {SLOTS} in one poll");
    two.serve().unwrap();
    assert_eq!(first + two.collect().unwrap().len(), SLOTS);
    assert_eq!(two.post(99, Direction::Write, &near, &far, &span(0)), Ok(Posted::Accepted(1)));
    let expected = pattern(1 << 16, 2);
    assert!(contents(far.host().unwrap()).chunks(1 << 16).all(|block| block == expected));
}

#[test]
fn what_does_not_fit_or_is_not_allowed_is_refused_before_a_byte_moves() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 1000], "near", Rights::NONE);
    let read_only = two.far.register(vec![1; 1000], "read", Rights::READ);
    let write_only = two.far.register(vec![1; 1000], "write", Rights::WRITE);
    let outside = [Span { local: 0, remote: 0, len: 10 }, Span { local: 0, remote: 999, len: 2 }];
    assert_eq!(two.post(1, Direction::Write, &near, &write_only, &outside), Err(PostError::OutOfBounds));
    let wrapping = [Span { local: 0, remote: u64::MAX, len: 2 }];
    assert_eq!(two.post(1, Direction::Read, &near, &read_only, &wrapping), Err(PostError::OutOfBounds));
    let beyond = [Span { local: 990, remote: 0, len: 11 }];
    assert_eq!(two.post(1, Direction::Write, &near, &write_only, &beyond), Err(PostError::OutOfBounds));
    assert_eq!(two.post(1, Direction::Write, &near, &write_only, &[]), Err(PostError::OutOfBounds));
    let sound = [Span { local: 0, remote: 0, len: 10 }];
    // The owner looks at the rights itself, whatever the initiator thinks.
    assert_eq!(two.post(2, Direction::Write, &near, &read_only, &sound), Ok(Posted::Accepted(1)));
    assert_eq!(two.post(3, Direction::Read, &near, &write_only, &sound), Ok(Posted::Accepted(1)));
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(2, Err(Cause::OutOfBounds)), (3, Err(Cause::OutOfBounds))]);
    assert_eq!(contents(near.host().unwrap()), vec![7; 1000]);
    assert_eq!(contents(read_only.host().unwrap()), vec![1; 1000]);
    assert_eq!(contents(write_only.host().unwrap()), vec![1; 1000]);
}

/// Spans of which no two share a byte on either side, in a slot's worth.
fn spans() -> impl Strategy<Value = Vec<Span>> {
    prop::collection::vec((1_u64..1500, 0_u64..100, 0_u64..100), 1..40).prop_map(|parts| {
        let (mut local, mut remote) = (0, 0);
        let span = |(len, skip_local, skip_remote)| {
            (local, remote) = (local + skip_local, remote + skip_remote);
            let span = Span { local, remote, len };
            (local, remote) = (local + len, remote + len);
            span
        };
        parts.into_iter().map(span).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn bytes_arrive_as_a_plain_copy_would_bring_them(spans in spans(), read: bool) {
        let mut two = Two::new();
        let near = two.near.register(pattern(70_000, 1), "near", Rights::NONE);
        let far = two.far.register(pattern(70_000, 100), "far", Rights::READ_WRITE);
        let (mut here, mut there) = (pattern(70_000, 1), pattern(70_000, 100));
        let mut left = &spans[..];
        let direction = if read { Direction::Read } else { Direction::Write };
        let mut completion_id = 0;
        while !left.is_empty() {
            let Ok(Posted::Accepted(count)) = two.post(completion_id, direction, &near, &far, left) else {
                panic!("there is a free slot and all of it is sound");
            };
            prop_assert!(count > 0);
            let bytes: u64 = left[..count].iter().map(|span| span.len).sum();
            two.serve().unwrap();
            prop_assert_eq!(two.collect().unwrap(), [(completion_id, Ok(bytes))]);
            (left, completion_id) = (&left[count..], completion_id + 1);
        }
        for span in &spans {
            let (local, remote, len) = (span.local as usize, span.remote as usize, span.len as usize);
            match direction {
                Direction::Write => there[remote..remote + len].copy_from_slice(&here[local..local + len]),
                Direction::Read => here[local..local + len].copy_from_slice(&there[remote..remote + len]),
            }
        }
        prop_assert!(contents(near.host().unwrap()) == here);
        prop_assert!(contents(far.host().unwrap()) == there);
    }
}
