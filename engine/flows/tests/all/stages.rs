//! Engines with nothing but a relay each, joined by wires that keep order and by moves that end when somebody says so.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::{Cause, EngineName, Epoch, Generation, RegionId, Timestamp};
use penstock_flows::action::{BlocksRef, MoveId, Moving, RegionRef, Spans, WatchId};
use penstock_flows::relay::{
    Destination, EarlyFrameBounds, GetKey, PutKey, PutSource, RelayError, RelaySettings, Relays, StagingPlace,
    StagingPool, ToPut,
};
use penstock_flows::{Action, Event};
use penstock_session::control::{ControlMessage, PeerFeatures};
use penstock_session::{PeerKey, RequestId};

pub(crate) const BERTH: u64 = 64;
pub(crate) const SOON: Duration = Duration::from_millis(100);
pub(crate) const LATER: Duration = Duration::from_secs(1000);
pub(crate) const ABORT: Duration = Duration::from_millis(50);

/// The region of berths for puts, for gets, and one of the application's own.
pub(crate) const PUTS: u32 = 1;
pub(crate) const GETS: u32 = 2;
pub(crate) const OWN: u32 = 3;

pub(crate) struct Engine {
    pub(crate) relay: Relays,
    pub(crate) name: EngineName,
    pub(crate) key: PeerKey,
    pub(crate) memory: BTreeMap<u32, Vec<u8>>,
    pub(crate) freed: Vec<BlocksRef>,
    pub(crate) quarantined: Vec<(BlocksRef, PeerKey)>,
    pub(crate) tellings: usize,
}

/// A move that has begun.
pub(crate) struct Under {
    pub(crate) at: usize,
    pub(crate) id: MoveId,
    pub(crate) with: usize,
    pub(crate) moving: Moving,
    pub(crate) is_stopped: bool,
}

pub(crate) struct World {
    pub(crate) engines: Vec<Engine>,
    pub(crate) wires: BTreeMap<(usize, usize), VecDeque<ControlMessage>>,
    pub(crate) moves: Vec<Under>,
    pub(crate) watches: Vec<(usize, WatchId, PeerKey)>,
    pub(crate) now: Timestamp,
}

/// Numbers that one seed decides.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ word >> 31) % most as u64) as usize
    }
}

pub(crate) fn request(text: &str) -> RequestId {
    RequestId::new(text).unwrap()
}

pub(crate) fn region(number: u32) -> RegionRef {
    RegionRef { region: RegionId(number), generation: Generation(1) }
}

pub(crate) fn settings(name: &str, epoch: u64) -> RelaySettings {
    RelaySettings {
        name: EngineName::new(name).unwrap(),
        epoch: Epoch(epoch),
        puts: StagingPool { region: region(PUTS), base: 128, berth_bytes: BERTH, berths: 2 },
        gets: StagingPool { region: region(GETS), base: 0, berth_bytes: BERTH, berths: 2 },
        each: 2,
        control: 2,
        most: 64,
        early: EarlyFrameBounds { messages: 64, bytes: 65_536, age: Duration::from_secs(30) },
        tombs: 64,
        tomb: Duration::from_secs(60),
        abort: ABORT,
        first_number: 1000,
    }
}

/// Bytes that differ from chunk to chunk.
pub(crate) fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (seed.wrapping_mul(131) + at * 7 + at / 64) as u8).collect()
}

impl World {
    /// These engines, each in session with each other.
    pub(crate) fn new(all: Vec<RelaySettings>) -> Self {
        let mut world = Self {
            engines: Vec::new(),
            wires: BTreeMap::new(),
            moves: Vec::new(),
            watches: Vec::new(),
            now: Timestamp::from_ns(1),
        };
        for settings in all {
            world.add(settings);
        }
        world
    }

    /// Engines of these names, with two berths of each kind.
    pub(crate) fn of(names: &[&str]) -> Self {
        Self::new(names.iter().enumerate().map(|(number, name)| settings(name, 100 + number as u64)).collect())
    }

    pub(crate) fn add(&mut self, settings: RelaySettings) -> usize {
        let number = self.engines.len();
        let key = PeerKey { peer_index: number as u32, epoch: settings.epoch };
        let name = settings.name.clone();
        let memory = [PUTS, GETS, OWN].map(|region| (region, vec![0; 4096])).into();
        let relay = Relays::new(settings);
        self.engines.push(Engine { relay, name, key, memory, freed: Vec::new(), quarantined: Vec::new(), tellings: 0 });
        for other in 0..number {
            self.meet(number, other);
        }
        number
    }

