//! The engines of a run, their memory, and who has met whom.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock::flows::relay::{Relay, RelaySpec};
use penstock::flows::{Buffer, Form, Layout, LayoutSpec, RequestId, Rows};
use penstock::memory::BlockId;
use penstock::{Blocks, Connecting, Epoch, HostMemory, LocalRegion, Peer, Pool, PoolSpec, Rights, Timestamp};

use crate::deed::{HEARTBEAT, Player, RESUME, Script};
use crate::env::{Identity, SimEnv};
use crate::faults::Death;
use crate::ledger::{Ground, Ledger, Shape};
use crate::lives::device::Device;
use crate::lives::spec::Devices;
use crate::oracle::{Invariant, Violated};
use crate::world::{Node, PIDS, World};

/// Rows of a token, over all ranks, and bytes of a row. There are two layers.
pub const ROWS: u32 = 4;
/// Bytes of a row of one token.
pub const ROW_BYTES: u32 = 8;
/// Bytes that go once for a transfer, where there are such.
pub const ONCE_BYTES: u32 = 24;
/// Blocks of a pool.
pub const BLOCKS: u32 = 64;
/// Layers of a block.
pub const LAYERS: usize = 2;
/// Bytes of a berth of a relay; there are two for what is put, and two for what is fetched.
pub const BERTH_BYTES: u64 = 64;
const LABEL: &str = "kv";
/// How long a source may take to answer an abort.
const ABORT_MS: u64 = 40;
/// How long until somebody who could not be met is called again.
const CALL_AGAIN: Duration = Duration::from_millis(20);

/// The engines of a run.
pub struct Stage<'w> {
    /// Their world.
    pub world: &'w World,
    /// Each in its place.
    pub seats: Vec<Seat>,
    /// When something last happened from which transfers may suffer.
    pub disturbed: Timestamp,
    /// They hand chunks to each other.
    are_stages: bool,
    /// Each has one of these.
    devices: Option<Devices>,
    /// Who was called has met as well as who calls.
    takes_callers: bool,
}

/// The place of an engine, whether it lives or not. Fields end in this order.
pub struct Seat {
    player: Player,
    name: String,
    peers: BTreeMap<usize, Peer<SimEnv>>,
    /// Who is called, and which life of it.
    calling: BTreeMap<usize, (Epoch, Connecting<SimEnv>)>,
    not_before: BTreeMap<usize, Timestamp>,
    layout: Option<Layout<SimEnv>>,
    relay: Option<Relay<SimEnv>>,
    device: Option<Device>,
    ledger: Ledger,
    pool: Option<Pool<SimEnv>>,
    /// Memory of its own, where its blocks lie in that, and not in its pool.
    region: Option<LocalRegion<SimEnv>>,
    node: Option<Node>,
    /// How its former life was reached, and until when whoever looks for it finds that.
    stale: Option<(Epoch, Vec<u8>, Timestamp)>,
    /// How many have had this name before.
    pub life: u32,
    /// It stands still until then.
    pub frozen_until: Option<Timestamp>,
    /// It gives out no blocks until then.
    pub starved_until: Timestamp,
}

impl Player {
    /// Its rows.
    pub fn rows(&self) -> Rows {
        let (rank, ranks) = (u32::from(self.rank.0), u32::from(self.rank.1));
        Rows { first: rank * ROWS / ranks, count: ROWS / ranks, of: ROWS, bytes: ROW_BYTES }
    }

    /// Bytes of a layer of a block.
    fn layer_bytes(&self) -> u64 {
        u64::from(self.block_tokens * self.rows().count * ROW_BYTES)
    }

    /// Bytes of a block that lies in one piece.
    fn block_bytes(&self) -> u64 {
        self.layer_bytes() * LAYERS as u64 + if self.has_once { u64::from(ONCE_BYTES) } else { 0 }
    }

    /// Where the bytes of a row of a token begin, in a block that lies in one piece.
    pub fn place(&self, layer: usize, token: u32, row: u32) -> u64 {
        layer as u64 * self.layer_bytes() + self.place_in_layer(layer, token, row)
    }

