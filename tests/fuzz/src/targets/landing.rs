//! What goes behind bytes, to say that they have landed.

use penstock_session::landing::{ArrivalNote, LANDING_BYTES_MAX};

/// Any bytes are a landing or a typed error, and what was read is written so that it is read again.
pub fn run(input: &[u8]) {
    if let Ok(landing) = ArrivalNote::decode(input) {
        let bytes = landing.encode();
        assert!(input.len() <= LANDING_BYTES_MAX && bytes.len() <= input.len());
        assert_eq!(ArrivalNote::decode(&bytes), Ok(landing), "a landing changes on its way");
    }
}

/// Only reads.
pub fn parse(input: &[u8]) {
    let _ = std::hint::black_box(ArrivalNote::decode(input));
}
