//! What a storm did, in numbers.

use std::fmt;
use std::time::Duration;

use penstock::{Cause, Completed, Fault, Notified, SystemEnv, Transfer};

use super::case::{Case, Stop};
use super::taken::Taken;
use crate::pair::PATIENCE;

/// How exactly an initiator knows what has landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// To the byte.
    All,
    /// To the byte, but that a deadline does not wait for an owner, or a thread for the kernel's call, that has begun.
    AllButLate,
    /// What it was told has landed; more may have.
    Told,
}

/// What a storm did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Transfers that were to be stopped.
    pub stops: u64,
    /// Cancels, revokes, both at once, deadlines.
    pub kinds: [u64; 4],
    /// Transfers that ended with a part of their bytes landed.
    pub partial: u64,
    /// Transfers that ended before any byte landed.
    pub untouched: u64,
    /// Transfers that ended well: the stop came too late.
    pub completed: u64,
    /// Transfers that were stopped when their announcement had left already: the peer may have counted them.
    pub perhaps_told: u64,
    /// Transfers that were stopped when all of them had landed and the peer had been told.
    pub told_late: u64,
    /// Transfers beside them that nobody stopped; all completed.
    pub bystanders: u64,
    /// The longest that an answer took, or came after its transfer's deadline.
    pub slowest: Duration,
}

impl Tally {
    /// The part of all stops that came with a part of the bytes landed.
    pub fn partial_share(&self) -> f64 {
        self.partial as f64 / self.stops as f64
    }

    /// Counts a case and what stopping it answered.
    ///
    /// # Panics
    /// If the answer came after its deadline.
    pub fn count(&mut self, case: &Case, taken: &Taken) {
        self.stops += 1;
        self.kinds[match case.stop {
            Stop::Cancel => 0,
            Stop::Revoke => 1,
            Stop::Both => 2,
            Stop::Deadline(_) => 3,
        }] += 1;
        assert!(taken.took <= PATIENCE, "an answer came {:?} after it was asked for", taken.took);
        self.slowest = self.slowest.max(taken.took);
    }

    /// Counts how a transfer ended.
    ///
    /// # Panics
    /// If it ended as it may not.
    pub fn count_end(&mut self, case: &Case, end: &End, landed: Option<u64>, sees: Sees) {
        let End { cause, bytes, notified } = *end;
        match cause {
            None => {
                assert_eq!((bytes, notified), (case.bytes, Notified::Yes), "a transfer that ended well moved all");
                self.completed += 1;
            }
            Some(cause) => {
                assert!(case.stop.may_cause(case.direction, cause), "{:?} ended with `{cause}`", case.stop);
                assert!(bytes <= case.bytes, "{bytes} of {} bytes moved", case.bytes);
                match (sees, notified) {
                    (_, Notified::No) => {}
                    (Sees::Told, Notified::Unknown) => self.perhaps_told += 1,
                    // It was asked to stop when the peer had everything, and had not said so yet.
                    (Sees::Told, Notified::Yes) if bytes == case.bytes => self.told_late += 1,
                    _ => panic!("who was stopped tells nobody: {:?}, {end:?} of {} bytes", case.stop, case.bytes),
                }
                self.untouched += u64::from(bytes == 0);
                self.partial += u64::from(bytes > 0 && bytes < case.bytes);
            }
        }
        if let Some(landed) = landed {
            let is_told = match sees {
                Sees::All => bytes == landed,
                Sees::AllButLate if cause != Some(Cause::DeadlineExceeded) => bytes == landed,
                Sees::AllButLate | Sees::Told => bytes <= landed,
            };
            assert!(is_told, "{bytes} bytes told, {landed} landed at the answer (of {})", case.bytes);
        }
    }

    /// The sum of two storms.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut kinds = self.kinds;
        kinds.iter_mut().zip(other.kinds).for_each(|(kind, more)| *kind += more);
        Self {
            stops: self.stops + other.stops,
            kinds,
            partial: self.partial + other.partial,
            untouched: self.untouched + other.untouched,
            completed: self.completed + other.completed,
            perhaps_told: self.perhaps_told + other.perhaps_told,
            told_late: self.told_late + other.told_late,
            bystanders: self.bystanders + other.bystanders,
            slowest: self.slowest.max(other.slowest),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [cancels, revokes, both, deadlines] = self.kinds;
        write!(
            f,
            "{} stops ({cancels} cancels, {revokes} revokes, {both} both, {deadlines} deadlines): {} midway ({:.1} %), \
             {} before the first byte, {} too late; {} bystanders; slowest answer {:?}",
            self.stops,
            self.partial,
            100.0 * self.partial_share(),
            self.untouched,
            self.completed,
            self.bystanders,
            self.slowest
        )
    }
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Why, if not well.
    pub cause: Option<Cause>,
    /// Bytes that it says were moved.
    pub bytes: u64,
    /// What it says of the counter.
    pub notified: Notified,
}

impl End {
    /// Waits for the end of a transfer.
    ///
    /// # Panics
    /// If it does not end, or says two things about its bytes.
    pub fn of(transfer: &Transfer<SystemEnv>) -> Self {
        let end = transfer.wait_within(PATIENCE).expect("every transfer ends in an answer");
        let end = match end {
            Ok(Completed { bytes, notified }) => Self { cause: None, bytes, notified },
            Err(Fault { cause, bytes, notified, .. }) => Self { cause: Some(cause), bytes, notified },
        };
        assert_eq!(transfer.bytes_moved(), end.bytes, "the handle and the answer tell the same bytes");
        end
    }
}
