//! A storm whose initiator is another process: only shared memory is between copier and owner.
//!
//! The owner sends the seed of each step; both draw the same case from it. The owner revokes, the
//! initiator cancels and sets deadlines, and tells how the transfer ended.

use std::path::Path;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Cause, Engine, LocalRegion, Notified, Peer, Plan, RemoteCounter, RemoteRegion, Submit};
use penstock::{SystemEnv, Window};

use super::board::{ARENAS, Arena, Board, Way, data, has_come, landed};
use super::case::{Case, Cue, Stop};
use super::taken::{Taken, cancel, take_back, wait_for};
use super::tally::{End, Sees, Tally};
use crate::child::{Child, from_word, obey, say, to_word};
use crate::cores::{Cores, Held};
use crate::folder::Folder;
use crate::pair::{PATIENCE, config, submit};
use crate::seed::{Random, Seed};

/// Workers of both engines.
const WORKERS: usize = 2;
/// Looks at the memory between two looks at the child's answers, which take a lock.
const LOOKS_PER_ANSWER: u32 = 16;

/// Lets a storm rage over shared memory, with the initiator in a process that runs `program`.
///
/// # Panics
/// As [`rage`](super::rage) does.
pub fn rage_apart(label: &str, program: &str, way: Way, stops: u64) -> Tally {
    let folder = Folder::new(label);
    let mut seed = Seed::of_this_run();
    let config = config(folder.path(), "owner", TransportName::Shm, Progress::Adaptive).workers(WORKERS);
    let engine = Engine::start(way.taken_by(config)).expect("an engine starts in a fresh folder");
    let mut board = Board::new(&engine, way);
    let arrivals = board.region().counter("arrivals").expect("a fresh engine has room for a counter");
    let folder_word = folder.path().to_str().expect("folders for temporary files have plain names");
    let mut child = Child::start(program, &["storm", folder_word, &to_word(&engine.descriptor())]);
    assert_eq!(child.answer(PATIENCE), "ready");
    let mut tally = Tally::default();
    let _held = Held::on(Cores::of_their_own().stopping);
    for number in 0..stops {
        step(&mut board, &mut child, number % ARENAS, seed.of_step(number), way, &mut tally);
    }
    board.check_all();
    assert_eq!(arrivals.value(), tally.completed, "each transfer that ended well was counted once, no other");
    assert!(engine.quarantined().is_empty(), "everyone lives, yet something is quarantined");
    child.finish();
    tally
}

fn step(board: &mut Board, child: &mut Child, place: u64, seed: u64, way: Way, tally: &mut Tally) {
    let case = Case::draw(&mut Random::new(seed), true);
    let arena = board.take(place);
    child.order(&format!("{seed} {}", arena.base));
    let (taken, end) = if case.stop.revokes() {
        let early = wait_for_bytes(&case, board.window(), arena, child);
        let taken = take_back(board.region(), &case, arena);
        (taken, early.unwrap_or_else(|| child.answer(2 * PATIENCE)))
    } else {
        // The child has its answer before it tells the end: from here on nothing lands.
        let end = child.answer(2 * PATIENCE);
        (Taken { landed: Some(landed(board.window(), arena.base, &case)), ..Taken::default() }, end)
    };
    let end = parse_end(&end).expect("the child answers with an end");
    tally.count(&case, &taken);
    board.give_back(arena, if case.stop.revokes() { &case.extents } else { &[] });
    let sees = if way == Way::Mapped { Sees::All } else { Sees::AllButLate };
    tally.count_end(&case, &end, taken.landed, sees);
}

