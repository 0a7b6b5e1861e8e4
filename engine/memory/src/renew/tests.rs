//! What lies over a pool, what is kept, and what others must not pass off as a piece.

use std::os::fd::BorrowedFd;

use super::*;
use crate::pool::map_foreign_pool;
use crate::pool_spec::{Pages, PoolSpec};

const MIB: u64 = 1 << 20;

fn pool(bytes: u64) -> Pool {
    Pool::create(PoolSpec::host(bytes).pages(Pages::Small).block(page_bytes() / 2).label("kv")).unwrap()
}

fn dup(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().unwrap()
}

fn bytes_of(window: &Window, offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    window.read_into(offset, &mut bytes).unwrap();
    bytes
}

/// What a peer that lives maps.
fn seen_by_a_peer(pool: &Pool) -> Window {
    let (fd, pieces) = pool.share_in_pieces();
    let pieces: Vec<FreshPiece<OwnedFd>> = pieces
        .iter()
        .map(|piece| FreshPiece { offset: piece.offset, len: piece.len, fd: dup(piece.fd.as_fd()) })
        .collect();
    map_foreign_pieces(dup(fd.as_fd()), pool.bytes(), pool.rights(), PageKind::Small, &pieces, None).unwrap()
}

#[test]
fn an_old_mapping_writes_where_nobody_reads_and_a_new_one_where_the_owner_does() {
    let pool = pool(MIB);
    let page = page_bytes();
    let old = map_foreign_pool(dup(pool.fd()), MIB, Rights::READ_WRITE, PageKind::Small).unwrap();
    pool.window().fill(0, MIB, 7).unwrap();
    // A range that begins and ends in the middle of pages.
    let ranges = pool.renewable(&[(page * 4 + 100, page * 2)]).unwrap();
    let (offset, len) = (page * 4, page * 3);
    assert_eq!(ranges, [(offset, len)]);
    let address = pool.window().base_address();
    let left = pool.renew(&ranges).unwrap();
    assert_eq!(pool.window().base_address(), address);
    assert_eq!(bytes_of(pool.window(), 0, MIB), vec![7; MIB as usize], "the bytes are carried over, the edges too");

    old.fill(0, MIB, 8).unwrap();
    assert_eq!(bytes_of(pool.window(), offset, len), vec![7; len as usize], "a stale write was seen");
    assert_eq!(
        bytes_of(pool.window(), 0, offset),
        vec![8; offset as usize],
        "the rest of the pool is shared as before"
    );

    let new = seen_by_a_peer(&pool);
    new.fill(0, MIB, 9).unwrap();
    assert_eq!(bytes_of(pool.window(), 0, MIB), vec![9; MIB as usize]);
    assert_eq!(bytes_of(&old, offset, len), vec![8; len as usize]);

    left.free();
    assert_eq!(bytes_of(&old, offset, len), vec![0; len as usize], "the old pages were not given back");
    assert_eq!(bytes_of(pool.window(), 0, MIB), vec![9; MIB as usize]);
}

#[test]
fn pieces_over_pieces_stay_apart_and_hold_what_was_there() {
    let pool = pool(64 * page_bytes());
    let page = page_bytes();
    let mut expected = vec![0u8; pool.bytes() as usize];
    // Apart, adjoining, inside one, over two, over all.
    for (round, (offset, len)) in [(4, 4), (10, 2), (8, 2), (5, 1), (6, 6), (0, 64)].into_iter().enumerate() {
        let fill = round as u8 + 1;
        pool.window().fill(offset * page, len * page, fill).unwrap();
        expected[(offset * page) as usize..((offset + len) * page) as usize].fill(fill);
        let ranges = pool.renewable(&[(offset * page, len * page)]).unwrap();
        pool.renew(&ranges).unwrap().free();
        assert_eq!(bytes_of(pool.window(), 0, pool.bytes()), expected);
        let (_, pieces) = pool.share_in_pieces();
        assert!(pieces.windows(2).all(|two| two[0].end() <= two[1].offset), "{pieces:?}");
        let peer = seen_by_a_peer(&pool);
        assert_eq!(bytes_of(&peer, 0, pool.bytes()), expected);
    }
    assert_eq!(pool.share_in_pieces().1.len(), 1, "the last piece covers all others");
}

