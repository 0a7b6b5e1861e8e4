//! Requests, swaps and pins against models that are as simple as can be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_core::Cause;
use penstock_flows::action::{Action, BlocksRef, MoveId, WatchId};
use penstock_flows::continuation::{Child, CopyTail, Group, Inherited, PinSettings, UseKey, whole_tokens};
use penstock_flows::event::Event;
use penstock_flows::lifecycle::{BlockRef, DeferSite, SchedulerReport, SwapKey, SwapWay, Verdict};
use proptest::prelude::*;

use crate::lives::parents::{Keeper, TTL, parent};
use crate::lives::*;

/// What may be done to one of four requests.
#[derive(Debug, Clone)]
enum Deed {
    Open {
        sequences: u32,
    },
    Allocate {
        blocks: usize,
    },
    Grow,
    Say(SchedulerReport),
    Fork,
    EndSequence {
        sequence: u32,
    },
    SwapOut,
    SwapIn,
    Commit,
    RollBack,
    /// The oldest move ends so.
    End {
        is_good: bool,
        is_open: bool,
    },
    /// The oldest peer that is watched is quiet.
    Quiet,
    Pass {
        ms: u64,
    },
}

fn deed() -> impl Strategy<Value = Deed> {
    let said = [
        SchedulerReport::Queued,
        SchedulerReport::Active,
        SchedulerReport::Finished,
        SchedulerReport::SwapOutPrepared,
        SchedulerReport::SwapOutCommitted,
        SchedulerReport::SwapOutRolledBack { is_lost: false },
        SchedulerReport::SwapOutRolledBack { is_lost: true },
        SchedulerReport::SwapInCommitted,
        SchedulerReport::SwapInRolledBack { is_lost: false },
        SchedulerReport::Rolled(DeferSite::ScheduleRollback),
        SchedulerReport::Rolled(DeferSite::NoSwapBuffers),
        SchedulerReport::Rolled(DeferSite::SwapOutTimeout),
        SchedulerReport::Rolled(DeferSite::SwapInTimeout),
        SchedulerReport::Removed,
        SchedulerReport::Aborted,
    ];
    prop_oneof![
        2 => (1..3_u32).prop_map(|sequences| Deed::Open { sequences }),
        4 => (1..4_usize).prop_map(|blocks| Deed::Allocate { blocks }),
        2 => Just(Deed::Grow),
        6 => proptest::sample::select(said.to_vec()).prop_map(Deed::Say),
        1 => Just(Deed::Fork),
        2 => (0..4_u32).prop_map(|sequence| Deed::EndSequence { sequence }),
        3 => Just(Deed::SwapOut),
        3 => Just(Deed::SwapIn),
        2 => Just(Deed::Commit),
        2 => Just(Deed::RollBack),
        4 => (any::<bool>(), any::<bool>()).prop_map(|(is_good, is_open)| Deed::End { is_good, is_open }),
        2 => Just(Deed::Quiet),
        1 => (0..700_u64).prop_map(|ms| Deed::Pass { ms }),
    ]
}

/// What is known from outside: which lives there were, and which tickets may be freed.
#[derive(Default)]
struct Outside {
    opened: BTreeSet<(String, u64)>,
    removed: BTreeSet<(String, u64)>,
    swaps: Vec<SwapKey>,
    moves: Vec<(MoveId, [BlocksRef; 2])>,
    watches: Vec<(WatchId, [BlocksRef; 2])>,
    /// Lent to swaps whose move may still land.
    at_risk: BTreeSet<BlocksRef>,
    lent: BTreeSet<BlocksRef>,
    freed: BTreeSet<BlocksRef>,
    last_ended: Option<[BlocksRef; 2]>,
    tickets: u64,
}

struct World {
    node: Node,
    outside: Outside,
}

impl World {
    fn new() -> Self {
        Self { node: Node::new(), outside: Outside::default() }
    }

