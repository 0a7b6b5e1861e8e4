//! The shim: its functions, and what may be wrong with it.

use std::env;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

use penstock_loader::{Named, NotHere, c_library};

use crate::types::{DpdkCounts, DpdkFacts, DpdkOptions, DpdkPacket, DpdkPiece, SIZES};

/// Takes a line of DPDK's log, of so many bytes, with its level: 1 (emergency) to 8 (debug). Called by any thread.
pub type LogLine = unsafe extern "C" fn(level: u32, line: *const c_char, bytes: u32);

c_library! {
    /// `libpenstock-dpdk`. Its functions answer a negative errno when they fail, and 0 or a count when not, where they do not say
    /// otherwise.
    struct Shim = "libpenstock-dpdk.so.1" in "libdpdk-dev";

    wrapped {}

    required {
        /// The release of DPDK that it was compiled for, such as `22.11.11`.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_release() -> *const c_char;

        /// Sizes of the structures that both sides know.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_sizes() -> u64;

        /// Starts DPDK, once for a process, on the thread that calls, and pins that thread.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_start(count: c_int, arguments: *mut *mut c_char, log: LogLine) -> c_int;

        /// The words of a negative errno that was returned.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_error(error: c_int) -> *const c_char;

        /// This thread will call what follows. DPDK keeps buffers for it then.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_enter() -> c_int;

        /// This thread calls it no more.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_leave();

        /// How many ports there are.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_ports() -> c_int;

        /// Adds a device and answers the number of its port.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_add(device: *const c_char, queues: u16) -> c_int;

        /// Takes out what was added and is not open.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_remove(port: u16) -> c_int;

        /// What a port is.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_facts(port: u16, facts: *mut DpdkFacts) -> c_int;

        /// Opens a port and starts its queues.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_open(port: u16, options: *const DpdkOptions) -> c_int;

        /// Has packets to the first of so many ports of UDP come by the first queue, and so on.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_steer(port: u16, first: u16, queues: u16) -> c_int;

        /// Closes a port of which all buffers were given back, and takes it out.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_close(port: u16) -> c_int;

        /// Whether a port's link is up. One that waits for its other end looks for it now.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_link(port: u16) -> c_int;

        /// What has happened at a port.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_counts(port: u16, counts: *mut DpdkCounts) -> c_int;

        /// Buffers that are somewhere between the port and its users.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_in_use(port: u16) -> c_int;

        /// Packets that have come, at most so many. One thread at a time for each queue.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_receive(port: u16, queue: u16, packets: *mut DpdkPacket, most: u32) -> u32;

        /// Gives back packets that have come, or were taken and not sent.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_put_back(packets: *mut DpdkPacket, count: u32);

        /// Empty packets to be written, all of them or none; their lengths say how much room each has.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_take(port: u16, packets: *mut DpdkPacket, count: u32) -> u32;

        /// Whether packets of a port that is open may lend memory.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_lends(port: u16) -> c_int;

        /// Puts memory behind a packet that was taken and written, of a port that lends; copies it where there is no buffer for it.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_lend(port: u16, packet: *mut DpdkPacket, pieces: *const DpdkPiece, count: u32);

        /// Packets that were not sent have what was lent to them in their own buffers, and it is not touched any more.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_settle(packets: *mut DpdkPacket, count: u32);

        /// Sends packets that were taken. Those beyond the count that is answered are still the caller's.
        "PENSTOCK_DPDK_2" fn penstock_dpdk_send(port: u16, queue: u16, packets: *mut DpdkPacket, count: u32) -> u32;
    }

    optional {}
}

/// Why DPDK cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShimUnusable {
    /// The shim is not here, or not what it needs, or it is another version of it.
    NotHere(NotHere),
    /// It was built from other sources: its structures have other sizes.
    OtherSizes,
}

/// Names the library where the loader does not find it by itself.
const PATH_VARIABLE: &str = "PENSTOCK_DPDK_SHIM";

impl fmt::Display for ShimUnusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let library = Shim::NAMED;
        match self {
            Self::NotHere(NotHere::Library { said, .. }) => {
                write!(
                    f,
                    "{library} cannot be opened ({said}): build it with `make dpdk`, or name it in {PATH_VARIABLE}"
                )
            }
            Self::NotHere(NotHere::Symbol { library, missing }) => write!(
                f,
                "{library} has no {} of version {}: it was built for another version of Penstock, or is another library; build it anew with \
                 `make dpdk`, and name it in {PATH_VARIABLE}",
                missing.symbol, missing.version
            ),
            Self::OtherSizes => write!(
                f,
                "{library} has structures of other sizes: it was built for another version of Penstock; build it anew with `make dpdk`"
            ),
        }
    }
}

impl Error for ShimUnusable {}

impl Shim {
    /// Opens the shim, once for the whole process: the file that `PENSTOCK_DPDK_SHIM` names, or the one that the loader finds. What is
    /// not here is looked for again at the next call.
    pub fn find() -> Result<&'static Self, ShimUnusable> {
        static FOUND: OnceLock<Shim> = OnceLock::new();
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let named = env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty());
        let found = match named.and_then(|path| CString::new(path.into_encoded_bytes()).ok()) {
            // Its name is wanted for as long as the library is open, which is for ever.
            Some(path) => Self::load(Named { soname: Box::leak(path.into_boxed_c_str()), ..Self::NAMED }),
            None => Self::load(Self::NAMED),
        };
        let found = found.map_err(ShimUnusable::NotHere)?;
        // SAFETY: it asks for nothing.
        if unsafe { found.penstock_dpdk_sizes() } != SIZES {
            return Err(ShimUnusable::OtherSizes);
        }
        Ok(FOUND.get_or_init(|| found))
    }

    /// The release of DPDK that it was compiled for.
    pub fn release(&self) -> String {
        // SAFETY: it asks for nothing, and answers a C string that stays.
        unsafe { CStr::from_ptr(self.penstock_dpdk_release()) }.to_string_lossy().into_owned()
    }

    /// The words of what a function has answered.
    pub fn words(&self, error: c_int) -> String {
        // SAFETY: it takes any number, and answers a C string that stays until this thread's next call.
        unsafe { CStr::from_ptr(self.penstock_dpdk_error(error)) }.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_here_says_how_it_is_built() {
        let nowhere = Named { soname: c"/nowhere/libpenstock-dpdk.so.1", ..Shim::NAMED };
        let words = ShimUnusable::NotHere(Shim::load(nowhere).unwrap_err()).to_string();
        assert!(words.contains("/nowhere/") && words.contains("make dpdk") && words.contains(PATH_VARIABLE), "{words}");
        let other = Named { soname: c"libc.so.6", ..Shim::NAMED };
        let words = ShimUnusable::NotHere(Shim::load(other).unwrap_err()).to_string();
        assert!(words.contains("another version of Penstock") && words.contains("PENSTOCK_DPDK_2"), "{words}");
    }
}