    pub(crate) fn meet(&mut self, here: usize, there: usize) {
        for (at, peer) in [(here, there), (there, here)] {
            let (peer, name) = (self.engines[peer].key, self.engines[peer].name.clone());
            let able = PeerFeatures { version_min: 1, version_max: 1, tag: 7, credits: 64 };
            self.event(at, Event::Joined { peer, name });
            self.event(at, Event::Said { peer, said: ControlMessage::PeerFeatures(able) });
        }
    }

    /// The session of two ends, for both; what was on its way is lost.
    pub(crate) fn part(&mut self, here: usize, there: usize) {
        self.wires.remove(&(here, there));
        self.wires.remove(&(there, here));
        for (at, peer) in [(here, there), (there, here)] {
            let peer = self.engines[peer].key;
            self.event(at, Event::Left { peer, cause: Cause::PeerLost });
        }
    }

    pub(crate) fn event(&mut self, at: usize, event: Event) {
        let now = self.now;
        self.engines[at].relay.handle(&event, now);
        self.look(at);
    }

    /// Calls an engine's relay, and carries out what it wants.
    pub(crate) fn call<T>(&mut self, at: usize, call: impl FnOnce(&mut Relays, Timestamp) -> T) -> T {
        let result = call(&mut self.engines[at].relay, self.now);
        self.look(at);
        result
    }

    fn look(&mut self, at: usize) {
        self.engines[at].relay.check().unwrap_or_else(|broken| panic!("engine {at}: {broken}"));
        while let Some(action) = self.engines[at].relay.poll_action() {
            let number = |peer: PeerKey| peer.peer_index as usize;
            match action {
                Action::Say { peer, said } => self.wires.entry((at, number(peer))).or_default().push_back(said),
                Action::Move { id, peer, moving } => {
                    self.moves.push(Under { at, id, with: number(peer), moving, is_stopped: false });
                }
                Action::Stop { id } => {
                    for under in self.moves.iter_mut().filter(|under| (under.at, under.id) == (at, id)) {
                        under.is_stopped = true;
                    }
                }
                Action::Watch { id, peer } => self.watches.push((at, id, peer)),
                Action::Quarantine { ticket, peers, .. } => self.engines[at].quarantined.push((ticket, peers[0])),
                Action::Free { ticket } => {
                    assert!(!self.engines[at].freed.contains(&ticket), "{ticket:?} is let go of twice");
                    self.engines[at].freed.push(ticket);
                }
                Action::Tell => self.engines[at].tellings += 1,
                Action::Report { .. } => {}
            }
        }
    }

