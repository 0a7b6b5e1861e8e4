//! What the wire does and when, as values and as text.
//!
//! A scenario is statements, separated by `;` or by lines; `#` begins a remark:
//!
//! ```text
//! seed=7
//! a-to-b loss=1%,delay=2ms,jitter=500us,rate=100mbit
//! both   duplicate=0.1%
//! at=2s partition both for=1.5s
//! at=5s set b-to-a loss=20% for=3s     # afterwards as before
//! at=9s set both none                  # for good
//! at=10s set a-to-b udp-loss=100%      # TCP passes
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

mod units;

pub use units::Share;

/// Which way frames go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From side A to side B.
    AToB,
    /// From side B to side A.
    BToA,
    /// Each of them.
    Both,
}

impl Direction {
    /// Whether this speaks of the path with that number (0 is A to B).
    pub(crate) fn has(self, path: usize) -> bool {
        match self {
            Self::AToB => path == 0,
            Self::BToA => path == 1,
            Self::Both => true,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AToB => "a-to-b",
            Self::BToA => "b-to-a",
            Self::Both => "both",
        })
    }
}

impl FromStr for Direction {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        match text {
            "a-to-b" => Ok(Self::AToB),
            "b-to-a" => Ok(Self::BToA),
            "both" => Ok(Self::Both),
            _ => Err(ScenarioError::Direction(text.to_owned())),
        }
    }
}

/// What happens to the frames of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// Frames that never arrive.
    pub loss: Share,
    /// Frames of UDP that never arrive, as behind a firewall that lets TCP pass.
    pub udp_loss: Share,
    /// How long every frame takes.
    pub delay: Duration,
    /// Up to how much longer, evenly drawn. Jitter alone keeps the order.
    pub jitter: Duration,
    /// Frames that are held back so that later ones overtake them.
    pub reorder: Share,
    /// For how long those are held back.
    pub reorder_by: Duration,
    /// Frames that arrive twice.
    pub duplicate: Share,
    /// IP frames of which one bit behind the Ethernet header is wrong.
    pub corrupt: Share,
    /// Bits a second that fit through, if that is limited.
    pub rate: Option<u64>,
    /// Most bytes that are held at once; a frame above that is lost as in a full queue.
    pub queue: usize,
}

impl Default for Faults {
    /// None, and a queue of 4 MiB.
    fn default() -> Self {
        Self {
            loss: Share::default(),
            udp_loss: Share::default(),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: Share::default(),
            reorder_by: Duration::from_millis(2),
            duplicate: Share::default(),
            corrupt: Share::default(),
            rate: None,
            queue: 4 << 20,
        }
    }
}

impl Faults {
    /// With this changed too.
    pub fn with(mut self, changes: &[Fault]) -> Self {
        for change in changes {
            match *change {
                Fault::Loss(share) => self.loss = share,
                Fault::UdpLoss(share) => self.udp_loss = share,
                Fault::Delay(time) => self.delay = time,
                Fault::Jitter(time) => self.jitter = time,
                Fault::Reorder(share) => self.reorder = share,
                Fault::ReorderBy(time) => self.reorder_by = time,
                Fault::Duplicate(share) => self.duplicate = share,
                Fault::Corrupt(share) => self.corrupt = share,
                Fault::Rate(rate) => self.rate = rate,
                Fault::Queue(bytes) => self.queue = bytes,
                Fault::None => self = Self::default(),
            }
        }
        self
    }
}

/// One change of what happens to frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `loss=1%`
    Loss(Share),
    /// `udp-loss=100%`
    UdpLoss(Share),
    /// `delay=2ms`
    Delay(Duration),
    /// `jitter=500us`
    Jitter(Duration),
    /// `reorder=2%`
    Reorder(Share),
    /// `reorder-by=2ms`
    ReorderBy(Duration),
    /// `duplicate=0.1%`
    Duplicate(Share),
    /// `corrupt=0.1%`
    Corrupt(Share),
    /// `rate=100mbit`, `rate=none`
    Rate(Option<u64>),
    /// `queue=256KiB`
    Queue(usize),
    /// `none`: no faults at all from here on.
    None,
}

/// Reads `loss=1%,delay=2ms`.
pub fn parse_faults(text: &str) -> Result<Vec<Fault>, ScenarioError> {
    text.split(',').map(|part| parse_fault(part.trim())).collect()
}

fn parse_fault(text: &str) -> Result<Fault, ScenarioError> {
    if text == "none" {
        return Ok(Fault::None);
    }
    let (key, value) = text.split_once('=').ok_or_else(|| ScenarioError::Fault(text.to_owned()))?;
    Ok(match key {
        "loss" => Fault::Loss(value.parse()?),
        "udp-loss" => Fault::UdpLoss(value.parse()?),
        "delay" => Fault::Delay(units::time(value)?),
        "jitter" => Fault::Jitter(units::time(value)?),
        "reorder" => Fault::Reorder(value.parse()?),
        "reorder-by" => Fault::ReorderBy(units::time(value)?),
        "duplicate" => Fault::Duplicate(value.parse()?),
        "corrupt" => Fault::Corrupt(value.parse()?),
        "rate" if value == "none" => Fault::Rate(None),
        "rate" => Fault::Rate(Some(units::rate(value)?)),
        "queue" => Fault::Queue(units::bytes(value)?),
        _ => return Err(ScenarioError::Fault(text.to_owned())),
    })
}

