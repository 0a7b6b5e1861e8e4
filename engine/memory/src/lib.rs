//! Regions, pools, block allocation, the registry and the copy kernels.
//!
//! All of the engine's memory is made or taken in here, and everything above names it by
//! [`Window`]: an address range with bounds and rights, kept alive by its owner. Read in this
//! order:
//!
//! - [`window`]: the one type that names memory of this processor; [`memory`]: the same or a device's, which no processor touches; `host`: the unsafe doors for the caller's own (`mapped`: what the kernel
//!   says of it)
//! - [`segment`]: sealed shared memory for rings (with `mapping` and `memfd` below it); `share`: what of
//!   it others are given
//! - [`pool`]: memory that Penstock allocates; `pool_spec` says what it should be, `pages` what
//!   it got, `numa` where
//! - [`renew`]: fresh memory for a part of a pool that a stopped peer might still write
//! - [`blocks`]: handing out a pool's blocks
//! - [`region`], [`registry`]: names for memory, and who has which (`hash` below it)
//! - [`copy`]: moving scattered spans between two windows
//! - [`foreign`]: memory of another process that nobody mapped here, moved by the kernel
//! - [`process`], [`fork`]: watching another process, knowing a forked child; [`life`]: a lock that the kernel
//!   marks when its thread dies; [`probe`]: what the kernel lets this process do
//! - [`error`]: what can go wrong, and the mend

pub mod blocking;
pub mod blocks;
pub mod copy;
pub mod device_blocks;
pub mod error;
pub mod fork;
mod hash;
pub mod host;
pub mod life;
mod mapped;
mod mapping;
mod memfd;
pub mod memory;
mod numa;
mod pages;
pub mod pool;
mod pool_spec;
pub mod probe;
pub mod process;
pub mod process_vm;
pub mod region;
pub mod registry;
pub mod renew;
pub mod segment;
mod share;
pub mod window;
#[cfg(any(test, feature = "withheld"))]
pub mod withheld;

pub use blocking::{BlockingCalls, PassedFd};
pub use blocks::{BlockAllocator, BlockError, BlockId, Blocks, Released, TakeError};
pub use copy::{CopyError, Hint};
pub use device_blocks::DeviceBlocks;
pub use error::{AccessError, MemoryError, MemoryLimit, MissingSeals};
pub use host::HostMemory;
pub use life::{LivenessError, LivenessLock};
pub use mapping::{Access, ForeignShare, PageRegistration};
pub use memfd::is_huge_tlb;
pub use memory::{DeviceId, DeviceMemory, DeviceWindow, Memory};
pub use pages::{PageKind, PagesReport, machine_bytes};
pub use pool::{Pool, map_counted_pool, map_foreign_pool};
pub use pool_spec::{DEFAULT_BLOCK_BYTES, Pages, PoolSpec};
pub use process::{ProcessWatch, Unseen};
pub use process_vm::{ForeignProcess, ProbeWords, ProcessVmError, ProcessVmMemory, Trial, WhyNot};
pub use region::{Origin, Region};
pub use registry::{Changes, Deregistered, RegionError, Registry};
pub use renew::{FreshPiece, OldPages, PIECES_MAX, Pieces, map_foreign_pieces};
pub use segment::Segment;
pub use window::Window;
