//! Blocks of a pool whose layout numbers them otherwise than the pool's bytes do: what is put out of them, or got into them, is kept.

use super::*;
use penstock::flows::relay::Extents;
use penstock::flows::{Buffer, ForeignMemory, Form, Layout, LayoutRefused, LayoutSpec, Rows};
use penstock::region::Pool;
use penstock::{Blocks, SystemEnv};

const BLOCKS: u32 = 64;
const ROWS: Rows = Rows { first: 0, count: 4, of: 4, bytes: 64 };
/// Bytes of one block in one layer.
const BLOCK: u64 = 16 * 4 * 64;
const LAYER: u64 = BLOCKS as u64 * BLOCK;
/// The block that the tests are about.
const ITS: usize = 40;

/// A pool with one layer behind the other, and its layout.
struct Place {
    layout: Layout<SystemEnv>,
    pool: Pool<SystemEnv>,
}

impl Place {
    fn new(net: &Net, at: usize, rights: Rights) -> Self {
        let spec = PoolSpec::host(2 * LAYER).block(2 * BLOCK).label("kv").rights(rights);
        let pool = net.engine(at).pool(spec).unwrap();
        let spec = LayoutSpec::new("kv", 16, BLOCKS).token_major(0, 0, ROWS).token_major(1, LAYER, ROWS);
        Self { layout: net.engine(at).layout(&pool, spec).unwrap(), pool }
    }

    /// Where blocks lie in each layer.
    fn extents(&self, blocks: &Blocks) -> Vec<(u64, u64)> {
        let of_layer = |layer| blocks.indices().iter().map(move |block| (layer, *block));
        (0..2).flat_map(of_layer).map(|(layer, block)| self.layout.extent(layer, block).unwrap()).collect()
    }

    fn fill(&self, blocks: &Blocks, byte: u8) {
        self.extents(blocks).iter().for_each(|(offset, len)| self.pool.window().fill(*offset, *len, byte).unwrap());
    }

    fn is_filled(&self, blocks: &Blocks, byte: u8) -> bool {
        let mut found = vec![0; BLOCK as usize];
        self.extents(blocks).iter().all(|(offset, _)| {
            self.pool.window().read_into(*offset, &mut found).unwrap();
            found.iter().all(|one| *one == byte)
        })
    }

    /// One block, and all others free.
    fn one(&self) -> Blocks {
        let mut all: Vec<Blocks> = (0..BLOCKS).map(|_| self.pool.take(1).unwrap()).collect();
        all.swap_remove(ITS)
    }

    fn free(&self) -> u32 {
        self.pool.memory().blocks().free() as u32
    }
}

pub(super) fn what_a_put_reads_is_nobody_elses_until_it_is_read(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let from = Place::new(&net, 0, Rights::READ_WRITE);
    let its = from.one();
    from.fill(&its, 0x33);
    let put = Put::extents(Extents::blocks(&from.layout, &[&its]));
    let put = net.relay(0).put(put, &request("own"), &[&net.peer(0, 1)]).unwrap();
    drop(its);
    assert_eq!(from.free(), BLOCKS - 1, "it is kept while it is unread");
    // The next owners of all memory that is free write to it.
    let next = from.pool.take(from.free() as usize).unwrap();
    from.fill(&next, 0x66);
    let got = net.relay(1).get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    assert_eq!(got.bytes.len() as u64, 2 * BLOCK);
    assert!(got.bytes.iter().all(|byte| *byte == 0x33), "it begins with {:#x}", got.bytes[0]);
    assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    drop((put, next));
    net.rests();
    net.until("the block comes back", || from.free() == BLOCKS);
}

pub(super) fn what_a_get_writes_is_nobody_elses_until_it_is_there(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let (from, to) = (Place::new(&net, 0, Rights::READ_WRITE), Place::new(&net, 1, Rights::NONE));
    let (source, its) = (from.one(), to.one());
    let put = Put::extents(Extents::blocks(&from.layout, &[&source])).not_ready();
    let put = net.relay(0).put(put, &request("own"), &[&net.peer(0, 1)]).unwrap();
    let place = to.extents(&its);
    let into = Destination::extents(Extents::of_layout(&to.layout, &[&its], &place));
    let fetch = net.relay(1).get(put.metadata(), into).unwrap();
    drop(its);
    assert_eq!(to.free(), BLOCKS - 1, "it is kept while it can be written to");
    let next = to.pool.take(to.free() as usize).unwrap();
    to.fill(&next, 0x66);
    from.fill(&source, 0x33);
    put.ready();
    fetch.wait(PATIENCE).unwrap().unwrap();
    assert!(to.is_filled(&next, 0x66), "the next owners' bytes are their own");
    let mut found = [0; 2];
    for (at, (offset, _)) in place.into_iter().enumerate() {
        to.pool.window().read_into(offset, &mut found[at..=at]).unwrap();
    }
    assert_eq!(found, [0x33; 2]);
    assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    drop((put, fetch, next, source));
    net.rests();
    net.until("the blocks come back", || to.free() == BLOCKS);
}

