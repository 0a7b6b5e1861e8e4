//! What one source has lent, as its reader sees it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use penstock_session::control::ReadOffer;
use penstock_session::leases::LeaseId;
use penstock_session::machine;
use penstock_session::machine::Step;

use crate::output::lend::LENT_BLOCKS_MAX;
use crate::part::LegError;
use crate::shards::ShardPair;

machine! {
    /// What one rank of the source lends, as its reader sees it.
    pub Loan on LoanEvent {
        states {
            /// The rank was claimed, and nothing is lent yet.
            Claimed,
            /// It is read under a lease.
            Lent,
            /// Everything was read, the lease was given back, and its lender has not said whether it stood.
            Returned,
            /// It is not to be read any more, and something still is.
            Leaving,
        }
        ends {
            /// Everything was read while the lease stood.
            Confirmed,
            /// What was read is worth nothing.
            Void,
        }
        events {
            /// Something is lent, or more.
            Lend,
            /// Everything was read.
            AllRead,
            /// The lender says that the lease stood.
            Stood,
            /// The lease has ended.
            Over,
            /// The transfer has failed.
            Fault,
            /// Nothing is read any more.
            Drained,
        }
        Claimed { Lend => Lent, Over => Void, Fault => Void }
        Lent { Lend => Lent, AllRead => Returned, Over => Leaving, Fault => Leaving }
        Returned { Lend => Returned, Stood => Confirmed, Over => Void, Fault => Void }
        Leaving { Lend => Leaving, Over => Leaving, Fault => Leaving, Drained => Void }
    }
}

/// How it stands with one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    Moves,
    Stopping,
    /// It is over here, and something of it is open.
    Open,
}

/// One source.
#[derive(Debug)]
pub(super) struct View {
    pub(super) rank: u16,
    pub(super) loan: Loan,
    pub(super) lease: Option<LeaseId>,
    pub(super) pair: Option<Arc<ShardPair>>,
    /// Which layout of the source's, in which use.
    layout: (u32, u32),
    /// The first token that is needed.
    begin: u64,
    /// The first token of the first block.
    pub(super) first: u64,
    pub(super) blocks: Vec<u32>,
    /// Up to which token, and of how many layers, it can be read.
    pub(super) tokens: u64,
    layers: u32,
    pub(super) once: Option<u32>,
    is_sealed: bool,
    /// Up to which token each layer was read, or is being read.
    cursors: Vec<u64>,
    pub(super) reads: BTreeMap<u64, Reading>,
    last_number: u64,
}

impl View {
    pub(super) fn new(rank: u16, begin: u64, layers: u32) -> Self {
        Self {
            rank,
            loan: Loan::Claimed,
            lease: None,
            pair: None,
            layout: (0, 0),
            begin,
            first: 0,
            blocks: Vec::new(),
            tokens: begin,
            layers: 0,
            once: None,
            is_sealed: false,
            cursors: vec![begin; layers as usize],
            reads: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// Goes where the event leads; says whether that is elsewhere.
    pub(super) fn on(&mut self, event: LoanEvent) -> bool {
        let Step::Go(next) = self.loan.step(event) else { return false };
        self.loan = next;
        true
    }

    /// Takes in what is lent, if it makes sense: what is there only ever gets more. Says whether it is the first.
    pub(super) fn merge(&mut self, pair: &Arc<ShardPair>, lend: &ReadOffer) -> Result<bool, LegError> {
        let wrong = LegError::Lent { from: lend.from };
        let is_first = self.pair.is_none();
        let named = ((lend.layout, lend.layout_generation), Some(LeaseId(lend.lease)), lend.once);
        if !is_first && named != (self.layout, self.lease, self.once) {
            return Err(wrong);
        }
        let ((_, block_tokens), (_, blocks)) = (pair.block_tokens(), pair.blocks());
        let block_tokens = u64::from(block_tokens);
        let begins_at = if is_first { self.begin / block_tokens * block_tokens } else { self.first };
        let place = lend.from.checked_sub(begins_at).filter(|tokens| tokens % block_tokens == 0);
        let place = place.map(|tokens| tokens / block_tokens).filter(|&place| place <= self.blocks.len() as u64);
        let place = place.ok_or(wrong)? as usize;
        let end = place + lend.blocks.len();
        let mut known = self.blocks[place..].iter().zip(&lend.blocks);
        let news = known.len();
        let most = LENT_BLOCKS_MAX.min(blocks as usize);
        let is_there = |block: &u32| *block < blocks;
        let room = (end.max(self.blocks.len()) as u64).saturating_mul(block_tokens).saturating_add(begins_at);
        let tokens = lend.from.checked_add(lend.tokens).ok_or(wrong)?;
        let is_within = lend.total.is_none_or(|total| tokens.max(self.tokens) <= total.max(self.begin));
        let layers = self.cursors.len() as u32;
        if known.any(|(known, said)| known != said)
            || end > most
            || !lend.blocks.iter().chain(&lend.once).all(is_there)
            || tokens > room.max(self.begin)
            || !is_within
            || lend.layers > layers
            || (pair.has_once() && lend.once.is_none())
        {
            return Err(wrong);
        }
        if is_first {
            (self.layout, self.lease, self.once) = named;
            (self.pair, self.first) = (Some(Arc::clone(pair)), begins_at);
            self.on(LoanEvent::Lend);
        }
        self.blocks.extend_from_slice(&lend.blocks[news..]);
        self.tokens = self.tokens.max(tokens);
        self.layers = self.layers.max(lend.layers);
        self.is_sealed |= lend.is_sealed;
        Ok(is_first)
    }

    /// Layers that can be read from a token on, and are not: neighbours that are equally far together.
    pub(super) fn unread(&self) -> impl Iterator<Item = (Range<u32>, u64)> + '_ {
        let open = &self.cursors[..self.layers as usize];
        let mut next = 0;
        std::iter::from_fn(move || {
            while let Some(&from) = open.get(next) {
                let first = next;
                while open.get(next) == Some(&from) {
                    next += 1;
                }
                if from < self.tokens {
                    return Some((first as u32..next as u32, from));
                }
            }
            None
        })
    }

    /// So many tokens of these layers are being read from now on. Answers the number of the read.
    pub(super) fn begin_read(&mut self, layers: Range<u32>, tokens: u64) -> u64 {
        for cursor in &mut self.cursors[layers.start as usize..layers.end as usize] {
            *cursor += tokens;
        }
        self.last_number += 1;
        self.reads.insert(self.last_number, Reading::Moves);
        self.last_number
    }

    /// Whether everything that there is was read, and nothing is being read.
    pub(super) fn has_read_all(&self, total: Option<u64>) -> bool {
        let end = total.filter(|_| self.is_sealed && self.loan == Loan::Lent && self.reads.is_empty());
        end.is_some_and(|end| self.cursors.iter().all(|&cursor| cursor >= end))
    }
}