    fn act(&mut self, name: &str, deed: &Deed) {
        let Self { node, outside } = self;
        let known = node.generations.contains_key(&id(name));
        match deed {
            Deed::Open { sequences } => {
                if let Ok(generation) = node.lives.tracker_mut().open(id(name), *sequences) {
                    node.generations.insert(id(name), generation);
                    assert!(outside.opened.insert((name.to_owned(), generation)), "a generation came twice");
                }
            }
            Deed::End { is_good, is_open } => {
                if outside.moves.is_empty() {
                    return;
                }
                let (id, tickets) = outside.moves.remove(0);
                outside.last_ended = Some(tickets);
                if !is_open {
                    tickets.iter().for_each(|ticket| assert!(outside.at_risk.remove(ticket)));
                }
                let result = if *is_good { Ok(4096) } else { Err(Cause::Cancelled) };
                node.handle(Event::Ended { id, result, is_open_there: *is_open });
            }
            Deed::Quiet => {
                if outside.watches.is_empty() {
                    return;
                }
                let (id, tickets) = outside.watches.remove(0);
                tickets.iter().for_each(|ticket| assert!(outside.at_risk.remove(ticket)));
                node.handle(Event::Quiet { id });
            }
            Deed::Pass { ms } => node.pass(Duration::from_millis(*ms)),
            Deed::Commit | Deed::RollBack => {
                let Some(key) = outside.swaps.first().copied() else { return };
                let result = match deed {
                    Deed::Commit => node.lives.swap_commit(key, node.now).map(|_| ()),
                    _ => node.lives.swap_roll_back(key, node.now),
                };
                if result.is_ok() || node.lives.swap_state(key).is_none() {
                    outside.swaps.remove(0);
                }
            }
            _ if !known => {}
            Deed::Allocate { blocks } => {
                let report = |fresh| SchedulerReport::Allocated { fresh, cached: vec![] };
                with_fresh(node, name, *blocks, report);
            }
            Deed::Grow => with_fresh(node, name, 1, |blocks| SchedulerReport::Grown { blocks }),
            Deed::Say(report) => {
                let _ = node.try_say(name, report);
            }
            Deed::Fork => {
                let _ = node.try_say(name, &SchedulerReport::SequenceForked { sequence: 3 });
            }
            Deed::EndSequence { sequence } => {
                let _ = node.try_say(name, &SchedulerReport::SequenceEnded { sequence: *sequence });
            }
            Deed::SwapOut | Deed::SwapIn => self.swap(name, matches!(deed, Deed::SwapIn)),
        }
        self.look();
    }

    fn swap(&mut self, name: &str, is_in: bool) {
        let Self { node, outside } = self;
        let device = if is_in { fresh_blocks(node, 2) } else { node.device(name) };
        let Some(device) = Some(device).filter(|device| !device.is_empty()) else { return };
        let tickets = [BlocksRef(outside.tickets), BlocksRef(outside.tickets + 1)];
        outside.tickets += 2;
        let way = if is_in { SwapWay::In } else { SwapWay::Out };
        let mut ask = ask(way, &device);
        [ask.source, ask.target] = tickets;
        let generation = node.generations[&id(name)];
        if let Ok(key) = node.lives.swap_begin(&id(name), generation, ask, node.now) {
            outside.swaps.push(key);
            outside.at_risk.extend(tickets);
            outside.lent.extend(tickets);
        }
        outside.last_ended = Some(tickets);
    }

    /// Looks at everything that has come out.
    fn look(&mut self) {
        let Self { node, outside } = self;
        node.lives.check().unwrap();
        for action in node.actions() {
            match action {
                Action::Move { id, .. } => outside.moves.push((id, outside.last_ended.expect("a swap was just begun"))),
                Action::Watch { id, .. } => {
                    outside.watches.push((id, outside.last_ended.expect("a move has just ended")));
                }
                Action::Free { ticket } => {
                    assert!(!outside.at_risk.contains(&ticket), "{ticket:?} was freed while bytes could land");
                    assert!(outside.lent.contains(&ticket), "{ticket:?} was nobody's to free");
                    assert!(outside.freed.insert(ticket), "{ticket:?} was freed twice");
                }
                Action::Quarantine { ticket, .. } => assert!(outside.at_risk.contains(&ticket)),
                _ => {}
            }
        }
        for removed in node.removed() {
            let life = (removed.request.as_str().to_owned(), removed.generation);
            assert!(outside.opened.contains(&life), "{life:?} never lived");
            assert!(outside.removed.insert(life), "it was removed twice");
        }
        while node.lives.next_news().is_some() {}
    }
}

