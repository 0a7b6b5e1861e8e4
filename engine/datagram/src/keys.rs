//! ConnectionKeys of a connection, one for each direction, from the halves that both sides have exchanged in secret.

use blake2::Blake2sMac;
use blake2::digest::consts::U16;
use blake2::digest::{KeyInit, Mac};

use crate::siphash::SipKey;

/// One side's half, fresh and random for each connection. It travels inside the sealed control connection.
pub type HalfKey = [u8; 32];

/// The keys of one side of a connection.
pub struct ConnectionKeys {
    pub(crate) transmit: SipKey,
    pub(crate) receive: SipKey,
}

impl ConnectionKeys {
    /// Derives both keys. `local_connection` is the id under which this side receives, `remote_connection` the peer's.
    pub fn derive(local: &HalfKey, remote: &HalfKey, local_connection: u64, remote_connection: u64) -> Self {
        Self {
            transmit: direction(local, remote, remote_connection),
            receive: direction(remote, local, local_connection),
        }
    }

    /// The tag of a packet to the peer whose header, without it, are these bytes.
    pub fn transmit_tag(&self, signed: &[u8]) -> u64 {
        self.transmit.tag(signed)
    }
}

/// The key for packets from the side with the first half to the connection of the other.
fn direction(sender: &HalfKey, receiver: &HalfKey, connection: u64) -> SipKey {
    let mut mac: Blake2sMac<U16> = KeyInit::new(sender.into());
    mac.update(b"penstock datagram 1");
    mac.update(receiver);
    mac.update(&connection.to_le_bytes());
    SipKey::new(mac.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_the_same_and_each_direction_its_own() {
        let (a, b) = ([1; 32], [2; 32]);
        let (one, two) = (ConnectionKeys::derive(&a, &b, 7, 9), ConnectionKeys::derive(&b, &a, 9, 7));
        let tags = |keys: &ConnectionKeys| (keys.transmit.tag(b"packet"), keys.receive.tag(b"packet"));
        let ((to, from), (back, forth)) = (tags(&one), tags(&two));
        assert_eq!((to, from), (forth, back));
        assert_ne!(to, from);
        for other in [
            ConnectionKeys::derive(&[3; 32], &b, 7, 9),
            ConnectionKeys::derive(&a, &[3; 32], 7, 9),
            ConnectionKeys::derive(&a, &b, 7, 8),
        ] {
            assert_ne!(tags(&other).0, to);
        }
    }
}
