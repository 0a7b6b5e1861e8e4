//! Who may do what over the network: each attempt is refused, and nothing has changed at the target.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use penstock::config::{TcpIo, TransportName};
use penstock::session::frame::RefusalCode;
use penstock::session::opening::channel_opening;
use penstock::session::{EngineDescriptor, Frame, OpeningCode, Refusal, Secret, StreamKey};
use penstock::{ConnectError, PoolSpec, Rights};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::encoded;
use penstock_conformance::setting::SECRET;
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::stranger::{DataStream, Guest, Said, Stranger, hello};
use penstock_conformance::{Engine, Place, Pool, Setting, pattern};

const BYTES: u64 = 64 << 10;
const MARK: [u8; 64] = [0xee; 64];

/// An engine that is attacked, and an honest peer of it that must not notice.
struct Arena {
    setting: Setting,
    open: Pool,
    readable: Pool,
    writable: Pool,
    hidden: Pool,
    secret: Secret,
    honest: penstock_conformance::Peer,
    _honest: Engine,
    engine: Engine,
    folder: Folder,
}

impl Arena {
    fn new(io: TcpIo) -> Self {
        let setting = Setting::adaptive(TransportName::Tcp, 1, Place::Here).by(io);
        let folder = Folder::fresh();
        let engine = Engine::start(setting.spec(folder.path(), "target").config()).unwrap();
        let pool = |label: &str, rights| {
            let pool = engine.pool(PoolSpec::host(BYTES).block(4096).label(label).rights(rights)).unwrap();
            pattern::fill(pool.window(), 7);
            pool
        };
        let (open, hidden) = (pool("open", Rights::READ_WRITE), pool("hidden", Rights::NONE));
        let (readable, writable) = (pool("readable", Rights::READ), pool("writable", Rights::WRITE));
        let other = Engine::start(setting.spec(folder.path(), "honest").config()).unwrap();
        let honest = other.connect(&engine.descriptor(), PATIENCE).unwrap();
        let text = std::fs::read_to_string(folder.path().join(SECRET)).unwrap();
        let secret = Secret::parse(&text).unwrap();
        Self { setting, open, readable, writable, hidden, secret, honest, _honest: other, engine, folder }
    }

    fn at(&self) -> SocketAddr {
        self.engine.addresses()[0]
    }

    fn card(&self) -> EngineDescriptor {
        EngineDescriptor::decode(&self.engine.descriptor()).unwrap()
    }

    /// A stranger with the secret and a session that stands.
    fn guest(&self, name: &str) -> (Guest, Vec<DataStream>) {
        let guest = Stranger::open(self.at(), &self.secret).greet(&self.card(), name);
        let streams = guest.streams(self.at());
        (guest, streams)
    }

    /// No byte of any pool has changed, and the honest peer is served as ever.
    fn is_unharmed(&self, what: &str) {
        let expected = pattern::bytes(7, 0, BYTES as usize);
        for (label, pool) in
            [("open", &self.open), ("readable", &self.readable), ("writable", &self.writable), ("hidden", &self.hidden)]
        {
            assert!(pattern::read(pool.window()) == expected, "{what}: a byte of `{label}` has changed");
        }
        assert_eq!(self.honest.ended(), None, "{what}");
        assert!(self.honest.ping(PATIENCE).is_ok(), "{what}");
    }

