//! A peer that is stopped in the middle of a copy costs the memory it copies into, until it is proven
//! that it is done with it, and nothing else.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::{Duration, Instant};

use penstock::config::Progress;
use penstock::limits::COPY_BYTES_MAX;
use penstock::{Cause, NoteId, Notified, Plan, PlanError, PoolSpec, RegionError, RenewError, Span, Submit, Window};
use penstock_faults::child::Child;
use penstock_faults::frozen::{
    BLOCK_BYTES, BLOCKS, DATA, Stage, Stopped, WRITTEN, start_writer, wait_until, written_extent,
};
use penstock_faults::pair::{PATIENCE, submit};
use penstock_faults::rails::Party;
use penstock_verbs::model::{ModelNetwork, Options, Pace};

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
/// Frozen copies until one is seen to land bytes after it was let go: one stopped at its very end lands none.
const FROZEN_MAX: u32 = 40;

#[test]
fn a_writer_stopped_in_mid_copy_holds_its_blocks_until_it_moves_and_then_harms_nobody() {
    let mut stage = Stage::new("frozen-moves", CHILD);
    let (mut frozen, mut landed) = (0, 0);
    while landed == 0 {
        assert!(frozen < FROZEN_MAX, "none of {frozen} frozen copies landed a byte when it was let go");
        frozen += 1;
        let (stopped, held) = stage.freeze();
        stage.lay();

        assert!(!held.is_released(), "the writer stands still in the middle of a copy");
        let listed = stage.engine.quarantined();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!((listed[0].region(), listed[0].extents()), ("board", &[written_extent()][..]));
        let suspects: Vec<String> = listed[0].suspects().into_iter().flatten().map(|peer| peer.to_string()).collect();
        assert_eq!(suspects, ["writer"]);

        // The blocks are given back, and yet nobody gets them.
        drop(stage.take_written());
        assert!(stage.pool.take(1).is_err(), "a quarantined block was handed out again");
        assert_eq!(stage.landed(), 0, "bytes landed while the writer stood still");

        drop(stopped);
        assert!(wait_until(|| held.is_released()), "the writer runs again and is not seen to move: {held:?}");
        assert!(stage.engine.quarantined().is_empty());
        landed = stage.landed();
        assert!(landed <= COPY_BYTES_MAX, "{landed} bytes landed: more than the one copy that was under way");
        assert_eq!(stage.end_of_writing(), Cause::RevokedByPeer.text());
        assert_eq!(stage.landed(), landed, "bytes landed after the proof");

        // Now they are as good as any others.
        let again = stage.pool.take(WRITTEN).expect("the proof has come, so the blocks are free");
        assert!(stage.pool.take(1).is_err());
        stage.keep_written(again);
    }
    eprintln!("{landed} bytes of the frozen copy landed after it was let go, at frozen copy {frozen}");
    stage.writer.order("once");
    assert_eq!(stage.writer.answer(PATIENCE), "done");
    assert_eq!(stage.landed(), WRITTEN as u64 * BLOCK_BYTES);
    stage.writer.finish();
}

#[test]
fn the_death_of_a_stopped_writer_gives_its_blocks_back() {
    let mut stage = Stage::new("frozen-dies", CHILD);
    let (stopped, held) = stage.freeze();
    stage.lay();
    drop(stage.take_written());
    assert!(!held.is_released() && stage.pool.take(1).is_err());
    stopped.kill();
    assert!(wait_until(|| held.is_released()), "the writer is dead and still held to be writing: {held:?}");
    assert!(stage.engine.quarantined().is_empty());
    assert_eq!(stage.landed(), 0, "a dead writer wrote");
    assert_eq!(stage.pool.take(WRITTEN).expect("the blocks are free").len(), WRITTEN);
    stage.folder.sweep_up_after("writer");
}

const RENEWED: &str = "the memory of region `board` was renewed; get the region again and build a new plan";
/// Rounds of freezing and renewing over the same blocks.
const RENEWALS: usize = 6;

fn ask(child: &mut Child, order: &str) -> String {
    child.order(order);
    child.answer(2 * PATIENCE)
}

/// Mappings of this process that this memory is made of.
fn mappings(window: &Window) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let range = window.base_address()..window.base_address() + window.len();
    let starts = maps.lines().filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
    starts.filter(|start| range.contains(start)).count()
}

