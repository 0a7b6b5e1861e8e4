//! What became of packets.

use std::time::Duration;

use penstock::{Engine, PacketStatistics, Peer, PeerPackets, SystemEnv};

use crate::arguments::{Versioned, write_sized};
use crate::call::call;
use crate::engine::{penstock_engine, penstock_peer};
use crate::failure::Failure;
use crate::objects::find;
use crate::status::penstock_status;

/// What became of packets, of transports that have some of their own (`datagram`); the kernel counts those of `tcp`, and cards those of `verbs`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_packet_statistics {
    /// Set by the caller: `sizeof(penstock_packet_statistics)`.
    pub size: usize,
    /// Packets that were written to be sent.
    pub sent: u64,
    /// Packets that were given up as lost.
    pub lost: u64,
    /// Those of `lost` that had arrived after all: what they carried was sent twice for nothing.
    pub spurious: u64,
    /// Messages that were sent again, in other packets.
    pub repeated: u64,
    /// How often all that was under way was given up, because nothing was heard.
    pub timeouts: u64,
    /// Packets that came and were taken.
    pub received: u64,
    /// Messages of those packets that were dropped: their bytes were here already, or their operation had ended.
    pub late: u64,
    /// Packets that were dropped: they are too short, or for no connection. Of an engine only.
    pub strangers: u64,
    /// Packets that were dropped: their tag is wrong.
    pub forged: u64,
    /// Packets that were dropped: their number has come before, or is too old to tell.
    pub replayed: u64,
    /// Packets that were dropped: their payload does not have its checksum, or not its length.
    pub corrupt: u64,
    /// Packets that the port dropped as they came, as a rule for want of room. Of an engine only.
    pub dropped_by_port: u64,
    /// Packets that the port did not send, although they were given to it. Of an engine only.
    pub refused_by_port: u64,
    /// How often the port had no room for more to send. Of an engine only.
    pub blocked: u64,
    /// The smoothed round trip to a peer in nanoseconds; 0 before its first answer, and of an engine.
    pub round_trip_ns: u64,
    /// Bytes that may be under way to a peer at once; 0 of an engine.
    pub window_bytes: u64,
}

impl Versioned for penstock_packet_statistics {
    fn size(&self) -> usize {
        self.size
    }
}

impl From<PeerPackets> for penstock_packet_statistics {
    fn from(PeerPackets { packets, round_trip, window_bytes }: PeerPackets) -> Self {
        let PacketStatistics {
            sent,
            lost,
            spurious,
            repeated,
            timeouts,
            received,
            late,
            strangers,
            forged,
            replayed,
            corrupt,
            dropped_by_port,
            refused_by_port,
            blocked,
        } = packets;
        let round_trip_ns = round_trip.as_nanos() as u64;
        Self {
            size: 0,
            sent,
            lost,
            spurious,
            repeated,
            timeouts,
            received,
            late,
            strangers,
            forged,
            replayed,
            corrupt,
            dropped_by_port,
            refused_by_port,
            blocked,
            round_trip_ns,
            window_bytes,
        }
    }
}

/// What has become of the packets of all peers since the engine started. Any thread.
///
/// # Safety
/// `statistics` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_packet_statistics(
    engine: penstock_engine,
    statistics: *mut penstock_packet_statistics,
) -> penstock_status {
    call(|| {
        let packets = find::<Engine>(engine)?.packet_statistics();
        let found = PeerPackets { packets, round_trip: Duration::ZERO, window_bytes: 0 };
        // SAFETY: the caller's promise.
        unsafe { write_sized(statistics, found.into()) }
    })
}

/// What has become of the packets to a peer and from it since its session began; all 0 where its transport has none of its own, and as `penstock_peer_state`
/// where the session has ended. Any thread.
///
/// # Safety
/// `statistics` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_packet_statistics(
    peer: penstock_peer,
    statistics: *mut penstock_packet_statistics,
) -> penstock_status {
    call(|| {
        let peer = find::<Peer<SystemEnv>>(peer)?;
        if let Some(cause) = peer.ended() {
            return Err(Failure::ended(cause, peer.name(), peer.loss()));
        }
        // SAFETY: the caller's promise.
        unsafe { write_sized(statistics, peer.packets().unwrap_or_default().into()) }
    })
}
