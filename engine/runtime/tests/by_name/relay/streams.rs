//! Chunks behind each other.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::FlowCause;
use penstock::flows::relay::{Arrival, Destination, Fetch, Put, RelayOp, Stream};
use penstock::{EngineName, SystemEnv};

use super::common::{Net, PATIENCE, pattern, request};
use super::{BERTH, small};

/// Chunks of each stage, each of three parts; a stage has two berths of either kind.
const CHUNKS: u64 = 12;

/// One stage in one thread: it puts, gets, and hears of ends as it comes.
struct Stage {
    stream: Stream<SystemEnv>,
    puts: Vec<RelayOp<SystemEnv>>,
    gets: Vec<(u64, Fetch<SystemEnv>)>,
    announced: u64,
    got: u64,
    is_done: bool,
}

/// Each stage has put all that it has before it fetches anything, in one thread that never waits for one thing alone.
pub(crate) fn scenario_13_streams_both_ways_with_two_credits_do_not_deadlock(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let stage = |at: usize| {
        let name = request("both ways");
        let (relay, seed) = (net.relay(at), |of: usize, number: u64| of as u64 * 1000 + number);
        let size = |number: u64| 2 * BERTH + 1 + number * 100;
        let stream = relay.stream(&name, &[&net.peer(at, 1 - at)]).unwrap();
        let put = |number| stream.put(Put::owned(pattern(seed(at, number), size(number)))).unwrap();
        let puts = (0..CHUNKS).map(put).collect();
        stream.finish(PATIENCE).unwrap();
        let mut stage = Stage { stream, puts, gets: Vec::new(), announced: 0, got: 0, is_done: false };
        let since = Instant::now();
        while !(stage.is_done && stage.got == CHUNKS && stage.stream.poll().is_some()) {
            let Stage { announced, got, .. } = stage;
            assert!(since.elapsed() < PATIENCE, "{at}: {announced} {got} {:?}", net.metrics(at));
            match relay.try_arrival(&name).unwrap() {
                Some(Arrival::Chunk(chunk)) => {
                    assert_eq!(chunk.stream.map(|(_, number)| number), Some(stage.announced), "in their order");
                    let fetch = relay.get(&chunk.metadata, Destination::memory()).unwrap();
                    stage.gets.push((stage.announced, fetch));
                    stage.announced += 1;
                }
                Some(Arrival::Done { .. }) => stage.is_done = true,
                Some(Arrival::Failed { failed, .. }) => panic!("{failed}"),
                None => {}
            }
            stage.gets.retain(|(number, fetch)| {
                let Some(result) = fetch.poll() else { return true };
                result.unwrap();
                let found = fetch.wait(PATIENCE).unwrap().unwrap().bytes;
                assert!(found == pattern(seed(1 - at, *number), size(*number)), "chunk {number} of {}", 1 - at);
                stage.got += 1;
                false
            });
        }
        assert_eq!(stage.stream.wait(PATIENCE).unwrap(), Ok(()));
        stage.puts.iter().for_each(|put| put.wait(PATIENCE).unwrap().unwrap());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| stage(0));
        scope.spawn(|| stage(1));
    });
    net.rests();
}

pub(crate) fn a_stream_ends_behind_its_chunks_and_a_failure_comes_at_once(transport: TransportName) {
    let net = Net::new(transport, &["a", "b"], small);
    let (good, bad) = (request("good"), request("bad"));
    let to = net.peer(0, 1);
    let stream = net.relay(0).stream(&good, &[&to]).unwrap();
    let puts = [b"one", b"two"].map(|bytes| stream.put(Put::bytes(bytes)).unwrap());
    stream.finish(PATIENCE).unwrap();
    for expected in [b"one", b"two"] {
        let arrival = net.relay(1).arrival(&good, PATIENCE).unwrap();
        let Arrival::Chunk(chunk) = arrival else { panic!("{arrival:?}") };
        let got = net.relay(1).get(&chunk.metadata, Destination::memory()).unwrap().wait(PATIENCE).unwrap().unwrap();
        assert_eq!(got.bytes, expected);
    }
    assert!(matches!(net.relay(1).arrival(&good, PATIENCE).unwrap(), Arrival::Done { .. }));
    assert_eq!(stream.wait(PATIENCE).unwrap(), Ok(()));
    puts.iter().for_each(|put| put.wait(PATIENCE).unwrap().unwrap());

    // A chunk that nobody has fetched goes with its stream.
    let failing = net.relay(0).stream(&bad, &[&to]).unwrap();
    let put = failing.put(Put::bytes(b"lost")).unwrap();
    failing.fail("the model ran out of memory").unwrap();
    let failed = loop {
        match net.relay(1).arrival(&bad, PATIENCE).unwrap() {
            Arrival::Failed { failed, .. } => break failed,
            Arrival::Chunk(_) => {} // It may have been told of before the failure.
            Arrival::Done { .. } => panic!("it has failed"),
        }
    };
    assert_eq!(failed.cause, FlowCause::SourceFailed);
    assert!(failed.words.contains("the model ran out of memory"), "{}", failed.words);
    net.relay(1).cleanup(&bad);
    assert!(put.wait(PATIENCE).unwrap().is_err());
    assert!(failing.wait(PATIENCE).unwrap().is_err());
    // One that is dropped before its end has failed, too.
    let dropped = net.relay(0).stream(&request("dropped"), &[&to]).unwrap();
    drop(dropped);
    let arrival = net.relay(1).arrival(&request("dropped"), Duration::from_secs(10)).unwrap();
    assert!(matches!(arrival, Arrival::Failed { .. }), "{arrival:?}");
    let nobody = net.relay(0).join(&bad, &[EngineName::new("b").unwrap()], PATIENCE);
    assert!(nobody.is_ok(), "the other side's cleanup is its own");
    drop((nobody, stream, puts, failing, put));
    net.rests();
}
