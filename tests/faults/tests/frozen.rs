//! A peer that is stopped in the middle of a copy costs the memory it copies into, until it is proven
//! that it is done with it, and nothing else.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use penstock::limits::UNIT_BYTES;
use penstock_faults::frozen::{BLOCK_BYTES, Stage, WRITTEN, wait_until, written_extent};
use penstock_faults::pair::PATIENCE;

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
        assert!(landed <= UNIT_BYTES, "{landed} bytes landed: more than the one copy that was under way");
        assert_eq!(stage.end_of_writing(), penstock::Cause::RevokedByPeer.text());
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
