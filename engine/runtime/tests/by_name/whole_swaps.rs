//! A swap takes all that a request has, and brings all of it back, or nothing happens.

use std::time::Duration;

use penstock::Blocks;
use penstock::config::Progress;
use penstock::flows::lifecycle::Request;
use penstock::flows::{Buffer, FlowError, Form, LayoutSpec, RequestId, Rows, SchedulerReport, SwapWay, block_refs};

use crate::ends::PATIENCE;
use crate::lifecycle::{Node, assert_filled, fill, node};

fn small() -> Node {
    node(Progress::Adaptive, 8, Duration::from_millis(500))
}

impl Node {
    fn refused(&self, way: SwapWay, of: (&RequestId, u64), device: &Blocks, host: &Blocks) -> String {
        let before = (self.state(of.0, of.1), self.lives.device_blocks(of.0, of.1).unwrap());
        let error: FlowError = self.lives.swap(way, of, device, host, PATIENCE).map(drop).unwrap_err();
        assert_eq!((self.state(of.0, of.1), self.lives.device_blocks(of.0, of.1).unwrap()), before);
        assert_eq!(self.lives.swaps().unwrap(), (0, 0), "none has begun");
        error.to_string()
    }
}

/// Swapped in part, it would be said to be swapped, and the rest of its blocks be given away with nothing copied.
#[test]
fn a_part_of_what_a_request_has_is_not_swapped() {
    let node = small();
    let (request, life, first) = node.active("cmpl-1", 1, 2);
    let grown = node.device.take(1).unwrap();
    fill(&grown, 2);
    node.say(&request, life, SchedulerReport::Grown { blocks: block_refs(&grown) });
    let host = node.host.take(2).unwrap();
    fill(&host, 77);
    let why = node.refused(SwapWay::Out, (&request, life), &first, &host);
    assert!(why.contains("2 of the 3 blocks") && why.contains("`cmpl-1`"), "{why}");
    let one = node.host.take(1).unwrap();
    let why = node.refused(SwapWay::Out, (&request, life), &grown, &one);
    assert!(why.contains("1 of the 3 blocks"), "{why}");
    assert_filled(&host, 77);
    assert_eq!(node.state(&request, life), Request::Active);
    node.assert_free(5, 5);

    // One handle of all that it has goes out, and comes back.
    fill(&first, 1);
    let all = first.chain(&grown).unwrap();
    drop((first, grown, host, one));
    let host = node.host.take(3).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &all, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    drop(all);
    node.assert_free(8, 5);
    let again = node.device.take(3).unwrap();
    fill(&again, 99);
    let swap = node.swap(SwapWay::In, (&request, life), &again, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    let [two, one] = [0..2, 2..3].map(|places| again.slice(places).unwrap());
    assert_filled(&two, 1);
    assert_filled(&one, 2);
}

/// A swap takes each block of the host where the pool has it: a layout that has it elsewhere would have other blocks written over.
#[test]
fn a_pool_whose_layout_numbers_other_bytes_is_not_swapped_to() {
    let node = small();
    let (request, life, device) = node.active("cmpl-1", 1, 1);
    let rows = Rows { first: 0, count: 1, of: 1, bytes: 2048 };
    let layers =
        |label: &str| LayoutSpec::new(label, 16, 8).token_major(0, 0, rows).token_major(1, 8 * 16 * 2048, rows);
    let layout = node.engine.layout(&node.host, layers("kv")).unwrap();
    let host = node.host.take(1).unwrap();
    let why = node.refused(SwapWay::Out, (&request, life), &device, &host);
    assert!(why.contains("`kv`") && why.contains("`host`"), "{why}");
    // By whose numbers nothing is held any more.
    drop((layout, host));
    // Where a block lies in one piece, in whatever layers, both mean the same.
    let record =
        |layer: u32| Buffer { layer, base: u64::from(layer) * 32768, stride: 65536, form: Form::TokenMajor(rows) };
    let spec = LayoutSpec::new("kv", 16, 8).buffer(record(0)).buffer(record(1));
    let _layout = node.engine.layout(&node.host, spec).unwrap();
    let host = node.host.take(1).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &device, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    assert_filled(&host, 1);
}

/// Blocks that it shares with others are the request's too.
#[test]
fn a_request_with_blocks_of_a_cache_is_not_swapped_without_them() {
    let node = small();
    let (_, _, cached) = node.active("cmpl-1", 1, 1);
    let request = RequestId::new("cmpl-2").unwrap();
    let life = node.lives.open(&request, 1).unwrap();
    let fresh = node.device.take(2).unwrap();
    let has = SchedulerReport::Allocated { fresh: block_refs(&fresh), cached: block_refs(&cached) };
    node.say(&request, life, has);
    node.say(&request, life, SchedulerReport::Active);
    let why = node.refused(SwapWay::Out, (&request, life), &fresh, &node.host.take(2).unwrap());
    assert!(why.contains("2 of the 3 blocks") && why.contains("`cmpl-2`"), "{why}");
}

#[test]
fn what_comes_back_is_all_that_went_from_where_it_went() {
    let node = small();
    let (request, life, first) = node.active("cmpl-1", 1, 3);
    let host = node.host.take(3).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &first, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    drop((swap, first));
    let (of, others) = ((&request, life), node.host.take(3).unwrap());
    let (two, three) = (node.device.take(2).unwrap(), node.device.take(3).unwrap());
    let why = node.refused(SwapWay::In, of, &two, &node.host.take(2).unwrap());
    assert!(why.contains("2 of the 3 blocks"), "{why}");
    let why = node.refused(SwapWay::In, of, &three, &others);
    assert!(why.contains(&format!("block {} of the host", others.indices()[0])), "{why}");
    let swap = node.swap(SwapWay::In, of, &three, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    assert_filled(&three, 1);

    // Out again; then its blocks of the host are dropped, and are the next owner's.
    let swap = node.swap(SwapWay::Out, of, &three, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    drop((swap, host, others));
    node.assert_free(3, 8);
    let next = node.host.take(8).unwrap();
    drop(next);
    let again = node.host.take(3).unwrap();
    let why = node.refused(SwapWay::In, of, &three, &again);
    assert!(why.contains("of the host"), "{why}");
}
