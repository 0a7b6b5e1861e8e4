//! Items in a buffer: names, shapes and types, and where their bytes lie. Nothing in it is ever executed.

pub use penstock_flows::relay::payload::{
    DIMENSIONS_MAX, Dtype, Field, ITEM_ALIGN, ITEMS_MAX, PATH_BYTES_MAX, PayloadError, PayloadItem, Schema, Stretch,
};

/// What was fetched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload {
    /// The bytes; none if they went into extents.
    pub bytes: Vec<u8>,
    /// What they are, as the putter wrote it; empty if it put plain bytes.
    pub schema: Vec<u8>,
    /// The putter's words beside them, which nobody here reads.
    pub header: Vec<u8>,
}

impl Payload {
    /// What the bytes are, if the putter said; checked, and against the bytes that came.
    pub fn schema(&self) -> Result<Schema, PayloadError> {
        let schema = if self.schema.is_empty() { Schema::default() } else { Schema::parse(&self.schema)? };
        let (found, needed) = (self.bytes.len() as u64, schema.bytes());
        if found < needed { Err(PayloadError::Short { found, needed }) } else { Ok(schema) }
    }

    /// All items in their order, each with its bytes. Plain bytes have none.
    pub fn items(&self) -> Result<Vec<(Field, &[u8])>, PayloadError> {
        let fields = self.schema()?.fields().to_vec();
        let bytes_of = |field: Field| {
            let bytes = &self.bytes[field.offset as usize..(field.offset + field.bytes) as usize];
            (field, bytes)
        };
        Ok(fields.into_iter().map(bytes_of).collect())
    }

    /// The item of this path, with its bytes.
    pub fn item(&self, path: &str) -> Result<(Field, &[u8]), PayloadError> {
        let found = self.items()?.into_iter().find(|(field, _)| field.path == path);
        found.ok_or_else(|| PayloadError::NoSuchItem(path.to_owned()))
    }
}
