//! What is kept of requests that have ended, for their children, as the transfer manager keeps it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::RequestId;

use super::book::Book;
use super::{BlockAccess, DeviceKey, Placed, TransferManager, User};
use crate::action::{Action, BlocksRef};
use crate::continuation::{self, Finished, Home, Inherited, Keep, Miss, Parent, PinError, PinKey, Pins, WaitKey};
use crate::lifecycle::{LifecycleError, SchedulerReport};

/// The pins of one engine, once somebody has asked for them.
#[derive(Default)]
pub(super) struct Keeping {
    pub(super) pins: Option<Pins>,
    /// Answers to those that waited, until they are fetched.
    answers: BTreeMap<WaitKey, Result<Inherited, Miss>>,
}

impl std::fmt::Debug for Keeping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeping").field("pins", &self.metrics()).finish_non_exhaustive()
    }
}

impl Keeping {
    fn drain(&mut self, actions: &mut VecDeque<Action>, book: &mut Book) {
        let Some(pins) = &mut self.pins else { return };
        self.answers.extend(std::iter::from_fn(|| pins.next_answer()));
        while let Some(action) = pins.poll_action() {
            if let Action::Free { ticket } = action {
                book.let_go(ticket);
            }
            actions.push_back(action);
        }
    }

    pub(super) fn deadline(&self) -> Timestamp {
        self.pins.as_ref().and_then(Pins::deadline).unwrap_or(Timestamp::NEVER)
    }

    /// Whether nobody has blocks and nobody waits. What is pinned is let go by time.
    pub(super) fn is_empty(&self) -> bool {
        self.pins.as_ref().is_none_or(Pins::is_empty) && self.answers.is_empty()
    }

    pub(super) fn metrics(&self) -> continuation::PinMetrics {
        self.pins.as_ref().map(Pins::metrics).unwrap_or_default()
    }
}

impl TransferManager {
    /// Blocks of requests that end can be kept from now on. A second time changes nothing, and is refused if it says otherwise.
    pub fn open_pins(&mut self, settings: continuation::PinSettings, home: Home) -> Result<(), PinError> {
        match &self.keeping.pins {
            Some(pins) => pins.is_as(&settings, &home),
            None => {
                self.keeping.pins = Some(Pins::new(settings, home));
                Ok(())
            }
        }
    }

    /// Calls what keeps blocks of requests that have ended; nothing if nobody has opened it.
    pub fn call_pins<R>(&mut self, call: impl FnOnce(&mut Pins) -> R) -> Option<R> {
        let answer = self.keeping.pins.as_mut().map(call);
        self.keeping.drain(&mut self.actions, &mut self.book);
        answer
    }

    /// Keeps the blocks of a request that ends, as for [`Pins::pin`]: nobody writes to them until they are let go. Blocks that are being
    /// written are refused. Nothing if nobody has opened it.
    pub fn pin(
        &mut self,
        parent: Parent,
        tickets: Vec<BlocksRef>,
        placed: Vec<(Placed, Vec<u32>)>,
        ttl: Duration,
        now: Timestamp,
    ) -> Option<Result<PinKey, PinError>> {
        if let Err(held) = self.may_use(&placed, BlockAccess::Read) {
            return Some(Err(PinError::Held(Box::new(held))));
        }
        let (user, ticket) = (User::Pin(parent.request.clone()), tickets.first().copied());
        let pinned = self.call_pins(|pins| pins.pin(parent, tickets, ttl, now))?;
        if let (Ok(_), Some(ticket)) = (&pinned, ticket) {
            self.note_kept(ticket, placed, &user);
        }
        Some(pinned)
    }

    /// Looks at it.
    pub fn pins(&self) -> Option<&Pins> {
        self.keeping.pins.as_ref()
    }

