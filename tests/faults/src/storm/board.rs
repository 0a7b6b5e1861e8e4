//! Where bytes land, and the canaries that sit there while none may.
//!
//! A board is one region, cut into arenas that are used in turn. An arena is full of one byte, its
//! canary, from the moment at which nothing may land there any more until its next use, several
//! transfers later. Whatever lands in between is seen: data has no byte in common with canaries.

use penstock::config::ProcessVmChoice;
use penstock::limits::UNIT_BYTES;
use penstock::{Config, Engine, HostMemory, LocalRegion, PoolSpec, Rights, SystemEnv, Window};

use super::case::{ARENA_BYTES, Case, Piece};

/// Arenas of a board: a canary is watched for as many transfers, less one.
pub const ARENAS: u64 = 8;

/// Canaries have the highest bit, data has not.
const CANARY: u8 = 0x80;

/// Whose memory a storm is about, and so how another process reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Pools, which the other side maps.
    Mapped,
    /// Memory of the caller, which the kernel copies between processes.
    ProcessVm,
    /// Memory of the caller, which only its owner may touch.
    Bounce,
}

impl Way {
    /// The name of the way, as a region tells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::ProcessVm => "process_vm",
            Self::Bounce => "bounce",
        }
    }

    /// The configuration under which it is taken.
    pub(super) fn taken_by(self, config: Config) -> Config {
        config.process_vm(if self == Self::Bounce { ProcessVmChoice::Off } else { ProcessVmChoice::Auto })
    }

    fn region(self, engine: &Engine, label: &str, bytes: u64) -> LocalRegion<SystemEnv> {
        match self {
            Self::Mapped => {
                let spec = PoolSpec::host(bytes).label(label).rights(Rights::READ_WRITE);
                LocalRegion::clone(&engine.pool(spec).expect("there is memory for a small pool"))
            }
            Self::ProcessVm | Self::Bounce => {
                let memory = HostMemory::from_vec(vec![0; bytes as usize]).expect("it is not empty");
                engine.register(memory, label, Rights::READ_WRITE).expect("a fresh engine has room for a region")
            }
        }
    }
}

/// The memory that a storm's transfers move bytes from.
///
/// # Panics
/// If there is no memory for it.
pub fn data(engine: &Engine, way: Way) -> LocalRegion<SystemEnv> {
    let region = way.region(engine, "data", ARENA_BYTES);
    let bytes: Vec<u8> = (0..ARENA_BYTES / 8).flat_map(|word| word_at(word * 8).to_ne_bytes()).collect();
    region.host().unwrap().write_from(0, &bytes).expect("the region is as long as that");
    region
}

/// The word of the data at this offset, a multiple of eight.
fn word_at(offset: u64) -> u64 {
    crate::seed::Random::new(offset).draw() & 0x7F7F_7F7F_7F7F_7F7F
}

/// How many bytes of a case have landed in the arena at `base`.
pub fn landed(window: &Window, base: u64, case: &Case) -> u64 {
    let mut found = Vec::new();
    case.pieces.iter().map(|piece| landed_of(window, base, piece, &mut found)).sum()
}

/// Units begin and end at any word. A piece no longer than one is cut once at most, so that its
/// ends tell of both parts.
fn landed_of(window: &Window, base: u64, piece: &Piece, found: &mut Vec<u8>) -> u64 {
    let has_word = |at: u64| read(window, base + piece.to + at) == word_at(piece.from + at);
    let (first, last) = (has_word(0), has_word(piece.len - 8));
    if first == last && piece.len <= UNIT_BYTES {
        return if first { piece.len } else { 0 };
    }
    found.resize(piece.len as usize, 0);
    window.read_into(base + piece.to, found).expect("pieces lie inside their arena");
    let is_data = |word: &&[u8]| word[0] & CANARY == 0;
    8 * found.chunks_exact(8).filter(is_data).count() as u64
}

/// Whether this piece's last word has come over the canary.
pub(super) fn has_come(window: &Window, base: u64, piece: &Piece) -> bool {
    read(window, base + piece.to + piece.len - 8) == word_at(piece.from + piece.len - 8)
}

