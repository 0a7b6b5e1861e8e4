//! What a chunk says of the items in it.

use penstock_flows::relay::payload::{ITEM_ALIGN, ITEMS_MAX, Schema};

/// Any bytes are a schema or a typed error. Items of a schema lie behind each other and in its buffer, each with a name of its own, and what
/// was read is written so that it is read again.
pub fn run(input: &[u8]) {
    let Ok(schema) = Schema::parse(input) else { return };
    let mut end = 0;
    for field in schema.fields() {
        assert!(field.offset >= end && field.offset % ITEM_ALIGN == 0, "{field:?} lies over the item before");
        end = field.offset + field.bytes;
        let bytes = field
            .shape
            .iter()
            .fold(u128::from(field.dtype.bytes()), |bytes, &count| bytes.saturating_mul(count.into()));
        assert!(bytes == u128::from(field.bytes) || field.shape.contains(&0) && field.bytes == 0, "{field:?}");
        assert_eq!(schema.find(&field.path), Some(field), "two items have one name");
    }
    assert!(schema.bytes() == end && schema.fields().len() <= ITEMS_MAX);
    assert_eq!(Schema::parse(&schema.encode()), Ok(schema), "a schema changes on its way");
}

/// Only reads.
pub fn parse(input: &[u8]) {
    let _ = std::hint::black_box(Schema::parse(input));
}
