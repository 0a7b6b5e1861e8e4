//! The half of a case that needs the bytes: it grants blocks, hears what has come, and looks at every byte of it.

use std::collections::BTreeSet;
use std::time::Duration;

use penstock::flows::{CallError, FlowError, Input, InputEvent, MemoryPolicy, NoMemory, Receive, Status};
use penstock::memory::BlockId;
use penstock::{Blocks, Peer, Timestamp};

use super::sending::once_bytes;
use super::{Actor, Doing, End, HeardBy, KEPT_FOR, end_error};
use crate::calls;
use crate::deed::{Case, Script};
use crate::env::SimEnv;
use crate::oracle::{EMPTY, GRANTED, Invariant, Violated, blame, byte};
use crate::random::Random;
use crate::stage::{LAYERS, ROW_BYTES, Seat, Stage};

pub(super) struct Receiving {
    pub(super) input: Input<SimEnv>,
    pub(super) epochs: Vec<u64>,
    pub(super) layers: Vec<Vec<u8>>,
    pub(super) told: BTreeSet<(u32, Option<u32>)>,
    /// Tokens of legs of which it was told.
    pub(super) tokens_told: u64,
    /// It was given up: what it is told of that it does not know yet was let go.
    pub(super) is_aborted: bool,
    pub(super) needs_memory: bool,
    /// Its pool had too few blocks when it was to grant some, and it was to fail then.
    pub(super) lacked_memory: bool,
    pub(super) has_granted: bool,
    /// What has landed is copied out then.
    pub(super) take_at: Option<Timestamp>,
    /// Ranks of the source whose session broke, and that are waited for.
    lost: BTreeSet<u16>,
    /// Tokens that were here when it was last looked.
    received: u64,
    /// What its engine was given of its memory since it was last looked.
    pub(super) ids: Vec<BlockId>,
    /// What it granted last, for a while, and as long as nothing of it was told.
    pub(super) kept: Option<(Blocks, Timestamp)>,
}

impl Actor {
    pub(super) fn begin_receiving(
        &mut self,
        script: &Script,
        rank: u16,
        stage: &mut Stage<'_>,
    ) -> Result<Option<Doing>, Violated> {
        let (sources, sinks) = script.sides(self.case);
        let peers = sources.iter().map(|&source| stage.meet(self.seat, source)).collect::<Result<Vec<_>, _>>()?;
        let Some(peers) = peers.into_iter().collect::<Option<Vec<Peer<SimEnv>>>>() else { return Ok(None) };
        let seat = &stage.seats[self.seat];
        let mut how = Receive::into(seat.layout().expect("it lives"))
            .rank(rank, sinks.len() as u16)
            .begin(self.spec.begin)
            .memory(self.spec.memory)
            .within(self.spec.within);
        if self.spec.is_pull != self.spec.is_misfit {
            how = how.pull();
        }
        if self.spec.is_resumable {
            how = how.resumable();
        }
        for (rank, peer) in (0..).zip(&peers) {
            how = how.from(rank, peer);
        }
        let node = seat.node().expect("it lives");
        let input = match node.consume(self.transfer, &self.request, how) {
            Ok(input) => input,
            Err(_) if self.spec.is_misfit => return Ok(None),
            Err(error) => {
                let is_over = |peer: &&Peer<SimEnv>| peer.ended().is_some();
                let peer = peers.iter().find(is_over).unwrap_or(&peers[0]);
                calls::check_session(&error, peer, &format!("case {} {:?}", self.case, self.half))?;
                return Ok(None);
            }
        };
        let room = self.spec.tokens - self.spec.begin;
        let layers = (0..LAYERS + usize::from(seat.player().has_once)).map(|layer| {
            let bytes = input.assembled_bytes(layer, room).expect("the layout has this buffer");
            vec![EMPTY; bytes as usize]
        });
        let receiving = Receiving {
            layers: layers.collect(),
            input,
            epochs: peers.iter().map(|peer| peer.epoch().0).collect(),
            told: BTreeSet::new(),
            tokens_told: 0,
            is_aborted: false,
            needs_memory: true,
            lacked_memory: false,
            has_granted: false,
            take_at: None,
            lost: BTreeSet::new(),
            received: 0,
            ids: Vec::new(),
            kept: None,
        };
        let heard_by = |(seat, peer)| HeardBy { seat, peer, span: Duration::ZERO, is_resumed: false };
        self.heard_by = sources.into_iter().zip(peers).map(heard_by).collect();
        // Who reads claims its rank when it begins, who is sent something with its first leg.
        self.has_spoken = self.spec.is_pull;
        Ok(Some(Doing::Receiving(receiving)))
    }
}

