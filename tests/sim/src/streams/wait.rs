//! A wait of an application: it ends once, stays as it ended, and ends in its time.

use std::time::Duration;

use penstock::Timestamp;

use crate::oracle::{Invariant, Violated};
use crate::run::KNOWN_WITHIN;

/// How long an end is looked at, so that one that does not stay is seen.
const LOOKED_AT: Duration = Duration::from_millis(2);

/// How something ended: when, and why it failed if it did.
pub(super) type End = (Timestamp, Option<String>);

/// Something that is waited for.
#[derive(Debug)]
pub(super) struct Wait {
    /// What it is called where it is told of.
    pub(super) name: String,
    /// Until when it has to end, if that is known.
    until: Option<Timestamp>,
    /// How it ended.
    pub(super) end: Option<End>,
}

impl Wait {
    /// Since now, at most so long.
    pub(super) fn new(name: String, now: Timestamp, within: Duration) -> Self {
        Self { name, until: Some(now + within), end: None }
    }

    /// For as long as nobody says otherwise.
    pub(super) fn unbounded(name: String) -> Self {
        Self { name, until: None, end: None }
    }

    /// From now on at most so long.
    pub(super) fn ends_within(&mut self, within: Duration, now: Timestamp) {
        self.until = Some(now + within);
    }

    /// It has this to say now; answers whether it has ended well just now.
    pub(super) fn look<E: ToString>(
        &mut self,
        said: Option<Result<(), E>>,
        now: Timestamp,
        disturbed: Timestamp,
    ) -> Result<bool, Violated> {
        let said = said.map(|result| result.err().map(|error| error.to_string()));
        match (&self.end, said) {
            (None, None) if self.until.is_some_and(|until| now > until.max(disturbed) + KNOWN_WITHIN) => {
                let words = format!("{} was to end at {:?} and has not", self.name, self.until);
                Err(Violated::new(Invariant::AnswersComeInTime, words))
            }
            (None, None) => Ok(false),
            (Some((_, before)), Some(said)) if *before == said => Ok(false),
            (Some(end), said) => {
                let words = format!("{} had ended as {end:?}, and is {said:?} now", self.name);
                Err(Violated::new(Invariant::OneEndEach, words))
            }
            (None, Some(said)) => {
                let is_well = said.is_none();
                self.end = Some((now, said));
                Ok(is_well)
            }
        }
    }

    /// It ended, and was looked at for long enough.
    pub(super) fn is_settled(&self, now: Timestamp) -> bool {
        self.end.as_ref().is_some_and(|(at, _)| now.since(*at) > LOOKED_AT)
    }

    /// It ended well.
    pub(super) fn is_well(&self) -> bool {
        matches!(self.end, Some((_, None)))
    }

    /// Since when it has failed.
    pub(super) fn failed_at(&self) -> Option<Timestamp> {
        self.end.as_ref().filter(|(_, failure)| failure.is_some()).map(|(at, _)| *at)
    }
}
