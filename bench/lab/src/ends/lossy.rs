//! A port for packets that is worse than another one: it loses a part of what it sends, as a way between hosts does, or leaves it to the packets to
//! say whether they came as they left.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock::{Config, Engine, StartError, SystemEnv};
use penstock_datagram_transport::dpdk::{DpdkOptions, DpdkPorts};
use penstock_datagram_transport::port::{BurstSent, PacketRoom, PortFacts, Train};
use penstock_datagram_transport::udp::{UdpOptions, UdpPort};
use penstock_datagram_transport::{DatagramOptions, DatagramTransport, OpenPort, Port};

/// The whole, in the parts that a loss is said in.
const MILLION: u64 = 1_000_000;

struct LossyPort {
    inner: Box<dyn Port>,
    facts: PortFacts,
    loss_ppm: u64,
    random: u64,
}

impl Port for LossyPort {
    fn facts(&self) -> &PortFacts {
        &self.facts
    }

    fn frame_bytes(&self, to: SocketAddr) -> io::Result<usize> {
        self.inner.frame_bytes(to)
    }

    fn admit(&mut self, prefix: u32, frame_bytes: usize) {
        self.inner.admit(prefix, frame_bytes);
    }

    fn receive(&mut self, take: &mut dyn FnMut(Train<'_>)) -> usize {
        self.inner.receive(take)
    }

    fn send(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> BurstSent {
        let Self { inner, loss_ppm, random, .. } = self;
        inner.send(to, frame_bytes, &mut |mut room| {
            loop {
                let bytes = fill(room.reborrow())?;
                // One of Marsaglia's generators.
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                if *random % MILLION >= *loss_ppm {
                    return Some(bytes);
                }
            }
        })
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
}

/// Starts an engine whose packets are lost on their way, so many of a million, or carry checksums.
pub(super) fn start(config: Config, loss_ppm: u32, needs_checksums: bool) -> Result<Engine, StartError> {
    let (frame_bytes_max, heartbeat) = (config.datagram.frame_bytes, config.session.heartbeat_ms);
    let device = DpdkOptions::of(&config);
    Engine::start_making(SystemEnv, config, |segments, registry| {
        let device = device.map(|options| DpdkPorts::open(options, Arc::new(SystemEnv))).transpose()?;
        let opens_at_start = device.is_some();
        let open: OpenPort = Arc::new(move |worker| {
            let inner: Box<dyn Port> = match &device {
                Some(device) => Box::new(device.port(worker)?),
                None => {
                    let bind = SocketAddr::from(([127, 0, 0, 1], 0));
                    let usual = UdpOptions { bind, receive_bytes: 0, send_bytes: 0, segmentation: true };
                    Box::new(UdpPort::open(usual)?)
                }
            };
            let facts = PortFacts { needs_checksums, ..inner.facts().clone() };
            Ok(Box::new(LossyPort { inner, facts, loss_ppm: loss_ppm.into(), random: 0x9e37_79b9_7f4a_7c15 }))
        });
        let options = DatagramOptions { patience: Duration::from_millis(heartbeat), frame_bytes_max, opens_at_start };
        let (segments, registry) = (Arc::clone(segments), Arc::clone(registry));
        Ok(vec![Arc::new(DatagramTransport::new(segments, registry, Arc::new(SystemEnv), open, options)?)])
    })
}