/// Blocks that no request and no swap has; the allocator of the model knows of uses only.
fn fresh_blocks(node: &mut Node, count: usize) -> Vec<BlockRef> {
    let held: BTreeSet<u32> = ["a", "b", "c", "d"]
        .iter()
        .filter(|name| node.generations.contains_key(&id(name)))
        .flat_map(|name| node.device(name))
        .map(|block| block.index)
        .collect();
    let free = (0..64).filter(|index| !held.contains(index)).take(count);
    free.map(|index| {
        node.blocks.generations[index as usize] += 1;
        BlockRef { index, generation: node.blocks.generations[index as usize] }
    })
    .collect()
}

fn with_fresh(node: &mut Node, name: &str, count: usize, report: impl Fn(Vec<BlockRef>) -> SchedulerReport) {
    let fresh = fresh_blocks(node, count);
    let _ = node.try_say(name, &report(fresh));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever is reported in whatever order: one removal for each life, never two, and always one at its end; no ticket is freed twice
    /// or while bytes can land in it, and nothing is left when all moves have ended.
    #[test]
    fn any_order_gives_one_removal_for_each_life(deeds in proptest::collection::vec((0..4_usize, deed()), 1..120)) {
        let mut world = World::new();
        for (who, deed) in &deeds {
            world.act(["a", "b", "c", "d"][*who], deed);
        }
        for name in ["a", "b", "c", "d"] {
            if world.node.generations.contains_key(&id(name)) {
                world.node.say(name, SchedulerReport::Aborted);
                prop_assert_eq!(world.node.say(name, SchedulerReport::Aborted), Verdict::NoOp);
            }
        }
        world.look();
        prop_assert_eq!(&world.outside.removed, &world.outside.opened, "every life that was opened was removed");
        prop_assert_eq!(world.node.lives.tracker().deferred().count(), 0);
        while !world.outside.moves.is_empty() {
            world.act("a", &Deed::End { is_good: false, is_open: true });
        }
        while !world.outside.watches.is_empty() {
            world.act("a", &Deed::Quiet);
        }
        prop_assert!(world.node.lives.is_empty(), "nothing is left");
        prop_assert_eq!(world.node.lives.swaps(), (0, 0));
    }
}

/// One of 32 beams does something.
#[derive(Debug, Clone, Copy)]
enum Beam {
    Inherit,
    /// It could not be allocated, was aborted, or goes on without its parent.
    GiveUp,
    /// It gives back what it has given back before.
    GiveUpOld,
    Abort,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// One pin serves 32 beams of three steps each, with aborts at random: the model is a list of keys for each name.
    #[test]
    fn one_pin_serves_32_beams_of_3_steps_and_all_counts_end_where_they_began(
        deeds in proptest::collection::vec(
            (0..32_usize, 0..3_usize, proptest::sample::select(vec![Beam::Inherit, Beam::Inherit, Beam::GiveUp, Beam::GiveUpOld, Beam::Abort])),
            0..400,
        ),
        expires_at in proptest::option::of(0..400_usize),
    ) {
        let mut keeper = Keeper::new(PinSettings::default());
        let (pin, ticket) = keeper.pin(parent("thinking", 700)).unwrap();
        let before = keeper.pins.metrics();
        let mut model: BTreeMap<(usize, usize), Vec<UseKey>> = BTreeMap::new();
        let mut old: BTreeMap<(usize, usize), UseKey> = BTreeMap::new();
        let mut is_expired = false;
        for (at, (beam, step, deed)) in deeds.into_iter().enumerate() {
            if expires_at == Some(at) {
                keeper.pass(TTL);
                is_expired = true;
            }
            let (name, place) = (format!("beam-{beam}-{step}"), (beam, step));
            let tokens = 705 + step as u64;
            match deed {
                Beam::Inherit => match keeper.inherit(&name, "thinking", tokens) {
                    Ok(Inherited { tokens, key, .. }) => {
                        prop_assert!(!is_expired && tokens == 688);
                        model.entry(place).or_default().push(key);
                    }
                    Err(miss) => prop_assert!(is_expired, "{miss}"),
                },
                Beam::GiveUp => {
                    if let Some(key) = model.get_mut(&place).and_then(Vec::pop) {
                        prop_assert!(keeper.pins.give_up(key));
                        old.insert(place, key);
                    }
                }
                Beam::GiveUpOld => {
                    if let Some(key) = old.get(&place) {
                        prop_assert!(!keeper.pins.give_up(*key));
                    }
                }
                Beam::Abort => {
                    let had = model.remove(&place).unwrap_or_default().len();
                    prop_assert_eq!(keeper.pins.give_up_all(&Child::Request(id(&name))), had);
                }
            }
            keeper.pins.check_counts().unwrap();
            let uses = model.values().map(Vec::len).sum();
            prop_assert_eq!(keeper.pins.metrics().uses, uses);
            prop_assert_eq!(keeper.pins.state(pin).is_none(), is_expired && uses == 0);
        }
        for key in model.into_values().flatten() {
            prop_assert!(keeper.pins.give_up(key));
        }
        let after = keeper.pins.metrics();
        if is_expired {
            prop_assert_eq!((keeper.freed(), keeper.pins.is_empty(), after.bytes), (vec![ticket], true, 0));
        } else {
            prop_assert_eq!((after.pins, after.bytes, after.uses, after.used), (before.pins, before.bytes, 0, 0));
            prop_assert_eq!(keeper.freed(), vec![]);
            keeper.pass(TTL);
            prop_assert_eq!(keeper.freed(), vec![ticket]);
        }
    }

