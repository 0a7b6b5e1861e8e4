//! The library, its functions, and what may be wrong with it.
#![allow(
    non_snake_case,
    clippy::too_many_arguments,
    reason = "functions have the names and arguments that the driver's manual has"
)]

use std::error::Error;
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::{env, fmt, mem, ptr};

use penstock_loader::{Named, Shared};

use crate::status::Status;
use crate::types::*;

/// Names the library in place of `libcuda.so.1`, by an absolute path.
pub const PATH_VARIABLE: &str = "PENSTOCK_CUDA_DRIVER";

/// The oldest driver that is used.
pub const OLDEST: Version = Version { number: 12_020 };

const LIBRARY: Named = Named { soname: c"libcuda.so.1", packages: "the NVIDIA driver, libcuda1" };

/// A release of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// A thousand times the first number, and ten times the second.
    pub number: i32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.number / 1000, self.number % 1000 / 10)
    }
}

/// A function that a driver does not have, or not in the version that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lacking {
    pub function: &'static str,
    /// The release of CUDA that has it first as it is wanted.
    pub since: Version,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the driver lacks {} as CUDA {} has it", self.function, self.since)
    }
}

impl Error for Lacking {}

/// Why there is no driver that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotHere {
    /// The loader does not find it, or not what it needs itself.
    Library {
        /// What was looked for.
        library: String,
        /// What the loader said.
        said: String,
    },
    /// The path in [`PATH_VARIABLE`] depends on where a process was started.
    RelativePath { path: PathBuf },
    /// It is no CUDA driver, or one from before CUDA 12.
    NoDriver { library: String },
    /// It is older than [`OLDEST`].
    TooOld { library: String, has: Version },
    /// It says that it is new enough, and lacks a function.
    Lacks { library: String, function: Lacking },
    /// It does not say which release it is.
    Mute { library: String, answered: Status },
}

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { library, said } => write!(
                f,
                "{library} cannot be opened ({said}): install the NVIDIA driver and its libcuda1, or start the container with `--gpus all`"
            ),
            Self::RelativePath { path } => {
                write!(f, "`{}` in {PATH_VARIABLE} is not an absolute path", path.display())
            }
            Self::NoDriver { library } => {
                write!(
                    f,
                    "{library} is no CUDA driver, or one from before CUDA 12: it has no cuGetProcAddress_v2; {OLDEST} is the oldest that is used"
                )
            }
            Self::TooOld { library, has } => {
                write!(
                    f,
                    "{library} is the driver of CUDA {has}, and {OLDEST} is the oldest that is used: install a newer driver"
                )
            }
            Self::Lacks { library, function } => write!(f, "{library}: {function}: install a newer driver"),
            Self::Mute { library, answered } => write!(f, "{library} does not say which release it is: {answered}"),
        }
    }
}

impl Error for NotHere {}

/// `cuGetProcAddress` as CUDA 12 has it: name, place, version, flags, what became of it.
pub type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;

/// Where functions are looked for.
struct Finder {
    get: GetProcAddress,
    /// None: the functions are in the program itself.
    _library: Option<Shared>,
}

/// The driver of this process, once it was opened.
static OPEN: OnceLock<Driver> = OnceLock::new();

impl Finder {
    /// The function of this name in this version of its interface; null: there is none.
    fn find(&self, name: &CStr, since: Version) -> *mut c_void {
        let (mut place, mut became) = (ptr::null_mut(), 0);
        // SAFETY: a C string, and two places that may be written; no flags.
        let answered = unsafe { (self.get)(name.as_ptr(), &raw mut place, since.number, 0, &raw mut became) };
        if answered == 0 && became == 0 { place } else { ptr::null_mut() }
    }
}