    fn place_in_layer(&self, layer: usize, token: u32, row: u32) -> u64 {
        let index = match self.has_planes && layer == 1 {
            true => row * self.block_tokens + token,
            false => token * self.rows().count + row,
        };
        u64::from(index * ROW_BYTES)
    }

    /// Where a part of block 0 begins, and how far it is to the next block: a layer, or what goes once behind all layers.
    fn part(&self, part: usize) -> (u64, u64) {
        let (layer, blocks) = (self.layer_bytes(), u64::from(BLOCKS));
        let len = if part < LAYERS { layer } else { u64::from(ONCE_BYTES) };
        match self.is_layer_major {
            true => (part as u64 * layer * blocks, len),
            false => (part as u64 * layer, self.block_bytes()),
        }
    }

    /// How its blocks lie in its memory.
    pub(crate) fn shape(&self) -> Shape {
        if !self.is_layer_major {
            return Shape::whole(self.block_bytes());
        }
        let part = |part: usize, len| (self.part(part).0, self.part(part).1, len);
        let once = if self.has_once { u64::from(ONCE_BYTES) } else { 0 };
        Shape::of([part(0, self.layer_bytes()), part(1, self.layer_bytes()), part(LAYERS, once)])
    }

    /// Where the bytes of a row of a token of a block begin, in its memory.
    pub fn at(&self, block: u32, layer: usize, token: u32, row: u32) -> u64 {
        let (base, stride) = self.part(layer);
        base + stride * u64::from(block) + self.place_in_layer(layer, token, row)
    }

    /// Where what goes once begins, in its memory, if it is in this block.
    pub fn once_at(&self, block: u32) -> u64 {
        let (base, stride) = self.part(LAYERS);
        base + stride * u64::from(block)
    }

    fn spec(&self) -> LayoutSpec {
        let buffer = |layer: usize| {
            let form = if self.has_planes && layer == 1 {
                Form::PlaneMajor(self.rows())
            } else {
                Form::TokenMajor(self.rows())
            };
            let (base, stride) = self.part(layer);
            Buffer { layer: layer as u32, base, stride, form }
        };
        let (rank, ranks) = self.rank;
        let spec = LayoutSpec::new(LABEL, self.block_tokens, BLOCKS).rank(rank, ranks);
        let spec = spec.buffer(buffer(0)).buffer(buffer(1));
        if !self.has_once {
            return spec;
        }
        let (base, stride) = self.part(LAYERS);
        let form = Form::Once(u64::from(ONCE_BYTES));
        spec.buffer(Buffer { layer: LAYERS as u32 - 1, base, stride, form })
    }
}

impl Seat {
    /// Who sits there.
    pub fn player(&self) -> &Player {
        &self.player
    }

    /// What its engine is called, in all its lives.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The engine, if it lives.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// What somebody finds who looks for it: of which life, and how it is reached.
    fn found(&self, now: Timestamp) -> Option<(Epoch, Vec<u8>)> {
        let node = self.node.as_ref()?;
        match &self.stale {
            Some((epoch, card, until)) if now < *until => Some((*epoch, card.clone())),
            _ => Some((node.epoch(), node.descriptor())),
        }
    }

    /// Whether calls of its can be made now.
    pub fn is_awake(&self) -> bool {
        self.node.is_some() && self.frozen_until.is_none()
    }

    /// Its layout, while it lives.
    pub fn layout(&self) -> Option<&Layout<SimEnv>> {
        self.layout.as_ref()
    }

    /// Its relay, while it lives and if it is a stage.
    pub fn relay(&self) -> Option<&Relay<SimEnv>> {
        self.relay.as_ref()
    }

    /// Its device, while it lives and if it has one.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// The same, to be changed.
    pub fn device_mut(&mut self) -> Option<&mut Device> {
        self.device.as_mut()
    }

