use penstock_core::{Cause, EngineName, Epoch};
use penstock_session::control::{Abort, Buffer, Form, PullRequest, Rows, TransferHead};

use super::*;

const NOW: Timestamp = Timestamp::from_ns(1);
const PEER: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(7) };

fn manager() -> TransferManager {
    let mut manager = TransferManager::new(Settings::default(), [11, 1, 2]);
    manager.handle(Event::Joined { peer: PEER, name: EngineName::new("decode-0").unwrap() }, NOW);
    manager
}

fn news(label: &str) -> LayoutNews {
    let rows = Rows { first: 0, count: 8, of: 8, bytes: 256 };
    let buffers = vec![Buffer { layer: 0, base: 0, stride: 32_768, form: Form::TokenMajor(rows) }];
    LayoutNews {
        number: 0,
        generation: 0,
        label: label.to_owned(),
        region: 1,
        region_generation: 1,
        block_tokens: 16,
        blocks: 4,
        rank: 0,
        ranks: 1,
        buffers,
    }
}

fn able(version_min: u16, version_max: u16, tag: u64) -> Event {
    Event::Said {
        peer: PEER,
        said: ControlMessage::PeerFeatures(PeerFeatures { version_min, version_max, tag, credits: 1 }),
    }
}

fn said(manager: &mut TransferManager) -> Vec<ControlMessage> {
    let actions = std::iter::from_fn(|| manager.poll_action());
    actions.filter_map(|action| if let Action::Say { peer: PEER, said } = action { Some(said) } else { None }).collect()
}

#[test]
fn who_joins_is_told_that_this_engine_speaks_of_transfers_and_then_of_its_layouts() {
    let mut manager = manager();
    let first = manager.add_layout(news("kv"), 1 << 20).unwrap();
    assert_eq!(
        said(&mut manager),
        [ControlMessage::PeerFeatures(PeerFeatures { version_min: 1, version_max: 1, tag: 11, credits: 64 })]
    );
    manager.handle(able(1, 9, 5), NOW);
    let told = LayoutNews { number: first.number, generation: first.generation, ..news("kv") };
    assert_eq!(said(&mut manager), [ControlMessage::LayoutNews(told)]);
    assert!(manager.is_able(PEER));
    let second = manager.add_layout(news("aux"), 1 << 20).unwrap();
    assert_ne!(first.number, second.number);
    assert!(manager.remove_layout(first) && !manager.remove_layout(first), "once");
    let kinds: Vec<u16> = said(&mut manager).iter().map(ControlMessage::kind).collect();
    assert_eq!(kinds, [ControlMessage::LayoutNews(news("")).kind(), ControlMessage::LayoutGone(gone(1, 1)).kind()]);
    manager.handle(Event::Left { peer: PEER, cause: Cause::PeerClosed }, NOW);
    manager.add_layout(news("late"), 1 << 20).unwrap();
    assert_eq!(said(&mut manager), [], "nobody is there");
    assert!(manager.is_empty());
}

fn gone(number: u32, generation: u32) -> penstock_session::control::LayoutGone {
    penstock_session::control::LayoutGone { number, generation }
}

#[test]
fn a_release_with_which_nothing_is_in_common_hears_of_nothing() {
    let mut manager = manager();
    manager.add_layout(news("kv"), 1 << 20).unwrap();
    said(&mut manager);
    manager.handle(able(2, 3, 5), NOW);
    assert!(said(&mut manager).is_empty() && !manager.is_able(PEER));
    manager.handle(Event::Said { peer: PEER, said: ControlMessage::LayoutNews(news("theirs")) }, NOW);
    assert_eq!((manager.layout_of(PEER, "theirs"), manager.metrics().refused), (None, 1));
}

#[test]
fn layouts_of_a_peer_are_known_until_they_are_gone_and_only_so_many() {
    let mut manager = manager();
    manager.handle(able(1, 1, 5), NOW);
    let mut say = |said: ControlMessage| manager.handle(Event::Said { peer: PEER, said }, NOW);
    for number in 0..300 {
        say(ControlMessage::LayoutNews(LayoutNews { number, generation: 1, ..news(&format!("layer {number:03}")) }));
    }
    // The same label twice, no tokens, a rank beyond all, no buffers.
    say(ControlMessage::LayoutNews(LayoutNews { number: 300, ..news("layer 000") }));
    say(ControlMessage::LayoutNews(LayoutNews { number: 0, block_tokens: 0, ..news("a") }));
    say(ControlMessage::LayoutNews(LayoutNews { number: 0, rank: 1, ..news("a") }));
    say(ControlMessage::LayoutNews(LayoutNews { number: 0, buffers: Vec::new(), ..news("a") }));
    say(ControlMessage::LayoutGone(gone(1, 2)));
    say(ControlMessage::LayoutGone(gone(2, 1)));
    // Said twice: the first words stand.
    say(ControlMessage::PeerFeatures(PeerFeatures { version_min: 1, version_max: 1, tag: 6, credits: 1 }));
    assert_eq!(manager.metrics().refused, 44 + 4 + 1);
    assert_eq!(manager.labels_of(PEER).len(), 255);
    assert!(manager.layout_of(PEER, "layer 001").is_some() && manager.layout_of(PEER, "layer 002").is_none());
}

