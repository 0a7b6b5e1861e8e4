//! What carries packets between hosts, and tells the time.

use penstock_core::Timestamp;

/// What one engine has of the network between hosts.
///
/// A packet may vanish, come twice, late, and in any order. It comes whole or not at all.
pub trait Fabric: Send + Sync + 'static {
    /// The engine's own clock. It never goes back, and may be fast or slow.
    fn now(&self) -> Timestamp;

    /// Opens a port for the engine of this epoch. A number is given once in the life of the network.
    fn open(&self, engine: u64) -> u64;

    /// Closes a port: what is on its way to it goes nowhere.
    fn close(&self, port: u64);

    /// Sends a packet from one's own port to another one.
    fn send(&self, from: u64, to: u64, packet: Vec<u8>);

    /// A packet that has arrived at one's own port.
    fn receive(&self, port: u64) -> Option<Vec<u8>>;
}
