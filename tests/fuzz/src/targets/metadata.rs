//! What names a put of another engine.

use penstock_flows::relay::metadata::{METADATA_BYTES_MAX, Metadata};

/// Any bytes are metadata or a typed error, and what was read is written so that it is read again.
pub fn run(input: &[u8]) {
    if let Ok(metadata) = Metadata::parse(input) {
        let bytes = metadata.encode();
        assert!(metadata.parts > 0 && bytes.len() <= input.len() && input.len() <= METADATA_BYTES_MAX);
        assert_eq!(Metadata::parse(&bytes), Ok(metadata), "metadata changes on its way");
    }
}

/// Only reads.
pub fn parse(input: &[u8]) {
    let _ = std::hint::black_box(Metadata::parse(input));
}
