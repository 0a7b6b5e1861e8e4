//! Packet numbers received: refuses what came before, and says what an acknowledgement says.

use crate::wire::AckBits;

/// Numbers below the highest that are remembered. What is older is refused, whether it came before or not.
pub const REPLAY_WINDOW: u64 = 4096;

const WORDS: u64 = REPLAY_WINDOW / 64;

/// The numbers that have been received.
#[derive(Debug, Clone)]
pub struct ReceiveWindow {
    highest: u64,
    /// Bit `number % REPLAY_WINDOW` of those in the window.
    bits: [u64; WORDS as usize],
}

impl Default for ReceiveWindow {
    fn default() -> Self {
        Self { highest: 0, bits: [0; WORDS as usize] }
    }
}

impl ReceiveWindow {
    /// The highest number received; 0: none.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    fn bit(number: u64) -> (usize, u64) {
        ((number / 64 % WORDS) as usize, 1 << (number % 64))
    }

    /// Whether a packet of this number may be taken: it is new, and not too old to know.
    pub fn is_new(&self, number: u64) -> bool {
        if number > self.highest {
            return true;
        }
        let (word, bit) = Self::bit(number);
        number > 0 && self.highest - number < REPLAY_WINDOW && self.bits[word] & bit == 0
    }

    /// Remembers a number that [`ReceiveWindow::is_new`].
    pub fn insert(&mut self, number: u64) {
        // What enters the window is forgotten of its last use.
        if number.saturating_sub(self.highest) >= REPLAY_WINDOW {
            self.bits = [0; WORDS as usize];
        } else if number > self.highest {
            for passed in self.highest + 1..=number {
                let (word, bit) = Self::bit(passed);
                self.bits[word] &= !bit;
            }
        }
        self.highest = self.highest.max(number);
        let (word, bit) = Self::bit(number);
        self.bits[word] |= bit;
    }

    /// Which numbers right below the highest were received, down to `lowest`, below which the peer waits for none.
    pub fn received(&self, lowest: u64, words: usize) -> AckBits {
        let below = self.highest.saturating_sub(lowest.max(1));
        let found = std::array::from_fn(|word| {
            let Some(left) = below.checked_sub(64 * word as u64).filter(|&left| left > 0) else { return 0 };
            // The 64 numbers that end below these: what is before the first number is no number, and was never set.
            let first = self.highest.wrapping_sub(64 * (word as u64 + 1));
            let (place, bit) = ((first / 64 % WORDS) as usize, first % 64);
            let high = if bit == 0 { 0 } else { self.bits[(place + 1) % WORDS as usize] << (64 - bit) };
            let bits = (self.bits[place] >> bit | high).reverse_bits();
            if left < 64 { bits & ((1 << left) - 1) } else { bits }
        });
        AckBits::first(found, words)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::ACK_WORDS;

    proptest! {
        #[test]
        fn it_agrees_with_a_set(steps in proptest::collection::vec(prop_oneof![
            8 => (0u64..300).prop_map(|back| (0, back)),
            4 => (1u64..80).prop_map(|on| (on, 0)),
            1 => (4000u64..9000).prop_map(|on| (on, 0)),
            1 => (4000u64..4200).prop_map(|back| (0, back)),
        ], 1..400)) {
            let (mut window, mut had) = (ReceiveWindow::default(), BTreeSet::new());
            for (on, back) in steps {
                let highest = had.last().copied().unwrap_or(0);
                let number = (highest + on).saturating_sub(back);
                let is_new = number > 0 && !had.contains(&number) && number + REPLAY_WINDOW > highest;
                prop_assert_eq!(window.is_new(number), is_new, "number {} at {}", number, highest);
                if is_new {
                    window.insert(number);
                    had.insert(number);
                }
                let highest = had.last().copied().unwrap_or(0);
                prop_assert_eq!(window.highest(), highest);
                let lowest = highest.saturating_sub(200);
                let bits = window.received(lowest, ACK_WORDS);
                for distance in 0..256 {
                    let is_meant = highest > distance + 1 && highest - 1 - distance >= lowest.max(1);
                    let expected = is_meant && had.contains(&(highest - 1 - distance));
                    prop_assert_eq!(bits.has(distance), expected, "{} below {}", distance + 1, highest);
                }
            }
        }
    }

    #[test]
    fn the_last_number_of_all_is_a_number() {
        let mut window = ReceiveWindow::default();
        for number in [1, u64::MAX, u64::MAX - 5] {
            assert!(window.is_new(number));
            window.insert(number);
            assert!(!window.is_new(number));
        }
        assert_eq!((window.highest(), window.received(0, 1).words[0]), (u64::MAX, 1 << 4));
        assert!(!window.is_new(1));
    }
}
