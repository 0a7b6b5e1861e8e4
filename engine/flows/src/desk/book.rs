//! Which blocks are written and read by whom in this engine: any number of transfers read a block, and one writes it, alone.
//!
//! A block is known by where it lies: by the region, and by where its number leads in the layout's first buffer. So two layouts that lie in
//! different parts of a region have nothing to do with each other, and two that number the same memory alike are one.

use std::collections::BTreeMap;

use penstock_core::planted::{self, Bug};
use penstock_session::transfers::table::EntryKey;

use super::Desk;
use super::calls::CallError;
use super::flow::Flow;
use crate::action::RegionRef;
use crate::held::{BlockHeld, Holder};
use crate::input::{Leg, SinkLegs};
use crate::layout::Layout;
use crate::partners::LayoutKey;

/// How blocks are numbered somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ground {
    region: RegionRef,
    base: u64,
    stride: u64,
}

impl Ground {
    /// Blocks of a region, the first of which begins there.
    pub(super) fn new(region: RegionRef, base: u64, stride: u64) -> Self {
        Self { region, base, stride }
    }

    fn of(layout: &Layout) -> Self {
        let first = layout.buffers().iter().min_by_key(|buffer| buffer.base);
        let (base, stride) = first.map_or((0, 0), |first| (first.base, first.stride));
        Self::new(layout.region(), base, stride)
    }
}

/// A place in the book where the blocks of one ground stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageId(u32);

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// The place of the transfer that has granted it, plus one; 0 is nobody.
    writer: u32,
    /// How many read it.
    readers: u32,
}

/// Not a place of a transfer: a swap writes it.
const SWAP: u32 = u32::MAX;

#[derive(Debug)]
struct Page {
    ground: Ground,
    /// Layouts, transfers and swaps of it.
    users: usize,
    blocks: Vec<Block>,
}

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// The transfer at this place of the table.
    Transfer(EntryKey),
    /// A swap.
    Swap,
}

