//! Chunks between stages, as the transfer manager hears of them and has them carried out.

use penstock_core::Timestamp;
use penstock_session::ControlMessage;

use super::TransferManager;
use crate::event::Event;
use crate::relay::{RelayCounts, Relays};

/// The two top bits of numbers of moves, watches and tickets that are a relay's.
pub const RELAY: u64 = 2;

/// What there is of chunks, and what was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayMetrics {
    /// Berths of puts that are taken.
    pub puts: u64,
    /// Berths of gets that are taken.
    pub gets: u64,
    /// Ends of streams that are said and not answered.
    pub ends: u64,
    /// Announcements that nobody has asked for yet.
    pub early: usize,
    /// What those early announcements hold, in bytes.
    pub early_bytes: usize,
    /// Ended ones that are remembered.
    pub tombs: usize,
    /// Nothing goes on, nothing is kept, and nobody is waited for.
    pub is_idle: bool,
    /// What was counted since the beginning.
    pub counts: RelayCounts,
}

impl TransferManager {
    /// The relay's state: chunks that stages put and fetch.
    pub fn relays(&self) -> &Relays {
        &self.relays
    }

    /// The same, to be changed.
    pub fn relays_mut(&mut self) -> &mut Relays {
        &mut self.relays
    }

    /// Tells the relay of what has happened. Whether nobody else is concerned.
    pub(super) fn relayed(&mut self, event: &Event, now: Timestamp) -> bool {
        let is_its_own = match event {
            Event::Joined { .. }
            | Event::Unable { .. }
            | Event::Left { .. }
            | Event::Said { said: ControlMessage::PeerFeatures(_), .. } => false,
            Event::Said {
                said: ControlMessage::Chunk(_) | ControlMessage::ChunkAck(_) | ControlMessage::RelayAbort(_),
                ..
            } => true,
            Event::Ended { id, .. } | Event::Closed { id } if part_of(id.0) == RELAY => true,
            Event::Quiet { id } if part_of(id.0) == RELAY => true,
            _ => return false,
        };
        self.relays.handle(event, now);
        is_its_own
    }

    pub(super) fn relay_metrics(&self) -> RelayMetrics {
        let (puts, gets, ends) = self.relays.held();
        let (early, early_bytes, tombs) = self.relays.kept();
        let (is_idle, counts) = (self.relays.is_empty(), self.relays.counts());
        RelayMetrics { puts, gets, ends, early, early_bytes, tombs, is_idle, counts }
    }
}

/// Whose number this is.
pub const fn part_of(number: u64) -> u64 {
    number >> 62
}

