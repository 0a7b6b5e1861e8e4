//! Bounds of what is kept, children that wait, and parents of other engines.

use std::time::Duration;

use penstock_core::{Cause, Epoch};
use penstock_flows::action::{Action, BlocksRef};
use penstock_flows::continuation::{
    Asks, Child, Group, Isolation, Miss, Parent, Pin, PinError, PinSettings, Terms, Waited,
};
use penstock_flows::event::Event;
use penstock_session::PeerKey;
use penstock_session::control::{BLOCKS_MAX, ControlMessage, PinAnswer, PinAsk};

use crate::lives::parents::*;
use crate::lives::{DEVICE, at_ms, id};

const TERMS: Terms = Terms { lease: 40, ttl_ms: 2000, layout: 6, layout_generation: 2 };
const STRANGER: PeerKey = PeerKey { peer_index: 9, epoch: Epoch(1) };

#[test]
fn the_oldest_pin_makes_room_and_never_one_in_use() {
    let mut keeper = Keeper::new(PinSettings { count: 3, ..PinSettings::default() });
    let (first, _) = keeper.pin(parent("first", 700)).unwrap();
    let (second, second_ticket) = keeper.pin(parent("second", 700)).unwrap();
    let child = keeper.inherit("b", "first", 705).unwrap();
    keeper.pin(parent("third", 700)).unwrap();
    keeper.pin(parent("fourth", 700)).unwrap();
    assert_eq!(keeper.freed(), [second_ticket], "the first one is older, and in use");
    assert_eq!((keeper.pins.state(first), keeper.pins.state(second)), (Some(Pin::Used), None));
    keeper.inherit("b", "third", 705).unwrap();
    keeper.inherit("b", "fourth", 705).unwrap();
    let before = keeper.pins.metrics();
    let refused = keeper.pin(parent("fifth", 700)).unwrap_err();
    assert!(matches!(refused, PinError::InUse { .. }), "{refused}");
    assert_eq!((keeper.pins.metrics(), keeper.freed()), (before, vec![]), "nothing changes");
    assert!(keeper.pins.blob(&id("fifth"), &isolation(1)).is_none());
    keeper.pins.give_up(child.key);
    keeper.pin(parent("fifth", 700)).unwrap();
    assert_eq!(keeper.pins.metrics().evicted, 2);
}

#[test]
fn bytes_are_bounded_and_what_can_never_fit_evicts_nobody() {
    // A parent of 700 tokens has 44 blocks of 1000 bytes.
    let mut keeper = Keeper::new(PinSettings { bytes: 100_000, ..PinSettings::default() });
    let tickets: Vec<BlocksRef> = ["a", "b", "c"].map(|name| keeper.pin(parent(name, 700)).unwrap().1).to_vec();
    assert_eq!((keeper.freed(), keeper.pins.metrics().bytes), (vec![tickets[0]], 88_000));
    let refused = keeper.pin(parent("huge", 16 * 101)).unwrap_err();
    assert_eq!(refused, PinError::TooLarge { bytes: 101_000, most: 100_000 });
    assert_eq!(keeper.pins.metrics().pins, 2);
    // Bytes that are more than can be counted are too many, and no small number.
    let mut wrong = parent("wrong", 700);
    wrong.groups[0].block_bytes = u64::MAX / 2;
    assert_eq!(keeper.pin(wrong), Err(PinError::TooLarge { bytes: u64::MAX, most: 100_000 }));
    keeper.pin(parent("all", 1600)).unwrap();
    assert_eq!((keeper.freed(), keeper.pins.metrics().bytes), (tickets[1..].to_vec(), 100_000));
}

