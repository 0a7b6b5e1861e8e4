//! A bare queue of DPDK between two ends that share memory (memif): bursts of frames whose headers nobody reads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock::{Config, SystemEnv};
use penstock_datagram_transport::dpdk::headers::HEADERS_BYTES;
use penstock_datagram_transport::dpdk::{BURST_MAX, DpdkOptions, DpdkPorts, Queue, Written};
use penstock_datagram_transport::port::PacketRoom;

use super::BareCarrier;
use crate::ends::memif::Memif;
use crate::error::LabError;

/// How long the other end may take.
const CONNECT: Duration = Duration::from_secs(10);

pub(super) struct BareQueue {
    queue: Queue,
    frame_bytes: usize,
    window: usize,
}

impl BareQueue {
    pub(super) fn open(memif: &Memif) -> Result<Self, LabError> {
        let config = Config { dpdk: memif.section(), ..Config::default() };
        let options = DpdkOptions::of(&config).expect("a memif is a device with an address");
        // Some of the memory between them holds what was read and not given back.
        let window = usize::from(options.queue_packets) - BURST_MAX;
        let ports = DpdkPorts::open(options, Arc::new(SystemEnv)).map_err(LabError::refused("open a bare queue"))?;
        let queue = ports.queue(0).map_err(LabError::refused("open a bare queue"))?;
        Ok(Self { queue, frame_bytes: memif.frame_bytes, window })
    }

    /// Waits for the other end.
    pub(super) fn connect(&mut self) -> Result<(), LabError> {
        let start = Instant::now();
        while !self.queue.is_up() {
            if start.elapsed() > CONNECT {
                return Err(LabError::Silent { doing: "open its end of a memif", waited: CONNECT });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl BareCarrier for BareQueue {
    fn burst(&self) -> usize {
        BURST_MAX
    }

    fn window(&self) -> usize {
        self.window
    }

    fn send(&mut self, frames: usize, write: &mut dyn FnMut(usize, &mut [u8]) -> usize) -> Result<bool, LabError> {
        if !self.queue.flush().1 {
            return Ok(false);
        }
        for at in 0..frames {
            let written = self.queue.write(|PacketRoom { bytes, .. }| {
                let room = bytes.get_mut(HEADERS_BYTES..)?.get_mut(..self.frame_bytes)?;
                Some(HEADERS_BYTES + write(at, room))
            });
            if written != Written::One {
                return Err(LabError::Silent { doing: "give back its buffers", waited: Duration::ZERO });
            }
        }
        // What has not left leaves with the next call.
        self.queue.flush();
        Ok(true)
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<bool, LabError> {
        self.queue.flush();
        let has_come = self.queue.receive() > 0;
        self.queue.arrived().filter_map(|frame| frame.get(HEADERS_BYTES..)).for_each(take);
        Ok(has_come)
    }
}
