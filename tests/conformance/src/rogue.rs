//! A peer that breaks the rules: it speaks the protocol by hand, as far as it likes.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock::limits::FRAME_TOKENS_MAX;
use penstock::memory::{Access, Segment};
use penstock::session::codec::{self, Received};
use penstock::session::frame::{VERSION_MAX, VERSION_MIN};
use penstock::session::{Decoder, EngineDescriptor, Frame, Hello, Offer, RefusalCode};
use penstock::transport::Fds;
use penstock::transport::host::bounce::Banks;
use penstock::transport::host::{EngineSegments, MailboxView, mailbox_bytes, ring_segment_bytes};
use penstock_shm::bells::Doors;
use penstock_shm::offer;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::stage::PATIENCE;

/// What a rogue heard.
#[derive(Debug)]
pub enum Heard {
    /// A frame, with its descriptors.
    Frame(Frame, Vec<OwnedFd>),
    /// The engine closed the connection.
    Closed,
    /// Nothing, in all the time there was.
    Nothing,
}

/// A connection to an engine's socket.
pub struct Rogue {
    stream: UnixStream,
    decoder: Decoder,
    tokens: VecDeque<OwnedFd>,
}

impl Rogue {
    /// Connects, and says nothing.
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the engine listens");
        Self { stream, decoder: Decoder::new(), tokens: VecDeque::new() }
    }

    /// Sends bytes as they are. Answers whether the engine still took them.
    pub fn say(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The same with descriptors.
    pub fn say_with(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "at most 253");
        sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).is_ok()
    }

    /// Sends a frame with its descriptors.
    pub fn send(&mut self, frame: &Frame, tokens: &[BorrowedFd<'_>]) {
        self.send_claiming(frame, tokens.len(), tokens);
    }

    /// Sends a frame that claims so many descriptors, with others.
    pub fn send_claiming(&mut self, frame: &Frame, claimed: usize, tokens: &[BorrowedFd<'_>]) {
        let bytes = encoded(frame, claimed);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(tokens.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(tokens)), "at most 253");
        // A refusal may have come already: then nobody reads this.
        let _ = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// The next frame.
    pub fn hear(&mut self, within: Duration) -> Heard {
        let until = Instant::now() + within;
        loop {
            if let Some(Received { frame, tokens }) = self.decoder.next_frame().expect("engines speak the protocol") {
                return Heard::Frame(frame, self.tokens.drain(..tokens).collect());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Heard::Nothing;
            }
            self.stream.set_read_timeout(Some(left)).expect("a time above zero");
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return Heard::Closed,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                // The engine closed it with something of ours unread.
                Err(_) => return Heard::Closed,
            }
        }
    }

    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_TOKENS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let message = recvmsg(&self.stream, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                self.tokens.extend(rights);
            }
        }
        self.decoder.push(&bytes[..message.bytes]);
        Ok(message.bytes > 0)
    }

    /// The refusal that must come now, and the end of the connection after it.
    pub fn refusal(&mut self) -> (RefusalCode, String) {
        let said = loop {
            match self.hear(PATIENCE) {
                Heard::Frame(Frame::Refuse { code, text }, _) => break (code, text),
                Heard::Frame(Frame::Hello(_) | Frame::Offer(_), _) => {}
                other => panic!("no refusal but {other:?}"),
            }
        };
        assert!(matches!(self.hear(PATIENCE), Heard::Closed), "a refusal is the last word");
        said
    }

    /// The number of the next question that is asked.
    pub fn question(&mut self) -> u64 {
        loop {
            match self.hear(PATIENCE) {
                Heard::Frame(Frame::Ping { number }, _) => return number,
                Heard::Frame(..) => {}
                other => panic!("nothing is asked but {other:?}"),
            }
        }
    }

    /// Says hello and hears the engine's hello and offer.
    pub fn greet(self, card: &EngineDescriptor) -> Greeted {
        self.greet_as(hello(card))
    }

    /// The same with this hello.
    pub fn greet_as(mut self, ours: Hello) -> Greeted {
        self.send(&Frame::Hello(ours), &[]);
        let Heard::Frame(Frame::Hello(theirs), _) = self.hear(PATIENCE) else { panic!("no hello came") };
        let Heard::Frame(Frame::Offer(offer), tokens) = self.hear(PATIENCE) else { panic!("no offer came") };
        Greeted { rogue: self, theirs, fds: tokens, offer }
    }
}

/// The bytes of a frame that claims so many descriptors.
pub fn encoded(frame: &Frame, claimed: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(frame, claimed.min(FRAME_TOKENS_MAX), &mut bytes).expect("the frame can be said");
    bytes
}

/// A hello that is in order, as a single worker says it.
pub fn hello(card: &EngineDescriptor) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        name: "rogue".to_owned(),
        epoch: 0x0bad_0bad_0bad_0bad,
        expects: card.epoch,
        host: card.host,
        process: 7,
        workers: 1,
        peer_index: 0,
        transports: vec!["shm".to_owned()],
    }
}

/// A rogue that was answered and has not made its offer yet.
pub struct Greeted {
    /// The connection.
    pub rogue: Rogue,
    /// What the engine said.
    pub theirs: Hello,
    /// What the engine offered: owner state, mailbox, rings, bells.
    pub fds: Vec<OwnedFd>,
    offer: Offer,
}

/// What a rogue may put into its offer: an honest one to begin with.
pub struct Offering {
    /// The transport it names.
    pub transport: String,
    /// The transport's words.
    pub blob: Vec<u8>,
    /// Owner state, mailbox, rings, slots, the application's bell, the worker's bell.
    pub tokens: Fds,
}

