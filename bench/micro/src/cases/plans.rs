//! Making plans and expanding them.

use std::hint::black_box;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::plan::{Direction, RegionBounds, Shape, Span};
use penstock_core::{Generation, RegionId, Rights};

use crate::Refusal;
use crate::bench::{Bench, Body};
use crate::hot::scattered;

pub(super) const ALL: &[Bench] = &[
    Bench { name: "plan-w1", per: "plan", each: 1, prepare: || build(W1) },
    Bench { name: "plan-w2", per: "plan", each: 1, prepare: || build(W2) },
    Bench { name: "plan-stress", per: "plan", each: 1, prepare: || build(STRESS) },
    Bench { name: "expand-words", per: "block", each: WORDS.blocks(), prepare: || expand(WORDS) },
    Bench { name: "expand-w1", per: "block", each: W1.blocks(), prepare: || expand(W1) },
    Bench { name: "expand-w2", per: "block", each: W2.blocks(), prepare: || expand(W2) },
];

type Layers = Vec<(u64, u64)>;
type Pairs = Vec<(u32, u32)>;

/// A workload as far as a plan sees it.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks of a layer.
    pub pairs: u32,
    /// Layers.
    pub layers: u64,
}

/// Those that are planned here, by the names of their files in `bench/workloads`.
pub const PLANNED: [(&str, Grid); 3] = [("w1", W1), ("w2", W2), ("stress", STRESS)];

// As in bench/workloads; a test of the lab holds the two together.
const W1: Grid = Grid { block_bytes: 32_768, pairs: 1_024, layers: 80 };
const W2: Grid = Grid { block_bytes: 4_096, pairs: 236, layers: 80 };
const STRESS: Grid = Grid { block_bytes: 1_152, pairs: 8_192, layers: 61 };
const WORDS: Grid = Grid { block_bytes: 8, pairs: 10_000, layers: 1 };

impl Grid {
    const fn blocks(self) -> u64 {
        self.pairs as u64 * self.layers
    }

    fn lists(self) -> (Layers, Pairs) {
        let places = 2 * self.pairs;
        let layer_bytes = u64::from(places) * self.block_bytes;
        let layers = (0..self.layers).map(|layer| (layer * layer_bytes, layer * layer_bytes)).collect();
        let pairs = scattered(places, 1).into_iter().zip(scattered(places, 2)).take(self.pairs as usize).collect();
        (layers, pairs)
    }

    fn shape(self, layers: &[(u64, u64)], pairs: &[(u32, u32)]) -> Result<Shape, Refusal> {
        let bytes = 2 * self.blocks() * self.block_bytes;
        let near = RegionBounds::local(RegionId(1), Generation(0), bytes).with_block_bytes(self.block_bytes);
        let far =
            RegionBounds::remote(RegionId(2), Generation(0), bytes, Rights::WRITE).with_block_bytes(self.block_bytes);
        Ok(Shape::builder(Direction::Write).between(near, far).layers(layers).blocks(pairs).build()?)
    }
}

fn build(grid: Grid) -> Result<Body, Refusal> {
    let (layers, pairs) = grid.lists();
    Ok(Box::new(move |times| {
        for _ in 0..times {
            black_box(grid.shape(black_box(&layers), black_box(&pairs))?);
        }
        Ok(())
    }))
}

fn expand(grid: Grid) -> Result<Body, Refusal> {
    let (layers, pairs) = grid.lists();
    let shape = grid.shape(&layers, &pairs)?;
    let mut spans = [Span::default(); SPANS_PER_POST];
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let mut number = 0;
            while let Some(unit) = shape.unit(number) {
                let mut from = 0;
                loop {
                    let filled = unit.fill(from, &mut spans);
                    if filled == 0 {
                        break;
                    }
                    black_box(&spans);
                    from += filled;
                }
                number += 1;
            }
        }
        Ok(())
    }))
}
