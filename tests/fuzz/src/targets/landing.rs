//! What goes behind bytes, to say that they have landed.

use penstock_session::landing::{LANDING_BYTES_MAX, Landing};

/// Any bytes are a landing or a typed error, and what was read is written so that it is read again.
pub fn run(input: &[u8]) {
    if let Ok(landing) = Landing::decode(input) {
        let bytes = landing.encode();
        assert!(input.len() <= LANDING_BYTES_MAX && bytes.len() <= input.len());
        assert_eq!(Landing::decode(&bytes), Ok(landing), "a landing changes on its way");
    }
}

/// Only reads.
pub fn parse(input: &[u8]) {
    let _ = std::hint::black_box(Landing::decode(input));
}
