//! Storms: transfers that are cancelled, revoked and timed out at random moments, and canaries that
//! tell whether anything landed after `Quiesced`.
//!
//! Each step submits a transfer of several hundred KiB into an arena, stops it, and writes a canary
//! over the destination the moment the answer is there. The canary is looked at when the transfer
//! has ended and again some steps later, before the arena's next use.
//!
//! - [`case`]: what one step is, drawn from a seed
//! - [`board`]: the arenas and their canaries
//! - [`taken`]: stopping, and owning the memory from the answer on
//! - [`tally`]: how transfers ended, and whether they may have
//! - [`apart`]: the same with the initiator in another process

pub mod apart;
pub mod board;
pub mod case;
pub mod taken;
pub mod tally;

use std::sync::Arc;
use std::time::Instant;

use penstock::config::{Progress, TcpIo, TransportName};
use penstock::{Counter, Direction, Engine, LocalRegion, Peer, Plan, RemoteCounter, RemoteRegion, Submit};
use penstock::{SystemEnv, Transfer};

use self::board::{ARENAS, Arena, Board, Way};
use self::case::{ARENA_BYTES, Case, Stop};
use self::taken::{Revoker, Taken, cancel_and_lay, cancel_without_a_view, take_back, wait_for_cue};
use self::tally::{End, Sees, Tally};
use crate::cores::{Cores, Held};
use crate::folder::Folder;
use crate::pair::{PATIENCE, config, connect, submit, turn_until};
use crate::seed::{Random, Seed};

/// Workers of a threaded engine: a transfer is split between them.
const WORKERS: usize = 2;
/// How seldom another transfer, which nobody stops, runs beside the one that is stopped.
const STEPS_PER_BYSTANDER: u64 = 8;
/// How far a bystander's arena is from that of the stopped transfer.
const BYSTANDER_ARENA: u64 = ARENAS / 2;

/// One storm.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// A word for folders and messages, unique in its process.
    pub label: &'static str,
    /// What moves the bytes.
    pub transport: TransportName,
    /// What moves bytes between sockets and memory, where there are sockets.
    pub io: TcpIo,
    /// Whose memory it is.
    pub way: Way,
    /// The mode of the engine that submits.
    pub initiator: Progress,
    /// The mode of the other one. If it has threads, another thread revokes.
    pub owner: Progress,
    /// Where they run.
    pub cores: Cores,
    /// How many transfers are to be stopped.
    pub stops: u64,
}

/// Lets a storm rage between two engines of this process.
///
/// # Panics
/// If anything lands after `Quiesced`, a living engine is quarantined, a transfer ends as it may not,
/// or anything is left over.
pub fn rage(setting: Setting) -> Tally {
    let folder = Folder::new(setting.label);
    let mut seed = Seed::of_this_run();
    let mut storm = Storm::new(setting, &folder);
    // An inline engine copies in this thread.
    let _held = Held::on(if storm.is_inline { setting.cores.copying } else { setting.cores.stopping });
    for number in 0..setting.stops {
        storm.step(number, &mut Random::new(seed.of_step(number)));
    }
    storm.calm_down()
}

/// One engine and its memory.
struct Side {
    board: Board,
    data: LocalRegion<SystemEnv>,
    engine: Engine,
}

impl Side {
    fn new(setting: Setting, folder: &Folder, name: &str, progress: Progress) -> Self {
        let config = config(folder.path(), name, setting.transport, progress).tcp_io(setting.io);
        let config = if progress.is_threaded() { config.workers(WORKERS) } else { config };
        let engine = Engine::start(setting.way.taken_by(config)).expect("an engine starts in a fresh folder");
        Self { board: Board::new(&engine, setting.way), data: board::data(&engine, setting.way), engine }
    }
}

struct Storm {
    revoker: Option<Revoker>,
    initiator: Side,
    owner: Side,
    peer: Peer<SystemEnv>,
    far_board: RemoteRegion<SystemEnv>,
    far_data: RemoteRegion<SystemEnv>,
    arrivals: Counter<SystemEnv>,
    far_arrivals: RemoteCounter,
    is_inline: bool,
    /// Only its owner knows when nothing lands in it any more: between hosts nobody else can see that.
    is_apart: bool,
    way: Way,
    tally: Tally,
}

