//! Who has blocks besides transfers and swaps: pins, children that copy what their parents have, puts and gets.

use penstock_session::RequestId;

use super::ground::Ground;
use super::{Block, Book, Marks, PageId, TransferManager, Writer};
use crate::action::{BlocksRef, RegionRef};
use crate::geometry::ShardStripe;
use crate::held::{BlockHeld, Holder};
use crate::partners::LayoutKey;

/// What somebody does with blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockAccess {
    /// Reads them: others may, too.
    Read,
    /// Writes them, alone.
    Write,
}

/// Who that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// What is kept of a request that has ended.
    Pin(RequestId),
    /// A child into whose own blocks its parent's are copied.
    Child,
    /// A chunk that is handed to another stage.
    Put,
    /// A chunk that is fetched.
    Get,
}

impl User {
    fn holder(&self) -> Holder {
        match self {
            Self::Pin(request) => Holder::Pin { request: request.clone() },
            Self::Child => Holder::Child,
            Self::Put => Holder::Put,
            Self::Get => Holder::Get,
        }
    }
}

/// What blocks are numbered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placed {
    /// A layout.
    Layout(LayoutKey),
    /// A pool of this region, which numbers them like this by itself: all of its layouts are meant, and the pool where there are none.
    Pool(RegionRef, ShardStripe),
}

/// One use of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockUseKey {
    /// Until what is kept under this ticket is let go.
    Kept(BlocksRef, u32),
    /// Until somebody says so.
    Called(u64),
}

/// Somebody has whole blocks of a page.
#[derive(Debug)]
pub(super) struct Use {
    page: PageId,
    access: BlockAccess,
    blocks: Vec<u32>,
    user: User,
}

/// Somebody has these bytes of a region.
#[derive(Debug)]
pub(super) struct ExtentsUse {
    region: RegionRef,
    /// In their order.
    extents: Vec<(u64, u64)>,
    access: BlockAccess,
    /// What is to be read may still be written.
    is_ready: bool,
    user: User,
    /// The blocks that are marked for it, by page.
    marked: Vec<(PageId, Vec<u32>)>,
}

impl ExtentsUse {
    fn has_some_of(&self, others: &[(u64, u64)]) -> bool {
        let (mut here, mut there) = (self.extents.iter().peekable(), others.iter().peekable());
        while let (Some((one, one_len)), Some((other, other_len))) = (here.peek(), there.peek()) {
            let (end, others_end) = (one + one_len, other + other_len);
            if one < &others_end && other < &end {
                return true;
            }
            if end <= others_end {
                here.next()
            } else {
                there.next()
            };
        }
        false
    }
}

fn mark(page: &mut super::Page, blocks: &[u32], access: BlockAccess) {
    let Some(last) = blocks.last() else { return };
    if page.marks.len() <= *last as usize {
        page.marks.resize((*last as usize + 1).next_power_of_two(), Marks::default());
    }
    for block in blocks {
        let marks = &mut page.marks[*block as usize];
        match access {
            BlockAccess::Read => marks.readers += 1,
            BlockAccess::Write => marks.writers += 1,
        }
    }
}

fn unmark(page: &mut super::Page, blocks: &[u32], access: BlockAccess) {
    for block in blocks {
        let Some(marks) = page.marks.get_mut(*block as usize) else { continue };
        match access {
            BlockAccess::Read => marks.readers -= 1,
            BlockAccess::Write => marks.writers -= 1,
        }
    }
}

impl Book {
    /// A page is new: puts and gets may be at its blocks already.
    pub(super) fn mark_page(&mut self, id: PageId) {
        let Some(page) = self.pages.get_mut(id.0 as usize).and_then(Option::as_mut) else { return };
        let its = |of: &&mut ExtentsUse| of.is_ready && of.region == page.ground.region();
        for of in self.extents.values_mut().filter(its).collect::<Vec<_>>() {
            let blocks = page.ground.blocks_in(&of.extents);
            mark(page, &blocks, of.access);
            of.marked.push((id, blocks));
        }
    }

    /// A page is gone, and may be another one.
    pub(super) fn unmark_page(&mut self, id: PageId) {
        self.extents.values_mut().for_each(|of| of.marked.retain(|(page, _)| *page != id));
    }

    fn mark_extents(&mut self, mut of: ExtentsUse) -> ExtentsUse {
        for (at, page) in self.pages.iter_mut().enumerate() {
            let Some(page) = page.as_mut().filter(|page| page.ground.region() == of.region) else { continue };
            let blocks = page.ground.blocks_in(&of.extents);
            mark(page, &blocks, of.access);
            of.marked.push((PageId(at as u32), blocks));
        }
        of
    }

