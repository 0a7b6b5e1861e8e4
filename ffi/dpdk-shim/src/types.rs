//! Structures that both sides of the shim know. Their sizes are compared when it is opened.

use std::ffi::c_void;

/// What a port is: `struct penstock_dpdk_facts`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DpdkFacts {
    /// The name of its driver, with a zero behind it.
    pub driver: [u8; 32],
    pub mac: [u8; 6],
    /// Queues of each kind at most.
    pub queues_max: u16,
    /// Bytes of an IP packet: as it is set, and at most.
    pub mtu: u16,
    pub mtu_max: u16,
}

impl DpdkFacts {
    /// The name of its driver.
    pub fn driver(&self) -> String {
        String::from_utf8_lossy(self.driver.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
    }
}

/// How a port is opened: `struct penstock_dpdk_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpdkOptions {
    pub queues: u16,
    /// Packets that wait in each queue, at most.
    pub receive_packets: u16,
    pub send_packets: u16,
    /// Bytes of an IP packet at most; 0: as the port has it.
    pub mtu: u16,
    /// Whether it opens although its other end is not there.
    pub waits: u16,
}

/// What has happened at a port since it was opened: `struct penstock_dpdk_counts`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DpdkCounts {
    pub received: u64,
    pub sent: u64,
    /// Packets that had no room in the receive queue, or no buffer.
    pub missed: u64,
    pub receive_errors: u64,
    pub send_errors: u64,
}

/// A packet, from its Ethernet header on: `struct penstock_dpdk_packet`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpdkPacket {
    /// DPDK's.
    pub buffer: *mut c_void,
    pub bytes: *mut u8,
    pub len: u32,
    /// Of one that has come: [`DpdkPacket::IS_WRONG`], [`DpdkPacket::IS_IN_PIECES`].
    pub flags: u32,
}

impl DpdkPacket {
    /// The port found its IPv4 or UDP checksum wrong.
    pub const IS_WRONG: u32 = 1;
    /// It does not lie in one piece.
    pub const IS_IN_PIECES: u32 = 2;

    /// A place for one.
    pub const NONE: Self = Self { buffer: std::ptr::null_mut(), bytes: std::ptr::null_mut(), len: 0, flags: 0 };
}

/// Memory that is sent from where it lies: `struct penstock_dpdk_piece`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpdkPiece {
    pub address: u64,
    pub len: u64,
}

/// As `penstock_dpdk_sizes` answers.
pub(crate) const SIZES: u64 = size_of::<DpdkFacts>() as u64
    | (size_of::<DpdkOptions>() as u64) << 16
    | (size_of::<DpdkCounts>() as u64) << 32
    | (size_of::<DpdkPacket>() as u64) << 48;
