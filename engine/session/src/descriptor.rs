//! The portable descriptor of an engine: bytes that can travel by any means.
//!
//! ```text
//! "PNSC" | version u16 | body (postcard) | checksum u64 (FNV-1a over everything before it)
//! ```
//!
//! A descriptor says where an engine is, not what it offers: regions are advertised inside the session,
//! so a descriptor stays valid while regions come and go, and ends with the engine's epoch.
//!
//! Versions: version 1 has no addresses, version 2 adds them to the end of the body. A descriptor is written in the
//! lowest version that can say what it says, so that a release that reads version 1 only still reads every
//! descriptor without addresses. A version that is not known is refused by its number: what it means cannot be
//! guessed.

use core::net::SocketAddr;

use serde::Deserialize;

const MAGIC: [u8; 4] = *b"PNSC";
const WITHOUT_ADDRESSES: u16 = 1;
const WITH_ADDRESSES: u16 = 2;
const CHECKSUM_BYTES: usize = 8;
/// The most addresses of one engine.
pub const ADDRESSES_MAX: usize = 16;
/// The longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 64;
/// The longest descriptor, in bytes.
pub const DESCRIPTOR_BYTES_MAX: usize = 4096;

/// Where an engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineDescriptor {
    /// The engine's name.
    pub name: String,
    /// The engine's epoch.
    pub epoch: u64,
    /// Which host it runs on (a digest of the kernel's boot id).
    pub host: u64,
    /// The path of its rendezvous socket.
    pub socket: String,
    /// Where it listens for other hosts, as `ip:port` or `[ip]:port`, best first; none if it does not.
    pub addresses: Vec<String>,
}

/// A descriptor's body in version 1.
#[derive(Deserialize)]
struct Plain {
    name: String,
    epoch: u64,
    host: u64,
    socket: String,
}

/// Why bytes are not a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// Not a descriptor at all.
    #[error("these bytes are not an engine's descriptor; pass on all bytes of a descriptor, unchanged")]
    NotACard,
    /// A version this release does not read.
    #[error("descriptor version {0} is not read here (this release reads {WITHOUT_ADDRESSES} and {WITH_ADDRESSES})")]
    Version(u16),
    /// Damaged on the way.
    #[error("the descriptor was damaged on its way (its checksum does not fit)")]
    Damaged,
    /// More addresses than an engine may have.
    #[error("a descriptor with {0} addresses has more than the {ADDRESSES_MAX} allowed")]
    TooManyAddresses(usize),
    /// An address that is none.
    #[error("address {0} of the descriptor is not of the form `ip:port` or `[ip]:port`")]
    Address(usize),
}

/// Whether these addresses may stand in a descriptor.
pub fn check_addresses(addresses: &[String]) -> Result<(), DescriptorError> {
    if addresses.len() > ADDRESSES_MAX {
        return Err(DescriptorError::TooManyAddresses(addresses.len()));
    }
    let is_address = |text: &String| text.len() <= ADDRESS_BYTES_MAX && text.parse::<SocketAddr>().is_ok();
    match addresses.iter().position(|text| !is_address(text)) {
        Some(place) => Err(DescriptorError::Address(place)),
        None => Ok(()),
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    digest.to_le_bytes()
}

impl EngineDescriptor {
    /// The descriptor as bytes. Its addresses are as [`check_addresses`] wants them, or nobody reads it.
    pub fn encode(&self) -> Vec<u8> {
        let version = if self.addresses.is_empty() { WITHOUT_ADDRESSES } else { WITH_ADDRESSES };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        let plain = (&self.name, self.epoch, self.host, &self.socket);
        bytes.extend(postcard::to_stdvec(&plain).expect(ENCODES));
        if version == WITH_ADDRESSES {
            bytes.extend(postcard::to_stdvec(&self.addresses).expect(ENCODES));
        }
        bytes.extend(checksum(&bytes));
        bytes
    }

    /// The descriptor in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DescriptorError> {
        let head = MAGIC.len() + 2;
        if bytes.len() < head + CHECKSUM_BYTES || bytes.len() > DESCRIPTOR_BYTES_MAX || bytes[..4] != MAGIC {
            return Err(DescriptorError::NotACard);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != WITHOUT_ADDRESSES && version != WITH_ADDRESSES {
            return Err(DescriptorError::Version(version));
        }
        let (signed, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        if checksum(signed) != sum {
            return Err(DescriptorError::Damaged);
        }
        let body: Result<(Plain, &[u8]), _> = postcard::take_from_bytes(&signed[head..]);
        let (Plain { name, epoch, host, socket }, rest) = body.map_err(|_| DescriptorError::Damaged)?;
        let addresses = if version == WITH_ADDRESSES { addresses_of(rest)? } else { none_of(rest)? };
        Ok(Self { name, epoch, host, socket, addresses })
    }
}

const ENCODES: &str = "plain data encodes into a growing vector";

fn addresses_of(bytes: &[u8]) -> Result<Vec<String>, DescriptorError> {
    let (addresses, rest): (Vec<String>, _) = postcard::take_from_bytes(bytes).map_err(|_| DescriptorError::Damaged)?;
    none_of::<()>(rest)?;
    check_addresses(&addresses)?;
    Ok(addresses)
}

fn none_of<T: Default>(rest: &[u8]) -> Result<T, DescriptorError> {
    if rest.is_empty() { Ok(T::default()) } else { Err(DescriptorError::Damaged) }
}

#[cfg(test)]
mod tests;
