//! Coming to rest: what runs comes to its end, and nothing new begins.

use std::time::Duration;

use penstock::{Cause, ConnectError, NoteId, Plan, Span, Submit, SubmitError};

use crate::Setting;
use crate::command::{Command, Reply};
use crate::stage::{KV, PATIENCE, Stage, all_end_well};

const BYTES: u64 = 4 << 20;
const ALL: &[Span] = &[Span { local: 0, remote: 0, len: BYTES }];

fn flood(times: u64) -> Command {
    Command::Flood { peer: "source".to_owned(), label: KV.to_owned(), times }
}

fn flooded(reply: Reply) -> usize {
    match reply {
        Reply::Value(taken) => taken as usize,
        other => panic!("a transfer that was taken has failed: {other:?}"),
    }
}

/// A drain that has time costs nobody a transfer: those of this side end, those of the peer too, and what
/// they notified can still be read. Afterwards there are no sessions, and none begin.
pub fn both_sides_finish_what_runs(setting: &Setting) {
    let mut stage = Stage::sized(setting, BYTES);
    let far = stage.far();
    let plan = Plan::write(&stage.near, &far).extents(ALL).build().unwrap();
    let transfers: Vec<_> = (0..12).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
    stage.tell(0, flood(12));
    let mut notes = stage.wait_notes(1).len();
    let left = stage.engine.drain(PATIENCE).unwrap();
    assert!(left.is_complete(), "{left:?}");
    all_end_well(&transfers);
    let taken = flooded(stage.hear(0));
    let mut rest = Vec::new();
    notes += stage.engine.notifications(&mut rest);
    assert_eq!((notes, left.notifications), (taken, rest.len()), "what a peer was told to have said is there");
    assert_eq!(stage.peer().ended(), Some(Cause::PeerClosed));
    assert!(stage.engine.peers().is_empty());
    let refused = stage.peer().submit(&plan, Submit::new()).map(drop).unwrap_err();
    assert!(matches!(refused, SubmitError::PeerGone { .. }), "{refused}");
    let refused = stage.engine.connect(&stage.descriptor(0), PATIENCE).map(drop).unwrap_err();
    assert!(matches!(refused, ConnectError::Call(Cause::Draining)), "{refused}");
    let left = stage.engine.drain(Duration::ZERO).unwrap();
    assert!(left.is_complete(), "a drained engine stays drained: {left:?}");
}

/// A drain that has no time to wait still takes nothing new from when it answers.
pub fn a_drain_without_time_takes_nothing_new(setting: &Setting) {
    let stage = Stage::open(setting);
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    stage.engine.drain(Duration::ZERO).unwrap();
    let refused = stage.peer().submit(&plan, Submit::new()).map(drop).unwrap_err();
    // With nothing under way the session may be over by now.
    let causes = [Cause::Draining, Cause::PeerClosed];
    let is_said = |cause: &Cause| causes.contains(cause);
    assert!(
        matches!(&refused, SubmitError::Draining { cause, .. } | SubmitError::PeerGone { cause, .. } if is_said(cause)),
        "{refused}"
    );
}

/// A peer that drains takes nothing new, and says so; a notification that waits for its room goes on, also
/// past the end of a drain that had too little time.
pub fn what_is_new_is_refused_and_what_waits_goes_on(setting: &Setting) {
    let (mut stage, waiting) = Stage::choked(setting);
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    match stage.ask(0, Command::Drain { within_ms: 30 }) {
        Reply::Drained { peers, transfers, .. } => assert_eq!((peers, transfers), (vec!["source".to_owned()], 0)),
        other => panic!("{other:?}"),
    }
    stage.wait_until("the peer's drain is heard of", || stage.peer().draining().is_some());
    let submitted = stage.peer().submit(&plan, Submit::new()).map(drop);
    let notified = stage.peer().notify(NoteId(1), b"", Submit::new()).map(drop);
    for refused in [submitted.unwrap_err(), notified.unwrap_err()] {
        assert!(matches!(refused, SubmitError::Draining { cause: Cause::PeerDraining, .. }), "{refused}");
        assert!(refused.to_string().contains("reconnect when it is back"), "{refused}");
    }
    assert_eq!(stage.peer().ended(), None, "what runs goes on");
    // Nobody new is taken in.
    if !setting.is_inline() {
        let other = setting.spec(stage.folder.path(), "other").start().unwrap();
        let refused = other.connect(&stage.descriptor(0), PATIENCE).map(drop).unwrap_err();
        assert!(refused.to_string().contains("draining"), "{refused}");
    }
    let count = waiting.len();
    assert_eq!(stage.take_notes(0, count, PATIENCE).len(), count);
    all_end_well(&waiting);
    match stage.ask(0, Command::Drain { within_ms: PATIENCE.as_millis() as u64 / 2 }) {
        Reply::Drained { peers, transfers, notifications } => {
            assert_eq!((peers.len(), transfers, notifications), (0, 0, 0))
        }
        other => panic!("{other:?}"),
    }
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerClosed));
    // This side never drained: it goes on with others.
    let late = stage.add_target("late", crate::Options::default());
    let plan = Plan::write(&stage.near, &stage.region(late, KV)).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    stage.submit(&stage.peers[late], &plan, Submit::new()).wait().unwrap();
}

/// Two engines that drain at once come to rest together.
pub fn a_peer_may_drain_at_the_same_time(setting: &Setting) {
    for _ in 0..5 {
        let mut stage = Stage::sized(setting, BYTES);
        let plan = Plan::read(&stage.near, &stage.far()).extents(ALL).build().unwrap();
        let transfers: Vec<_> = (0..4).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
        stage.tell(0, Command::Drain { within_ms: PATIENCE.as_millis() as u64 / 2 });
        let left = stage.engine.drain(PATIENCE).unwrap();
        assert!(left.is_complete(), "{left:?}");
        all_end_well(&transfers);
        match stage.hear(0) {
            Reply::Drained { peers, transfers, .. } => assert_eq!((peers.len(), transfers), (0, 0)),
            other => panic!("{other:?}"),
        }
    }
}
