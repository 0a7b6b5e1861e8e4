//! Transfer managers joined by a wire, over memories that are really copied.
//!
//! Each is turned until nothing is wanted any more. What moves can be held up, and what lets go of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_core::{Cause, Direction, EngineName, Epoch, Timestamp};
use penstock_flows::action::Urgency;
use penstock_flows::manager::{CallError, Consume, Produce, Report, Settings, Sinks};
use penstock_flows::{
    Action, BlockHeld, BlocksRef, Event, InputEvent, LayoutKey, MoveId, Moving, Spans, TransferManager, WatchId,
};
use penstock_session::control::{Buffer, ControlMessage, Form, LayoutNews, Rows};
use penstock_session::transfers::table::EntryKey;
use penstock_session::{PeerKey, RequestId, TransferId};

pub(crate) const WITHIN: Duration = Duration::from_secs(100);
pub(crate) const TTL: Duration = Duration::from_secs(2);

pub(crate) fn transfer(number: u8) -> TransferId {
    TransferId::from_bytes([number; 16])
}

/// One engine's transfer manager, its memory, and what it has let go.
pub(crate) struct Node {
    pub(crate) manager: TransferManager,
    pub(crate) layout: LayoutKey,
    pub(crate) memory: Vec<u8>,
    pub(crate) block_tokens: u32,
    pub(crate) freed: Vec<BlocksRef>,
    pub(crate) quarantined: Vec<BlocksRef>,
    /// How its transfers ended, where that is reported.
    pub(crate) reports: Vec<Report>,
    pub(crate) watches: Vec<(WatchId, PeerKey)>,
    /// What it has wanted moved while that is held up.
    pub(crate) moving: BTreeMap<MoveId, (PeerKey, Moving)>,
    pub(crate) stopped: BTreeSet<MoveId>,
    /// What was moving when its session was cut, and whether it is proven that it writes nothing any more.
    pub(crate) cut: BTreeMap<MoveId, (usize, Moving, bool)>,
    next_ticket: u64,
    /// Tickets of blocks that have what goes once: given, and let go.
    once_given: u64,
    once_freed: u64,
}

pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: Timestamp,
    wire: VecDeque<(usize, usize, ControlMessage)>,
    /// Everything that was said: by whom, to whom.
    pub(crate) said: Vec<(usize, usize, ControlMessage)>,
    /// Moves and watches are not answered by themselves.
    pub(crate) holds_moves: bool,
    pub(crate) holds_watches: bool,
    /// Who hears and says nothing.
    pub(crate) mute: BTreeSet<usize>,
    /// Sessions that were cut, and which session of each two engines it is.
    apart: BTreeSet<(usize, usize)>,
    sessions: BTreeMap<(usize, usize), u32>,
}

/// Rows of heads spread over ranks, planes that every rank has, and something that goes once.
pub(crate) fn news(rank: u16, ranks: u16, block_tokens: u32, blocks: u32) -> (LayoutNews, u64) {
    let count = 8 / u32::from(ranks);
    let heads = Rows { first: u32::from(rank) * count, count, of: 8, bytes: 6 };
    let planes = Rows { first: 0, count: 3, of: 3, bytes: 4 };
    let forms = [
        (0, Form::TokenMajor(heads), u64::from(count * 6 * block_tokens)),
        (0, Form::PlaneMajor(planes), u64::from(3 * 4 * block_tokens)),
        (1, Form::TokenMajor(heads), u64::from(count * 6 * block_tokens)),
        (2, Form::TokenMajor(heads), u64::from(count * 6 * block_tokens)),
        (2, Form::Once(40), 40),
    ];
    let (mut end, mut buffers) = (0, Vec::new());
    for (layer, form, stride) in forms {
        buffers.push(Buffer { layer, base: end, stride, form });
        end += stride * u64::from(blocks);
    }
    let news = LayoutNews {
        number: 0,
        generation: 0,
        label: "kv".to_owned(),
        region: 1,
        region_generation: 1,
        block_tokens,
        blocks,
        rank,
        ranks,
        buffers,
    };
    (news, end)
}

/// What a byte of a row of a token of a buffer is, wherever it lies.
fn value(salt: u8, buffer: usize, token: u64, row: u32, byte: u64) -> u8 {
    let mixed =
        (u64::from(salt) * 15_485_863 + buffer as u64 * 1_000_003 + token * 7919 + u64::from(row) * 104_729 + byte)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u8 | 1
}

