//! Pools, segments and above all their seals: what a peer that got the descriptor cannot do.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::*;
use crate::AccessError;
use crate::segment::Segment;

const MIB: u64 = 1 << 20;

fn small(bytes: u64) -> PoolSpec {
    PoolSpec::host(bytes).pages(Pages::Small)
}

fn dup(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

/// What a hostile peer would try: a shared writable mapping of whatever the descriptor is.
fn map_writable(fd: impl AsFd, len: u64) -> io::Result<()> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping that is given back at once and never touched.
    unsafe {
        let base = rustix::mm::mmap(ptr::null_mut(), len as usize, prot, MapFlags::SHARED, fd, 0)?;
        rustix::mm::munmap(base, len as usize)?;
    }
    Ok(())
}

fn reopen(fd: BorrowedFd<'_>) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[test]
fn bytes_written_through_one_mapping_are_seen_through_the_other() {
    let pool = Pool::create(small(MIB + 1).block(4096).label("kv / cache")).unwrap();
    assert_eq!(pool.bytes(), MIB + page_bytes());
    assert_eq!((pool.blocks_total(), pool.block_bytes()), (256, 4096));
    assert_eq!((pool.label(), pool.rights()), ("kv / cache", Rights::READ_WRITE));
    let peer = map_foreign_pool(dup(pool.fd()), pool.bytes(), pool.rights(), PageKind::Small).unwrap();
    peer.write_from(MIB, b"from the peer").unwrap();
    let mut seen = [0; 13];
    pool.window().read_into(MIB, &mut seen).unwrap();
    assert_eq!(&seen, b"from the peer");
}

#[test]
fn a_read_only_pool_cannot_be_written_by_whoever_gets_its_descriptor() {
    let pool = Pool::create(small(MIB).rights(Rights::READ)).unwrap();
    pool.window().write_from(0, b"mine").unwrap();

    assert_eq!(map_writable(pool.fd(), MIB).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    // A descriptor can always be opened anew for writing; only the seal holds then.
    let reopened = reopen(pool.fd()).unwrap();
    assert_eq!(map_writable(&reopened, MIB).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert!(rustix::io::pwrite(&reopened, b"forged", 0).is_err());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&reopened, punch, 0, page_bytes()).is_err());

    let peer = map_foreign_pool(dup(pool.fd()), MIB, Rights::READ, PageKind::Small).unwrap();
    assert_eq!(peer.write_from(0, b"x"), Err(AccessError::ReadOnly));
    // SAFETY: mprotect of the peer's own mapping; it is refused.
    let upgraded = unsafe {
        rustix::mm::mprotect(
            peer.as_ptr().cast(),
            page_bytes() as usize,
            rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
        )
    };
    assert!(upgraded.is_err());
    pool.window().write_from(0, b"MINE").unwrap();
    let mut seen = [0; 4];
    peer.read_into(0, &mut seen).unwrap();
    assert_eq!(&seen, b"MINE");
}

#[test]
fn nobody_can_resize_a_pool_or_take_its_seals_off() {
    let pool = Pool::create(small(MIB)).unwrap();
    assert!(rustix::fs::ftruncate(pool.fd(), MIB / 2).is_err());
    assert!(rustix::fs::ftruncate(pool.fd(), MIB * 2).is_err());
    assert!(rustix::fs::fcntl_add_seals(pool.fd(), SealFlags::WRITE).is_err());
    assert!(map_writable(pool.fd(), MIB).is_ok());
}

#[test]
fn a_pool_that_only_promises_to_be_read_only_is_refused() {
    let pool = Pool::create(small(MIB).rights(Rights::READ_WRITE)).unwrap();
    let refused = map_foreign_pool(dup(pool.fd()), MIB, Rights::READ, PageKind::Small).unwrap_err();
    let MemoryError::Unsealed { missing } = refused else { panic!("{refused}") };
    assert!(missing.future_write && !missing.shrink && !missing.grow);
}

#[test]
fn what_is_no_sealed_memfd_of_the_announced_size_is_refused() {
    let plain = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&plain, 4096).unwrap();
    let missing = |error| match error {
        MemoryError::Unsealed { missing } => missing,
        other => panic!("{other}"),
    };
    let refused = missing(Segment::open(plain, 4096, Access::ReadWrite).unwrap_err());
    assert_eq!(refused.to_string(), "shrinking, growing");

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let half = rustix::fs::memfd_create("half sealed", flags).unwrap();
    rustix::fs::ftruncate(&half, 4096).unwrap();
    rustix::fs::fcntl_add_seals(&half, SealFlags::GROW).unwrap();
    let refused = missing(Segment::open(half, 4096, Access::Read).unwrap_err());
    assert_eq!(refused.to_string(), "shrinking");

    let file = OwnedFd::from(File::open("/proc/self/exe").unwrap());
    assert!(matches!(Segment::open(file, 4096, Access::Read), Err(MemoryError::NotAMemfd)));

    let pool = Pool::create(small(MIB)).unwrap();
    for announced in [MIB - page_bytes(), MIB + page_bytes(), MIB + 1] {
        let refused = map_foreign_pool(dup(pool.fd()), announced, Rights::READ_WRITE, PageKind::Small);
        assert!(matches!(refused, Err(MemoryError::WrongSize { found: MIB, .. })), "{announced}");
    }
    assert!(map_foreign_pool(dup(pool.fd()), 0, Rights::READ_WRITE, PageKind::Small).is_err());
}