fn read(window: &Window, offset: u64) -> u64 {
    window.load_u64(offset).expect("pieces lie inside their arena, on words")
}

/// An arena in use: where it is, and the canary it gets.
#[derive(Debug, Clone, Copy)]
pub struct Arena {
    /// Its offset in the board.
    pub base: u64,
    canary: u8,
}

impl Arena {
    /// Puts the canary over extents of the arena.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn lay(&self, window: &Window, extents: &[(u64, u64)]) {
        for &(offset, len) in extents {
            window.fill(self.base + offset, len, self.canary).expect("extents lie inside their arena");
        }
    }

    /// Expects extents of the arena to be as they were laid.
    ///
    /// # Panics
    /// If anything has landed there.
    pub fn check(&self, window: &Window, extents: &[(u64, u64)], found: &mut Vec<u8>, when: &str) {
        for &(offset, len) in extents {
            found.resize(len as usize, 0);
            window.read_into(self.base + offset, found).expect("extents lie inside their arena");
            // Two comparisons of whole memory are much faster than a loop over bytes.
            if found[0] == self.canary && found[1..] == found[..found.len() - 1] {
                continue;
            }
            let wrong = found.iter().filter(|&&byte| byte != self.canary).count();
            let first = found.iter().position(|&byte| byte != self.canary).unwrap_or(0) as u64;
            panic!(
                "{wrong} of {len} bytes landed after `Quiesced`, the first at {} of the arena, {when}",
                offset + first
            );
        }
    }
}

/// The board of one engine.
#[derive(Debug)]
pub struct Board {
    region: LocalRegion<SystemEnv>,
    arenas: Vec<Arena>,
    laid: u8,
    found: Vec<u8>,
}

impl Board {
    /// Makes the region `board`, full of canaries.
    ///
    /// # Panics
    /// If there is no memory for it.
    pub fn new(engine: &Engine, way: Way) -> Self {
        let region = way.region(engine, "board", ARENAS * ARENA_BYTES);
        let arenas = (0..ARENAS).map(|place| Arena { base: place * ARENA_BYTES, canary: CANARY }).collect();
        let board = Self { region, arenas, laid: 0, found: Vec::new() };
        board.window().fill(0, ARENAS * ARENA_BYTES, CANARY).expect("the region is as long as that");
        board
    }

    /// The region.
    pub fn region(&self) -> &LocalRegion<SystemEnv> {
        &self.region
    }

    /// Its memory.
    pub fn window(&self) -> &Window {
        self.region.host().unwrap()
    }

    /// Expects an arena to be untouched since its canary was laid, and takes it into use, with
    /// another canary for afterwards.
    ///
    /// # Panics
    /// If anything has landed there.
    pub fn take(&mut self, place: u64) -> Arena {
        let arena = &mut self.arenas[place as usize];
        arena.check(self.region.host().unwrap(), &[(0, ARENA_BYTES)], &mut self.found, "some transfers later");
        self.laid = (self.laid + 1) % CANARY;
        arena.canary = CANARY | self.laid;
        *arena
    }

    /// Expects these extents to be untouched since they were laid, and lays the canary over the rest
    /// of the arena too: the transfer has ended.
    ///
    /// # Panics
    /// If anything has landed there.
    pub fn give_back(&mut self, arena: Arena, laid: &[(u64, u64)]) {
        arena.check(self.region.host().unwrap(), laid, &mut self.found, "before its transfer had ended");
        if laid.iter().map(|&(_, len)| len).sum::<u64>() < ARENA_BYTES {
            arena.lay(self.region.host().unwrap(), &[(0, ARENA_BYTES)]);
        }
    }

    /// Expects every arena to be untouched since its canary was laid.
    ///
    /// # Panics
    /// If anything has landed.
    pub fn check_all(&mut self) {
        for arena in &self.arenas {
            arena.check(self.region.host().unwrap(), &[(0, ARENA_BYTES)], &mut self.found, "at the end of the storm");
        }
    }
}
