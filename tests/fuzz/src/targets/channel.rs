//! A sealed channel whose other end, or whoever sits between, says anything.

use penstock_session::opening::CHANNEL_OPENING_BYTES;
use penstock_session::{ChannelError, Secret, SecureChannel};

/// Who hears the input and when: the first byte of it, by its lowest two bits.
pub mod hears {
    /// The caller, from the second message on.
    pub const CALLER: u8 = 0;
    /// The listener, from the first message on.
    pub const LISTENER: u8 = 1;
    /// The caller, once the channel is open.
    pub const OPEN_CALLER: u8 = 2;
    /// The listener, once the channel is open.
    pub const OPEN_LISTENER: u8 = 3;
}

/// What each side of the honest conversation says, one sealed message or more each.
const SAID: [&[u8]; 5] = [b"hello", &[7; 700], b"", &[9; 1200], b"goodbye"];

/// The honest conversation: nothing in it is random, so it is the same each time.
#[derive(Debug)]
pub struct Conversation {
    /// The caller's first message.
    pub first: Vec<u8>,
    /// The listener's answer.
    pub second: Vec<u8>,
    /// What each side seals after that, message by message.
    pub sealed: Vec<Vec<u8>>,
    /// The same, sealed by the listener.
    pub sealed_back: Vec<Vec<u8>>,
}

fn pair() -> (SecureChannel, SecureChannel) {
    let secret = Secret::new([0x5a; 32]);
    let caller = SecureChannel::caller(&secret, &mut |bytes| bytes.fill(1));
    let listener = SecureChannel::listener(&secret, &mut |bytes| bytes.fill(2));
    (caller, listener)
}

fn outgoing(channel: &mut SecureChannel) -> Vec<u8> {
    let mut bytes = Vec::new();
    channel.take_outgoing(&mut bytes);
    bytes
}

fn handshake() -> (SecureChannel, SecureChannel, Vec<u8>, Vec<u8>) {
    let (mut caller, mut listener) = pair();
    let first = outgoing(&mut caller).split_off(CHANNEL_OPENING_BYTES);
    listener.receive(&first).expect("the two share a secret");
    let second = outgoing(&mut listener);
    caller.receive(&second).expect("the two share a secret");
    (caller, listener, first, second)
}

impl Conversation {
    /// Holds it.
    pub fn new() -> Self {
        let (mut caller, mut listener, first, second) = handshake();
        let seal = |channel: &mut SecureChannel| {
            let seal_one = |words: &&[u8]| {
                channel.send(words).expect("the channel is open");
                outgoing(channel)
            };
            SAID.iter().map(seal_one).collect()
        };
        Self { first, second, sealed: seal(&mut caller), sealed_back: seal(&mut listener) }
    }
}

impl Default for Conversation {
    fn default() -> Self {
        Self::new()
    }
}

/// What became of one end: its words, how it ended, and whether it trusts the other.
type Heard = (Vec<u8>, Result<(), ChannelError>, bool);

/// Any bytes open a channel, are the beginning of a message, or end it with a typed error; however they are cut
/// it is the same. What comes out is the beginning of what the honest other end said, and of nothing else: also
/// with changes, repetitions and omissions. A channel that ended stays ended.
pub fn run(input: &[u8]) {
    let Some((&who, bytes)) = input.split_first() else { return };
    let whole = hear(who, [bytes].into_iter());
    let pieces = hear(who, super::cut(bytes).into_iter());
    assert_eq!(whole, pieces, "cutting the stream changes what is heard");
    let said = SAID.concat();
    assert!(said.starts_with(&whole.0), "words come out that nobody said");
}

/// Gives the input to one end.
pub fn parse(input: &[u8]) {
    let Some((&who, bytes)) = input.split_first() else { return };
    let (mut caller, mut listener) = pair();
    let channel = if who & 1 == hears::CALLER { &mut caller } else { &mut listener };
    let _ = channel.receive(bytes);
}

fn hear<'a>(who: u8, pieces: impl Iterator<Item = &'a [u8]>) -> Heard {
    let (caller, listener) = if who & 2 == 0 {
        pair()
    } else {
        let (caller, listener, ..) = handshake();
        (caller, listener)
    };
    let mut channel = if who & 1 == hears::CALLER { caller } else { listener };
    let mut end = Ok(());
    for piece in pieces {
        end = channel.receive(piece);
        if let Err(error) = &end {
            assert_eq!(channel.receive(piece).as_ref(), Err(error), "a channel that ended goes on");
            assert!(!channel.is_open() && channel.handshake_hash().is_none());
            break;
        }
    }
    let mut words = Vec::new();
    channel.take_plaintext(&mut words);
    assert!(words.is_empty() || channel.is_confirmed() || end.is_err(), "words of a stranger come out");
    (words, end, channel.is_confirmed())
}