/// Whoever touches a page first pays for it: a pool that its owner has not filled would be filled on this process's account.
#[test]
fn a_pool_without_all_of_its_pages_is_refused_and_not_filled() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    for filled in [0, MIB, 64 * MIB - page_bytes()] {
        let sparse = rustix::fs::memfd_create("sparse", flags).unwrap();
        rustix::fs::ftruncate(&sparse, 64 * MIB).unwrap();
        if filled > 0 {
            rustix::fs::fallocate(&sparse, FallocateFlags::empty(), 0, filled).unwrap();
        }
        rustix::fs::fcntl_add_seals(&sparse, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        let refused = map_foreign_pool(dup(sparse.as_fd()), 64 * MIB, Rights::READ_WRITE, PageKind::Small);
        let backed = rustix::fs::fstat(&sparse).unwrap().st_blocks as u64 * 512;
        assert_eq!(backed, filled, "this process has filled it");
        assert!(matches!(refused, Err(MemoryError::Sparse { backed, .. }) if backed == filled));
    }
    // What its owner has filled may have been swapped out, or come in pages of another size: it is taken.
    let pool = Pool::create(PoolSpec::host(4 * MIB)).unwrap();
    map_foreign_pool(dup(pool.fd()), 4 * MIB, Rights::READ_WRITE, pool.pages().got).unwrap();
}

#[test]
fn segments_are_zeroed_shared_and_sealed() {
    let mine = Segment::create("ring", 100).unwrap();
    assert_eq!(mine.bytes(), page_bytes());
    assert_eq!(mine.window().load_u64(64), Ok(0));
    let peer = Segment::open(dup(mine.fd()), 100, Access::ReadWrite).unwrap();
    mine.window().store_u64(64, 42).unwrap();
    assert_eq!(peer.window().load_u64(64), Ok(42));
    peer.window().store_u64(64, 43).unwrap();
    assert_eq!(mine.window().load_u64(64), Ok(43));
    let window = mine.window().clone();
    drop(mine);
    assert_eq!(window.load_u64(64), Ok(43));

    assert!(matches!(Segment::create("none", 0), Err(MemoryError::Empty { .. })));
    assert!(matches!(Segment::create("far too much", u64::MAX), Err(MemoryError::AddressOverflow { .. })));
    let refused = Segment::open(dup(peer.fd()), page_bytes() + 1, Access::Read);
    assert!(matches!(refused, Err(MemoryError::WrongSize { .. })));
}

