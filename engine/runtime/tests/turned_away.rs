//! Callers that are turned away: they are told why in words that can be acted on, and who is told to come again does.

#[path = "sessions/hosts.rs"]
mod hosts;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hosts::*;
use penstock::ConnectError;
use penstock::session::opening::{OpeningCode, Refusal};

/// Answers each connection by `answer`, which is told how many came before. Answers where, and how many have come.
fn listener(answer: impl Fn(usize, TcpStream) + Send + Sync + 'static) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, came, answer) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)), Arc::new(answer));
    let counted = Arc::clone(&came);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (before, answer) = (counted.fetch_add(1, Ordering::Relaxed), Arc::clone(&answer));
            std::thread::spawn(move || answer(before, stream));
        }
    });
    (at, came)
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn busy() -> Vec<u8> {
    Refusal::new(OpeningCode::Busy, "64 connections from its address").encode()
}

#[test]
fn who_is_told_to_come_again_comes_again_until_it_is_served() {
    let folder = Folder::new("again");
    let (a, b) = (start(config(&folder, "a")), start(listening(&folder, "b")));
    let target = address(&b);
    let (at, came) = listener(move |before, mut stream| {
        if before < 4 {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&busy());
            return;
        }
        let far = TcpStream::connect(target).unwrap();
        let back = (far.try_clone().unwrap(), stream.try_clone().unwrap());
        std::thread::spawn(move || copy(back.0, back.1));
        copy(stream, far);
    });
    let peer = a.connect_address(&at.to_string(), SOON).expect("it was put off four times, and then served");
    assert_eq!(peer.name().as_str(), "b");
    assert!(came.load(Ordering::Relaxed) > 4);
}

#[test]
fn who_is_told_to_come_again_for_ever_is_told_so_in_time() {
    let folder = Folder::new("for-ever");
    let a = start(config(&folder, "a"));
    let (at, came) = listener(|_, mut stream| drop(stream.write_all(&busy())));
    let begun = Instant::now();
    let error = a.connect_address(&at.to_string(), SECOND).expect_err("it is never served");
    assert!(matches!(&error, ConnectError::TurnedAway { code: OpeningCode::Busy, .. }), "{error:?}");
    assert!(error.to_string().contains("64 connections from its address"), "{error}");
    assert!(begun.elapsed() < SOON && came.load(Ordering::Relaxed) > 2, "{:?}", begun.elapsed());
    assert!(came.load(Ordering::Relaxed) < 40, "it does not call in a loop");
}

#[test]
fn what_answers_and_is_not_penstock_is_called_so() {
    let folder = Folder::new("others");
    let a = start(config(&folder, "a"));
    for banner in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.2\r\n", b"\x4a\0\0\0\x0a8.0.36\0"] {
        let (at, _) = listener(move |_, mut stream| {
            let _ = stream.write_all(banner);
            let _ = stream.read(&mut [0; 4096]);
        });
        let error = a.connect_address(&at.to_string(), SOON).expect_err("it is another program");
        assert!(matches!(error, ConnectError::NotPenstock { .. }), "{error:?}");
        assert!(error.to_string().contains(&at.to_string()), "{error}");
    }
    // One that sends back what it hears.
    let (at, _) = listener(|_, stream| copy(stream.try_clone().unwrap(), stream));
    let error = a.connect_address(&at.to_string(), SOON).expect_err("it is another program");
    assert!(matches!(error, ConnectError::NotPenstock { .. }), "{error:?}");
    // One that says nothing.
    let (at, _) = listener(|_, mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let error = a.connect_address(&at.to_string(), SECOND).expect_err("it says nothing");
    assert!(error.to_string().contains("takes connections and says nothing"), "{error}");
    // One that closes at once.
    let (at, _) = listener(|_, stream| drop(stream));
    let error = a.connect_address(&at.to_string(), SECOND).expect_err("it closes");
    assert!(!error.to_string().contains("stopped just now"), "{error}");
}

#[test]
fn a_stranger_that_is_one_too_many_is_told_to_come_again() {
    let folder = Folder::new("crowd");
    let b = start(listening(&folder, "b").greeting_timeout(Duration::from_secs(60)));
    // They say how they begin, and then nothing.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address(&b)).unwrap();
        stream.write_all(b"PNSN\x01\0\0\0").unwrap();
        strangers.push(stream);
    }
    until("the first make room for the last", || b.network_statistics().crowded >= 36);
    let mut told = Vec::new();
    strangers[0].set_read_timeout(Some(SOON)).unwrap();
    strangers[0].read_to_end(&mut told).unwrap();
    let refusal = Refusal::decode(&told).expect("a typed answer");
    assert_eq!(refusal.code, OpeningCode::Busy, "{refusal:?}");
}