#[test]
fn what_makes_no_sense_is_not_kept() {
    let mut keeper = Keeper::new(PinSettings { blob_bytes: 8, ..PinSettings::default() });
    let with = |change: fn(&mut Parent)| {
        let mut parent = parent("a", 700);
        change(&mut parent);
        parent
    };
    let cases: [(Parent, PinError); 6] = [
        (with(|it| it.groups.clear()), PinError::Groups { found: 0 }),
        (with(|it| it.groups = vec![Group::default(); 65]), PinError::Groups { found: 65 }),
        (with(|it| it.groups[0].block_tokens = 0), PinError::EmptyBlocks { group: 0 }),
        (with(|it| it.groups[0].hashes = vec![1; 45]), PinError::Hashes { group: 0, hashes: 45, blocks: 44 }),
        (with(|it| it.isolation.media = vec![[0; 16]; 1025]), PinError::Media { found: 1025 }),
        (with(|it| it.blob = vec![0; 9]), PinError::BlobTooLarge { found: 9, most: 8 }),
    ];
    for (parent, error) in cases {
        assert_eq!(keeper.pin(parent).map(|_| ()), Err(error));
    }
    assert!(keeper.pins.is_empty() && keeper.freed().is_empty());
}

#[test]
fn a_parent_of_the_same_name_takes_the_place_of_the_one_before() {
    let mut keeper = Keeper::new(PinSettings::default());
    let (_, unused) = keeper.pin(parent("a", 700)).unwrap();
    let (used, _) = keeper.pin(parent("a", 500)).unwrap();
    assert_eq!(keeper.freed(), [unused]);
    let child = keeper.inherit("b", "a", 705).unwrap();
    let (newest, _) = keeper.pin(parent("a", 300)).unwrap();
    assert_eq!((keeper.pins.state(used), keeper.pins.state(newest)), (Some(Pin::Doomed), Some(Pin::Held)));
    assert_eq!((child.tokens, keeper.inherit("c", "a", 705).unwrap().tokens), (496, 288));
    assert_eq!(keeper.freed(), []);
    keeper.pins.give_up(child.key);
    assert_eq!((keeper.freed().len(), keeper.pins.state(used)), (1, None));
}

#[test]
fn hashes_that_are_given_are_compared() {
    let mut keeper = Keeper::new(PinSettings::default());
    let mut checked = parent("a", 700);
    checked.groups[0].hashes = (0..43).collect();
    keeper.pin(checked).unwrap();
    let with = |hashes: Option<Vec<u64>>| {
        let mut ask = ask("b", "a", 705);
        ask.hashes = hashes.map(|hashes| vec![hashes]);
        ask
    };
    assert_eq!(keeper.take(&with(None)), Err(Miss::HashMissing { group: 0, block: 0 }));
    assert_eq!(keeper.take(&with(Some((0..42).collect()))), Err(Miss::HashMissing { group: 0, block: 42 }));
    let mut other: Vec<u64> = (0..43).collect();
    other[40] = 7;
    assert_eq!(keeper.take(&with(Some(other))), Err(Miss::HashDiffers { group: 0, block: 40 }));
    assert_eq!(keeper.pins.metrics().uses, 0, "a refusal takes nothing");
    assert_eq!(keeper.take(&with(Some((0..44).collect()))).unwrap().tokens, 688);
}

#[test]
fn a_child_waits_for_a_running_parent_until_its_time_is_over() {
    let mut keeper = Keeper::new(PinSettings { waiters: 3, ..PinSettings::default() });
    keeper.pins.runs(id("a"), isolation(1)).unwrap();
    keeper.pins.runs(id("gone"), isolation(1)).unwrap();
    let (now, until) = (keeper.now, keeper.now + Duration::from_secs(1));
    let mut wait = |child: &str, of: &str| match keeper.pins.inherit_or_wait(ask(child, of, 705), until, now) {
        Waited::Later(key) => key,
        Waited::Now(answer) => panic!("{answer:?}"),
    };
    let (waits, leaves, disappointed) = (wait("b", "a"), wait("c", "a"), wait("d", "gone"));
    let Waited::Later(again) = keeper.pins.inherit_or_wait(ask("b", "a", 705), until, now) else { panic!() };
    assert_eq!((again == waits, keeper.pins.metrics().waiting), (false, 3), "who waits already waits once");
    keeper.pins.leave(waits);
    assert_eq!(keeper.pins.metrics().waiting, 3, "whoever asked before leaves, and nobody else");
    let crowded = keeper.pins.inherit_or_wait(ask("e", "a", 705), until, now);
    assert_eq!(crowded, Waited::Now(Err(Miss::Crowded)), "not everybody can wait");
    let foreign = penstock_flows::continuation::Ask { isolation: isolation(9), ..ask("f", "a", 705) };
    assert_eq!(keeper.pins.inherit_or_wait(foreign, until, now), Waited::Now(Err(Miss::NoParent)));
    assert_eq!(keeper.pins.deadline(), Some(until));

    keeper.pin(parent("a", 700)).unwrap();
    keeper.pins.ended(&id("gone"), now);
    keeper.pins.leave(leaves);
    let (key, answer) = keeper.pins.next_answer().unwrap();
    assert_eq!((key, answer.unwrap().tokens), (again, 688));
    assert_eq!(keeper.pins.next_answer(), Some((disappointed, Err(Miss::NoParent))));
    assert_eq!((keeper.pins.next_answer(), keeper.pins.metrics().uses), (None, 1), "who has left has nothing");

    keeper.pins.runs(id("slow"), isolation(1)).unwrap();
    let Waited::Later(late) = keeper.pins.inherit_or_wait(ask("b", "slow", 705), until, now) else { panic!() };
    keeper.pass(Duration::from_secs(1));
    assert_eq!(keeper.pins.next_answer(), Some((late, Err(Miss::Running))));
    assert_eq!(keeper.pins.metrics().waiting, 0);
}

