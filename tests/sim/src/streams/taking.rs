//! A chunk on its way to whoever asked for it.

use std::time::Duration;

use penstock::flows::FlowError;
use penstock::flows::relay::{Destination, Extents, Fetch};
use penstock::{Blocks, Timestamp};

use super::content::{Lying, Made, Name, compare, lie};
use super::wait::Wait;
use crate::env::SimEnv;
use crate::oracle::{GRANTED, Invariant, Violated};
use crate::stage::{Seat, Stage};

/// A chunk that is being fetched.
pub(super) struct Taking {
    /// Which.
    pub(super) name: Name,
    /// How it ends.
    pub(super) wait: Wait,
    made: Made,
    fetch: Option<Fetch<SimEnv>>,
    /// Where it goes, if not into memory of the engine's.
    lying: Option<Lying>,
}

impl Taking {
    /// Asks for a chunk, into blocks if there are some and it is wanted. Nothing if it is refused.
    pub(super) fn begin(
        name: Name,
        made: &Made,
        metadata: &[u8],
        is_into_blocks: bool,
        within: Duration,
        seat: &mut Seat,
        now: Timestamp,
    ) -> Result<Option<Self>, Violated> {
        let lying = if is_into_blocks { lie(seat, made.bytes.len(), GRANTED, now)? } else { None };
        let (Some(relay), Some(layout)) = (seat.relay(), seat.layout()) else { return Ok(None) };
        let into = match &lying {
            Some((blocks, extents)) => Destination::extents(Extents::of_layout(layout, &[blocks], extents)),
            None => Destination::memory(),
        };
        match relay.get(metadata, into.within(within)) {
            Ok(fetch) => {
                let wait = Wait::new(format!("get of {name:?}"), now, within);
                Ok(Some(Self { name, wait, made: made.clone(), fetch: Some(fetch), lying }))
            }
            // Its putter is gone again, or its request was given up.
            Err(FlowError::Relay(_)) => Ok(None),
            Err(error) => Err(Violated::new(Invariant::OneEndEach, format!("{name:?} is not fetched: {error}"))),
        }
    }

    /// Looks how far it is. Answers whether its application is done with it.
    pub(super) fn look(&mut self, stage: &Stage<'_>, seat: usize) -> Result<bool, Violated> {
        let now = stage.world.now();
        let Some(fetch) = &self.fetch else { return Ok(true) };
        if self.wait.look(fetch.poll(), now, stage.disturbed)? {
            self.check(&stage.seats[seat])?;
        }
        if self.wait.is_settled(now) {
            self.let_go();
        }
        Ok(self.fetch.is_none())
    }

    /// Nobody asks for it any more. Its blocks are the engine's until nothing lands there.
    pub(super) fn let_go(&mut self) {
        let blocks: Option<Blocks> = self.lying.take().map(|(blocks, _)| blocks);
        drop((self.fetch.take(), blocks));
    }

    /// What has come is what was put.
    fn check(&self, seat: &Seat) -> Result<(), Violated> {
        let (Some(fetch), Some(pool)) = (&self.fetch, seat.pool()) else { return Ok(()) };
        let told = |words: String| Violated::new(Invariant::ToldOnceAfterBytes, format!("{:?}: {words}", self.name));
        let payload = match fetch.wait(Duration::ZERO) {
            Ok(Ok(payload)) => payload,
            Ok(Err(failed)) => return Err(told(format!("has ended well, and as {failed}"))),
            Err(error) => return Err(told(error.to_string())),
        };
        let words = [(&payload.schema, &self.made.schema), (&payload.header, &self.name.header())];
        if words.iter().any(|(found, right)| found != right) {
            let words = format!("{:?} comes with the words of another", self.name);
            return Err(Violated::new(Invariant::BytesAreTheirOwn, words));
        }
        if let Some((_, extents)) = &self.lying {
            let mut came = Vec::new();
            for &(offset, len) in extents {
                let mut part = vec![0; len as usize];
                pool.window().read_into(offset, &mut part).expect("a block is in its pool");
                came.extend(part);
            }
            return compare(self.name, &came, &self.made.bytes);
        }
        compare(self.name, &payload.bytes, &self.made.bytes)?;
        let items = payload.items().map_err(|error| told(error.to_string()))?;
        if items.len() != if self.made.schema.is_empty() { 0 } else { 2 } {
            return Err(told(format!("{} items came", items.len())));
        }
        Ok(())
    }
}
