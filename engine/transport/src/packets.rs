//! What a transport counts whose packets may be lost on their way.

use std::ops::AddAssign;
use std::time::Duration;

macro_rules! packet_statistics {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What became of packets.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct PacketStatistics { $($(#[$doc])* pub $name: u64),+ }

        impl AddAssign for PacketStatistics {
            fn add_assign(&mut self, more: Self) { $(self.$name += more.$name;)+ }
        }
    };
}

packet_statistics! {
    /// Packets that were written to be sent.
    sent,
    /// Packets that were given up as lost.
    lost,
    /// Those of `lost` that had arrived after all: what they carried was sent twice for nothing.
    spurious,
    /// Messages that were sent again, in other packets.
    repeated,
    /// How often all that was under way was given up, because nothing was heard.
    timeouts,
    /// Packets that came and were taken.
    received,
    /// Messages of those packets that were dropped: their bytes were here already, or their operation had ended.
    late,
    /// Packets that were dropped: they are too short, or for no connection. Of all peers only.
    strangers,
    /// Packets that were dropped: their tag is wrong.
    forged,
    /// Packets that were dropped: their number has come before, or is too old to tell.
    replayed,
    /// Packets that were dropped: their payload does not have its checksum, or not its length.
    corrupt,
    /// Packets that the port dropped as they came, as a rule for want of room. Of all peers only.
    dropped_by_port,
    /// Packets that the port did not send, although they were given to it. Of all peers only.
    refused_by_port,
    /// How often the port had no room for more to send. Of all peers only.
    blocked,
}

impl PacketStatistics {
    /// The part of what was sent that was lost, from 0 to 1.
    pub fn loss(&self) -> f64 {
        self.lost.saturating_sub(self.spurious) as f64 / self.sent.max(1) as f64
    }
}

/// What became of the packets to and from one peer since its session began, and what the way to it is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerPackets {
    /// Counts of this session alone; what ports count is zero.
    pub packets: PacketStatistics,
    /// The smoothed round trip, of the slowest of its connections. Zero before the first answer.
    pub round_trip: Duration,
    /// Bytes that may be under way to it at once, of all its connections together.
    pub window_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_after_all_is_no_loss() {
        let mut sum = PacketStatistics { sent: 60, lost: 2, spurious: 1, ..PacketStatistics::default() };
        sum += PacketStatistics { sent: 40, lost: 4, blocked: 7, ..PacketStatistics::default() };
        assert_eq!((sum.sent, sum.lost, sum.blocked), (100, 6, 7));
        assert_eq!(sum.loss(), 0.05);
        assert_eq!(PacketStatistics::default().loss(), 0.0);
    }
}