impl Storm {
    fn new(setting: Setting, folder: &Folder) -> Self {
        let held = Held::on(setting.cores.copying);
        let owner = Side::new(setting, folder, "owner", setting.owner);
        let initiator = Side::new(setting, folder, "initiator", setting.initiator);
        drop(held);
        let arrivals = owner.board.region().counter("arrivals").expect("a fresh engine has room for a counter");
        let peer = connect(&initiator.engine, &owner.engine);
        assert_eq!(peer.transport(), setting.transport.as_str());
        assert!(turn_until(&[&owner.engine, &initiator.engine], || peer.counter("arrivals").is_some()));
        let far_board = peer.region("board").expect("it was there before the peers met");
        if setting.transport == TransportName::Shm {
            assert_eq!(far_board.access_path(), setting.way.name(), "{}", far_board.access_reason());
        }
        Self {
            revoker: setting.owner.is_threaded().then(|| Revoker::start(setting.cores)),
            far_board,
            far_data: peer.region("data").expect("it was there before the peers met"),
            far_arrivals: peer.counter("arrivals").expect("it was there a moment ago"),
            is_inline: !setting.initiator.is_threaded(),
            is_apart: setting.transport == TransportName::Tcp,
            way: setting.way,
            tally: Tally::default(),
            owner,
            initiator,
            peer,
            arrivals,
        }
    }

    fn step(&mut self, number: u64, random: &mut Random) {
        let case = Arc::new(self.draw(random));
        let bystander = random.one_in(STEPS_PER_BYSTANDER).then(|| self.begin_bystander(number, random));
        let arena = self.board(case.direction).take(number % ARENAS);
        let transfer = self.submit(&case, arena);
        let taken = self.stop(&case, arena, &transfer);
        self.tally.count(&case, &taken);
        for _ in 0..random.below(4) {
            // An inline engine must not find anything left to do, either.
            self.initiator.engine.progress().expect("this thread made the engine");
        }
        let end = End::of(&transfer);
        let laid = match case.stop {
            Stop::Revoke => case.extents.as_slice(),
            _ => &[(0, ARENA_BYTES)],
        };
        self.board(case.direction).give_back(arena, laid);
        self.tally.count_end(&case, &end, taken.landed, self.sees());
        if let Some(bystander) = bystander {
            self.end_bystander(bystander);
        }
    }

    /// Between hosts only reads are stopped: who writes may not have heard yet of what was taken back some steps ago,
    /// and its next plan is refused for that.
    fn draw(&self, random: &mut Random) -> Case {
        loop {
            let case = Case::draw(random, false);
            if !self.is_apart || case.direction == Direction::Read {
                return case;
            }
        }
    }

    /// How exactly the initiator knows what has landed.
    fn sees(&self) -> Sees {
        match self.way {
            _ if self.is_apart => Sees::Told,
            Way::Bounce | Way::ProcessVm => Sees::AllButLate,
            Way::Mapped => Sees::All,
        }
    }

    fn board(&mut self, direction: Direction) -> &mut Board {
        match direction {
            Direction::Write => &mut self.owner.board,
            Direction::Read => &mut self.initiator.board,
        }
    }

    fn submit(&self, case: &Case, arena: Arena) -> Transfer<SystemEnv> {
        let plan = match case.direction {
            Direction::Write => Plan::write(&self.initiator.data, &self.far_board),
            Direction::Read => Plan::read(self.initiator.board.region(), &self.far_data),
        };
        let plan = plan.extents(&case.spans(arena.base)).build().expect("the case lies inside the regions");
        let how = Submit::new().count(self.far_arrivals);
        let how = match case.stop {
            Stop::Deadline(within) => how.within(within),
            _ => how,
        };
        submit(&self.peer, &plan, how)
    }

