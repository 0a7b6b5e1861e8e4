//! The tests, one after the other.

use std::time::{Duration, Instant};

use penstock::{Cause, NoteId, Plan, RemoteQuiesce, Submit};

use super::Sabotage;
use super::errand::{Answer, Errand, Note};
use super::flaw::Flaw;
use super::pair::Pair;
use super::pattern::{self, Content, Stamp};
use super::target::PATIENCE;

/// One test: an error is what it found wrong.
type Step = fn(&mut Pair, Option<Sabotage>) -> Result<(), Flaw>;

/// All tests between connecting and leaving, in their order.
pub(crate) const STEPS: [(&str, Step); 6] = [
    ("write", write),
    ("read", read),
    ("notify", notify),
    ("counter", counter),
    ("cancel", cancel),
    ("revoke", revoke),
];

/// Bytes of the longest notification.
const NOTE_BYTES: usize = penstock::limits::NOTE_BYTES_MAX;

/// Writes arrive where they should, nothing else changes, and each is counted once.
fn write(pair: &mut Pair, sabotage: Option<Sabotage>) -> Result<(), Flaw> {
    if sabotage == Some(Sabotage::Crash) {
        pair.tell(Errand::Crash)?;
    }
    write_everything(pair, 1, sabotage == Some(Sabotage::Write))
}

/// Writes all sets and has every byte of the target looked at.
pub(crate) fn write_everything(pair: &mut Pair, stamp: Stamp, broken: bool) -> Result<(), Flaw> {
    pattern::fill(pair.near.window(), stamp)?;
    pair.tell(Errand::Clear)?;
    let before = pair.counted(0)?;
    let plans = pair.writes()?;
    for plan in &plans {
        pair.move_one(plan, Submit::new().count(pair.arrivals))?;
    }
    let (expected, found) = (plans.len() as u64, pair.counted(before + plans.len() as u64)? - before);
    if found != expected {
        return Err(Flaw::Arrivals { expected, found });
    }
    if broken {
        pair.tell(Errand::Flip(pair.pairs[0].1))?;
    }
    pair.tell(Errand::CheckWritten(stamp))
}

/// Reads bring what the target has, and nothing else changes here.
fn read(pair: &mut Pair, sabotage: Option<Sabotage>) -> Result<(), Flaw> {
    let stamp = 2;
    let window = pair.near.window().clone();
    pair.tell(Errand::Fill(stamp))?;
    window.fill(0, window.len(), 0)?;
    for plan in &pair.reads()? {
        pair.move_one(plan, Submit::new())?;
    }
    if sabotage == Some(Sabotage::Read) {
        pattern::flip(&window, pair.pairs[0].0)?;
    }
    let origin: std::collections::HashMap<u32, u32> = pair.pairs.iter().copied().collect();
    let content = |near| origin.get(&near).map_or(Content::Clear, |&far| Content::Of(stamp, far));
    match pattern::first_wrong(&window, content)? {
        None => Ok(()),
        Some(wrong) => Err(Flaw::Bytes { whose: "the initiator's", wrong }),
    }
}

/// Notifications arrive once, whole and in their order, with and without bytes, both ways.
fn notify(pair: &mut Pair, sabotage: Option<Sabotage>) -> Result<(), Flaw> {
    let long: Vec<u8> = (0..NOTE_BYTES).map(|at| (at * 7) as u8).collect();
    let mut sent = long.clone();
    if sabotage == Some(Sabotage::Notify) {
        sent[NOTE_BYTES / 2] ^= 1;
    }
    let one_block = Plan::write(&pair.near, &pair.remote).blocks(&pair.pairs[..1]).build()?;
    pair.peer.notify(NoteId(1), b"", Submit::new())?.wait()?;
    pair.peer.notify(NoteId(2), &sent, Submit::new())?.wait()?;
    pair.move_one(&one_block, Submit::new().notify(NoteId(3), b"with a block"))?;
    let expected = vec![
        Note { id: 1, payload: Vec::new() },
        Note { id: 2, payload: long.clone() },
        Note { id: 3, payload: b"with a block".to_vec() },
    ];
    let Answer::Notes(found) = pair.ask(Errand::Notes(expected.len()))? else {
        return Err(Flaw::Notes { expected: expected.len(), found: 0 });
    };
    compare(&expected, &found)?;
    pair.tell(Errand::Notify(long.clone()))?;
    let mut back = Vec::new();
    pair.engine.wait_notification(PATIENCE);
    pair.engine.notifications(&mut back);
    let back: Vec<Note> = back.into_iter().map(Note::from).collect();
    compare(&[Note { id: NOTE_BYTES as u64, payload: long }], &back)
}