#[test]
fn a_layout_that_cannot_be_is_refused_with_the_reason() {
    let mut manager = manager();
    manager.add_layout(news("kv"), 1 << 20).unwrap();
    assert_eq!(manager.add_layout(news("kv"), 1 << 20), Err(LayoutRefused::LabelTaken("kv".to_owned())));
    assert_eq!(manager.add_layout(news(""), 1 << 20), Err(LayoutRefused::Label(0)));
    let empty = LayoutNews { buffers: Vec::new(), ..news("empty") };
    assert!(matches!(manager.add_layout(empty, 1 << 20), Err(LayoutRefused::Wrong(_))));
    assert!(
        matches!(manager.add_layout(news("short"), 100), Err(LayoutRefused::Wrong(_))),
        "it ends behind its region"
    );
    for number in 1..256 {
        manager.add_layout(news(&number.to_string()), 1 << 20).unwrap();
    }
    assert_eq!(manager.add_layout(news("one more"), 1 << 20), Err(LayoutRefused::TooMany));
}

#[test]
fn what_transfers_came_to_lately_decides_how_much_memory_is_asked_for_where_that_was_set() {
    let config = |quantile| {
        let mut config = penstock_core::Config::default();
        (config.legs.default_tokens, config.legs.quantile_percent) = (48, quantile);
        Settings::of(&config)
    };
    for (quantile, then) in [(0, 48), (100, 1)] {
        let mut manager = TransferManager::new(config(quantile), [11, 1, 2]);
        manager.handle(Event::Joined { peer: PEER, name: EngineName::new("prefill-0").unwrap() }, NOW);
        manager.handle(able(1, 1, 5), NOW);
        let layout = manager.add_layout(news("kv"), 1 << 20).unwrap();
        let consume = |manager: &mut TransferManager, name: u8| {
            let how = Consume {
                layout,
                rank: (0, 1),
                sources: vec![(0, PEER)],
                begin: 0,
                tail: None,
                is_pull: false,
                is_resumable: false,
                memory: None,
                within: std::time::Duration::from_secs(1),
                urgency: crate::action::Urgency::Bulk,
                trace: Vec::new(),
            };
            let request = RequestId::new(&format!("cmpl-{name}")).unwrap();
            manager.consume(TransferId::from_bytes([name; 16]), request, how, NOW).unwrap()
        };
        let first = consume(&mut manager, 1);
        assert_eq!(manager.wanted(first), Some(48), "nothing is known yet");
        let head = TransferHead { transfer: TransferId::from_bytes([1; 16]), side: Side::Source, rank: 0, ranks: 1 };
        let seal = ControlMessage::EndOfData(penstock_session::control::EndOfData {
            head,
            parts: 0,
            tokens: 0,
            legs: 0,
            rows: Vec::new().into(),
        });
        manager.handle(Event::Said { peer: PEER, said: seal }, NOW);
        let second = consume(&mut manager, 2);
        assert_eq!(manager.wanted(second), Some(then), "of {quantile} percent");
    }
}

/// What a sink says of a transfer that nobody has begun here.
fn claim_and_abort(transfer: TransferId) -> [ControlMessage; 2] {
    let head = TransferHead { transfer, side: Side::Sink, rank: 0, ranks: 1 };
    [
        ControlMessage::PullRequest(PullRequest { head, from: 0, trace: Vec::new() }),
        ControlMessage::Abort(Abort { head, number: 7 }),
    ]
}

#[test]
fn who_waits_for_a_transfer_that_nobody_begins_hears_so_though_nothing_else_happens() {
    let (mut manager, transfer) = (manager(), TransferId::from_bytes([1; 16]));
    manager.handle(able(1, 1, 5), NOW);
    said(&mut manager);
    let [claim, _] = claim_and_abort(transfer);
    manager.handle(Event::Said { peer: PEER, said: claim }, NOW);
    let due = NOW + Settings::default().transfers.early.age;
    assert_eq!((manager.deadline(), manager.metrics().transfers.early), (due, 1));
    manager.expire(due);
    let answers = said(&mut manager);
    let [ControlMessage::Fail(fail)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!((fail.head.transfer, fail.head.ranks, fail.head.side), (transfer, 0, Side::Source));
    assert_eq!((manager.metrics().transfers.early, manager.deadline()), (0, Timestamp::NEVER));
}

#[test]
fn a_sink_that_gives_up_before_its_source_begins_has_its_answer_at_once_and_then_nothing_moves() {
    let (mut manager, transfer) = (manager(), TransferId::from_bytes([1; 16]));
    manager.handle(able(1, 1, 5), NOW);
    let layout = manager.add_layout(news("kv"), 1 << 20).unwrap();
    said(&mut manager);
    let [claim, abort] = claim_and_abort(transfer);
    manager.handle(Event::Said { peer: PEER, said: claim.clone() }, NOW);
    manager.handle(Event::Said { peer: PEER, said: abort }, NOW);
    let answers = said(&mut manager);
    let [ControlMessage::AbortAck(ack)] = answers.as_slice() else { panic!("{answers:?}") };
    assert!(ack.is_drained && ack.number == 7 && ack.head.transfer == transfer);
    // Of one that has ended here nothing is left: who speaks of it hears that, too.
    let over = TransferId::from_bytes([2; 16]);
    let how = Produce {
        layout,
        rank: (0, 1),
        sinks: Sinks::Sharing(1),
        is_by_layer: false,
        is_lent: false,
        is_resumable: false,
        lease_ttl: None,
        once: None,
        within: std::time::Duration::from_secs(1),
        urgency: crate::action::Urgency::Bulk,
    };
    let key = manager.produce(over, RequestId::new("cmpl-a").unwrap(), how, NOW).unwrap();
    manager.release(key, NOW);
    said(&mut manager);
    for words in claim_and_abort(over) {
        manager.handle(Event::Said { peer: PEER, said: words }, NOW);
    }
    let answers = said(&mut manager);
    assert!(matches!(answers.as_slice(), [ControlMessage::Fail(_), ControlMessage::AbortAck(_)]), "{answers:?}");
    assert_eq!(manager.check(), Ok(()));
}
