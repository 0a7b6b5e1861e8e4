//! Which blocks are written and read by whom in this engine: any number read a block, and one writes it, alone.
//!
//! A block is known by where it lies. What numbers blocks of a region alike, in the same stripes, has one page; pages whose stripes have
//! bytes in common know each other, and a block is looked up in each of them. So layouts that lie in different parts of a region have
//! nothing to do with each other, and those that have a part in common have the blocks of that part in common.

use std::collections::BTreeMap;

use penstock_core::planted::{self, Bug};
use penstock_session::transfers::table::EntryKey;

use self::ground::Ground;
pub use self::uses::{BlockAccess, BlockUseKey, Placed, User};
use self::uses::{ExtentsUse, Use};
use super::TransferManager;
use super::calls::CallError;
use super::flow::Flow;
use crate::held::{BlockHeld, Holder};
use crate::input::{Leg, SinkLegs};
use crate::layout::Layout;
use crate::partners::LayoutKey;

pub(super) mod ground;
mod uses;

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

/// How many puts and gets are at some of a block's bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    writers: u32,
    readers: u32,
}

/// Not a place of a transfer: a swap writes it.
const SWAP: u32 = u32::MAX;
/// Nor is this: somebody else does.
const USE: u32 = u32::MAX - 1;

#[derive(Debug)]
struct Page {
    ground: Ground,
    /// Layouts, transfers, swaps and others of it.
    users: usize,
    blocks: Vec<Block>,
    /// Nothing as long as nobody has put or got anything there.
    marks: Vec<Marks>,
    /// Pages that may have bytes of these blocks.
    near: Vec<PageId>,
}

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// The transfer at this place of the table.
    Transfer(EntryKey),
    /// A swap.
    Swap,
    /// Somebody else.
    Use,
}