/// Defines the driver as a structure of its functions. Each has the release of CUDA whose interface is meant before it. Those under
/// `required` have to be there; those under `optional` answer [`Lacking`] where they are not.
macro_rules! functions {
    (
        required { $( $rsince:literal fn $required:ident($($rarg:ident: $rtype:ty),* $(,)?); )* }
        optional { $( $osince:literal fn $optional:ident($($oarg:ident: $otype:ty),* $(,)?); )* }
    ) => {
        /// A driver that was opened, for as long as the process is there.
        #[derive(Debug)]
        pub struct Driver {
            library: String,
            version: Version,
            $( $required: unsafe extern "C" fn($($rtype),*) -> u32, )*
            $( $optional: Option<unsafe extern "C" fn($($otype),*) -> u32>, )*
        }

        impl Driver {
            /// Every function that is looked for, and whether a driver without it is used.
            pub const FUNCTIONS: &[(Lacking, bool)] = &[
                $( (Lacking { function: stringify!($required), since: Version { number: $rsince } }, false), )*
                $( (Lacking { function: stringify!($optional), since: Version { number: $osince } }, true), )*
            ];

            fn load(library: String, version: Version, finder: &Finder) -> Result<Self, NotHere> {
                Ok(Self {
                    $( $required: {
                        let since = Version { number: $rsince };
                        let place = finder.find(c_name(concat!(stringify!($required), "\0")), since);
                        if place.is_null() {
                            let function = Lacking { function: stringify!($required), since };
                            return Err(NotHere::Lacks { library, function });
                        }
                        // SAFETY: the function of this name and version has this type.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($rtype),*) -> u32>(place) }
                    }, )*
                    $( $optional: {
                        let since = Version { number: $osince };
                        let place = finder.find(c_name(concat!(stringify!($optional), "\0")), since);
                        // SAFETY: as above; null is none.
                        unsafe { mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($otype),*) -> u32>>(place) }
                    }, )*
                    library,
                    version,
                })
            }

            /// The functions that a driver without is used, and that this one is without.
            pub fn lacks(&self) -> Vec<Lacking> {
                let mut lacks = Vec::new();
                $( if self.$optional.is_none() {
                    lacks.push(Lacking { function: stringify!($optional), since: Version { number: $osince } });
                } )*
                lacks
            }

            $(
                /// # Safety
                /// As the driver's manual says.
                pub unsafe fn $required(&self, $($rarg: $rtype),*) -> Status {
                    // SAFETY: the caller keeps to the manual.
                    Status(unsafe { (self.$required)($($rarg),*) })
                }
            )*
            $(
                /// # Safety
                /// As the driver's manual says.
                pub unsafe fn $optional(&self, $($oarg: $otype),*) -> Result<Status, Lacking> {
                    let since = Version { number: $osince };
                    let function = self.$optional.ok_or(Lacking { function: stringify!($optional), since })?;
                    // SAFETY: the caller keeps to the manual.
                    Ok(Status(unsafe { function($($oarg),*) }))
                }
            )*
        }
    };
}

/// A name that ends in a zero.
fn c_name(name: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).expect("a name with a zero behind it")
}

functions! {
    required {
        2000 fn cuInit(flags: c_uint);
        2000 fn cuDeviceGetCount(count: *mut c_int);
        2000 fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        2000 fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        11040 fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice);
        2000 fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        3020 fn cuDeviceTotalMem(bytes: *mut usize, device: CUdevice);
        4010 fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
        7000 fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        11000 fn cuDevicePrimaryCtxRelease(device: CUdevice);
        4000 fn cuCtxPushCurrent(context: CUcontext);
        4000 fn cuCtxPopCurrent(context: *mut CUcontext);
        4000 fn cuCtxGetCurrent(context: *mut CUcontext);
        10010 fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
        3020 fn cuMemAlloc(address: *mut CUdeviceptr, bytes: usize);
        3020 fn cuMemFree(address: CUdeviceptr);
        3020 fn cuMemGetInfo(free: *mut usize, total: *mut usize);
        3020 fn cuMemGetAddressRange(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
        7000 fn cuPointerGetAttributes(
            count: c_uint,
            attributes: *mut CUpointer_attribute,
            places: *mut *mut c_void,
            address: CUdeviceptr,
        );
        6050 fn cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint);
        4000 fn cuMemHostUnregister(address: *mut c_void);
        5050 fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        4000 fn cuStreamDestroy(stream: CUstream);
        2000 fn cuStreamQuery(stream: CUstream);
        3020 fn cuMemcpyHtoDAsync(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
        3020 fn cuMemcpyDtoHAsync(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
        3020 fn cuMemcpyDtoDAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
        11070 fn cuStreamWriteValue64(stream: CUstream, to: CUdeviceptr, value: u64, flags: c_uint);
        10000 fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, argument: *mut c_void);
        2000 fn cuEventCreate(event: *mut CUevent, flags: c_uint);
        4000 fn cuEventDestroy(event: CUevent);
        2000 fn cuEventRecord(event: CUevent, stream: CUstream);
        2000 fn cuEventQuery(event: CUevent);
        3020 fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        10000 fn cuStreamIsCapturing(stream: CUstream, status: *mut c_int);
    }
    optional {
        10020 fn cuMemGetAllocationGranularity(
            bytes: *mut usize,
            properties: *const CUmemAllocationProp,
            option: CUmemAllocationGranularity_flags,
        );
        10020 fn cuMemCreate(
            handle: *mut CUmemGenericAllocationHandle,
            bytes: usize,
            properties: *const CUmemAllocationProp,
            flags: u64,
        );
        10020 fn cuMemRelease(handle: CUmemGenericAllocationHandle);
        10020 fn cuMemAddressReserve(
            address: *mut CUdeviceptr,
            bytes: usize,
            alignment: usize,
            hint: CUdeviceptr,
            flags: u64,
        );
        10020 fn cuMemAddressFree(address: CUdeviceptr, bytes: usize);
        10020 fn cuMemMap(
            address: CUdeviceptr,
            bytes: usize,
            offset: usize,
            handle: CUmemGenericAllocationHandle,
            flags: u64,
        );
        10020 fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
        10020 fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, accesses: *const CUmemAccessDesc, count: usize);
        10020 fn cuMemExportToShareableHandle(
            shareable: *mut c_void,
            handle: CUmemGenericAllocationHandle,
            kind: CUmemAllocationHandleType,
            flags: u64,
        );
        11000 fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
        10020 fn cuMemImportFromShareableHandle(
            handle: *mut CUmemGenericAllocationHandle,
            shareable: *mut c_void,
            kind: CUmemAllocationHandleType,
        );
        12080 fn cuMemcpyBatchAsync(
            destinations: *mut CUdeviceptr,
            sources: *mut CUdeviceptr,
            sizes: *mut usize,
            count: usize,
            attributes: *mut CUmemcpyAttributes,
            attribute_indexes: *mut usize,
            attribute_count: usize,
            failed: *mut usize,
            stream: CUstream,
        );
        11070 fn cuMemGetHandleForAddressRange(
            handle: *mut c_void,
            address: CUdeviceptr,
            size: usize,
            kind: CUmemRangeHandleType,
            flags: u64,
        );
        6000 fn cuPointerSetAttribute(value: *const c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
        11030 fn cuFlushGPUDirectRDMAWrites(
            target: CUflushGPUDirectRDMAWritesTarget,
            scope: CUflushGPUDirectRDMAWritesScope,
        );
    }
}