impl Greeted {
    /// An honest offer over fresh memory of the rogue's, and that memory.
    pub fn honest(&self) -> (Offering, Own) {
        let segments = EngineSegments::create(1).expect("memory for what is shared");
        let rings = offer::make_rings(usize::from(self.theirs.workers)).expect("memory for the rings");
        let slots = Banks::create(1).expect("memory for the slots");
        let tokens = offer::fds(&segments, &rings, &slots, bells(&segments)).expect("they can be passed on");
        let blob = offer::blob(penstock::memory::ProbeWords::NONE);
        (Offering { transport: "shm".to_owned(), blob, tokens }, Own { segments, rings, slots })
    }

    /// Makes an offer, whatever it is.
    pub fn offer(&mut self, offering: &Offering) {
        let frame = Frame::Offer(Offer { transport: offering.transport.clone(), blob: offering.blob.clone() });
        let tokens: Vec<BorrowedFd<'_>> = offering.tokens.iter().map(|token| token.as_fd()).collect();
        self.rogue.send(&frame, &tokens);
    }

    /// Completes the greeting honestly, and the session as an engine does that knows of no transfers by name.
    pub fn join(self) -> Intruder {
        let (offering, own) = self.honest();
        self.join_with(&offering, own)
    }

    /// The same with an offer of one's own.
    pub fn join_with(self, offering: &Offering, own: Own) -> Intruder {
        let mut intruder = self.join_offering(offering, own);
        let none = penstock::session::RegionsAdvertised { revision: 0, news: Vec::new() };
        intruder.rogue.send(&Frame::Regions(none), &[]);
        // It is asked before anything is known of it, and once more behind its regions.
        for _ in 0..2 {
            let number = intruder.rogue.question();
            intruder.rogue.send(&Frame::Pong { number }, &[]);
        }
        intruder
    }

    /// Completes the greeting honestly, and says nothing more.
    pub fn join_silently(self) -> Intruder {
        let (offering, own) = self.honest();
        self.join_offering(&offering, own)
    }

    /// The same with an offer of one's own.
    fn join_offering(mut self, offering: &Offering, own: Own) -> Intruder {
        self.offer(offering);
        let Heard::Frame(Frame::Regions(regions), pools) = self.rogue.hear(PATIENCE) else {
            panic!("no session stands");
        };
        assert_eq!((self.offer.transport.as_str(), self.fds.len()), ("shm", 5 + usize::from(self.theirs.workers)));
        let workers = usize::from(self.theirs.workers);
        // The first is the owner state, which can only be read.
        let mut tokens = self.fds.into_iter().skip(1);
        let mut segment = |bytes: usize| {
            let token = tokens.next().expect("posts, mail, rings, slots, bells");
            Segment::open(token, bytes as u64, Access::ReadWrite).expect("an honest offer can be mapped")
        };
        let (mailbox, rings) = (segment(mailbox_bytes(workers)), segment(ring_segment_bytes(1)));
        let slots = segment(Banks::bytes_for(workers) as usize);
        let bells = tokens.collect();
        let peer_index = self.theirs.peer_index as usize;
        Intruder { rogue: self.rogue, own, mailbox, rings, slots, bells, workers, peer_index, regions, pools }
    }
}

/// Sockets that lead to these bells.
fn bells(segments: &EngineSegments) -> Vec<OwnedFd> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let place = std::env::temp_dir().join(format!("penstock-rogue-{}-{number}.bell", std::process::id()));
    Doors::open(segments, &place).and_then(|doors| doors.sockets().map_err(io::Error::other)).expect("bells")
}

/// The rogue's own side of a session.
pub struct Own {
    /// Its owner state, mailbox and bells.
    pub segments: Arc<EngineSegments>,
    /// The rings that the engine fills.
    pub rings: Segment,
    /// The slots that the rogue fills.
    pub slots: Banks,
}

/// A rogue with a standing session.
pub struct Intruder {
    /// The connection.
    pub rogue: Rogue,
    /// What the rogue shares.
    pub own: Own,
    /// The engine's mailbox.
    pub mailbox: Segment,
    /// The rings that the rogue fills.
    pub rings: Segment,
    /// The slots that the engine fills.
    pub slots: Segment,
    /// Sockets that lead to the application's bell and to the workers'.
    pub bells: Vec<OwnedFd>,
    workers: usize,
    /// The rogue's place in the engine's table of peers.
    pub peer_index: usize,
    /// What the engine announced first.
    pub regions: penstock::session::RegionsAdvertised,
    /// The descriptors of it.
    pub pools: Vec<OwnedFd>,
}

impl Intruder {
    /// The engine's place in the rogue's table of peers, which has no other.
    pub fn index_at_peer(&self) -> u32 {
        0
    }

    /// Makes the engine look at its rings.
    pub fn ring(&self) {
        let mailbox = MailboxView::over(self.mailbox.range(), self.workers).expect("the mail is whole");
        mailbox.ready(0).mark(self.peer_index);
        for bell in &self.bells {
            // A full queue has rung.
            let _ = rustix::net::send(bell, b"", SendFlags::DONTWAIT);
        }
    }

    /// Asks whether the session stands, and hears that it does.
    pub fn answers(&mut self, number: u64) {
        self.rogue.send(&Frame::Ping { number }, &[]);
        loop {
            match self.rogue.hear(PATIENCE) {
                Heard::Frame(Frame::Pong { number: heard }, _) if heard == number => return,
                Heard::Frame(..) => {}
                other => panic!("the session does not stand: {other:?}"),
            }
        }
    }

    /// Waits for the end of the session, which the engine says.
    pub fn wait_for_the_end(&mut self) {
        loop {
            match self.rogue.hear(PATIENCE) {
                Heard::Frame(Frame::Goodbye, _) | Heard::Closed => return,
                Heard::Frame(..) => {}
                Heard::Nothing => panic!("the session still stands"),
            }
        }
    }
}
