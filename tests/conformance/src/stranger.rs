//! A caller from another host that breaks the rules: it speaks the protocol by hand, as far as it likes.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penstock::session::codec::Received;
use penstock::session::frame::{VERSION_MAX, VERSION_MIN};
use penstock::session::{
    ChannelError, Decoder, EngineDescriptor, Frame, Hello, Offer, RefusalCode, RegionNews, Secret, SecureChannel,
    StreamKey,
};
use penstock_core::plan::RegionKey;
use penstock_core::{Generation, RegionId};
use penstock_tcp::offer;
use penstock_tcp::wire::{Asked, HEAD_BYTES, Head, Message, TRAILER_BYTES, put_request};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::rogue::encoded;
use crate::stage::PATIENCE;

/// Fills bytes from the system's source of them.
fn random(bytes: &mut [u8]) {
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
    read.expect("the system has random bytes");
}

/// A connection from this address of the loopback.
pub fn dial_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let dialled: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&dialled, &SocketAddr::from((from, 0)))?;
    connect(&dialled, &to)?;
    Ok(dialled.into())
}

/// What a stranger heard.
#[derive(Debug)]
pub enum Said {
    /// A frame.
    Frame(Frame),
    /// The channel itself ended in words, or with what opens nowhere.
    Refused(ChannelError),
    /// The engine closed the connection.
    Closed,
    /// Nothing, in all the time there was.
    Nothing,
}

/// A connection to an engine's port, with the handshake under way.
pub struct Stranger {
    stream: TcpStream,
    channel: SecureChannel,
    decoder: Decoder,
    /// Whatever it said, as it went over the network.
    pub said: Vec<u8>,
}

impl Stranger {
    /// Connects, and sends the first message of the handshake.
    pub fn call(to: SocketAddr, secret: &Secret) -> io::Result<Self> {
        let channel = SecureChannel::caller(secret, &mut random);
        let mut stranger = Self { stream: TcpStream::connect(to)?, channel, decoder: Decoder::new(), said: Vec::new() };
        stranger.stream.set_nodelay(true)?;
        stranger.flush();
        Ok(stranger)
    }

    /// As [`Stranger::call`], and goes on until both sides have the keys.
    pub fn open(to: SocketAddr, secret: &Secret) -> Self {
        let mut stranger = Self::call(to, secret).expect("the engine listens");
        let until = Instant::now() + PATIENCE;
        while !stranger.channel.is_open() {
            assert!(Instant::now() < until, "no handshake in time");
            assert!(matches!(stranger.receive(PATIENCE), Ok(true)), "the engine does not take the secret");
        }
        stranger
    }

    fn flush(&mut self) {
        let mut bytes = Vec::new();
        self.channel.take_outgoing(&mut bytes);
        // A refusal may have come already: then nobody reads this.
        let _ = self.stream.write_all(&bytes);
        self.said.extend(bytes);
    }

    /// Sends a frame.
    pub fn send(&mut self, frame: &Frame) {
        // Over, perhaps: the end is heard soon.
        let _ = self.channel.send(&encoded(frame, 0));
        self.flush();
    }

    /// Receives what is there. Answers whether the connection stands.
    fn receive(&mut self, within: Duration) -> Result<bool, ChannelError> {
        let mut bytes = [0; 4096];
        self.stream.set_read_timeout(Some(within.max(Duration::from_millis(1)))).expect("a time above zero");
        match self.stream.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(read) => self.channel.receive(&bytes[..read])?,
            // A ring of an engine that was started on this thread ends its calls early when it is closed.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => return Ok(false),
        }
        self.flush();
        let mut plain = Vec::new();
        self.channel.take_plaintext(&mut plain);
        self.decoder.push(&plain);
        Ok(true)
    }

    /// The next frame, or the end.
    pub fn hear(&mut self, within: Duration) -> Said {
        let until = Instant::now() + within;
        loop {
            if let Some(Received { frame, .. }) = self.decoder.next_frame().expect("engines speak the protocol") {
                return Said::Frame(frame);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Said::Nothing;
            }
            match self.receive(left) {
                Ok(true) => {}
                Ok(false) => return Said::Closed,
                Err(error) => return Said::Refused(error),
            }
        }
    }

    /// The refusal that must come now.
    pub fn refusal(&mut self) -> RefusalCode {
        loop {
            match self.hear(PATIENCE) {
                Said::Frame(Frame::Refuse { code, .. }) => return code,
                Said::Frame(Frame::Hello(_) | Frame::Offer(_)) => {}
                other => panic!("no refusal but {other:?}"),
            }
        }
    }

    /// The key of this session's streams.
    pub fn stream_key(&self) -> StreamKey {
        StreamKey::derive(&self.channel.handshake_hash().expect("the channel is open"))
    }

    /// Completes the greeting honestly, with one worker and under this name. Opens no stream yet.
    pub fn greet(mut self, card: &EngineDescriptor, name: &str) -> Guest {
        self.send(&Frame::Hello(hello(card, name)));
        let Said::Frame(Frame::Hello(theirs)) = self.hear(PATIENCE) else { panic!("no hello came") };
        let Said::Frame(Frame::Offer(theirs_offer)) = self.hear(PATIENCE) else { panic!("no offer came") };
        let streams = offer::accept(&theirs_offer.blob, 1, usize::from(theirs.workers)).expect("an honest offer");
        self.send(&Frame::Offer(Offer { transport: "tcp".to_owned(), blob: offer::blob(1, 1) }));
        Guest { channels: usize::from(theirs.workers) * streams, stranger: self, heard: VecDeque::new() }
    }
}