    /// Stops a transfer as the case says. From the answer on the canary lies.
    fn stop(&mut self, case: &Arc<Case>, arena: Arena, transfer: &Transfer<SystemEnv>) -> Taken {
        let region = self.board(case.direction).region().clone();
        if let Stop::Deadline(within) = case.stop {
            let start = Instant::now();
            let end = transfer.wait_within(PATIENCE);
            let late = start.elapsed().saturating_sub(within);
            assert!(end.is_some(), "a transfer did not end by its deadline");
            let ours = self.give_up(transfer, case, &region, arena);
            return Taken { took: ours.took.max(late), ..ours };
        }
        // An inline engine's memory is its thread's to take back.
        let is_ours = case.direction == Direction::Read && self.is_inline;
        let revoker = self.revoker.as_ref().filter(|_| case.stop.revokes() && !is_ours);
        if let Some(revoker) = revoker {
            revoker.order(&region, case, arena);
            if case.stop == Stop::Revoke {
                // An inline engine copies in here.
                let _ = transfer.wait_within(PATIENCE);
                return revoker.answer();
            }
        }
        if self.is_inline {
            for _ in 0..case.turns {
                self.initiator.engine.progress().expect("this thread made the engine");
            }
        } else {
            wait_for_cue(case, region.host().unwrap(), arena);
        }
        match (case.stop, revoker) {
            (Stop::Cancel, _) => self.give_up(transfer, case, &region, arena),
            (Stop::Revoke, _) => take_back(&region, case, arena),
            (_, Some(revoker)) => {
                // Whoever is second finds canaries, so nobody counts what has landed.
                let ours = self.give_up(transfer, case, &region, arena);
                Taken { took: ours.took.max(revoker.answer().took), landed: None }
            }
            (_, None) => {
                let theirs = take_back(&region, case, arena);
                let ours = self.give_up(transfer, case, &region, arena);
                Taken { took: ours.took.max(theirs.took), ..theirs }
            }
        }
    }

    /// Cancels, and lays the canary over the whole arena as soon as that may be done.
    fn give_up(&self, t: &Transfer<SystemEnv>, case: &Case, region: &LocalRegion<SystemEnv>, arena: Arena) -> Taken {
        if !self.is_apart {
            return cancel_and_lay(t, case, region.host().unwrap(), arena);
        }
        let took = cancel_without_a_view(t);
        let landed = Some(board::landed(region.host().unwrap(), arena.base, case));
        arena.lay(region.host().unwrap(), &[(0, ARENA_BYTES)]);
        Taken { took, landed }
    }

    /// A transfer to another arena of the same board, which stops of others must not touch.
    fn begin_bystander(&mut self, number: u64, random: &mut Random) -> Bystander {
        let case = Case::draw(random, true);
        let arena = self.owner.board.take((number + BYSTANDER_ARENA) % ARENAS);
        let case = Case { stop: Stop::Cancel, ..case };
        let transfer = self.submit(&case, arena);
        Bystander { case, arena, transfer }
    }

    fn end_bystander(&mut self, Bystander { case, arena, transfer }: Bystander) {
        let end = End::of(&transfer);
        assert_eq!(end.cause, None, "nobody stopped this transfer");
        let landed = board::landed(self.owner.board.window(), arena.base, &case);
        assert_eq!((end.bytes, landed), (case.bytes, case.bytes), "a transfer that ended well has landed whole");
        self.tally.bystanders += 1;
        self.owner.board.give_back(arena, &[]);
    }

    /// Nothing is left over when all is done.
    fn calm_down(mut self) -> Tally {
        self.owner.board.check_all();
        self.initiator.board.check_all();
        let told = self.tally.completed + self.tally.told_late + self.tally.bystanders;
        let may_be = told..=told + self.tally.perhaps_told;
        assert!(may_be.contains(&self.arrivals.value()), "{} were counted, {may_be:?} may be", self.arrivals.value());
        let engines = [&self.initiator.engine, &self.owner.engine];
        let is_empty = || engines.iter().all(|engine| engine.transfers_held() == 0);
        assert!(turn_until(&engines, is_empty), "slots are lost");
        for engine in engines {
            assert!(engine.quarantined().is_empty(), "everyone lives, yet something is quarantined");
        }
        assert_eq!(self.peer.ended(), None, "the session stands to the end");
        self.tally
    }
}

/// A transfer that nobody stops.
struct Bystander {
    case: Case,
    arena: Arena,
    transfer: Transfer<SystemEnv>,
}