#[test]
fn so_many_children_and_no_more() {
    let mut keeper = Keeper::new(PinSettings { uses: 2, running: 1, ..PinSettings::default() });
    keeper.pin(parent("a", 700)).unwrap();
    let first = keeper.inherit("b", "a", 705).unwrap();
    keeper.inherit("c", "a", 705).unwrap();
    assert_eq!(keeper.inherit("d", "a", 705), Err(Miss::Crowded));
    assert_eq!(keeper.inherit("b", "a", 705), Err(Miss::Crowded), "who asks twice counts twice");
    keeper.pins.give_up(first.key);
    assert!(keeper.inherit("d", "a", 705).is_ok());
    keeper.pins.runs(id("x"), isolation(1)).unwrap();
    assert_eq!(keeper.pins.runs(id("y"), isolation(1)), Err(PinError::TooManyRunning { most: 1 }));
}

/// Two that ask for the same child, such as one that was preempted in the middle of asking, knew only one use: the first that let go of it
/// took it from the other.
#[test]
fn a_child_that_asks_twice_has_its_blocks_until_both_were_given_back() {
    let mut keeper = Keeper::new(PinSettings::default());
    let (pin, ticket) = keeper.pin(parent("a", 700)).unwrap();
    let first = keeper.inherit("b", "a", 705).unwrap();
    let second = keeper.inherit("b", "a", 353).unwrap();
    assert_eq!((first.tokens, second.tokens, keeper.pins.metrics().uses), (688, 352, 2));
    let plan = |keeper: &Keeper, key| keeper.pins.tail_plan(key, &[vec![90]]).unwrap();
    assert_eq!((plan(&keeper, first.key)[0].tokens, plan(&keeper, second.key).len()), (11, 0), "each has its own end");
    keeper.pass(TTL);
    assert!(keeper.pins.give_up(first.key) && !keeper.pins.give_up(first.key));
    assert_eq!((keeper.freed(), keeper.pins.state(pin)), (vec![], Some(Pin::Doomed)), "the other one has it still");
    assert!(keeper.pins.give_up(second.key));
    assert_eq!((keeper.freed(), keeper.pins.state(pin)), (vec![ticket], None));
    // Who gives back whatever a child has need not know how often it has asked.
    keeper.pin(parent("a", 700)).unwrap();
    for _ in 0..3 {
        keeper.inherit("b", "a", 705).unwrap();
    }
    assert_eq!(keeper.pins.give_up_all(&Child::Request(id("b"))), 3);
    assert_eq!(keeper.pins.metrics().uses, 0);
}

fn pin_ask(parent: &str, isolation: &Isolation, tokens: u64) -> PinAsk {
    PinAsk { ask: 1, parent: parent.to_owned(), isolation: isolation.digest(), tokens }
}

fn answer_of(said: ControlMessage) -> PinAnswer {
    let ControlMessage::PinAnswer(answer) = said else { panic!("{said:?}") };
    answer
}

