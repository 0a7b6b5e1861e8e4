//! Where the blocks of a workload lie: pools with room for several sets of them, dealt from a shuffled
//! free list, so that each round moves other memory and the cache is not what is measured.

use penstock::Span;
use penstock::memory::Window;
use penstock_micro::scatter::shuffle;
use serde::{Deserialize, Serialize};

use crate::pattern::{self, Mismatch};
use crate::workload::{Mergeable, Workload};

/// More sets than this take long to prepare and rotate through no more memory that matters.
const SETS_MAX: usize = 256;
/// How many bytes are looked at before it is asked again whether to go on, at most.
const ASK_BYTES: u64 = 1 << 20;

/// Everything that a layout follows from; both ends compute the same one from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutSpec {
    /// What is moved.
    pub workload: Workload,
    /// Bytes that each pool has at least.
    pub pool_bytes_min: u64,
    /// Sets of blocks that are moved at the same time.
    pub concurrency: usize,
    /// What the shuffles begin with.
    pub seed: u64,
}

/// Places for blocks in a layer beyond which a layout is refused: their numbers are shuffled in memory, which takes some
/// 50 bytes and a cache miss for each.
pub const PLACES_MAX: u64 = 1 << 23;

impl LayoutSpec {
    /// Places for blocks in each layer. The workload must have been checked.
    pub fn places(&self) -> u64 {
        let place = u128::from(self.workload.stride_bytes()) * u128::from(self.workload.layers);
        let needed = u128::from(self.workload.blocks) * self.concurrency as u128;
        let places = u128::from(self.pool_bytes_min).div_ceil(place.max(1)).max(needed);
        u64::try_from(places).unwrap_or(u64::MAX)
    }

    /// Bytes of each pool, known before anything is allocated. The workload must have been checked.
    pub fn pool_bytes(&self) -> u64 {
        let place = u128::from(self.workload.stride_bytes()) * u128::from(self.workload.layers);
        u64::try_from(u128::from(self.places()) * place).unwrap_or(u64::MAX)
    }
}

/// The sets of blocks of one workload in a pair of pools.
#[derive(Debug)]
pub struct Layout {
    workload: Workload,
    seed: u64,
    /// Places for blocks in each layer.
    places: u32,
    sets: Vec<Vec<(u32, u32)>>,
}

impl Layout {
    /// The layout of this specification.
    pub fn new(spec: &LayoutSpec) -> Self {
        let workload = spec.workload.clone();
        let places = u32::try_from(spec.places()).expect("a checked workload has less than a TiB of 8-byte blocks");
        let local = shuffled(places, workload.mergeable, spec.seed);
        let remote = shuffled(places, workload.mergeable, !spec.seed);
        let pairs: Vec<(u32, u32)> = local.into_iter().zip(remote).collect();
        let sets = pairs.chunks_exact(workload.blocks as usize).take(SETS_MAX.max(spec.concurrency));
        let sets = sets.map(<[_]>::to_vec).collect();
        Self { workload, seed: spec.seed, places, sets }
    }

    /// What is moved.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Bytes of each pool.
    pub fn pool_bytes(&self) -> u64 {
        self.layer_bytes() * u64::from(self.workload.layers)
    }

    fn layer_bytes(&self) -> u64 {
        u64::from(self.places) * self.workload.stride_bytes()
    }

    /// The sets, each as pairs of block indices (local, remote).
    pub fn sets(&self) -> &[Vec<(u32, u32)>] {
        &self.sets
    }

    /// The base offsets of the layers that each batch moves; both pools have the same.
    pub fn batches(&self) -> Vec<Vec<(u64, u64)>> {
        let bases: Vec<(u64, u64)> = (0..u64::from(self.workload.layers))
            .map(|layer| (layer * self.layer_bytes(), layer * self.layer_bytes()))
            .collect();
        bases.chunks((self.workload.layers / self.workload.batches) as usize).map(<[_]>::to_vec).collect()
    }

    /// Writes the pattern over a whole pool that is going to be the source.
    pub fn fill(&self, pool: &Window) {
        pattern::fill(pool, self.seed);
    }

