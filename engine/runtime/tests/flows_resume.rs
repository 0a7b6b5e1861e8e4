//! Transfers by name whose session is really broken, and that go on in the next one: by a goodbye of either side, and by connections that
//! the kernel cuts.

#[path = "by_name/ends/mod.rs"]
mod ends;

use std::time::{Duration, Instant};

use ends::{BLOCKS, Both, PATIENCE, UUID, assert_bytes, both};
use penstock::config::TransportName;
use penstock::flows::{FlowCause, Input, InputEvent, Output, Receive, RequestId, Send, Side, Status, TransferId};
use penstock::{Peer, SystemEnv};
use rustix::net::{Shutdown, SocketAddrAny, getpeername, getsockname, shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

const TOKENS: u64 = 500;
/// What of them is computed before the session breaks: a leg of 128 and a part of the next one.
const BEFORE: u64 = 240;

struct Pair {
    both: Both,
    output: Output<SystemEnv>,
    input: Input<SystemEnv>,
    layers: [Vec<u8>; 2],
}

impl Pair {
    /// A transfer that is in the middle of its second leg.
    fn begun(transport: TransportName) -> Self {
        let both = both(transport);
        let transfer = TransferId::mint(UUID, 1, 0).unwrap();
        let [sent, received] = ["cmpl-a", "cmpl-b"].map(|half| RequestId::new(half).unwrap());
        let how = Send::from(&both.source.layout).resumable();
        let output = both.source.engine.produce(transfer, &sent, how).unwrap();
        let how = Receive::into(&both.sink.layout).from(0, &both.there).resumable();
        let input = both.sink.engine.consume(transfer, &received, how).unwrap();
        let layers = [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, TOKENS).unwrap() as usize]);
        input.grant(&both.sink.take(2)).unwrap();
        both.source.compute_part(&output, 1, 0..BEFORE, false);
        let mut pair = Self { both, output, input, layers };
        pair.wait(|event| matches!(event, InputEvent::Leg { leg: 0, .. }));
        pair.assemble();
        // The whole of what is left, of which a part is computed.
        pair.input.grant(&pair.both.sink.take(6)).unwrap();
        until("what is computed is there", || pair.input.received() == BEFORE);
        until("and is counted", || pair.both.source.engine.statistics().bytes >= BEFORE * 256);
        pair
    }

    fn assemble(&mut self) {
        let [one, other] = &mut self.layers;
        self.input.assemble(&mut [one, other], TOKENS).unwrap();
    }

    fn wait(&self, is_it: impl Fn(&InputEvent) -> bool) {
        loop {
            match self.input.next(PATIENCE).unwrap() {
                event if is_it(&event) => return,
                InputEvent::Failed(failed) => panic!("{failed:?}"),
                _ => {}
            }
        }
    }

    /// The application hears that the session is broken, and both sides wait.
    fn assert_waits(&self) {
        self.wait(|event| *event == InputEvent::Lost { source: 0 });
        assert_eq!((self.input.status(), self.output.status()), (Status::Transferring, Status::Transferring));
        assert_eq!(self.input.received(), BEFORE, "what has come stays");
    }

    fn reconnect(&self) -> Peer<SystemEnv> {
        self.both.sink.engine.reconnect(&self.both.there, PATIENCE).unwrap()
    }

    /// The rest comes, and each byte is where it belongs.
    fn assert_goes_on(mut self) {
        let moved = self.both.source.engine.statistics().bytes;
        let peer = self.reconnect();
        self.input.resume(&peer).unwrap();
        self.both.source.compute_part(&self.output, 1, BEFORE..TOKENS, true);
        self.wait(|event| matches!(event, InputEvent::Done { tokens: TOKENS }));
        self.assemble();
        self.output.wait(PATIENCE).unwrap().unwrap();
        assert_bytes(1, TOKENS, &self.layers);
        // What a worker has moved it counts behind the end.
        let (again, rest) = (|| self.both.source.engine.statistics().bytes - moved, (TOKENS - BEFORE) * 256);
        until("all is counted", || again() >= rest);
        assert_eq!(again(), rest, "what has come is not sent again");
        let Self { both, output, input, .. } = self;
        drop((output, input));
        both.source.assert_nothing_is_left();
        both.sink.assert_nothing_is_left();
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has the kernel cut every connection between the two engines, in the middle of whatever they say. Answers how many ends that were.
fn cut_connections(both: &Both) -> usize {
    let folder = both.folder.path.to_str().unwrap();
    let card = penstock::session::EngineDescriptor::decode(&both.source.engine.descriptor()).unwrap();
    let port = |address: &str| address.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
    let ports: Vec<u16> = card.addresses.iter().filter_map(|address| port(address)).collect();
    let is_theirs = |address: SocketAddrAny| match rustix::net::SocketAddrUnix::try_from(address.clone()) {
        Ok(unix) => unix.path_bytes().is_some_and(|path| path.starts_with(folder.as_bytes())),
        Err(_) => std::net::SocketAddr::try_from(address).is_ok_and(|address| ports.contains(&address.port())),
    };
    let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let is_socket = std::fs::read_link(entry.path()).ok()?.to_str()?.starts_with("socket:");
        is_socket.then(|| entry.file_name().to_str()?.parse::<i32>().ok())?
    });
    let numbers: Vec<i32> = numbers.collect();
    let cut = numbers.into_iter().filter(|&number| {
        // A second descriptor of the same connection.
        let Ok(socket) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { return false };
        // Whoever has no other end listens.
        let Ok(there) = getpeername(&socket) else { return false };
        let here = getsockname(&socket).ok();
        (there.is_some_and(is_theirs) || here.is_some_and(is_theirs)) && shutdown(&socket, Shutdown::Both).is_ok()
    });
    cut.count()
}

