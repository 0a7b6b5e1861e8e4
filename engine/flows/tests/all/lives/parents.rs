//! Parents and children, for tests.

use std::time::Duration;

use penstock_core::{EngineName, Timestamp};
use penstock_flows::action::{Action, BlocksRef};
use penstock_flows::continuation::{
    Ask, Child, Group, Home, Inherited, Isolation, Miss, Parent, PinError, PinKey, PinSettings, Pins,
};

use super::{at_ms, id};

pub(crate) const BLOCK: u32 = 16;
pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) fn isolation(tenant: u8) -> Isolation {
    Isolation { tenant: [tenant; 16], ..Isolation::default() }
}

/// So many tokens, all but the last one computed, in blocks of 16 from `first` on.
pub(crate) fn group(tokens: u64, first: u32) -> Group {
    let blocks = (first..first + tokens.div_ceil(u64::from(BLOCK)) as u32).collect();
    Group { block_tokens: BLOCK, blocks, computed: tokens - 1, block_bytes: 1000, hashes: vec![] }
}

pub(crate) fn parent(name: &str, tokens: u64) -> Parent {
    let (groups, blob) = (vec![group(tokens, 0)], name.as_bytes().to_vec());
    Parent { request: id(name), isolation: isolation(1), groups, blob }
}

pub(crate) fn ask(child: &str, of: &str, tokens: u64) -> Ask {
    let (child, parent) = (Child::Request(id(child)), id(of));
    Ask { child, parent, isolation: isolation(1), tokens, hashes: None }
}

pub(crate) struct Keeper {
    pub(crate) pins: Pins,
    pub(crate) now: Timestamp,
    next_ticket: u64,
}

impl Keeper {
    pub(crate) fn new(settings: PinSettings) -> Self {
        let home = Home { engine: EngineName::new("decode-3").unwrap(), rank: 5 };
        Self { pins: Pins::new(settings, home), now: at_ms(1), next_ticket: 0 }
    }

    pub(crate) fn pin(&mut self, parent: Parent) -> Result<(PinKey, BlocksRef), PinError> {
        self.next_ticket += 1;
        let ticket = BlocksRef(self.next_ticket);
        let key = self.pins.pin(parent, vec![ticket], TTL, self.now);
        self.pins.check_counts().unwrap();
        Ok((key?, ticket))
    }

    pub(crate) fn inherit(&mut self, child: &str, of: &str, tokens: u64) -> Result<Inherited, Miss> {
        self.take(&ask(child, of, tokens))
    }

    pub(crate) fn take(&mut self, ask: &Ask) -> Result<Inherited, Miss> {
        let inherited = self.pins.inherit(ask, self.now);
        self.pins.check_counts().unwrap();
        inherited
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.pins.expire(self.now);
        self.pins.check_counts().unwrap();
    }

    pub(crate) fn freed(&mut self) -> Vec<BlocksRef> {
        let actions = std::iter::from_fn(|| self.pins.poll_action());
        actions.filter_map(|action| if let Action::Free { ticket } = action { Some(ticket) } else { None }).collect()
    }
}
