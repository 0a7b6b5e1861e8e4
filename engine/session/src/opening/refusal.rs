//! What a listener says in plain text before it closes a connection.

/// What a refusal begins with.
pub(crate) const REFUSAL_MAGIC: [u8; 4] = *b"PNSR";
const HEAD_BYTES: usize = 8;
/// The longest text of a refusal, in bytes.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 256;
/// The longest refusal, in bytes.
pub const REFUSAL_BYTES_MAX: usize = HEAD_BYTES + REFUSAL_TEXT_BYTES_MAX;

/// Why a connection is refused. Later releases may add codes; one that is not known is kept as its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpeningCode {
    /// The two sides do not share a secret.
    WrongSecret,
    /// The listener does not speak the caller's version.
    Version,
    /// The caller's address has called too often.
    RateLimited,
    /// The listener has too much to do.
    Busy,
    /// No session of the listener made this stream's token, or it was used before.
    BadToken,
    /// The listener did not understand what it was sent.
    Malformed,
    /// The listener is shutting down.
    Closing,
    /// A code of a later release.
    Other(u16),
}

impl OpeningCode {
    /// The code's number on the wire.
    pub const fn number(self) -> u16 {
        match self {
            Self::WrongSecret => 1,
            Self::Version => 2,
            Self::RateLimited => 3,
            Self::Busy => 4,
            Self::BadToken => 5,
            Self::Malformed => 6,
            Self::Closing => 7,
            Self::Other(number) => number,
        }
    }

    /// The code of this number.
    pub const fn of(number: u16) -> Self {
        match number {
            1 => Self::WrongSecret,
            2 => Self::Version,
            3 => Self::RateLimited,
            4 => Self::Busy,
            5 => Self::BadToken,
            6 => Self::Malformed,
            7 => Self::Closing,
            other => Self::Other(other),
        }
    }

    /// What to do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::WrongSecret => "the two hosts do not share a secret; copy one host's secret file to the other",
            Self::Version => "the two releases have no version in common; upgrade the older one",
            Self::RateLimited => "this host called too often; wait a little, and look for what calls in a loop",
            Self::Busy => "the other engine has too much to do; try again",
            Self::BadToken => "the session of this stream is over; connect anew",
            Self::Malformed => "the other engine did not understand what it was sent",
            Self::Closing => "the other engine is shutting down",
            Self::Other(_) => "a later release says so; its words tell more",
        }
    }
}

/// A refusal in plain text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: OpeningCode,
    /// Why, in words.
    pub text: String,
}

/// Why bytes are not a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefusalError {
    /// The first bytes are not those of a refusal.
    #[error("these bytes are not a refusal")]
    Magic,
    /// The text is longer than allowed.
    #[error("a refusal of {0} bytes of text is longer than the {REFUSAL_TEXT_BYTES_MAX} allowed")]
    TooLong(usize),
    /// The refusal is not complete, or goes on after its end.
    #[error("the refusal has another length than it says")]
    Length,
    /// The text is not UTF-8.
    #[error("the words of the refusal are not text")]
    Text,
}

impl Refusal {
    /// A refusal in these words.
    pub fn new(code: OpeningCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The refusal as bytes; words beyond the longest text are cut off.
    pub fn encode(&self) -> Vec<u8> {
        let text = &self.text[..self.text.floor_char_boundary(REFUSAL_TEXT_BYTES_MAX)];
        let mut bytes = REFUSAL_MAGIC.to_vec();
        bytes.extend_from_slice(&self.code.number().to_le_bytes());
        bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// The refusal that these bytes are.
    pub fn decode(bytes: &[u8]) -> Result<Self, RefusalError> {
        let mut decoder = RefusalDecoder::default();
        match decoder.push(bytes)? {
            Some((refusal, [])) => Ok(refusal),
            _ => Err(RefusalError::Length),
        }
    }
}

/// Collects bytes until they are a refusal, and no more of them than the longest has.
#[derive(Debug, Default)]
pub(crate) struct RefusalDecoder {
    bytes: Vec<u8>,
}

impl RefusalDecoder {
    /// Takes bytes as they came; answers with the refusal and what follows it.
    pub(crate) fn push<'a>(&mut self, mut bytes: &'a [u8]) -> Result<Option<(Refusal, &'a [u8])>, RefusalError> {
        loop {
            let wanted = self.wanted()?;
            if self.bytes.len() == wanted {
                return Ok(Some((self.parse()?, bytes)));
            }
            if bytes.is_empty() {
                return Ok(None);
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.bytes.len()));
            self.bytes.extend_from_slice(taken);
            bytes = rest;
        }
    }

    /// How many bytes there must be before more can be said.
    fn wanted(&self) -> Result<usize, RefusalError> {
        if self.bytes.iter().zip(REFUSAL_MAGIC).any(|(&found, expected)| found != expected) {
            return Err(RefusalError::Magic);
        }
        let Some(&[l0, l1]) = self.bytes.get(6..HEAD_BYTES) else { return Ok(HEAD_BYTES) };
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        if length > REFUSAL_TEXT_BYTES_MAX { Err(RefusalError::TooLong(length)) } else { Ok(HEAD_BYTES + length) }
    }

    fn parse(&self) -> Result<Refusal, RefusalError> {
        let code = OpeningCode::of(u16::from_le_bytes([self.bytes[4], self.bytes[5]]));
        let text = std::str::from_utf8(&self.bytes[HEAD_BYTES..]).map_err(|_| RefusalError::Text)?;
        Ok(Refusal { code, text: text.to_owned() })
    }
}
