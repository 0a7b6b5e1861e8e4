//! What is in a flat buffer: which items, of which shape and type, from which byte on.
//!
//! A schema only says where things are. Nothing in it is ever executed, and nothing it says is believed before it was checked: items
//! stand one behind the other, each at the next multiple of 64 bytes, with exactly the bytes of their shape. So there is one schema
//! for a list of items, and two items cannot share bytes.

use penstock_session::control::SCHEMA_BYTES_MAX;

#[cfg(test)]
mod tests;

/// Each item begins at a multiple of this.
pub const ITEM_ALIGN: u64 = 64;
/// The most items of one schema.
pub const ITEMS_MAX: usize = 1024;
/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 256;
/// The most dimensions of one item.
pub const DIMENSIONS_MAX: usize = 16;
/// The version that is written, and the only one that is read.
const VERSION: u8 = 1;

/// What a number in an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// Bytes that nobody interprets.
    Bytes = 0,
    /// True or false, a byte each.
    Bool = 1,
    /// Unsigned, 8 bits.
    U8 = 2,
    /// Signed, 8 bits.
    I8 = 3,
    /// Unsigned, 16 bits.
    U16 = 4,
    /// Signed, 16 bits.
    I16 = 5,
    /// Unsigned, 32 bits.
    U32 = 6,
    /// Signed, 32 bits.
    I32 = 7,
    /// Unsigned, 64 bits.
    U64 = 8,
    /// Signed, 64 bits.
    I64 = 9,
    /// Floating, 16 bits.
    F16 = 10,
    /// Floating, 16 bits, with the exponent of 32.
    Bf16 = 11,
    /// Floating, 32 bits.
    F32 = 12,
    /// Floating, 64 bits.
    F64 = 13,
    /// Floating, 8 bits, 4 of them the exponent.
    F8E4m3 = 14,
    /// Floating, 8 bits, 5 of them the exponent.
    F8E5m2 = 15,
}

impl Dtype {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::Bytes,
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::F8E4m3,
        Self::F8E5m2,
    ];

    /// Bytes of one.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bytes | Self::Bool | Self::U8 | Self::I8 | Self::F8E4m3 | Self::F8E5m2 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }
}

/// Something to be packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadItem<'a> {
    /// Where in the application's structure it belongs.
    pub path: &'a str,
    /// How many there are in each dimension; none for a single one.
    pub shape: &'a [u64],
    /// What they are.
    pub dtype: Dtype,
}

/// An item and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Where in the application's structure it belongs.
    pub path: String,
    /// How many there are in each dimension.
    pub shape: Vec<u64>,
    /// What they are.
    pub dtype: Dtype,
    /// The first byte of it in the buffer.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// All items of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schema {
    fields: Vec<Field>,
    bytes: u64,
}

/// Why something is no schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Too many items.
    #[error("a payload has at most {ITEMS_MAX} items and this has {0}: pack several")]
    Items(usize),
    /// A path is too long.
    #[error("the path of item {item} has {bytes} bytes and at most {PATH_BYTES_MAX} are allowed: shorten it")]
    Path { item: usize, bytes: usize },
    /// Two items are called the same.
    #[error("two items are called {0:?}: a path names one item")]
    Twice(String),
    /// Too many dimensions.
    #[error("item {item} has {dimensions} dimensions and at most {DIMENSIONS_MAX} are allowed: flatten it")]
    Dimensions { item: usize, dimensions: usize },
    /// Its bytes cannot be counted.
    #[error("item {0} and those before it are larger than any memory: look at its shape")]
    TooLarge(usize),
    /// Written down it is too long.
    #[error("a schema has at most {SCHEMA_BYTES_MAX} bytes and this has {0}: pack several payloads, or shorten paths")]
    TooLong(usize),
    /// It is of another version.
    #[error("the schema is of version {0} and only {VERSION} is known here: upgrade the older of both engines")]
    Version(u8),
    /// It ends too early, or a number in it is too long.
    #[error("the schema ends in the middle of item {0}: it was cut, or is none")]
    Cut(usize),
    /// There is no such type.
    #[error("item {item} is of type {number}, which is not known here: upgrade the older of both engines")]
    Dtype {
        item: usize,
        /// The number of the type.
        number: u8,
    },
    /// An item is not where it has to be.
    #[error("item {item} is said to be {said} and has to be {found}: the schema was changed or miscounted")]
    Place {
        item: usize,
        /// Its offset and bytes as written.
        said: Stretch,
        /// As its shape and those before it have it.
        found: Stretch,
    },
    /// Something follows.
    #[error("{0} bytes follow behind the schema")]
    Trailing(usize),
    /// An item has more or fewer bytes than its shape says.
    #[error("item {item} has {found} bytes and its shape says {needed}: give exactly as many")]
    Bytes {
        item: usize,
        /// What its shape says.
        needed: u64,
        found: u64,
    },
    /// Fewer bytes came than the items have.
    #[error(
        "the schema's items have {needed} bytes and {found} came: what was put was not packed as its schema says, or went into extents"
    )]
    Short {
        found: u64,
        /// How many the items have.
        needed: u64,
    },
    /// There is no item of this path.
    #[error("there is no item called {0:?}: look at the schema")]
    NoSuchItem(String),
}