#[test]
fn a_parent_is_lent_to_another_engine_until_its_lease_is_over() {
    let mut keeper = Keeper::new(PinSettings::default());
    let (pin, ticket) = keeper.pin(parent("a", 700)).unwrap();
    let mut asks = Asks::new(4);
    let key = asks.ask(DEVICE, &id("a"), &isolation(1), 705, TTL, at_ms(1)).unwrap();
    let Some(Action::Say { peer: DEVICE, said: ControlMessage::PinAsk(ask) }) = asks.poll_action() else { panic!() };
    assert_eq!(ask, pin_ask("a", &isolation(1), 705));

    let (said, lent) = keeper.pins.answer_peer(DEVICE, &ask, TERMS, keeper.now);
    assert_eq!(lent.unwrap().tokens, 688);
    asks.handle(&Event::Said { peer: STRANGER, said: said.clone() });
    assert_eq!((asks.next_answer(), asks.strays()), (None, 1), "only who was asked may answer");
    asks.handle(&Event::Said { peer: DEVICE, said: said.clone() });
    let (of, lent) = asks.next_answer().unwrap();
    let lent = lent.unwrap();
    assert_eq!((of, lent.tokens, lent.blocks.len(), lent.terms), (key, 688, 43, TERMS));
    asks.handle(&Event::Said { peer: DEVICE, said });
    assert_eq!((asks.next_answer(), asks.strays()), (None, 2), "once");

    // It is used as by any child, until the lender says that the lease is over.
    keeper.pass(TTL);
    assert_eq!((keeper.pins.state(pin), keeper.freed()), (Some(Pin::Doomed), vec![]));
    assert!(!keeper.pins.lease_over(STRANGER, TERMS.lease), "leases are of one peer");
    assert!(keeper.pins.lease_over(DEVICE, TERMS.lease));
    assert_eq!((keeper.freed(), keeper.pins.lease_over(DEVICE, TERMS.lease)), (vec![ticket], false));
}

#[test]
fn another_engine_learns_nothing_of_what_is_not_its_own() {
    let mut keeper = Keeper::new(PinSettings::default());
    let salted = Isolation { salt: [3; 16], ..isolation(1) };
    keeper.pin(Parent { isolation: salted.clone(), ..parent("a", 700) }).unwrap();
    keeper.pin(Parent { groups: vec![group(700, 0); 2], ..parent("two", 700) }).unwrap();
    keeper.pins.runs(id("running"), isolation(1)).unwrap();
    let long = "x".repeat(300);
    let cases = [
        (pin_ask("a", &isolation(1), 705), Miss::NoParent),
        (pin_ask("a", &isolation(9), 705), Miss::NoParent),
        (pin_ask("never", &isolation(1), 705), Miss::NoParent),
        (pin_ask("", &isolation(1), 705), Miss::NoParent),
        (pin_ask(&long, &isolation(1), 705), Miss::NoParent),
        (pin_ask("running", &isolation(1), 705), Miss::Running),
        (pin_ask("two", &isolation(1), 705), Miss::SeveralGroups),
        (pin_ask("a", &salted, 16), Miss::NothingWhole),
        (pin_ask("a", &salted, 0), Miss::NothingWhole),
    ];
    for (ask, miss) in cases {
        let (said, lent) = keeper.pins.answer_peer(DEVICE, &ask, TERMS, keeper.now);
        let answer = answer_of(said);
        assert_eq!((Miss::of_code(answer.code), answer.lease, answer.blocks, lent), (miss, 0, vec![], None), "{ask:?}");
    }
    assert_eq!((keeper.pins.metrics().uses, keeper.pins.metrics().foreign), (0, 2));
    let (said, _) = keeper.pins.answer_peer(DEVICE, &pin_ask("a", &salted, u64::MAX), TERMS, keeper.now);
    assert_eq!(answer_of(said).tokens, 688, "a child of any length");
    keeper.pins.lease_over(DEVICE, TERMS.lease);
    assert_eq!(keeper.pins.metrics().uses, 0);
}