/// Where a byte of a row of a token is, counted from a block's beginning; nothing if this rank does not have the row.
fn place(form: Form, block_tokens: u32, token: u64, row: u32, byte: u64) -> Option<u64> {
    let among = |rows: Rows| (rows.first..rows.first + rows.count).contains(&row).then(|| u64::from(row - rows.first));
    match form {
        Form::TokenMajor(rows) => Some((token * u64::from(rows.count) + among(rows)?) * u64::from(rows.bytes) + byte),
        Form::PlaneMajor(rows) => Some((among(rows)? * u64::from(block_tokens) + token) * u64::from(rows.bytes) + byte),
        Form::Once(_) => (token == 0 && row == 0).then_some(byte),
    }
}

fn rows_of(form: Form) -> (u32, u64) {
    match form {
        Form::TokenMajor(rows) | Form::PlaneMajor(rows) => (rows.of, rows.bytes.into()),
        Form::Once(bytes) => (1, bytes),
    }
}

impl World {
    /// Engines with a layout each: rank, of how many, tokens of a block. All know each other.
    pub(crate) fn new(layouts: &[(u16, u16, u32)]) -> Self {
        Self::with(Settings::default(), layouts)
    }

    pub(crate) fn with(settings: Settings, layouts: &[(u16, u16, u32)]) -> Self {
        let node = |(at, &(rank, ranks, block_tokens)): (usize, &(u16, u16, u32))| {
            let mut manager = TransferManager::new(settings, [at as u64 + 10, 1, 2]);
            let (news, bytes) = news(rank, ranks, block_tokens, 64);
            let layout = manager.add_layout(news, bytes).unwrap();
            Node {
                manager,
                layout,
                memory: vec![0; bytes as usize],
                block_tokens,
                freed: Vec::new(),
                quarantined: Vec::new(),
                reports: Vec::new(),
                watches: Vec::new(),
                moving: BTreeMap::new(),
                stopped: BTreeSet::new(),
                cut: BTreeMap::new(),
                next_ticket: 1,
                once_given: 0,
                once_freed: 0,
            }
        };
        let mut world = Self {
            nodes: layouts.iter().enumerate().map(node).collect(),
            now: Timestamp::from_ns(1),
            wire: VecDeque::new(),
            said: Vec::new(),
            holds_moves: false,
            holds_watches: false,
            mute: BTreeSet::new(),
            apart: BTreeSet::new(),
            sessions: BTreeMap::new(),
        };
        for one in 0..layouts.len() {
            for other in (0..layouts.len()).filter(|&other| other != one) {
                let name = EngineName::new(&format!("engine-{other}")).unwrap();
                world.nodes[one].manager.handle(Event::Joined { peer: peer(other), name }, world.now);
            }
        }
        world.run();
        world.said.clear();
        world
    }

    pub(crate) fn manager(&mut self, at: usize) -> &mut TransferManager {
        &mut self.nodes[at].manager
    }

    /// Something happens at an engine.
    pub(crate) fn handle(&mut self, at: usize, event: Event) {
        let now = self.now;
        self.nodes[at].manager.handle(event, now);
    }

    /// How an engine knows another one in the session that stands, or stood last. Every second session has the name of the one before it.
    pub(crate) fn peer_of(&self, one: usize, other: usize) -> PeerKey {
        let session = self.sessions.get(&pair(one, other)).copied().unwrap_or(0);
        PeerKey { peer_index: other as u32 + session.div_ceil(2) * PARTIES, ..peer(other) }
    }

    fn is_apart(&self, one: usize, other: usize) -> bool {
        self.apart.contains(&pair(one, other))
    }

    /// Does everything that is wanted; frames wait to be delivered.
    pub(crate) fn act_all(&mut self) {
        for at in 0..self.nodes.len() {
            while let Some(action) = self.nodes[at].manager.poll_action() {
                self.act(at, action);
            }
        }
    }

    fn deliver_one(&mut self) -> bool {
        self.act_all();
        let Some((from, to, said)) = self.wire.pop_front() else { return false };
        if !self.mute.contains(&to) && !self.mute.contains(&from) {
            self.handle(to, Event::Said { peer: self.peer_of(to, from), said });
        }
        true
    }

    /// Delivers and does everything until nothing is wanted.
    pub(crate) fn run(&mut self) {
        while self.deliver_one() {}
    }

    /// Delivers so many frames.
    pub(crate) fn deliver_some(&mut self, frames: usize) {
        (0..frames).all(|_| self.deliver_one());
        self.act_all();
    }