/// An offset and a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

impl std::fmt::Display for Stretch {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} bytes at {}", self.bytes, self.offset)
    }
}

impl Schema {
    /// Places items one behind the other.
    pub fn pack(items: &[PayloadItem<'_>]) -> Result<Self, PayloadError> {
        if items.len() > ITEMS_MAX {
            return Err(PayloadError::Items(items.len()));
        }
        let mut schema = Self::default();
        for item in items {
            schema.add(item.path, item.shape.to_vec(), item.dtype)?;
        }
        schema.check_paths()?;
        match schema.encode().len() {
            bytes if bytes > SCHEMA_BYTES_MAX => Err(PayloadError::TooLong(bytes)),
            _ => Ok(schema),
        }
    }

    /// Reads what [`Schema::encode`] has written. Any bytes give a schema or a reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, PayloadError> {
        if bytes.len() > SCHEMA_BYTES_MAX {
            return Err(PayloadError::TooLong(bytes.len()));
        }
        let mut rest = bytes;
        let version = next::<u8>(&mut rest).ok_or(PayloadError::Cut(0))?;
        if version != VERSION {
            return Err(PayloadError::Version(version));
        }
        let items = next::<u16>(&mut rest).ok_or(PayloadError::Cut(0))?;
        if usize::from(items) > ITEMS_MAX {
            return Err(PayloadError::Items(items.into()));
        }
        let mut schema = Self::default();
        for item in 0..usize::from(items) {
            let cut = PayloadError::Cut(item);
            let path = next::<&str>(&mut rest).ok_or(cut.clone())?;
            let number = next::<u8>(&mut rest).ok_or(cut.clone())?;
            let dtype = *Dtype::ALL.get(usize::from(number)).ok_or(PayloadError::Dtype { item, number })?;
            let dimensions = usize::from(next::<u8>(&mut rest).ok_or(cut.clone())?);
            if dimensions > DIMENSIONS_MAX {
                return Err(PayloadError::Dimensions { item, dimensions });
            }
            let shape = (0..dimensions).map(|_| next(&mut rest).ok_or(cut.clone())).collect::<Result<Vec<u64>, _>>()?;
            let (offset, bytes) = next::<(u64, u64)>(&mut rest).ok_or(cut)?;
            let found = schema.add(path, shape, dtype)?;
            let said = Stretch { offset, bytes };
            if found != said {
                return Err(PayloadError::Place { item, said, found });
            }
        }
        schema.check_paths()?;
        if rest.is_empty() { Ok(schema) } else { Err(PayloadError::Trailing(rest.len())) }
    }

    /// As it goes over the wire.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        put(&mut bytes, &(self.fields.len() as u16));
        for field in &self.fields {
            put(&mut bytes, &(field.path.as_str(), field.dtype as u8, field.shape.len() as u8));
            for count in &field.shape {
                put(&mut bytes, count);
            }
            put(&mut bytes, &(field.offset, field.bytes));
        }
        bytes
    }

    /// All items, in their order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The item of this path.
    pub fn find(&self, path: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.path == path)
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, path: &str, shape: Vec<u64>, dtype: Dtype) -> Result<Stretch, PayloadError> {
        let item = self.fields.len();
        if path.len() > PATH_BYTES_MAX {
            return Err(PayloadError::Path { item, bytes: path.len() });
        }
        if shape.len() > DIMENSIONS_MAX {
            return Err(PayloadError::Dimensions { item, dimensions: shape.len() });
        }
        let too_large = PayloadError::TooLarge(item);
        // A dimension of nothing makes an item of nothing, however large the others are.
        let bytes = if shape.contains(&0) {
            0
        } else {
            let all = shape.iter().try_fold(dtype.bytes(), |bytes, &count| bytes.checked_mul(count));
            all.ok_or(too_large.clone())?
        };
        let offset = self.bytes.checked_next_multiple_of(ITEM_ALIGN).ok_or(too_large.clone())?;
        self.bytes = offset.checked_add(bytes).ok_or(too_large)?;
        self.fields.push(Field { path: path.to_owned(), shape, dtype, offset, bytes });
        Ok(Stretch { offset, bytes })
    }

    fn check_paths(&self) -> Result<(), PayloadError> {
        let mut paths: Vec<&str> = self.fields.iter().map(|field| field.path.as_str()).collect();
        paths.sort_unstable();
        match paths.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(PayloadError::Twice(pair[0].to_owned())),
            None => Ok(()),
        }
    }
}

/// The next value of this type; nothing if the bytes end or make none.
pub(super) fn next<'a, T: serde::Deserialize<'a>>(rest: &mut &'a [u8]) -> Option<T> {
    let (value, behind) = postcard::take_from_bytes(rest).ok()?;
    *rest = behind;
    Some(value)
}

/// Writes a value behind the others.
pub(super) fn put<T: serde::Serialize>(bytes: &mut Vec<u8>, value: &T) {
    bytes.extend(postcard::to_stdvec(value).expect("numbers and texts in memory can be written"));
}
