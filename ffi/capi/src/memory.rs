//! Memory: pools, registration, what is taken back.

use std::ffi::{c_char, c_void};

use penstock::memory::MemoryError;
use penstock::{
    Blocks, Cause, Engine, HostMemory, LocalQuiesce, LocalRegion, Pages, Pool, PoolSpec, Quarantined, Rights,
    SystemEnv, device,
};

use crate::arguments::{Out, Versioned, array, millis, put_list, put_text, read_sized, text_or_none, write_sized};
use crate::call::call;
use crate::engine::{penstock_engine, penstock_quarantine, put_handles};
use crate::failure::{Answer, Failure};
use crate::objects::{Found, add, find};
use crate::status::penstock_status::{self, *};

/// Handle of a pool, which is a region, too.
pub type penstock_pool = u64;
/// Handle of blocks of a pool. They go back to it when it is released, and nothing else has them.
pub type penstock_blocks = u64;
/// Handle of registered memory of this engine.
pub type penstock_region = u64;

/// Peers may do nothing with a region; it is for this engine's own side of plans.
pub const PENSTOCK_RIGHTS_NONE: u32 = 0;
/// Peers may read a region.
pub const PENSTOCK_RIGHTS_READ: u32 = 1;
/// Peers may write a region.
pub const PENSTOCK_RIGHTS_WRITE: u32 = 2;

/// The pages that the configuration says, else what is best.
pub const PENSTOCK_PAGES_AUTO: u32 = 0;
/// Pages of 4 KiB.
pub const PENSTOCK_PAGES_SMALL: u32 = 1;
/// Pages of 2 MiB from the system's reserve.
pub const PENSTOCK_PAGES_HUGE: u32 = 2;

/// Rights of these bits.
fn rights(bits: u32) -> Result<Rights, Box<Failure>> {
    match u8::try_from(bits) {
        Ok(bits @ 0..=3) => Ok(Rights::from(bits)),
        _ => Err(Failure::invalid(format!("{bits:#x} are no rights: add up PENSTOCK_RIGHTS_READ and _WRITE"))),
    }
}

/// What a pool is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_pool_options {
    /// `sizeof(penstock_pool_options)`.
    pub size: usize,
    /// Bytes of the pool.
    pub bytes: u64,
    /// Bytes of a block; 0: the default.
    pub block_bytes: u64,
    /// The name peers find it by; null: none.
    pub label: *const c_char,
    /// What peers may do, a sum of `PENSTOCK_RIGHTS_`.
    pub rights: u32,
    /// One of `PENSTOCK_PAGES_`.
    pub pages: u32,
}

impl Versioned for penstock_pool_options {
    fn size(&self) -> usize {
        self.size
    }
}

/// Makes a pool of memory that Penstock owns, which peers on one host map, and announces it to peers. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pool_create(
    engine: penstock_engine,
    options: *const penstock_pool_options,
    pool: *mut penstock_pool,
) -> penstock_status {
    call(|| {
        let none = std::ptr::null();
        let zeros = penstock_pool_options { size: 0, bytes: 0, block_bytes: 0, label: none, rights: 0, pages: 0 };
        // SAFETY: the caller's promise.
        let (options, pool) = unsafe { (read_sized(options, zeros)?, Out::new(pool, "pool")?) };
        // SAFETY: the caller's promise.
        let label = unsafe { text_or_none(options.label, "label") }?.unwrap_or_default();
        let pages = match options.pages {
            PENSTOCK_PAGES_AUTO => Pages::Auto,
            PENSTOCK_PAGES_SMALL => Pages::Small,
            PENSTOCK_PAGES_HUGE => Pages::Huge,
            other => return Err(Failure::invalid(format!("there are no pages {other}: use one of PENSTOCK_PAGES_"))),
        };
        let spec = PoolSpec::host(options.bytes).label(label).rights(rights(options.rights)?).pages(pages);
        let spec = if options.block_bytes == 0 { spec } else { spec.block(options.block_bytes) };
        pool.put(add(find::<Engine>(engine)?.pool(spec)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Takes `count` blocks out of a pool, waiting at most so long for them (0: not at all). Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pool_take(
    pool: penstock_pool,
    count: usize,
    timeout_ms: u64,
    blocks: *mut penstock_blocks,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let blocks = unsafe { Out::new(blocks, "blocks") }?;
        let pool = find::<Pool<SystemEnv>>(pool)?;
        match (pool.take_within(count, millis(timeout_ms)), pool.ended()) {
            (Ok(taken), _) => blocks.put(add(taken)?),
            (Err(_), Some(cause)) => return Err(cause.into()),
            (Err(none), None) => return Err(none.into()),
        }
        Ok(PENSTOCK_OK)
    })
}

/// The numbers of blocks in their pool: block `i` begins `i * block_bytes` bytes into it. Any thread.
///
/// # Safety
/// `list` has room for `capacity` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_blocks_indices(
    blocks: penstock_blocks,
    list: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_list(find::<Blocks>(blocks)?.indices().to_vec(), list, capacity, count) })
}

