//! Plans on their way: submitted, landed one after the other, and cancelled where a measurement is cut off.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use penstock::{Peer, Plan, RemoteCounter, Submit, SubmitError, SystemEnv, Transfer};

use super::watch::Meter;
use crate::ends::end::End;
use crate::ends::network::Served;
use crate::error::LabError;

/// The longest wait before it is looked whether to end.
const GLANCE: Duration = Duration::from_millis(20);
/// The same of a thread that turns its engine itself, in turns.
const TURNS: u32 = 64;
/// How long all cancelled transfers together are waited for.
const CANCEL: Duration = Duration::from_millis(200);

/// Where nothing was confirmed for so long when the time is over, it was not the time that ended it.
const STALLED: Duration = Duration::from_secs(1);

/// Why a round was not moved to its end.
#[derive(Debug)]
pub(super) enum Halt {
    /// The time is over, or somebody asked for the end.
    Cut,
    /// It could not go on.
    Failed(LabError),
}

impl From<LabError> for Halt {
    fn from(error: LabError) -> Self {
        Self::Failed(error)
    }
}

/// The way to the target.
pub(super) struct Line<'a> {
    pub(super) near: &'a End,
    pub(super) peer: &'a Peer<SystemEnv>,
    /// Where the target is on another host: hears how far this has come.
    pub(super) served: Option<&'a mut Served>,
    /// Counts each transfer at the target.
    pub(super) arrivals: Option<RemoteCounter>,
}

/// A transfer that has landed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landed {
    pub(super) bytes: u64,
    /// Since it was submitted.
    pub(super) took: Duration,
}

struct Flying {
    transfer: Transfer<SystemEnv>,
    since: Instant,
}

/// Moves plans over a line.
pub(super) struct Mover<'l, 'a, 'm, 'w, 'x> {
    line: &'l mut Line<'a>,
    pub(super) meter: &'m mut Meter<'w, 'x>,
    flying: VecDeque<Flying>,
    /// Spent in submit calls that only queue.
    pub(super) submitting: Duration,
    /// Bytes of the transfers that were submitted.
    pub(super) begun: u64,
    /// Bytes of those that landed well, which they did in their order.
    pub(super) in_order: u64,
    /// Bytes that were confirmed in their order when that was looked at last, and since when as many.
    confirmed: (u64, Instant),
}

impl<'l, 'a, 'm, 'w, 'x> Mover<'l, 'a, 'm, 'w, 'x> {
    pub(super) fn new(line: &'l mut Line<'a>, meter: &'m mut Meter<'w, 'x>) -> Self {
        let confirmed = (0, Instant::now());
        Self { line, meter, flying: VecDeque::new(), submitting: Duration::ZERO, begun: 0, in_order: 0, confirmed }
    }

    /// Transfers under way.
    pub(super) fn flying(&self) -> usize {
        self.flying.len()
    }

    /// Sets a plan under way; waits for others first where the engine has no room.
    pub(super) fn submit(&mut self, plan: &Plan) -> Result<(), Halt> {
        let mut how = Submit::new();
        if let Some(counter) = self.line.arrivals {
            how = how.count(counter);
        }
        let since = Instant::now();
        let transfer = loop {
            match self.line.peer.submit(plan, how) {
                Ok(transfer) => break transfer,
                Err(SubmitError::Full { .. }) => drop(self.land()?),
                Err(refused) => return Err(LabError::refused("submit a plan")(refused).into()),
            }
        };
        // An inline engine that has moved it already did more than submit.
        if transfer.poll().is_none() || self.line.near.is_threaded() {
            self.submitting += since.elapsed();
        }
        self.flying.push_back(Flying { transfer, since });
        self.begun += plan.bytes();
        Ok(())
    }

    /// Waits for the end of the transfer that was submitted first, as an application of that kind of engine does it.
    pub(super) fn land(&mut self) -> Result<Option<Landed>, Halt> {
        let Some(first) = self.flying.front() else {
            self.line.near.turn()?;
            self.pulse()?;
            return Ok(None);
        };
        let (is_threaded, since) = (self.line.near.is_threaded(), first.since);
        let ended = loop {
            let Some(first) = self.flying.front() else { return Ok(None) };
            let ended = if is_threaded { first.transfer.wait_within(GLANCE) } else { turn(self.line.near, first)? };
            match ended {
                Some(ended) => break ended,
                None => self.pulse()?,
            }
        };
        let bytes = ended.map_err(|fault| Halt::Failed(fault.into()))?.bytes;
        self.flying.pop_front();
        self.meter.bytes += bytes;
        self.in_order += bytes;
        Ok(Some(Landed { bytes, took: since.elapsed() }))
    }

    /// Waits for the end of all that is under way.
    pub(super) fn land_all(&mut self) -> Result<(), Halt> {
        while !self.flying.is_empty() {
            self.land()?;
        }
        Ok(())
    }

    /// Tells of what has been moved; an error where it is time to end.
    pub(super) fn pulse(&mut self) -> Result<(), Halt> {
        let near = self.line.near;
        self.meter.pulse(self.line.served.as_deref_mut().map(|served| (served, near)));
        let confirmed = self.in_order + self.flying.front().map_or(0, |first| first.transfer.bytes_moved());
        if self.flying.is_empty() || confirmed != self.confirmed.0 {
            self.confirmed = (confirmed, Instant::now());
        }
        let waited = self.confirmed.1.elapsed();
        match self.meter.is_cut() {
            false => Ok(()),
            true if waited >= STALLED && !self.meter.is_interrupted() => Err(LabError::Stalled { waited }.into()),
            true => Err(Halt::Cut),
        }
    }

    /// Stops what is under way, and counts what of it was confirmed.
    pub(super) fn cancel(&mut self) {
        let until = Instant::now() + CANCEL;
        for Flying { transfer, .. } in self.flying.drain(..) {
            // What may still touch memory keeps it: the pools go with their engines.
            let _ = transfer.cancel(until.saturating_duration_since(Instant::now()));
            self.meter.bytes += transfer.bytes_moved();
        }
    }
}

/// Turns an inline engine for a while.
fn turn(near: &End, flying: &Flying) -> Result<Option<Result<penstock::Completed, penstock::Fault>>, LabError> {
    for _ in 0..TURNS {
        if let Some(ended) = flying.transfer.poll() {
            return Ok(Some(ended));
        }
        near.engine.progress().map_err(LabError::refused("turn an inline engine"))?;
    }
    Ok(None)
}
