//! One of the two processes: an engine, its blocks, and the parts it plays.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use penstock::flows::{Buffer, FinishedTransfer, Form, Layout, LayoutSpec, RequestId, Rows, TransferId};
use penstock::{Blocks, Config, Engine, Env, Peer, Pool, PoolSpec, Rights, SystemEnv};
use serde_json::Value;

use super::flaw::Flaw;
use super::story::now_ns;
use super::turns::Kept;
use super::words::{Event, Order, Part, Role, Said, Scene};
use super::{FOLDER_PREFIX, legs, push, relay, turns};
use crate::arguments::{NodeOptions, Transport};
use crate::folder::SECRET;

/// How long anything may take that should take far less than a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);

/// How long a part may still be played when nobody listens any more.
const GRACE: Duration = Duration::from_secs(1);

/// The layers of keys and values, and tokens of a block.
pub(crate) const LAYERS: u32 = 8;
pub(crate) const KV_TOKENS: u64 = 16;
const KV_BLOCKS: u64 = 128;
pub(crate) const KV_ROWS: Rows = Rows { first: 0, count: 8, of: 8, bytes: 128 };

/// Tokens of a block of embeddings, and what there is of each: the embedding, three positions; and once something about all of them.
pub(crate) const EMBED_TOKENS: u64 = 128;
const EMBED_BLOCKS: u64 = 32;
pub(crate) const EMBED_ROWS: Rows = Rows { first: 0, count: 1, of: 1, bytes: 2048 };
pub(crate) const PLACE_ROWS: Rows = Rows { first: 0, count: 3, of: 3, bytes: 4 };
pub(crate) const ONCE_BYTES: u64 = 64;

/// Blocks of one kind, and how they lie.
pub(crate) struct Kind {
    pub(crate) layout: Layout<SystemEnv>,
    pub(crate) pool: Pool<SystemEnv>,
}

impl Kind {
    /// Everything of a block lies together: its buffers one behind the other, in records of so many bytes.
    fn make(
        engine: &Engine,
        (label, tokens, blocks, record): (&str, u64, u64, u64),
        buffers: &[(u32, Form, u64)],
    ) -> Result<Self, Flaw> {
        let spec = PoolSpec::host(blocks * record).block(record).label(label).rights(Rights::READ_WRITE);
        let pool = engine.pool(spec)?;
        let spec = LayoutSpec::new(label, tokens as u32, blocks as u32);
        let (spec, _) = buffers.iter().fold((spec, 0), |(spec, base), &(layer, form, bytes)| {
            (spec.buffer(Buffer { layer, base, stride: record, form }), base + bytes)
        });
        Ok(Self { layout: engine.layout(&pool, spec)?, pool })
    }