    fn note_use(&mut self, key: BlockUseKey, of: Use) {
        let blocks = of.blocks.iter().copied();
        match of.access {
            BlockAccess::Read => self.read(of.page, blocks),
            BlockAccess::Write => self.write(of.page, blocks, Writer::Use),
        }
        self.uses.insert(key, of);
    }

    fn end(&mut self, key: BlockUseKey) {
        if let Some(of) = self.uses.remove(&key) {
            let blocks = of.blocks.into_iter();
            match of.access {
                BlockAccess::Read => self.read_no_more(of.page, blocks),
                BlockAccess::Write => self.written(of.page, blocks),
            }
            self.leave(of.page);
        }
        if let Some(of) = self.extents.remove(&key) {
            for (page, blocks) in &of.marked {
                if let Some(page) = self.page_mut(*page) {
                    unmark(page, blocks, of.access);
                }
            }
        }
    }

    /// What was kept under this ticket is let go.
    pub(in crate::manager) fn let_go(&mut self, ticket: BlocksRef) {
        let all = BlockUseKey::Kept(ticket, 0)..=BlockUseKey::Kept(ticket, u32::MAX);
        let uses = self.uses.range(all.clone()).map(|(key, _)| *key);
        let its: Vec<BlockUseKey> = uses.chain(self.extents.range(all).map(|(key, _)| *key)).collect();
        its.into_iter().for_each(|key| self.end(key));
    }
}

impl TransferManager {
    /// Whether no put or get is at a block of this page in a way that stands against this access.
    pub(super) fn no_extents_at(&self, page: PageId, block: u32, access: BlockAccess) -> Result<(), BlockHeld> {
        let marks = self.book.page(page).and_then(|page| page.marks.get(block as usize)).copied().unwrap_or_default();
        if marks.writers == 0 && (marks.readers == 0 || access == BlockAccess::Read) {
            return Ok(());
        }
        let has = |of: &ExtentsUse| {
            let mut its = of.marked.iter().filter(|(at, _)| *at == page);
            (access == BlockAccess::Write || of.access == BlockAccess::Write)
                && its.any(|(_, blocks)| blocks.binary_search(&block).is_ok())
        };
        let mut found = self.book.extents.iter().filter(|(key, of)| has(of) && !self.is_let_go(**key));
        let Some((_, of)) = found.next() else { return Ok(()) };
        Err(Self::held_by(block, of.access, of.user.holder()))
    }

    fn held_by(block: u32, access: BlockAccess, by: Holder) -> BlockHeld {
        match access {
            BlockAccess::Read => BlockHeld::Read { block, by },
            BlockAccess::Write => BlockHeld::Written { block, by },
        }
    }

    /// Whether the relay has let it go, and nobody has carried that out.
    fn is_let_go(&self, key: BlockUseKey) -> bool {
        matches!(key, BlockUseKey::Kept(ticket, _) if self.relays.is_let_go(ticket))
    }

    /// Somebody of those who have whole blocks.
    pub(super) fn user_of(&self, page: PageId, block: u32, access: BlockAccess) -> Option<Holder> {
        let mut uses = self.book.uses.values();
        let its = uses.find(|of| of.page == page && of.access == access && of.blocks.contains(&block))?;
        Some(its.user.holder())
    }

    fn ground_of(&self, placed: &Placed) -> Option<Ground> {
        match placed {
            Placed::Layout(key) => self.partners.own(*key).map(|layout| Ground::of(layout)),
            Placed::Pool(region, whole) => {
                let stripes: Vec<ShardStripe> =
                    self.partners.own_of(*region).flat_map(|layout| layout.stripes()).collect();
                Some(Ground::new(*region, if stripes.is_empty() { vec![*whole] } else { stripes }))
            }
        }
    }

    /// Whether these blocks can be read.
    pub(in crate::manager) fn may_use(
        &mut self,
        placed: &[(Placed, Vec<u32>)],
        access: BlockAccess,
    ) -> Result<(), BlockHeld> {
        for (of, blocks) in placed {
            let Some(ground) = self.ground_of(of) else { continue };
            let page = self.book.join(ground);
            let free = match access {
                BlockAccess::Read => self.may_read(page, blocks.iter().copied()),
                BlockAccess::Write => self.may_write(page, blocks.iter().copied(), None),
            };
            self.book.leave(page);
            free?;
        }
        Ok(())
    }

    /// Somebody has them from now on, until what is kept under this ticket is let go.
    pub(in crate::manager) fn note_kept(&mut self, ticket: BlocksRef, placed: Vec<(Placed, Vec<u32>)>, user: &User) {
        for (number, (of, blocks)) in (0..).zip(placed) {
            self.note_blocks(BlockUseKey::Kept(ticket, number), (of, blocks), BlockAccess::Read, user.clone());
        }
    }

