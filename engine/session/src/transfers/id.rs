//! The names of a transfer: one that both engines know, and one of each side's own.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use blake2::digest::consts::U16;
use blake2::{Blake2s, Digest};
use serde::{Deserialize, Serialize};

/// What every transfer's name begins with.
const PREFIX: &str = "xfer-";
/// Letters of a UUID in its canonical form.
const UUID_LETTERS: usize = 36;
/// Where its hyphens are.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// The longest name of a request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 256;

/// The name of a transfer, which both engines know: `xfer-` and a UUID in its canonical form, with small letters.
///
/// Whoever dispatches a request to two engines mints it, so that neither needs the other's own name of the request.
///
/// ```
/// use penstock_session::transfers::id::TransferId;
///
/// let request = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// let first = TransferId::mint(request, 0, 0).unwrap();
/// assert_eq!(first.to_string(), "xfer-6ba7b810-9dad-11d1-80b4-00c04fd430c8");
/// let retry = TransferId::mint(request, 1, 0).unwrap();
/// assert_ne!(first, retry);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransferId([u8; 16]);

impl Hash for TransferId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // All are of one length, which says nothing.
        state.write(&self.0);
    }
}

/// A scheduler's own name of a request. It never leaves its engine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Arc<str>);

/// Why a text is no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// There is no name.
    #[error("there is no transfer id: whoever dispatches the request mints one and gives it to both engines")]
    Missing,
    /// It begins otherwise.
    #[error("{0:?} is no transfer id: one is `xfer-` and a UUID, such as `xfer-6ba7b810-9dad-11d1-80b4-00c04fd430c8`")]
    Prefix(String),
    /// It has another length.
    #[error("a UUID has 36 letters and this has {0}: write it as `6ba7b810-9dad-11d1-80b4-00c04fd430c8`")]
    Length(usize),
    /// A hyphen is missing.
    #[error("letter {at} of a UUID is a hyphen: write it as `6ba7b810-9dad-11d1-80b4-00c04fd430c8`")]
    Hyphen {
        /// Which letter, counted from 1.
        at: usize,
    },
    /// A letter that a UUID has not.
    #[error("letter {at} of a UUID is a digit or one of a to f, not {found:?}")]
    Letter {
        /// Which letter, counted from 1.
        at: usize,
        found: char,
    },
    /// It is spelled with large letters.
    #[error("a transfer id has small letters only, so that one name has one spelling: write {0:?}")]
    Large(String),
    /// The name of a request is empty.
    #[error("a request id may not be empty")]
    Empty,
    /// The name of a request is too long.
    #[error("a request id of {0} bytes is longer than the {REQUEST_BYTES_MAX} allowed")]
    TooLong(usize),
    /// The name of a request has a letter that cannot be printed.
    #[error("a request id has the letter {0:?}, which cannot be printed")]
    Unprintable(char),
}

impl TransferId {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Err(IdError::Missing);
        }
        let Some(uuid) = text.strip_prefix(PREFIX) else {
            return Err(IdError::Prefix(text.chars().take(64).collect()));
        };
        parse_uuid(uuid).map(Self)
    }

    /// The one of these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes, as they go over the wire.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A name for this attempt at this sample of a request that has a UUID. The first attempt at the first sample has the request's own
    /// UUID, so that logs can be read; all others have one that is made of the three.
    pub fn mint(request: &str, attempt: u32, sample: u32) -> Result<Self, IdError> {
        if request.is_empty() {
            return Err(IdError::Missing);
        }
        let uuid = parse_uuid(request)?;
        if (attempt, sample) == (0, 0) {
            return Ok(Self(uuid));
        }
        let mut digest = Blake2s::<U16>::new();
        digest.update(b"penstock transfer");
        digest.update(uuid);
        digest.update(attempt.to_le_bytes());
        digest.update(sample.to_le_bytes());
        let mut bytes: [u8; 16] = digest.finalize().into();
        // Version 8 and the usual variant: a UUID of somebody's own making.
        bytes[6] = bytes[6] & 0x0f | 0x80;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Self(bytes))
    }
}

