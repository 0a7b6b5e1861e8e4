//! What befalls hosts and engines: links that are cut, engines that stand still, that die, and that come again.

use std::sync::Arc;

use crate::links::Weather;
use crate::trace::What;
use crate::world::{Node, World};

/// What others notice of an engine's death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its process was killed: the system closes its streams.
    Killed,
    /// Its host lost power: nobody is told.
    Silent,
}

impl World {
    /// All links have this weather from now on, except those that were given their own.
    pub fn set_weather(&self, weather: Weather) {
        self.core.lock().links.set_usual(weather);
    }

    /// The link from one host to another has weather of its own.
    pub fn set_weather_between(&self, from: u64, to: u64, weather: Weather) {
        self.core.lock().links.set(from, to, weather);
    }

    /// Nothing passes between two hosts, in either direction. Streams keep what was sent, packets are lost.
    pub fn partition(&self, one: u64, other: u64) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Nothing passes from one host to another; the other direction stays as it is.
    pub fn cut(&self, from: u64, to: u64) {
        self.core.lock().links.cut(from, to);
        self.core.record(0, What::Cut, from << 32 | to);
    }

    /// Whether anything passes from one host to another.
    pub fn passes(&self, from: u64, to: u64) -> bool {
        self.core.lock().links.passes(from, to)
    }

    /// Every cut link passes again.
    pub fn heal(&self) {
        self.core.lock().links.heal();
        self.core.record(0, What::Healed, 0);
    }

    /// An engine stands still: it has no turns, while its clock goes on and what others send it piles up. Its own calls
    /// must not be made meanwhile.
    pub fn freeze(&self, node: &Node) {
        self.set_frozen(node, true);
    }

    /// An engine goes on.
    pub fn thaw(&self, node: &Node) {
        self.set_frozen(node, false);
    }

    fn set_frozen(&self, node: &Node, is_frozen: bool) {
        let number = self.number_of(node);
        if let Some(number) = number {
            self.core.lock().members[number].is_frozen = is_frozen;
            self.core.record(number, if is_frozen { What::Frozen } else { What::Thawed }, 0);
        }
    }

    /// An engine dies at this moment: nothing of it is heard any more. One with the same name, started after, is another
    /// one. Handles of it that are still held are of no use, and keep its memory mapped until they are dropped.
    pub fn crash(&self, node: Node, death: Death) {
        if let Some(number) = self.number_of(&node) {
            let mut state = self.core.lock();
            state.members[number].death = Some(0);
            state.members[number].process = None;
            state.network.crash(number, death);
            state.packets.crash(number);
            drop(state);
            self.core.record(number, What::Crashed, death as u64);
        }
        // It finds that all its waits are over and all its streams are gone.
        drop(node);
    }

    pub(crate) fn number_of(&self, node: &Node) -> Option<usize> {
        let state = self.core.lock();
        state.members.iter().position(|member| std::ptr::eq(member.engine.as_ptr(), Arc::as_ptr(node)))
    }
}