    /// Its pool, while it lives.
    pub fn pool(&self) -> Option<&Pool<SimEnv>> {
        self.pool.as_ref()
    }

    /// Its blocks, and where they lie, while it lives.
    pub(crate) fn ground(&self) -> Option<Ground<'_>> {
        ground_of(self.pool.as_ref(), self.region.as_ref(), self.player.shape())
    }

    /// Where its blocks lie, while it lives.
    pub fn region(&self) -> Option<&LocalRegion<SimEnv>> {
        self.ground().map(|ground| ground.region)
    }

    /// Writes what belongs into a row of a token of one of its blocks.
    pub fn write_row(&self, (block, layer): (u32, usize), token: u32, row: u32, bytes: &[u8]) {
        let region = self.region().expect("it lives");
        let at = self.player.at(block, layer, token, row);
        region.host().unwrap().write_from(at, bytes).expect("a block is in its region");
    }

    /// What stands in a row of a token of one of its blocks.
    pub fn read_row(&self, (block, layer): (u32, usize), token: u32, row: u32) -> [u8; ROW_BYTES as usize] {
        let region = self.region().expect("it lives");
        let (mut found, at) = ([0; ROW_BYTES as usize], self.player.at(block, layer, token, row));
        region.host().unwrap().read_into(at, &mut found).expect("a block is in its region");
        found
    }

    /// Takes so many blocks, full of this byte, if it has as many.
    pub fn take(&mut self, count: usize, full_of: u8, now: Timestamp) -> Result<Option<Blocks>, Violated> {
        let Self { pool, region, player, ledger, .. } = self;
        let Some(ground) = ground_of(pool.as_ref(), region.as_ref(), player.shape()) else { return Ok(None) };
        if now < self.starved_until { Ok(None) } else { ledger.take(ground, count, full_of) }
    }

    /// Its engine has said that nothing touches these blocks any more: somebody else has them now, and watches them.
    pub fn give_away(&mut self, ids: &[BlockId]) {
        let Self { pool, region, player, ledger, .. } = self;
        if let Some(ground) = ground_of(pool.as_ref(), region.as_ref(), player.shape()) {
            ledger.give_away(ids, ground);
        }
    }

    /// How many blocks it could give.
    pub fn free(&self, now: Timestamp) -> usize {
        if now < self.starved_until { 0 } else { self.ledger.free() }
    }

    /// Takes in blocks that have become free.
    pub fn look(&mut self) -> Result<(), Violated> {
        let Self { pool, region, player, ledger, .. } = self;
        if let Some(ground) = ground_of(pool.as_ref(), region.as_ref(), player.shape())
            && ground.pool.memory().blocks().free() > 0
        {
            ledger.look(ground)?;
        }
        self.device.iter_mut().try_for_each(Device::look)
    }

    /// Looks whether what the engine keeps agrees with itself, and whether free blocks were touched.
    pub fn check(&self) -> Result<(), Violated> {
        let (Some(node), Some(ground)) = (&self.node, self.ground()) else { return Ok(()) };
        self.ledger.check(ground)?;
        self.device.iter().try_for_each(Device::check)?;
        node.check_control().map_err(|broken| {
            let invariant = match broken {
                penstock::flows::Inconsistency::Blocks(_) => Invariant::FreedOnceAndUntouched,
                _ => Invariant::CreditsAreConserved,
            };
            Violated::new(invariant, format!("`{}`: {broken}", self.name))
        })
    }

    /// What it has of things that should not be there when all is over.
    fn leftovers(&self) -> Option<String> {
        let (Some(node), Some(_)) = (&self.node, &self.pool) else { return None };
        let (metrics, free) = (node.control_metrics(), self.ledger.free());
        let table = &metrics.transfers;
        let counts = [
            ("live transfers", table.live),
            ("ended transfers", metrics.ending),
            ("early messages", table.early),
            ("moves", metrics.moving),
            ("slots", node.transfers_held()),
            ("quarantined blocks", node.quarantined().len()),
            ("berths for puts", metrics.relay.puts as usize),
            ("berths for gets", metrics.relay.gets as usize),
            ("announced chunks", metrics.relay.early),
            ("chunks under way", usize::from(!metrics.relay.is_idle)),
            ("pins", metrics.pins.pins),
            ("inheritances", metrics.pins.uses),
            ("children that wait", metrics.pins.waiting),
            ("leases", metrics.lent),
            ("leases of others", metrics.borrowed),
            ("blocks", BLOCKS as usize - free),
        ];
        let of_device = self.device.iter().flat_map(Device::leftovers);
        let (what, count) = counts.into_iter().chain(of_device).find(|(_, count)| *count > 0)?;
        Some(format!("`{}` has {count} {what} left: {metrics:?}", self.name))
    }
}