impl Driver {
    /// Opens the driver, once for the whole process. What is not here is looked for again at the next call. It is not started by
    /// that: `cuInit` is the caller's.
    pub fn open() -> Result<&'static Self, NotHere> {
        if let Some(open) = OPEN.get() {
            return Ok(open);
        }
        let opened = Self::open_now()?;
        Ok(OPEN.get_or_init(|| opened))
    }

    fn open_now() -> Result<Self, NotHere> {
        let named = match env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => named(path)?,
            None => LIBRARY,
        };
        let library = named.to_string();
        let shared = Shared::open(named).map_err(|error| NotHere::Library {
            library: library.clone(),
            said: match error {
                penstock_loader::NotHere::Library { said, .. } => said,
                other @ penstock_loader::NotHere::Symbol { .. } => other.to_string(),
            },
        })?;
        let Some(get) = shared.find_unversioned(c"cuGetProcAddress_v2") else {
            return Err(NotHere::NoDriver { library });
        };
        // SAFETY: a library that has this name is CUDA's driver, and the function has this type since CUDA 12.
        let get = unsafe { mem::transmute::<ptr::NonNull<c_void>, GetProcAddress>(get) };
        Self::find_all(library, &Finder { get, _library: Some(shared) })
    }

    fn find_all(library: String, finder: &Finder) -> Result<Self, NotHere> {
        let version = version_of(&library, finder)?;
        if version < OLDEST {
            return Err(NotHere::TooOld { library, has: version });
        }
        Self::load(library, version, finder)
    }

    /// Uses functions of the program itself in place of a library's, in this whole process: for a simulation, which has its devices in itself.
    /// Returns whether they are what [`Driver::open`] answers with; not, if a driver was opened before.
    ///
    /// # Safety
    /// The function finds others as CUDA 12 does, and those do what the driver's manual says of their names.
    pub unsafe fn provide(name: &str, get: GetProcAddress) -> Result<bool, NotHere> {
        let found = Self::find_all(name.to_owned(), &Finder { get, _library: None })?;
        Ok(OPEN.set(found).is_ok())
    }

    /// The release of CUDA that it is of.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library, as it was asked for.
    pub fn library(&self) -> &str {
        &self.library
    }
}

/// The library that this path names. Its name is wanted for as long as the library is open, which is for ever.
fn named(path: OsString) -> Result<Named, NotHere> {
    let path = PathBuf::from(path);
    if !path.is_absolute() {
        return Err(NotHere::RelativePath { path });
    }
    // A variable of the environment has no zeros.
    let soname = CString::new(path.into_os_string().into_vec()).unwrap_or_default();
    Ok(Named { soname: Box::leak(soname.into_boxed_c_str()), ..LIBRARY })
}

/// Which release a driver is, which it says before it is started.
fn version_of(library: &str, finder: &Finder) -> Result<Version, NotHere> {
    let place = finder.find(c"cuDriverGetVersion", Version { number: 2020 });
    if place.is_null() {
        return Err(NotHere::NoDriver { library: library.to_owned() });
    }
    let mut number = 0;
    // SAFETY: the function of this name has this type; it writes one number.
    let answered = Status(unsafe {
        mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> u32>(place)(&raw mut number)
    });
    if answered.is_success() {
        Ok(Version { number })
    } else {
        Err(NotHere::Mute { library: library.to_owned(), answered })
    }
}
