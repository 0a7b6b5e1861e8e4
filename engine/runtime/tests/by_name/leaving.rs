//! A peer that has said its last word and is gone, while this engine did not look: the word counts.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use penstock::config::{Progress, TransportName};
use penstock::flows::{Input, Output, Receive, RequestId, Send, Status, TransferId};
use penstock::{Blocks, Engine, SystemEnv};
use rustix::net::{Shutdown, getpeername, getsockname, shutdown};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::ends::{BLOCKS, End, Folder, PATIENCE, UUID};

const TOKENS: u64 = 100;

/// Turns an engine until this is so.
fn turn_until(what: &str, engines: &[&Engine], mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        for engine in engines {
            engine.progress_all().unwrap();
        }
    }
}

/// The connections that were made to this engine, at their other side, and the address that each has there.
fn made_to(engine: &Engine) -> Vec<(OwnedFd, SocketAddr)> {
    let card = penstock::session::EngineDescriptor::decode(&engine.descriptor()).unwrap();
    let addresses: Vec<SocketAddr> = card.addresses.iter().map(|address| address.parse().unwrap()).collect();
    let process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let made = numbers.filter_map(|number| {
        // A second descriptor of the same socket.
        let socket = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        let there = SocketAddr::try_from(getpeername(&socket).ok()??).ok()?;
        let here = SocketAddr::try_from(getsockname(&socket).ok()?).ok()?;
        addresses.contains(&there).then_some((socket, here))
    });
    made.collect()
}

/// A source and a sink that are turned by the test, between which a transfer has begun. Fields end in this order.
struct Turned {
    output: Output<SystemEnv>,
    input: Input<SystemEnv>,
    blocks: Blocks,
    source: End,
    sink: End,
    /// Where the sink's end of the control channel is.
    control: SocketAddr,
    _folder: Folder,
}

impl Turned {
    fn begun(is_lent: bool) -> Self {
        let folder = Folder::new();
        let start = |name: &str| End::start_as(&folder, name, TransportName::Tcp, 16, Progress::Inline);
        let (source, sink) = (start("prefill-0"), start("decode-0"));
        let connecting = sink.engine.connect_begin(&source.engine.descriptor()).unwrap();
        turn_until("it calls", &[&sink.engine], || !made_to(&source.engine).is_empty());
        let control = made_to(&source.engine)[0].1;
        turn_until("they meet", &[&source.engine, &sink.engine], || connecting.poll().is_some());
        let there = connecting.poll().unwrap().unwrap();
        let transfer = TransferId::mint(UUID, 1, 0).unwrap();
        let [sent, received] = ["cmpl-a", "cmpl-b"].map(|half| RequestId::new(half).unwrap());
        let (send, receive) = (Send::from(&source.layout), Receive::into(&sink.layout).from(0, &there));
        let (send, receive) = if is_lent { (send.lend(), receive.pull()) } else { (send, receive) };
        let output = source.engine.produce(transfer, &sent, send).unwrap();
        let input = sink.engine.consume(transfer, &received, receive).unwrap();
        let blocks = sink.take(7);
        input.grant(&blocks).unwrap();
        turn_until("the grant is heard", &[&source.engine, &sink.engine], || output.status() != Status::Bootstrapping);
        Self { output, input, blocks, source, sink, control, _folder: folder }
    }

    fn finish_at_the_sink(&self) {
        turn_until("it has everything", &[&self.sink.engine], || self.input.status() == Status::Success);
    }

    /// The sink's connections to the source end, those that are meant: what was sent before is still there to be read.
    fn hang_up(&self, how: Shutdown, is_meant: impl Fn(SocketAddr) -> bool) {
        let mut meant = made_to(&self.source.engine);
        meant.retain(|(_, here)| is_meant(*here));
        assert!(!meant.is_empty(), "none is found");
        meant.iter().for_each(|(socket, _)| shutdown(socket, how).unwrap());
    }

    /// The source looks again, and at its lanes before its control channel.
    fn assert_ends_well(self) {
        let since = Instant::now();
        while !self.output.status().is_end() {
            assert!(since.elapsed() < PATIENCE, "it ends");
            self.source.engine.progress().unwrap();
        }
        assert_eq!(self.output.status(), Status::Success, "{:?}", self.output.wait(PATIENCE));
        self.sink.assert_tokens(self.blocks.indices(), 1, TOKENS);
    }
}

#[test]
fn an_acknowledgement_counts_that_waits_as_the_lane_is_seen_to_break() {
    let turned = Turned::begun(false);
    let Turned { output, input, source, sink, .. } = &turned;
    source.compute_part(output, 1, 0..TOKENS, false);
    let is_moving = || source.engine.control_metrics().moving > 0;
    turn_until("all has landed, and both know", &[&source.engine, &sink.engine], || {
        input.received() == TOKENS && !is_moving()
    });
    // That this was all is one word more.
    output.chunk(&source.take(1).slice(0..0).unwrap(), 0, true).unwrap();
    source.engine.progress_all().unwrap();
    turned.finish_at_the_sink();
    turned.hang_up(Shutdown::Both, |_| true);
    turned.assert_ends_well();
}

#[test]
fn an_acknowledgement_counts_that_waits_as_a_part_is_seen_to_fail_with_its_lane() {
    let turned = Turned::begun(false);
    let Turned { output, source, .. } = &turned;
    source.compute_part(output, 1, 0..TOKENS, true);
    for _ in 0..100 {
        source.engine.progress_all().unwrap();
    }
    // The sink reads what was sent, and cannot answer there.
    turned.hang_up(Shutdown::Write, |here| here != turned.control);
    turned.finish_at_the_sink();
    turned.assert_ends_well();
}

/// A lease that was given back with everything is the acknowledgement of a sink that reads.
#[test]
fn a_lease_counts_that_was_given_back_before_the_lane_is_seen_to_break() {
    let turned = Turned::begun(true);
    let Turned { output, input, source, sink, .. } = &turned;
    source.compute_part(output, 1, 0..TOKENS, true);
    let is_reading = || sink.engine.control_metrics().moving > 0;
    turn_until("it reads", &[&source.engine, &sink.engine], is_reading);
    turn_until("it has read everything", &[&source.engine], || {
        // As far as it comes without its source.
        for _ in 0..100 {
            sink.engine.progress_all().unwrap();
            if !is_reading() {
                return true;
            }
        }
        false
    });
    assert_eq!(input.status(), Status::Transferring, "it does not know whether its lease stood");
    turned.hang_up(Shutdown::Both, |_| true);
    turned.assert_ends_well();
}

#[test]
fn blocks_come_back_no_sooner_than_others_may_have_them() {
    let turned = Turned::begun(false);
    turned.hang_up(Shutdown::Both, |_| true);
    let Turned { _folder, source: _source, sink, output: _output, input, blocks, .. } = turned;
    let (transfer, request) = (TransferId::mint(UUID, 2, 0).unwrap(), RequestId::new("cmpl-c").unwrap());
    let other = sink.engine.produce(transfer, &request, Send::from(&sink.layout)).unwrap();
    drop((input, blocks));
    let mut all = None;
    turn_until("they are free", &[], || {
        sink.engine.progress().unwrap();
        // Whoever asks what is quarantined may be the first to see that it is not any more.
        let _ = sink.engine.quarantined();
        all = sink.pool.take(BLOCKS as usize).ok();
        all.is_some()
    });
    other.chunk(&all.unwrap(), u64::from(BLOCKS * sink.tokens), true).unwrap();
}
