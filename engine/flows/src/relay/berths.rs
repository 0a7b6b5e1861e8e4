//! Places of one size in a registered region, through which bytes go.

use std::collections::BTreeSet;

use penstock_session::control::Extent;

use crate::action::RegionRef;

/// Bytes of this engine or of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingPlace {
    /// In which region.
    pub region: RegionRef,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Berths, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingPool {
    /// The region that they are in.
    pub region: RegionRef,
    /// Where the first one begins.
    pub base: u64,
    /// Bytes of one.
    pub berth_bytes: u64,
    /// How many there are.
    pub berths: u32,
}

/// Which berths are free. How many may be taken is the business of a purse: whoever has its credit finds one here.
#[derive(Debug)]
pub(super) struct StagingSlots {
    pool: StagingPool,
    free: BTreeSet<u32>,
}

impl StagingPlace {
    /// Its sums cannot overflow, and there is something in it.
    pub(super) fn is_sound(&self) -> bool {
        self.len > 0 && self.offset.checked_add(self.len).is_some()
    }

    pub(super) fn extent(&self) -> Extent {
        let RegionRef { region, generation } = self.region;
        Extent { region: region.0, generation: generation.0, offset: self.offset, len: self.len }
    }

    pub(super) fn of_extent(extent: &Extent) -> Self {
        let region = RegionRef {
            region: penstock_core::RegionId(extent.region),
            generation: penstock_core::Generation(extent.generation),
        };
        Self { region, offset: extent.offset, len: extent.len }
    }
}

/// Bytes of all places; nothing if one is empty, or they cannot be counted.
pub(super) fn bytes_of(places: &[StagingPlace]) -> Option<u64> {
    places.iter().try_fold(0_u64, |sum, place| if place.is_sound() { sum.checked_add(place.len) } else { None })
}

/// The bytes from `from` on, `len` of them, of places that stand one behind the other.
pub(super) fn slice(places: &[StagingPlace], from: u64, len: u64) -> Vec<StagingPlace> {
    let (mut skip, mut left, mut found) = (from, len, Vec::new());
    for place in places {
        if left == 0 {
            break;
        }
        if skip >= place.len {
            skip -= place.len;
            continue;
        }
        let len = (place.len - skip).min(left);
        found.push(StagingPlace { region: place.region, offset: place.offset + skip, len });
        (skip, left) = (0, left - len);
    }
    found
}

impl StagingSlots {
    pub(super) fn new(pool: StagingPool) -> Self {
        Self { pool, free: (0..pool.berths).collect() }
    }

    pub(super) fn berth_bytes(&self) -> u64 {
        self.pool.berth_bytes
    }

    pub(super) fn take(&mut self) -> u32 {
        self.free.pop_first().expect("a credit was taken for it")
    }

    pub(super) fn give_back(&mut self, berth: u32) {
        let is_back = self.free.insert(berth);
        debug_assert!(is_back, "berth {berth} was given back twice");
    }

    pub(super) fn place(&self, berth: u32, len: u64) -> StagingPlace {
        StagingPlace {
            region: self.pool.region,
            offset: self.pool.base + u64::from(berth) * self.pool.berth_bytes,
            len,
        }
    }

    /// Whether exactly these are taken.
    pub(super) fn are_taken(&self, taken: &[u32]) -> bool {
        let distinct: BTreeSet<u32> = taken.iter().copied().collect();
        distinct.len() == taken.len()
            && distinct.is_disjoint(&self.free)
            && distinct.len() + self.free.len() == self.pool.berths as usize
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::{Generation, RegionId};

    use super::*;

    fn place(region: u32, offset: u64, len: u64) -> StagingPlace {
        StagingPlace { region: RegionRef { region: RegionId(region), generation: Generation(1) }, offset, len }
    }

    #[test]
    fn a_slice_has_the_bytes_that_it_says() {
        let places = [place(1, 100, 10), place(2, 0, 5), place(1, 500, 20)];
        assert_eq!(slice(&places, 0, 35), places);
        assert_eq!(slice(&places, 8, 4), [place(1, 108, 2), place(2, 0, 2)]);
        assert_eq!(slice(&places, 10, 5), [place(2, 0, 5)]);
        assert_eq!(slice(&places, 15, 1), [place(1, 500, 1)]);
        assert_eq!(slice(&places, 35, 0), []);
    }

    #[test]
    fn bytes_that_cannot_be_counted_are_refused() {
        assert_eq!(bytes_of(&[place(1, 0, 3), place(1, 9, 4)]), Some(7));
        assert_eq!(bytes_of(&[place(1, 0, 0)]), None);
        assert_eq!(bytes_of(&[place(1, u64::MAX, 1)]), None);
        assert_eq!(bytes_of(&[place(1, 0, u64::MAX), place(1, 0, 1)]), None);
    }
}
