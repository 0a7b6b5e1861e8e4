//! A number that its owner publishes and others read, over mappings that may be read-only.

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU64, Ordering, load_acquire_read_only};

#[derive(Debug)]
pub struct Publisher {
    word: SharedRef<AtomicU64>,
}

#[derive(Clone, Debug)]
pub struct Published {
    word: SharedRef<AtomicU64>,
}

impl Publisher {
    /// A number of this process, zero.
    pub fn heap() -> Self {
        Self { word: SharedRef::heap(AtomicU64::new(0)) }
    }

    /// The number at `offset` bytes of a place that this process writes.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { word: place.cell(offset)? })
    }

    pub fn reader(&self) -> Published {
        Published { word: self.word.clone() }
    }

    /// Publishes a number: who reads it sees everything that came before.
    pub fn publish(&self, value: u64) {
        self.word.store(value, Ordering::Release); // SYNC published: pairs with `Published::read`.
    }
}

impl Published {
    /// The number at `offset` bytes of a place that its owner writes.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { word: place.readable_cell(offset)? })
    }

    /// The number published last, zero before the first.
    #[inline]
    pub fn read(&self) -> u64 {
        load_acquire_read_only(&self.word) // SYNC published: pairs with `Publisher::publish`.
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_place_is_readable_and_not_writable() {
        let place = SharedRange::heap(64);
        let publisher = Publisher::mapped(&place, 8).unwrap();
        let reader = Published::mapped(&place.without_writing(), 8).unwrap();
        assert_eq!(reader.read(), 0);
        publisher.publish(7);
        assert_eq!((reader.read(), publisher.reader().read()), (7, 7));
        assert!(Publisher::mapped(&place.without_writing(), 8).is_err());
    }
}