#[test]
fn a_segment_that_only_its_owner_writes() {
    let mine = Segment::create_owner_writes_only("counters", 4096).unwrap();
    mine.window().store_u64(0, 1).unwrap();
    assert!(Segment::open(dup(mine.fd()), 4096, Access::ReadWrite).is_err());
    assert!(map_writable(reopen(mine.fd()).unwrap(), 4096).is_err());
    let peer = Segment::open(dup(mine.fd()), 4096, Access::Read).unwrap();
    mine.window().store_u64(0, 2).unwrap();
    assert_eq!(peer.window().load_u64(0), Ok(2));
    assert_eq!(peer.window().store_u64(0, 3), Err(AccessError::ReadOnly));
}

#[test]
fn larger_pages_are_asked_for_and_their_absence_is_reported() {
    for pages in [Pages::Auto, Pages::Small, Pages::Huge] {
        let pool = Pool::create(PoolSpec::host(8 * MIB).pages(pages)).unwrap();
        let report = pool.pages();
        assert_eq!(report.asked, pages);
        match pages {
            Pages::Small => assert_eq!((report.got, &report.reason), (PageKind::Small, &None)),
            _ => assert!(report.got != PageKind::Small || report.reason.is_some(), "{report:?}"),
        }
        pool.window().fill(0, pool.bytes(), 3).unwrap();
        let peer = map_foreign_pool(dup(pool.fd()), pool.bytes(), pool.rights(), report.got).unwrap();
        let mut last = [0];
        peer.read_into(pool.bytes() - 1, &mut last).unwrap();
        assert_eq!(last, [3]);
        if report.got != PageKind::Small {
            assert_eq!(pool.window().base_address() % HUGE_PAGE_BYTES, 0);
            assert_eq!(peer.base_address() % HUGE_PAGE_BYTES, 0);
        }
    }
}

#[test]
fn impossible_specifications_are_refused_with_a_mend() {
    let device = Pool::create(PoolSpec::device(crate::DeviceId([7; 16]), MIB)).unwrap_err();
    assert!(matches!(device, MemoryError::NotHere { .. }));
    assert!(device.to_string().contains("PoolSpec::host"), "{device}");
    assert!(matches!(Pool::create(small(0)), Err(MemoryError::Empty { .. })));
    for block in [0, MIB + 1] {
        let refused = Pool::create(small(MIB).block(block));
        assert!(matches!(refused, Err(MemoryError::BlockSize { .. })), "{block}");
    }
    assert!(matches!(Pool::create(small(1 << 40).block(1)), Err(MemoryError::BlockSize { .. })));
    for pages in [Pages::Auto, Pages::Small, Pages::Huge] {
        let refused = Pool::create(PoolSpec::host(1 << 50).block(1 << 30).pages(pages)).unwrap_err();
        assert!(matches!(refused, MemoryError::OutOfMemory { asked, .. } if asked == 1 << 50), "{refused}");
    }
    assert!(matches!(Pool::create(small(MIB).node(Some(5_000))), Err(MemoryError::Node { .. })));
}

#[test]
fn blocks_of_a_pool_name_their_memory_and_outlive_it() {
    let pool = Pool::create(small(MIB).block(1_000)).unwrap();
    assert_eq!(pool.blocks_total(), 1_048);
    let blocks = pool.take(3).unwrap();
    pool.window().write_from(2_000, b"third").unwrap();
    drop(pool);
    assert_eq!(blocks.offset(2), Some(2_000));
    let mut seen = [0; 5];
    blocks.window(2).unwrap().read_into(0, &mut seen).unwrap();
    assert_eq!(&seen, b"third");
    assert!(blocks.window(3).is_none());
}

#[test]
fn the_default_block_fits_pools_of_every_size() {
    assert_eq!(Pool::create(small(MIB)).unwrap().block_bytes(), 64 << 10);
    let tiny = Pool::create(small(100)).unwrap();
    assert_eq!((tiny.block_bytes(), tiny.blocks_total()), (100, 1));
}
