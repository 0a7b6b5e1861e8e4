//! What an engine is told before both move anything: the offers of the transports.

use penstock_tcp::offer::STREAMS_MAX;
use penstock_transport::JoinError;
use penstock_verbs::offer::VerbsOffer;
use penstock_verbs::pairing::RAILS_MAX;

/// Workers and streams of the engine that is told.
const WORKERS: usize = 2;
const STREAMS: usize = 4;
/// Channels between the two, if they have cards.
const CHANNELS: usize = 3;

/// Any bytes are an offer or a typed refusal. Of streams there are never more than both sides want, and what was
/// accepted is what an engine of this release writes.
pub fn run(input: &[u8]) {
    match penstock_tcp::offer::accept(input, STREAMS, WORKERS) {
        Ok(streams) => {
            assert!((1..=STREAMS).contains(&streams));
            let is_made_here = |streams| penstock_tcp::offer::blob(streams, WORKERS) == input;
            assert!((1..=STREAMS_MAX).any(is_made_here), "an offer changes on its way");
        }
        Err(JoinError::Malformed(why)) => assert!(!why.is_empty()),
        Err(other) => panic!("an offer without descriptors is refused with {other:?}"),
    }
    // Its descriptors are looked at after its bytes: without any, that is as far as it comes.
    match penstock_shm::offer::accept(input, Vec::new(), WORKERS, WORKERS).map(drop) {
        Err(JoinError::Malformed(why)) => assert!(!why.is_empty()),
        Err(JoinError::Fds { expected, found: 0 }) => assert_eq!(expected, 4 + 1 + WORKERS),
        other => panic!("an offer whose descriptors did not come is answered with {other:?}"),
    }
    match VerbsOffer::parse(input, WORKERS, CHANNELS) {
        Ok(offer) => {
            assert!((1..=RAILS_MAX).contains(&offer.rails.len()));
            assert!(offer.rails.iter().all(|rail| rail.queues.len() == CHANNELS && !rail.in_words().is_empty()));
            assert_eq!(offer.blob(), input, "an offer changes on its way");
        }
        Err(JoinError::Malformed(why)) => assert!(!why.is_empty()),
        Err(other) => panic!("an offer of cards is refused with {other:?}"),
    }
}

/// Reads all of them.
pub fn parse(input: &[u8]) {
    drop(penstock_tcp::offer::accept(input, STREAMS, WORKERS));
    drop(penstock_shm::offer::accept(input, Vec::new(), WORKERS, WORKERS));
    drop(VerbsOffer::parse(input, WORKERS, CHANNELS));
}
