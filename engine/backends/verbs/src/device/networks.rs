//! The networks that this machine's addresses are in: what says how many bits of an address its neighbours share.

use std::io;
use std::ptr;

/// An address of this machine and its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The network device that has it.
    pub interface: String,
    /// The address; one of IPv4 as it is written in IPv6.
    pub address: [u8; 16],
    /// Bits of it that all in the network share, of 128.
    pub bits: u8,
}

/// Bits in front of an address of IPv4 that is written in IPv6.
pub(crate) const MAPPED_BITS: u8 = 96;

/// An address of IPv4, written in IPv6.
pub(crate) fn mapped(address: [u8; 4]) -> [u8; 16] {
    let mut wide = [0; 16];
    wide[10..12].fill(0xff);
    wide[12..].copy_from_slice(&address);
    wide
}

/// All networks that this machine has an address in.
pub(crate) fn read() -> io::Result<Vec<Network>> {
    let mut first = ptr::null_mut();
    // SAFETY: writes the beginning of a list to the place that it is given.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut networks = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an entry of the list, which stands until it is freed below.
        let entry = unsafe { &*next };
        // SAFETY: each address of an entry is null or begins with its family, and is as long as that says.
        let read = unsafe { (read_address(entry.ifa_addr), read_address(entry.ifa_netmask)) };
        if let (Some(address), Some(mask)) = read
            && !entry.ifa_name.is_null()
        {
            // SAFETY: the entry's name is a C string.
            let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
            let bits = mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
            networks.push(Network {
                interface: name.to_string_lossy().into_owned(),
                address,
                // The mask of IPv4 has the sixteen ones of the form that it is written in, and the ten zero bytes before them.
                bits: if is_mapped(&address) { MAPPED_BITS - 16 + bits as u8 } else { bits as u8 },
            });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from the call above, and nothing points into it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(networks)
}

/// Whether it is an address of IPv4, written in IPv6.
pub(crate) fn is_mapped(address: &[u8; 16]) -> bool {
    address[..10] == [0; 10] && address[10..12] == [0xff, 0xff]
}

/// The address, if it is one of IPv4 or IPv6.
///
/// # Safety
///
/// `address` is null or points to an address that is as long as its family says.
unsafe fn read_address(address: *const libc::sockaddr) -> Option<[u8; 16]> {
    if address.is_null() {
        return None;
    }
    // SAFETY: it points to an address, as the caller promises, whose family says how long it is.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let four = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(mapped(four.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => Some(address.cast::<libc::sockaddr_in6>().read_unaligned().sin6_addr.s6_addr),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_network_has_eight_bits_of_ipv4() {
        let networks = read().expect("a machine says its addresses");
        let loopback = networks.iter().find(|network| network.address == mapped([127, 0, 0, 1]));
        let loopback = loopback.expect("a machine has a loopback");
        assert_eq!((loopback.interface.as_str(), loopback.bits), ("lo", MAPPED_BITS + 8));
    }
}
