//! Its functions by name and version.

use std::ffi::c_void;

use crate::plan::plan;
use crate::{batch, context, event, forbidden, gpudirect, host, memory, start, stream, vmm};

/// Why there is no such function, as the driver numbers it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Lacking {
    Name = 1,
    /// There is one, of a later release than was asked for or than this driver is.
    Version = 2,
}

struct Function {
    name: &'static str,
    /// The release that has it first.
    since: i32,
    place: *const c_void,
}

macro_rules! table {
    ($($since:literal $module:ident :: $name:ident;)*) => {
        [$(Function { name: stringify!($name).trim_end_matches("_v2"), since: $since, place: $module::$name as *const c_void }),*]
    };
}

/// The function of this name, as the release `version` has it.
pub(crate) fn find(name: &str, version: i32) -> Result<*mut c_void, Lacking> {
    let functions = table! {
        2000 start::cuInit;
        2020 start::cuDriverGetVersion;
        2000 start::cuDeviceGetCount;
        2000 start::cuDeviceGet;
        2000 start::cuDeviceGetName;
        11040 start::cuDeviceGetUuid;
        2000 start::cuDeviceGetAttribute;
        3020 start::cuDeviceTotalMem;
        4010 start::cuDeviceGetPCIBusId;
        7000 context::cuDevicePrimaryCtxRetain;
        11000 context::cuDevicePrimaryCtxRelease;
        4000 context::cuCtxPushCurrent;
        4000 context::cuCtxPopCurrent;
        4000 context::cuCtxGetCurrent;
        4000 context::cuCtxSetCurrent;
        2000 forbidden::cuCtxSynchronize;
        10010 context::cuThreadExchangeStreamCaptureMode;
        3020 memory::cuMemAlloc;
        3020 memory::cuMemFree;
        3020 memory::cuMemGetInfo;
        3020 memory::cuMemGetAddressRange;
        4000 memory::cuPointerGetAttribute;
        7000 memory::cuPointerGetAttributes;
        2020 host::cuMemHostAlloc;
        2000 host::cuMemFreeHost;
        3020 host::cuMemHostGetDevicePointer;
        6050 host::cuMemHostRegister;
        4000 host::cuMemHostUnregister;
        2000 stream::cuStreamCreate;
        5050 stream::cuStreamCreateWithPriority;
        4000 stream::cuStreamDestroy;
        2000 stream::cuStreamQuery;
        3020 stream::cuMemcpyHtoDAsync;
        3020 stream::cuMemcpyDtoHAsync;
        3020 stream::cuMemcpyDtoDAsync;
        11070 stream::cuStreamWriteValue64;
        11070 stream::cuStreamWaitValue64;
        2000 forbidden::cuStreamSynchronize;
        2000 forbidden::cuEventSynchronize;
        4000 forbidden::cuMemcpy;
        3020 forbidden::cuMemcpyHtoD;
        3020 forbidden::cuMemcpyDtoH;
        3020 forbidden::cuMemcpyDtoD;
        10000 stream::cuLaunchHostFunc;
        2000 event::cuEventCreate;
        4000 event::cuEventDestroy;
        2000 event::cuEventRecord;
        2000 event::cuEventQuery;
        3020 event::cuStreamWaitEvent;
        10010 event::cuStreamBeginCapture;
        10000 event::cuStreamEndCapture;
        10000 event::cuStreamIsCapturing;
        10020 vmm::cuMemGetAllocationGranularity;
        10020 vmm::cuMemCreate;
        10020 vmm::cuMemRelease;
        10020 vmm::cuMemAddressReserve;
        10020 vmm::cuMemAddressFree;
        10020 vmm::cuMemMap;
        10020 vmm::cuMemUnmap;
        10020 vmm::cuMemSetAccess;
        10020 vmm::cuMemGetAllocationPropertiesFromHandle;
        11000 vmm::cuMemRetainAllocationHandle;
        10020 vmm::cuMemExportToShareableHandle;
        10020 vmm::cuMemImportFromShareableHandle;
        11070 gpudirect::cuMemGetHandleForAddressRange;
        6000 gpudirect::cuPointerSetAttribute;
        11030 gpudirect::cuFlushGPUDirectRDMAWrites;
        12080 batch::cuMemcpyBatchAsync;
        13000 batch::cuMemcpyBatchAsync_v2;
    };
    let is_here = |function: &&Function| function.name == name && !plan().lacks.iter().any(|lacking| lacking == name);
    let mut named = functions.iter().filter(is_here).peekable();
    named.peek().ok_or(Lacking::Name)?;
    if version > plan().version {
        return Err(Lacking::Version);
    }
    // Of several the newest that the release has which is asked for.
    let known = named.filter(|function| function.since <= version).max_by_key(|function| function.since);
    known.map(|function| function.place.cast_mut()).ok_or(Lacking::Version)
}