#[test]
fn fresh_memory_makes_the_blocks_of_a_frozen_writer_good_again_and_what_it_still_writes_is_lost() {
    let mut stage = Stage::new("frozen-renewed", CHILD);
    let mut healthy = start_writer(&stage.folder, "healthy", &stage.engine, CHILD);
    assert_eq!(ask(&mut healthy, "once"), "done");
    for round in 0..RENEWALS {
        let (stopped, held) = stage.freeze();
        stage.lay();
        drop(stage.take_written());
        assert!(stage.pool.take(1).is_err(), "a quarantined block was handed out again");

        stage.pool.renew(&held, PATIENCE).expect("only the other process is frozen");
        assert!(held.is_renewed() && !held.is_released(), "the writer has not moved: {held:?}");
        assert_eq!(stage.engine.quarantined().len(), 1, "the old pages are still somebody's");
        let blocks = stage.pool.take(WRITTEN).expect("the blocks have fresh memory, so they are free");
        assert_eq!(stage.landed(), 0, "the bytes of the blocks and their neighbours are carried over");

        // A peer that lives is told what to do, does it, and its bytes are where the owner sees them.
        assert_eq!(ask(&mut healthy, "rebuild"), RENEWED, "round {round}");
        assert_eq!(ask(&mut healthy, "once"), "done");
        assert_eq!(stage.landed(), WRITTEN as u64 * BLOCK_BYTES);

        stage.lay();
        drop(stopped);
        assert!(wait_until(|| held.is_released()), "the writer runs again and is not seen to move: {held:?}");
        assert_eq!(stage.end_of_writing(), Cause::MemoryRenewed.text());
        assert_eq!(ask(&mut stage.writer, "old"), Cause::MemoryRenewed.text());
        assert_eq!(ask(&mut stage.writer, "rebuild"), RENEWED);
        assert_eq!(stage.landed(), 0, "what the frozen writer wrote after it woke was seen");
        assert_eq!(ask(&mut stage.writer, "once"), "done");
        assert_eq!(stage.landed(), WRITTEN as u64 * BLOCK_BYTES);
        assert_eq!(mappings(stage.pool.window()), 2, "the pool and one piece over it, however often it was renewed");
        stage.keep_written(blocks);
    }
    assert!(stage.engine.quarantined().is_empty());
    let statistics = stage.engine.statistics();
    assert_eq!((statistics.quarantines, statistics.renewals), (RENEWALS as u64, RENEWALS as u64));
    stage.writer.finish();
    healthy.finish();
}

/// Nobody at the other end of a card sees what was withdrawn, and the fresh pages are pinned for as long as that takes: until it is told of them, a
/// peer must not take the old ones for the region's.
#[test]
fn over_cards_no_plan_is_built_over_old_pages_while_the_fresh_ones_are_being_pinned() {
    const PINNED: Duration = Duration::from_millis(1500);
    let network = ModelNetwork::new(Options { pace: Pace::Thread, ..Options::default() });
    let (far_card, near_card) = (network.adapter(), network.adapter());
    let mut stage = Stage::over_cards("frozen-cards", CHILD, std::slice::from_ref(&far_card));
    let near = Party::start(stage.folder.path(), "near", Progress::Adaptive, &[near_card]);
    let peer = near.engine.connect_address(&stage.engine.addresses()[0].to_string(), PATIENCE).unwrap();
    let source = near.pool("source", WRITTEN as u64 * BLOCK_BYTES);
    source.window().fill(0, source.bytes(), DATA).unwrap();
    let all = [Span { local: 0, remote: 0, len: source.bytes() }];
    let plan = || Plan::write(&source, &peer.region("board")?).extents(&all).build();
    assert!(peer.wait_region("board", PATIENCE).is_ok());
    let old = plan().unwrap();
    submit(&peer, &old, Submit::new().within(PATIENCE)).wait().unwrap();

    let (stopped, held) = stage.freeze();
    stage.lay();
    far_card.pin_for(PINNED);
    stage.pool.renew(&held, PATIENCE).expect("only the other process is frozen");
    let begun = Instant::now();
    let mut asked = 0;
    while begun.elapsed() < PINNED * 2 / 3 {
        peer.refresh(PATIENCE).unwrap();
        asked += 1;
        match plan().err() {
            Some(PlanError::Region(RegionError::Renewed { .. } | RegionError::NewsUnderWay { .. })) => {}
            other => panic!("{other:?} at question {asked}, while nothing of the fresh pages was told"),
        }
        let fault = submit(&peer, &old, Submit::new().within(PATIENCE)).wait().unwrap_err();
        assert!([Cause::MemoryRenewed, Cause::PlanTooOld].contains(&fault.cause), "{fault}");
    }
    assert!(asked > 5, "{asked} questions meanwhile");
    assert_eq!(stage.landed(), 0, "the owner sees what was written to old pages");
    let mut fresh = None;
    assert!(wait_until(|| plan().map(|plan| fresh = Some(plan)).is_ok()), "the fresh pages are never told");
    submit(&peer, &fresh.unwrap(), Submit::new().within(PATIENCE)).wait().unwrap();
    assert_eq!(stage.landed(), WRITTEN as u64 * BLOCK_BYTES);
    drop(stopped);
    assert!(wait_until(|| held.is_released()), "the writer runs again and is not seen to move: {held:?}");
    stage.end_of_writing();
    stage.writer.finish();
}

