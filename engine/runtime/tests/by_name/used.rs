//! Blocks that one call has and another one wants: pins, puts, gets and what children inherit, against transfers and each other.

use std::time::Instant;

use penstock::config::TransportName;
use penstock::flows::relay::{Destination, Extents, Put, Relay, RelaySpec};
use penstock::flows::{FlowError, InputEvent, LayoutSpec, Receive, Send, TransferId};
use penstock::{Blocks, Peer, SystemEnv};

use crate::continuation::{both, id, parent, tenant};
use crate::ends::{Both, End, PATIENCE, UUID};

fn transfer(number: u32) -> TransferId {
    TransferId::mint(UUID, number, 0).unwrap()
}

/// What is refused names the block, and says this of who has it.
fn assert_held<T>(result: Result<T, FlowError>, block: u32, who: &str) {
    let words = result.map(drop).unwrap_err().to_string();
    assert!(words.contains(&format!("block {block} ")) && words.contains(who), "{words}");
}

/// It is refused until somebody is done, which the control loop may hear a little later.
fn until<T>(mut call: impl FnMut() -> Result<T, FlowError>) -> T {
    let since = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(why) => assert!(since.elapsed() < PATIENCE, "{why}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn relay(end: &End) -> Relay<SystemEnv> {
    end.engine.relay(RelaySpec::new().berths(64 << 10, 2, 2)).unwrap()
}

/// A put of the source's that the sink is told of when it is ready.
fn put(
    source: &End,
    from: &Relay<SystemEnv>,
    to: &Peer<SystemEnv>,
    its: &Blocks,
) -> penstock::flows::relay::RelayOp<SystemEnv> {
    let what = Put::extents(Extents::blocks(&source.layout, &[its])).not_ready();
    from.put(what, &id("chunk"), &[to]).unwrap()
}

/// Nothing is pinned before it is there, and nothing is written where something is pinned.
#[test]
fn what_is_written_is_not_pinned_and_what_is_pinned_is_not_written() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let input = sink.engine.consume(transfer(1), &id("a"), Receive::into(&sink.layout).from(0, there)).unwrap();
    let blocks = sink.take(2);
    input.grant(&blocks).unwrap();
    let first = blocks.indices()[0];
    assert_held(pins.pin_for_all(parent("a", &blocks, 32), &sink.layout, &[&blocks], PATIENCE), first, "\"a\"");
    assert_held(pins.pin(parent("a", &blocks, 32), &[&blocks], PATIENCE), first, "\"a\"");
    assert_eq!(pins.metrics().unwrap().pins, 0, "nothing of it is kept");
    let output = source.engine.produce(transfer(1), &id("s"), Send::from(&source.layout)).unwrap();
    let given = source.take(2);
    source.fill(given.indices(), 1, 0, 0..32);
    output.chunk(&given, 32, true).unwrap();
    while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Done { tokens: 32 }) {}
    // What has landed is there, taken or not; and many keep it.
    let lent = pins.pin_for_all(parent("a", &blocks, 32), &sink.layout, &[&blocks], PATIENCE).unwrap();
    let kept = pins.pin(parent("b", &blocks, 32), &[&blocks], PATIENCE).unwrap();
    input.taken(0).unwrap();
    let onward = sink.engine.produce(transfer(2), &id("o"), Send::from(&sink.layout)).unwrap();
    onward.chunk(&blocks, 32, false).unwrap();
    drop(onward);
    let other = sink.engine.consume(transfer(3), &id("c"), Receive::into(&sink.layout).from(0, there)).unwrap();
    until(|| {
        let refused = other.grant(&blocks).map(drop).unwrap_err();
        if refused.to_string().contains("the pin of request") { Ok(()) } else { Err(refused) }
    });
    pins.unpin(lent).unwrap();
    assert_held(other.grant(&blocks), first, "the pin of request \"b\"");
    // A child has them yet.
    let child = pins.inherit(&id("b"), &tenant(1), &id("d"), 33).unwrap().unwrap();
    pins.unpin(kept).unwrap();
    assert_held(other.grant(&blocks), first, "the pin of request \"b\"");
    drop(child);
    other.grant(&blocks).unwrap();
}

/// A get is alone at its blocks, as a transfer is.
#[test]
fn a_get_has_its_blocks_alone() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let (from, to) = (relay(source), relay(sink));
    let back = source.engine.connect(&sink.engine.descriptor(), PATIENCE).unwrap();
    let (its, blocks) = (source.take(2), sink.take(2));
    source.fill(its.indices(), 7, 0, 0..32);
    let put = put(source, &from, &back, &its);
    let get = || to.get(put.metadata(), Destination::extents(Extents::blocks(&sink.layout, &[&blocks])));
    let first = blocks.indices()[0];
    // A chunk that sends them.
    let output = sink.engine.produce(transfer(1), &id("s"), Send::from(&sink.layout)).unwrap();
    output.chunk(&blocks, 32, false).unwrap();
    assert_held(get(), first, "\"s\"");
    drop(output);
    // A pin of them.
    let pin = until(|| pins.pin_for_all(parent("a", &blocks, 32), &sink.layout, &[&blocks], PATIENCE));
    until(|| {
        let refused = get().map(drop).unwrap_err();
        if refused.to_string().contains("the pin of request \"a\"") { Ok(()) } else { Err(refused) }
    });
    pins.unpin(pin).unwrap();
    let fetch = get().unwrap();
    // It has begun.
    let input = sink.engine.consume(transfer(2), &id("c"), Receive::into(&sink.layout).from(0, there)).unwrap();
    assert_held(input.grant(&blocks), first, "a get of the relay");
    let output = sink.engine.produce(transfer(3), &id("t"), Send::from(&sink.layout)).unwrap();
    assert_held(output.chunk(&blocks, 32, false), first, "a get of the relay");
    assert_held(pins.pin(parent("a", &blocks, 32), &[&blocks], PATIENCE), first, "a get of the relay");
    let again = Put::extents(Extents::blocks(&sink.layout, &[&blocks]));
    assert_held(to.put(again, &id("again"), &[there]), first, "a get of the relay");
    assert_held(get(), first, "a get of the relay");
    put.ready();
    fetch.wait(PATIENCE).unwrap().unwrap();
    assert!(fetch.rest(PATIENCE));
    sink.assert_tokens(blocks.indices(), 7, 32);
    input.grant(&blocks).unwrap();
}

