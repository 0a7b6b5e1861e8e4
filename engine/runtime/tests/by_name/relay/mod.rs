//! Chunks between engines of one process, over real transports.

mod blocks;
mod common;
mod streams;

use std::time::{Duration, Instant};

use common::{Net, PATIENCE, pattern, request};
use penstock::config::TransportName::{self, Local, Shm, Tcp, Verbs};
use penstock::flows::FlowError;
use penstock::flows::relay::{Arrival, Destination, Dtype, Extents, PayloadItem, Put, RelayError, RelaySpec};
use penstock::flows::{FlowCause, relay};
use penstock::{PoolSpec, Rights};

const BERTH: u64 = 64 << 10;

fn small() -> RelaySpec {
    RelaySpec::new().berths(BERTH, 2, 2)
}

macro_rules! over_all {
    ($($name:ident),* $(,)?) => {
        mod local { $(#[test] fn $name() { super::$name(super::Local) })* }
        mod shm { $(#[test] fn $name() { super::$name(super::Shm) })* }
        mod tcp { $(#[test] fn $name() { super::$name(super::Tcp) })* }
        // The RDMA lab runs these in its guest.
        mod over_cards {
            $(#[test] #[ignore = "needs path:/sys/class/infiniband/rxe_a0"] fn $name() { super::$name(super::Verbs) })*
        }
    };
}

over_all! {
    what_is_put_is_got_whole_and_memory_comes_back,
    defect_004_data_larger_than_a_slot_fails,
    defect_004_the_first_reader_of_a_fan_out_frees_it,
    items_come_out_as_they_were_packed,
    extents_go_into_extents_without_berths,
    what_a_put_reads_is_nobody_elses_until_it_is_read,
    what_a_get_writes_is_nobody_elses_until_it_is_there,
    defect_004_cleanup_does_nothing,
    an_abort_reaches_all_engines_and_leaves_nothing,
    defect_004_get_ignores_its_timeout_and_leaks,
    a_join_has_a_chunk_of_each_source,
    scenario_13_streams_both_ways_with_two_credits_do_not_deadlock,
    a_stream_ends_behind_its_chunks_and_a_failure_comes_at_once,
}

fn what_is_put_is_got_whole_and_memory_comes_back(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    for (number, bytes) in [(1, 1), (2, 1000), (3, BERTH), (4, 0)] {
        let (whole, name) = (pattern(number, bytes), request(&format!("r{number}")));
        // Once the reader asks before anything is announced, and once after.
        let to = net.peer(0, 1);
        let put = net.relay(0).put(Put::bytes(&whole).header(b"from a"), &name, &[&to]).unwrap();
        let early = (number % 2 == 0).then(|| net.relay(1).arrival(&name, PATIENCE).unwrap());
        if let Some(arrival) = early {
            let Arrival::Chunk(announced) = arrival else { panic!("{arrival:?}") };
            assert_eq!((&announced.metadata[..], &announced.header[..]), (put.metadata(), &b"from a"[..]));
            assert_eq!((announced.engine.as_str(), announced.bytes), ("a", bytes));
        }
        let got = net.relay(1).get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
        assert!(got.bytes == whole, "{bytes} bytes");
        assert_eq!(got.header, b"from a");
        assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
        assert!(put.rest(PATIENCE));
    }
    net.rests();
}

/// What is larger than its berths goes through them in parts.
fn defect_004_data_larger_than_a_slot_fails(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let whole = pattern(5, 7 * BERTH + 13);
    for put in [Put::bytes(&whole), Put::owned(whole.clone())] {
        let name = request("large");
        let put = net.relay(0).put(put, &name, &[&net.peer(0, 1)]).unwrap();
        let fetch = net.relay(1).get(put.metadata(), Destination::memory()).unwrap();
        // Both ends in one thread: whoever waits brings forward what its own relay has to copy.
        let since = Instant::now();
        let got = loop {
            let _ = put.poll();
            if fetch.poll().is_some() {
                break fetch.wait(PATIENCE).unwrap().unwrap();
            }
            assert!(since.elapsed() < PATIENCE, "{:?} {:?}", net.metrics(0), net.metrics(1));
        };
        assert!(got.bytes == whole);
        assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    }
    net.rests();
}

/// Memory with three readers is free after the last one.
fn defect_004_the_first_reader_of_a_fan_out_frees_it(transport: TransportName) {
    let net = Net::new(transport, &["a", "b", "c", "d"], small);
    let whole = pattern(6, BERTH);
    let readers = [1, 2, 3].map(|to| net.peer(0, to));
    let put = net.relay(0).put(Put::bytes(&whole), &request("fan"), &readers.each_ref()).unwrap();
    for reader in 1..=3 {
        assert_eq!((put.poll(), net.metrics(0).puts), (None, 1), "before reader {reader}");
        let fetch = net.relay(reader).get(put.metadata(), Destination::memory()).unwrap();
        assert!(fetch.wait(PATIENCE).unwrap().unwrap().bytes == whole);
        let again = net.relay(reader).get(put.metadata(), Destination::memory()).map(drop).unwrap_err();
        assert!(matches!(again, FlowError::Relay(RelayError::Over)), "{again}");
    }
    assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    drop(put);
    net.rests();
}

fn items_come_out_as_they_were_packed(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let (hidden, mask) = (pattern(7, 2 * 5 * 2), [1_u8, 0, 1]);
    let items = [
        (PayloadItem { path: "hidden", shape: &[2, 5], dtype: Dtype::Bf16 }, &hidden[..]),
        (PayloadItem { path: "mask", shape: &[3], dtype: Dtype::Bool }, &mask[..]),
        (PayloadItem { path: "none", shape: &[0, 9], dtype: Dtype::F32 }, &[][..]),
    ];
    let put = net.relay(0).put(Put::items(&items).unwrap(), &request("items"), &[&net.peer(0, 1)]).unwrap();
    let got = net.relay(1).get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    for (item, bytes) in items {
        let (field, found) = got.item(item.path).unwrap();
        assert_eq!((&field.shape[..], field.dtype, found), (item.shape, item.dtype, bytes), "{}", item.path);
    }
    assert_eq!(got.items().unwrap().len(), 3);
    assert_eq!(got.item("other").unwrap_err(), relay::PayloadError::NoSuchItem("other".into()));
    let short = Put::<penstock::SystemEnv>::items(&[(items[1].0, &mask[..2])]).map(drop).unwrap_err();
    assert_eq!(short, relay::PayloadError::Bytes { item: 0, needed: 3, found: 2 });
    put.wait(PATIENCE).unwrap().unwrap();
    drop(put);
    net.rests();
}

fn extents_go_into_extents_without_berths(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let pool = |at: usize, rights| {
        net.engine(at).pool(PoolSpec::host(1 << 20).block(4096).label("own").rights(rights)).unwrap()
    };
    let (from, to) = (pool(0, Rights::READ), pool(1, Rights::NONE));
    let whole = pattern(8, 300_000);
    let (blocks, place) = (from.take(256).unwrap(), [(4096, 100_000), (200_000, 200_000)]);
    let put = Put::extents(Extents::of_pool(&from, &[&blocks], &place)).not_ready();
    let put = net.relay(0).put(put, &request("own"), &[&net.peer(0, 1)]).unwrap();
    drop(blocks);
    let there = [(0, 250_000), (1_000_000, 48_576), (500_000, 1_424)];
    let own = to.take(256).unwrap();
    let into = Destination::extents(Extents::of_pool(&to, &[&own], &there));
    let fetch = net.relay(1).get(put.metadata(), into).unwrap();
    drop(own);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((fetch.poll(), net.metrics(1).early), (None, 0), "nobody is told of bytes that are not there");
    from.window().write_from(4096, &whole[..100_000]).unwrap();
    from.window().write_from(200_000, &whole[100_000..]).unwrap();
    assert!(from.take(1).is_err() && to.take(1).is_err(), "the blocks are kept");
    put.ready();
    fetch.wait(PATIENCE).unwrap().unwrap();
    let mut found = vec![0; 300_000];
    let mut at = 0;
    for (offset, len) in there {
        to.window().read_into(offset, &mut found[at..at + len as usize]).unwrap();
        at += len as usize;
    }
    assert!(found == whole);
    assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    drop((put, fetch));
    net.rests();
    net.until("the blocks come back", || from.take(256).is_ok() && to.take(256).is_ok());
    let outside = Put::extents(Extents::of_pool(&from, &[], &[(1 << 20, 1)]));
    let outside = net.relay(0).put(outside, &request("own"), &[&net.peer(0, 1)]);
    assert!(matches!(outside.map(drop).unwrap_err(), FlowError::Outside { offset: 0x10_0000, len: 1, .. }));
    let hidden = Put::extents(Extents::of_pool(&to, &[&to.take(1).unwrap()], &[(0, 1)])).not_ready();
    let hidden = net.relay(1).put(hidden, &request("own"), &[&net.peer(1, 0)]);
    assert!(matches!(hidden.map(drop).unwrap_err(), FlowError::NotReadable { .. }));
    net.until("nothing of it is kept", || to.take(256).is_ok());
}

/// A reader that is through with a request cleans up: what it has not fetched is refused, what it is fetching is given up, its blocks and
/// all berths come back, and what comes late finds a tombstone. What it puts itself goes on, and so do other requests.
fn defect_004_cleanup_does_nothing(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let (name, whole) = (request("gone"), pattern(9, BERTH));
    let (to, back) = (net.peer(0, 1), net.peer(1, 0));
    // One payload waits in its berth until it is fetched.
    let unread = net.relay(0).put(Put::bytes(&whole), &name, &[&to]).unwrap();
    net.until("it was announced", || net.metrics(1).early == 1);
    // Another one is being fetched, into blocks that nobody else holds.
    let pool =
        |at: usize| net.engine(at).pool(PoolSpec::host(1 << 16).block(4096).label("own").rights(Rights::READ)).unwrap();
    let (from, into) = (pool(0), pool(1));
    let never = Put::extents(Extents::of_pool(&from, &[&from.take(2).unwrap()], &[(0, 8192)])).not_ready();
    let reading = net.relay(0).put(never, &name, &[&to]).unwrap();
    let blocks = into.take(16).unwrap();
    let place = Destination::extents(Extents::of_pool(&into, &[&blocks], &[(0, 8192)]));
    let fetch = net.relay(1).get(reading.metadata(), place).unwrap();
    drop(blocks);
    assert!(into.take(16).is_err(), "blocks of a get are kept");
    let own = net.relay(1).put(Put::bytes(&whole), &name, &[&back]).unwrap();
    net.until("its own was announced", || net.metrics(0).early == 1);

    net.relay(1).cleanup(&name);
    net.relay(1).cleanup(&name);
    reading.ready();
    for given_up in [unread.wait(PATIENCE).unwrap(), reading.wait(PATIENCE).unwrap()] {
        assert_eq!(given_up.unwrap_err().cause, FlowCause::Aborted);
    }
    assert_eq!(fetch.wait(PATIENCE).unwrap().map(drop).unwrap_err().cause, FlowCause::Aborted);
    assert!(fetch.rest(PATIENCE));
    net.until("the blocks of the get come back", || into.take(16).is_ok());
    net.until("nothing is kept of it", || net.metrics(1).early == 0 && net.metrics(1).gets == 0);
    // Both berths are free: two payloads of another request, each as large as a berth, are there at the same time.
    let others =
        [1, 2].map(|seed| net.relay(0).put(Put::bytes(&pattern(seed, BERTH)), &request("next"), &[&to]).unwrap());
    net.until("both were announced", || net.metrics(1).early == 2);
    for (seed, put) in (1..).zip(&others) {
        let got = net.relay(1).get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
        assert!(got.bytes == pattern(seed, BERTH));
        assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    }
    // What comes late is refused, and nobody waits for it.
    let late = net.relay(0).put(Put::bytes(&whole), &name, &[&to]).unwrap();
    assert_eq!(late.wait(PATIENCE).unwrap().unwrap_err().cause, FlowCause::Aborted);
    assert_eq!((net.metrics(1).counts.late, net.metrics(1).early), (2, 0), "the one that was ready late, and this one");
    let again = net.relay(1).get(late.metadata(), Destination::memory()).map(drop).unwrap_err();
    assert!(matches!(again, FlowError::Relay(RelayError::Ended { .. })), "{again}");
    // What this engine puts for others goes on.
    let got = net.relay(0).get(own.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    assert!(got.bytes == whole);
    assert_eq!(own.wait(PATIENCE).unwrap(), Ok(()));
    drop((unread, reading, fetch, late, own, others));
    net.rests();
}

/// An abort reaches all engines, and nothing is left of the request on any.
fn an_abort_reaches_all_engines_and_leaves_nothing(transport: TransportName) {
    let net = Net::new(transport, &["a", "b", "c"], small);
    let name = request("gone");
    let whole = pattern(9, BERTH);
    let put = net.relay(0).put(Put::bytes(&whole), &name, &[&net.peer(0, 1), &net.peer(0, 2)]).unwrap();
    let unserved = net.relay(1).put(Put::bytes(&whole), &name, &[&net.peer(1, 2)]).unwrap();
    let join =
        net.relay(2).join(&name, &[net.engine(0).name().clone(), net.engine(2).name().clone()], PATIENCE).unwrap();
    net.relay(1).abort(&name, "the client hung up");
    net.relay(1).abort(&name, "the client hung up");
    for result in [put.wait(PATIENCE).unwrap(), unserved.wait(PATIENCE).unwrap()] {
        let failed = result.unwrap_err();
        assert_eq!((failed.cause, &failed.words[..]), (FlowCause::Aborted, "the client hung up"));
    }
    // Its source may have told it first that it has given up what it had announced.
    let failed = join.wait(PATIENCE).unwrap().unwrap_err();
    assert!(matches!(failed.cause, FlowCause::Aborted | FlowCause::SourceFailed), "{failed}");
    net.until("all have heard", || net.metrics(0).counts.aborts == 1 && net.metrics(2).counts.aborts == 1);
    for at in 0..3 {
        let again = net.relay(at).put(Put::bytes(&whole), &name, &[&net.peer(at, (at + 1) % 3)]).map(drop).unwrap_err();
        assert!(matches!(again, FlowError::Relay(RelayError::Ended { .. })), "{again}");
    }
    drop((put, unserved, join));
    net.rests();
    assert_eq!([0, 1, 2].map(|at| net.metrics(at).counts.aborts), [1, 0, 1], "told once each");
}

/// A get that nobody serves ends at its deadline and holds nothing.
fn defect_004_get_ignores_its_timeout_and_leaks(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let pool = net.engine(0).pool(PoolSpec::host(4096).label("never").rights(Rights::READ)).unwrap();
    let blocks = pool.take(1).unwrap();
    let never = Put::extents(Extents::of_pool(&pool, &[&blocks], &[(0, 100)])).not_ready();
    let put = net.relay(0).put(never, &request("never"), &[&net.peer(0, 1)]).unwrap();
    let within = Duration::from_secs(1);
    let since = Instant::now();
    let fetch = net.relay(1).get(put.metadata(), Destination::memory().within(within)).unwrap();
    assert!(matches!(fetch.wait(Duration::from_millis(1)), Err(FlowError::Nothing(_))), "the wait ends, not the get");
    let failed = fetch.wait(PATIENCE).unwrap().unwrap_err();
    assert_eq!(failed.cause, FlowCause::Deadline);
    assert!(since.elapsed() >= within && fetch.rest(PATIENCE));
    assert_eq!(net.metrics(1).gets, 0);
    // What comes after that is answered, so that its putter does not wait for nothing.
    put.ready();
    assert_eq!(put.wait(PATIENCE).unwrap().unwrap_err().cause, FlowCause::Deadline);
    drop((put, fetch));
    net.rests();
}

fn a_join_has_a_chunk_of_each_source(transport: TransportName) {
    let net = Net::new(transport, &["a", "b", "c"], small);
    let name = request("both");
    let sources = [0, 1].map(|at| net.engine(at).name().clone());
    let join = net.relay(2).join(&name, &sources, PATIENCE).unwrap();
    let wholes = [pattern(10, 100), pattern(11, 200)];
    let puts = [1, 0].map(|at| net.relay(at).put(Put::bytes(&wholes[at]), &name, &[&net.peer(at, 2)]).unwrap());
    let all = join.wait(PATIENCE).unwrap().unwrap();
    assert_eq!(all.iter().map(|one| one.engine.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    for (one, whole) in all.iter().zip(&wholes) {
        let got = net.relay(2).get(&one.metadata, Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
        assert_eq!(&got.bytes, whole);
    }
    puts.iter().for_each(|put| put.wait(PATIENCE).unwrap().unwrap());
    drop((join, puts));
    net.rests();
}

use blocks::{what_a_get_writes_is_nobody_elses_until_it_is_there, what_a_put_reads_is_nobody_elses_until_it_is_read};
use streams::{
    a_stream_ends_behind_its_chunks_and_a_failure_comes_at_once,
    scenario_13_streams_both_ways_with_two_credits_do_not_deadlock,
};

/// Each source has one berth, and lends it to the join that the other one puts for last.
#[test]
fn joins_that_would_wait_for_each_other_go_on_when_what_is_there_is_fetched() {
    let net = Net::new(Shm, &["a", "b", "c"], || RelaySpec::new().berths(BERTH, 1, 1));
    let names = [request("r"), request("s")];
    let sources = [0, 1].map(|at| net.engine(at).name().clone());
    let joins = [0, 1].map(|of| net.relay(2).join(&names[of], &sources, PATIENCE).unwrap());
    let put = |at: usize, of: usize| {
        let whole = pattern((2 * at + of) as u64, 100);
        net.relay(at).put(Put::owned(whole), &names[of], &[&net.peer(at, 2)]).unwrap()
    };
    let puts = [put(0, 0), put(1, 1), put(0, 1), put(1, 0)];
    net.until("one of each is there", || joins.iter().all(|join| join.found().len() == 1));
    assert!(joins.iter().all(|join| join.poll().is_none()));
    let mut fetched = Vec::new();
    net.until("each is fetched as it comes", || {
        // Berths that came back are written by whoever asks.
        puts.iter().for_each(|put| drop(put.poll()));
        for (of, join) in joins.iter().enumerate() {
            for one in join.found() {
                if fetched.contains(&one) {
                    continue;
                }
                let at = sources.iter().position(|source| *source == one.engine).unwrap();
                let got = net.relay(2).get(&one.metadata, Destination::memory()).unwrap().wait(PATIENCE);
                assert_eq!(got.unwrap().unwrap().bytes, pattern((2 * at + of) as u64, 100));
                fetched.push(one);
            }
        }
        fetched.len() == 4
    });
    for join in &joins {
        assert_eq!(join.wait(PATIENCE).unwrap().unwrap().len(), 2, "also what was fetched before");
    }
    puts.iter().for_each(|put| put.wait(PATIENCE).unwrap().unwrap());
    drop((joins, puts));
    net.rests();
}

/// What is announced before its reader has a relay is kept for it.
#[test]
fn defect_004_early_notifications_are_lost() {
    let net = Net::without_relays(Shm, &["a", "b"]);
    let here = net.engine(0).relay(small()).unwrap();
    let put = here.put(Put::bytes(b"early"), &request("r"), &[&net.peer(0, 1)]).unwrap();
    net.until("it is kept", || net.metrics(1).early == 1);
    let there = net.engine(1).relay(small()).unwrap();
    let Arrival::Chunk(announced) = there.arrival(&request("r"), PATIENCE).unwrap() else { panic!("no chunk") };
    let got = there.get(&announced.metadata, Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    assert_eq!(got.bytes, b"early");
    put.wait(PATIENCE).unwrap().unwrap();
}

#[test]
fn a_relay_is_opened_once_and_again_when_it_was_closed() {
    let net = Net::without_relays(Shm, &["a", "b"]);
    let first = net.engine(0).relay(small()).unwrap();
    let there = net.engine(1).relay(small()).unwrap();
    let second = net.engine(0).relay(small()).map(drop).unwrap_err();
    assert!(second.to_string().contains("relay that is open"), "{second}");
    let put = first.put(Put::bytes(b"lent"), &request("r"), &[&net.peer(0, 1)]).unwrap();
    let close = first.close(PATIENCE);
    assert!(close, "its reader was told, and has answered");
    assert_eq!(put.poll().unwrap().unwrap_err().cause, FlowCause::EngineClosed);
    let closed = first.put(Put::bytes(b""), &request("r"), &[&net.peer(0, 1)]).map(drop).unwrap_err();
    assert!(matches!(closed, FlowError::Relay(RelayError::Closed)), "{closed}");
    let again = net.engine(0).relay(small()).unwrap();
    // Handles of the first one that end now end nothing of the second one.
    drop((first, put));
    let put = again.put(Put::bytes(b"anew"), &request("s"), &[&net.peer(0, 1)]).unwrap();
    let got = there.get(put.metadata(), Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    assert_eq!(got.bytes, b"anew");
    let none = net.engine(0).relay(RelaySpec::new().berths(0, 1, 1)).map(drop).unwrap_err();
    assert!(matches!(none, relay::OpenError::NoBerths { .. }), "{none}");
}

/// Whoever waits for what arrives hears that its request was given up, here or elsewhere, or that it is cleaned up.
#[test]
fn whoever_waits_for_what_arrives_hears_that_nothing_does() {
    let net = Net::new(Shm, &["a", "b"], small);
    type Ends = fn(&Net, &str);
    let ends: [(&str, Ends); 3] = [
        ("aborted there", |net, of| net.relay(0).abort(&request(of), "enough")),
        ("aborted here", |net, of| net.relay(1).abort(&request(of), "enough")),
        ("cleaned up", |net, of| net.relay(1).cleanup(&request(of))),
    ];
    for (of, end) in ends {
        // It has begun to arrive.
        let stream = net.relay(0).stream(&request(of), &[&net.peer(0, 1)]).unwrap();
        let put = stream.put(Put::bytes(b"one")).unwrap();
        assert!(matches!(net.relay(1).arrival(&request(of), PATIENCE).unwrap(), Arrival::Chunk(_)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| net.relay(1).arrival(&request(of), PATIENCE));
            end(&net, of);
            match waiting.join().unwrap() {
                Err(FlowError::Relay(RelayError::Ended { .. })) => {}
                // Nothing was asked of the one that gave it up, so that only its stream has ended here.
                Ok(Arrival::Failed { failed, .. }) if of == "aborted there" => {
                    assert_eq!(failed.cause, FlowCause::Aborted);
                }
                other => panic!("{of}: {other:?}"),
            }
        });
        drop((stream, put));
        // The next one would wait for it, and be written by whoever waits for something of that relay: here nobody does.
        net.until("its berth is back", || net.metrics(0).puts == 0);
    }
    net.rests();
}

/// No chunk of it is under way, so nothing else would say to its reader that no other one comes.
#[test]
fn a_stream_of_a_relay_that_closes_fails_on_both_sides() {
    let net = Net::without_relays(Shm, &["a", "b"]);
    let (here, there) = (net.engine(0).relay(small()).unwrap(), net.engine(1).relay(small()).unwrap());
    let stream = here.stream(&request("r"), &[&net.peer(0, 1)]).unwrap();
    let put = stream.put(Put::bytes(b"one")).unwrap();
    let Arrival::Chunk(chunk) = there.arrival(&request("r"), PATIENCE).unwrap() else { panic!("a chunk was put") };
    there.get(&chunk.metadata, Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
    assert_eq!(put.wait(PATIENCE).unwrap(), Ok(()));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| there.arrival(&request("r"), PATIENCE));
        assert!(here.close(PATIENCE), "its reader was told, and has answered");
        let arrival = waiting.join().unwrap();
        assert!(matches!(arrival, Ok(Arrival::Failed { .. })), "{arrival:?}");
    });
    assert_eq!(stream.wait(PATIENCE).unwrap().unwrap_err().cause, FlowCause::EngineClosed);
    assert!(matches!(there.try_arrival(&request("r")), Ok(None)), "once");
}

/// Engines without threads, turned by the one thread that has both.
#[test]
fn engines_without_threads_hand_over_as_others_do() {
    let net = Net::inline(&["a", "b"], small);
    let name = request("inline");
    let whole = pattern(12, 5 * BERTH + 1);
    let stream = net.relay(0).stream(&name, &[&net.peer(0, 1)]).unwrap();
    let puts = [&whole[..], b"short"].map(|bytes| stream.put(Put::bytes(bytes)).unwrap());
    stream.finish(PATIENCE).unwrap();
    let (mut got, mut fetches, mut is_done) = (Vec::new(), Vec::new(), false);
    net.turn_until(|| {
        match net.relay(1).try_arrival(&name).unwrap() {
            Some(Arrival::Chunk(chunk)) => {
                fetches.push(net.relay(1).get(&chunk.metadata, Destination::memory()).unwrap());
            }
            Some(Arrival::Done { .. }) => is_done = true,
            Some(Arrival::Failed { failed, .. }) => panic!("{failed}"),
            None => {}
        }
        if let Some(place) = fetches.iter().position(|fetch| fetch.poll().is_some()) {
            got.push(fetches.remove(place).wait(Duration::ZERO).unwrap().unwrap().bytes);
        }
        // This brings forward what its relay has to write, and is to be asked in each turn.
        let has_ended = stream.poll().is_some();
        is_done && got.len() == 2 && has_ended
    });
    got.sort_by_key(Vec::len);
    assert!(got[0] == b"short" && got[1] == whole);
    for put in &puts {
        net.turn_until(|| put.poll().is_some());
        assert_eq!(put.wait(Duration::ZERO).unwrap(), Ok(()));
    }
    assert_eq!(stream.wait(Duration::ZERO).unwrap(), Ok(()));
    // Blocking calls turn their own engine.
    assert!(net.relay(1).arrival(&name, Duration::from_millis(5)).is_err());
    drop((puts, stream));
    net.turn_until(|| (0..2).all(|at| net.metrics(at).is_idle));
    assert!((0..2).all(|at| net.relay(at).close(PATIENCE)));
}

/// What nobody asks for while it is kept is refused: both sides hear that, and not that somebody has fetched it.
#[test]
fn what_is_asked_for_too_late_is_told_apart_from_what_was_fetched() {
    let early = relay::EarlyFrameBounds { messages: 16, bytes: 1 << 20, age: Duration::from_millis(100) };
    let net = Net::new(Shm, &["a", "b"], || small().early(early));
    let put = net.relay(0).put(Put::bytes(b"some"), &request("late"), &[&net.peer(0, 1)]).unwrap();
    let failed = put.wait(PATIENCE).unwrap().unwrap_err();
    assert_eq!(failed.cause, FlowCause::Deadline);
    assert!(failed.words.contains("had not asked for it"), "{failed}");
    let late = net.relay(1).get(put.metadata(), Destination::memory()).map(drop).unwrap_err();
    assert!(matches!(late, FlowError::Relay(RelayError::TooLate(_))), "{late}");
    assert!(late.to_string().contains("100 ms"), "{late}");
}
