//! Offers and announcements that are not what they must be.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::relay::{Put, RelayError, RelaySpec};
use penstock::flows::{CallError, FlowError, Isolation, LayoutSpec, Miss, PinSettings, Receive, RequestId, Rows};
use penstock::memory::{Access, MemoryError, PageKind, Segment, map_foreign_pool};
use penstock::session::control::{ChunkAck, EndOfData, TransferHead};
use penstock::session::descriptor::EngineDescriptor;
use penstock::session::{ControlMessage, Frame, RefusalCode, RegionNews, RegionsAdvertised, Side, TransferId};
use penstock::transport::Fds;
use penstock::transport::host::{mailbox_bytes, owner_state_bytes};
use penstock::{Config, Engine, PoolSpec, Rights};
use penstock_conformance::bystander::{Arena, attack};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::{Heard, Intruder, Offering, Rogue, encoded, hello};
use penstock_conformance::stage::PATIENCE;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const POSTS: usize = 0;
const MAIL: usize = 1;
const RINGS: usize = 2;
const SLOTS: usize = 3;
const BELL: usize = 4;

fn refused_offer(arena: &Arena, words: &str, change: impl FnOnce(&mut Offering)) {
    let mut greeted = Rogue::connect(&arena.socket()).greet(&arena.card);
    let (mut offering, _own) = greeted.honest();
    change(&mut offering);
    greeted.offer(&offering);
    let (code, text) = greeted.rogue.refusal();
    assert!(matches!(code, RefusalCode::BadOffer | RefusalCode::Malformed), "{code:?}: {text}");
    assert!(text.contains(words), "{text:?} does not say {words:?}");
}

fn memfd(bytes: u64, seals: SealFlags) -> Arc<OwnedFd> {
    let fd = memfd_create("rogue", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    Arc::new(fd)
}

fn size_of(token: &OwnedFd) -> u64 {
    rustix::fs::fstat(token).unwrap().st_size as u64
}

#[test]
fn unsealed_memory_in_an_offer_is_refused() {
    attack("unsealed", |arena| {
        for place in [POSTS, MAIL, RINGS, SLOTS] {
            for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW] {
                refused_offer(arena, "seal", |offering| {
                    let bytes = size_of(&offering.tokens[place]);
                    offering.tokens[place] = memfd(bytes, seals);
                });
            }
        }
    });
}

#[test]
fn memory_of_the_wrong_size_is_refused() {
    attack("wrong size", |arena| {
        for place in [POSTS, MAIL, RINGS, SLOTS] {
            for bytes in [0, 4096, 1 << 30] {
                refused_offer(arena, "refused", |offering| {
                    offering.tokens[place] = memfd(bytes, SealFlags::SHRINK | SealFlags::GROW);
                });
            }
        }
    });
}

#[test]
fn what_is_no_memory_at_all_is_refused() {
    attack("no memory", |arena| {
        let file: Fds = vec![Arc::new(std::fs::File::open("/proc/self/status").unwrap().into())];
        for place in [POSTS, MAIL, RINGS, SLOTS] {
            refused_offer(arena, "refused", |offering| offering.tokens[place] = Arc::clone(&file[0]));
            refused_offer(arena, "refused", |offering| offering.tokens[place] = Arc::clone(&offering.tokens[BELL]));
        }
    });
}

