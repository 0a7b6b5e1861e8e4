//! Which rail takes what, and which rails have carried what.

use crate::pairing::RAILS_MAX;
use crate::rail::{Rail, Standing};

/// Transfers of so many bytes use all rails, smaller ones the one that is theirs: what is spread has to be gathered again, by a mark
/// on every other rail.
const SPREAD_BYTES: u64 = 1 << 20;

/// Transfers whose rails are remembered. Of those that are forgotten it is assumed that they used all.
const REMEMBERED: usize = 64;

/// Rails, a bit for each.
pub(crate) type Rails = u8;

const _: () = assert!(RAILS_MAX == Rails::BITS as usize);

/// What is remembered of a transfer.
#[derive(Clone, Copy, Default)]
struct Carried {
    transfer: u64,
    rails: Rails,
    /// Its bytes that were posted since it is remembered.
    bytes: u64,
}

/// Which rails have carried what.
pub(crate) struct Stripe {
    remembered: [Carried; REMEMBERED],
    rails: usize,
}

impl Stripe {
    pub(crate) fn new(rails: usize) -> Self {
        Self { remembered: [Carried::default(); REMEMBERED], rails }
    }

    /// The rail of a transfer that uses one: small transfers one after another take turns.
    fn home(&self, transfer: u64) -> usize {
        ((transfer ^ transfer >> 32) % self.rails as u64) as usize
    }

    /// The rail for these bytes of a transfer, of which there may be more.
    pub(crate) fn choose(&self, rails: &[Rail], transfer: u64, whole: u64) -> Option<usize> {
        let is_up = |&at: &usize| rails[at].standing == Standing::Up;
        if whole < SPREAD_BYTES || self.rails == 1 {
            let home = self.home(transfer);
            return (home..self.rails).chain(0..home).find(is_up);
        }
        // Bytes under way over bandwidth, without a division.
        let sooner = |&one: &usize, &other: &usize| {
            let cost =
                |at: usize, of: usize| u128::from(rails[at].bytes()) * u128::from(rails[of].attr.bandwidth.max(1));
            cost(one, other).cmp(&cost(other, one))
        };
        (0..self.rails).filter(is_up).min_by(sooner)
    }

    /// A rail carries bytes of a transfer to the peer. Bytes that go again count as none.
    pub(crate) fn carries(&mut self, transfer: u64, rail: usize, bytes: u64) {
        let place = &mut self.remembered[place_of(transfer)];
        if place.transfer != transfer {
            *place = Carried { transfer, ..Carried::default() };
        }
        place.rails |= 1 << rail;
        place.bytes += bytes;
    }

    /// The rails that may have carried bytes of a transfer of so many.
    pub(crate) fn carried(&self, transfer: u64, whole: u64) -> Rails {
        let its = &self.remembered[place_of(transfer)];
        match whole {
            0 => 0,
            // Of what was forgotten in between, the bytes before are missing.
            _ if its.transfer == transfer && its.bytes >= whole => its.rails,
            _ => Rails::MAX >> (Rails::BITS as usize - self.rails),
        }
    }

    /// What a rail has carried has landed, all of it.
    pub(crate) fn has_landed(&mut self, rail: usize) {
        for its in &mut self.remembered {
            its.rails &= !(1 << rail);
        }
    }
}

fn place_of(transfer: u64) -> usize {
    ((transfer ^ transfer >> 32) % REMEMBERED as u64) as usize
}
