//! What may be touched, and what kind of memory may be named.

use std::sync::Arc;

use penstock::{HostMemory, NoteId, Plan, PlanError, RegionError, Rights, Span, Submit, SubmitError};

use crate::command::Command;
use crate::pattern;
use crate::stage::{FAR_SEED, NEAR_SEED, PATIENCE, Stage};
use crate::{RemoteRegion, Setting};

const ONE: &[Span] = &[Span { local: 0, remote: 0, len: 4096 }];

fn refused(built: Result<Plan, PlanError>, words: &str) {
    let refusal = built.map(drop).expect_err("the plan must be refused");
    assert!(refusal.to_string().contains(words), "{refusal}");
}

/// Without the right, no plan: typed, in words, and for each direction by itself.
pub fn rights_are_checked_when_a_plan_is_built(setting: &Setting) {
    let mut stage = Stage::open(setting);
    for (label, rights) in [("r", Rights::READ), ("w", Rights::WRITE), ("none", Rights::NONE)] {
        stage.make_pool(0, label, 1 << 20, 4096, rights);
        let remote: RemoteRegion = stage.region(0, label);
        assert_eq!(remote.rights(), rights);
        let write = Plan::write(&stage.near, &remote).extents(ONE).build();
        let read = Plan::read(&stage.near, &remote).extents(ONE).build();
        for (built, is_allowed, verb) in
            [(write, rights.allows_write(), "writes needs"), (read, rights.allows_read(), "reads needs")]
        {
            if is_allowed {
                let transfer = stage.submit(stage.peer(), &built.unwrap(), Submit::new());
                assert_eq!(transfer.wait().unwrap().bytes, 4096);
            } else {
                refused(built, verb);
            }
        }
    }
    let untouched = pattern::bytes(FAR_SEED, 0, 1 << 20);
    for label in ["r", "none"] {
        stage.assert_far(0, label, &untouched);
    }
    // "r" was read into the first block here before it was written to "w".
    stage.assert_far(0, "w", &untouched);
}

/// Memory that the engine did not allocate works as this side of a plan, in both directions.
pub fn caller_memory_works_on_this_side(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (_, mut far) = stage.models();
    let memory = HostMemory::from_vec(pattern::bytes(5, 0, 300_000)).unwrap();
    let window = memory.window().clone();
    let region = stage.engine.register(memory, "own", Rights::NONE).unwrap();
    let out = Span { local: 1, remote: 77, len: 200_001 };
    let plan = Plan::write(&region, &stage.far()).extents(&[out]).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    far[77..77 + 200_001].copy_from_slice(&pattern::bytes(5, 1, 200_001));
    let back = Span { local: 0, remote: 500_000, len: 300_000 };
    let plan = Plan::read(&region, &stage.far()).extents(&[back]).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    assert!(pattern::read(&window) == far[500_000..800_000], "what was read is not what is there");
    stage.assert_far(0, "kv", &far);
    assert!(region.deregister(PATIENCE).unwrap().is_quiesced());
}

/// The same memory on the other side is reached where `Caps` says so, and refused in words elsewhere.
pub fn caller_memory_on_the_other_side_is_as_caps_say(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let rights = Rights::READ_WRITE.into();
    stage.order(0, Command::Register { label: "theirs".to_owned(), bytes: 300_000, rights, skew: 0, seed: 6 });
    let remote = stage.region(0, "theirs");
    let built = Plan::write(&stage.near, &remote).extents(ONE).build();
    let mut expected = pattern::bytes(6, 0, 300_000);
    if stage.peer().caps().remote_caller_memory {
        stage.submit(stage.peer(), &built.unwrap(), Submit::new()).wait().unwrap();
        expected[..4096].copy_from_slice(&pattern::bytes(NEAR_SEED, 0, 4096));
    } else {
        let refusal = built.map(drop).unwrap_err();
        assert!(matches!(refusal, PlanError::Region(RegionError::Import { .. })), "{refusal}");
        assert!(refusal.to_string().contains("use a pool"), "{refusal}");
    }
    stage.assert_far(0, "theirs", &expected);
}

/// A handle changes hands where `Caps` says so, without a copy, and is refused in words elsewhere.
pub fn a_handle_changes_hands_as_caps_say(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let handle = Arc::new("a page of the cache".to_owned());
    let given = stage.peer().hand_over(handle.clone(), NoteId(4), b"take it", Submit::new());
    if !stage.peer().caps().hand_over {
        let refusal = given.map(drop).unwrap_err();
        assert!(matches!(refusal, SubmitError::NoHandOver { .. }), "{refusal}");
        assert!(refusal.to_string().contains("engines of one process"), "{refusal}");
        assert_eq!(Arc::strong_count(&handle), 1, "what was refused was not kept");
        return;
    }
    given.unwrap().wait().unwrap();
    let notes = stage.take_notes(0, 1, PATIENCE);
    assert_eq!(notes[0].handed_over.as_deref(), Some("a page of the cache"));
    assert_eq!(notes[0].payload, b"take it");
    stage.wait_until("the receiver has let go", || Arc::strong_count(&handle) == 1);
    for id in 0..100 {
        let given = stage.peer().hand_over(handle.clone(), NoteId(id), b"", Submit::new());
        given.unwrap().wait().unwrap();
    }
    let notes = stage.take_notes(0, 100, PATIENCE);
    assert!(notes.len() == 100 && notes.iter().all(|note| note.handed_over.is_some()));
    stage.wait_until("the receiver has let go", || Arc::strong_count(&handle) == 1);
}

/// A plan belongs to the session that it was built in.
pub fn a_plan_for_one_peer_is_refused_by_another(setting: &Setting) {
    let stage = Stage::with(setting, crate::Options { targets: 2, ..crate::Options::default() });
    let plan = Plan::write(&stage.near, &stage.far()).extents(ONE).build().unwrap();
    let refusal = stage.peers[1].submit(&plan, Submit::new()).map(drop).unwrap_err();
    assert_eq!(refusal, SubmitError::ForeignPlan);
    let two = Plan::write(&stage.near, &stage.far()).extents(ONE);
    let other: &[Span] = &[Span { local: 0, remote: 8192, len: 4096 }];
    refused(two.between(&stage.near, &stage.region(1, "kv")).extents(other).build(), "one peer");
}
