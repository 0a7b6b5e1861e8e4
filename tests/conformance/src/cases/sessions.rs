//! Coming and going: disconnecting, restarting, dying, several engines at one place.

use std::time::{Duration, Instant};

use penstock::{Cause, ConnectError, NoteId, Plan, Span, StartError, Submit, SubmitError};

use crate::command::{Command, Reply};
use crate::stage::{FAR_SEED, PATIENCE, Stage};
use crate::{Engine, Options, Own, Place, Setting};

const ONE: &[Span] = &[Span { local: 0, remote: 0, len: 4096 }];

fn move_one(stage: &Stage, number: usize) {
    let plan = Plan::write(&stage.near, &stage.region(number, "kv")).extents(ONE).build().unwrap();
    stage.submit(&stage.peers[number], &plan, Submit::new()).wait().unwrap();
}

/// A session ends from this side: everything of it is refused typed, and a new one works.
pub fn disconnect_and_connect_again(setting: &Setting) {
    let mut stage = Stage::open(setting);
    stage.add_target("again", Options::default());
    for _ in 0..5 {
        let (peer, old) = (stage.peers[1].clone(), stage.region(1, "kv"));
        let plan = Plan::write(&stage.near, &old).extents(ONE).build().unwrap();
        assert!(peer.disconnect(PATIENCE), "the other side answers the goodbye");
        assert_eq!(peer.ended(), Some(Cause::PeerClosed));
        let refused = peer.submit(&plan, Submit::new()).map(drop).unwrap_err();
        assert!(matches!(refused, SubmitError::PeerGone { cause: Cause::PeerClosed, .. }), "{refused}");
        assert!(refused.to_string().contains("connect again"), "{refused}");
        assert!(Plan::write(&stage.near, &old).extents(ONE).build().is_err());
        let mut names = vec!["source".to_owned()];
        let until = Instant::now() + PATIENCE;
        while !names.is_empty() && Instant::now() < until {
            names = match stage.ask(1, Command::Peers) {
                Reply::Names(names) => names,
                other => panic!("{other:?}"),
            };
        }
        assert!(names.is_empty(), "the other side knows as well");
        let card = stage.descriptor(1);
        stage.peers[1] = stage.engine.connect(&card, PATIENCE).expect("connecting again works");
        let refused = stage.peers[1].submit(&plan, Submit::new()).map(drop).unwrap_err();
        assert_eq!(refused, SubmitError::ForeignPlan, "a plan of the old session");
        move_one(&stage, 1);
        move_one(&stage, 0);
    }
}

/// Goodbyes between living engines take no time worth mentioning: nobody waits for a deadline.
pub fn leaving_is_quick(setting: &Setting) {
    let mut stage = Stage::open(setting);
    stage.add_target("left-again", Options::default());
    let card = stage.descriptor(1);
    // The quickest of some: a busy machine may hold up any one of them.
    let quickest = |times: Vec<Duration>| times.into_iter().min().expect("there are some");
    let disconnects = (0..5).map(|_| {
        let begun = Instant::now();
        assert!(stage.peers[1].disconnect(PATIENCE));
        let took = begun.elapsed();
        stage.peers[1] = stage.engine.connect(&card, PATIENCE).expect("connecting again works");
        took
    });
    let took = quickest(disconnects.collect());
    assert!(took < Duration::from_millis(200), "a disconnect takes {took:?}");
    let spec = setting.spec(stage.folder.path(), "passing");
    let lives = (0..5).map(|_| {
        let engine = spec.start().expect("an engine starts");
        engine.connect(&card, PATIENCE).expect("a session");
        let begun = Instant::now();
        drop(engine);
        begun.elapsed()
    });
    let took = quickest(lives.collect());
    assert!(took < Duration::from_millis(200), "the end of an engine takes {took:?}");
}

/// The other side ends the session while transfers are under way: they end typed and in time.
pub fn the_other_side_disconnects(setting: &Setting) {
    let mut stage = Stage::sized(setting, 16 << 20);
    let span = Span { local: 0, remote: 0, len: 16 << 20 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    // So many that some are under way when the goodbye comes, also from a peer that waits for a core.
    let transfers: Vec<_> = (0..200).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
    stage.tell(0, Command::Disconnect);
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerClosed));
    let begun = Instant::now();
    let ends: Vec<_> = transfers.iter().map(|transfer| transfer.wait()).collect();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    for fault in ends.iter().filter_map(|end| end.as_ref().err()) {
        assert_eq!(fault.cause, Cause::PeerClosed, "{fault}");
    }
    assert!(ends.iter().any(Result::is_err), "all were faster than the goodbye");
    assert_eq!(stage.hear(0), Reply::Done);
}

