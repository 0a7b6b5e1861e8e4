//! The secret that the engines of one group share: who has it belongs to the group.
//!
//! As text it is one line of 64 hexadecimal digits; lines that begin with `#` and empty lines say nothing.
//! Where the text lies and who may read it is for others to see to.

use std::fmt;

/// Bytes of a secret.
pub const SECRET_BYTES: usize = 32;
/// The longest text that is looked at, in bytes: the digits and some words about them.
pub const SECRET_TEXT_BYTES_MAX: usize = 4096;

const DIGITS: usize = 2 * SECRET_BYTES;

/// A shared secret. It is never shown and its memory is cleared when it goes.
pub struct Secret([u8; SECRET_BYTES]);

/// Why a text is not a secret. None of these repeats what the text says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There are no digits.
    #[error(
        "there is no secret in this text; put one line of {DIGITS} hexadecimal digits there, the same on every host"
    )]
    Empty,
    /// The text is far longer than a secret and some words.
    #[error(
        "a text of {0} bytes is not a secret; it may have {SECRET_TEXT_BYTES_MAX}, one line of them {DIGITS} hexadecimal digits"
    )]
    TextTooLong(usize),
    /// The line has too few characters or too many.
    #[error(
        "line {line} has {found} characters where a secret has {DIGITS}; copy the whole line from a host that works"
    )]
    Length {
        /// Which line, from 1.
        line: usize,
        /// How many characters it has.
        found: usize,
    },
    /// A character is no hexadecimal digit.
    #[error("character {column} of line {line} is no hexadecimal digit; copy the whole line from a host that works")]
    Digit {
        /// Which line, from 1.
        line: usize,
        /// Which character, from 1.
        column: usize,
    },
    /// There is more than one secret.
    #[error("line {0} is a second secret; a group has one: keep the line that the other hosts have")]
    Second(usize),
}

impl Secret {
    /// A secret of these bytes.
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// A new secret; `random` fills what it is given with unpredictable bytes.
    pub fn generate(random: &mut dyn FnMut(&mut [u8])) -> Self {
        let mut secret = Self([0; SECRET_BYTES]);
        random(&mut secret.0);
        secret
    }

    /// The secret in this text.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        if text.len() > SECRET_TEXT_BYTES_MAX {
            return Err(SecretError::TextTooLong(text.len()));
        }
        let lines = text.lines().enumerate().map(|(place, words)| (place + 1, words.trim()));
        let mut telling = lines.filter(|(_, words)| !words.is_empty() && !words.starts_with('#'));
        let (line, digits) = telling.next().ok_or(SecretError::Empty)?;
        let secret = Self::parse_line(line, digits)?;
        match telling.next() {
            Some((line, _)) => Err(SecretError::Second(line)),
            None => Ok(secret),
        }
    }

    fn parse_line(line: usize, digits: &str) -> Result<Self, SecretError> {
        let mut secret = Self([0; SECRET_BYTES]);
        let mut found = 0;
        for (place, character) in digits.chars().enumerate() {
            let digit = character.to_digit(16).ok_or(SecretError::Digit { line, column: place + 1 })?;
            if let Some(byte) = secret.0.get_mut(place / 2) {
                *byte = *byte << 4 | digit as u8;
            }
            found += 1;
        }
        if found != DIGITS { Err(SecretError::Length { line, found }) } else { Ok(secret) }
    }

    /// The secret as a line of text, with its end.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(DIGITS + 1);
        for byte in self.0 {
            text.extend([byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')));
        }
        text.push('\n');
        text
    }

    pub(crate) const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Clone for Secret {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0 = [0; SECRET_BYTES];
        // The compiler may not leave out a store whose result is looked at.
        std::hint::black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "00112233445566778899aabbccddeeff0123456789abcdefFEDCBA9876543210";

    fn same(text: &str) {
        assert_eq!(Secret::parse(text).unwrap().to_text(), format!("{}\n", LINE.to_lowercase()), "{text:?}");
    }

    #[test]
    fn a_line_of_digits_is_a_secret_with_words_around_it() {
        same(LINE);
        same(&format!("{LINE}\n"));
        same(&format!("# of the lab\n\n  {LINE}\r\n# keep it\n\n"));
    }

    #[test]
    fn a_new_secret_comes_through_its_text() {
        let mut next = 0;
        let secret = Secret::generate(&mut |bytes| {
            bytes.iter_mut().for_each(|byte| {
                next += 7;
                *byte = next;
            });
        });
        assert_eq!(Secret::parse(&secret.to_text()).unwrap().bytes(), secret.bytes());
        assert_eq!(secret.bytes()[..2], [7, 14]);
    }

    #[test]
    fn what_is_no_secret_is_told_without_telling_it() {
        let wrong = |text: &str| Secret::parse(text).unwrap_err();
        assert_eq!(wrong(""), SecretError::Empty);
        assert_eq!(wrong("\n# nothing\n"), SecretError::Empty);
        assert_eq!(wrong(&LINE[1..]), SecretError::Length { line: 1, found: 63 });
        assert_eq!(wrong(&format!("#\n{LINE}00")), SecretError::Length { line: 2, found: 66 });
        assert_eq!(wrong(&LINE.replace('8', "x")), SecretError::Digit { line: 1, column: 17 });
        assert_eq!(wrong(&format!("{LINE}\n#\n{LINE}")), SecretError::Second(3));
        assert_eq!(wrong(&"#".repeat(4097)), SecretError::TextTooLong(4097));
        assert!(!wrong(&LINE.replace('8', "x")).to_string().contains("0011"));
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new([7; 32])), "Secret(..)");
    }
}