/// Registers memory of the caller's and announces it to peers. The kernel is asked whether it is there: what is not mapped is
/// `PENSTOCK_NOT_MAPPED`, what is mapped read-only can be sent from and no more. It stays as it is until its deregistration, or the
/// end of the engine, has answered that nothing touches it any more. The same memory, label and rights again is the same region, counted: so many
/// deregistrations end it. Any thread.
///
/// # Safety
/// The memory stays mapped as it is until then; meanwhile peers and devices may read and write it as the rights say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_register(
    engine: penstock_engine,
    base: *mut c_void,
    bytes: usize,
    label: *const c_char,
    rights: u32,
    region: *mut penstock_region,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { register(engine, HostMemory::probed(base.cast(), bytes), label, rights, region) })
}

/// As `penstock_register`, and believes the caller: memory that is not there, or may not be written, ends the process when it is used. It saves a
/// microsecond, and pages that were never touched stay so. Any thread.
///
/// # Safety
/// As of `penstock_register`, and the memory is mapped to be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_register_believed(
    engine: penstock_engine,
    base: *mut c_void,
    bytes: usize,
    label: *const c_char,
    rights: u32,
    region: *mut penstock_region,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { register(engine, HostMemory::from_raw(base.cast(), bytes), label, rights, region) })
}

/// # Safety
/// The pointers are as their types say.
unsafe fn register(
    engine: penstock_engine,
    memory: Result<HostMemory, MemoryError>,
    label: *const c_char,
    bits: u32,
    region: *mut penstock_region,
) -> Answer {
    // SAFETY: the caller's promise.
    let (label, region) = unsafe { (text_or_none(label, "label")?.unwrap_or_default(), Out::new(region, "region")?) };
    region.put(add(find::<Engine>(engine)?.register(memory?, label, rights(bits)?)?)?);
    Ok(PENSTOCK_OK)
}