    /// Overwrites a whole pool that is going to be the destination.
    pub fn wipe(&self, pool: &Window) {
        pattern::wipe(pool);
    }

    /// The blocks of one set in the order in which they are checked: layer by layer.
    pub fn spans(&self, set: usize) -> impl Iterator<Item = Span> + '_ {
        let (stride, len) = (self.workload.stride_bytes(), self.workload.block_bytes);
        (0..u64::from(self.workload.layers)).map(|layer| layer * self.layer_bytes()).flat_map(move |base| {
            let span = move |&(local, remote): &(u32, u32)| Span {
                local: base + u64::from(local) * stride,
                remote: base + u64::from(remote) * stride,
                len,
            };
            self.sets[set].iter().map(span)
        })
    }

    /// Whether every block of every set arrived in `pool` from the source with the pattern.
    /// Answers how many bytes were looked at.
    pub fn check(&self, pool: &Window, destination: Destination) -> Result<u64, Mismatch> {
        self.check_first(pool, destination, u64::MAX)
    }

    /// As [`Layout::check`], of the first so many bytes: set after set, each in the order of [`Layout::spans`]. A multiple of 8.
    pub fn check_first(&self, pool: &Window, destination: Destination, bytes: u64) -> Result<u64, Mismatch> {
        self.check_stretch(pool, destination, Stretch { from: 0, bytes }, &|| false)
    }

    /// As [`Layout::check`], of one stretch, whose numbers are multiples of 8; ends early where `is_over`, which is asked at least
    /// once a MiB, says so.
    pub fn check_stretch(
        &self,
        pool: &Window,
        destination: Destination,
        stretch: Stretch,
        is_over: &dyn Fn() -> bool,
    ) -> Result<u64, Mismatch> {
        let all = self.bytes();
        let from = stretch.from % all;
        let end = from + stretch.bytes.min(all);
        let mut reader = pattern::Reader::new(pool, self.seed);
        for (begin, end) in [(from, end.min(all)), (0, end.saturating_sub(all))] {
            self.check_between(&mut reader, destination, (begin, end), is_over)?;
        }
        Ok(reader.bytes())
    }

    fn check_between(
        &self,
        reader: &mut pattern::Reader<'_>,
        destination: Destination,
        (begin, end): (u64, u64),
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), Mismatch> {
        let of_set = self.workload.bytes();
        let (first, mut asked) = (begin / of_set, 0);
        let mut place = first * of_set;
        for span in (first as usize..self.sets.len()).flat_map(|set| self.spans(set)) {
            if place >= end {
                break;
            }
            let (mut done, len) = (begin.saturating_sub(place).min(span.len), span.len.min(end - place));
            let (from, to) = match destination {
                Destination::Remote => (span.local, span.remote),
                Destination::Local => (span.remote, span.local),
            };
            while done < len {
                if reader.bytes() >= asked {
                    if is_over() {
                        return Ok(());
                    }
                    asked = reader.bytes() + ASK_BYTES / 2;
                }
                let piece = (len - done).min(ASK_BYTES / 2);
                reader.check(from + done, to + done, piece)?;
                done += piece;
            }
            place += span.len;
        }
        Ok(())
    }

    /// Bytes of all sets.
    pub fn bytes(&self) -> u64 {
        self.sets.len() as u64 * self.workload.bytes()
    }

    /// What stands at its destination when the sets were moved one after the other, over and over: so many bytes were begun, and
    /// so many of those have landed well, in their order. The destination of the others is undefined, even where the pass before
    /// had brought the same bytes: what of a cancelled transfer has left is followed by whatever fills its place.
    pub fn standing(&self, landed: u64, begun: u64) -> Stretch {
        let all = self.bytes();
        if begun <= all {
            return Stretch { from: 0, bytes: landed };
        }
        Stretch { from: begun % all, bytes: all.saturating_sub(begun - landed) }
    }
}

/// Bytes of the blocks of all sets as they follow each other: set after set, each in the order of [`Layout::spans`], and the first
/// one again behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Where it begins.
    pub from: u64,
    /// How long it is; no more than all is looked at.
    pub bytes: u64,
}

/// Which side's bytes are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Destination {
    /// The initiator's own: it reads.
    Local,
    /// The target's: the initiator writes.
    Remote,
}