#[test]
fn other_engines_cannot_keep_this_ones_children_from_inheriting() {
    let mut keeper = Keeper::new(PinSettings { lent: 2, ..PinSettings::default() });
    keeper.pin(parent("a", 700)).unwrap();
    let mut codes = Vec::new();
    for lease in [1, 2, 3] {
        let terms = Terms { lease, ..TERMS };
        let (said, _) = keeper.pins.answer_peer(DEVICE, &pin_ask("a", &isolation(1), 705), terms, keeper.now);
        codes.push(answer_of(said).code);
        keeper.pins.check_counts().unwrap();
    }
    assert_eq!(codes, [0, 0, Miss::Crowded.code()]);
    assert!(keeper.inherit("b", "a", 705).is_ok());
    keeper.pins.lease_over(DEVICE, 1);
    let terms = Terms { lease: 3, ..TERMS };
    let (said, _) = keeper.pins.answer_peer(DEVICE, &pin_ask("a", &isolation(1), 705), terms, keeper.now);
    assert_eq!(answer_of(said).code, 0);
    keeper.pins.check_counts().unwrap();
}

#[test]
fn an_answer_names_no_more_blocks_than_a_frame_has_room_for() {
    let mut keeper = Keeper::new(PinSettings::default());
    let blocks = BLOCKS_MAX as u64 + 10;
    keeper.pin(parent("a", blocks * 16)).unwrap();
    let (said, _) = keeper.pins.answer_peer(DEVICE, &pin_ask("a", &isolation(1), u64::MAX), TERMS, keeper.now);
    let answer = answer_of(said);
    assert_eq!((answer.blocks.len(), answer.tokens), (BLOCKS_MAX, BLOCKS_MAX as u64 * 16));
    assert_eq!(keeper.inherit("b", "a", u64::MAX).unwrap().tokens, (blocks - 1) * 16, "at home there is no such bound");
}

#[test]
fn a_question_is_answered_once_by_sense_by_loss_or_by_time() {
    let mut asks = Asks::new(6);
    let within = Duration::from_secs(1);
    let mut ask = |peer: PeerKey| asks.ask(peer, &id("a"), &isolation(1), 705, within, at_ms(1)).unwrap();
    let keys = [ask(DEVICE), ask(DEVICE), ask(DEVICE), ask(DEVICE), ask(STRANGER), ask(DEVICE)];
    assert_eq!(asks.ask(DEVICE, &id("a"), &isolation(1), 705, within, at_ms(1)), Err(Miss::Crowded));
    let Terms { lease, ttl_ms, layout, layout_generation } = TERMS;
    let good =
        PinAnswer { ask: 1, code: 0, lease, ttl_ms, layout, layout_generation, tokens: 64, blocks: vec![1, 2, 3, 4] };
    let senseless = [
        PinAnswer { ask: 1, tokens: 705, ..good.clone() },
        PinAnswer { ask: 2, tokens: 0, ..good.clone() },
        PinAnswer { ask: 3, blocks: vec![], ..good.clone() },
        PinAnswer { ask: 4, tokens: 63, ..good },
    ];
    for answer in senseless {
        asks.handle(&Event::Said { peer: DEVICE, said: ControlMessage::PinAnswer(answer) });
    }
    for key in &keys[..4] {
        assert_eq!(asks.next_answer(), Some((*key, Err(Miss::Senseless))));
    }
    asks.handle(&Event::Left { peer: STRANGER, cause: Cause::PeerLost });
    assert_eq!(asks.next_answer(), Some((keys[4], Err(Miss::PeerLost))));
    assert_eq!(asks.deadline(), Some(at_ms(1001)));
    asks.expire(at_ms(1000));
    assert_eq!(asks.next_answer(), None);
    asks.expire(at_ms(1001));
    assert_eq!((asks.next_answer(), asks.deadline()), (Some((keys[5], Err(Miss::Late))), None));
}

#[test]
fn every_reason_that_is_said_has_one_number() {
    for code in 1..=u16::MAX {
        assert_eq!(Miss::of_code(code).code(), code);
    }
    assert_eq!((Miss::NoParent.code(), Miss::of_code(8)), (1, Miss::Other(8)), "numbers stay what they are");
    assert_eq!(Miss::OtherSalt.code(), Miss::NoParent.code(), "what is nobody's business is not said");
}
