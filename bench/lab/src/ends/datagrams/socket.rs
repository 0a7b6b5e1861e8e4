//! A bare UDP socket between two ends of this host, as quick as the kernel makes it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::{BareCarrier, refused};
use crate::error::LabError;
use crate::raw_stream::{set_buffers, set_segments};

/// What the kernel takes with one call.
const BURST_BYTES_MAX: usize = 65_507;
const BURST_FRAMES_MAX: usize = 64;
/// Asked for each buffer; a host may allow less.
const BUFFER_BYTES: u32 = 4 << 20;
/// What a socket charges for a packet beyond its bytes, at most.
const FRAME_CHARGE: usize = 896;

pub(super) struct BareSocket {
    socket: UdpSocket,
    frame_bytes: usize,
    window: usize,
    /// What is to be sent, and what has come.
    burst: Box<[u8]>,
    room: Box<[u8]>,
}

impl BareSocket {
    /// A socket at any port, for frames of so many bytes.
    pub(super) fn open(frame_bytes: usize) -> Result<Self, LabError> {
        if !(64..=BURST_BYTES_MAX).contains(&frame_bytes) {
            return Err(LabError::Option { option: "frame_bytes", mend: "a bare datagram has 64 to 65,507 bytes" });
        }
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused("open a bare socket"))?;
        // Both buffers are alike; the kernel says twice of what it grants, and gives a quarter of it back at once.
        let granted = set_buffers(&socket, BUFFER_BYTES).map_err(refused("size a bare socket's buffers"))?[1];
        let window = granted as usize / 4 * 3 / (frame_bytes + FRAME_CHARGE);
        if frame_bytes * 2 <= BURST_BYTES_MAX {
            set_segments(&socket, frame_bytes as u32).map_err(refused("have bursts cut and joined"))?;
        }
        let (burst, room) = (vec![0; 1 << 16].into(), vec![0; 1 << 16].into());
        Ok(Self { socket, frame_bytes, window: window.max(1), burst, room })
    }

    /// The other end is at this port.
    pub(super) fn connect(&self, port: u16) -> Result<(), LabError> {
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.socket.connect(there).map_err(refused("connect a bare socket"))?;
        self.socket.set_nonblocking(true).map_err(refused("make a bare socket look"))
    }

    pub(super) fn port(&self) -> Result<u16, LabError> {
        self.socket.local_addr().map(|address| address.port()).map_err(refused("find the port of a bare socket"))
    }
}

fn is_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl BareCarrier for BareSocket {
    fn burst(&self) -> usize {
        (BURST_BYTES_MAX / self.frame_bytes).min(BURST_FRAMES_MAX)
    }

    fn window(&self) -> usize {
        self.window
    }

    fn send(&mut self, frames: usize, write: &mut dyn FnMut(usize, &mut [u8]) -> usize) -> Result<bool, LabError> {
        let rooms = self.burst.chunks_mut(self.frame_bytes).take(frames).enumerate();
        let bytes = rooms.map(|(at, room)| write(at, room)).sum();
        match self.socket.send(&self.burst[..bytes]) {
            Ok(_) => Ok(true),
            Err(error) if is_later(&error) => Ok(false),
            Err(error) => Err(refused("send a bare datagram")(error)),
        }
    }

    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<bool, LabError> {
        match self.socket.recv(&mut self.room) {
            Ok(bytes) => {
                self.room[..bytes].chunks(self.frame_bytes).for_each(take);
                Ok(bytes > 0)
            }
            Err(error) if is_later(&error) => Ok(false),
            Err(error) => Err(refused("look at a bare socket")(error)),
        }
    }
}