/// A hello that is in order, as a single worker says it.
pub fn hello(card: &EngineDescriptor, name: &str) -> Hello {
    let mut epoch = [0; 8];
    random(&mut epoch);
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        name: name.to_owned(),
        epoch: u64::from_le_bytes(epoch) | 1,
        expects: card.epoch,
        host: card.host,
        process: 7,
        workers: 1,
        peer_index: 0,
        transports: vec!["tcp".to_owned()],
    }
}

/// A stranger with a standing session.
pub struct Guest {
    /// Its control channel.
    pub stranger: Stranger,
    /// Streams that the session needs.
    pub channels: usize,
    heard: VecDeque<RegionNews>,
}

impl Guest {
    /// Opens a stream with this opening.
    pub fn stream(to: SocketAddr, opening: &[u8]) -> DataStream {
        let mut stream = TcpStream::connect(to).expect("the engine listens");
        stream.set_nodelay(true).expect("it is a TCP socket");
        // One that is closed at once is looked at later.
        let _ = stream.write_all(opening);
        DataStream { stream, next: 1, received: Vec::new() }
    }

    /// Opens all streams honestly.
    pub fn streams(&self, to: SocketAddr) -> Vec<DataStream> {
        let key = self.stranger.stream_key();
        (0..self.channels as u16).map(|index| Self::stream(to, &key.token(index).encode())).collect()
    }

    /// Waits for the announcement of a region of this label.
    pub fn region(&mut self, label: &str) -> RegionNews {
        loop {
            if let Some(found) = self.heard.iter().find(|news| news.label == label) {
                return found.clone();
            }
            match self.stranger.hear(PATIENCE) {
                Said::Frame(Frame::Regions(regions)) => self.heard.extend(regions.news),
                Said::Frame(_) => {}
                other => panic!("no region is announced but {other:?}"),
            }
        }
    }

    /// Whether the session still stands after a moment in which the engine could end it.
    pub fn stands(&mut self) -> bool {
        self.stranger.send(&Frame::Ping { number: 77 });
        loop {
            match self.stranger.hear(PATIENCE) {
                Said::Frame(Frame::Pong { number: 77 }) => return true,
                Said::Frame(Frame::Goodbye) | Said::Closed | Said::Refused(_) => return false,
                Said::Frame(_) => {}
                Said::Nothing => panic!("the engine neither answers nor ends"),
            }
        }
    }
}

/// A raw data stream.
pub struct DataStream {
    /// The socket.
    pub stream: TcpStream,
    next: u64,
    received: Vec<u8>,
}

impl DataStream {
    /// Asks for a write of these bytes, or a read of as many, at this offset of what the key says.
    pub fn ask(&mut self, is_write: bool, key: (u32, u32), offset: u64, bytes: &[u8]) {
        let key = RegionKey { region: RegionId(key.0), generation: Generation(key.1) };
        let asked = Asked { sequence: self.next, transfer: 1, key, revision: 0 };
        self.next += 1;
        let mut control = Vec::new();
        put_request(&mut control, is_write, &asked, [(offset, bytes.len() as u64)].into_iter());
        let payload = if is_write { bytes } else { &[] };
        let mut group = Head::encode(&control, payload.len() as u32).to_vec();
        group.extend(control);
        if is_write {
            group.extend(payload);
            // Nothing of it was spoiled on the way.
            group.extend([0; TRAILER_BYTES]);
        }
        // The engine may have ended it: that is then the answer.
        let _ = self.stream.write_all(&group);
    }

    /// What the engine answers to the last request: bytes that were read, none for a write, or the cause of a refusal in
    /// words. None: it closed the stream.
    pub fn answer(&mut self) -> Option<Result<Vec<u8>, String>> {
        let last = self.next - 1;
        loop {
            let head =
                Head::parse(self.take(HEAD_BYTES)?.as_slice().try_into().ok()?).expect("engines speak the protocol");
            let control = self.take(head.control as usize)?;
            let mut found = None;
            for message in head.open(&control).expect("engines speak the protocol") {
                match message.expect("engines speak the protocol") {
                    Message::Done { sequence } if sequence >= last => found = found.or(Some(Ok(()))),
                    Message::Refused { sequence, cause, .. } if sequence == last => {
                        found = Some(Err(format!("{cause:?}")));
                    }
                    Message::Data { sequence, bytes } if sequence == last => {
                        found = Some(bytes.map(drop).map_err(|refusal| format!("{:?}", Some(refusal.cause))));
                    }
                    _ => {}
                }
            }
            let payload = if head.payload > 0 { self.take(head.payload as usize + TRAILER_BYTES)? } else { Vec::new() };
            if let Some(found) = found {
                return Some(found.map(|()| payload[..head.payload as usize].to_vec()));
            }
        }
    }

    fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a time above zero");
        while self.received.len() < count {
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(read) => self.received.extend(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    panic!("the engine neither answers nor closes the stream")
                }
                Err(_) => return None,
            }
        }
        Some(self.received.drain(..count).collect())
    }

    /// Whether the engine has closed it.
    pub fn is_closed(&mut self) -> bool {
        self.take(1).is_none()
    }
}
