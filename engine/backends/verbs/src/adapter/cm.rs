//! How two queues come to be connected by the connection manager (`rdma_cm`), and what the one that calls says first.

use std::fmt;
use std::net::SocketAddr;

use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 16;

/// Bytes of what a caller says: what it is, of which version, and the token. Callers may say 56 bytes over InfiniBand and RoCE; what
/// of them is not said arrives as zeros.
pub const ASKING_BYTES: usize = 8 + TOKEN_BYTES;

/// What a call of this backend begins with.
const MARK: [u8; 4] = *b"PNSK";

/// The version of what follows.
const VERSION: u8 = 1;

/// What one life of one queue is asked for by: told over the session's sealed channel, and good for one call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// One that nobody can guess.
    pub fn random() -> std::io::Result<Self> {
        let (mut bytes, mut filled) = ([0; TOKEN_BYTES], 0);
        while filled < TOKEN_BYTES {
            match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(bytes))
    }

    /// What a caller says.
    pub fn asking(&self) -> [u8; ASKING_BYTES] {
        let mut said = [0; ASKING_BYTES];
        said[..4].copy_from_slice(&MARK);
        said[4] = VERSION;
        said[8..].copy_from_slice(&self.0);
        said
    }

    /// The token of what a caller said, if it is such. Any bytes may come.
    pub fn asked(said: &[u8]) -> Option<Self> {
        let (mark, rest) = said.split_first_chunk::<4>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (token, zeros) = rest.split_first_chunk::<TOKEN_BYTES>()?;
        let is_ours = *mark == MARK && *version == [VERSION, 0, 0, 0] && zeros.iter().all(|byte| *byte == 0);
        is_ours.then_some(Self(*token))
    }
}

/// How a queue meets its other end. Of the two one calls and the other one waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CmConnect {
    /// Where the other end's adapter is called; none: this one waits to be called.
    pub call: Option<SocketAddr>,
    /// The token of the one that waits.
    pub token: Token,
}

/// How far a queue has come that is to be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connected {
    Yes,
    /// It will be told: by an event, or as an error of [`QueuePair::cm_state`](super::QueuePair::cm_state).
    NotYet,
}

/// Why two queues have not met, or are together no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The address leads nowhere from this adapter.
    #[error("no way leads there from this card")]
    NoWay,
    /// There is nobody at that address who could be asked.
    #[error("nobody listens there")]
    NobodyListens,
    /// The other side does not know the token, or has had a call with it.
    #[error("the other side does not expect this call")]
    NotExpected,
    /// No answer came, or no call.
    #[error("the other side does not answer")]
    Silence,
    /// They had met, and the other side has ended it.
    #[error("the other side has ended the connection")]
    Ended,
    /// The adapter was taken away.
    #[error("the card was taken away")]
    CardGone,
    /// The connection manager's own number for something else.
    #[error("the connection manager's status {0}")]
    Other(i32),
}

impl CmError {
    /// What to do about it.
    pub fn mend(self) -> &'static str {
        match self {
            Self::NoWay => "look at routes and neighbours of the network device behind this card",
            Self::NobodyListens => {
                "look whether the peer's engine still runs, and whether packets to its card are let through"
            }
            Self::NotExpected => "nothing is to be done if it is rare: both sides begin again with a new token",
            Self::Silence => "look whether the peer's port is up and packets to it are let through",
            Self::Ended => "nothing is to be done: the queue is connected again while the peer lives",
            Self::CardGone => "look at the kernel's messages",
            Self::Other(_) => "look at the kernel's messages, and at `rdma resource show cm_id`",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tokens_are_not_given_out_twice_and_not_shown() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_ne!(one, other);
        assert_ne!(one, Token([0; TOKEN_BYTES]));
        assert_eq!(format!("{one:?}"), "Token(..)");
    }

    #[test]
    fn what_a_caller_says_is_read_with_the_zeros_that_the_card_adds() {
        let token = Token::random().unwrap();
        assert_eq!(Token::asked(&token.asking()), Some(token));
        assert_eq!(Token::asked(&[&token.asking()[..], &[0; 32]].concat()), Some(token));
        for wrong in [&token.asking()[1..], &token.asking()[..ASKING_BYTES - 1], b""] {
            assert_eq!(Token::asked(wrong), None);
        }
        assert_eq!(Token::asked(&[&token.asking()[..], &[0, 1]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_call_or_none(
            said in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200),
                prop::collection::vec(any::<u8>(), 0..100).prop_map(|rest| [&MARK[..], &[VERSION, 0, 0, 0], &rest].concat()),
            ],
        ) {
            if let Some(token) = Token::asked(&said) {
                prop_assert_eq!(&token.asking()[..], &said[..ASKING_BYTES]);
                prop_assert!(said[ASKING_BYTES..].iter().all(|byte| *byte == 0));
            }
        }

        #[test]
        fn a_changed_bit_of_what_says_whose_call_it_is_makes_it_none(bit in 0usize..64) {
            let mut said = Token([7; TOKEN_BYTES]).asking();
            said[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Token::asked(&said), None);
        }
    }
}