    /// Delivers everything up to such a word, which is said and not heard. Answers whether there was one.
    pub(crate) fn run_until(&mut self, is: impl Fn(&ControlMessage) -> bool) -> bool {
        loop {
            self.act_all();
            if self.wire.iter().any(|(_, _, said)| is(said)) {
                return true;
            }
            if !self.deliver_one() {
                return false;
            }
        }
    }

    /// A session breaks: what was said in it and not heard is lost, and so is the word of what moves.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        if self.is_apart(one, other) {
            return;
        }
        self.act_all();
        self.apart.insert(pair(one, other));
        self.wire.retain(|(from, to, _)| pair(*from, *to) != pair(one, other));
        for (at, there) in [(one, other), (other, one)] {
            let node = &mut self.nodes[at];
            for (id, (peer, moving)) in std::mem::take(&mut node.moving) {
                if peer_index(peer) == there {
                    node.cut.insert(id, (there, moving, false));
                } else {
                    node.moving.insert(id, (peer, moving));
                }
            }
            let peer = self.peer_of(at, there);
            self.handle(at, Event::Left { peer, cause: Cause::PeerLost });
        }
        self.act_all();
    }

    /// The same two engines have a session again.
    pub(crate) fn join(&mut self, one: usize, other: usize) {
        if !self.apart.remove(&pair(one, other)) {
            return;
        }
        *self.sessions.entry(pair(one, other)).or_default() += 1;
        for (at, there) in [(one, other), (other, one)] {
            let name = EngineName::new(&format!("engine-{there}")).unwrap();
            self.handle(at, Event::Joined { peer: self.peer_of(at, there), name });
        }
    }

    /// What was cut off ends at last. Its bytes are written as long as nobody has proven that they are not.
    pub(crate) fn end_cut_moves(&mut self, at: usize) {
        for (id, (there, moving, is_proven)) in std::mem::take(&mut self.nodes[at].cut) {
            if !is_proven {
                self.copy(at, there, &moving);
            }
            self.handle(at, Event::Ended { id, result: Err(Cause::PeerLost), is_open_there: false });
        }
        self.act_all();
    }

    /// One of those that move to somebody ends.
    pub(crate) fn end_some_move(&mut self, at: usize, to: Option<usize>, which: usize, failure: Option<Cause>) {
        let is_it = |peer: &PeerKey| to.is_none_or(|to| peer_index(*peer) == to);
        let moving = self.nodes[at].moving.iter().filter(|(_, (peer, _))| is_it(peer));
        let ids: Vec<MoveId> = moving.map(|(id, _)| *id).collect();
        if let Some(&id) = ids.get(which % ids.len().max(1)) {
            self.end_move(at, id, failure);
            self.act_all();
        }
    }

    /// So much time passes at once.
    pub(crate) fn pass_only(&mut self, time: Duration) {
        self.now = self.now + time;
        for at in 0..self.nodes.len() {
            let now = self.now;
            self.nodes[at].manager.expire(now);
        }
        self.act_all();
    }

    fn act(&mut self, at: usize, action: Action) {
        match action {
            Action::Say { peer, said } => {
                let to = peer_index(peer);
                // Whoever has left hears nothing.
                if !self.is_apart(at, to) && peer == self.peer_of(at, to) {
                    self.said.push((at, to, said.clone()));
                    self.wire.push_back((at, to, said));
                }
            }
            Action::Move { id, peer, moving } => {
                if self.is_apart(at, peer_index(peer)) || peer != self.peer_of(at, peer_index(peer)) {
                    return self.handle(at, Event::Ended { id, result: Err(Cause::PeerLost), is_open_there: false });
                }
                self.nodes[at].moving.insert(id, (peer, moving));
                if !self.holds_moves {
                    self.end_move(at, id, None);
                }
            }
            Action::Stop { id } => drop(self.nodes[at].stopped.insert(id)),
            Action::Watch { id, peer } => {
                self.nodes[at].watches.push((id, peer));
                if !self.holds_watches {
                    self.answer_watches(at);
                }
            }
            Action::Quarantine { ticket, .. } => self.nodes[at].quarantined.push(ticket),
            Action::Free { ticket } if ticket.0 >= ONCE => self.nodes[at].once_freed += 1,
            Action::Free { ticket } => {
                assert!(!self.nodes[at].freed.contains(&ticket), "engine {at} lets {ticket:?} go twice");
                self.nodes[at].freed.push(ticket);
            }
            Action::Report { report } => self.nodes[at].reports.push(*report),
            Action::Tell => {}
        }
    }

    /// Copies what a move moves, and says how many bytes that are.
    fn copy(&mut self, at: usize, there: usize, moving: &Moving) -> u64 {
        let Spans::Cut { spans, .. } = &moving.spans else { panic!("nothing but cuts is moved") };
        for span in spans {
            let (here, remote) = (span.local as usize, span.remote as usize);
            let len = span.len as usize;
            let ((from, from_at), (to, to_at)) = match moving.direction {
                Direction::Write => ((at, here), (there, remote)),
                Direction::Read => ((there, remote), (at, here)),
            };
            let copy = self.nodes[from].memory[from_at..from_at + len].to_vec();
            self.nodes[to].memory[to_at..to_at + len].copy_from_slice(&copy);
        }
        spans.iter().map(|span| span.len).sum()
    }

    /// A move has moved its bytes, or has failed.
    pub(crate) fn end_move(&mut self, at: usize, id: MoveId, failure: Option<Cause>) {
        let (peer, moving) = self.nodes[at].moving.remove(&id).expect("it is under way");
        let there = peer_index(peer);
        let bytes = if failure.is_none() { self.copy(at, there, &moving) } else { 0 };
        if let Some((_, bytes)) = moving.landing.clone().filter(|_| failure.is_none()) {
            self.handle(there, Event::Landing { peer: self.peer_of(there, at), bytes });
        }
        let result = failure.map_or(Ok(bytes), Err);
        self.handle(at, Event::Ended { id, result, is_open_there: false });
    }

    /// The bytes of everything that moves to this engine are there, and it is told so; at the engine that moves them nothing has ended yet.
    pub(crate) fn land_moves(&mut self, at: usize, to: usize) {
        let moving = self.nodes[at].moving.iter().filter(|(_, (peer, _))| peer_index(*peer) == to);
        for (id, (_, moving)) in moving.map(|(id, moving)| (*id, moving.clone())).collect::<Vec<_>>() {
            self.copy(at, to, &moving);
            let held = self.nodes[at].moving.get_mut(&id).expect("it is under way");
            if let Spans::Cut { spans, .. } = &mut held.1.spans {
                spans.clear();
            }
            if let Some((_, bytes)) = held.1.landing.take() {
                self.handle(to, Event::Landing { peer: self.peer_of(to, at), bytes });
            }
        }
    }

    /// All moves that are held up end: those that were stopped without their bytes.
    pub(crate) fn end_moves(&mut self, at: usize) {
        for id in self.nodes[at].moving.keys().copied().collect::<Vec<_>>() {
            let stopped = self.nodes[at].stopped.contains(&id).then_some(Cause::Cancelled);
            self.end_move(at, id, stopped);
        }
    }

    pub(crate) fn answer_watches(&mut self, at: usize) {
        for (id, peer) in std::mem::take(&mut self.nodes[at].watches) {
            let cut = self.nodes.get_mut(peer_index(peer)).into_iter().flat_map(|node| node.cut.values_mut());
            cut.filter(|(there, ..)| *there == at).for_each(|(_, _, is_proven)| *is_proven = true);
            self.handle(at, Event::Quiet { id });
        }
    }

    /// So much time passes, each engine being looked at when it wants to be.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        while let Some(next) = self.nodes.iter().map(|node| node.manager.deadline()).min().filter(|next| *next <= end) {
            self.now = next.max(self.now);
            for at in 0..self.nodes.len() {
                let now = self.now;
                self.nodes[at].manager.expire(now);
            }
            self.run();
        }
        self.now = end;
    }

    /// An engine has bytes: it lends or sends them to so many ranks.
    pub(crate) fn produce(&mut self, at: usize, number: u8, how: impl FnOnce(&mut Produce)) -> EntryKey {
        self.try_produce(at, number, how).unwrap()
    }

    pub(crate) fn try_produce(
        &mut self,
        at: usize,
        number: u8,
        how: impl FnOnce(&mut Produce),
    ) -> Result<EntryKey, CallError> {
        let node = &mut self.nodes[at];
        let layout = node.manager.layout(node.layout).unwrap();
        let mut produce = Produce {
            layout: node.layout,
            rank: (layout.news().rank, layout.news().ranks),
            sinks: Sinks::Sharing(1),
            is_by_layer: false,
            is_lent: true,
            lease_ttl: None,
            once: Some((63, BlocksRef(ONCE + node.once_given))),
            is_resumable: false,
            within: WITHIN,
            urgency: Urgency::Bulk,
        };
        how(&mut produce);
        let request = RequestId::new(&format!("sent-{number}")).unwrap();
        let produced = node.manager.produce(transfer(number), request, produce, self.now);
        // An error does not take it.
        node.once_given += u64::from(produced.is_ok());
        produced
    }

    /// An engine needs them, from these.
    pub(crate) fn consume(
        &mut self,
        at: usize,
        number: u8,
        sources: &[usize],
        how: impl FnOnce(&mut Consume),
    ) -> EntryKey {
        self.try_consume(at, number, sources, how).unwrap()
    }

    pub(crate) fn try_consume(
        &mut self,
        at: usize,
        number: u8,
        sources: &[usize],
        how: impl FnOnce(&mut Consume),
    ) -> Result<EntryKey, CallError> {
        let node = &mut self.nodes[at];
        let layout = node.manager.layout(node.layout).unwrap();
        let mut consume = Consume {
            layout: node.layout,
            rank: (layout.news().rank, layout.news().ranks),
            sources: (0..).zip(sources).map(|(rank, &source)| (rank, peer(source))).collect(),
            begin: 0,
            tail: None,
            is_pull: true,
            is_resumable: false,
            memory: None,
            within: WITHIN,
            urgency: Urgency::Bulk,
            trace: Vec::new(),
        };
        how(&mut consume);
        let request = RequestId::new(&format!("received-{number}")).unwrap();
        node.manager.consume(transfer(number), request, consume, self.now)
    }

    /// Grants these blocks, and for what goes once the last one that no other transfer has.
    pub(crate) fn grant(&mut self, at: usize, key: EntryKey, blocks: &[u32]) -> BlocksRef {
        self.grant_skipping(at, key, blocks, 0)
    }

    pub(crate) fn grant_skipping(&mut self, at: usize, key: EntryKey, blocks: &[u32], skip: u32) -> BlocksRef {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let keep = BlocksRef(node.next_ticket);
        node.next_ticket += 1;
        let mut grant = |once: u32| node.manager.grant(key, (blocks.to_vec(), skip), Some(once), keep, now);
        let is_held = |granted: &Result<u32, CallError>| matches!(granted, Err(CallError::Held(held)) if matches!(**held, BlockHeld::Written { block, .. } | BlockHeld::Untaken { block, .. } if block > 40));
        let granted = (41..64).rev().map(&mut grant).find(|granted| !is_held(granted));
        granted.expect("some block is free").unwrap();
        keep
    }

    /// Computes these tokens into the blocks of all, and gives them as a chunk with those of the blocks in which they lie.
    pub(crate) fn chunk(
        &mut self,
        at: usize,
        key: EntryKey,
        (all, its): (&[u32], &[u32]),
        tokens: std::ops::Range<u64>,
        is_last: bool,
    ) -> BlocksRef {
        self.compute(at, all, None, tokens.clone());
        self.give(at, key, (its, tokens.end - tokens.start), is_last).unwrap()
    }

    /// Gives a chunk whose bytes may not be computed yet.
    pub(crate) fn give(
        &mut self,
        at: usize,
        key: EntryKey,
        chunk: (&[u32], u64),
        is_last: bool,
    ) -> Result<BlocksRef, CallError> {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let keep = BlocksRef(node.next_ticket);
        node.manager.chunk(key, chunk, is_last, keep, now)?;
        node.next_ticket += 1;
        Ok(keep)
    }

    /// Computes these tokens of a layer, or of all.
    pub(crate) fn compute(&mut self, at: usize, blocks: &[u32], layer: Option<u32>, tokens: std::ops::Range<u64>) {
        for token in tokens {
            self.each_byte_at(at, blocks, layer, (token, token), |memory, at, value| memory[at] = value);
        }
    }

    /// Whether these blocks have the bytes of these tokens, and of what goes once.
    pub(crate) fn has(&mut self, at: usize, blocks: &[u32], first: u64, tokens: std::ops::Range<u64>) -> bool {
        let mut is_so = true;
        for token in tokens {
            let from = token - first;
            self.each_byte_at(at, blocks, None, (from, token), |memory, at, value| is_so &= memory[at] == value);
        }
        is_so
    }

    /// Each byte of a token in a layer, or in all, with what it has to be. The token lies so many tokens behind the beginning of the blocks.
    pub(crate) fn each_byte_at(
        &mut self,
        at: usize,
        blocks: &[u32],
        layer: Option<u32>,
        (place_of, token): (u64, u64),
        mut each: impl FnMut(&mut Vec<u8>, usize, u8),
    ) {
        let node = &mut self.nodes[at];
        let buffers = node.manager.layout(node.layout).unwrap().buffers().to_vec();
        let block_tokens = u64::from(node.block_tokens);
        for (number, buffer) in buffers.iter().enumerate() {
            let (rows, bytes) = rows_of(buffer.form);
            let is_once = matches!(buffer.form, Form::Once(_));
            if is_once && token != 0 || layer.is_some_and(|layer| layer != buffer.layer) {
                continue;
            }
            let block = if is_once { 63 } else { blocks[(place_of / block_tokens) as usize] };
            for row in 0..rows {
                for byte in 0..bytes {
                    let within = if is_once { 0 } else { place_of % block_tokens };
                    if let Some(place) = place(buffer.form, node.block_tokens, within, row, byte) {
                        let at = buffer.base + u64::from(block) * buffer.stride + place;
                        each(&mut node.memory, at as usize, value(7, number, token, row, byte));
                    }
                }
            }
        }
    }

    /// Each byte of a block, in whichever buffer; but what goes once.
    pub(crate) fn each_byte_of(&mut self, at: usize, block: u32, mut each: impl FnMut(&mut u8)) {
        let node = &mut self.nodes[at];
        let buffers = node.manager.layout(node.layout).unwrap().buffers().to_vec();
        for buffer in buffers.iter().filter(|buffer| !matches!(buffer.form, Form::Once(_))) {
            let begin = (buffer.base + u64::from(block) * buffer.stride) as usize;
            node.memory[begin..begin + buffer.stride as usize].iter_mut().for_each(&mut each);
        }
    }

    /// Everything that a sink's application is told.
    pub(crate) fn told(&mut self, at: usize, key: EntryKey) -> Vec<InputEvent> {
        let manager = &mut self.nodes[at].manager;
        std::iter::from_fn(|| manager.next_input_event(key)).collect()
    }

    pub(crate) fn failure(&mut self, at: usize, key: EntryKey) -> penstock_flows::Failed {
        let told = self.told(at, key);
        let mut failures = told.into_iter().filter_map(|event| match event {
            InputEvent::Failed(failed) => Some(failed),
            _ => None,
        });
        let failed = failures.next().expect("it has failed");
        assert_eq!(failures.next(), None, "it fails once");
        *failed
    }

    /// How often something of a kind was said by an engine.
    pub(crate) fn count(&self, by: usize, is: impl Fn(&ControlMessage) -> bool) -> usize {
        self.said.iter().filter(|(from, _, said)| *from == by && is(said)).count()
    }

    /// A session is over, on both sides.
    pub(crate) fn part(&mut self, one: usize, other: usize) {
        self.handle(one, Event::Left { peer: peer(other), cause: Cause::PeerLost });
        self.handle(other, Event::Left { peer: peer(one), cause: Cause::PeerLost });
    }

    pub(crate) fn assert_nothing_is_left(&mut self) {
        self.run();
        for (at, node) in self.nodes.iter().enumerate() {
            let metrics = node.manager.metrics();
            let found = (metrics.transfers.live, metrics.moving, metrics.lent, metrics.borrowed, node.watches.len());
            assert_eq!(found, (0, 0, 0, 0, 0), "engine {at}: {metrics:?}");
            let given: BTreeSet<BlocksRef> = (1..node.next_ticket).map(BlocksRef).collect();
            assert_eq!(node.freed.iter().copied().collect::<BTreeSet<_>>(), given, "engine {at} lets all go");
            assert_eq!(node.once_given, node.once_freed, "engine {at} lets what goes once go, once");
        }
    }
}

/// Tickets from this one on are of blocks that have what goes once at a source.
const ONCE: u64 = 1 << 40;

/// Places of engines in one session; those of later ones are behind them.
const PARTIES: u32 = 100;

/// Which engine a peer is, in whichever session.
fn peer_index(peer: PeerKey) -> usize {
    (peer.peer_index % PARTIES) as usize
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

/// An engine, as others know it.
pub(crate) fn peer(at: usize) -> PeerKey {
    PeerKey { peer_index: at as u32, epoch: Epoch(at as u64 + 100) }
}