#[test]
fn a_bell_that_is_no_datagram_socket_of_this_host_is_refused() {
    attack("bells", |arena| {
        for place in [BELL, BELL + 1] {
            let refused = |bell: OwnedFd| {
                refused_offer(arena, "not a datagram socket", |offering| offering.tokens[place] = Arc::new(bell));
            };
            refused(rustix::pipe::pipe().unwrap().1);
            refused(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
            refused(std::os::unix::net::UnixStream::pair().unwrap().0.into());
            refused(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into());
            refused_offer(arena, "not a datagram socket", |offering| {
                offering.tokens[place] = Arc::clone(&offering.tokens[MAIL]);
            });
        }
    });
}

#[test]
fn too_few_or_too_many_descriptors_are_refused() {
    attack("descriptors", |arena| {
        for count in 0..5 {
            refused_offer(arena, "descriptors", |offering| offering.tokens.truncate(count));
        }
        refused_offer(arena, "descriptors", |offering| {
            let bell = Arc::clone(&offering.tokens[BELL]);
            offering.tokens.extend(std::iter::repeat_n(bell, 40));
        });
        // The frame says another number than came with it.
        for (claimed, came) in [(5, 0), (5, 3), (64, 5)] {
            let mut greeted = Rogue::connect(&arena.socket()).greet(&arena.card);
            let (offering, _own) = greeted.honest();
            let frame = Frame::Offer(penstock::session::Offer { transport: "shm".to_owned(), blob: offering.blob });
            let tokens: Vec<BorrowedFd<'_>> = offering.tokens[..came].iter().map(|token| token.as_fd()).collect();
            greeted.rogue.send_claiming(&frame, claimed, &tokens);
            let (code, text) = greeted.rogue.refusal();
            assert_eq!(code, RefusalCode::Malformed, "{text}");
            assert!(text.contains(&format!("announced {claimed} descriptors and {came} came")), "{text}");
        }
        // More than any frame may carry, with a hello that carries none.
        let bells: Vec<OwnedFd> = (0..200).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        let borrowed: Vec<BorrowedFd<'_>> = bells.iter().map(AsFd::as_fd).collect();
        let mut rogue = Rogue::connect(&arena.socket());
        rogue.send_claiming(&Frame::Hello(hello(&arena.card)), 0, &borrowed);
        drop(rogue);
    });
}

#[test]
fn an_offer_in_another_language_is_refused() {
    attack("language", |arena| {
        refused_offer(arena, "same release", |offering| offering.blob.clear());
        refused_offer(arena, "same release", |offering| offering.blob[0] ^= 1);
        refused_offer(arena, "same release", |offering| offering.blob = vec![0; 100_000]);
        refused_offer(arena, "local", |offering| offering.transport = "local".to_owned());
    });
}

fn news(id: u32, label: &str, bytes: u64, rights: Rights, token: Option<u8>) -> RegionNews {
    RegionNews {
        id,
        generation: 1,
        label: label.to_owned(),
        bytes,
        base: 0,
        rights: rights.into(),
        block_bytes: 4096,
        path: vec![1, 0],
        token,
    }
}

fn announce(intruder: &mut Intruder, news: Vec<RegionNews>, tokens: &[BorrowedFd<'_>]) {
    intruder.rogue.send(&Frame::Regions(RegionsAdvertised { revision: 0, news }), tokens);
}

#[test]
fn announced_pools_that_are_not_sealed_or_not_filled_are_refused_when_named() {
    attack("announced pools", |arena| {
        let mut intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
        let bytes = 1 << 16;
        let unsealed = memfd(bytes, SealFlags::empty());
        let sealed = memfd(bytes, SealFlags::SHRINK | SealFlags::GROW);
        let file: OwnedFd = std::fs::File::open("/proc/self/status").unwrap().into();
        let both = Rights::READ_WRITE;
        // A pool of the victim of the same label, so that it can try to write there.
        for (id, (label, len, rights, token, words)) in [
            ("unsealed", bytes, both, Some(unsealed.as_fd()), "seal"),
            ("too long", bytes + 4096, both, Some(sealed.as_fd()), "announced"),
            ("sparse", bytes, both, Some(sealed.as_fd()), "has pages for 0 of its"),
            ("a file", bytes, both, Some(file.as_fd()), "memfd"),
            ("no memory", bytes, both, None, "did not come"),
        ]
        .into_iter()
        .enumerate()
        {
            let make = Command::Pool { label: label.to_owned(), bytes, block: 4096, rights: both.into(), seed: 0 };
            assert_eq!(arena.ask(make), Reply::Done);
            let region = news(id as u32, label, len, rights, token.map(|_| 0));
            announce(&mut intruder, vec![region], token.as_slice());
            let write = Command::WriteTo { peer: "rogue".to_owned(), label: label.to_owned(), times: 1 };
            match arena.ask(write) {
                Reply::Refused(text) => assert!(text.contains(words), "{label}: {text:?} does not say {words:?}"),
                other => panic!("{label}: {other:?}"),
            }
        }
    });
}

#[test]
fn announcements_that_make_no_sense_end_their_session_only() {
    attack("announcements", |arena| {
        let both = Rights::READ_WRITE;
        let token = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
        let twice = vec![news(1, "a", 4096, both, Some(0)), news(2, "b", 4096, both, Some(0))];
        for (what, news, tokens) in [
            ("a descriptor that did not come", vec![news(1, "a", 4096, both, Some(3))], &[][..]),
            ("one descriptor for two regions", twice, &[token.as_fd()]),
            ("no bytes", vec![news(1, "a", 0, both, None)], &[]),
            ("a label too long", vec![news(1, &"x".repeat(129), 4096, both, None)], &[]),
        ] {
            let mut intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
            assert_eq!(arena.ask(Command::Watch { peer: "rogue".to_owned() }), Reply::Done, "{what}");
            announce(&mut intruder, news, tokens);
            intruder.wait_for_the_end();
            assert_corrupt(arena);
        }
        let mut intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
        assert_eq!(arena.ask(Command::Watch { peer: "rogue".to_owned() }), Reply::Done);
        intruder.rogue.send(&Frame::Hello(hello(&arena.card)), &[]);
        intruder.wait_for_the_end();
        assert_corrupt(arena);
        let mut intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
        assert_eq!(arena.ask(Command::Watch { peer: "rogue".to_owned() }), Reply::Done);
        intruder.rogue.say(b"GET / HTTP/1.1\r\n\r\n");
        intruder.wait_for_the_end();
        assert_corrupt(arena);
    });
}

fn assert_corrupt(arena: &mut Arena) {
    match arena.ask(Command::EndOf { peer: "rogue".to_owned() }) {
        Reply::Ended(Some(cause)) => assert!(cause.contains("nonsense") && cause.contains("restart"), "{cause}"),
        other => panic!("the session still stands: {other:?}"),
    }
}

#[test]
fn words_of_transfers_that_nobody_knows_end_no_session_and_broken_ones_do() {
    attack("words of transfers", |arena| {
        let head = TransferHead { transfer: TransferId::from_bytes([7; 16]), side: Side::Source, rank: 9, ranks: 3 };
        let mut intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
        assert_eq!(arena.ask(Command::Watch { peer: "rogue".to_owned() }), Reply::Done);
        let seal = ControlMessage::EndOfData(EndOfData {
            head,
            parts: u64::MAX,
            tokens: u64::MAX,
            legs: u32::MAX,
            rows: Vec::new().into(),
        });
        for said in [seal.clone(), seal, ControlMessage::ChunkAck(ChunkAck { op: 1, part: 2, code: 3 })] {
            intruder.rogue.send(&Frame::Control(said), &[]);
        }
        intruder.rogue.send(&Frame::Ping { number: 77 }, &[]);
        loop {
            match intruder.rogue.hear(PATIENCE) {
                Heard::Frame(Frame::Pong { number: 77 }, _) => break,
                Heard::Frame(..) => {}
                other => panic!("the session does not stand: {other:?}"),
            }
        }
        // One more byte behind a body is another body.
        let mut broken = encoded(&Frame::Control(ControlMessage::ChunkAck(ChunkAck { op: 1, part: 2, code: 3 })), 0);
        broken[8] += 1;
        broken.push(0);
        intruder.rogue.say(&broken);
        intruder.wait_for_the_end();
        assert_corrupt(arena);
    });
}

#[test]
fn a_pool_that_may_only_be_read_cannot_be_written_by_hand() {
    attack("seals", |arena| {
        let rights = Rights::READ.into();
        let make = Command::Pool { label: "readable".to_owned(), bytes: 1 << 16, block: 4096, rights, seed: 5 };
        assert_eq!(arena.ask(make), Reply::Done);
        let intruder = Rogue::connect(&arena.socket()).greet(&arena.card).join();
        let region = intruder.regions.news.iter().find(|region| region.label == "readable").expect("it is announced");
        let token = &intruder.pools[usize::from(region.token.expect("a pool has a descriptor"))];
        let copy = || token.try_clone().unwrap();
        // As a peer with good manners maps it.
        map_foreign_pool(copy(), region.bytes, Rights::READ, PageKind::Small).unwrap();
        // As one without: the kernel refuses.
        let refused = map_foreign_pool(copy(), region.bytes, Rights::READ_WRITE, PageKind::Small).unwrap_err();
        assert!(matches!(refused, MemoryError::System { .. }), "{refused}");
        assert_eq!(rustix::io::pwrite(token, b"x", 0), Err(rustix::io::Errno::PERM));
        assert!(ftruncate(token, 0).is_err() && ftruncate(token, 1 << 30).is_err());
        assert!(fcntl_add_seals(token, SealFlags::WRITE).is_err(), "nor can it be sealed any further");
    });
}

#[test]
fn an_engine_s_posts_cannot_be_written_by_hand() {
    attack("owner state", |arena| {
        let greeted = Rogue::connect(&arena.socket()).greet(&arena.card);
        let workers = usize::from(greeted.theirs.workers);
        let open = |place: usize, bytes: usize, access| {
            Segment::open(greeted.fds[place].try_clone().unwrap(), bytes as u64, access)
        };
        open(POSTS, owner_state_bytes(workers), Access::Read).unwrap();
        assert!(
            open(POSTS, owner_state_bytes(workers), Access::ReadWrite).is_err(),
            "the owner state is sealed against writers"
        );
        open(MAIL, mailbox_bytes(workers), Access::ReadWrite).unwrap();
    });
}

/// A peer that knows of no transfers by name, and one of which nobody knows as it does not answer, are two: neither can be named in calls
/// of transfers, and both can in plans.
#[test]
fn a_peer_without_transfers_by_name_and_one_that_does_not_answer_are_told_apart() {
    let folder = Folder::fresh();
    let config = Config::default().named("engine").directory(folder.path()).transports([TransportName::Shm]);
    let engine = Engine::start(config.connect_timeout(Duration::from_millis(60))).unwrap();
    let pool = engine.pool(PoolSpec::host(4096).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap();
    let rows = Rows { first: 0, count: 1, of: 1, bytes: 256 };
    let layout = engine.layout(&pool, LayoutSpec::new("kv", 16, 1).token_major(0, 0, rows)).unwrap();
    let pins = engine.pins(0, PinSettings::default()).unwrap();
    let relay = engine.relay(RelaySpec::new().berths(4096, 1, 1)).unwrap();
    let card = EngineDescriptor::decode(&engine.descriptor()).unwrap();
    for is_silent in [false, true] {
        let greeted = Rogue::connect(Path::new(&card.socket)).greet(&card);
        let since = Instant::now();
        let intruder = if is_silent { greeted.join_silently() } else { greeted.join() };
        let peer = loop {
            assert!(since.elapsed() < PATIENCE, "its session is complete in the end");
            if let Some(peer) = engine.peers().pop() {
                break peer;
            }
        };
        assert_eq!(since.elapsed() >= Duration::from_millis(300), is_silent, "{:?}", since.elapsed());
        let (transfer, id) = (TransferId::from_bytes([1; 16]), RequestId::new("r").unwrap());
        let consumed = engine.consume(transfer, &id, Receive::into(&layout).from(0, &peer)).map(drop).unwrap_err();
        let own = pool.take(1).unwrap();
        let parent = (&id, &Isolation::default());
        let missed = pins.inherit_from(&peer, parent, 33, (&layout, &own), PATIENCE).unwrap().unwrap_err();
        let put = relay.put(Put::bytes(b"some"), &id, &[&peer]).map(drop).unwrap_err();
        let typed = match is_silent {
            true => {
                consumed == FlowError::Call(CallError::NotYet { rank: 0 })
                    && missed == Miss::NotYet
                    && matches!(put, FlowError::Relay(RelayError::NotYet(_)))
            }
            false => {
                consumed == FlowError::Call(CallError::NotSpoken { rank: 0 })
                    && missed == Miss::NotSpoken
                    && matches!(put, FlowError::Relay(RelayError::NotSpoken(_)))
            }
        };
        assert!(typed, "{consumed} {missed} {put}");
        drop(intruder);
        let gone = || engine.consume(transfer, &id, Receive::into(&layout).from(0, &peer)).map(drop);
        while gone() != Err(FlowError::Call(CallError::PeerLost { rank: 0 })) {
            assert!(since.elapsed() < PATIENCE, "{:?}", gone());
        }
    }
}