/// An engine that was started anew under its name is another engine: the old descriptor says so.
pub fn a_restarted_engine_is_another_one(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let old = stage.descriptor(0);
    stage.order(0, Command::Stop);
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    let refused = stage.engine.connect(&old, Duration::from_secs(5)).map(drop).unwrap_err();
    assert!(matches!(refused, ConnectError::Unreachable { .. }), "{refused}");
    let new = stage.start_engine(0, "target-0", Options::default());
    let refused = stage.engine.connect(&old, Duration::from_secs(5)).map(drop).unwrap_err();
    assert!(refused.to_string().contains("restarted"), "{refused}");
    stage.peers[0] = stage.engine.connect(&new, PATIENCE).unwrap();
    move_one(&stage, 0);
}

/// A process that is killed ends its transfers typed at once, disturbs nobody, and can come back.
pub fn a_killed_process_ends_its_session_only(setting: &Setting) {
    if setting.place == Place::Here {
        return; // Nobody is killed without this process.
    }
    let mut stage = Stage::with(setting, Options { targets: 2, bytes: 8 << 20, ..Options::default() });
    let span = Span { local: 0, remote: 0, len: 8 << 20 };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    let transfers: Vec<_> = (0..4).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
    stage.target(0).kill();
    let begun = Instant::now();
    for transfer in &transfers {
        if let Err(fault) = transfer.wait() {
            assert_eq!(fault.cause, Cause::PeerLost, "{fault}");
        }
    }
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerLost));
    let refused = stage.peer().notify(NoteId(1), b"", Submit::new()).map(drop).unwrap_err();
    assert!(matches!(refused, SubmitError::PeerGone { cause: Cause::PeerLost, .. }), "{refused}");
    move_one(&stage, 1);
    // Memory that the dead could reach is free at once: its process is proven dead.
    assert!(stage.near.revoke(&[(0, 8 << 20)], PATIENCE).unwrap().is_quiesced());
    let again = stage.add_target("target-0", Options::default());
    move_one(&stage, again);
}

/// A second engine of a live engine's name is refused in words, and the first does not notice.
pub fn a_second_engine_of_the_same_name_is_refused(setting: &Setting) {
    let mut stage = Stage::open(setting);
    for name in ["source", "target-0"] {
        let spec = setting.spec(stage.folder.path(), name);
        let refused = spec.start().map(drop).unwrap_err();
        assert!(matches!(refused, StartError::Listen { .. }), "{refused}");
        assert!(refused.to_string().contains("another live engine has this name"), "{refused}");
    }
    move_one(&stage, 0);
    let late = stage.add_target("late", Options::default());
    move_one(&stage, late);
}

/// Several engines of one process are strangers to each other, and each has sessions of its own.
pub fn several_engines_live_in_one_process(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let descriptor = stage.descriptor(0);
    let more: Vec<Engine> = ["second", "third"]
        .iter()
        .map(|name| setting.spec(stage.folder.path(), name).start().expect("another engine starts"))
        .collect();
    for (number, engine) in more.iter().enumerate() {
        let pool = Own::pool(engine, setting.devices.here(), (1 << 20, 4096), "kv").unwrap();
        crate::pattern::fill(&*pool, 50 + number as u64);
        let peer = engine.connect(&descriptor, PATIENCE).expect("each has a session of its own");
        let span = Span { local: 0, remote: (1 + number as u64) * 100_000, len: 50_000 };
        let remote = peer.wait_region("kv", PATIENCE).unwrap();
        let plan = Plan::write(&pool, &remote).extents(&[span]).build().unwrap();
        let how = Submit::new().notify(NoteId(number as u128), b"");
        peer.submit(&plan, how).unwrap().wait().unwrap();
        let foreign = stage.peer().submit(&plan, Submit::new()).map(drop).unwrap_err();
        assert_eq!(foreign, SubmitError::ForeignPlan);
    }
    let mut names: Vec<String> = stage.take_notes(0, 2, PATIENCE).into_iter().map(|note| note.peer).collect();
    names.sort_unstable();
    assert_eq!(names, ["second", "third"]);
    let mut expected = crate::pattern::bytes(FAR_SEED, 0, 1 << 20);
    for number in 0..2_usize {
        let at = (1 + number) * 100_000;
        expected[at..at + 50_000].copy_from_slice(&crate::pattern::bytes(50 + number as u64, 0, 50_000));
    }
    stage.assert_far(0, "kv", &expected);
}

