use std::time::Duration;

use penstock_core::{EngineName, Epoch};
use penstock_session::control::{
    Buffer, ControlMessage, Form, Grant, LayoutNews, PeerFeatures, Rows, Side, TransferHead,
};
use penstock_session::{PeerKey, RequestId, TransferId};

use super::super::{Produce, Sinks};
use super::*;
use crate::action::{Action, BlocksRef, Urgency};
use crate::desk::Settings;
use crate::event::Event;
use crate::part::LegError;
use crate::partners::LayoutKey;
use crate::status::Status;

const NOW: Timestamp = Timestamp::from_ns(1);
const PEER: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(7) };

/// Three layers, so that two gates can stand in front of them.
fn news() -> LayoutNews {
    let rows = Rows { first: 0, count: 1, of: 1, bytes: 8 };
    let buffer = |layer: u32| Buffer { layer, base: u64::from(layer) << 12, stride: 128, form: Form::TokenMajor(rows) };
    LayoutNews {
        number: 0,
        generation: 1,
        label: "kv".to_owned(),
        region: 1,
        region_generation: 1,
        block_tokens: 16,
        blocks: 8,
        rank: 0,
        ranks: 1,
        buffers: (0..3).map(buffer).collect(),
    }
}

fn desk() -> (TransferManager, LayoutKey) {
    let mut desk = TransferManager::new(Settings::default(), [11, 1, 2]);
    desk.handle(Event::Joined { peer: PEER, name: EngineName::new("decode-0").unwrap() }, NOW);
    let able = PeerFeatures { version_min: 1, version_max: 1, tag: 5, credits: 1 };
    desk.handle(Event::Said { peer: PEER, said: ControlMessage::PeerFeatures(able) }, NOW);
    desk.handle(Event::Said { peer: PEER, said: ControlMessage::LayoutNews(news()) }, NOW);
    let layout = desk.add_layout(news(), 1 << 20).unwrap();
    (desk, layout)
}

/// A transfer of one block, granted, of which only the layers are missing.
fn produce(desk: &mut TransferManager, layout: LayoutKey, name: u8, is_by_layer: bool, is_lent: bool) -> EntryKey {
    let transfer = TransferId::from_bytes([name; 16]);
    let produce = Produce {
        layout,
        rank: (0, 1),
        sinks: Sinks::Sharing(1),
        is_by_layer,
        is_lent,
        is_resumable: false,
        lease_ttl: None,
        once: None,
        within: Duration::from_secs(9),
        urgency: Urgency::Bulk,
    };
    let key = desk.produce(transfer, RequestId::new(&format!("r-{name}")).unwrap(), produce, NOW).unwrap();
    let head = TransferHead { transfer, side: Side::Sink, rank: 0, ranks: 1 };
    let said = if is_lent {
        ControlMessage::PullRequest(penstock_session::control::PullRequest { head, from: 0, trace: Vec::new() })
    } else {
        ControlMessage::Grant(Grant {
            head,
            leg: 0,
            layout: 0,
            layout_generation: 1,
            from: 0,
            skip: 0,
            capacity: 16,
            once: None,
            resumes: false,
            urgency: 0,
            blocks: vec![1].into(),
            trace: Box::default(),
        })
    };
    desk.handle(Event::Said { peer: PEER, said }, NOW);
    desk.chunk(key, (&[u32::from(name)], 16), true, BlocksRef(name.into()), NOW).unwrap();
    key
}

/// How many parts are to be moved, and how many layers were lent, since the last look.
fn wanted(desk: &mut TransferManager) -> (usize, u32) {
    let actions: Vec<Action> = std::iter::from_fn(|| desk.poll_action()).collect();
    let moves = actions.iter().filter(|action| matches!(action, Action::Move { .. })).count();
    let lent = actions.iter().filter_map(|action| match action {
        Action::Say { said: ControlMessage::ReadOffer(lend), .. } => Some(lend.layers),
        _ => None,
    });
    (moves, lent.max().unwrap_or(0))
}

fn open(desk: &mut TransferManager, gate: GateId) {
    desk.handle(Event::Gate { gate }, NOW);
}

#[test]
fn layers_of_several_transfers_go_when_their_gate_is_opened_and_once() {
    let (mut desk, layout) = desk();
    let keys = [1, 2].map(|name| produce(&mut desk, layout, name, true, false));
    let lent = produce(&mut desk, layout, 3, true, true);
    let [first, second] = [0, 0].map(|_| desk.add_gate().unwrap());
    for key in keys.into_iter().chain([lent]) {
        for (layer, gate) in [(0, first), (1, second), (2, second)] {
            desk.layer_after(key, (layer, 16), gate, NOW).unwrap();
            desk.layer_after(key, (layer, 16), gate, NOW).unwrap();
        }
    }
    assert_eq!(wanted(&mut desk), (0, 0));
    open(&mut desk, first);
    assert_eq!(wanted(&mut desk), (2, 1));
    open(&mut desk, first);
    assert_eq!(wanted(&mut desk), (0, 0));
    open(&mut desk, second);
    assert_eq!(wanted(&mut desk), (4, 3));
    let late = produce(&mut desk, layout, 4, true, false);
    desk.layer_after(late, (0, 16), first, NOW).unwrap();
    assert_eq!(wanted(&mut desk), (1, 0), "a gate that is open keeps nothing");
    desk.remove_gate(first, NOW);
    desk.remove_gate(second, NOW);
    assert_eq!(desk.status(late), Some(Status::Transferring), "nothing waits for a gate that was opened");
    assert_eq!((desk.gates.len(), desk.layer_after(late, (1, 16), first, NOW)), (0, Err(CallError::NoGate)));
}