    /// Reports what may be the end of a request, and keeps its blocks in the same step: see [`continuation::finish`].
    pub fn finish_and_pin(
        &mut self,
        device: DeviceKey,
        end: (&RequestId, u64, &SchedulerReport),
        mut kept: Keep,
        placed: Vec<(Placed, Vec<u32>)>,
        now: Timestamp,
    ) -> Result<Finished, LifecycleError> {
        if kept.blocks.is_ok()
            && let Err(held) = self.may_use(&placed, BlockAccess::Read)
        {
            kept.blocks = Err(PinError::Held(Box::new(held)));
        }
        let (user, ticket) = (User::Pin(kept.parent.request.clone()), kept.tickets.first().copied());
        let Some(mut pins) = self.keeping.pins.take() else { return Err(LifecycleError::NoDevice) };
        let finished = self.call_device(device, |lives| continuation::finish(lives, &mut pins, end, kept, now));
        self.keeping.pins = Some(pins);
        self.keeping.drain(&mut self.actions, &mut self.book);
        if let (Ok(Finished { pin: Some(Ok(_)), .. }), Some(ticket)) = (&finished, ticket) {
            self.note_kept(ticket, placed, &user);
        }
        finished
    }

    /// The answer to a child that waited for its parent, once it is there.
    pub fn waited(&mut self, key: WaitKey) -> Option<Result<Inherited, Miss>> {
        self.keeping.answers.remove(&key)
    }

    /// Whether it is there.
    pub fn has_answer(&self, key: WaitKey) -> bool {
        self.keeping.answers.contains_key(&key)
    }

    /// A child waits no more. What it was given meanwhile goes back.
    pub fn stop_waiting(&mut self, key: WaitKey) {
        let answer = self.keeping.answers.remove(&key);
        self.call_pins(|pins| match answer {
            Some(Ok(inherited)) => drop(pins.give_up(inherited.key)),
            _ => pins.leave(key),
        });
    }

