//! Memory at addresses that nobody vouches for, between two processes: what is not there is an error, what may only be read can be sent.
#![allow(unsafe_code, reason = "the probed door takes addresses")]

use penstock::config::TransportName::{self, Local, Shm, Tcp};
use penstock::memory::MemoryError;
use penstock::plan::Side;
use penstock::{HostMemory, Plan, PlanError, RegionError, Rights, Submit};
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_conformance::{Place, Setting, Stage};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));
const BYTES: usize = 16 << 12;

/// A mapping of one's own that can be read, and later written or not.
struct Mapped(usize);

impl Mapped {
    fn new() -> Self {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: fresh memory at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, prot, flags) }.unwrap() as usize;
        // SAFETY: nobody else has it yet.
        unsafe { std::ptr::write_bytes(base as *mut u8, 0x3c, BYTES) };
        Self(base)
    }

    fn protect(&self, flags: MprotectFlags) {
        // SAFETY: the whole of this mapping, to which there are no references.
        unsafe { mprotect(self.0 as *mut _, BYTES, flags) }.unwrap();
    }

    fn probed(&self) -> Result<HostMemory, MemoryError> {
        // SAFETY: it stays mapped until its engine has ended.
        unsafe { HostMemory::probed(self.0 as *mut u8, BYTES) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this test's own, and its engine has ended.
        unsafe { munmap(self.0 as *mut _, BYTES) }.unwrap();
    }
}

fn settings() -> impl Iterator<Item = Setting> {
    let places = [(Local, Place::Here), (Shm, THERE), (Tcp, THERE)];
    let modes = |(transport, place): (TransportName, Place)| {
        [Setting::adaptive(transport, 1, place), Setting::inline(transport, place)]
    };
    places.into_iter().flat_map(modes)
}

#[test]
fn read_only_memory_is_sent_from_and_neither_read_into_nor_offered_for_writing() {
    for setting in settings() {
        let mapped = Mapped::new();
        mapped.protect(MprotectFlags::READ);
        let mut stage = Stage::open(&setting);
        let refused = stage.engine.register(mapped.probed().unwrap(), "rw", Rights::READ_WRITE).unwrap_err();
        assert!(refused.to_string().contains("mapped read-only"), "{setting}: {refused}");
        let region = stage.engine.register(mapped.probed().unwrap(), "ro", Rights::READ).unwrap();
        let (address, remote) = (region.host().unwrap().base_address(), stage.far().base());
        let entries = [(address + 100, remote + 7, 50_000)];
        let plan = Plan::write_addresses(stage.peer(), &entries).build().unwrap();
        assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 50_000);
        let mut far = stage.models().1;
        far[7..50_007].fill(0x3c);
        stage.assert_far(0, KV, &far);
        let read = Plan::read_addresses(stage.peer(), &entries).build().map(drop).unwrap_err();
        assert!(matches!(read, PlanError::NoRight { side: Side::Local, .. }), "{setting}: {read}");
        assert!(read.to_string().contains("mapped read-only"), "{setting}: {read}");
        let read = Plan::read(&region, &stage.far()).blocks(&[(0, 0)]).block_bytes(4096).build().map(drop).unwrap_err();
        assert!(matches!(read, PlanError::Region(RegionError::ReadOnly { .. })), "{setting}: {read}");
        // What may be written by now may be read into once it is registered anew.
        mapped.protect(MprotectFlags::READ | MprotectFlags::WRITE);
        let _anew = stage.engine.register(mapped.probed().unwrap(), "ro", Rights::READ).unwrap();
        let plan = Plan::read_addresses(stage.peer(), &[(address, remote + 60_000, 4096)]).build().unwrap();
        stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
        let mut found = [0; 4096];
        region.host().unwrap().read_into(0, &mut found).unwrap();
        assert_eq!(found[..], far[60_000..64_096], "{setting}");
        assert!(stage.engine.register(mapped.probed().unwrap(), "rw", Rights::READ_WRITE).is_ok());
        drop(region);
        drop(stage);
    }
}

#[test]
fn what_is_not_mapped_is_refused_and_the_session_goes_on() {
    let setting = Setting::adaptive(Shm, 1, THERE);
    let stage = Stage::open(&setting);
    let gone = Mapped::new();
    let address = gone.0;
    drop(gone);
    for (base, len) in [(address, BYTES), (16, 64), (1 << 47, 1), (usize::MAX / 2 - 4096, 4096)] {
        // SAFETY: nothing is mapped there, so that there is nothing to promise.
        let refused = unsafe { HostMemory::probed(base as *mut u8, len) };
        assert!(matches!(refused, Err(MemoryError::NotMapped { .. })), "{base:#x}");
    }
    assert!(stage.peer().ping(PATIENCE).is_ok());
}