fn parse_uuid(text: &str) -> Result<[u8; 16], IdError> {
    let letters = text.chars().count();
    if letters != UUID_LETTERS {
        return Err(IdError::Length(letters));
    }
    let (mut bytes, mut place, mut is_large) = ([0_u8; 16], 0, false);
    for (at, letter) in text.chars().enumerate() {
        if HYPHENS.contains(&at) {
            if letter != '-' {
                return Err(IdError::Hyphen { at: at + 1 });
            }
            continue;
        }
        let Some(digit) = letter.to_digit(16) else { return Err(IdError::Letter { at: at + 1, found: letter }) };
        is_large |= letter.is_ascii_uppercase();
        bytes[place / 2] = bytes[place / 2] << 4 | digit as u8;
        place += 1;
    }
    if is_large { Err(IdError::Large(text.to_ascii_lowercase())) } else { Ok(bytes) }
}

impl FromStr for TransferId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::parse(text)
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(PREFIX)?;
        for (place, byte) in self.0.iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                out.write_str("-")?;
            }
            write!(out, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TransferId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl RequestId {
    /// Of this text.
    pub fn new(text: &str) -> Result<Self, IdError> {
        match text.chars().find(|letter| letter.is_control()) {
            _ if text.is_empty() => Err(IdError::Empty),
            _ if text.len() > REQUEST_BYTES_MAX => Err(IdError::TooLong(text.len())),
            Some(letter) => Err(IdError::Unprintable(letter)),
            None => Ok(Self(text.into())),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequestId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::new(text)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

    #[test]
    fn a_name_has_one_spelling() {
        let id = TransferId::parse(&format!("xfer-{UUID}")).unwrap();
        assert_eq!((id.to_string(), id.as_bytes()[0]), (format!("xfer-{UUID}"), 0x6b));
        let large = TransferId::parse(&format!("xfer-{}", UUID.to_ascii_uppercase())).unwrap_err();
        assert_eq!(large, IdError::Large(UUID.to_owned()));
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_reason() {
        let refused = |text: &str| TransferId::parse(text).unwrap_err();
        assert_eq!(refused(""), IdError::Missing);
        assert_eq!(refused(UUID), IdError::Prefix(UUID.to_owned()));
        assert_eq!(refused(&format!("cmpl-{UUID}")), IdError::Prefix(format!("cmpl-{UUID}")));
        assert_eq!(refused("xfer-6ba7b810"), IdError::Length(8));
        assert_eq!(refused(&format!("xfer-{}", UUID.replace('-', "a"))), IdError::Hyphen { at: 9 });
        assert_eq!(refused(&format!("xfer-{}", UUID.replace('b', "g"))), IdError::Letter { at: 2, found: 'g' });
        assert_eq!(refused(&format!("xfer-{}", "é".repeat(36))), IdError::Letter { at: 1, found: 'é' });
    }

    #[test]
    fn a_retry_and_a_further_sample_have_names_of_their_own() {
        let mut names: Vec<TransferId> = (0..32)
            .flat_map(|attempt| (0..32).map(move |sample| TransferId::mint(UUID, attempt, sample).unwrap()))
            .collect();
        assert_eq!(names[0].to_string(), format!("xfer-{UUID}"));
        assert_eq!(TransferId::mint(UUID, 1, 0), Ok(names[32]), "the same name on both hosts");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 1024);
        assert_eq!(TransferId::mint("", 0, 0), Err(IdError::Missing));
        assert_eq!(TransferId::mint("cmpl-1", 0, 0), Err(IdError::Length(6)));
    }

    #[test]
    fn requests_are_called_as_their_scheduler_likes() {
        assert_eq!(RequestId::new("cmpl-1a-é").unwrap().as_str(), "cmpl-1a-é");
        assert_eq!(RequestId::new(""), Err(IdError::Empty));
        assert_eq!(RequestId::new("a\nb"), Err(IdError::Unprintable('\n')));
        assert_eq!(RequestId::new(&"a".repeat(257)), Err(IdError::TooLong(257)));
    }

    proptest! {
        #[test]
        fn every_name_reads_as_it_is_written(bytes: [u8; 16]) {
            let id = TransferId::from_bytes(bytes);
            prop_assert_eq!(TransferId::parse(&id.to_string()), Ok(id));
        }

        #[test]
        fn any_text_gives_a_name_or_a_reason(text in ".{0,80}") {
            let _ = TransferId::parse(&text);
            let _ = TransferId::parse(&format!("xfer-{text}"));
        }
    }
}