    /// The most that ends a block in all groups, found by trying every number.
    #[test]
    fn whole_tokens_are_what_trying_every_number_gives(
        shapes in proptest::collection::vec((1..40_u32, 0..30_usize, 0..1200_u64), 1..4),
        child in 0..900_u64,
        fresh in 0..40_usize,
    ) {
        let groups: Vec<Group> = shapes.iter().map(|(block_tokens, blocks, computed)| {
            let computed = (*computed).min(*blocks as u64 * u64::from(*block_tokens));
            Group { block_tokens: *block_tokens, blocks: (0..*blocks as u32).collect(), computed, block_bytes: 1, hashes: vec![] }
        }).collect();
        let may = |tokens: u64| groups.iter().all(|it| tokens <= it.computed && tokens.is_multiple_of(u64::from(it.block_tokens)));
        let naive = (0..child.max(1)).rev().find(|tokens| may(*tokens)).unwrap_or(0);
        prop_assert_eq!(whole_tokens(&groups, child), naive);

        // Inherited blocks and copied pieces are each token with data once, and no block that is shared is written.
        let mut keeper = Keeper::new(PinSettings::default());
        let mut kept = parent("a", 16);
        kept.groups = groups.clone();
        keeper.pin(kept).unwrap();
        let Ok(inherited) = keeper.inherit("b", "a", child) else {
            prop_assert_eq!(naive, 0);
            return Ok(());
        };
        let reach = groups.iter().map(|it| it.computed).min().unwrap().min(child - 1);
        prop_assert_eq!((inherited.tokens, inherited.tail_tokens), (naive, reach - naive));
        let own: Vec<Vec<u32>> = groups.iter().map(|_| (1000..1000 + fresh as u32).collect()).collect();
        let copies = keeper.pins.tail_plan(inherited.key, &own);
        let needed = |it: &Group| reach.div_ceil(u64::from(it.block_tokens)) - naive / u64::from(it.block_tokens);
        prop_assert_eq!(copies.is_some(), groups.iter().all(|it| needed(it) <= fresh as u64));
        for (place, it) in groups.iter().enumerate().filter(|_| copies.is_some()) {
            let of_it = |copy: &&CopyTail| copy.group == place as u32;
            let copies: Vec<&CopyTail> = copies.as_ref().unwrap().iter().filter(of_it).collect();
            let tokens: u64 = copies.iter().map(|copy| u64::from(copy.tokens)).sum();
            prop_assert_eq!(inherited.groups[place].len() as u64 * u64::from(it.block_tokens) + tokens, reach);
            prop_assert!(copies.iter().all(|copy| copy.to >= 1000 && copy.tokens <= it.block_tokens));
            prop_assert!(copies.iter().all(|copy| !inherited.groups[place].contains(&copy.from)));
        }
    }
}