/// As `penstock_register`, of memory of a CUDA device: an address that `cuMemAlloc` or `cudaMalloc` gave, or one behind it. The driver is started, which takes a
/// tenth of a second and more the first time, and asked what is there: `PENSTOCK_NO_DEVICE` where there is none that can be used, and all else works without;
/// `PENSTOCK_NOT_MAPPED` where no device memory of this process is, or less than that; `PENSTOCK_INVALID_ARGUMENT` for managed memory, and for host memory that the
/// driver knows. Nothing is read or written, and no stream is waited for: copies are ordered behind kernels that write the memory by `penstock_order_behind`, before
/// a transfer that reads it is submitted. What a transfer writes is there once it has ended. Any thread.
///
/// # Safety
/// The memory is not freed until then; meanwhile peers and devices may read and write it as the rights say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_register_device(
    engine: penstock_engine,
    address: u64,
    bytes: u64,
    label: *const c_char,
    rights: u32,
    region: *mut penstock_region,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (label, region) =
            unsafe { (text_or_none(label, "label")?.unwrap_or_default(), Out::new(region, "region")?) };
        let (engine, rights) = (find::<Engine>(engine)?, self::rights(rights)?);
        if bytes == 0 {
            return Err(MemoryError::Empty { what: "device memory" }.into());
        }
        // SAFETY: the caller's promise.
        let memory = unsafe { device::adopt(address, bytes) }?;
        region.put(add(engine.register_device(memory, label, rights)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Orders copies behind work of a CUDA stream: every copy that an engine of this process gives the device of `address` from now on begins when all is done that
/// the stream has at this moment. `address` is of memory of that device. Nothing waits for the stream but the device itself, and the call returns at once; orders add
/// up, and one that is asked for before a region is registered holds from its first transfer on. `stream` is a `CUstream` or `cudaStream_t` in the device's primary
/// context, as the runtime makes them: null and `CU_STREAM_LEGACY` (1) are the legacy default stream, also in a program with default streams for each thread,
/// `CU_STREAM_PER_THREAD` (2) is that of the calling thread. An event is recorded in it, and nothing else is done with it. A program that has queued
/// `kernel<<<blocks, threads, 0, stream>>>(tensor)` calls `penstock_order_behind((uintptr_t)tensor, stream)` and then `penstock_submit`.
///
/// A stream that does not go on holds up all later copies of its device: their transfers end by their deadlines, and their memory stays quarantined until it does.
/// `PENSTOCK_INVALID_ARGUMENT` for a stream of another device or context, and for one that is being captured, whose capture goes on; of the address as
/// `penstock_register_device`. Any thread.
///
/// # Safety
/// The stream is not destroyed, and no capture of it begins, before the call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_order_behind(address: u64, stream: *mut c_void) -> penstock_status {
    call(|| {
        let device = device::device_of(address)?;
        // SAFETY: the caller's promise.
        unsafe { device::order_behind(device, stream.expose_provenance() as u64) }?;
        Ok(PENSTOCK_OK)
    })
}

/// The region of this engine that has these bytes at this address; of several the newest. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_region_at(
    engine: penstock_engine,
    address: u64,
    bytes: u64,
    region: *mut penstock_region,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let region = unsafe { Out::new(region, "region") }?;
        let found = find::<Engine>(engine)?.region_at(address, bytes);
        let none =
            || Failure::new(PENSTOCK_NO_REGION, format!("no region has {bytes} bytes at {address:#x}; register them"));
        region.put(add(found.ok_or_else(none)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// A region, or a pool as one.
pub(crate) enum AnyRegion {
    Region(Found<LocalRegion<SystemEnv>>),
    Pool(Found<Pool<SystemEnv>>),
}

impl std::ops::Deref for AnyRegion {
    type Target = LocalRegion<SystemEnv>;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Region(region) => region,
            Self::Pool(pool) => pool,
        }
    }
}

pub(crate) fn find_region(handle: u64) -> Result<AnyRegion, Box<Failure>> {
    match find::<Pool<SystemEnv>>(handle) {
        Ok(pool) => Ok(AnyRegion::Pool(pool)),
        Err(_) => find::<LocalRegion<SystemEnv>>(handle).map(AnyRegion::Region),
    }
}

/// Where a region is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_region_info {
    /// Set by the caller: `sizeof(penstock_region_info)`.
    pub size: usize,
    /// Its first address in the memory of its own engine.
    pub base: u64,
    /// Bytes it has.
    pub bytes: u64,
    /// Bytes of a block, of a pool; else 0.
    pub block_bytes: u64,
    /// What peers may do.
    pub rights: u32,
}

impl Versioned for penstock_region_info {
    fn size(&self) -> usize {
        self.size
    }
}

/// Where a region or a pool of this engine is. Any thread.
///
/// # Safety
/// `info` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_region_look(
    region: penstock_region,
    info: *mut penstock_region_info,
) -> penstock_status {
    call(|| {
        let region = find_region(region)?;
        let block_bytes = if let AnyRegion::Pool(pool) = &region { pool.memory().block_bytes() } else { 0 };
        let (base, bytes) = (region.base(), region.bytes());
        let rights = u32::from(u8::from(region.rights()));
        // SAFETY: the caller's promise.
        unsafe { write_sized(info, penstock_region_info { size: 0, base, bytes, block_bytes, rights }) }
    })
}

/// Bytes of a region.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_range {
    /// The first, from the beginning of the region; an address where a call says so.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// Takes back one registration of a region or a pool, and the memory if it was the last, waiting at most so long for whoever is touching it.
/// `PENSTOCK_OK`: nothing touches it any more. `PENSTOCK_STILL_REGISTERED`: it was registered more than once.
/// `PENSTOCK_QUARANTINED`: a stopped peer might still touch it: `quarantine`, which may be null, can be asked until it does not; it is 0 otherwise. Release the region's
/// handle afterwards, in any case. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_deregister(
    region: penstock_region,
    timeout_ms: u64,
    quarantine: *mut penstock_quarantine,
) -> penstock_status {
    call(|| {
        let hold = find_region(region)?.deregister(millis(timeout_ms))?;
        // SAFETY: the caller's promise.
        unsafe { put_hold(hold, quarantine) }
    })
}