#[test]
fn a_transfer_into_other_blocks_goes_on_while_a_frozen_writers_are_renewed() {
    let mut stage = Stage::new("frozen-beside", CHILD);
    let mut healthy = start_writer(&stage.folder, "healthy", &stage.engine, CHILD);
    // Builds its plan over the blocks that nobody else writes, and keeps it.
    assert_eq!(ask(&mut healthy, "beside"), "done");
    let (stopped, held) = stage.freeze();
    stage.pool.renew(&held, PATIENCE).expect("only the other process is frozen");
    let last = (BLOCKS as u64 - 1) * BLOCK_BYTES;
    stage.pool.window().fill(last, BLOCK_BYTES, 0).expect("the pool is as long as that");
    assert_eq!(ask(&mut healthy, "old"), "done", "the plan touches nothing that was renewed");
    let mut found = [0; BLOCK_BYTES as usize];
    stage.pool.window().read_into(last, &mut found).expect("as above");
    assert!(found.iter().all(|&byte| byte == DATA), "the bytes of a plan from before went into another memory");
    drop(stopped);
    assert!(wait_until(|| held.is_released()));
    stage.writer.finish();
    healthy.finish();
}

#[test]
fn the_death_of_a_frozen_writer_ends_a_quarantine_that_was_renewed() {
    let mut stage = Stage::new("frozen-renewed-dies", CHILD);
    let (stopped, held) = stage.freeze();
    stage.pool.renew(&held, PATIENCE).expect("only the other process is frozen");
    stage.pool.renew(&held, PATIENCE).expect("once more changes nothing");
    stage.lay();
    stopped.kill();
    assert!(wait_until(|| held.is_released()), "the writer is dead and still held to be writing: {held:?}");
    assert!(stage.engine.quarantined().is_empty());
    assert_eq!(stage.landed(), 0, "a dead writer wrote");
    stage.folder.sweep_up_after("writer");
}

#[test]
fn memory_is_renewed_only_in_the_pool_it_was_revoked_from() {
    let mut stage = Stage::new("frozen-elsewhere", CHILD);
    let other = stage.engine.pool(PoolSpec::host(1 << 20).label("other")).expect("there is memory for a small pool");
    let (stopped, held) = stage.freeze();
    let refused = other.renew(&held, PATIENCE);
    assert!(matches!(refused, Err(RenewError::NotOfThisPool { .. })), "{refused:?}");
    drop(stopped);
    assert!(wait_until(|| held.is_released()));
    // Nothing is left to do then, which is no error.
    stage.pool.renew(&held, PATIENCE).expect("the proof has come");
    assert_eq!(stage.end_of_writing(), Cause::RevokedByPeer.text(), "nothing was renewed");
    stage.writer.finish();
}

#[test]
fn transfers_to_a_stopped_target_end_by_their_deadlines_and_those_after_it_runs_again_arrive() {
    const WITHIN: Duration = Duration::from_millis(50);
    let stage = Stage::new("stopped-target", CHILD);
    let target = stage.engine.peers().into_iter().next().expect("the writer has connected");
    let stopped = Stopped::new(&stage.writer);
    // Until its ring is full: then one waits for room that does not come.
    let late = (0..10_000).find_map(|_| {
        let start = Instant::now();
        let note = target.notify(NoteId(1), &[0; 1024], Submit::new().within(WITHIN)).expect("the session stands");
        let ended = note.wait_within(PATIENCE).expect("a transfer ends by its deadline");
        ended.err().map(|fault| (fault, start.elapsed(), note.cancel(WITHIN)))
    });
    let (fault, took, answer) = late.expect("a ring has an end");
    assert_eq!((fault.cause, fault.notified), (Cause::DeadlineExceeded, Notified::No));
    assert!(took < WITHIN + PATIENCE / 4, "a transfer of {WITHIN:?} ended after {took:?}");
    assert!(answer.local.is_quiesced(), "the target stopped outside any copy of ours: {answer:?}");
    assert!(stage.revoke().is_quiesced(), "a process that was stopped outside a copy was quarantined");
    drop(stopped);
    let again = || target.notify(NoteId(2), b"", Submit::new()).is_ok_and(|note| note.wait().is_ok());
    assert!(wait_until(again), "the target runs again and takes nothing");
    assert_eq!(target.ended(), None, "a stop is no reason to end a session");
    stage.writer.finish();
}
