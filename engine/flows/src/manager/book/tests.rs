use std::time::Duration;

use penstock_core::{EngineName, Epoch, Timestamp};
use penstock_session::control::{
    AbortAck, Buffer, ControlMessage, EndOfData, Form, LayoutNews, PeerFeatures, Rows, SentRows, Side, TransferHead,
};
use penstock_session::landing::ArrivalNote;
use penstock_session::transfers::table::{FinishedTransfer, QuarantinedRequest};
use penstock_session::{PeerKey, RequestId, TransferId};

use super::super::{Consume, Produce, Settings, Sinks};
use super::*;
use crate::action::{Action, BlocksRef, Urgency};
use crate::cause::FlowCause;
use crate::event::Event;
use crate::status::Status;

const NOW: Timestamp = Timestamp::from_ns(1);
const PEER: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(7) };
const ROWS: Rows = Rows { first: 0, count: 1, of: 1, bytes: 8 };

/// Two layers of 8 blocks one behind the other, from there on in region 1.
fn news(label: &str, base: u64) -> LayoutNews {
    let buffer = |layer: u32| {
        let base = base + u64::from(layer) * 1024;
        Buffer { layer, base, stride: 128, form: Form::TokenMajor(ROWS) }
    };
    LayoutNews {
        number: 0,
        generation: 1,
        label: label.to_owned(),
        region: 1,
        region_generation: 1,
        block_tokens: 16,
        blocks: 8,
        rank: 0,
        ranks: 1,
        buffers: (0..2).map(buffer).collect(),
    }
}

struct Case {
    manager: TransferManager,
    layout: LayoutKey,
    tickets: u64,
}

fn id(number: u8) -> TransferId {
    TransferId::from_bytes([number; 16])
}

fn request(number: u8) -> RequestId {
    RequestId::new(&format!("r-{number}")).unwrap()
}

impl Case {
    fn new() -> Self {
        let mut manager = TransferManager::new(Settings::default(), [11, 1, 2]);
        manager.handle(Event::Joined { peer: PEER, name: EngineName::new("prefill-0").unwrap() }, NOW);
        let able = PeerFeatures { version_min: 1, version_max: 1, tag: 5, credits: 1 };
        manager.handle(Event::Said { peer: PEER, said: ControlMessage::PeerFeatures(able) }, NOW);
        let layout = manager.add_layout(news("kv", 0), 1 << 20).unwrap();
        Self { manager, layout, tickets: 0 }
    }

    fn ticket(&mut self) -> BlocksRef {
        self.tickets += 1;
        BlocksRef(self.tickets)
    }

    fn consume_in(&mut self, layout: LayoutKey, number: u8, is_pull: bool) -> EntryKey {
        let consume = Consume {
            layout,
            rank: (0, 1),
            sources: vec![(0, PEER)],
            begin: 0,
            tail: None,
            is_pull,
            is_resumable: false,
            memory: None,
            within: Duration::from_secs(9),
            urgency: Urgency::Bulk,
            trace: Vec::new(),
        };
        self.manager.consume(id(number), request(number), consume, NOW).unwrap()
    }

    fn consume(&mut self, number: u8) -> EntryKey {
        self.consume_in(self.layout, number, false)
    }

    fn try_produce(&mut self, number: u8, once: Option<u32>) -> Result<EntryKey, CallError> {
        let produce = Produce {
            layout: self.layout,
            rank: (0, 1),
            sinks: Sinks::Sharing(1),
            is_by_layer: false,
            is_lent: number.is_multiple_of(2),
            is_resumable: false,
            lease_ttl: None,
            once: once.map(|block| (block, self.ticket())),
            within: Duration::from_secs(9),
            urgency: Urgency::Bulk,
        };
        self.manager.produce(id(number), request(number), produce, NOW)
    }

    fn produce(&mut self, number: u8) -> EntryKey {
        self.try_produce(number, None).unwrap()
    }

    fn grant(&mut self, key: EntryKey, blocks: &[u32]) -> Result<u32, CallError> {
        let keep = self.ticket();
        self.manager.grant(key, (blocks.to_vec(), 0), None, keep, NOW)
    }

    fn chunk(&mut self, key: EntryKey, blocks: &[u32]) -> Result<(), CallError> {
        let keep = self.ticket();
        self.manager.chunk(key, (blocks, blocks.len() as u64 * 16), false, keep, NOW)
    }

