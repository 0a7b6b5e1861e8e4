//! One transfer, as whoever asks for it sees it.

use std::time::Duration;

use penstock::memory::BlockId;
use penstock::transport::AccessPath;
use penstock::{Blocks, LocalQuiesce, Peer, Plan, Quarantined, RemoteQuiesce, Submit, Timestamp, Transfer};

use super::seats::{Lent, Seats};
use super::spec::{DeviceCopy, Place};
use crate::env::SimEnv;
use crate::oracle::{Invariant, Violated, blame, byte};
use crate::run::KNOWN_WITHIN;

/// Other things that are moved have other numbers.
const COPIES: usize = 1 << 14;

/// How long until a staged transfer whose plan was refused is tried again, and how often.
const TRY_AGAIN: Duration = Duration::from_millis(5);
const REFUSALS_MAX: u32 = 5;

/// Where it stands.
enum Stage {
    /// There is no session yet, or no blocks.
    Waits,
    Runs(Running),
    /// It was given up or has failed: its memory is somebody else's as soon as that is allowed.
    Settles(Running, [Held; 2]),
    /// Nobody here knows more of it; with whether it ended well, if that was heard.
    Gone(Option<bool>),
}

struct Running {
    transfer: Transfer<SimEnv>,
    /// Of whoever asks, and of the other.
    blocks: [Blocks; 2],
    /// Which use of each memory they are of.
    numbers: [u64; 2],
    /// Where it goes to is somebody else's by now.
    is_void: bool,
    /// Its bytes go through slots, and what it has of the other engine's blocks is for that engine to take back.
    is_staged: bool,
}

impl Running {
    /// What it has of the other engine's blocks.
    fn lent(&self, with: (usize, Place)) -> Lent {
        Lent { end: with, of: self.numbers[1], blocks: self.blocks[1].clone() }
    }
}

/// What is known of one side of what was given up.
enum Held {
    Until(Quarantined),
    Never,
    Given,
}

/// A transfer of the script.
pub(super) struct Copier {
    pub(super) number: usize,
    pub(super) spec: DeviceCopy,
    begun: Timestamp,
    /// It is tried again then.
    not_before: Timestamp,
    /// How often its plan was refused.
    refusals: u32,
    stage: Stage,
    /// It has begun, and its bytes go through slots.
    pub(super) is_staged: bool,
}

impl Copier {
    pub(super) fn new(number: usize, spec: DeviceCopy, now: Timestamp) -> Self {
        Self { number, spec, begun: now, not_before: now, refusals: 0, stage: Stage::Waits, is_staged: false }
    }