fn goes_on_after_a_goodbye(transport: TransportName) {
    for by_source in [false, true] {
        let pair = Pair::begun(transport);
        if by_source {
            assert!(pair.both.source.engine.peers()[0].disconnect(PATIENCE));
        } else {
            assert!(pair.both.there.disconnect(PATIENCE));
        }
        pair.assert_waits();
        pair.assert_goes_on();
    }
}

fn goes_on_after_a_cut(transport: TransportName) {
    let pair = Pair::begun(transport);
    // The engines may be quicker to close the other ends.
    assert!(cut_connections(&pair.both) >= 1, "one of them is found");
    pair.assert_waits();
    pair.assert_goes_on();
}

#[test]
fn it_goes_on_after_a_goodbye_over_mapped_pools() {
    goes_on_after_a_goodbye(TransportName::Shm);
}

#[test]
fn it_goes_on_after_a_goodbye_over_sockets() {
    goes_on_after_a_goodbye(TransportName::Tcp);
}

#[test]
fn it_goes_on_after_a_cut_over_mapped_pools() {
    goes_on_after_a_cut(TransportName::Shm);
}

#[test]
fn it_goes_on_after_a_cut_over_sockets() {
    goes_on_after_a_cut(TransportName::Tcp);
}

/// Each break loses what it loses, and the next session begins from there.
#[test]
fn it_goes_on_as_often_as_it_breaks() {
    let mut pair = Pair::begun(TransportName::Shm);
    for _ in 0..3 {
        assert!(pair.both.there.disconnect(PATIENCE));
        pair.assert_waits();
        pair.both.there = pair.reconnect();
        pair.input.resume(&pair.both.there).unwrap();
    }
    assert!(pair.both.there.disconnect(PATIENCE));
    pair.assert_waits();
    pair.assert_goes_on();
}

/// Its source hears of it in the next session, instead of waiting for as long as it would for one that may come back.
#[test]
fn a_sink_that_gives_up_while_it_waits_has_its_blocks_back_and_so_has_its_source() {
    for is_dropped in [false, true] {
        let pair = Pair::begun(TransportName::Shm);
        assert!(pair.both.there.disconnect(PATIENCE));
        pair.assert_waits();
        let again = if is_dropped { None } else { Some(pair.reconnect()) };
        let Pair { both, output, input, .. } = pair;
        if is_dropped {
            drop(input);
        } else {
            assert!(input.abort(PATIENCE), "nothing lands any more");
        }
        let _again = again.unwrap_or_else(|| both.sink.engine.reconnect(&both.there, PATIENCE).unwrap());
        let failed = output.wait(PATIENCE).unwrap().unwrap_err();
        assert_eq!((failed.cause, failed.said_by), (FlowCause::Aborted, Side::Sink), "{failed:?}");
        drop(output);
        drop([both.sink.take(BLOCKS as usize), both.source.take(BLOCKS as usize)]);
    }
}

#[test]
fn an_engine_that_is_started_anew_does_not_go_on() {
    let Pair { both, output, input, .. } = Pair::begun(TransportName::Shm);
    // What is named first goes last.
    let Both { folder, source, sink, there } = both;
    // With its handle the transfer would be given up, and both sides told: this one goes with its engine.
    drop(source);
    loop {
        match input.next(PATIENCE).unwrap() {
            InputEvent::Lost { source: 0 } => break,
            InputEvent::Failed(failed) => panic!("{failed:?}"),
            _ => {}
        }
    }
    let source = ends::End::start(&folder, "prefill-0", TransportName::Shm, 16);
    let again = sink.engine.reconnect(&there, PATIENCE).unwrap();
    let error = input.resume(&again).unwrap_err().to_string();
    assert!(error.contains("started anew"), "{error}");
    assert!(input.abort(PATIENCE), "nothing lands any more");
    drop((input, output, source, again));
    drop(sink.take(BLOCKS as usize));
}

/// Who has not asked for it fails at once, as ever.
#[test]
fn one_side_alone_does_not_wait_for_long() {
    let both = both(TransportName::Shm);
    let transfer = TransferId::mint(UUID, 2, 0).unwrap();
    let [sent, received] = ["a", "b"].map(|half| RequestId::new(half).unwrap());
    let output = both.source.engine.produce(transfer, &sent, Send::from(&both.source.layout)).unwrap();
    let how = Receive::into(&both.sink.layout).from(0, &both.there).resumable();
    let input = both.sink.engine.consume(transfer, &received, how).unwrap();
    input.grant(&both.sink.take(2)).unwrap();
    both.source.compute_part(&output, 2, 0..16, false);
    until("it has begun", || input.received() == 16);
    assert!(both.there.disconnect(PATIENCE));
    assert_eq!(output.wait(PATIENCE).unwrap().unwrap_err().cause, FlowCause::PeerLost);
    let again = both.sink.engine.reconnect(&both.there, PATIENCE).unwrap();
    let begun = Instant::now();
    input.resume(&again).unwrap();
    let failed = loop {
        if let InputEvent::Failed(failed) = input.next(PATIENCE).unwrap() {
            break failed;
        }
    };
    assert!(begun.elapsed() < PATIENCE / 2, "the source says so in the new session: {failed:?}");
    assert_eq!(failed.cause, FlowCause::PeerLost);
    assert!(input.abort(PATIENCE));
}