fn ground_of<'a>(
    pool: Option<&'a Pool<SimEnv>>,
    region: Option<&'a LocalRegion<SimEnv>>,
    shape: Shape,
) -> Option<Ground<'a>> {
    pool.map(|pool| Ground { pool, region: region.unwrap_or(pool), shape })
}

impl<'w> Stage<'w> {
    /// Everybody has started, and met whom they have to do with.
    pub fn open(world: &'w World, script: &Script) -> Result<Self, Violated> {
        let seats = script.players.iter().enumerate().map(|(number, player)| Seat {
            player: *player,
            name: format!("player-{number}"),
            peers: BTreeMap::new(),
            calling: BTreeMap::new(),
            not_before: BTreeMap::new(),
            layout: None,
            relay: None,
            device: None,
            ledger: Ledger::default(),
            pool: None,
            region: None,
            node: None,
            stale: None,
            life: 0,
            frozen_until: None,
            starved_until: Timestamp::from_ns(0),
        });
        let are_stages = script.has_stages();
        let mut stage = Self {
            world,
            seats: seats.collect(),
            disturbed: world.now(),
            are_stages,
            devices: script.devices,
            takes_callers: script.takes_callers,
        };
        (0..stage.seats.len()).for_each(|number| stage.start(number));
        let mut pairs = Vec::new();
        for case in 0..script.cases.len() {
            let (sources, sinks) = script.sides(case);
            pairs.extend(sinks.iter().flat_map(|&sink| sources.iter().map(move |&source| (sink, source))));
        }
        for turn in &script.turns {
            pairs.push((turn.at, turn.from));
            let parent = turn.parent.map(|parent| script.turns[parent].at);
            pairs.extend(parent.filter(|at| *at != turn.at).map(|at| (turn.at, at)));
        }
        pairs.extend(script.pairs_of_stages());
        pairs.extend(script.lives.iter().map(|life| (life.to, life.at)));
        pairs.sort_unstable();
        pairs.dedup();
        let until = world.now() + Duration::from_secs(5);
        let mut have_met = script.is_hasty;
        while !have_met {
            have_met = true;
            for &(from, to) in &pairs {
                have_met &= stage.meet(from, to)?.is_some();
            }
            if world.now() >= until {
                return Err(Violated::new(Invariant::AnswersComeInTime, "engines do not meet in fine weather"));
            }
            world.step_idly();
        }
        Ok(stage)
    }

