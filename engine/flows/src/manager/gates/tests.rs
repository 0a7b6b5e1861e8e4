use std::time::Duration;

use penstock_core::{EngineName, Epoch};
use penstock_session::control::{
    Buffer, ControlMessage, Form, Grant, LayoutNews, PeerFeatures, Rows, Side, TransferHead,
};
use penstock_session::{PeerKey, RequestId, TransferId};

use super::super::{Produce, Sinks};
use super::*;
use crate::action::{Action, BlocksRef, Urgency};
use crate::event::Event;
use crate::manager::Settings;
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

fn manager() -> (TransferManager, LayoutKey) {
    let mut manager = TransferManager::new(Settings::default(), [11, 1, 2]);
    manager.handle(Event::Joined { peer: PEER, name: EngineName::new("decode-0").unwrap() }, NOW);
    let able = PeerFeatures { version_min: 1, version_max: 1, tag: 5, credits: 1 };
    manager.handle(Event::Said { peer: PEER, said: ControlMessage::PeerFeatures(able) }, NOW);
    manager.handle(Event::Said { peer: PEER, said: ControlMessage::LayoutNews(news()) }, NOW);
    let layout = manager.add_layout(news(), 1 << 20).unwrap();
    (manager, layout)
}

/// A transfer of one block, granted, of which only the layers are missing.
fn produce(manager: &mut TransferManager, layout: LayoutKey, name: u8, is_by_layer: bool, is_lent: bool) -> EntryKey {
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
    let key = manager.produce(transfer, RequestId::new(&format!("r-{name}")).unwrap(), produce, NOW).unwrap();
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
    manager.handle(Event::Said { peer: PEER, said }, NOW);
    manager.chunk(key, (&[u32::from(name)], 16), true, BlocksRef(name.into()), NOW).unwrap();
    key
}

/// How many parts are to be moved, and how many layers were lent, since the last look.
fn wanted(manager: &mut TransferManager) -> (usize, u32) {
    let actions: Vec<Action> = std::iter::from_fn(|| manager.poll_action()).collect();
    let moves = actions.iter().filter(|action| matches!(action, Action::Move { .. })).count();
    let lent = actions.iter().filter_map(|action| match action {
        Action::Say { said: ControlMessage::ReadOffer(lend), .. } => Some(lend.layers),
        _ => None,
    });
    (moves, lent.max().unwrap_or(0))
}

fn open(manager: &mut TransferManager, gate: GateId) {
    manager.handle(Event::Gate { gate }, NOW);
}

#[test]
fn layers_of_several_transfers_go_when_their_gate_is_opened_and_once() {
    let (mut manager, layout) = manager();
    let keys = [1, 2].map(|name| produce(&mut manager, layout, name, true, false));
    let lent = produce(&mut manager, layout, 3, true, true);
    let [first, second] = [0, 0].map(|_| manager.add_gate().unwrap());
    for key in keys.into_iter().chain([lent]) {
        for (layer, gate) in [(0, first), (1, second), (2, second)] {
            manager.layer_after(key, (layer, 16), gate, NOW).unwrap();
            manager.layer_after(key, (layer, 16), gate, NOW).unwrap();
        }
    }
    assert_eq!(wanted(&mut manager), (0, 0));
    open(&mut manager, first);
    assert_eq!(wanted(&mut manager), (2, 1));
    open(&mut manager, first);
    assert_eq!(wanted(&mut manager), (0, 0));
    open(&mut manager, second);
    assert_eq!(wanted(&mut manager), (4, 3));
    let late = produce(&mut manager, layout, 4, true, false);
    manager.layer_after(late, (0, 16), first, NOW).unwrap();
    assert_eq!(wanted(&mut manager), (1, 0), "a gate that is open keeps nothing");
    manager.remove_gate(first, NOW);
    manager.remove_gate(second, NOW);
    assert_eq!(manager.status(late), Some(Status::Transferring), "nothing waits for a gate that was opened");
    assert_eq!((manager.gates.len(), manager.layer_after(late, (1, 16), first, NOW)), (0, Err(CallError::NoGate)));
}

