//! The one Noise handshake that is spoken here, with randomness as an argument.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

use crate::secret::Secret;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const SEED_BYTES: usize = 32;

/// The caller's side of a new handshake over `prologue`.
pub(super) fn caller(secret: &Secret, prologue: &[u8], random: &mut dyn FnMut(&mut [u8])) -> HandshakeState {
    let built =
        builder(random).psk(0, secret.bytes()).and_then(|builder| builder.prologue(prologue)?.build_initiator());
    built.expect(COMPLETE)
}

/// The listener's side of a new handshake over `prologue`.
pub(super) fn listener(secret: &Secret, prologue: &[u8], random: &mut dyn FnMut(&mut [u8])) -> HandshakeState {
    let built =
        builder(random).psk(0, secret.bytes()).and_then(|builder| builder.prologue(prologue)?.build_responder());
    built.expect(COMPLETE)
}

const COMPLETE: &str = "the pattern needs a secret and no other key, and its suite is compiled in";

fn builder<'key>(random: &mut dyn FnMut(&mut [u8])) -> Builder<'key> {
    let mut seed = [0; SEED_BYTES];
    random(&mut seed);
    let pattern = PATTERN.parse().expect("the pattern is a constant that snow knows");
    Builder::with_resolver(pattern, Box::new(Seeded(seed)))
}

/// Everything as usual but for randomness.
struct Seeded([u8; SEED_BYTES]);

impl CryptoResolver for Seeded {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Gives its bytes once: a handshake of this pattern makes one key, and none may be made of the same bytes.
struct Once(Option<[u8; SEED_BYTES]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        let seed = self.0.take().filter(|seed| seed.len() == dest.len()).ok_or(Error::Rng)?;
        dest.copy_from_slice(&seed);
        Ok(())
    }
}