    /// All of a leg of one block is there, and there is more.
    fn land(&mut self, number: u8) {
        let landing = ArrivalNote {
            transfer: id(number),
            source: 0,
            rank: 0,
            number: 0,
            leg: 0,
            layer: None,
            leg_from: 0,
            leg_tokens: 16,
            from: 0,
            tokens: 16,
            total: None,
        };
        self.manager.handle(Event::Landing { peer: PEER, bytes: landing.encode() }, NOW);
    }

    fn said(&mut self, said: ControlMessage, now: Timestamp) {
        self.manager.handle(Event::Said { peer: PEER, said }, now);
    }

    /// The source says that nothing lands any more.
    fn drained(&mut self, number: u8, now: Timestamp) {
        let head = TransferHead { transfer: id(number), side: Side::Source, rank: 0, ranks: 1 };
        self.said(ControlMessage::AbortAck(AbortAck { head, number: 1, is_drained: true }), now);
    }

    fn finished(&mut self) -> FinishedTransfer {
        let mut finished = FinishedTransfer::default();
        self.manager.drain_finished(&mut finished);
        finished
    }

    /// Whether it was told since the last look that something can be fetched.
    fn was_told(&mut self) -> bool {
        std::iter::from_fn(|| self.manager.poll_action()).filter(|action| *action == Action::Tell).count() > 0
    }

    fn assert_nothing_is_left(mut self, keys: &[EntryKey]) {
        keys.iter().for_each(|key| self.manager.release(*key, NOW));
        self.manager.handle(Event::Left { peer: PEER, cause: penstock_core::Cause::PeerClosed }, NOW);
        for action in std::iter::from_fn(|| self.manager.poll_action()).collect::<Vec<_>>() {
            if let Action::Watch { id, .. } = action {
                self.manager.handle(Event::Quiet { id }, NOW);
            }
        }
        assert!(self.manager.book.is_clear(), "{:?}", self.manager.book);
        assert_eq!(self.manager.check(), Ok(()));
        while self.manager.poll_action().is_some() {}
        assert!(self.manager.is_empty());
    }
}

fn sink(number: u8) -> Holder {
    Holder::Transfer { side: Side::Sink, transfer: id(number), request: Some(request(number)) }
}

fn source(number: u8) -> Holder {
    Holder::Transfer { side: Side::Source, transfer: id(number), request: Some(request(number)) }
}