    /// Delivers the next word from one engine to another.
    pub(crate) fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(said) = self.wires.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        let peer = self.engines[from].key;
        self.event(to, Event::Said { peer, said });
        true
    }

    /// Wires on which something is.
    pub(crate) fn busy_wires(&self) -> Vec<(usize, usize)> {
        self.wires.iter().filter(|(_, words)| !words.is_empty()).map(|(wire, _)| *wire).collect()
    }

    /// Copies the bytes of a move, which ends well then, or as it was stopped.
    pub(crate) fn finish(&mut self, place: usize) {
        let under = self.moves.remove(place);
        let mut bytes = 0;
        let Spans::Cut { local, remote, spans } = &under.moving.spans else { panic!("a relay moves pieces") };
        for span in spans {
            let theirs = &self.engines[under.with].memory[&remote.region.0];
            let copied = theirs[span.remote as usize..(span.remote + span.len) as usize].to_vec();
            let mine = self.engines[under.at].memory.get_mut(&local.region.0).unwrap();
            mine[span.local as usize..(span.local + span.len) as usize].copy_from_slice(&copied);
            bytes += span.len;
        }
        let result = if under.is_stopped { Err(Cause::Cancelled) } else { Ok(bytes) };
        self.event(under.at, Event::Ended { id: under.id, result, is_open_there: false });
    }

    /// A move ends without its bytes.
    pub(crate) fn break_move(&mut self, place: usize, cause: Cause, is_open_there: bool) -> MoveId {
        let (at, id) = (self.moves[place].at, self.moves[place].id);
        self.moves.remove(place);
        self.event(at, Event::Ended { id, result: Err(cause), is_open_there });
        id
    }

    pub(crate) fn quiet(&mut self) {
        for (at, id, _) in std::mem::take(&mut self.watches) {
            self.event(at, Event::Quiet { id });
        }
    }

    /// Delivers all words; moves stay as they are.
    pub(crate) fn deliver_all(&mut self) {
        while let Some((from, to)) = self.busy_wires().first().copied() {
            self.deliver(from, to);
        }
    }

    /// Delivers and moves until nothing is under way.
    pub(crate) fn run(&mut self) {
        loop {
            self.deliver_all();
            if self.moves.is_empty() {
                return;
            }
            self.finish(0);
        }
    }

    pub(crate) fn wait(&mut self, span: Duration) {
        self.now = self.now + span;
        for at in 0..self.engines.len() {
            self.call(at, |relay, now| relay.expire(now));
        }
    }

    pub(crate) fn key(&self, at: usize) -> PeerKey {
        self.engines[at].key
    }

    /// Puts so many bytes from berths.
    pub(crate) fn try_put(
        &mut self,
        at: usize,
        of: &str,
        bytes: u64,
        to: &[usize],
        within: Duration,
    ) -> Result<PutKey, RelayError> {
        let readers = to.iter().map(|&reader| self.key(reader)).collect();
        let source = PutSource::Berths { bytes };
        let (schema, header) = (Vec::new(), b"header".to_vec());
        let what = ToPut { request: request(of), source, readers, schema, header, within };
        self.call(at, |relay, now| relay.put(what, now))
    }

    pub(crate) fn put(&mut self, at: usize, of: &str, bytes: u64, to: &[usize]) -> PutKey {
        self.try_put(at, of, bytes, to, LATER).unwrap()
    }

    /// Writes all parts that are to be written; how many they were.
    pub(crate) fn fill(&mut self, at: usize, put: PutKey, whole: &[u8]) -> usize {
        let to_fill = self.engines[at].relay.unwritten(put);
        for part in &to_fill {
            if let Some(place) = part.place {
                let bytes = whole[part.from as usize..(part.from + place.len) as usize].to_vec();
                self.write(at, place, &bytes);
            }
            self.call(at, |relay, now| relay.filled(put, part.part, now)).unwrap();
        }
        to_fill.len()
    }

    pub(crate) fn write(&mut self, at: usize, place: StagingPlace, bytes: &[u8]) {
        let memory = self.engines[at].memory.get_mut(&place.region.region.0).unwrap();
        memory[place.offset as usize..(place.offset + place.len) as usize].copy_from_slice(bytes);
    }

    pub(crate) fn read(&self, at: usize, place: StagingPlace) -> &[u8] {
        &self.engines[at].memory[&place.region.region.0][place.offset as usize..(place.offset + place.len) as usize]
    }

    pub(crate) fn metadata(&self, at: usize, put: PutKey) -> Vec<u8> {
        self.engines[at].relay.metadata(put).unwrap()
    }

    pub(crate) fn get(&mut self, at: usize, metadata: &[u8]) -> GetKey {
        self.try_get(at, metadata, LATER).unwrap()
    }

    pub(crate) fn try_get(&mut self, at: usize, metadata: &[u8], within: Duration) -> Result<GetKey, RelayError> {
        self.call(at, |relay, now| relay.get(metadata, Destination::Berths, within, now))
    }

    /// Copies all pieces out that are there; how many they were.
    pub(crate) fn copy_out(&mut self, at: usize, get: GetKey, whole: &mut [u8]) -> usize {
        let pieces = self.engines[at].relay.pieces(get);
        for piece in &pieces {
            let bytes = self.read(at, piece.place).to_vec();
            whole[piece.from as usize..piece.from as usize + bytes.len()].copy_from_slice(&bytes);
            self.call(at, |relay, now| relay.taken(get, piece.number, now)).unwrap();
        }
        pieces.len()
    }

    /// Fills and fetches until nothing moves any more, and gives what has come.
    pub(crate) fn carry(&mut self, from: (usize, PutKey), whole: &[u8], to: &[(usize, GetKey)]) -> Vec<Vec<u8>> {
        let mut found = vec![vec![0; whole.len()]; to.len()];
        loop {
            let mut steps = self.fill(from.0, from.1, whole);
            self.run();
            for (place, &(at, get)) in to.iter().enumerate() {
                steps += self.copy_out(at, get, &mut found[place]);
            }
            self.run();
            if steps == 0 {
                return found;
            }
        }
    }
}