impl Writer {
    fn mark(self) -> u32 {
        match self {
            Self::Transfer(key) => key.place() as u32 + 1,
            Self::Swap => SWAP,
            Self::Use => USE,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Book {
    pages: Vec<Option<Page>>,
    by_layout: BTreeMap<LayoutKey, PageId>,
    last_use: u64,
    /// Whatever is neither a transfer nor a swap and has whole blocks.
    uses: BTreeMap<BlockUseKey, Use>,
    /// Puts and gets, which have bytes.
    extents: BTreeMap<BlockUseKey, ExtentsUse>,
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
        let there = self.pages.iter().position(|page| page.as_ref().is_some_and(|page| page.ground == ground));
        let id = match there {
            Some(at) => PageId(at as u32),
            None => self.begin_page(ground),
        };
        if let Some(page) = self.page_mut(id) {
            page.users += 1;
        }
        id
    }

    fn begin_page(&mut self, ground: Ground) -> PageId {
        let free = self.pages.iter().position(Option::is_none).unwrap_or(self.pages.len());
        if free == self.pages.len() {
            self.pages.push(None);
        }
        let id = PageId(free as u32);
        let mut near = Vec::new();
        for (at, page) in self.pages.iter_mut().enumerate() {
            if let Some(page) = page.as_mut().filter(|page| page.ground.may_meet(&ground)) {
                page.near.push(id);
                near.push(PageId(at as u32));
            }
        }
        self.pages[free] = Some(Page { ground, users: 0, blocks: Vec::new(), marks: Vec::new(), near });
        self.mark_page(id);
        id
    }

    /// Somebody has none any more.
    pub(super) fn leave(&mut self, page: PageId) {
        let Some(known) = self.page_mut(page) else { return };
        known.users -= 1;
        if known.users == 0 {
            self.pages[page.0 as usize] = None;
            self.pages.iter_mut().flatten().for_each(|other| other.near.retain(|near| *near != page));
            self.unmark_page(page);
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

    /// What of a block stands in its page, and in those that may have bytes of it.
    fn around(&self, page: PageId, block: u32) -> impl Iterator<Item = (PageId, Block)> + '_ {
        let near = self.page(page).map_or(&[][..], |page| &page.near);
        std::iter::once(page).chain(near.iter().copied()).map(move |at| (at, self.at(at, block)))
    }

    /// Whether these two pages mean some of the same bytes by a block.
    fn meet_at(&self, page: PageId, other: PageId, block: u32) -> bool {
        let both = self.page(page).zip(self.page(other));
        page == other || both.is_some_and(|(page, other)| page.ground.meet_at(&other.ground, block))
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
        let pages = || self.pages.iter().flatten();
        let (mut blocks, mut marks) = (pages().flat_map(|page| &page.blocks), pages().flat_map(|page| &page.marks));
        blocks.all(|block| (block.writer, block.readers) == (0, 0))
            && marks.all(|marks| (marks.writers, marks.readers) == (0, 0))
            && self.uses.is_empty()
            && self.extents.is_empty()
    }
}

impl TransferManager {
    /// Whether these can be written for this transfer, or for somebody else: nobody reads them, and nobody else writes them.
    pub(super) fn may_write(
        &self,
        page: PageId,
        mut blocks: impl Iterator<Item = u32>,
        writer: Option<EntryKey>,
    ) -> Result<(), BlockHeld> {
        // What is granted twice within a transfer is its own to refuse.
        let own = writer.map(|key| Writer::Transfer(key).mark());
        blocks.try_for_each(|block| {
            for (at, found) in self.book.around(page, block) {
                let is_free = found.readers == 0 && (found.writer == 0 || at == page && Some(found.writer) == own);
                if is_free || planted::is(Bug::GrantedTwice) || !self.book.meet_at(page, at, block) {
                    continue;
                }
                return Err(self.why_not_written(at, block, found));
            }
            self.no_extents_at(page, block, BlockAccess::Write)
        })
    }

    fn why_not_written(&self, page: PageId, block: u32, at: Block) -> BlockHeld {
        if at.readers > 0 {
            return BlockHeld::Read { block, by: self.reader_of(page, block) };
        }
        match self.writer_of(page, block, at.writer) {
            (by, Some(legs)) if legs.leg_with(block) == Some(Leg::Landed) => BlockHeld::Untaken { block, by },
            (by, _) => BlockHeld::Written { block, by },
        }
    }

    /// Whether these can be read: what is written there is there.
    pub(super) fn may_read(&self, page: PageId, mut blocks: impl Iterator<Item = u32>) -> Result<(), BlockHeld> {
        blocks.try_for_each(|block| {
            for (at, found) in self.book.around(page, block) {
                if found.writer == 0 || planted::is(Bug::GrantedTwice) || !self.book.meet_at(page, at, block) {
                    continue;
                }
                self.is_there(at, block, found.writer)?;
            }
            self.no_extents_at(page, block, BlockAccess::Read)
        })
    }

    /// Whether what this one writes is there.
    fn is_there(&self, page: PageId, block: u32, writer: u32) -> Result<(), BlockHeld> {
        match self.writer_of(page, block, writer) {
            (_, Some(legs)) if legs.leg_with(block) == Some(Leg::Landed) => Ok(()),
            (by, _) => Err(BlockHeld::Written { block, by }),
        }
    }

    /// Who writes, and its legs.
    fn writer_of(&self, page: PageId, block: u32, mark: u32) -> (Holder, Option<&SinkLegs>) {
        if mark == USE {
            return (self.user_of(page, block, BlockAccess::Write).unwrap_or(Holder::Swap), None);
        }
        let key = if mark == SWAP { None } else { self.transfers.key_at(mark as usize - 1) };
        (self.holder(key), key.and_then(|key| self.looked_sink(key)))
    }

    /// Somebody who reads a block. It looks at every transfer.
    fn reader_of(&self, page: PageId, block: u32) -> Holder {
        let its = self.transfers.iter().find(|(_, held)| {
            let has = |(blocks, once): (&[u32], Option<u32>)| blocks.contains(&block) || once == Some(block);
            held.is_reading && held.page == Some(page) && held.flow.read_blocks().is_some_and(has)
        });
        match its {
            Some((key, _)) => self.holder(Some(key)),
            None => self.user_of(page, block, BlockAccess::Read).unwrap_or(Holder::Swap),
        }
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