/// Takes ranges of a region back from all transfers that are under way and all plans that there are, of peers and of this engine, while the region
/// stands: who makes a plan afterwards may use them again. Answers as `penstock_deregister`. Any thread.
///
/// # Safety
/// `ranges` has `count` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_revoke(
    region: penstock_region,
    ranges: *const penstock_range,
    count: usize,
    timeout_ms: u64,
    quarantine: *mut penstock_quarantine,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let ranges = unsafe { array(ranges, count, "ranges") }?;
        let extents: Vec<(u64, u64)> = ranges.iter().map(|range| (range.offset, range.bytes)).collect();
        let hold = find_region(region)?.revoke(&extents, millis(timeout_ms))?;
        // SAFETY: the caller's promise.
        unsafe { put_hold(hold, quarantine) }
    })
}

/// # Safety
/// The pointer is null or may be written.
pub(crate) unsafe fn put_hold(hold: LocalQuiesce, quarantine: *mut penstock_quarantine) -> Answer {
    // SAFETY: the caller's promise.
    let quarantine = unsafe { Out::or_none(quarantine, "quarantine") }?;
    let (status, handle) = match hold {
        LocalQuiesce::Quiesced => (PENSTOCK_OK, 0),
        LocalQuiesce::StillRegistered(_) => (PENSTOCK_STILL_REGISTERED, 0),
        LocalQuiesce::Quarantined(held) if quarantine.is_some() => (PENSTOCK_QUARANTINED, add(held)?),
        LocalQuiesce::Quarantined(_) => (PENSTOCK_QUARANTINED, 0),
    };
    if let Some(quarantine) = quarantine {
        quarantine.put(handle);
    }
    Ok(status)
}

/// All memory of an engine that is quarantined now, a fresh handle each. Any thread.
///
/// # Safety
/// `list` has room for `capacity` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_quarantined(
    engine: penstock_engine,
    list: *mut penstock_quarantine,
    capacity: usize,
    count: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_handles(find::<Engine>(engine)?.quarantined(), list, capacity, count) })
}

/// `PENSTOCK_OK` if nothing can touch the memory any more, for good; `PENSTOCK_QUARANTINED` before. Of a peer's memory `PENSTOCK_PEER_LOST` if the session has
/// ended without a goodbye: nothing more comes from here, and what had left may still land there as long as the peer lives. Any thread, also after the
/// engine has ended.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_quarantine_look(quarantine: penstock_quarantine) -> penstock_status {
    call(|| {
        let quarantine = find::<Quarantined>(quarantine)?;
        if quarantine.is_unknown() {
            return Err(Cause::PeerLost.into());
        }
        Ok(if quarantine.is_released() { PENSTOCK_OK } else { PENSTOCK_QUARANTINED })
    })
}

/// The quarantined memory of this process, by addresses; none for a transfer that was cancelled: that is all memory of its plan. Any thread, also after the engine has ended.
///
/// # Safety
/// `list` has room for `capacity` values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_quarantine_ranges(
    quarantine: penstock_quarantine,
    list: *mut penstock_range,
    capacity: usize,
    count: *mut usize,
) -> penstock_status {
    call(|| {
        let ranges = find::<Quarantined>(quarantine)?.ranges();
        let ranges = ranges.into_iter().map(|(offset, bytes)| penstock_range { offset, bytes }).collect();
        // SAFETY: the caller's promise.
        unsafe { put_list(ranges, list, capacity, count) }
    })
}

/// Who might still touch it, a line each: names of engines, or "this engine" for a worker of its own. Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes; `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_quarantine_suspects(
    quarantine: penstock_quarantine,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    call(|| {
        let suspects = find::<Quarantined>(quarantine)?.suspects();
        let names: Vec<String> =
            suspects.into_iter().map(|name| name.map_or("this engine".to_owned(), |name| name.to_string())).collect();
        // SAFETY: the caller's promise.
        unsafe { put_text(&names.join("\n"), buffer, capacity, length) }
    })
}

/// Gives quarantined blocks of a pool fresh memory, so that they can be used again while a stopped peer has the old. Any thread; waits at most so
/// long.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_renew(
    pool: penstock_pool,
    quarantine: penstock_quarantine,
    timeout_ms: u64,
) -> penstock_status {
    call(|| {
        let held = find::<Quarantined>(quarantine)?;
        find::<Pool<SystemEnv>>(pool)?.renew(&held, millis(timeout_ms))?;
        Ok(PENSTOCK_OK)
    })
}