    /// So many blocks, as soon as they are free: what has ended is let go by the engine a moment later.
    pub(crate) fn take(&self, count: u64) -> Result<Blocks, Flaw> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.pool.take(count as usize) {
                Ok(blocks) => return Ok(blocks),
                Err(error) if Instant::now() > until => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// Waits until every block is free again, and says how many there are.
    pub(crate) fn all_free(&self) -> Result<usize, Flaw> {
        let until = Instant::now() + PATIENCE;
        let all = self.pool.memory().blocks_total() as usize;
        loop {
            match self.pool.memory().blocks().free() {
                free if free == all => return Ok(all),
                free if Instant::now() > until => return Err(Flaw::BlocksKept { free, all }),
                _ => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }
}

/// Says what happens.
pub(crate) struct Voice;

impl Voice {
    pub(crate) fn event(&self, act: u32, event: &str, says: &str, figures: Value) {
        let figures = if let Value::Object(figures) = figures { figures } else { serde_json::Map::new() };
        let event = Event { t_ns: now_ns(), act, event: event.to_owned(), says: says.to_owned(), figures };
        self.say(&Said::Event(event));
    }

    fn say(&self, said: &Said) {
        let text = serde_json::to_string(said).expect("what is said holds numbers, bytes and texts only");
        let mut out = std::io::stdout().lock();
        // If whoever listens is gone, the orders have ended too, and with them this process.
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

/// How a part ended.
pub(crate) enum Ending {
    /// As it should: the digest of its bytes.
    Done(String),
    /// The other side was killed in it, which it has told.
    Survived,
}

/// The engine and what it has. Fields end in this order.
pub(crate) struct Node {
    there: Option<Peer<SystemEnv>>,
    /// The last turn of a conversation, which another one may go on from.
    pub(crate) kept: Option<Kept>,
    pub(crate) kv: Kind,
    pub(crate) embed: Kind,
    pub(crate) engine: Engine,
    role: Role,
    transport: Transport,
    pub(crate) voice: Voice,
}

impl Node {
    fn start(options: &NodeOptions) -> Result<Self, Flaw> {
        let NodeOptions { directory, role, transport } = options;
        let config = Config::default().named(role.engine()).directory(directory).transports([transport.name()]);
        let config = match transport {
            Transport::Local | Transport::Shm => config,
            Transport::Verbs | Transport::Tcp | Transport::Datagram | Transport::Dpdk => {
                config.listen(["127.0.0.1:0"]).secret_file(directory.join(SECRET))
            }
        };
        let engine = Engine::start(config)?;
        let layer = KV_TOKENS * u64::from(KV_ROWS.count * KV_ROWS.bytes);
        let layers: Vec<_> = (0..LAYERS).map(|number| (number, Form::TokenMajor(KV_ROWS), layer)).collect();
        let kv = Kind::make(&engine, ("kv", KV_TOKENS, KV_BLOCKS, u64::from(LAYERS) * layer), &layers)?;
        let [embedding, places] =
            [EMBED_ROWS, PLACE_ROWS].map(|rows| EMBED_TOKENS * u64::from(rows.count * rows.bytes));
        let buffers = [
            (0, Form::TokenMajor(EMBED_ROWS), embedding),
            (0, Form::PlaneMajor(PLACE_ROWS), places),
            (0, Form::Once(ONCE_BYTES), ONCE_BYTES),
        ];
        let record = (embedding + places + ONCE_BYTES).next_multiple_of(4096);
        let embed = Kind::make(&engine, ("embeddings", EMBED_TOKENS, EMBED_BLOCKS, record), &buffers)?;
        Ok(Self { there: None, kept: None, kv, embed, engine, role: *role, transport: *transport, voice: Voice })
    }

    /// The other engine, for the one that has connected to it.
    pub(crate) fn there(&self) -> Result<&Peer<SystemEnv>, Flaw> {
        self.there.as_ref().ok_or(Flaw::NotMet)
    }

    /// The other engine, whoever of the two has connected.
    pub(crate) fn other(&self) -> Result<Peer<SystemEnv>, Flaw> {
        let name = self.role.other().engine();
        self.engine.peers().into_iter().find(|peer| peer.name().as_str() == name).ok_or(Flaw::NotMet)
    }

    fn meet(&mut self, card: &[u8]) -> Result<String, Flaw> {
        // Who is gone for good is forgotten.
        self.there = None;
        let peer = self.engine.connect(card, PATIENCE)?;
        let expected = self.transport.as_str();
        if peer.transport() != expected {
            return Err(Flaw::OtherTransport { expected, found: peer.transport() });
        }
        for label in ["kv", "embeddings"] {
            peer.wait_layout(label, PATIENCE)?;
        }
        let path = peer.path().to_owned();
        self.there = Some(peer);
        Ok(path)
    }

    fn play(&mut self, part: &Part) -> Result<Ending, Flaw> {
        match (part.scene, self.role) {
            (Scene::Push { pause_after }, Role::Prefill) => push::send(self, part, (false, pause_after)),
            (Scene::Push { pause_after }, Role::Decode) => push::receive(self, part, (false, pause_after.is_some())),
            (Scene::Pull, Role::Prefill) => push::send(self, part, (true, None)),
            (Scene::Pull, Role::Decode) => push::receive(self, part, (true, false)),
            (Scene::Legs, Role::Prefill) => legs::send(self, part),
            (Scene::Legs, Role::Decode) => legs::receive(self, part),
            (Scene::Parent | Scene::Child, Role::Prefill) => turns::send(self, part),
            (Scene::Parent, Role::Decode) => turns::receive_first(self, part),
            (Scene::Child, Role::Decode) => turns::receive_next(self, part),
            (Scene::Relay, role) => relay::play(self, part, role),
        }
    }

    fn obey(&mut self, order: Order) -> Result<Said, Flaw> {
        match order {
            Order::Meet { card } => Ok(Said::Met { path: self.meet(&card)? }),
            Order::Play(part) => Ok(match self.play(&part)? {
                Ending::Done(digest) => Said::Done { act: part.act, digest },
                Ending::Survived => Said::Survived { act: part.act },
            }),
        }
    }

    /// A name that only this side's scheduler knows the request by.
    pub(crate) fn request(&self, part: &Part) -> Result<RequestId, Flaw> {
        Ok(RequestId::new(&format!("cmpl-{}-{:08x}", part.uuid, SystemEnv.random() as u32))?)
    }

    /// What has finished is this request and nothing else, and both of its names lead nowhere any more.
    pub(crate) fn see_finished(
        &self,
        request: &RequestId,
        transfer: TransferId,
        which: impl Fn(FinishedTransfer) -> Vec<RequestId>,
    ) -> Result<(), Flaw> {
        let mut finished = FinishedTransfer::default();
        let count = self.engine.drain_finished(&mut finished);
        let found = format!("{finished:?}");
        let sides = [penstock::flows::Side::Source, penstock::flows::Side::Sink];
        let is_forgotten = sides.iter().all(|&side| self.engine.request_of(side, transfer).is_none());
        match count == 1 && which(finished) == [request.clone()] && is_forgotten {
            true => Ok(()),
            false => Err(Flaw::Finished { expected: request.clone(), found }),
        }
    }
}

/// The part of a name by which a person knows it again.
pub(crate) fn short(request: &RequestId) -> String {
    let text = request.as_str();
    let tail = text.rsplit_once('-').map_or(text, |(_, tail)| tail);
    format!("{}…{tail}", &text[..text.len().min(9)])
}

/// The whole life of the process: an order a line on standard input, what happens a line each on standard output, until the input ends.
/// It ends with whoever holds its other end, however that ends, and then leaves no folder behind.
pub(crate) fn serve(options: &NodeOptions) -> Result<(), Flaw> {
    let orders = orders(&options.directory);
    let served = obey_all(options, &orders);
    // Whoever made it may have been killed.
    remove(&options.directory);
    served
}

fn obey_all(options: &NodeOptions, orders: &Receiver<Result<Order, String>>) -> Result<(), Flaw> {
    let mut node = Node::start(options)?;
    node.voice.say(&Said::Ready { card: node.engine.descriptor() });
    for order in orders {
        let said = match order {
            Ok(order) => node.obey(order),
            Err(line) => Err(Flaw::Malformed { role: node.role, said: line }),
        };
        let said = said.unwrap_or_else(|flaw| Said::Failed { why: flaw.to_string() });
        node.voice.say(&said);
    }
    Ok(())
}

fn orders(folder: &Path) -> Receiver<Result<Order, String>> {
    let (sender, orders) = channel();
    let folder = folder.to_owned();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let order = serde_json::from_str(&line).map_err(|_| line);
            if sender.send(order).is_err() {
                return;
            }
        }
        drop(sender);
        std::thread::sleep(GRACE);
        // It is still here: in the middle of a part, with nobody left to see its end.
        remove(&folder);
        std::process::exit(1);
    });
    orders
}

/// Removes a folder of the demonstration's, and no other.
fn remove(folder: &Path) {
    let is_ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FOLDER_PREFIX));
    if is_ours {
        // What cannot be removed is a folder of ours in the folder for temporary things.
        let _ = std::fs::remove_dir_all(folder);
    }
}