#[test]
fn what_waits_for_a_gate_that_was_never_opened_fails_at_once_with_the_reason() {
    let (mut desk, layout) = desk();
    let [one, other, ended] = [1, 2, 3].map(|name| produce(&mut desk, layout, name, true, false));
    let [gate, kept] = [0, 0].map(|_| desk.add_gate().unwrap());
    desk.layer_after(one, (2, 16), gate, NOW).unwrap();
    desk.layer_after(other, (2, 16), kept, NOW).unwrap();
    desk.layer_after(ended, (1, 16), gate, NOW).unwrap();
    desk.fail(ended, FlowCause::SourceFailed, "first", NOW);
    desk.remove_gate(gate, NOW);
    let failed = desk.send_failure(one).unwrap();
    assert_eq!(failed.cause, FlowCause::SourceFailed);
    assert!(failed.words.contains("layer 2 was dropped and never opened"), "{}", failed.words);
    assert_eq!(desk.send_failure(ended).unwrap().words, "first");
    assert_eq!(desk.send_failure(other), None);
    let said: Vec<Action> = std::iter::from_fn(|| desk.poll_action()).collect();
    let told = said.iter().filter(|action| matches!(action, Action::Say { said: ControlMessage::Fail(_), .. })).count();
    assert_eq!(told, 2, "the sinks hear of it at once");
}

#[test]
fn a_gate_that_would_hold_nothing_back_is_refused() {
    let (mut desk, layout) = desk();
    let whole = produce(&mut desk, layout, 1, false, false);
    let by_layer = produce(&mut desk, layout, 2, true, false);
    let gate = desk.add_gate().unwrap();
    assert_eq!(desk.layer_after(whole, (0, 16), gate, NOW), Err(LegError::NotByLayer.into()), "its bytes have gone");
    let error = LegError::NoSuchLayer { layer: 3, layers: 3 };
    assert_eq!(desk.layer_after(by_layer, (3, 16), gate, NOW), Err(error.into()));
    for _ in 1..GATES_MAX {
        desk.add_gate().unwrap();
    }
    assert_eq!(desk.add_gate(), Err(CallError::Full { what: "gates", most: GATES_MAX }));
}

/// Events of two streams: the later tokens of a layer are there first.
#[test]
fn a_gate_that_is_shut_keeps_back_what_gates_behind_it_have_opened() {
    for is_lent in [false, true] {
        let (mut desk, layout) = desk();
        let key = produce(&mut desk, layout, 1, true, is_lent);
        let [first, same, second] = [0, 0, 0].map(|_| desk.add_gate().unwrap());
        for (tokens, gate) in [(16, second), (8, first), (8, same)] {
            desk.layer_after(key, (0, tokens), gate, NOW).unwrap();
        }
        open(&mut desk, second);
        open(&mut desk, first);
        assert_eq!(wanted(&mut desk), (0, 0), "another gate in front of the first 8 tokens is shut");
        open(&mut desk, same);
        let expected = if is_lent { (0, 1) } else { (1, 0) };
        assert_eq!(wanted(&mut desk), expected, "all 16 at once");
        [first, same, second].into_iter().for_each(|gate| desk.remove_gate(gate, NOW));
        assert_eq!((desk.send_failure(key), desk.gates.fenced.len()), (None, 0));
    }
}

#[test]
fn a_gate_that_is_dropped_ends_what_gates_behind_it_have_opened() {
    let (mut desk, layout) = desk();
    let [waits, said] = [1, 2].map(|name| produce(&mut desk, layout, name, true, false));
    let [first, open_already, second] = [0, 0, 0].map(|_| desk.add_gate().unwrap());
    open(&mut desk, open_already);
    for key in [waits, said] {
        desk.layer_after(key, (0, 8), first, NOW).unwrap();
        desk.layer_after(key, (0, 12), open_already, NOW).unwrap();
        desk.layer_after(key, (0, 16), second, NOW).unwrap();
    }
    open(&mut desk, second);
    assert_eq!(wanted(&mut desk), (0, 0));
    // The application's own word is not behind a gate.
    desk.layer(said, 0, 8, NOW).unwrap();
    desk.remove_gate(first, NOW);
    let failed = desk.send_failure(waits).expect("nobody says that its first tokens are there");
    assert!(failed.words.contains("the first 8 tokens of layer 0 was dropped"), "{}", failed.words);
    assert_eq!((desk.send_failure(said), desk.gates.fenced.len()), (None, 0));
    let ready = |key| match desk.flow(key) {
        Some(Flow::Source(source)) => source.legs.ready_tokens(0),
        _ => panic!("it is a source"),
    };
    assert_eq!((ready(said), ready(waits)), (16, 0));
}