    fn note_blocks(&mut self, key: BlockUseKey, (of, blocks): (Placed, Vec<u32>), access: BlockAccess, user: User) {
        let Some(ground) = self.ground_of(&of) else { return };
        let page = self.book.join(ground);
        self.book.note_use(key, Use { page, access, blocks, user });
    }

    /// Somebody has these blocks of a layout from now on, until [`TransferManager::end_use`]. An error has changed nothing.
    pub fn begin_use(
        &mut self,
        layout: LayoutKey,
        blocks: Vec<u32>,
        access: BlockAccess,
        user: User,
    ) -> Result<BlockUseKey, BlockHeld> {
        let placed = [(Placed::Layout(layout), blocks)];
        self.may_use(&placed, access)?;
        self.book.last_use += 1;
        let key = BlockUseKey::Called(self.book.last_use);
        let [placed] = placed;
        self.note_blocks(key, placed, access, user);
        Ok(key)
    }

    /// They are nobody's any more.
    pub fn end_use(&mut self, key: BlockUseKey) {
        self.book.end(key);
    }

    /// Somebody has these bytes of a region from now on, until what is kept under this ticket is let go by the transfer manager, or
    /// [`TransferManager::end_kept_use`]. What is not ready may still be written, and is had from [`TransferManager::use_is_ready`] on. An error has changed
    /// nothing.
    pub fn begin_extents_use(
        &mut self,
        ticket: BlocksRef,
        (region, extents): (RegionRef, &[(u64, u64)]),
        (access, is_ready): (BlockAccess, bool),
        user: User,
    ) -> Result<(), BlockHeld> {
        let mut extents: Vec<(u64, u64)> = extents.iter().copied().filter(|(_, len)| *len > 0).collect();
        extents.sort_unstable();
        let mut of = ExtentsUse { region, extents, access, is_ready, user, marked: Vec::new() };
        if is_ready {
            self.may_use_extents(&of)?;
            of = self.book.mark_extents(of);
        }
        self.book.extents.insert(BlockUseKey::Kept(ticket, 0), of);
        Ok(())
    }

    fn may_use_extents(&self, of: &ExtentsUse) -> Result<(), BlockHeld> {
        let pages = (0..).map(PageId).zip(&self.book.pages).filter_map(|(id, page)| Some((id, page.as_ref()?)));
        for (id, page) in pages.filter(|(_, page)| page.ground.region() == of.region) {
            for block in page.ground.blocks_in(&of.extents) {
                let found: Block = self.book.at(id, block);
                match of.access {
                    BlockAccess::Write if (found.writer, found.readers) != (0, 0) => {
                        return Err(self.why_not_written(id, block, found));
                    }
                    BlockAccess::Read if found.writer != 0 => self.is_there(id, block, found.writer)?,
                    _ => {}
                }
            }
        }
        let stands_against = |other: &ExtentsUse| {
            other.region == of.region
                && other.is_ready
                && (other.access == BlockAccess::Write || of.access == BlockAccess::Write)
                && other.has_some_of(&of.extents)
        };
        let mut others =
            self.book.extents.iter().filter(|(key, other)| stands_against(other) && !self.is_let_go(**key));
        match others.next() {
            None => Ok(()),
            Some((_, other)) => Err(Self::held_by(self.block_of(of, other), other.access, other.user.holder())),
        }
    }

    /// A block that both are at; 0 where the region has no blocks.
    fn block_of(&self, of: &ExtentsUse, other: &ExtentsUse) -> u32 {
        let pages = self.book.pages.iter().flatten().filter(|page| page.ground.region() == of.region);
        let both = pages.map(|page| (page.ground.blocks_in(&of.extents), page.ground.blocks_in(&other.extents)));
        let mut shared = both.flat_map(|(here, there)| here.into_iter().filter(move |block| there.contains(block)));
        shared.next().unwrap_or_default()
    }

    /// What was not ready is.
    pub fn use_is_ready(&mut self, ticket: BlocksRef) {
        let key = BlockUseKey::Kept(ticket, 0);
        let Some(of) = self.book.extents.remove(&key) else { return };
        let of = if of.is_ready { of } else { self.book.mark_extents(ExtentsUse { is_ready: true, ..of }) };
        self.book.extents.insert(key, of);
    }

    /// What was kept under this ticket was let go by somebody else than the transfer manager.
    pub fn end_kept_use(&mut self, ticket: BlocksRef) {
        self.book.let_go(ticket);
    }
}
