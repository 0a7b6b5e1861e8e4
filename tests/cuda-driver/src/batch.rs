//! Copies in batches.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's names and arguments")]

use std::ffi::{c_uint, c_void};

use crate::card::client;
use crate::context::check_current;
use crate::protocol::{ENTRIES_MAX, Entry, FROM_DEVICE, Kind, TO_DEVICE};
use crate::status;
use crate::stream::{READS, WRITES, number_of, place_of};

/// `CUmemcpyAttributes`: when sources are read, where both sides are, flags.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Attributes {
    order: c_uint,
    _hints: [u32; 4],
    flags: c_uint,
}

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM` and `_ANY`. Sources that are read in the call itself are refused, where a driver has them, since nobody
/// here uses them.
const ORDERS: [c_uint; 2] = [1, 3];
/// The only flag: that it may go on beside computing.
const FLAGS: c_uint = 1;

/// Why a batch is refused: what is answered, and which entry it is, unless it is not one entry's.
type Refused = (u32, usize);
const NO_ENTRY: usize = usize::MAX;

/// What a batch is given, as slices of one length, and of another for its attributes.
struct Batch<'a> {
    destinations: &'a [u64],
    sources: &'a [u64],
    sizes: &'a [usize],
    attributes: &'a [Attributes],
    starts: &'a [usize],
}

impl Batch<'_> {
    fn queue(&self, stream: *mut c_void) -> Result<(), Refused> {
        let of_all = |status| (status, NO_ENTRY);
        let wrong = of_all(status::INVALID_VALUE);
        // Without a context it looks like wrong arguments, and the default stream does too.
        check_current().map_err(|status| if status == status::NOT_INITIALIZED { of_all(status) } else { wrong })?;
        let (client, stream) = (client().map_err(of_all)?, number_of(stream).map_err(|_| wrong)?);
        let are_known = self.attributes.iter().all(|of| ORDERS.contains(&of.order) && of.flags & !FLAGS == 0);
        // The first attributes are of the first entry, and the next begin later.
        let is_rising = self.starts.first() == Some(&0) && self.starts.is_sorted_by(|one, next| one < next);
        if !are_known || !is_rising || self.starts.last().is_none_or(|&last| last >= self.sizes.len()) {
            return Err(wrong);
        }
        let mut entries = Vec::new();
        {
            let state = client.lock();
            for (at, &bytes) in self.sizes.iter().enumerate() {
                let (to, from, bytes) = (self.destinations[at], self.sources[at], bytes as u64);
                let places =
                    [(to, WRITES), (from, READS)].map(|(place, rights)| place_of(&state, place, bytes, rights));
                let [Some(to_device), Some(from_device)] = places else { return Err((status::INVALID_VALUE, at)) };
                if bytes == 0 {
                    return Err((status::INVALID_VALUE, at));
                }
                let flags = (TO_DEVICE * u64::from(to_device)) | (FROM_DEVICE * u64::from(from_device));
                entries.push([to, from, bytes, flags]);
            }
        }
        let give = |entries: &[Entry]| client.queue_with(stream, Kind::Batch, [0; 4], entries).map(drop);
        entries.chunks(ENTRIES_MAX).try_for_each(give).map_err(of_all)
    }
}

/// The slice that an address and a length stand for; none: there is nothing.
///
/// # Safety
/// So many values are there, or the address is null.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> Option<&'a [T]> {
    // SAFETY: the caller promises it.
    (count > 0 && !first.is_null()).then(|| unsafe { std::slice::from_raw_parts(first, count) })
}

/// # Safety
/// So many values at each place, a place for a number or null, and so many bytes at each address until it has passed.
pub(crate) unsafe extern "C" fn cuMemcpyBatchAsync(
    destinations: *const u64,
    sources: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: *mut c_void,
) -> u32 {
    let batch = || {
        // SAFETY: as above.
        unsafe {
            Some(Batch {
                destinations: slice(destinations, count)?,
                sources: slice(sources, count)?,
                sizes: slice(sizes, count)?,
                attributes: slice(attributes, attribute_count)?,
                starts: slice(starts, attribute_count)?,
            })
        }
    };
    let queued = match batch() {
        Some(batch) => batch.queue(stream),
        None => Err((status::INVALID_VALUE, NO_ENTRY)),
    };
    match queued {
        Ok(()) => status::SUCCESS,
        Err((status, entry)) => {
            if !failed.is_null() {
                // SAFETY: as above.
                unsafe { failed.write(entry) };
            }
            status
        }
    }
}

/// As CUDA 13 has it, which names no entry that failed.
///
/// # Safety
/// As in the function before.
pub(crate) unsafe extern "C" fn cuMemcpyBatchAsync_v2(
    destinations: *const u64,
    sources: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
    stream: *mut c_void,
) -> u32 {
    let failed = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe {
        cuMemcpyBatchAsync(destinations, sources, sizes, count, attributes, starts, attribute_count, failed, stream)
    }
}