#[test]
fn a_pool_that_peers_may_only_read_keeps_its_seal_over_fresh_memory() {
    let spec = PoolSpec::host(MIB).pages(Pages::Small).label("kv").rights(Rights::READ);
    let pool = Pool::create(spec).unwrap();
    pool.renew(&[(0, page_bytes())]).unwrap().free();
    pool.window().fill(0, MIB, 3).unwrap();
    assert_eq!(bytes_of(&seen_by_a_peer(&pool), 0, MIB), vec![3; MIB as usize]);
    let (_, pieces) = pool.share_in_pieces();
    let refused = map_foreign_pool(dup(pieces[0].fd.as_fd()), page_bytes(), Rights::READ, PageKind::Small);
    assert!(refused.is_ok());
    let writable = Mapping::new(pieces[0].fd.as_fd(), page_bytes(), Access::ReadWrite, false);
    assert_eq!(writable.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn too_many_pieces_and_ranges_outside_are_refused_and_change_nothing() {
    let pool = pool(64 * page_bytes());
    let page = page_bytes();
    let apart: Vec<(u64, u64)> = (0..PIECES_MAX as u64).map(|piece| (piece * 2 * page, page)).collect();
    pool.renew(&apart).unwrap().free();
    assert!(matches!(pool.renewable(&[(60 * page, page)]), Err(MemoryError::NotHere { .. })));
    assert!(matches!(pool.renew(&[(60 * page, page)]), Err(MemoryError::NotHere { .. })));
    // What covers a piece takes its place, and what touches becomes one.
    assert_eq!(pool.renewable(&[(page - 1, 1), (0, 1)]).unwrap(), [(0, page)]);
    assert_eq!(pool.renewable(&[(2 * page, 1), (page, 9), (0, 1)]).unwrap(), [(0, 3 * page)]);
    for outside in [(63 * page, page + 1), (u64::MAX, 2), (0, 0)] {
        assert!(matches!(pool.renewable(&[outside]), Err(MemoryError::PieceMisplaced { .. })));
    }
    assert!(matches!(pool.renew(&[(1, page)]), Err(MemoryError::PieceMisplaced { .. })));
    assert!(matches!(pool.renew(&[(page, page), (0, page)]), Err(MemoryError::PieceMisplaced { .. })));
    assert_eq!(pool.share_in_pieces().1.len(), PIECES_MAX);
}

#[test]
fn a_piece_of_a_peer_is_checked_before_it_is_mapped() {
    let page = page_bytes();
    let sealed = |bytes: u64| {
        let fd = memfd::create("piece", bytes, false, "a test").unwrap();
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, bytes).unwrap();
        memfd::seal(fd.as_fd(), false, "a test").unwrap();
        fd
    };
    let map = |pieces: Vec<FreshPiece<OwnedFd>>| {
        map_foreign_pieces(sealed(16 * page), 16 * page, Rights::READ_WRITE, PageKind::Small, &pieces, None)
    };
    let piece = |offset: u64, len: u64| FreshPiece { offset, len, fd: sealed(len.max(page)) };
    assert!(map(vec![piece(0, page), piece(page, 15 * page)]).is_ok());
    for wrong in [
        vec![piece(16 * page, page)],
        vec![piece(15 * page, 2 * page)],
        vec![piece(1, page)],
        vec![piece(0, page + 1)],
        vec![piece(0, 0)],
        vec![piece(u64::MAX - page + 1, page)],
        vec![piece(0, 2 * page), piece(page, page)],
        vec![piece(page, page), piece(0, page)],
        (0..=PIECES_MAX as u64).map(|at| piece(at % 16 * page, page)).collect(),
    ] {
        assert!(matches!(map(wrong), Err(MemoryError::PieceMisplaced { .. })));
    }
    let short = FreshPiece { offset: 0, len: 2 * page, fd: sealed(page) };
    assert!(matches!(map(vec![short]), Err(MemoryError::WrongSize { .. })));
    let open = FreshPiece { offset: 0, len: page, fd: memfd::create("piece", page, false, "a test").unwrap() };
    assert!(matches!(map(vec![open]), Err(MemoryError::Unsealed { .. })));
    let sparse = memfd::create("piece", 2 * page, false, "a test").unwrap();
    memfd::seal(sparse.as_fd(), false, "a test").unwrap();
    let blocks = || rustix::fs::fstat(&sparse).unwrap().st_blocks;
    let piece = FreshPiece { offset: 0, len: 2 * page, fd: sparse.try_clone().unwrap() };
    assert!(matches!(map(vec![piece]), Err(MemoryError::Sparse { backed: 0, .. })));
    assert_eq!(blocks(), 0, "its pages were taken from this process");
}