/// What could be given out again while a peer is at it is not begun, and the words say what to give.
#[test]
fn what_no_handle_holds_is_neither_put_nor_got() {
    let net = Net::new(Local, &["a", "b"], small);
    let from = Place::new(&net, 0, Rights::READ_WRITE);
    let to = net.peer(0, 1);
    let (its, other) = (from.one(), from.pool.take(1).unwrap());
    let (block, label) = (its.indices()[0], "kv".to_owned());
    let refused = |extents: Extents<'_, SystemEnv>| match net.relay(0).put(Put::extents(extents), &request("r"), &[&to])
    {
        Err(FlowError::Memory(why)) => why,
        other => panic!("{other:?}"),
    };
    let (first, len) = from.layout.extent(1, block).unwrap();
    let part = [(first, len)];
    assert_eq!(refused(Extents::registered(&from.pool, &part)), ForeignMemory::IsPool { label: label.clone() });
    let unheld = |offset, block| ForeignMemory::Unheld { label: label.clone(), offset, block };
    assert_eq!(refused(Extents::of_layout(&from.layout, &[], &part)), unheld(first, block));
    assert_eq!(refused(Extents::of_layout(&from.layout, &[&other], &part)), unheld(first, block));
    // One byte of the next block.
    let longer = [(first, len + 1)];
    assert_eq!(refused(Extents::of_layout(&from.layout, &[&its], &longer)), unheld(first + len, block + 1));
    // The pool's own numbers are other ones.
    let numbers = ForeignMemory::OtherNumbers { label: label.clone(), layout: label.clone() };
    assert_eq!(refused(Extents::of_pool(&from.pool, &[&its], &[(u64::from(block) * 2 * BLOCK, 1)])), numbers);
    let foreign = net.engine(0).pool(PoolSpec::host(2 * LAYER).block(2 * BLOCK).label("other")).unwrap();
    let others = foreign.take(64).unwrap();
    let blocks = ForeignMemory::Blocks { label: label.clone() };
    assert_eq!(refused(Extents::of_layout(&from.layout, &[&others], &part)), blocks);
    // A get asks the same.
    let put = net.relay(0).put(Put::bytes(&[7; 8]), &request("r"), &[&to]).unwrap();
    let place = Place::new(&net, 1, Rights::NONE);
    let into = Destination::extents(Extents::of_layout(&place.layout, &[], &[(0, 8)]));
    let got = net.relay(1).get(put.metadata(), into).map(drop).unwrap_err();
    assert_eq!(got, FlowError::Memory(ForeignMemory::Unheld { label: label.clone(), offset: 0, block: 0 }));
    drop((its, other));
    assert_eq!(from.free(), BLOCKS, "nothing of it is kept");

    // A layout with a gap between blocks, and fewer of them than its pool has.
    let spec =
        LayoutSpec::new("few", 16, 2).buffer(Buffer { layer: 0, base: 0, stride: 2 * BLOCK, form: Form::Once(BLOCK) });
    let few = net.engine(0).layout(&foreign, spec).unwrap();
    let gap = ForeignMemory::NoBlock { label: "few".to_owned(), offset: BLOCK };
    let of_few = |extents| net.relay(0).put(Put::extents(extents), &request("r"), &[&to]).map(drop).unwrap_err();
    drop(others);
    let (one, more) = (foreign.take(1).unwrap(), foreign.take(2).unwrap());
    assert_eq!(of_few(Extents::of_layout(&few, &[&one], &[(0, BLOCK + 1)])), FlowError::Memory(gap));
    let beyond = ForeignMemory::NoSuchBlock { label: "few".to_owned(), block: 2, blocks: 2 };
    assert_eq!(of_few(Extents::blocks(&few, &[&more])), FlowError::Memory(beyond));
}

/// A byte that is of block 3 by the one layout and of block 7 by the other would be held by whoever has either.
#[test]
fn layouts_of_a_region_give_a_byte_one_number() {
    let net = Net::new(Local, &["a", "b"], small);
    let from = Place::new(&net, 0, Rights::READ_WRITE);
    let record = |label: &str, layer: u32, base: u64| {
        let (stride, form) = (2 * BLOCK, Form::TokenMajor(ROWS));
        LayoutSpec::new(label, 16, BLOCKS).buffer(Buffer { layer, base, stride, form })
    };
    let refused = net.engine(0).layout(&from.pool, record("records", 0, 0)).map(drop).unwrap_err();
    assert!(matches!(&refused, FlowError::Layout(LayoutRefused::Renumbered { .. })), "{refused}");
    let words = refused.to_string();
    assert!(words.contains("`records`") && words.contains("`kv`") && words.contains("block 1"), "{words}");
    // One layer of it alone is numbered alike; and when the first is gone, the pool can be laid out anew.
    let alone = LayoutSpec::new("second", 16, BLOCKS).token_major(0, LAYER, ROWS);
    drop(net.engine(0).layout(&from.pool, alone).unwrap());
    let Place { layout, pool } = from;
    let put = Put::extents(Extents::blocks(&layout, &[&pool.take(1).unwrap()]));
    let put = net.relay(0).put(put, &request("unread"), &[&net.peer(0, 1)]).unwrap();
    drop(layout);
    let refused = net.engine(0).layout(&pool, record("records", 0, 0)).map(drop).unwrap_err();
    assert!(matches!(&refused, FlowError::Layout(LayoutRefused::StillHeld { .. })), "it is read by those: {refused}");
    net.relay(1).get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    put.wait(PATIENCE).unwrap().unwrap();
    drop(put);
    net.until("the block comes back", || pool.memory().blocks().free() as u32 == BLOCKS);
    let records = net.engine(0).layout(&pool, record("records", 0, 0)).unwrap();
    let rest = net.engine(0).layout(&pool, record("rest", 1, BLOCK)).unwrap();
    assert_eq!((records.offset(0, 3, 1), rest.offset(0, 3, 0)), (Some(6 * BLOCK + 256), Some(7 * BLOCK)));
}