/// What a put hands out is written by nobody until it has rested, and it hands out nothing that is being written.
#[test]
fn a_put_reads_what_nobody_writes() {
    let (both, _pins) = both(TransportName::Local);
    let Both { source, sink, .. } = &both;
    let (from, to) = (relay(source), relay(sink));
    let back = source.engine.connect(&sink.engine.descriptor(), PATIENCE).unwrap();
    back.wait_layout("kv", PATIENCE).unwrap();
    let blocks = source.take(2);
    let first = blocks.indices()[0];
    let input = source.engine.consume(transfer(1), &id("c"), Receive::into(&source.layout).from(0, &back)).unwrap();
    let later = put(source, &from, &back, &blocks);
    input.grant(&blocks).unwrap();
    let whole = || Put::extents(Extents::blocks(&source.layout, &[&blocks]));
    assert_held(from.put(whole(), &id("now"), &[&back]), first, "\"c\"");
    let output = sink.engine.produce(transfer(1), &id("s"), Send::from(&sink.layout)).unwrap();
    let given = sink.take(2);
    sink.fill(given.indices(), 9, 0, 0..32);
    output.chunk(&given, 32, true).unwrap();
    while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Done { tokens: 32 }) {}
    input.taken(0).unwrap();
    later.ready();
    let other = source.engine.consume(transfer(2), &id("d"), Receive::into(&source.layout).from(0, &back)).unwrap();
    assert_held(other.grant(&blocks), first, "a put of the relay");
    let now = from.put(whole(), &id("now"), &[&back]).unwrap();
    for op in [&later, &now] {
        to.get(op.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
        op.wait(PATIENCE).unwrap().unwrap();
        assert!(op.rest(PATIENCE));
    }
    other.grant(&blocks).unwrap();
}

/// A child's own blocks are its own while its parent's are copied there.
#[test]
fn what_is_inherited_goes_into_blocks_that_nobody_else_has() {
    let (both, pins) = both(TransportName::Local);
    let Both { source, sink, there, .. } = &both;
    let theirs = source.engine.pins(0, penstock::flows::PinSettings::default()).unwrap();
    let blocks = source.take(2);
    source.fill(blocks.indices(), 1, 0, 0..32);
    theirs.pin_for_all(parent("a", &blocks, 32), &source.layout, &[&blocks], PATIENCE).unwrap();
    let own = sink.take(2);
    let first = own.indices()[0];
    let input = sink.engine.consume(transfer(1), &id("c"), Receive::into(&sink.layout).from(0, there)).unwrap();
    input.grant(&own).unwrap();
    let inherit = || pins.inherit_from_begin(there, (&id("a"), &tenant(1)), 33, (&sink.layout, &own), PATIENCE);
    assert_held(inherit(), first, "\"c\"");
    // A part of the same memory, by another layout.
    let second =
        LayoutSpec::new("second", 16, 256).buffer(penstock::flows::Buffer { layer: 1, ..sink.layout.buffers()[1] });
    let second = sink.engine.layout(&sink.pool, second).unwrap();
    let other = sink.engine.consume(transfer(2), &id("d"), Receive::into(&second).from(0, there)).unwrap();
    assert_held(other.grant(&own), first, "\"c\"");
    drop(input);
    let mut child = until(inherit);
    assert_held(other.grant(&own), first, "a child that copies");
    let since = Instant::now();
    let given = loop {
        if let Some(given) = child.poll() {
            break given;
        }
        assert!(since.elapsed() < PATIENCE);
    };
    assert_eq!(given, Ok(32));
    sink.assert_tokens(own.indices(), 1, 32);
    other.grant(&own).unwrap();
    // A tail is copied by the call itself, into what nobody else has.
    let parents = sink.take(2);
    sink.fill(parents.indices(), 3, 0, 0..24);
    pins.pin(parent("p", &parents, 24), &[&parents], PATIENCE).unwrap();
    let child = pins.inherit(&id("p"), &tenant(1), &id("q"), 40).unwrap().unwrap();
    assert_held(child.copy_tail(&[(&sink.layout, &own)]), first, "\"d\"");
    let fresh = sink.take(1);
    assert_eq!(child.copy_tail(&[(&sink.layout, &fresh)]), Ok(8));
}