/// All places in the order in which a free list after long use would hand them out.
fn shuffled(places: u32, mergeable: Mergeable, seed: u64) -> Vec<u32> {
    let run = match mergeable {
        Mergeable::None => 1,
        Mergeable::Half => 2,
    };
    let mut starts: Vec<u32> = (0..places / run).map(|index| index * run).collect();
    shuffle(&mut starts, seed);
    let rest = places / run * run..places;
    starts.into_iter().flat_map(|start| start..start + run).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use penstock::HostMemory;

    use super::*;

    fn spec(name: &str, pool_bytes_min: u64) -> LayoutSpec {
        LayoutSpec { workload: Workload::find(name).unwrap(), pool_bytes_min, concurrency: 1, seed: 7 }
    }

    #[test]
    fn pools_are_as_large_as_asked_and_every_place_is_used_at_most_once() {
        let layout = Layout::new(&spec("kv16", 64 << 20));
        assert!(layout.pool_bytes() >= 64 << 20);
        assert_eq!(layout.sets().len(), 4);
        for side in [|pair: &(u32, u32)| pair.0, |pair: &(u32, u32)| pair.1] {
            let used: Vec<u32> = layout.sets().iter().flatten().map(side).collect();
            assert_eq!(used.iter().collect::<HashSet<_>>().len(), used.len());
            assert!(used.iter().all(|&index| u64::from(index) * 16_384 < layout.pool_bytes()));
        }
    }

    #[test]
    fn the_size_of_a_layout_is_known_before_it_is_made() {
        for (name, pool_bytes_min, concurrency) in [("kv16", 64 << 20, 1), ("w4", 0, 3), ("w5-rows", 1 << 28, 1)] {
            let spec = LayoutSpec { concurrency, ..spec(name, pool_bytes_min) };
            assert_eq!(spec.pool_bytes(), Layout::new(&spec).pool_bytes(), "{name}");
        }
        assert_eq!(LayoutSpec { concurrency: usize::MAX, ..spec("w1", 0) }.pool_bytes(), u64::MAX);
    }

    #[test]
    fn the_spans_of_a_set_are_what_its_batches_move() {
        let layout = Layout::new(&spec("w4", 0));
        let spans: Vec<Span> = layout.spans(0).collect();
        let bases = layout.batches().concat();
        assert_eq!(spans.len(), bases.len() * layout.sets()[0].len());
        let stride = layout.workload().stride_bytes();
        let of_pair = |base: &(u64, u64), pair: &(u32, u32)| {
            (base.0 + u64::from(pair.0) * stride, base.1 + u64::from(pair.1) * stride)
        };
        let moved = bases.iter().flat_map(|base| layout.sets()[0].iter().map(move |pair| of_pair(base, pair)));
        assert!(moved.eq(spans.iter().map(|span| (span.local, span.remote))));
    }

    #[test]
    fn layers_are_dealt_to_batches() {
        let layout = Layout::new(&spec("w4", 0));
        let batches = layout.batches();
        assert_eq!((batches.len(), batches[0].len()), (32, 1));
        assert_eq!(batches[31][0].0 + layout.layer_bytes(), layout.pool_bytes());
        assert_eq!(layout.sets().len(), 1, "a pool is never too small for one set");
    }

    #[test]
    fn what_was_begun_and_has_not_landed_does_not_stand() {
        let workload = Workload::parse("{name: x, what: y, block_bytes: 64, blocks: 5, layers: 2}", "a test").unwrap();
        let layout = Layout::new(&LayoutSpec { workload, pool_bytes_min: 4096, concurrency: 1, seed: 3 });
        let all = layout.bytes();
        assert!(all > 1280 && all.is_multiple_of(640), "{all}");
        let pool = || HostMemory::from_vec(vec![0; layout.pool_bytes() as usize]).unwrap().window().clone();
        let (local, remote) = (pool(), pool());
        layout.fill(&local);
        let places: Vec<Span> = (0..layout.sets().len()).flat_map(|set| layout.spans(set)).collect();
        let (mut block, blocks) = ([0; 64], places.len());
        for landed in 0..2 * blocks + 3 {
            for under_way in [0, 1, 3, 10] {
                let mut stood = vec![false; blocks];
                layout.wipe(&remote);
                for place in 0..landed {
                    let span = places[place % blocks];
                    stood[place % blocks] = true;
                    local.read_into(span.local, &mut block).unwrap();
                    remote.write_from(span.remote, &block).unwrap();
                }
                for place in landed..landed + under_way {
                    stood[place % blocks] = false;
                    remote.write_from(places[place % blocks].remote + 8, &[0; 56]).unwrap();
                }
                let stands = layout.standing(64 * landed as u64, 64 * (landed + under_way) as u64);
                let looked = layout.check_stretch(&remote, Destination::Remote, stands, &|| false);
                let expected = 64 * stood.iter().filter(|&&stood| stood).count() as u64;
                assert_eq!(looked, Ok(expected), "{landed} of {blocks}, then {under_way}");
                let more = Stretch { bytes: stands.bytes + 64, ..stands };
                let looked = layout.check_stretch(&remote, Destination::Remote, more, &|| false);
                assert_eq!(looked.is_err(), stands.bytes < all, "{landed} of {blocks}, then {under_way}");
            }
        }
        let whole = Stretch { from: 0, bytes: all };
        assert_eq!(layout.check_stretch(&remote, Destination::Remote, whole, &|| true), Ok(0));
    }

    #[test]
    fn the_same_seed_gives_the_same_sets_and_another_one_others() {
        let sets = |seed| Layout::new(&LayoutSpec { seed, ..spec("w2", 0) }).sets;
        assert_eq!(sets(7), sets(7));
        assert_ne!(sets(7), sets(8));
    }

    #[test]
    fn the_half_variant_lets_every_second_block_follow_the_one_before() {
        let follows = |name| {
            let layout = Layout::new(&spec(name, 32 << 20));
            let neighbours =
                layout.sets()[0].windows(2).filter(|two| two[1].0 == two[0].0 + 1 && two[1].1 == two[0].1 + 1);
            neighbours.count()
        };
        assert!(follows("kv16") < 10);
        assert!((500..510).contains(&follows("kv16-half")));
    }

    #[test]
    fn a_moved_pattern_is_found_and_one_wrong_byte_is_noticed() {
        let workload = Workload::parse("{name: x, what: y, block_bytes: 64, blocks: 5, layers: 3}", "a test").unwrap();
        let layout = Layout::new(&LayoutSpec { workload, pool_bytes_min: 4096, concurrency: 2, seed: 3 });
        let pool = || HostMemory::from_vec(vec![0; layout.pool_bytes() as usize]).unwrap().window().clone();
        let (local, remote) = (pool(), pool());
        layout.fill(&local);
        layout.wipe(&remote);
        assert!(layout.check(&remote, Destination::Remote).is_err());
        let mut block = [0; 64];
        for base in layout.batches().iter().flatten() {
            for &(from, to) in layout.sets().iter().flatten() {
                local.read_into(base.0 + u64::from(from) * 64, &mut block).unwrap();
                remote.write_from(base.1 + u64::from(to) * 64, &block).unwrap();
            }
        }
        let bytes = layout.sets().len() as u64 * 5 * 3 * 64;
        assert_eq!(layout.check(&remote, Destination::Remote), Ok(bytes));
        let first = layout.spans(0).next().unwrap();
        remote.write_from(first.remote + 8, &[0]).unwrap();
        assert_eq!(layout.check_first(&remote, Destination::Remote, 8), Ok(8), "what is behind is not looked at");
        assert_eq!(layout.check_first(&remote, Destination::Remote, 16).unwrap_err().offset, first.remote + 8);
        local.read_into(first.local, &mut block).unwrap();
        remote.write_from(first.remote, &block).unwrap();
        let somewhere = u64::from(layout.sets()[1][2].1) * 64 + 63;
        let mut byte = [0];
        remote.read_into(somewhere, &mut byte).unwrap();
        remote.write_from(somewhere, &[byte[0] ^ 1]).unwrap();
        assert_eq!(layout.check(&remote, Destination::Remote).unwrap_err().offset, somewhere / 8 * 8);
    }
}