    /// Waits until only the honest one has a session.
    fn until_alone(&self) {
        let until = Instant::now() + PATIENCE;
        while self.engine.peers().len() != 1 {
            assert!(Instant::now() < until, "{:?} peers", self.engine.peers().len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn arenas() -> impl Iterator<Item = Arena> {
    [TcpIo::IoUring, TcpIo::Epoll].into_iter().map(Arena::new)
}

/// Whatever an engine answers to these bytes until it closes.
fn answer(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn nobody_has_a_session_without_the_secret() {
    for arena in arenas() {
        // Another secret, by hand.
        let wrong = Secret::parse(&"5f".repeat(32)).unwrap();
        let mut stranger = Stranger::call(arena.at(), &wrong).unwrap();
        let Said::Refused(error) = stranger.hear(PATIENCE) else { panic!("no refusal") };
        assert!(error.to_string().contains("secret"), "{error}");
        // Another secret, by an engine of ours.
        let other = Folder::fresh();
        let path = other.path().join(SECRET);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        writeln!(file, "{}", "5f".repeat(32)).unwrap();
        let engine = Engine::start(arena.setting.spec(other.path(), "wrong").config()).unwrap();
        let error = engine.connect(&arena.engine.descriptor(), PATIENCE).map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::WrongSecret { .. }), "{error}");
        // No secret: the frames of the same conversation, in plain text, with and without an opening.
        let frame = encoded(&Frame::Hello(hello(&arena.card(), "plain")), 0);
        assert!(answer(arena.at(), &frame).is_empty());
        let said = answer(arena.at(), &[&channel_opening()[..], &frame].concat());
        // As a handshake it is none; the answer is at most the word about that.
        let code = Refusal::decode(&said).map(|refusal| refusal.code);
        let is_word = matches!(code, Ok(OpeningCode::WrongSecret | OpeningCode::Malformed));
        assert!(said.is_empty() || is_word, "{code:?}");
        assert!(arena.engine.network_statistics().wrong_secret >= 2);
        arena.until_alone();
        arena.is_unharmed("without the secret");
    }
}

#[test]
fn a_repeated_handshake_gives_no_session() {
    for arena in arenas() {
        let (mut guest, streams) = arena.guest("guest");
        guest.region("open");
        let said = guest.stranger.said.clone();
        let peers = arena.engine.peers().len();
        let heard = answer(arena.at(), &said);
        // Its first message is a good one and answered; nothing after it opens.
        assert!(heard.len() < 512, "{} bytes", heard.len());
        assert_eq!(arena.engine.peers().len(), peers);
        assert!(guest.stands(), "the one who was repeated");
        drop((guest, streams));
        arena.until_alone();
        arena.is_unharmed("a repeated handshake");
    }
}

#[test]
fn a_stream_is_taken_once_and_only_by_its_own_session() {
    for arena in arenas() {
        let (mut first, mut streams) = arena.guest("first");
        let (mut second, _kept) = arena.guest("second");
        let open = first.region("open");
        second.region("open");
        let (key, theirs) = (first.stranger.stream_key(), second.stranger.stream_key());
        let stray = arena.engine.network_statistics().stray_streams;
        let mut forged = key.token(0).encode();
        forged[31] ^= 1;
        // The name of one session with the proof of another.
        let mut mixed = theirs.token(0).encode();
        mixed[8..16].copy_from_slice(&key.token(0).encode()[8..16]);
        let past = key.token(first.channels as u16);
        let unknown = StreamKey::derive(&[3; 32]).token(0);
        let tokens = [
            ("a changed proof", forged),
            ("another session's proof", mixed),
            ("a number beyond the last", past.encode()),
            ("one that was used already", key.token(0).encode()),
            ("another session's that was used already", theirs.token(0).encode()),
            ("a session that nobody has", unknown.encode()),
        ];
        for (what, token) in &tokens {
            let mut stream = Guest::stream(arena.at(), token);
            stream.ask(true, (open.id, open.generation), 0, &MARK);
            assert!(stream.is_closed(), "{what}");
        }
        assert_eq!(arena.engine.network_statistics().stray_streams, stray + tokens.len() as u64);
        assert!(first.stands() && second.stands());
        // The stream that was there before is still the one.
        streams[0].ask(false, (open.id, open.generation), 0, &MARK);
        let read = streams[0].answer().expect("the stream stands").expect("peers may read there");
        assert_eq!(read, pattern::bytes(7, 0, MARK.len()));
        // After the session its tokens are nothing.
        drop((first, streams));
        let until = Instant::now() + PATIENCE;
        while arena.engine.peers().len() > 2 {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Guest::stream(arena.at(), &key.token(0).encode()).is_closed(), "a token of a session that is over");
        arena.is_unharmed("streams of others");
    }
}

#[test]
fn what_a_peer_may_not_touch_it_does_not_touch() {
    for arena in arenas() {
        let (mut guest, mut streams) = arena.guest("guest");
        let find = |guest: &mut Guest, label: &str| {
            let news = guest.region(label);
            (news.id, news.generation)
        };
        let (open, readable, writable) =
            (find(&mut guest, "open"), find(&mut guest, "readable"), find(&mut guest, "writable"));
        // Regions without rights for peers are not announced; their keys can be guessed.
        let taken = [open.0, readable.0, writable.0];
        let guessed = (0..8).filter(|id| !taken.contains(id)).map(|id| (id, open.1));
        let (write, read) = (true, false);
        let mut attempts: Vec<(&str, bool, (u32, u32), u64)> = vec![
            ("behind the end", write, open, BYTES),
            ("across the end", write, open, BYTES - 8),
            ("read across the end", read, open, BYTES - 8),
            ("far behind the end", write, open, u64::MAX / 2),
            ("before the beginning", read, open, u64::MAX - 4096),
            ("a generation that was not yet", write, (open.0, open.1 + 1), 0),
            ("a generation that was", read, (open.0, open.1.wrapping_sub(1)), 0),
            ("no such region", write, (4000, 1), 0),
            ("no number of a region", read, (u32::MAX, u32::MAX), 0),
            ("a write without the right", write, readable, 0),
            ("a read without the right", read, writable, 0),
        ];
        attempts.extend(guessed.clone().map(|key| ("a write to what is not announced", write, key, 0)));
        attempts.extend(guessed.map(|key| ("a read of what is not announced", read, key, 0)));
        for (what, is_write, key, offset) in attempts {
            streams[0].ask(is_write, key, offset, &MARK);
            let said = streams[0].answer().unwrap_or_else(|| panic!("{what}: a refusal ends nothing"));
            assert!(said.is_err(), "{what}: {said:?}");
            arena.is_unharmed(what);
        }
        // A number that is no place at all ends the session.
        streams[0].ask(write, open, u64::MAX - 8, &MARK);
        assert!(streams[0].is_closed());
        assert!(!guest.stands());
        arena.until_alone();
        arena.is_unharmed("an impossible place");
        // A region that is gone stays gone, for a fresh session as well.
        let (mut guest, mut streams) = arena.guest("guest");
        let old = find(&mut guest, "writable");
        assert!(arena.writable.deregister(PATIENCE).unwrap().is_quiesced());
        streams[0].ask(write, old, 0, &MARK);
        assert!(streams[0].answer().expect("the session stands").is_err(), "a region that is gone");
        assert!(guest.stands());
        arena.is_unharmed("a region that is gone");
        // What it may do works all the same: the refusals above were not for another reason.
        streams[0].ask(write, open, 128, &MARK);
        assert!(streams[0].answer().expect("the session stands").is_ok());
        assert_eq!(pattern::read(arena.open.window())[128..192], MARK);
    }
}

#[test]
fn a_second_live_engine_of_a_name_is_refused() {
    for arena in arenas() {
        // By hand, under the name of the honest peer, with the right secret.
        let mut stranger = Stranger::open(arena.at(), &arena.secret);
        stranger.send(&Frame::Hello(hello(&arena.card(), "honest")));
        assert_eq!(stranger.refusal(), RefusalCode::NameTaken);
        // By an engine of ours.
        let other = Folder::fresh();
        std::fs::copy(arena.folder.path().join(SECRET), other.path().join(SECRET)).unwrap();
        let second = Engine::start(arena.setting.spec(other.path(), "honest").config()).unwrap();
        let error = second.connect(&arena.engine.descriptor(), PATIENCE).map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::Refused { code: RefusalCode::NameTaken, .. }), "{error}");
        assert_eq!(arena.engine.peers().len(), 1);
        arena.is_unharmed("a second engine of the name");
    }
}
