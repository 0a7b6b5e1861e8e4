//! Numbers with units.

use std::str::FromStr;
use std::time::Duration;

use super::ScenarioError;

/// A share of all frames, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share(u32);

impl Share {
    /// So many in a million, all of them at most.
    pub fn of_million(count: u32) -> Self {
        Self(count.min(1_000_000))
    }

    /// How many in a million.
    pub fn per_million(self) -> u32 {
        self.0
    }
}

impl FromStr for Share {
    type Err = ScenarioError;

    /// Reads `1%` or `0.25%`.
    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let number = text.strip_suffix('%').ok_or_else(|| ScenarioError::Unit(text.to_owned(), "%"))?;
        let percent = decimal(number)?;
        if percent > 100.0 {
            return Err(ScenarioError::Number(text.to_owned()));
        }
        Ok(Self((percent * 10_000.0).round() as u32))
    }
}

/// Longest time that a scenario may speak of: a day.
const LONGEST_NS: f64 = 86_400e9;

/// Reads `2ms`, `1.5s`, `500us`.
pub(super) fn time(text: &str) -> Result<Duration, ScenarioError> {
    let ns = scaled(text, "ns, us, ms, s", &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)], LONGEST_NS)?;
    Ok(Duration::from_nanos(ns))
}

/// Reads `100mbit`, `2.5gbit`: bits a second, of which there is at least one.
pub(super) fn rate(text: &str) -> Result<u64, ScenarioError> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9), ("bit", 1.0)];
    let rate = scaled(text, "bit, kbit, mbit, gbit", &units, 1e12)?;
    if rate == 0 { Err(ScenarioError::Number(text.to_owned())) } else { Ok(rate) }
}

/// Reads `256KiB`: at most 1 GiB.
pub(super) fn bytes(text: &str) -> Result<usize, ScenarioError> {
    let units = [("KiB", 1024.0), ("MiB", 1_048_576.0), ("B", 1.0)];
    let bytes = scaled(text, "B, KiB, MiB", &units, 1_073_741_824.0)?;
    usize::try_from(bytes).map_err(|_| ScenarioError::Number(text.to_owned()))
}

fn scaled(text: &str, known: &'static str, units: &[(&str, f64)], most: f64) -> Result<u64, ScenarioError> {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = found.ok_or_else(|| ScenarioError::Unit(text.to_owned(), known))?;
    let value = decimal(number)? * factor;
    if value > most { Err(ScenarioError::Number(text.to_owned())) } else { Ok(value.round() as u64) }
}

/// Digits and at most one point: neither signs nor exponents nor words for infinity.
fn decimal(text: &str) -> Result<f64, ScenarioError> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse::<f64>().ok().filter(|_| is_plain);
    number.ok_or_else(|| ScenarioError::Number(text.to_owned()))
}