/// Something that happens to the wire as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Nothing passes, and what is under way is lost.
    Partition(Direction),
    /// Every partition of that direction ends.
    Heal(Direction),
    /// Faults change; those that are not named stay.
    Set(Direction, Vec<Fault>),
}

/// Something that happens at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, from the beginning of the script.
    pub at: Duration,
    /// After how long it is as before, if ever.
    pub lasts: Option<Duration>,
    /// What.
    pub what: What,
}

impl FromStr for Event {
    type Err = ScenarioError;

    /// Reads `2s partition both for=1.5s`, with or without `at=` in front.
    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let wrong = || ScenarioError::Event(text.trim().to_owned());
        let (at, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
        let at = units::time(at.strip_prefix("at=").unwrap_or(at))?;
        let (rest, lasts) = match rest.rsplit_once(char::is_whitespace) {
            Some((rest, last)) if last.starts_with("for=") => (rest, Some(units::time(&last["for=".len()..])?)),
            _ => (rest, None),
        };
        let what = rest.parse()?;
        if lasts.is_some() && matches!(what, What::Heal(_)) {
            return Err(wrong());
        }
        Ok(Self { at, lasts, what })
    }
}

impl FromStr for What {
    type Err = ScenarioError;

    /// Reads `partition`, `heal b-to-a` or `set both loss=5%`. Where no direction is named, both are meant.
    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["partition"] => Ok(Self::Partition(Direction::Both)),
            ["partition", direction] => Ok(Self::Partition(direction.parse()?)),
            ["heal"] => Ok(Self::Heal(Direction::Both)),
            ["heal", direction] => Ok(Self::Heal(direction.parse()?)),
            ["set", direction, faults] => Ok(Self::Set(direction.parse()?, parse_faults(faults)?)),
            _ => Err(ScenarioError::Event(text.to_owned())),
        }
    }
}

/// All of what a wire does: the same scenario does the same to the same frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scenario {
    /// What chance is drawn from.
    pub seed: u64,
    /// What happens to frames from A to B from the beginning.
    pub a_to_b: Faults,
    /// What happens to frames from B to A from the beginning.
    pub b_to_a: Faults,
    /// What changes later.
    pub events: Vec<Event>,
}

impl Scenario {
    /// A wire without faults.
    pub fn clean() -> Self {
        Self::default()
    }

    /// With faults changed from the beginning.
    pub fn with(mut self, direction: Direction, faults: &[Fault]) -> Self {
        if direction.has(0) {
            self.a_to_b = self.a_to_b.with(faults);
        }
        if direction.has(1) {
            self.b_to_a = self.b_to_a.with(faults);
        }
        self
    }

    fn statement(self, text: &str) -> Result<Self, ScenarioError> {
        if let Some(seed) = text.strip_prefix("seed=") {
            let seed = seed.parse().map_err(|_| ScenarioError::Number(seed.to_owned()))?;
            return Ok(Self { seed, ..self });
        }
        if text.starts_with("at=") {
            let mut with = self;
            with.events.push(text.parse()?);
            return Ok(with);
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        let [direction, faults] = words[..] else { return Err(ScenarioError::Statement(text.to_owned())) };
        Ok(self.with(direction.parse()?, &parse_faults(faults)?))
    }
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let mut statements = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|text| !text.is_empty());
        statements.try_fold(Self::default(), Self::statement)
    }
}

/// Text that is no scenario.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScenarioError {
    /// None of the directions.
    #[error("`{0}` is no direction: say a-to-b, b-to-a or both")]
    Direction(String),
    /// None of the faults.
    #[error(
        "`{0}` is no fault: say loss=, udp-loss=, delay=, jitter=, reorder=, reorder-by=, duplicate=, corrupt=, rate=, queue= or none, with commas and no blanks between several"
    )]
    Fault(String),
    /// Not a thing that can happen.
    #[error(
        "`{0}` cannot happen: say `at=2s partition both for=1s`, `at=2s heal both` or `at=2s set a-to-b loss=5% for=1s`; heal has no `for=`"
    )]
    Event(String),
    /// None of the statements.
    #[error("`{0}` is no statement: say seed=7, a-to-b loss=1%, or at=2s and what happens then")]
    Statement(String),
    /// Not a number, or one out of bounds.
    #[error("`{0}` is no number that is possible here")]
    Number(String),
    /// A number without its unit, or with an unknown one.
    #[error("`{0}` has no unit known here: {1}")]
    Unit(String, &'static str),
}

#[cfg(test)]
mod tests;