    /// Time has passed.
    pub(super) fn pins_expire(&mut self, now: Timestamp) {
        if self.keeping.deadline() <= now {
            self.call_pins(|pins| pins.expire(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_core::EngineName;

    use super::*;
    use crate::action::BlocksRef;
    use crate::continuation::{Ask, Child, Group, Isolation, Parent, Waited};
    use crate::lifecycle;
    use crate::manager::Settings;

    const NOW: Timestamp = Timestamp::from_ns(1);
    const TTL: Duration = Duration::from_secs(1);

    fn manager() -> TransferManager {
        let mut manager = TransferManager::new(Settings::default(), [1, 2, 3]);
        let home = Home { engine: EngineName::new("decode-0").unwrap(), rank: 3 };
        manager.open_pins(continuation::PinSettings::default(), home).unwrap();
        manager
    }

    fn request(name: &str) -> RequestId {
        RequestId::new(name).unwrap()
    }

    fn parent(name: &str) -> Parent {
        let group = Group { block_tokens: 16, blocks: vec![4, 9], computed: 31, block_bytes: 64, hashes: vec![] };
        Parent { request: request(name), isolation: Isolation::default(), groups: vec![group], blob: vec![] }
    }

    fn keep(ticket: BlocksRef) -> Keep {
        Keep { parent: parent("a"), blocks: Ok(vec![vec![]]), tickets: vec![ticket], ttl: TTL }
    }

    fn ask(child: &str, parent: &str) -> Ask {
        let child = Child::Request(request(child));
        Ask { child, parent: request(parent), isolation: Isolation::default(), tokens: 32, hashes: None }
    }

    fn freed(manager: &mut TransferManager) -> Vec<BlocksRef> {
        let actions = std::iter::from_fn(|| manager.poll_action());
        actions.filter_map(|action| if let Action::Free { ticket } = action { Some(ticket) } else { None }).collect()
    }

    #[test]
    fn a_parent_is_pinned_by_the_report_that_ends_it_and_let_go_by_time_once_no_child_has_it() {
        let mut manager = manager();
        let device = manager.open_device(lifecycle::LifecycleSettings::default()).unwrap();
        let life = manager.call_device(device, |lives| lives.tracker_mut().open(request("a"), 1)).unwrap();
        let end = request("a");
        let finished =
            manager.finish_and_pin(device, (&end, life, &SchedulerReport::Removed), keep(BlocksRef(7)), vec![], NOW);
        assert!(matches!(finished, Ok(Finished { pin: Some(Ok(_)), verdict: lifecycle::Verdict::Remove })));
        assert_eq!(manager.deadline(), NOW + TTL);
        let child = manager.call_pins(|pins| pins.inherit(&ask("b", "a"), NOW)).unwrap().unwrap();
        assert_eq!((child.tokens, child.tail_tokens, &child.groups), (16, 15, &vec![vec![4]]));
        manager.expire(NOW + TTL);
        assert_eq!(freed(&mut manager), [], "its child has it");
        assert_eq!(manager.call_pins(|pins| pins.inherit(&ask("c", "a"), NOW + TTL)), Some(Err(Miss::Expired)));
        manager.call_pins(|pins| pins.give_up(child.key));
        assert_eq!(freed(&mut manager), [BlocksRef(7)]);
        assert_eq!(manager.metrics().pins.pins, 0);
        // A second report of the same end keeps nothing.
        let late =
            manager.finish_and_pin(device, (&end, life, &SchedulerReport::Aborted), keep(BlocksRef(8)), vec![], NOW);
        assert!(matches!(late, Ok(Finished { pin: None, verdict: lifecycle::Verdict::NoOp })));
    }

    #[test]
    fn who_waits_for_a_running_parent_is_answered_when_it_ends_or_gives_back_what_it_never_fetched() {
        let mut manager = manager();
        manager.call_pins(|pins| pins.runs(request("a"), Isolation::default())).unwrap().unwrap();
        let wait = |manager: &mut TransferManager, child: &str| match manager
            .call_pins(|pins| pins.inherit_or_wait(ask(child, "a"), NOW + TTL, NOW))
        {
            Some(Waited::Later(key)) => key,
            other => panic!("{other:?}"),
        };
        let (first, second, third) = (wait(&mut manager, "b"), wait(&mut manager, "c"), wait(&mut manager, "d"));
        manager.stop_waiting(third);
        manager.call_pins(|pins| pins.pin(parent("a"), vec![BlocksRef(7)], TTL, NOW)).unwrap().unwrap();
        assert!(manager.has_answer(first) && manager.has_answer(second) && !manager.has_answer(third));
        let given = manager.waited(first).unwrap().unwrap();
        assert_eq!((given.tokens, manager.metrics().pins.uses), (16, 2));
        manager.stop_waiting(second);
        assert_eq!((manager.waited(second), manager.metrics().pins.uses), (None, 1));
        manager.call_pins(|pins| pins.give_up(given.key));
        manager.expire(NOW + TTL);
        assert!(freed(&mut manager) == [BlocksRef(7)] && manager.is_empty());
    }

    #[test]
    fn pins_that_are_open_are_opened_again_only_as_they_are() {
        let mut manager = manager();
        let home = |rank: u16| Home { engine: EngineName::new("decode-0").unwrap(), rank };
        let settings = continuation::PinSettings::default();
        manager.call_pins(|pins| pins.pin(parent("a"), vec![BlocksRef(7)], TTL, NOW)).unwrap().unwrap();
        assert_eq!(manager.open_pins(settings, home(3)), Ok(()));
        let otherwise = Err(PinError::OpenOtherwise { rank: 3 });
        assert_eq!(manager.open_pins(continuation::PinSettings { count: 1, ..settings }, home(3)), otherwise);
        assert_eq!(manager.open_pins(settings, home(4)), otherwise);
        assert_eq!(manager.metrics().pins.pins, 1, "what is kept stays");
    }

    #[test]
    fn nothing_is_kept_where_nobody_has_asked_for_it() {
        let mut manager = TransferManager::new(Settings::default(), [1, 2, 3]);
        assert_eq!(manager.call_pins(|pins| pins.inherit(&ask("b", "a"), NOW)), None);
        assert!(manager.pins().is_none() && manager.is_empty());
    }
}
