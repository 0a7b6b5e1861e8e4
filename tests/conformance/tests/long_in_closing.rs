//! Descriptors that a peer passes and that are long in closing: its connections and its pools wait behind them, and nobody else does. By itself, since all
//! that one process has passed waits together.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::session::descriptor::EngineDescriptor;
use penstock::session::{Frame, RegionNews, RegionsAdvertised};
use penstock::{Engine, Rights, SystemEnv};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::{Intruder, Rogue};

use penstock_conformance::{Place, Setting};
use rustix::net::sockopt::set_socket_linger;

fn joined(engine: &Engine<SystemEnv>) -> Intruder {
    let card = EngineDescriptor::decode(&engine.descriptor()).unwrap();
    Rogue::connect(card.socket.as_ref()).greet(&card).join()
}

fn regions(count: u32, has_fds: bool) -> Frame {
    let one = |id: u32| RegionNews {
        id,
        generation: 1,
        label: format!("region {id}"),
        bytes: 4096,
        base: 0,
        rights: Rights::READ_WRITE.into(),
        block_bytes: 4096,
        path: vec![7],
        token: has_fds.then_some(id as u8),
    };
    Frame::Regions(RegionsAdvertised { revision: 0, news: (0..count).map(one).collect() })
}

/// A connection whose last close waits until somebody takes what it has sent, and its other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[1; 1 << 16]).is_ok() {}
    set_socket_linger(&near, Some(Duration::from_secs(60))).unwrap();
    (near, listener.accept().unwrap().0)
}

#[test]
fn descriptors_that_are_long_in_closing_hold_nobody_up() {
    let folder = Folder::fresh();
    let setting = Setting::adaptive(TransportName::Shm, 1, Place::Here);
    let engine = Engine::start(setting.spec(folder.path(), "victim").config()).unwrap();
    let (mut intruder, mut other) = (joined(&engine), joined(&engine));
    let (passed, ends): (Vec<TcpStream>, Vec<TcpStream>) = (0..3).map(|_| lingering()).unzip();
    let fds: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
    intruder.rogue.send(&regions(3, true), &fds);
    intruder.answers(1);
    // From here on the engine's are the last.
    drop(passed);
    let begun = Instant::now();
    // One region is announced anew, the others are there when their session ends.
    intruder.rogue.send(&regions(1, false), &[]);
    intruder.answers(2);
    intruder.rogue.say(b"GET / HTTP/1.1");
    intruder.wait_for_the_end();
    (1..20).for_each(|number| other.answers(number));
    joined(&engine).answers(1);
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    drop((other, engine));
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    drop(ends);
}