    fn broken(&self, invariant: Invariant, words: impl AsRef<str>) -> Violated {
        Violated::new(invariant, format!("copy {}: {}", self.number, words.as_ref()))
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone(_))
    }

    /// Whether it has ended, and only its memory is waited for.
    pub(super) fn only_settles(&self) -> bool {
        matches!(&self.stage, Stage::Settles(running, _) if running.transfer.poll().is_some())
    }

    pub(super) fn outcome(&self) -> Option<bool> {
        match self.stage {
            Stage::Gone(outcome) => outcome,
            _ => None,
        }
    }

    /// The bytes of its block of this place.
    fn content(&self, block: usize, len: u64) -> Vec<u8> {
        let at = |at: u64| byte(COPIES + self.number, 1, 0, block as u64, (at / 8) as u32, (at % 8) as u32);
        (0..len).map(at).collect()
    }

    /// It looks.
    pub(super) fn turn(&mut self, seats: &mut Seats<'_>, now: Timestamp) -> Result<(), Violated> {
        match &mut self.stage {
            Stage::Waits if now >= self.begun + self.spec.within => self.stage = Stage::Gone(None),
            Stage::Waits if now < self.not_before => {}
            Stage::Waits => {
                if let Some(peer) = seats.meet(self.spec.at.0, self.spec.with.0) {
                    self.begin(&peer, seats, now)?;
                }
            }
            Stage::Runs(running) => match running.transfer.poll() {
                None => self.is_in_time(now)?,
                Some(Ok(_)) => self.ends_well(seats)?,
                Some(Err(_)) => self.give_up(Duration::ZERO, seats)?,
            },
            Stage::Settles(running, held) => {
                let ids = running.blocks.each_ref().map(|blocks| blocks.ids().collect::<Vec<_>>());
                for (side, held) in held.iter_mut().enumerate() {
                    // The session has ended without a goodbye.
                    if running.is_staged && matches!(held, Held::Until(until) if side == 1 && until.is_unknown()) {
                        *held = Held::Never;
                        seats.take_back(running.lent(self.spec.with))?;
                    }
                    if matches!(held, Held::Until(until) if until.is_released()) {
                        *held = Held::Given;
                        let end = [self.spec.at, self.spec.with][side];
                        seats.give_away(end, running.numbers[side], &ids[side])?;
                    }
                }
                let is_settled = held.iter().all(|held| !matches!(held, Held::Until(_)));
                match running.transfer.poll() {
                    None => self.is_in_time(now)?,
                    Some(_) if is_settled => self.stage = Stage::Gone(Some(false)),
                    Some(_) => {}
                }
            }
            Stage::Gone(_) => {}
        }
        Ok(())
    }

    fn is_in_time(&self, now: Timestamp) -> Result<(), Violated> {
        if now <= self.begun + self.spec.within + KNOWN_WITHIN {
            return Ok(());
        }
        Err(self.broken(Invariant::AnswersComeInTime, "its time is over, and it has not ended"))
    }

    fn begin(&mut self, peer: &Peer<SimEnv>, seats: &mut Seats<'_>, now: Timestamp) -> Result<(), Violated> {
        let DeviceCopy { at, with, is_read, blocks, within } = self.spec;
        let Ok(remote) = peer.region(with.1.label()) else { return Ok(()) };
        let (Some(local), Some(there)) = (seats.memory(at), seats.memory(with)) else { return Ok(()) };
        // An older one of this name, of which the session has not heard.
        if remote.base() != there.region().base() {
            return Ok(());
        }
        let is_staged = seats.copying.is_staged() && at.0 != with.0;
        // Of memory that its device does not share with slots, since it is lost, peers are told that nothing reaches it.
        if is_staged && with.1 != Place::Host && remote.access_path() != AccessPath::STAGED {
            self.is_refused(now);
            return Ok(());
        }
        let (local, block_bytes) = (local.region().clone(), seats.copying.block_bytes);
        let Some(near) = seats.take(at, blocks)? else { return Ok(()) };
        let Some(far) = seats.take(with, blocks)? else { return Ok(()) };
        // Neighbours of one side are none of the other: each block is a copy of its own.
        let far_first: Vec<u32> = far.indices().iter().rev().copied().collect();
        let pairs: Vec<(u32, u32)> = near.indices().iter().copied().zip(far_first).collect();
        let plan = if is_read { Plan::read(&local, &remote) } else { Plan::write(&local, &remote) };
        let plan = plan.blocks(&pairs).keep(&near);
        // What another process has nobody keeps for it.
        let plan = if is_staged { plan } else { plan.keep(&far) };
        let Ok(plan) = plan.build() else {
            if is_staged {
                self.is_refused(now);
            }
            return Ok(());
        };
        let [source, _] = self.spec.ends();
        for (place, &(local, remote)) in pairs.iter().enumerate() {
            let index = if is_read { remote } else { local };
            let bytes = self.content(place, block_bytes);
            seats.memory(source).expect("its blocks were taken just now").write(index, &bytes);
        }
        let Ok(transfer) = peer.submit(&plan, Submit::new().within(within)) else { return Ok(()) };
        let numbers = [seats.number(at), seats.number(with)];
        (self.begun, self.is_staged) = (now, is_staged);
        self.stage = Stage::Runs(Running { transfer, blocks: [near, far], numbers, is_void: false, is_staged });
        Ok(())
    }

    /// It is tried again later, a few times: a device that is lost refuses every plan, and blocks may be large.
    fn is_refused(&mut self, now: Timestamp) {
        (self.refusals, self.not_before) = (self.refusals + 1, now + TRY_AGAIN);
        if self.refusals == REFUSALS_MAX {
            self.stage = Stage::Gone(None);
        }
    }

    /// Its bytes are there, at this moment.
    fn ends_well(&mut self, seats: &Seats<'_>) -> Result<(), Violated> {
        self.check_bytes(seats)?;
        self.stage = Stage::Gone(Some(true));
        Ok(())
    }

    fn check_bytes(&self, seats: &Seats<'_>) -> Result<(), Violated> {
        let (Stage::Runs(running) | Stage::Settles(running, _)) = &self.stage else { return Ok(()) };
        let ([_, to], side) = (self.spec.ends(), usize::from(!self.spec.is_read));
        if running.is_void {
            return Ok(());
        }
        let Some(memory) = seats.memory_of(to, running.numbers[side]) else { return Ok(()) };
        for (place, &index) in running.blocks[side].indices().iter().enumerate() {
            // The other side's blocks are named from the last to the first.
            let block = if side == 1 { running.blocks[1].len() - 1 - place } else { place };
            let (right, found) = (self.content(block, seats.copying.block_bytes), memory.read(index));
            if let Some(wrong) = right.iter().zip(&found).position(|(right, found)| right != found) {
                let words = format!("it is done, and byte {wrong} of block {index} of `{}` is not there", to.1.label());
                return Err(self.broken(blame(&found[wrong..=wrong]), words));
            }
        }
        Ok(())
    }

    /// Ends it, and asks whether anything of it can still land.
    pub(super) fn give_up(&mut self, within: Duration, seats: &mut Seats<'_>) -> Result<(), Violated> {
        let Stage::Runs(running) = &self.stage else { return Ok(()) };
        let outcome = running.transfer.cancel(within);
        if matches!(running.transfer.poll(), Some(Ok(_))) {
            return self.ends_well(seats);
        }
        let Stage::Runs(mut running) = std::mem::replace(&mut self.stage, Stage::Waits) else { return Ok(()) };
        let local = match outcome.local {
            LocalQuiesce::Quarantined(held) => Held::Until(held),
            LocalQuiesce::Quiesced => Held::Given,
            LocalQuiesce::StillRegistered(_) => Held::Never,
        };
        let remote = match outcome.remote {
            RemoteQuiesce::Quiesced => Held::Given,
            RemoteQuiesce::Quarantined(held) if held.is_unknown() => Held::Never,
            RemoteQuiesce::Quarantined(held) => Held::Until(held),
            RemoteQuiesce::Unknown => Held::Never,
        };
        running.is_void = true;
        let held = [local, remote];
        for (side, end) in [self.spec.at, self.spec.with].into_iter().enumerate() {
            if matches!(held[side], Held::Given) {
                let ids: Vec<BlockId> = running.blocks[side].ids().collect();
                seats.give_away(end, running.numbers[side], &ids)?;
            }
        }
        if running.is_staged && matches!(held[1], Held::Never) {
            seats.take_back(running.lent(self.spec.with))?;
        }
        self.stage = Stage::Settles(running, held);
        Ok(())
    }

    /// Its handle is dropped. What it has of blocks comes back by itself, or is taken back by another process.
    pub(super) fn let_go(&mut self, seats: &mut Seats<'_>) {
        if let Stage::Runs(running) | Stage::Settles(running, [_, Held::Until(_)]) = &self.stage
            && running.is_staged
            && !matches!(running.transfer.poll(), Some(Ok(_)))
        {
            seats.leave_to_peer(running.lent(self.spec.with));
        }
        self.stage = Stage::Gone(None);
    }

    /// The blocks of one side, and which use of its memory they are of.
    pub(super) fn side(&self, is_local: bool) -> Option<(u64, Vec<BlockId>)> {
        let Stage::Runs(running) = &self.stage else { return None };
        let side = usize::from(!is_local);
        Some((running.numbers[side], running.blocks[side].ids().collect()))
    }

    /// A memory, or blocks of it, is about to be somebody else's: what is done is looked at before.
    pub(super) fn loses(&mut self, end: (usize, Place), number: u64, seats: &Seats<'_>) -> Result<(), Violated> {
        let Stage::Runs(running) = &mut self.stage else { return Ok(()) };
        let sides = [self.spec.at, self.spec.with].into_iter().zip(running.numbers);
        if !sides.into_iter().any(|side| side == (end, number)) {
            return Ok(());
        }
        if matches!(running.transfer.poll(), Some(Ok(_))) {
            return self.ends_well(seats);
        }
        let [_, to] = self.spec.ends();
        running.is_void |= to == end;
        Ok(())
    }

    /// Nothing hindered it: it has ended well.
    pub(super) fn check_well(&self) -> Result<(), Violated> {
        match self.stage {
            Stage::Gone(Some(false)) => {
                Err(self.broken(Invariant::AnswersComeInTime, "nothing hinders it, and it failed"))
            }
            _ => Ok(()),
        }
    }
}