    /// An engine begins, with memory of its own.
    pub fn start(&mut self, number: usize) {
        let seat = &mut self.seats[number];
        if seat.node.is_some() {
            return;
        }
        let player = seat.player;
        // Those of one host are processes of their own.
        let pid = PIDS + 1000 * number as u32 + seat.life;
        let identity = Identity { clock: player.clock, process: 100 + number as u64, pid, ..Identity::on(player.host) };
        let listen = [std::net::SocketAddr::new(identity.ip(), 7400 + number as u16)];
        let mut config = World::config_on(player.host, &seat.name).heartbeat(HEARTBEAT).listen(listen);
        // Sooner than a silent session is over, so that both come first now and then.
        config.control.abort_ms = ABORT_MS;
        config.control.resume_ms = RESUME.as_millis() as u64;
        let node = self.world.start_as(identity, config).expect("a simulated engine starts");
        let bytes = player.block_bytes() * u64::from(BLOCKS);
        let spec = PoolSpec::host(bytes).block(player.block_bytes()).label(LABEL).rights(Rights::READ_WRITE);
        let pool = node.pool(spec).expect("a pool of some kilobytes can be made");
        if self.are_stages {
            let spec = RelaySpec::new().berths(BERTH_BYTES, 2, 2);
            seat.relay = Some(node.relay(spec).expect("a relay of four small berths can be opened"));
        }
        if player.owns_memory {
            let memory = HostMemory::from_vec(vec![0; bytes as usize]).expect("some kilobytes can be registered");
            seat.region = Some(node.register(memory, "own", Rights::READ_WRITE).expect("it can be registered"));
        }
        let region = seat.region.as_ref().unwrap_or(&pool);
        seat.layout = Some(node.layout(region, player.spec()).expect("the layout fits its memory"));
        seat.device = self.devices.as_ref().map(|devices| Device::open(&node, &pool, devices));
        (seat.ledger, seat.pool, seat.node) = (Ledger::default(), Some(pool), Some(node));
        seat.look().expect("nothing was given away yet");
    }

    /// An engine that has died begins again; for so long others find what was known of its former life.
    pub fn restart(&mut self, number: usize, stale: Duration) {
        if self.seats[number].node.is_none() {
            self.start(number);
            if let Some((_, _, until)) = &mut self.seats[number].stale {
                *until = self.world.now() + stale;
            }
        }
    }

    /// An engine dies. Its handles have to be gone.
    pub fn crash(&mut self, number: usize, death: Death) {
        let seat = &mut self.seats[number];
        let Some(node) = seat.node.take() else { return };
        seat.stale = Some((node.epoch(), node.descriptor(), self.world.now()));
        self.world.crash(node, death);
        seat.forget();
        seat.life += 1;
        self.disturbed = self.world.now();
    }

    /// An engine stands still for a while.
    pub fn freeze(&mut self, number: usize, span: Duration) {
        let seat = &mut self.seats[number];
        if let Some(node) = &seat.node {
            self.world.freeze(node);
            seat.frozen_until = Some(self.world.now() + span);
        }
    }

    /// Engines that have stood still long enough go on.
    pub fn thaw(&mut self, all: bool) {
        let now = self.world.now();
        for seat in &mut self.seats {
            if seat.frozen_until.is_some_and(|until| all || now >= until) {
                seat.frozen_until = None;
                if let Some(node) = &seat.node {
                    self.world.thaw(node);
                }
                self.disturbed = now;
            }
        }
    }

    /// The peer that sits there, as this one knows it, at the first instant at which they have met. It does not wait.
    pub fn meet(&mut self, from: usize, to: usize) -> Result<Option<Peer<SimEnv>>, Violated> {
        if let Some(peer) = self.seats[from].peers.get(&to) {
            if peer.ended().is_none() {
                return Ok(Some(peer.clone()));
            }
            self.seats[from].peers.remove(&to);
        }
        if self.takes_callers
            && let Some(peer) = self.caller(from, to)
        {
            self.seats[from].peers.insert(to, peer.clone());
            return Ok(Some(peer));
        }
        let now = self.world.now();
        let is_called = self.seats[from].calling.contains_key(&to);
        let card = if is_called { None } else { self.seats[to].found(now) };
        let seat = &mut self.seats[from];
        let Some(node) = seat.node.as_ref() else { return Ok(None) };
        if let Some((epoch, calling)) = seat.calling.get(&to) {
            let Some(answer) = calling.poll() else { return Ok(None) };
            let epoch = *epoch;
            seat.calling.remove(&to);
            seat.not_before.insert(to, now + CALL_AGAIN);
            if let Ok(peer) = answer {
                if peer.epoch() != epoch {
                    let words =
                        format!("`{}` called epoch {epoch:?} of player {to} and met {:?}", seat.name, peer.epoch());
                    return Err(Violated::new(Invariant::BytesAreTheirOwn, words));
                }
                seat.peers.insert(to, peer);
            }
        } else if seat.not_before.get(&to).is_none_or(|&at| now >= at)
            && let Some((epoch, card)) = card
        {
            match node.connect_begin(&card) {
                Ok(calling) => drop(seat.calling.insert(to, (epoch, calling))),
                Err(_) => drop(seat.not_before.insert(to, now + CALL_AGAIN)),
            }
        }
        Ok(None)
    }