fn held<T: std::fmt::Debug>(result: Result<T, CallError>) -> BlockHeld {
    match result {
        Err(CallError::Held(held)) => *held,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_block_is_written_for_one_transfer_alone_and_who_asks_for_it_too_hears_whose_it_is() {
    let mut case = Case::new();
    let (one, other) = (case.consume(1), case.consume_in(case.layout, 2, true));
    case.grant(one, &[1, 2]).unwrap();
    let error = held(case.grant(other, &[3, 2]));
    assert_eq!(error, BlockHeld::Written { block: 2, by: sink(1) });
    let words = error.to_string();
    assert!(words.contains("block 2") && words.contains("r-1") && words.contains(&id(1).to_string()), "{words}");
    case.grant(other, &[3]).unwrap();
    // Within one transfer it is the transfer's to refuse.
    assert!(matches!(case.grant(one, &[2]), Err(CallError::Leg(crate::part::LegError::BlockTwice { block: 2 }))));
    let reader = case.produce(4);
    assert_eq!(held(case.chunk(reader, &[0, 3])), BlockHeld::Written { block: 3, by: sink(2) });
    case.chunk(reader, &[0]).unwrap();
    case.assert_nothing_is_left(&[one, other, reader]);
}

impl BlockHeld {
    fn block(&self) -> u32 {
        let (Self::Written { block, .. } | Self::Untaken { block, .. } | Self::Read { block, .. }) = self;
        *block
    }
}

#[test]
fn many_read_a_block_and_nobody_writes_it_until_all_of_them_are_done() {
    let mut case = Case::new();
    let (pushed, lent, writer) = (case.produce(1), case.produce(2), case.consume(3));
    case.chunk(pushed, &[5]).unwrap();
    case.chunk(lent, &[4, 5]).unwrap();
    assert!(matches!(held(case.grant(writer, &[6, 5])), BlockHeld::Read { block: 5, .. }));
    assert_eq!(held(case.grant(writer, &[4])), BlockHeld::Read { block: 4, by: source(2) });
    case.manager.fail(pushed, FlowCause::SourceFailed, "x", NOW);
    assert_eq!(held(case.grant(writer, &[5])), BlockHeld::Read { block: 5, by: source(2) });
    case.manager.fail(lent, FlowCause::SourceFailed, "x", NOW);
    case.grant(writer, &[5, 4]).unwrap();
    case.assert_nothing_is_left(&[pushed, lent, writer]);
}

#[test]
fn what_came_is_handed_on_while_its_leg_has_it_and_overwritten_when_that_was_taken() {
    let mut case = Case::new();
    let (first, next, other) = (case.consume(1), case.produce(2), case.consume(3));
    case.grant(first, &[1]).unwrap();
    assert!(matches!(held(case.chunk(next, &[1])), BlockHeld::Written { block: 1, .. }), "it is not there");
    case.land(1);
    assert_eq!(held(case.grant(other, &[1])), BlockHeld::Untaken { block: 1, by: sink(1) });
    case.chunk(next, &[1]).unwrap();
    case.manager.taken(first, 0, NOW).unwrap();
    assert_eq!(held(case.grant(other, &[1])), BlockHeld::Read { block: 1, by: source(2) });
    case.manager.fail(next, FlowCause::Aborted, "x", NOW);
    case.grant(other, &[1]).unwrap();
    case.assert_nothing_is_left(&[first, next, other]);
}

#[test]
fn a_block_of_a_transfer_that_has_failed_is_nobody_elses_before_nothing_can_land_there() {
    let mut case = Case::new();
    let (one, other) = (case.consume(1), case.consume(2));
    case.grant(one, &[1]).unwrap();
    case.manager.fail(one, FlowCause::SinkFailed, "x", NOW);
    assert_eq!(held(case.grant(other, &[1])), BlockHeld::Written { block: 1, by: sink(1) });
    case.drained(1, NOW);
    case.grant(other, &[1]).unwrap();
    case.assert_nothing_is_left(&[one, other]);
}

#[test]
fn layouts_that_lie_elsewhere_have_other_blocks_and_those_that_lie_alike_the_same() {
    let mut case = Case::new();
    let apart = case.manager.add_layout(news("apart", 4096), 1 << 20).unwrap();
    let alike = case.manager.add_layout(news("alike", 0), 1 << 20).unwrap();
    let (one, two, three) = (case.consume(1), case.consume_in(apart, 2, false), case.consume_in(alike, 3, false));
    case.grant(one, &[1]).unwrap();
    case.grant(two, &[1]).unwrap();
    assert_eq!(held(case.grant(three, &[1])), BlockHeld::Written { block: 1, by: sink(1) });
    // Withdrawn while it is used.
    case.manager.remove_layout(case.layout);
    assert!(matches!(held(case.grant(three, &[1])), BlockHeld::Written { .. }));
    case.assert_nothing_is_left(&[one, two, three]);
}

#[test]
fn layouts_that_have_some_memory_in_common_have_these_blocks_in_common_and_others_not() {
    let mut case = Case::new();
    // The second layer of `kv` alone, and its first one alone.
    let part = |case: &mut Case, label: &str, layer: usize| {
        let whole = news(label, 0);
        case.manager.add_layout(LayoutNews { buffers: vec![whole.buffers[layer]], ..whole }, 1 << 20).unwrap()
    };
    let (upper, lower) = (part(&mut case, "upper", 1), part(&mut case, "lower", 0));
    let (whole, above, below) = (case.consume(1), case.consume_in(upper, 2, false), case.consume_in(lower, 3, false));
    case.grant(whole, &[1]).unwrap();
    assert_eq!(held(case.grant(above, &[1])), BlockHeld::Written { block: 1, by: sink(1) });
    assert_eq!(held(case.grant(below, &[1])), BlockHeld::Written { block: 1, by: sink(1) });
    // Two layers of one block lie apart, and whoever has both meets both.
    case.grant(above, &[2]).unwrap();
    case.grant(below, &[2]).unwrap();
    assert_eq!(held(case.grant(whole, &[2])).block(), 2);
    let reader = case.produce(4);
    assert_eq!(held(case.chunk(reader, &[2])).block(), 2);
    case.chunk(reader, &[5]).unwrap();
    assert_eq!(held(case.grant(above, &[5])), BlockHeld::Read { block: 5, by: source(4) });
    // One that comes while they are at it.
    let late = part(&mut case, "late", 1);
    let late = case.consume_in(late, 5, false);
    assert_eq!(held(case.grant(late, &[1])), BlockHeld::Written { block: 1, by: sink(1) });
    case.assert_nothing_is_left(&[whole, above, below, reader, late]);
}

#[test]
fn what_goes_once_has_a_block_that_others_do_not_have() {
    let mut case = Case::new();
    let rows = news("rows", 8192);
    let once = Buffer { layer: 1, base: 16_384, stride: 64, form: Form::Once(64) };
    let layout = LayoutNews { buffers: vec![rows.buffers[0], once], ..rows };
    case.layout = case.manager.add_layout(layout, 1 << 20).unwrap();
    let (one, other) = (case.consume(1), case.consume(2));
    let keep = case.ticket();
    // The rows of a block and what goes once there lie beside each other.
    case.manager.grant(one, (vec![1, 2], 0), Some(2), keep, NOW).unwrap();
    let keep = case.ticket();
    let granted = case.manager.grant(other, (vec![3], 0), Some(1), keep, NOW);
    assert_eq!(held(granted), BlockHeld::Written { block: 1, by: sink(1) });
    let keep = case.ticket();
    case.manager.grant(other, (vec![3], 0), Some(4), keep, NOW).unwrap();
    assert!(matches!(held(case.try_produce(3, Some(4))), BlockHeld::Written { block: 4, .. }));
    let reader = case.try_produce(3, Some(5)).unwrap();
    assert_eq!(held(case.grant(one, &[5])), BlockHeld::Read { block: 5, by: source(3) });
    let error = case.try_produce(4, Some(8)).unwrap_err().to_string();
    assert!(error.contains("block 8 is not in the layout"), "{error}");
    case.assert_nothing_is_left(&[one, other, reader]);
}

#[test]
fn a_request_that_has_failed_is_named_when_nothing_can_land_any_more() {
    let mut case = Case::new();
    let key = case.consume(1);
    case.grant(key, &[1]).unwrap();
    case.manager.fail(key, FlowCause::SinkFailed, "x", NOW);
    assert_eq!(case.manager.status(key), Some(Status::Failed));
    assert!(
        matches!(case.manager.next_input_event(key), Some(crate::input::InputEvent::Failed(_))),
        "the cause comes at once"
    );
    assert_eq!(case.finished(), FinishedTransfer::default(), "bytes may land");
    assert!(case.was_told());
    // Whoever drops the handle is told no earlier.
    case.manager.release(key, NOW);
    assert_eq!(case.finished(), FinishedTransfer::default());
    while case.manager.poll_action().is_some() {}
    case.drained(1, NOW);
    assert!(case.was_told(), "it can be fetched");
    assert_eq!(case.finished(), FinishedTransfer { failed: vec![request(1)], ..FinishedTransfer::default() });
    assert_eq!(case.finished(), FinishedTransfer::default(), "once");
    case.assert_nothing_is_left(&[]);
}

#[test]
fn after_the_time_for_that_it_is_named_with_what_is_quarantined_and_released_later() {
    let late = NOW + Settings::default().abort_within;
    for is_released in [false, true] {
        let mut case = Case::new();
        let key = case.consume(1);
        case.grant(key, &[2, 1, 5]).unwrap();
        case.manager.fail(key, FlowCause::SinkFailed, "x", NOW);
        assert_eq!(case.manager.deadline(), late);
        if is_released {
            case.manager.release(key, NOW);
        }
        while case.manager.poll_action().is_some() {}
        case.manager.expire(late);
        assert!(case.was_told());
        let quarantined = QuarantinedRequest {
            request: request(1),
            transfer: id(1),
            layout: "kv".to_owned(),
            blocks: vec![1, 2, 5],
            extents: vec![(128, 256), (640, 128), (1152, 256), (1664, 128)],
        };
        let expected = FinishedTransfer {
            failed: vec![request(1)],
            quarantined: vec![quarantined],
            ..FinishedTransfer::default()
        };
        assert_eq!(case.finished(), expected);
        case.manager.expire(late + Duration::from_secs(60));
        assert_eq!(case.finished(), FinishedTransfer::default(), "nothing is freed because time has passed");
        while case.manager.poll_action().is_some() {}
        case.drained(1, late);
        assert!(case.was_told());
        assert_eq!(case.finished(), FinishedTransfer { released: vec![request(1)], ..FinishedTransfer::default() });
        let kept = if is_released { vec![] } else { vec![key] };
        case.assert_nothing_is_left(&kept);
    }
}

#[test]
fn who_has_failed_before_anything_was_granted_is_named_at_once_and_so_is_success() {
    let mut case = Case::new();
    let (failed, well) = (case.consume(1), case.consume(2));
    case.manager.fail(failed, FlowCause::SinkFailed, "x", NOW);
    case.grant(well, &[1]).unwrap();
    case.land(2);
    let head = TransferHead { transfer: id(2), side: Side::Source, rank: 0, ranks: 1 };
    let rows = [SentRows { buffers: 2, first: 0, count: 1 }].into_iter().collect();
    case.said(ControlMessage::EndOfData(EndOfData { head, parts: 1, tokens: 16, legs: 1, rows }), NOW);
    let finished = case.finished();
    assert_eq!((finished.failed, finished.received), (vec![request(1)], vec![request(2)]));
    case.assert_nothing_is_left(&[failed, well]);
}

/// Puts and gets go by bytes: parts of a block that lie apart, and layouts that come later.
#[test]
fn bytes_are_written_by_one_alone_whatever_layout_they_are_looked_at_by() {
    let mut case = Case::new();
    let region = case.manager.layout(case.layout).unwrap().region();
    let begin = |case: &mut Case, extents: &[(u64, u64)], access: BlockAccess, user: User| {
        let ticket = case.ticket();
        case.manager.begin_extents_use(ticket, (region, extents), (access, true), user).map(|()| ticket)
    };
    // The first half of block 1 in layer 0, and its second half.
    let get = begin(&mut case, &[(128, 64)], BlockAccess::Write, User::Get).unwrap();
    let other = begin(&mut case, &[(192, 64)], BlockAccess::Write, User::Get).unwrap();
    let again = begin(&mut case, &[(160, 8)], BlockAccess::Read, User::Put);
    assert_eq!(again, Err(BlockHeld::Written { block: 1, by: Holder::Get }));
    let (one, reader) = (case.consume(1), case.produce(2));
    assert_eq!(held(case.grant(one, &[0, 1])), BlockHeld::Written { block: 1, by: Holder::Get });
    assert_eq!(held(case.chunk(reader, &[1])), BlockHeld::Written { block: 1, by: Holder::Get });
    // Layer 1 is not touched, and layer 0 is, by whatever layout.
    let of_layer = |case: &mut Case, label: &str, layer: usize| {
        let whole = news(label, 0);
        let key =
            case.manager.add_layout(LayoutNews { buffers: vec![whole.buffers[layer]], ..whole }, 1 << 20).unwrap();
        case.consume_in(key, 3 + layer as u8, false)
    };
    let (lower, upper) = (of_layer(&mut case, "lower", 0), of_layer(&mut case, "upper", 1));
    assert_eq!(held(case.grant(lower, &[1])), BlockHeld::Written { block: 1, by: Holder::Get });
    case.grant(upper, &[1]).unwrap();
    case.manager.end_kept_use(get);
    assert_eq!(held(case.grant(lower, &[1])).block(), 1);
    case.manager.end_kept_use(other);
    case.grant(lower, &[1]).unwrap();
    // Many read, and nobody writes there.
    let puts = [0, 1].map(|_| begin(&mut case, &[(256, 128)], BlockAccess::Read, User::Put).unwrap());
    case.chunk(reader, &[2]).unwrap();
    assert!(matches!(held(case.grant(one, &[2])), BlockHeld::Read { block: 2, .. }));
    let get = begin(&mut case, &[(300, 1)], BlockAccess::Write, User::Get);
    assert_eq!(get, Err(BlockHeld::Read { block: 2, by: source(2) }));
    puts.into_iter().for_each(|put| case.manager.end_kept_use(put));
    let child = case.manager.begin_use(case.layout, vec![6], BlockAccess::Write, User::Child).unwrap();
    assert_eq!(held(case.grant(one, &[6])), BlockHeld::Written { block: 6, by: Holder::Child });
    let get = begin(&mut case, &[(6 * 128, 1)], BlockAccess::Write, User::Get);
    assert_eq!(get, Err(BlockHeld::Written { block: 6, by: Holder::Child }));
    case.manager.end_use(child);
    case.assert_nothing_is_left(&[one, reader, lower, upper]);
}
