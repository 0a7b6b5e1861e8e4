//! Plans of entries by address: each entry is placed in regions, and entries between the same two
//! regions become one section.

use std::collections::HashMap;

use super::lower::push_joined;
use super::{Direction, PlanError, PlanRows, RegionKey, Section, Shape, Side, Span};

/// A region as a look-up by address answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Id and generation, as the section that it ends up in names it.
    pub key: RegionKey,
    /// The address of its offset 0, in the process that owns it.
    pub base: u64,
    /// Bytes from there on; `base + len` may lie past the end of all addresses.
    pub len: u64,
}

/// An entry, or the rest of one, that lies in no region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unplaced {
    /// Index of the entry.
    pub entry: usize,
    /// The side whose address was not found; the local one is looked up first.
    pub side: Side,
    /// The first address of it that no region has.
    pub address: u64,
    /// Bytes of it from there on.
    pub bytes: u64,
}

/// Collects entries by address.
///
/// Unlike in a plan of offsets, entries of no bytes are dropped, an entry may run over several adjoining
/// regions, and destinations may overlap: which of the bytes stay is then undefined. A plan of no entries
/// moves nothing.
#[derive(Debug)]
pub struct Addressed<F> {
    direction: Direction,
    /// Finds the region to use for so many bytes at an address, or for some of the first of them.
    find: F,
    locals: Regions,
    remotes: Regions,
    groups: Vec<Group>,
    /// The group of each pair of regions, by their indices.
    group_of: HashMap<(u32, u32), u32>,
    /// For each local region the group that it was last used in, with that group's remote region.
    last_group: Vec<(u32, u32)>,
    entries: u64,
}

/// Pieces between one pair of regions.
#[derive(Debug)]
struct Group {
    local: RegionKey,
    remote: RegionKey,
    runs: Vec<Span>,
}

impl<F: FnMut(Side, u64, u64) -> Option<Found>> Addressed<F> {
    /// Begins a plan whose regions `find` looks up by (side, address, bytes).
    pub fn new(direction: Direction, find: F) -> Self {
        let (locals, remotes) = (Regions::default(), Regions::default());
        let (groups, group_of, last_group) = (Vec::new(), HashMap::new(), Vec::new());
        Self { direction, find, locals, remotes, groups, group_of, last_group, entries: 0 }
    }

    /// Adds entries of (local address, remote address, bytes).
    pub fn entries(&mut self, entries: &[(u64, u64, u64)]) -> Result<(), Unplaced> {
        for &(local, remote, bytes) in entries {
            self.entry(local, remote, bytes)?;
            self.entries += 1;
        }
        Ok(())
    }

    fn entry(&mut self, mut local: u64, mut remote: u64, mut bytes: u64) -> Result<(), Unplaced> {
        while bytes > 0 {
            let entry = self.entries as usize;
            let unplaced = move |side, address| Unplaced { entry, side, address, bytes };
            let find = &mut self.find;
            let here = self.locals.find(local, bytes, |address| find(Side::Local, address, bytes));
            let here = here.ok_or_else(|| unplaced(Side::Local, local))?;
            let there = self.remotes.find(remote, bytes, |address| find(Side::Remote, address, bytes));
            let there = there.ok_or_else(|| unplaced(Side::Remote, remote))?;
            let (from, to) = (self.locals.list[here as usize].found, self.remotes.list[there as usize].found);
            let span = Span { local: local - from.base, remote: remote - to.base, len: bytes };
            let len = bytes.min(from.len - span.local).min(to.len - span.remote);
            let group = self.group(here, there);
            push_joined(&mut self.groups[group as usize].runs, Span { len, ..span });
            bytes -= len;
            if bytes > 0 {
                let next = |address: u64, side| address.checked_add(len).ok_or_else(|| unplaced(side, address));
                (local, remote) = (next(local, Side::Local)?, next(remote, Side::Remote)?);
            }
        }
        Ok(())
    }

    /// The group of a pair of regions.
    fn group(&mut self, local: u32, remote: u32) -> u32 {
        if let Some(&(last_remote, group)) = self.last_group.get(local as usize)
            && last_remote == remote
        {
            return group;
        }
        let group = *self.group_of.entry((local, remote)).or_insert_with(|| {
            let key = |regions: &Regions, index: u32| regions.list[index as usize].found.key;
            let (local, remote) = (key(&self.locals, local), key(&self.remotes, remote));
            self.groups.push(Group { local, remote, runs: Vec::new() });
            self.groups.len() as u32 - 1
        });
        if self.last_group.len() <= local as usize {
            self.last_group.resize(local as usize + 1, (u32::MAX, 0));
        }
        self.last_group[local as usize] = (remote, group);
        group
    }

    /// Makes the plan: one section for each pair of regions.
    pub fn build(self) -> Result<Shape, PlanError> {
        let sections = self.groups.into_iter().map(|Group { local, remote, runs }| {
            Section::new(local, remote, PlanRows::List([(0, 0)].into()), runs.into()).ok_or(PlanError::TooLarge)
        });
        let sections = sections.collect::<Result<Vec<Section>, PlanError>>()?;
        Shape::new(self.direction, sections, self.entries).ok_or(PlanError::TooLarge)
    }
}

/// The regions of one side that entries have been placed in.
#[derive(Debug, Default)]
struct Regions {
    list: Vec<Used>,
    by_key: HashMap<RegionKey, u32>,
    last: u32,
}

#[derive(Debug)]
struct Used {
    found: Found,
    /// The region that the entry after one in this region was in, the last time.
    next: u32,
}

impl Regions {
    /// The index of the region to use. The region of the entry before is tried first, then the one that
    /// followed it the last time: lists go region by region, or block by block over the same regions.
    fn find(&mut self, address: u64, bytes: u64, find: impl FnOnce(u64) -> Option<Found>) -> Option<u32> {
        let covers = |used: &Used| {
            let inside = address.checked_sub(used.found.base);
            inside.and_then(|inside| used.found.len.checked_sub(inside)).is_some_and(|covered| covered >= bytes)
        };
        let last = self.list.get(self.last as usize);
        if last.is_some_and(covers) {
            return Some(self.last);
        }
        let next = last.map_or(0, |last| last.next);
        let index = match self.list.get(next as usize).is_some_and(covers) {
            true => next,
            false => {
                let found = find(address)?;
                debug_assert!(address >= found.base && address - found.base < found.len, "it has the address");
                *self.by_key.entry(found.key).or_insert_with(|| {
                    self.list.push(Used { found, next: 0 });
                    self.list.len() as u32 - 1
                })
            }
        };
        if let Some(last) = self.list.get_mut(self.last as usize) {
            last.next = index;
        }
        self.last = index;
        Some(index)
    }
}
