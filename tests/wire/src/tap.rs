//! An end of the wire: a TAP device in a network namespace. It goes away with its descriptor, however that ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::str::FromStr;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where an end is: `eth7` of the caller's own namespace, or `some-namespace/eth7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The namespace as `ip netns` names it, if it is another one.
    pub namespace: Option<String>,
    /// What the device will be called there.
    pub device: String,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, device) = match text.split_once('/') {
            Some((namespace, device)) => (Some(namespace.to_owned()), device),
            None => (None, text),
        };
        // A name is at most 15 bytes to the kernel, and neither may lead out of the folder of namespaces.
        let is_fine =
            |name: &str| !name.is_empty() && !name.contains('/') && !name.starts_with('.') && !name.contains('\0');
        if device.len() <= 15 && is_fine(device) && namespace.as_deref().is_none_or(is_fine) {
            Ok(Self { namespace, device: device.to_owned() })
        } else {
            Err(format!("`{text}` is no end: say DEVICE or NAMESPACE/DEVICE, the device in 15 letters at most"))
        }
    }
}

/// The namespace that `ip netns` knows under a name.
pub(crate) fn namespace(name: &str) -> io::Result<File> {
    File::open(format!("/run/netns/{name}"))
}

/// Runs something in a namespace, on a thread of its own: a thread can leave its namespace without the others.
pub(crate) fn inside<T: Send>(namespace: &File, run: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(run())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An open end.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

/// `_IOW('T', 202, int)`, though it takes a whole `struct ifreq`.
const SET_INTERFACE: rustix::ioctl::Opcode = 0x4004_54ca;

/// `struct ifreq`: a name, then here the flags.
type Request = [u8; 40];

/// `IFF_TAP | IFF_NO_PI`: whole Ethernet frames with nothing in front of them. Without `IFF_VNET_HDR` the kernel cuts
/// segments and computes checksums before it hands a frame over.
const TAP_FLAGS: u16 = 0x0002 | 0x1000;

impl Tap {
    /// Makes the device, down and without addresses.
    pub fn open(place: &Place) -> io::Result<Self> {
        let open = || Self::open_here(&place.device);
        match &place.namespace {
            None => open(),
            Some(name) => inside(&namespace(name)?, open)?,
        }
    }

    fn open_here(device: &str) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open("/dev/net/tun")?;
        let mut request: Request = [0; 40];
        request[..device.len()].copy_from_slice(device.as_bytes());
        request[16..18].copy_from_slice(&TAP_FLAGS.to_ne_bytes());
        set_interface(&file, request)?;
        Ok(Self { file })
    }

    /// The next frame into `buffer`, if there is one: how long it is.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.file, buffer) {
            Ok(length) => Ok(Some(length)),
            // A device that is down has no frames: it may come up again.
            Err(Errno::AGAIN | Errno::INTR | Errno::IO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands a frame to the kernel. False if it does not take it, as when the device is down.
    pub fn write(&self, frame: &[u8]) -> io::Result<bool> {
        match rustix::io::write(&self.file, frame) {
            Ok(_) => Ok(true),
            Err(Errno::BADFD) => Err(Errno::BADFD.into()),
            Err(_) => Ok(false),
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[allow(unsafe_code, reason = "there is no safe wrapper for making a TAP device")]
fn set_interface(file: &File, request: Request) -> io::Result<()> {
    // SAFETY: the opcode is TUNSETIFF, which reads one `struct ifreq` of 40 bytes and writes at most as many; the setter
    // owns that many for the length of the call, and any other file answers with an error.
    unsafe {
        let set = rustix::ioctl::Setter::<SET_INTERFACE, Request>::new(request);
        rustix::ioctl::ioctl(file, set)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_none_leads_out_of_its_folder() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("eth7"), Ok(Place { namespace: None, device: "eth7".into() }));
        assert_eq!(place("a/eth7"), Ok(Place { namespace: Some("a".into()), device: "eth7".into() }));
        for text in ["", "/", "a/", "/eth7", "a/b/c", "../etc/eth7", "./eth7", "a-name-that-is-too-long"] {
            assert!(place(text).is_err(), "{text}");
        }
    }
}