    /// A session that the other one has begun.
    fn caller(&self, from: usize, to: usize) -> Option<Peer<SimEnv>> {
        let (node, epoch) = (self.seats[from].node()?, self.seats[to].node()?.epoch());
        let is_it = |peer: &Peer<SimEnv>| {
            peer.name().as_str() == self.seats[to].name && peer.epoch() == epoch && peer.ended().is_none()
        };
        node.peers().into_iter().find(is_it)
    }

    /// An engine gives up a request: whatever it puts and fetches for it, and what others do.
    pub fn give_up(&mut self, number: usize, request: &RequestId) {
        if self.seats[number].is_awake()
            && let Some(relay) = self.seats[number].relay()
        {
            relay.abort(request, "simulated");
        }
    }

    /// Nobody wants anything more of these requests: what was announced and not fetched is let go.
    pub fn clean_up(&self, requests: &[RequestId]) {
        let relays = self.seats.iter().filter_map(Seat::relay);
        relays.for_each(|relay| requests.iter().for_each(|request| relay.cleanup(request)));
    }

    /// Every stream between two engines is reset.
    pub fn sever(&mut self, one: usize, other: usize) {
        if let (Some(one), Some(other)) = (self.seats[one].node(), self.seats[other].node()) {
            self.world.sever_between(one, other);
            self.disturbed = self.world.now();
        }
    }

    /// An engine ends its session with another one, as well as it can.
    pub fn hang_up(&mut self, from: usize, to: usize) {
        if !self.seats[from].is_awake() {
            return;
        }
        if let Some(node) = self.seats[from].node() {
            let name = &self.seats[to].name;
            for peer in node.peers().iter().filter(|peer| peer.name().as_str() == name) {
                // It answers when the other side has, which takes time that has to pass outside.
                let _ = peer.disconnect(Duration::ZERO);
            }
            self.disturbed = self.world.now();
        }
    }

    /// Everything is over: nothing may be left, of transfers, of sessions and of engines.
    pub fn close(mut self) -> Result<(), Violated> {
        let until = self.world.now() + Duration::from_secs(40);
        loop {
            self.seats.iter_mut().try_for_each(Seat::look)?;
            let Some(left) = self.seats.iter().find_map(Seat::leftovers) else { break };
            if self.world.now() >= until {
                return Err(Violated::new(Invariant::NothingIsLeft, left));
            }
            self.world.step_idly();
        }
        self.seats.iter().try_for_each(Seat::check)?;
        for seat in &self.seats {
            if seat.relay().is_some_and(|relay| !relay.close(Duration::from_secs(1))) {
                let words = format!("the relay of `{}` does not come to rest", seat.name);
                return Err(Violated::new(Invariant::NothingIsLeft, words));
            }
        }
        self.seats.iter_mut().for_each(Seat::forget);
        self.seats.iter_mut().for_each(|seat| seat.node = None);
        match self.world.open_ends() {
            0 => Ok(()),
            open => {
                Err(Violated::new(Invariant::NothingIsLeft, format!("{open} listeners, streams or ports are open")))
            }
        }
    }
}

impl Seat {
    /// Lets go of everything but the engine.
    fn forget(&mut self) {
        self.peers.clear();
        self.calling.clear();
        self.not_before.clear();
        self.layout = None;
        self.relay = None;
        self.device = None;
        self.ledger = Ledger::default();
        self.region = None;
        self.pool = None;
        self.frozen_until = None;
    }
}