/// The first number of a part.
pub(super) const fn first_of(part: u64) -> u64 {
    part << 62
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_core::{EngineName, Epoch, Generation, RegionId};
    use penstock_session::control::{Chunk, ChunkAck, ChunkKind, Extent, PeerFeatures};
    use penstock_session::{PeerKey, RequestId};

    use super::*;
    use crate::action::{Action, BlocksRef, RegionRef, WatchId};
    use crate::manager::Settings;
    use crate::relay::{
        Arrival, Destination, EarlyFrameBounds, Metadata, PutSource, RelayError, RelaySettings, StagingPlace,
        StagingPool, ToPut,
    };

    const NOW: Timestamp = Timestamp::from_ns(1);
    const PEER: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(7) };

    fn manager() -> TransferManager {
        let mut manager = TransferManager::new(Settings::default(), [11, 1, 2]);
        manager.handle(Event::Joined { peer: PEER, name: EngineName::new("b").unwrap() }, NOW);
        let able = PeerFeatures { version_min: 1, version_max: 1, tag: 5, credits: 1 };
        manager.handle(Event::Said { peer: PEER, said: ControlMessage::PeerFeatures(able) }, NOW);
        while manager.poll_action().is_some() {}
        manager
    }

    fn settings() -> RelaySettings {
        let pool = |region| {
            let region = RegionRef { region: RegionId(region), generation: Generation(1) };
            StagingPool { region, base: 0, berth_bytes: 64, berths: 2 }
        };
        RelaySettings {
            name: EngineName::new("a").unwrap(),
            epoch: Epoch(1),
            puts: pool(1),
            gets: pool(2),
            each: 2,
            control: 1,
            most: 4,
            early: EarlyFrameBounds { messages: 4, bytes: 4096, age: Duration::from_secs(1) },
            tombs: 4,
            tomb: Duration::from_secs(1),
            abort: Duration::from_millis(50),
            first_number: 0,
        }
    }

    fn chunk(op: u64) -> Event {
        let extents = vec![Extent { region: 9, generation: 1, offset: 0, len: 64 }];
        let said = Chunk {
            op,
            request: "r".into(),
            stream: 0,
            number: 0,
            part: 0,
            parts: 1,
            bytes: 64,
            readers: 1,
            kind: ChunkKind::Data,
            extents,
            schema: Vec::new(),
            header: Vec::new(),
        }
        .into();
        Event::Said { peer: PEER, said }
    }

    fn put(manager: &mut TransferManager) -> Result<crate::relay::PutKey, RelayError> {
        let what = ToPut {
            request: RequestId::new("r").unwrap(),
            source: PutSource::Berths { bytes: 64 },
            readers: vec![PEER],
            schema: Vec::new(),
            header: Vec::new(),
            within: Duration::from_secs(1),
        };
        manager.relays_mut().put(what, NOW)
    }

    #[test]
    fn what_is_announced_before_there_is_a_relay_is_kept_and_its_moves_are_the_relays_own() {
        let mut manager = manager();
        manager.handle(chunk(1), NOW);
        assert_eq!((manager.metrics().relay.early, manager.metrics().refused), (1, 0));
        assert_eq!(put(&mut manager), Err(RelayError::Closed), "there are no berths yet");
        manager.relays_mut().open(settings()).unwrap();
        assert_eq!(manager.relays_mut().open(settings()), Err(RelayError::Open));
        let request = RequestId::new("r").unwrap();
        let arrival = manager.relays_mut().next_arrival(&request, NOW).unwrap();
        let Arrival::Chunk(announced) = arrival else { panic!("{arrival:?}") };
        let within = Duration::from_secs(1);
        let get = manager.relays_mut().get(&announced.metadata, Destination::Berths, within, NOW).unwrap();
        let moved = std::iter::from_fn(|| manager.poll_action()).find_map(|action| match action {
            Action::Move { id, .. } => Some(id),
            _ => None,
        });
        let id = moved.unwrap();
        assert_eq!(part_of(id.0), RELAY);
        manager.handle(Event::Ended { id, result: Ok(64), is_open_there: false }, NOW);
        assert_eq!(manager.relays().get_result(get), Some(&Ok(())));
        let piece = manager.relays_mut().pieces(get)[0];
        manager.relays_mut().taken(get, piece.number, NOW).unwrap();
        manager.relays_mut().let_go_get(get, NOW);
        assert!(manager.metrics().relay.is_idle);
    }

    #[test]
    fn what_is_kept_for_puts_and_gets_is_accounted_for_until_it_is_let_go() {
        let mut manager = manager();
        manager.relays_mut().open(settings()).unwrap();
        let place =
            StagingPlace { region: RegionRef { region: RegionId(5), generation: Generation(1) }, offset: 0, len: 64 };
        let extents = vec![place];
        let what = ToPut {
            request: RequestId::new("r").unwrap(),
            source: PutSource::Extents { extents: extents.clone(), keep: BlocksRef(7), is_ready: true },
            readers: vec![PEER],
            schema: Vec::new(),
            header: Vec::new(),
            within: Duration::from_secs(1),
        };
        let put = manager.relays_mut().put(what, NOW).unwrap();
        manager.handle(chunk(1), NOW);
        let request = RequestId::new("r").unwrap();
        let Some(Arrival::Chunk(announced)) = manager.relays_mut().next_arrival(&request, NOW) else {
            panic!("a chunk")
        };
        let into = Destination::Extents { extents, keep: BlocksRef(8) };
        let get = manager.relays_mut().get(&announced.metadata, into, Duration::from_secs(1), NOW).unwrap();
        let kept = |manager: &TransferManager| {
            manager.tickets().unwrap().into_iter().map(|ticket| ticket.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(&manager), [7, 8]);
        let op = Metadata::parse(&manager.relays().metadata(put).unwrap()).unwrap().op;
        manager
            .handle(Event::Said { peer: PEER, said: ControlMessage::ChunkAck(ChunkAck { op, part: 0, code: 0 }) }, NOW);
        assert!(manager.relays().put_result(put).is_some());
        assert_eq!(kept(&manager), [7, 8], "it is let go, and nobody has carried that out");
        while manager.poll_action().is_some() {}
        assert_eq!(kept(&manager), [8]);
        manager.relays_mut().let_go_put(put, NOW);
        manager.relays_mut().let_go_get(get, NOW);
        assert_eq!(kept(&manager), [8], "something may land there");
    }

    #[test]
    fn proof_that_a_reader_is_quiet_comes_to_the_relay_that_asked() {
        let mut manager = manager();
        manager.relays_mut().open(settings()).unwrap();
        let key = put(&mut manager).unwrap();
        let part = manager.relays_mut().unwritten(key)[0];
        manager.relays_mut().filled(key, part.part, NOW).unwrap();
        manager.handle(Event::Left { peer: PEER, cause: penstock_core::Cause::PeerLost }, NOW);
        let watched = std::iter::from_fn(|| manager.poll_action()).find_map(|action| match action {
            Action::Watch { id, .. } => Some(id),
            _ => None,
        });
        manager.handle(Event::Quiet { id: WatchId(1) }, NOW);
        assert_eq!(manager.metrics().relay.puts, 1, "that was another's");
        manager.handle(Event::Quiet { id: watched.unwrap() }, NOW);
        assert_eq!(manager.metrics().relay.puts, 0);
    }

    #[test]
    fn what_nobody_writes_comes_back_at_once_and_numbers_go_on_when_it_is_opened_again() {
        let mut manager = manager();
        manager.relays_mut().open(settings()).unwrap();
        let (untouched, touched) = (put(&mut manager).unwrap(), put(&mut manager).unwrap());
        let part = manager.relays_mut().unwritten(touched)[0];
        manager.relays_mut().close(NOW);
        assert_eq!((manager.metrics().relay.puts, manager.relays().is_written(untouched)), (1, true));
        assert_eq!(manager.relays_mut().open(settings()), Err(RelayError::Closing), "somebody may be writing");
        manager.relays_mut().filled(touched, part.part, NOW).unwrap();
        assert_eq!(manager.metrics().relay.puts, 0);
        manager.relays_mut().open(settings()).unwrap();
        let again = {
            let request = RequestId::new("s").unwrap();
            let what = ToPut {
                request,
                source: PutSource::Berths { bytes: 0 },
                readers: vec![PEER],
                schema: Vec::new(),
                header: Vec::new(),
                within: Duration::from_secs(1),
            };
            manager.relays_mut().put(what, NOW).unwrap()
        };
        assert!(again > touched && touched > untouched);
        manager.relays().check().unwrap();
    }
}
