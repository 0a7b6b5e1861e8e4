//! How a peer says that its regions are reached: the words of each transport's own.
//!
//! The input is: how many descriptors come with it (one byte), the rights (one byte), the region's length and its
//! base (eight bytes each), the path.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::budget::Budget;
use penstock_core::{Generation, RegionId, Rights};
use penstock_memory::{BlockingCalls, Pool, PoolSpec, Registry, Trial, WhyNot};
use penstock_shm::registrar::ShmRegistrar;
use penstock_tcp::transport::REGISTRAR as TCP_REGISTRAR;
use penstock_transport::{AccessPath, AdvertisedRegion, ImportError, Registrar, RemoteMemory};

/// Bytes of the pool whose descriptor comes.
pub const POOL_BYTES: u64 = 64 << 10;
/// Rails of the session, if both sides have cards.
const RAILS: usize = 2;
/// Descriptors that come with one region at most.
const DESCRIPTORS_MAX: usize = 4;

thread_local! {
    /// Making one takes system calls; nothing here changes it.
    static TOKEN: Arc<OwnedFd> = {
        let pool = Pool::create(PoolSpec::host(POOL_BYTES)).expect("there is memory for a small pool");
        let region = Registry::new().register_pool(Arc::new(pool)).expect("a fresh registry has room");
        let exported = ShmRegistrar::new(Trial::of(Err(WhyNot::SwitchedOff)), Budget::new(u64::MAX).peer(), BlockingCalls::of(0)).export(&region);
        exported.fd.expect("a pool has a descriptor")
    };
}

/// Any path is a way to memory or a typed refusal. What is mapped is as long as the peer says, and no longer than
/// what it has passed; over the network only its owner touches it.
pub fn run(input: &[u8]) {
    let Some((descriptors, region)) = region_of(input) else { return };
    let with = |count: usize| -> Vec<OwnedFd> {
        let token = TOKEN.with(Arc::clone);
        (0..count).map(|_| token.try_clone().expect("a process has some descriptors")).collect()
    };
    let shm =
        ShmRegistrar::new(Trial::of(Err(WhyNot::SwitchedOff)), Budget::new(u64::MAX).peer(), BlockingCalls::of(0));
    let _ = shm.is_renewed(region.access_blob);
    let mut tokens = with(descriptors);
    let token = tokens.pop();
    match shm.import_with_extra_fds(&region, token, tokens) {
        Ok(RemoteMemory::Mapped(window)) => {
            assert!(descriptors > 0 && window.len() == region.bytes && region.bytes <= POOL_BYTES);
            assert!(region.rights.allows_write() || !window.is_writable(), "more is mapped than was given");
        }
        Ok(RemoteMemory::TargetMediated(memory)) => assert_eq!(memory.bytes, region.bytes),
        Ok(RemoteMemory::ProcessVm(_) | RemoteMemory::Rdma(_) | RemoteMemory::Device(_)) => {
            panic!("no card or device, and the kernel's copies are switched off")
        }
        Ok(RemoteMemory::Staged(_)) => panic!("the transport itself stages nothing"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match TCP_REGISTRAR.import(&region, with(descriptors).pop()) {
        Ok(RemoteMemory::TargetMediated(memory)) => {
            assert_eq!((descriptors, memory.bytes), (0, region.bytes));
            assert_eq!(TCP_REGISTRAR.access_path(&region).name, AccessPath::TCP);
        }
        Ok(_) => panic!("memory of another host is touched from here"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match penstock_verbs::registrar::import(&region, RAILS) {
        Ok(memory) => {
            assert_eq!((memory.iova, memory.bytes, memory.rkeys.len()), (region.base, region.bytes, RAILS));
            assert!(memory.iova.checked_add(memory.bytes).is_some(), "memory beyond all addresses");
        }
        Err(error) => assert!(!error.to_string().is_empty() || matches!(error, ImportError::NoPath(_))),
    }
    assert!(!shm.access_path(&region).reason.is_empty());
}

fn region_of(input: &[u8]) -> Option<(usize, AdvertisedRegion<'_>)> {
    let (&[descriptors, rights], rest) = input.split_first_chunk()?;
    let (bytes, rest) = rest.split_first_chunk()?;
    let (base, path) = rest.split_first_chunk()?;
    let rights = [Rights::NONE, Rights::READ, Rights::WRITE, Rights::READ_WRITE][usize::from(rights) % 4];
    let region = AdvertisedRegion {
        epoch: 1,
        id: RegionId(1),
        generation: Generation(1),
        base: u64::from_le_bytes(*base),
        bytes: u64::from_le_bytes(*bytes),
        rights,
        access_blob: path,
    };
    Some((usize::from(descriptors) % DESCRIPTORS_MAX, region))
}