/// Waits for the case's cue as the owner sees it. A revoke stops only plans that were made before
/// it, so the first sign of this one must have come. Answers the child's answer if that came first.
fn wait_for_bytes(case: &Case, window: &Window, arena: Arena, child: &mut Child) -> Option<String> {
    let (piece, span) = match case.cue {
        Cue::Piece(piece) => (piece, Duration::ZERO),
        Cue::After(span) => (0, span),
    };
    let (mut answer, mut looks) = (None, 0u32);
    wait_for(|| {
        looks += 1;
        if looks.is_multiple_of(LOOKS_PER_ANSWER) {
            answer = child.answer_now();
        }
        answer.is_some() || has_come(window, arena.base, &case.pieces[piece])
    });
    let start = Instant::now();
    wait_for(|| answer.is_some() || start.elapsed() >= span);
    answer
}

fn print_end(End { cause, bytes, notified }: End) -> String {
    format!("{} {bytes} {}", cause.map_or(0, Cause::code), notified.code())
}

fn parse_end(line: &str) -> Option<End> {
    let mut words = line.split(' ');
    let cause = Cause::from_code(words.next()?.parse().ok()?);
    let bytes = words.next()?.parse().ok()?;
    let notified = Notified::from_code(words.next()?.parse().ok()?)?;
    Some(End { cause, bytes, notified })
}

/// The initiator: the child's whole life.
///
/// # Panics
/// If a transfer does not end, or an answer is quarantine.
pub fn serve(folder: &Path, card: &str) {
    let config = config(folder, "initiator", TransportName::Shm, Progress::Adaptive).workers(WORKERS);
    let cores = Cores::of_their_own();
    let held = Held::on(cores.copying);
    let engine = Engine::start(config).expect("an engine starts in a fresh folder");
    drop(held);
    let _held = Held::on(cores.stopping);
    let card = from_word(card).expect("the owner gave its descriptor");
    let peer = engine.connect(&card, PATIENCE).expect("the owner waits");
    let initiator = Initiator {
        data: data(&engine, Way::Mapped),
        far_board: peer.region("board").expect("it was there before the peers met"),
        far_arrivals: peer.wait_counter("arrivals", PATIENCE).expect("it was there before the peers met"),
        peer,
    };
    say("ready");
    obey(|order| print_end(initiator.run(order)));
    let start = Instant::now();
    while engine.transfers_held() > 0 {
        assert!(start.elapsed() < PATIENCE, "slots are lost");
        std::thread::yield_now();
    }
    assert!(engine.quarantined().is_empty(), "everyone lives, yet something is quarantined");
}

struct Initiator {
    peer: Peer<SystemEnv>,
    data: LocalRegion<SystemEnv>,
    far_board: RemoteRegion<SystemEnv>,
    far_arrivals: RemoteCounter,
}

impl Initiator {
    fn run(&self, order: &str) -> End {
        let (seed, base) = order.split_once(' ').expect("orders have two words");
        let case = Case::draw(&mut Random::new(seed.parse().expect("the first is a seed")), true);
        let base = base.parse().expect("the second is an offset");
        let plan = Plan::write(&self.data, &self.far_board).extents(&case.spans(base)).build();
        let plan = plan.expect("the case lies inside the regions");
        let how = Submit::new().count(self.far_arrivals);
        let how = match case.stop {
            Stop::Deadline(within) => how.within(within),
            _ => how,
        };
        let transfer = submit(&self.peer, &plan, how);
        if matches!(case.stop, Stop::Cancel | Stop::Both) {
            self.wait_for_bytes(&case, || transfer.bytes_moved(), || transfer.poll().is_some());
            cancel(&transfer);
        }
        let end = End::of(&transfer);
        cancel(&transfer);
        end
    }

    /// The case's cue as it is seen from here.
    fn wait_for_bytes(&self, case: &Case, moved: impl Fn() -> u64, ended: impl Fn() -> bool) {
        let start = Instant::now();
        let come = || match case.cue {
            Cue::Piece(piece) => moved() * case.pieces.len() as u64 >= case.bytes * (1 + piece as u64),
            Cue::After(span) => start.elapsed() >= span,
        };
        wait_for(|| come() || ended());
    }
}
