//! Names and numbers that mean one thing each.

use std::fmt;
use std::sync::Arc;

/// The longest engine name, in bytes.
pub const ENGINE_NAME_BYTES_MAX: usize = 64;

/// The name of an engine: what people type, and what its socket is called.
///
/// One to 64 letters, digits, `.`, `_` or `-`, not starting with a dot. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineName(Arc<str>);

/// Why a string is not an engine name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("an engine name may not be empty: give one such as `decode-0`")]
    Empty,
    #[error("an engine name may have at most {ENGINE_NAME_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// A character that would be unsafe or unreadable in a socket path.
    #[error("`{0}` is not allowed in an engine name: use letters, digits, `.`, `_` and `-`")]
    Character(char),
    /// Names of hidden files are refused.
    #[error("an engine name may not start with a dot")]
    LeadingDot,
}

impl EngineName {
    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > ENGINE_NAME_BYTES_MAX {
            return Err(NameError::TooLong(name.len()));
        }
        if name.starts_with('.') {
            return Err(NameError::LeadingDot);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        match name.chars().find(|&c| !allowed(c)) {
            Some(c) => Err(NameError::Character(c)),
            None => Ok(Self(Arc::from(name))),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// One life of an engine: random, fresh at every start. Frames, keys and ids of an ended
    /// epoch are refused.
    Epoch(u64)
}
number! {
    /// A region of one engine. Ids are reused; the [`Generation`] tells the uses apart.
    RegionId(u32)
}
number! {
    /// Which use of a reused id this is. A stale generation is an error, never another's memory.
    Generation(u32)
}
number! {
    /// An arrival counter of one engine.
    CounterId(u32)
}
number! {
    /// The caller's own 128-bit name for a notification.
    NoteId(u128)
}

impl NoteId {
    /// The one id that no caller may use: lanes of two engines tell each other of memory of devices under it, past the inbox and its credits.
    pub const STAGING: Self = Self(u128::from_be_bytes(*b"penstock staging"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_where_they_enter() {
        assert_eq!(EngineName::new("decode-0").unwrap().as_str(), "decode-0");
        assert_eq!(EngineName::new(""), Err(NameError::Empty));
        assert_eq!(EngineName::new("../etc"), Err(NameError::LeadingDot));
        assert_eq!(EngineName::new("a/b"), Err(NameError::Character('/')));
        assert_eq!(EngineName::new(&"x".repeat(65)), Err(NameError::TooLong(65)));
    }
}