impl Writer {
    fn mark(self) -> u32 {
        match self {
            Self::Transfer(key) => key.place() as u32 + 1,
            Self::Swap => SWAP,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Book {
    pages: Vec<Option<Page>>,
    by_ground: BTreeMap<Ground, u32>,
    by_layout: BTreeMap<LayoutKey, PageId>,
}

impl Book {
    /// Blocks of this layout are given from now on.
    pub(super) fn add_layout(&mut self, key: LayoutKey, layout: &Layout) {
        let page = self.join(Ground::of(layout));
        self.by_layout.insert(key, page);
    }

    /// None is any more; transfers that are under way go on.
    pub(super) fn remove_layout(&mut self, key: LayoutKey) {
        let page = self.by_layout.remove(&key);
        page.into_iter().for_each(|page| self.leave(page));
    }

    /// A transfer has blocks of this layout from now on.
    pub(super) fn join_layout(&mut self, key: LayoutKey) -> Option<PageId> {
        let page = *self.by_layout.get(&key)?;
        self.page_mut(page)?.users += 1;
        Some(page)
    }

    /// Somebody has blocks of this ground from now on.
    pub(super) fn join(&mut self, ground: Ground) -> PageId {
        let at = *self.by_ground.entry(ground).or_insert_with(|| {
            let free = self.pages.iter().position(Option::is_none).unwrap_or(self.pages.len());
            if free == self.pages.len() {
                self.pages.push(None);
            }
            self.pages[free] = Some(Page { ground, users: 0, blocks: Vec::new() });
            free as u32
        });
        if let Some(page) = self.page_mut(PageId(at)) {
            page.users += 1;
        }
        PageId(at)
    }

    /// Somebody has none any more.
    pub(super) fn leave(&mut self, page: PageId) {
        let Some(known) = self.page_mut(page) else { return };
        known.users -= 1;
        if known.users == 0 {
            let ground = known.ground;
            self.by_ground.remove(&ground);
            self.pages[page.0 as usize] = None;
        }
    }

    /// Where blocks of this layout stand.
    pub(super) fn page_of(&self, key: LayoutKey) -> Option<PageId> {
        self.by_layout.get(&key).copied()
    }

    fn page(&self, page: PageId) -> Option<&Page> {
        self.pages.get(page.0 as usize)?.as_ref()
    }

    fn page_mut(&mut self, page: PageId) -> Option<&mut Page> {
        self.pages.get_mut(page.0 as usize)?.as_mut()
    }

    fn at(&self, page: PageId, block: u32) -> Block {
        self.page(page).and_then(|page| page.blocks.get(block as usize)).copied().unwrap_or_default()
    }

    fn change(&mut self, page: PageId, blocks: impl Iterator<Item = u32>, change: impl Fn(&mut Block)) {
        let Some(page) = self.page_mut(page) else { return };
        for block in blocks {
            let at = block as usize;
            if at >= page.blocks.len() {
                page.blocks.resize((at + 1).next_power_of_two(), Block::default());
            }
            change(&mut page.blocks[at]);
        }
    }

    /// These are written.
    pub(super) fn write(&mut self, page: PageId, blocks: impl Iterator<Item = u32>, writer: Writer) {
        let mark = writer.mark();
        self.change(page, blocks, |block| block.writer = mark);
    }

    /// These are not any more.
    pub(super) fn written(&mut self, page: PageId, blocks: impl Iterator<Item = u32>) {
        self.change(page, blocks, |block| block.writer = 0);
    }

    /// These are read once more.
    pub(super) fn read(&mut self, page: PageId, blocks: impl Iterator<Item = u32>) {
        self.change(page, blocks, |block| block.readers += 1);
    }

    /// These are read once less.
    pub(super) fn read_no_more(&mut self, page: PageId, blocks: impl Iterator<Item = u32>) {
        self.change(page, blocks, |block| block.readers = block.readers.saturating_sub(1));
    }

    /// Whether nobody has anything.
    pub(super) fn is_clear(&self) -> bool {
        let mut blocks = self.pages.iter().flatten().flat_map(|page| &page.blocks);
        blocks.all(|block| (block.writer, block.readers) == (0, 0))
    }
}

impl Desk {
    /// Whether these can be written for this transfer, or for a swap: nobody reads them, and nobody else writes them.
    pub(super) fn may_write(
        &self,
        page: PageId,
        blocks: impl Iterator<Item = u32>,
        writer: Option<EntryKey>,
    ) -> Result<(), BlockHeld> {
        // What is granted twice within a transfer is its own to refuse.
        let own = writer.map_or(SWAP, |key| Writer::Transfer(key).mark());
        let is_own = |at: Block| at.writer == 0 || at.writer == own && writer.is_some();
        let mut looked = blocks.map(|block| (block, self.book.at(page, block)));
        match looked.find(|(_, at)| at.readers > 0 || !is_own(*at)) {
            None => Ok(()),
            Some(_) if planted::is(Bug::GrantedTwice) => Ok(()),
            Some((block, at)) if at.readers > 0 => Err(BlockHeld::Read { block, by: self.reader_of(page, block) }),
            Some((block, at)) => match self.writer_of(at.writer) {
                (by, Some(legs)) if legs.leg_with(block) == Some(Leg::Landed) => Err(BlockHeld::Untaken { block, by }),
                (by, _) => Err(BlockHeld::Written { block, by }),
            },
        }
    }

    /// Whether these can be read: what is written there is there.
    pub(super) fn may_read(&self, page: PageId, blocks: impl Iterator<Item = u32>) -> Result<(), BlockHeld> {
        for block in blocks {
            let at = self.book.at(page, block);
            if at.writer == 0 {
                continue;
            }
            let (by, legs) = self.writer_of(at.writer);
            let is_there = legs.is_some_and(|legs| legs.leg_with(block) == Some(Leg::Landed));
            if !is_there && !planted::is(Bug::GrantedTwice) {
                return Err(BlockHeld::Written { block, by });
            }
        }
        Ok(())
    }

    /// Who writes, and its legs.
    fn writer_of(&self, mark: u32) -> (Holder, Option<&SinkLegs>) {
        let key = if mark == SWAP { None } else { self.transfers.key_at(mark as usize - 1) };
        (self.holder(key), key.and_then(|key| self.looked_sink(key)))
    }

    /// Somebody who reads a block. It looks at every transfer.
    fn reader_of(&self, page: PageId, block: u32) -> Holder {
        let its = self.transfers.iter().find(|(_, held)| {
            let has = |(blocks, once): (&[u32], Option<u32>)| blocks.contains(&block) || once == Some(block);
            held.is_reading && held.page == Some(page) && held.flow.read_blocks().is_some_and(has)
        });
        self.holder(its.map(|(key, _)| key))
    }

    fn holder(&self, key: Option<EntryKey>) -> Holder {
        match key.and_then(|key| self.transfers.holder_names(key)) {
            Some((side, transfer, request)) => Holder::Transfer { side, transfer, request: request.cloned() },
            None => Holder::Swap,
        }
    }

    /// The sink's last leg was granted: its blocks are written.
    pub(super) fn note_granted(&mut self, key: EntryKey) {
        let Self { transfers, book, .. } = self;
        let Some(held) = transfers.get_mut(key) else { return };
        let legs = match &held.flow {
            Flow::Sink(sink) => &sink.legs,
            Flow::Pull(pulled) => pulled.pull.legs(),
            Flow::Source(_) | Flow::Lent(_) => return,
        };
        if let (Some(page), Some((blocks, once))) = (held.page, legs.last_granted()) {
            book.write(page, blocks.iter().copied().chain(once), Writer::Transfer(key));
        }
    }

    /// The sink's legs have let go of blocks.
    pub(super) fn note_let_go(&mut self, key: EntryKey) {
        let Self { transfers, book, .. } = self;
        let Some(held) = transfers.get_mut(key) else { return };
        let legs = match &mut held.flow {
            Flow::Sink(sink) => &mut sink.legs,
            Flow::Pull(pulled) => pulled.pull.legs_mut(),
            Flow::Source(_) | Flow::Lent(_) => return,
        };
        let blocks = legs.take_let_go();
        if let Some(page) = held.page {
            book.written(page, blocks.iter().copied());
        }
    }

    /// A source has blocks from this call on that it had not before: they are read.
    pub(super) fn note_chunk(&mut self, key: EntryKey) {
        let Self { transfers, book, .. } = self;
        let Some(held) = transfers.get_mut(key) else { return };
        let (Some(page), Some((blocks, _))) = (held.page, held.flow.read_blocks()) else { return };
        book.read(page, blocks[held.read.min(blocks.len())..].iter().copied());
        held.read = blocks.len();
    }

    /// A source reads nothing any more.
    pub(super) fn note_read(&mut self, key: EntryKey) {
        let Self { transfers, book, .. } = self;
        let Some(held) = transfers.get_mut(key).filter(|held| held.is_reading) else { return };
        held.is_reading = false;
        let (Some(page), Some((blocks, once))) = (held.page, held.flow.read_blocks()) else { return };
        book.read_no_more(page, blocks[..held.read.min(blocks.len())].iter().copied().chain(once));
    }

    /// Blocks that a call cannot have.
    pub(super) fn is_held(error: BlockHeld) -> CallError {
        CallError::Held(Box::new(error))
    }
}

#[cfg(test)]
mod tests;
