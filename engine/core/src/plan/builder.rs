//! What callers say: pairs of regions, and for each what to move between them.

use super::lower::Draft;
use super::{Direction, Item, Place, PlanError, RegionKey, Shape, Side, Span, overlap};
use crate::ids::{Generation, RegionId};
use crate::rights::Rights;

/// A region as far as a plan needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionBounds {
    /// Its id, in the engine that owns it.
    pub region: RegionId,
    /// Which use of that id.
    pub generation: Generation,
    /// Its length in bytes.
    pub len: u64,
    /// What this engine may do to it.
    pub rights: Rights,
    /// Bytes of a block, if it is divided into blocks.
    pub block_bytes: Option<u64>,
}

impl RegionBounds {
    /// A region of this engine, which may always do both to it.
    pub const fn local(region: RegionId, generation: Generation, len: u64) -> Self {
        Self::remote(region, generation, len, Rights::READ_WRITE)
    }

    /// A region of the peer, with the rights that its owner gives.
    pub const fn remote(region: RegionId, generation: Generation, len: u64, rights: Rights) -> Self {
        Self { region, generation, len, rights, block_bytes: None }
    }

    /// The same region, divided into blocks of so many bytes.
    #[must_use]
    pub const fn with_block_bytes(mut self, bytes: u64) -> Self {
        self.block_bytes = Some(bytes);
        self
    }

    pub(super) const fn key(&self) -> RegionKey {
        RegionKey { region: self.region, generation: self.generation }
    }
}

/// `count` pieces of `len` bytes, each so many bytes after the one before; all in bytes.
///
/// A stride of zero on the side that is read repeats its piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strided {
    /// Offset of the first piece in the local region.
    pub local: u64,
    /// Offset of the first piece in the remote region.
    pub remote: u64,
    /// Bytes of a piece.
    pub len: u64,
    /// Bytes from one piece to the next in the local region.
    pub local_stride: u64,
    /// Bytes from one piece to the next in the remote region.
    pub remote_stride: u64,
    pub count: u64,
}

/// Layers times blocks, with everything resolved that the caller left to the regions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid<'a> {
    pub(super) layers: &'a [(u64, u64)],
    pub(super) blocks: &'a [(u32, u32)],
    pub(super) block_bytes: u64,
    pub(super) strides: (u64, u64),
}

/// One list the caller gave, resolved.
#[derive(Debug, Clone, Copy)]
pub(super) enum PlanForm<'a> {
    Grid(Grid<'a>),
    Strided(&'a [Strided]),
    Extents(&'a [Span]),
}

/// A form and the regions it goes between.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanPart<'a> {
    pub(super) pair: usize,
    pub(super) local: RegionBounds,
    pub(super) remote: RegionBounds,
    pub(super) form: PlanForm<'a>,
}

impl PlanPart<'_> {
    pub(super) const fn bounds_of(&self, side: Side) -> &RegionBounds {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }
}

/// Layers times blocks as far as they have been named.
#[derive(Debug, Default)]
struct GridAsked<'a> {
    layers: Option<&'a [(u64, u64)]>,
    blocks: Option<&'a [(u32, u32)]>,
    block_bytes: Option<u64>,
    strides: Option<(u64, u64)>,
}

#[derive(Debug)]
enum Asked<'a> {
    Grid(GridAsked<'a>),
    Strided(&'a [Strided]),
    Extents(&'a [Span]),
}

#[derive(Debug)]
struct Pair<'a> {
    local: RegionBounds,
    remote: RegionBounds,
    asked: Vec<Asked<'a>>,
}

/// Collects what is to be moved; [`build`](Builder::build) checks it all at once.
///
/// Name a pair of regions with [`between`](Builder::between), then any number of forms; then
/// perhaps the next pair. Naming layers, blocks, a block length or strides a second time begins
/// the next form.
#[derive(Debug)]
#[must_use = "a builder does nothing until build() is called"]
pub struct Builder<'a> {
    direction: Direction,
    pairs: Vec<Pair<'a>>,
    homeless: bool,
}

impl<'a> Builder<'a> {
    pub(super) const fn new(direction: Direction) -> Self {
        Self { direction, pairs: Vec::new(), homeless: false }
    }

    /// The regions that the forms after this go between.
    pub fn between(mut self, local: RegionBounds, remote: RegionBounds) -> Self {
        self.pairs.push(Pair { local, remote, asked: Vec::new() });
        self
    }

    /// (local, remote) base offsets in bytes; every block is moved once in each layer. Without
    /// layers there is one, at (0, 0).
    pub fn layers(self, bases: &'a [(u64, u64)]) -> Self {
        self.grid(|grid| (grid.layers.is_none()).then(|| grid.layers = Some(bases)))
    }

    /// (local, remote) block indices, counted in strides from a layer's base.
    pub fn blocks(self, pairs: &'a [(u32, u32)]) -> Self {
        self.grid(|grid| (grid.blocks.is_none()).then(|| grid.blocks = Some(pairs)))
    }