#[test]
fn what_waits_for_a_gate_that_was_never_opened_fails_at_once_with_the_reason() {
    let (mut manager, layout) = manager();
    let [one, other, ended] = [1, 2, 3].map(|name| produce(&mut manager, layout, name, true, false));
    let [gate, kept] = [0, 0].map(|_| manager.add_gate().unwrap());
    manager.layer_after(one, (2, 16), gate, NOW).unwrap();
    manager.layer_after(other, (2, 16), kept, NOW).unwrap();
    manager.layer_after(ended, (1, 16), gate, NOW).unwrap();
    manager.fail(ended, FlowCause::SourceFailed, "first", NOW);
    manager.remove_gate(gate, NOW);
    let failed = manager.send_failure(one).unwrap();
    assert_eq!(failed.cause, FlowCause::SourceFailed);
    assert!(failed.words.contains("layer 2 was dropped and never opened"), "{}", failed.words);
    assert_eq!(manager.send_failure(ended).unwrap().words, "first");
    assert_eq!(manager.send_failure(other), None);
    let said: Vec<Action> = std::iter::from_fn(|| manager.poll_action()).collect();
    let told = said.iter().filter(|action| matches!(action, Action::Say { said: ControlMessage::Fail(_), .. })).count();
    assert_eq!(told, 2, "the sinks hear of it at once");
}

#[test]
fn a_gate_that_would_hold_nothing_back_is_refused() {
    let (mut manager, layout) = manager();
    let whole = produce(&mut manager, layout, 1, false, false);
    let by_layer = produce(&mut manager, layout, 2, true, false);
    let gate = manager.add_gate().unwrap();
    assert_eq!(manager.layer_after(whole, (0, 16), gate, NOW), Err(LegError::NotByLayer.into()), "its bytes have gone");
    let error = LegError::NoSuchLayer { layer: 3, layers: 3 };
    assert_eq!(manager.layer_after(by_layer, (3, 16), gate, NOW), Err(error.into()));
    for _ in 1..GATES_MAX {
        manager.add_gate().unwrap();
    }
    assert_eq!(manager.add_gate(), Err(CallError::Full { what: "gates", most: GATES_MAX }));
}

/// Events of two streams: the later tokens of a layer are there first.
#[test]
fn a_gate_that_is_shut_keeps_back_what_gates_behind_it_have_opened() {
    for is_lent in [false, true] {
        let (mut manager, layout) = manager();
        let key = produce(&mut manager, layout, 1, true, is_lent);
        let [first, same, second] = [0, 0, 0].map(|_| manager.add_gate().unwrap());
        for (tokens, gate) in [(16, second), (8, first), (8, same)] {
            manager.layer_after(key, (0, tokens), gate, NOW).unwrap();
        }
        open(&mut manager, second);
        open(&mut manager, first);
        assert_eq!(wanted(&mut manager), (0, 0), "another gate in front of the first 8 tokens is shut");
        open(&mut manager, same);
        let expected = if is_lent { (0, 1) } else { (1, 0) };
        assert_eq!(wanted(&mut manager), expected, "all 16 at once");
        [first, same, second].into_iter().for_each(|gate| manager.remove_gate(gate, NOW));
        assert_eq!((manager.send_failure(key), manager.gates.fenced.len()), (None, 0));
    }
}

#[test]
fn a_gate_that_is_dropped_ends_what_gates_behind_it_have_opened() {
    let (mut manager, layout) = manager();
    let [waits, said] = [1, 2].map(|name| produce(&mut manager, layout, name, true, false));
    let [first, open_already, second] = [0, 0, 0].map(|_| manager.add_gate().unwrap());
    open(&mut manager, open_already);
    for key in [waits, said] {
        manager.layer_after(key, (0, 8), first, NOW).unwrap();
        manager.layer_after(key, (0, 12), open_already, NOW).unwrap();
        manager.layer_after(key, (0, 16), second, NOW).unwrap();
    }
    open(&mut manager, second);
    assert_eq!(wanted(&mut manager), (0, 0));
    // The application's own word is not behind a gate.
    manager.layer(said, 0, 8, NOW).unwrap();
    manager.remove_gate(first, NOW);
    let failed = manager.send_failure(waits).expect("nobody says that its first tokens are there");
    assert!(failed.words.contains("the first 8 tokens of layer 0 was dropped"), "{}", failed.words);
    assert_eq!((manager.send_failure(said), manager.gates.fenced.len()), (None, 0));
    let ready = |key| match manager.flow(key) {
        Some(Flow::Source(source)) => source.legs.ready_tokens(0),
        _ => panic!("it is a source"),
    };
    assert_eq!((ready(said), ready(waits)), (16, 0));
}