impl Receiving {
    pub(super) fn turn(
        &mut self,
        (case, spec): (usize, &Case),
        end: &mut Option<End>,
        stage: &mut Stage<'_>,
        seat: usize,
        random: &mut Random,
    ) -> Result<(), Violated> {
        let now = stage.world.now();
        while let Some(event) = self.input.try_next() {
            if let Some(end) = end {
                return Err(end_error(format!("case {case} ended as {end:?} at its sink, and then came {event:?}")));
            }
            self.hear(case, spec, event, end, now, random)?;
        }
        if self.kept.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.kept = None;
        }
        if self.take_at.is_some_and(|at| now >= at) {
            self.take_at = None;
            self.assemble(case, spec, stage, seat, end.as_ref())?;
        }
        if self.needs_memory && end.is_none() {
            self.grant(spec, stage, seat, random)?;
        }
        self.check_received(case)
    }

    /// What has come stays, whatever becomes of the session in which it came.
    fn check_received(&mut self, case: usize) -> Result<(), Violated> {
        if self.input.status() != Status::Transferring {
            return Ok(());
        }
        let had = std::mem::replace(&mut self.received, self.input.received());
        if self.received < had {
            let words = format!("case {case} had {had} tokens at its sink, and has {}", self.received);
            return Err(Violated::new(Invariant::ToldOnceAfterBytes, words));
        }
        Ok(())
    }

    /// Gives it up. What has landed and was not taken is let go as well.
    /// Answers whether nothing can land any more.
    pub(super) fn abort(&mut self) -> bool {
        self.let_go();
        self.input.abort(Duration::ZERO)
    }

    /// Its memory is somebody else's: what has landed there and was not taken is lost.
    pub(super) fn let_go(&mut self) {
        (self.tokens_told, self.take_at, self.is_aborted, self.kept) = (0, None, true, None);
    }

    /// Goes on with sources whose session broke, as soon as they are met again. One that was started anew is another one, with which
    /// nothing goes on.
    pub(super) fn go_on(
        &mut self,
        case: usize,
        seat: usize,
        sources: &mut [HeardBy],
        stage: &mut Stage<'_>,
    ) -> Result<(), Violated> {
        for rank in self.lost.clone() {
            let source = &mut sources[usize::from(rank)];
            let Some(peer) = stage.meet(seat, source.seat)? else { continue };
            let is_same = peer.epoch().0 == self.epochs[usize::from(rank)];
            let words = match self.input.resume(&peer) {
                Ok(()) if is_same => {
                    source.resumed(peer);
                    self.lost.remove(&rank);
                    continue;
                }
                Ok(()) => {
                    let words = format!("case {case} goes on with another life of rank {rank}: {:?}", peer.epoch());
                    return Err(Violated::new(Invariant::BytesAreTheirOwn, words));
                }
                Err(FlowError::Call(CallError::Restarted(_))) if !is_same => {
                    self.lost.clear();
                    self.abort();
                    return Ok(());
                }
                // It is over again already, or the transfer is.
                Err(FlowError::Call(CallError::NoSession)) => continue,
                Err(_) if self.input.status() != Status::Transferring => continue,
                Err(error) => format!("case {case} does not go on with rank {rank}: {error}"),
            };
            return Err(end_error(words));
        }
        Ok(())
    }

    fn hear(
        &mut self,
        case: usize,
        spec: &Case,
        event: InputEvent,
        end: &mut Option<End>,
        now: Timestamp,
        random: &mut Random,
    ) -> Result<(), Violated> {
        let mut once = |leg, layer| match self.told.insert((leg, layer)) {
            true => Ok(()),
            false => {
                let words = format!("case {case} was told twice of leg {leg}, layer {layer:?}");
                Err(Violated::new(Invariant::ToldOnceAfterBytes, words))
            }
        };
        if matches!(event, InputEvent::Leg { .. } | InputEvent::Done { .. } | InputEvent::Failed(_)) {
            self.kept = None;
        }
        let mut soon = || Some(now + Duration::from_micros(random.below(3000) as u64));
        match event {
            InputEvent::Layer { leg, layer } => once(leg, Some(layer))?,
            InputEvent::Leg { leg, tokens, .. } => {
                once(leg, None)?;
                self.tokens_told += if self.is_aborted { 0 } else { tokens };
                self.take_at = self.take_at.or_else(&mut soon);
            }
            InputEvent::NeedsMemory { .. } => self.needs_memory = true,
            InputEvent::Lost { source } => drop(self.lost.insert(source)),
            InputEvent::Done { tokens } => {
                if tokens != spec.tokens - spec.begin {
                    let words = format!("case {case} is done with {tokens} tokens of {}", spec.tokens - spec.begin);
                    return Err(Violated::new(Invariant::ToldOnceAfterBytes, words));
                }
                // It may have been given up a moment before this was told.
                self.tokens_told = if self.is_aborted { 0 } else { tokens };
                self.take_at = self.take_at.or_else(&mut soon);
                *end = Some(End { at: now, failure: None });
            }
            InputEvent::Failed(failed) => {
                self.take_at = self.take_at.or_else(&mut soon).filter(|_| !spec.gives_at_once);
                self.is_aborted |= spec.gives_at_once;
                *end = Some(End { at: now, failure: Some(format!("{:?}: {}", failed.cause, failed.words)) });
            }
        }
        Ok(())
    }

    fn grant(&mut self, spec: &Case, stage: &mut Stage<'_>, seat: usize, random: &mut Random) -> Result<(), Violated> {
        let now = stage.world.now();
        let Some(tokens) = self.input.wanted() else {
            self.needs_memory = false;
            return Ok(());
        };
        let seat = &mut stage.seats[seat];
        let size = u64::from(seat.player().block_tokens);
        // What is here already of the first block is left out.
        let skip = if self.told.is_empty() && random.once_in(2) { spec.begin % size } else { 0 };
        let needed = usize::try_from((tokens + skip).div_ceil(size)).unwrap_or(usize::MAX).min(spec.leg_blocks);
        let blocks = match seat.take(needed, GRANTED, now)? {
            Some(blocks) => blocks,
            None => match self.input.no_memory(seat.free(now) as u32) {
                Ok(NoMemory::Take { blocks }) => match seat.take((blocks as usize).min(needed), GRANTED, now)? {
                    Some(blocks) => blocks,
                    None => return Ok(()),
                },
                Ok(NoMemory::Failed) => {
                    self.lacked_memory = spec.memory == MemoryPolicy::Fail;
                    return Ok(());
                }
                _ => return Ok(()),
            },
        };
        // What goes once comes with the first leg.
        let once = if seat.player().has_once && !self.has_granted { seat.take(1, GRANTED, now)? } else { None };
        // It may have ended since it was looked at.
        if self.input.grant_with(&blocks, skip as u32, once.as_ref()).is_ok() {
            (self.needs_memory, self.has_granted) = (false, true);
            self.ids.extend(blocks.ids().chain(once.iter().flat_map(Blocks::ids)));
            self.kept = random.once_in(3).then(|| (blocks, now + KEPT_FOR));
        }
        Ok(())
    }

    /// Blocks that another transfer of this engine has are refused: for a leg, and for what goes once.
    pub(super) fn grant_again(
        &self,
        case: usize,
        taken: &Blocks,
        seat: &mut Seat,
        now: Timestamp,
    ) -> Result<(), Violated> {
        let look = |granted: Result<u32, FlowError>, what: &str| match granted {
            Err(FlowError::Call(CallError::Held(_))) => Ok(()),
            // It may have ended since it was looked at.
            Err(_) if self.input.status().is_end() => Ok(()),
            Err(error) => {
                Err(end_error(format!("case {case}: blocks that another transfer has{what} are refused: {error}")))
            }
            Ok(_) => {
                let words = format!("case {case}: blocks that another transfer has are granted{what}");
                Err(Violated::new(Invariant::BytesAreTheirOwn, words))
            }
        };
        look(self.input.grant(taken), "")?;
        if !seat.player().has_once || self.has_granted {
            return Ok(());
        }
        let Some(own) = seat.take(1, GRANTED, now)? else { return Ok(()) };
        let one = taken.slice(0..1).expect("it has blocks");
        look(self.input.grant_with(&own, 0, Some(&one)), " for what goes once")
    }

    /// Whether it would grant something now.
    pub(super) fn may_grant(&self) -> bool {
        self.needs_memory && self.input.wanted().is_some()
    }

    /// Copies out what has landed, and looks at every byte of it.
    fn assemble(
        &mut self,
        case: usize,
        spec: &Case,
        stage: &Stage<'_>,
        seat: usize,
        end: Option<&End>,
    ) -> Result<(), Violated> {
        let room = spec.tokens - spec.begin;
        let mut buffers: Vec<&mut [u8]> = self.layers.iter_mut().map(Vec::as_mut_slice).collect();
        if let Err(error) = self.input.assemble(&mut buffers, room) {
            return Err(end_error(format!("case {case}: what has landed is not assembled: {error}")));
        }
        let player = *stage.seats[seat].player();
        let (rows, sources) = (player.rows(), self.epochs.len() as u32);
        let mut there = 0;
        for token in 0..room {
            let mut found_rows = 0;
            for (layer, row) in (0..LAYERS).flat_map(|layer| (0..rows.count).map(move |row| (layer, row))) {
                let place = match player.has_planes && layer == 1 {
                    true => u64::from(row) * room + token,
                    false => token * u64::from(rows.count) + u64::from(row),
                };
                let at = place as usize * ROW_BYTES as usize;
                let found = &self.layers[layer][at..at + ROW_BYTES as usize];
                let row = rows.first + row;
                let epoch = self.epochs[(row * sources / rows.of) as usize];
                let is_right = |(place, found): (usize, &u8)| {
                    *found == byte(case, epoch, layer, spec.begin + token, row, place as u32)
                };
                if found.iter().enumerate().all(is_right) {
                    found_rows += 1;
                } else if found.iter().any(|&byte| byte != EMPTY) {
                    let token = spec.begin + token;
                    let words = format!("case {case} has {found:02x?} for row {row} of token {token} in layer {layer}");
                    return Err(Violated::new(blame(found), words));
                }
            }
            there += u64::from(found_rows == rows.count as usize * LAYERS);
        }
        let is_whole = !self.is_aborted && end.is_some_and(|end| end.failure.is_none());
        if let Some(found) = self.layers.get(LAYERS) {
            let is_empty = found.iter().all(|&byte| byte == EMPTY) && !is_whole;
            if !is_empty && *found != once_bytes(case, self.epochs[0]) {
                let words = format!("case {case} has {found:02x?} of what goes once");
                return Err(Violated::new(blame(found), words));
            }
        }
        if there < self.tokens_told || (is_whole && there < room) {
            let words = format!("case {case} was told of {} tokens, and {there} of {room} are there", self.tokens_told);
            return Err(Violated::new(Invariant::ToldOnceAfterBytes, words));
        }
        Ok(())
    }
}