    /// Bytes of a block. Without it, what both regions say.
    pub fn block_bytes(self, bytes: u64) -> Self {
        self.grid(|grid| (grid.block_bytes.is_none()).then(|| grid.block_bytes = Some(bytes)))
    }

    /// Bytes from one block index to the next on either side. Without it, the length of a block.
    pub fn strides(self, local: u64, remote: u64) -> Self {
        self.grid(|grid| (grid.strides.is_none()).then(|| grid.strides = Some((local, remote))))
    }

    /// Pieces at regular distances.
    pub fn strided(self, runs: &'a [Strided]) -> Self {
        self.ask(Asked::Strided(runs))
    }

    pub fn extents(self, spans: &'a [Span]) -> Self {
        self.ask(Asked::Extents(spans))
    }

    /// Checks everything and makes the plan.
    pub fn build(self) -> Result<Shape, PlanError> {
        let direction = self.direction;
        let parts = self.resolve()?;
        let draft = Draft::lower(&parts, direction.destination())?;
        overlap::refuse(&draft, &parts, direction.destination())?;
        Shape::new(direction, draft.sections, draft.blocks).ok_or(PlanError::TooLarge)
    }

    fn ask(mut self, asked: Asked<'a>) -> Self {
        match self.pairs.last_mut() {
            Some(pair) => pair.asked.push(asked),
            None => self.homeless = true,
        }
        self
    }

    /// Sets one property of the open grid; `set` answers None if it was set before.
    fn grid(mut self, mut set: impl FnMut(&mut GridAsked<'a>) -> Option<()>) -> Self {
        if let Some(Asked::Grid(open)) = self.pairs.last_mut().and_then(|pair| pair.asked.last_mut())
            && set(open).is_some()
        {
            return self;
        }
        let mut fresh = GridAsked::default();
        let _ = set(&mut fresh);
        self.ask(Asked::Grid(fresh))
    }

    pub(super) fn resolve(self) -> Result<Vec<PlanPart<'a>>, PlanError> {
        if self.homeless {
            return Err(PlanError::NoRegions);
        }
        if self.pairs.is_empty() || self.pairs.iter().any(|pair| pair.asked.is_empty()) {
            return Err(PlanError::Empty);
        }
        let mut parts = Vec::with_capacity(self.pairs.len());
        for (number, Pair { local, remote, asked }) in self.pairs.into_iter().enumerate() {
            let allowed = match self.direction {
                Direction::Write => remote.rights.allows_write(),
                Direction::Read => remote.rights.allows_read(),
            };
            if !allowed {
                let RegionBounds { region, rights, .. } = remote;
                return Err(PlanError::NotAllowed { direction: self.direction, region, rights });
            }
            for asked in asked {
                let form = asked.resolve(parts.len(), &local, &remote)?;
                parts.push(PlanPart { pair: number, local, remote, form });
            }
        }
        Ok(parts)
    }
}

impl<'a> Asked<'a> {
    fn resolve(self, part: usize, local: &RegionBounds, remote: &RegionBounds) -> Result<PlanForm<'a>, PlanError> {
        match self {
            Self::Grid(grid) => grid.resolve(part, local, remote).map(PlanForm::Grid),
            Self::Strided([]) => Err(PlanError::EmptyList { part, list: "strided runs" }),
            Self::Strided(runs) => Ok(PlanForm::Strided(runs)),
            Self::Extents([]) => Err(PlanError::EmptyList { part, list: "extents" }),
            Self::Extents(spans) => Ok(PlanForm::Extents(spans)),
        }
    }
}

impl<'a> GridAsked<'a> {
    fn resolve(self, part: usize, local: &RegionBounds, remote: &RegionBounds) -> Result<Grid<'a>, PlanError> {
        let layers = self.layers.unwrap_or(&[(0, 0)]);
        let blocks = self.blocks.unwrap_or_default();
        for (empty, list) in [(layers.is_empty(), "layers"), (blocks.is_empty(), "blocks")] {
            if empty {
                return Err(PlanError::EmptyList { part, list });
            }
        }
        let agreed = local.block_bytes.filter(|&bytes| remote.block_bytes == Some(bytes));
        let block_bytes = self.block_bytes.or(agreed).ok_or(PlanError::BlockBytesUnknown {
            part,
            local: local.block_bytes,
            remote: remote.block_bytes,
        })?;
        if block_bytes == 0 {
            let place = Place::Block { layer: 0, block: 0 };
            return Err(PlanError::ZeroLength { item: Item { part, place } });
        }
        let strides = self.strides.unwrap_or((block_bytes, block_bytes));
        for side in [Side::Local, Side::Remote] {
            let stride = side.of(strides);
            if stride < block_bytes {
                return Err(PlanError::StrideTooShort { part, side, stride, block_bytes });
            }
        }
        Ok(Grid { layers, blocks, block_bytes, strides })
    }
}