/// Connecting twice finds the session there is; both sides may have connected.
pub fn connecting_twice_finds_the_same_session(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let descriptor = stage.descriptor(0);
    let again = stage.engine.connect(&descriptor, PATIENCE).unwrap();
    assert_eq!(again.epoch(), stage.peer().epoch());
    assert_eq!(stage.engine.peers().len(), 1);
    let ours = stage.engine.descriptor();
    stage.order(0, Command::Connect { descriptor: ours });
    assert_eq!(stage.engine.peers().len(), 1);
    move_one(&stage, 0);
}

/// What is not a descriptor, or is of nobody, is refused in words.
pub fn a_descriptor_of_nobody_is_refused(setting: &Setting) {
    let stage = Stage::open(setting);
    let good = stage.descriptor(0);
    let mut damaged = good.clone();
    *damaged.last_mut().expect("a descriptor has bytes") ^= 1;
    for bad in [&[][..], b"not a descriptor", &good[..good.len() - 1], &damaged] {
        let refused = stage.engine.connect(bad, PATIENCE).map(drop).unwrap_err();
        assert!(matches!(refused, ConnectError::Card(_)), "{refused}");
        assert!(refused.to_string().contains("descriptor"), "{refused}");
    }
    move_one(&stage, 0);
}

/// An engine that comes back under its name is found without a descriptor, in its new life; nothing of the
/// old one is accepted for it.
pub fn a_restarted_engine_is_found_by_its_name(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (old, epoch) = (stage.peer().clone(), stage.peer().epoch());
    let plan = Plan::write(&stage.near, &stage.far()).extents(ONE).build().unwrap();
    let same = stage.engine.reconnect(&old, PATIENCE).expect("its session stands");
    assert_eq!((same.epoch(), stage.engine.peers().len()), (epoch, 1));
    stage.order(0, Command::Stop);
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    // It is looked for while it starts.
    let spec = setting.spec(stage.folder.path(), "target-0");
    stage.tell(0, Command::Start(spec.into()));
    let found = stage.engine.reconnect(&old, PATIENCE).expect("it comes back");
    assert_ne!(found.epoch(), epoch, "another life");
    assert!(matches!(stage.hear(0), Reply::Started { .. }));
    stage.make_pool(0, "kv", 1 << 20, 4096, penstock::Rights::READ_WRITE);
    let refused = old.submit(&plan, Submit::new()).map(drop).unwrap_err();
    assert!(matches!(refused, SubmitError::PeerGone { .. }), "{refused}");
    let refused = found.submit(&plan, Submit::new()).map(drop).unwrap_err();
    assert_eq!(refused, SubmitError::ForeignPlan, "a plan of the old life");
    stage.peers[0] = stage.engine.connect_name("target-0", PATIENCE).expect("the session that stands");
    assert_eq!((stage.peers[0].epoch(), stage.engine.peers().len()), (found.epoch(), 1));
    move_one(&stage, 0);
}

/// Who looks for an engine that does not come hears so by its deadline, with what the last attempt met.
pub fn nobody_of_a_name_is_an_answer_in_time(setting: &Setting) {
    let stage = Stage::open(setting);
    let begun = Instant::now();
    let refused = stage.engine.connect_name("nobody", Duration::from_millis(50)).map(drop).unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(50) && begun.elapsed() < PATIENCE, "{refused}");
    let ConnectError::NotBack { last, .. } = &refused else { panic!("{refused}") };
    assert!(matches!(**last, ConnectError::Unreachable { .. }), "{refused}");
    assert!(refused.to_string().contains("is it running"), "{refused}");
    let refused = stage.engine.connect_name("../nobody", PATIENCE).map(drop).unwrap_err();
    assert!(matches!(refused, ConnectError::Name(_)), "{refused}");
    move_one(&stage, 0);
}