fn compare(expected: &[Note], found: &[Note]) -> Result<(), Flaw> {
    if found.len() != expected.len() {
        return Err(Flaw::Notes { expected: expected.len(), found: found.len() });
    }
    match expected.iter().zip(found).position(|(expected, found)| expected != found) {
        None => Ok(()),
        Some(index) => Err(Flaw::Note { number: index + 1 }),
    }
}

/// A counter goes up by one for each transfer that names it, and for no other.
fn counter(pair: &mut Pair, sabotage: Option<Sabotage>) -> Result<(), Flaw> {
    const NAMED: u64 = 5;
    let plan = Plan::write(&pair.near, &pair.remote).blocks(&pair.pairs[..8]).build()?;
    let before = pair.counted(0)?;
    for _ in 0..NAMED {
        pair.move_one(&plan, Submit::new().count(pair.arrivals))?;
        pair.move_one(&plan, Submit::new())?;
    }
    if sabotage == Some(Sabotage::Counter) {
        pair.move_one(&plan, Submit::new().count(pair.arrivals))?;
    }
    match pair.counted(before + NAMED)? - before {
        NAMED => Ok(()),
        found => Err(Flaw::Arrivals { expected: NAMED, found }),
    }
}

/// A transfer that is cancelled on its way is at rest when the answer is there: nothing lands any more.
fn cancel(pair: &mut Pair, sabotage: Option<Sabotage>) -> Result<(), Flaw> {
    pattern::fill(pair.near.window(), 3)?;
    let plan = pair.write_all()?;
    let transfer = pair.peer.submit(&plan, Submit::new())?;
    // In the middle, if the scheduler lets us.
    let until = Instant::now() + Duration::from_millis(100);
    while transfer.bytes_moved() == 0 && transfer.poll().is_none() && Instant::now() < until {
        std::hint::spin_loop();
    }
    let answer = transfer.cancel(PATIENCE);
    if !answer.local.is_quiesced() || !matches!(answer.remote, RemoteQuiesce::Quiesced) {
        return Err(Flaw::NotQuiesced { what: "a cancelled transfer" });
    }
    pair.tell(Errand::Clear)?;
    if sabotage == Some(Sabotage::Cancel) {
        pair.move_one(&plan, Submit::new())?;
    }
    pair.tell(Errand::CheckClear)?;
    match transfer.wait() {
        Err(fault) if fault.cause != Cause::Cancelled => Err(fault.into()),
        _ => Ok(()),
    }
}

/// Memory that its owner takes back is at rest at once, plans over it move nothing any more, and new ones do.
fn revoke(pair: &mut Pair, sabotage: Option<Sabotage>) -> Result<(), Flaw> {
    let plan = pair.write_all()?;
    let on_its_way = pair.peer.submit(&plan, Submit::new())?;
    let block = pair.pairs[pair.pairs.len() / 2].1;
    if sabotage != Some(Sabotage::Revoke) {
        pair.tell(Errand::Revoke(block))?;
    }
    match on_its_way.wait() {
        Err(fault) if fault.cause != Cause::RevokedByPeer => return Err(fault.into()),
        _ => {}
    }
    pair.tell(Errand::Clear)?;
    match pair.peer.submit(&plan, Submit::new())?.wait() {
        Err(fault) if fault.cause == Cause::RevokedByPeer => {}
        Err(fault) => return Err(fault.into()),
        Ok(_) => return Err(Flaw::StillMoved),
    }
    // Between hosts the target looks at each part of a transfer by itself: others of an old plan may arrive.
    let whole = !pair.is_between_hosts();
    pair.tell(if whole { Errand::CheckClear } else { Errand::CheckBlockClear(block) })?;
    write_everything(pair, 4, false)
}
