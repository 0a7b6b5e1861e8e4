//! Sessions whose memory is reached by cards: what the runtime does with fences, rails and transport messages.

#[path = "sessions/double.rs"]
mod double;
#[path = "sessions/hosts.rs"]
mod hosts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock::config::Progress;
use penstock::transport::Failure;
use penstock::{
    CancelOutcome, Cause, Engine, HostMemory, LocalQuiesce, NoteId, Plan, Pool, PoolSpec, RemoteQuiesce, RenewError,
    Rights, Span, Stage, Submit, SystemEnv,
};

use double::{Cards, Seen};
use hosts::{E, Folder, P, SOON, call, config, until};

/// Nobody marks these lanes as ready, so their workers look for themselves.
fn start(config: penstock::Config, splits: bool) -> (E, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let cards = Cards { name: "cards", splits, seen: Arc::clone(&seen) };
    (Engine::start_with(SystemEnv, config.progress(Progress::Busy), vec![Arc::new(cards)]).unwrap(), seen)
}

struct Pair {
    near: (E, Arc<Seen>),
    far: (E, Arc<Seen>),
    peer: P,
    _folder: Folder,
}

fn pair(label: &str, workers: usize, splits: bool) -> Pair {
    let folder = Folder::new(label);
    let far = start(config(&folder, "far").listen(["127.0.0.1:0"]), splits);
    let near = start(config(&folder, "near").workers(workers), splits);
    let peer = call(&near.0, &far.0);
    until("the other side has the session, too", || far.0.peers().len() == 1);
    Pair { near, far, peer, _folder: folder }
}

fn pool(engine: &E, bytes: u64) -> Pool<SystemEnv> {
    engine.pool(PoolSpec::host(bytes).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap()
}

#[test]
fn one_worker_posts_a_large_transfer_where_its_transport_says_that_one_is_enough() {
    const BYTES: u64 = 32 << 20;
    for splits in [false, true] {
        let pair = pair(&format!("splits-{splits}"), 3, splits);
        let (here, _there) = (pool(&pair.near.0, BYTES), pool(&pair.far.0, BYTES));
        let remote = pair.peer.wait_region("kv", SOON).unwrap();
        let whole = [Span { local: 0, remote: 0, len: BYTES }];
        let plan = Plan::write(&here, &remote).extents(&whole).build().unwrap();
        for _ in 0..6 {
            pair.near.1.posts.lock().unwrap().clear();
            let done = pair.peer.submit(&plan, Submit::new().within(SOON)).unwrap().wait().unwrap();
            assert_eq!(done.bytes, BYTES);
            let workers: BTreeSet<usize> = pair.near.1.posts.lock().unwrap().iter().copied().collect();
            assert!(splits || workers.len() == 1, "a transfer was posted by workers {workers:?}");
        }
        if splits {
            until("each of six transfers went to three workers", || pair.near.0.statistics().commands == 18);
        }
    }
}

/// Long enough that half of it is not a moment on a busy machine.
const WITHIN: Duration = Duration::from_millis(400);

#[test]
fn a_revoke_waits_until_the_cards_have_passed_its_own_revision() {
    let pair = pair("passes", 1, false);
    let (pool, fence) = (pool(&pair.far.0, 1 << 20), pair.far.1.session());
    assert!(!pool.revoke(&[(0, 4096)], WITHIN / 4).unwrap().is_quiesced(), "nobody has passed");
    fence.forced.lock().unwrap().clear();
    let begun = Instant::now();
    let passes = {
        let fence = Arc::clone(&fence);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            fence.passed.store(1, Ordering::SeqCst); // Of the withdrawal before.
            std::thread::sleep(Duration::from_millis(50));
            fence.passed.store(3, Ordering::SeqCst);
        })
    };
    let hold = pool.revoke(&[(4096, 4096), (16384, 4096)], SOON).unwrap();
    assert!(hold.is_quiesced(), "{hold:?}");
    assert!(begun.elapsed() >= Duration::from_millis(100) && begun.elapsed() < SOON / 2, "{:?}", begun.elapsed());
    assert_eq!(*fence.forced.lock().unwrap(), [0; 0], "nobody is cut off who answers");
    passes.join().unwrap();
    // The other side hears of each withdrawal, and its cards are to say when they are done.
    let theirs = pair.near.1.session();
    until("the other side was told", || theirs.told.revision() == 3 && theirs.news.load(Ordering::SeqCst) > 0);
}

#[test]
fn a_peer_that_does_not_answer_is_cut_off_after_half_the_time() {
    let pair = pair("forced", 1, false);
    let (pool, fence) = (pool(&pair.far.0, 1 << 20), pair.far.1.session());
    fence.obeys.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let hold = pool.revoke(&[(0, 4096)], WITHIN).unwrap();
    assert!(hold.is_quiesced(), "{hold:?}");
    assert!(begun.elapsed() >= WITHIN / 2, "it had {:?}", begun.elapsed());
    assert_eq!(*fence.forced.lock().unwrap(), [1], "asked once, for what was withdrawn");
    // A deregistration is one more withdrawal, and as safe.
    let hold = pool.deregister(WITHIN).unwrap();
    assert!(hold.is_quiesced(), "{hold:?}");
    assert_eq!(*fence.forced.lock().unwrap(), [1, 2]);
    assert!(pair.far.0.quarantined().is_empty());
    let now = pair.far.0.pool(PoolSpec::host(1 << 20).block(4096).label("next")).unwrap();
    assert!(now.revoke(&[(0, 4096)], Duration::ZERO).is_ok());
    assert_eq!(*fence.forced.lock().unwrap(), [1, 2, 3], "without any time at once");
}

#[test]
fn cards_that_cannot_be_cut_off_in_time_leave_a_quarantine_that_ends_with_their_proof() {
    let pair = pair("quarantine", 1, false);
    let (pool, fence) = (pool(&pair.far.0, 1 << 20), pair.far.1.session());
    let LocalQuiesce::Quarantined(held) = pool.revoke(&[(0, 4096)], WITHIN / 4).unwrap() else {
        panic!("nobody has passed")
    };
    let names: Vec<String> = held.suspects().iter().map(|name| name.as_ref().unwrap().to_string()).collect();
    assert_eq!(names, ["near"]);
    assert!(!held.is_released());
    let error = pool.renew(&held, WITHIN / 4).unwrap_err();
    assert!(matches!(&error, RenewError::Inside { who, .. } if who.contains("card")), "{error}");
    assert!(error.to_string().contains("disconnect"), "it says what to do: {error}");
    // Who has more time waits for the cards, and has them cut off after half of it.
    fence.forced.lock().unwrap().clear();
    fence.obeys.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    pool.renew(&held, WITHIN).unwrap();
    assert!(begun.elapsed() >= WITHIN / 2 && held.is_released() && !held.is_renewed(), "there was no need");
    assert_eq!(*fence.forced.lock().unwrap(), [1]);
    assert!(pair.far.0.quarantined().is_empty());
}

#[test]
fn a_session_that_has_ended_is_looked_at_until_its_lanes_are_gone() {
    let pair = pair("lanes", 1, false);
    let (pool, fence) = (pool(&pair.far.0, 1 << 20), pair.far.1.session());
    pair.far.1.holds_lanes.store(true, Ordering::SeqCst);
    let there = pair.far.0.peers().remove(0);
    drop((pair.near, pair.peer));
    until("the session is over here", || there.ended().is_some());
    let LocalQuiesce::Quarantined(held) = pool.revoke(&[(0, 4096)], WITHIN / 4).unwrap() else {
        panic!("the lane is there")
    };
    assert_eq!(fence.dropped.load(Ordering::SeqCst), 0);
    assert!(!held.is_released());
    pair.far.1.holds_lanes.store(false, Ordering::SeqCst);
    until("what a lane held is quiet without it", || held.is_released());
    assert_eq!(fence.dropped.load(Ordering::SeqCst), 1);
    assert!(pool.revoke(&[(0, 4096)], SOON).unwrap().is_quiesced());
}

#[test]
fn a_card_that_does_not_give_back_what_a_lane_had_withholds_memory_after_the_session_as_well() {
    let pair = pair("unproven", 1, false);
    let (pool, fence) = (pool(&pair.far.0, 1 << 20), pair.far.1.session());
    fence.unproven.store(true, Ordering::SeqCst);
    let there = pair.far.0.peers().remove(0);
    drop((pair.near, pair.peer));
    until("the session is over here", || there.ended().is_some());
    until("its lanes are gone", || fence.dropped.load(Ordering::SeqCst) == 1);
    let LocalQuiesce::Quarantined(held) = pool.revoke(&[(0, 4096)], WITHIN / 4).unwrap() else {
        panic!("the card may go on")
    };
    assert!(!held.is_released());
    fence.unproven.store(false, Ordering::SeqCst);
    until("it has given it back", || held.is_released());
}

#[test]
fn what_a_card_has_sent_is_open_until_the_other_engine_has_let_go() {
    let pair = pair("open", 1, false);
    let (here, _there) = (pool(&pair.near.0, 1 << 20), pool(&pair.far.0, 1 << 20));
    let remote = pair.peer.wait_region("kv", SOON).unwrap();
    let plan = Plan::write(&here, &remote).extents(&[Span { local: 0, remote: 0, len: 4096 }]).build().unwrap();
    pair.near.1.keeps.store(true, Ordering::SeqCst);
    let transfer = pair.peer.submit(&plan, Submit::new().within(SOON)).unwrap();
    until("it is under way", || !pair.near.1.posts.lock().unwrap().is_empty());
    let CancelOutcome { local, remote } = transfer.cancel(SOON / 4);
    assert!(local.is_quiesced(), "{local:?}");
    let RemoteQuiesce::Quarantined(held) = remote else { panic!("it may still land: {remote:?}") };
    assert!(!held.is_released());
    drop(pair.far);
    until("who says goodbye has let go", || held.is_released());
}

#[test]
fn what_a_card_has_acknowledged_is_open_until_it_is_proven_to_be_placed() {
    let pair = pair("acknowledged", 1, false);
    let (here, _there) = (pool(&pair.near.0, 1 << 20), pool(&pair.far.0, 1 << 20));
    let (remote, seen) = (pair.peer.wait_region("kv", SOON).unwrap(), &pair.near.1);
    let plan = Plan::write(&here, &remote).extents(&[Span { local: 0, remote: 0, len: 4096 }]).build().unwrap();
    // Acknowledged before the cancel, and nothing of it is under way; or at its own deadline.
    for is_cancelled in [true, false] {
        let proofs = seen.proofs.load(Ordering::SeqCst);
        seen.is_choked.store(true, Ordering::SeqCst);
        seen.proves_later.store(true, Ordering::SeqCst);
        seen.keeps_proofs.store(true, Ordering::SeqCst);
        let within = if is_cancelled { SOON } else { WITHIN / 8 };
        let how = Submit::new().notify(NoteId(1), b"never").within(within);
        let transfer = pair.peer.submit(&plan, how).unwrap();
        until("its bytes are acknowledged", || transfer.bytes_moved() == 4096);
        if !is_cancelled {
            assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeadlineExceeded);
        }
        let CancelOutcome { local, remote } = transfer.cancel(WITHIN / 8);
        assert!(local.is_quiesced(), "{local:?}");
        let RemoteQuiesce::Quarantined(held) = remote else { panic!("it may still be placed: {remote:?}") };
        assert_eq!(transfer.wait().unwrap_err().bytes, 4096, "its end does not wait for the proof");
        assert!(!held.is_released());
        seen.proves_later.store(false, Ordering::SeqCst);
        until("the proof is asked for", || seen.proofs.load(Ordering::SeqCst) == proofs + 1);
        assert!(!held.is_released());
        assert!(matches!(transfer.cancel(WITHIN / 8).remote, RemoteQuiesce::Quarantined(_)));
        seen.keeps_proofs.store(false, Ordering::SeqCst);
        until("the proof has come", || held.is_released());
        assert!(matches!(transfer.cancel(WITHIN).remote, RemoteQuiesce::Quiesced));
        drop((transfer, held));
        until("its place is free", || pair.near.0.transfers_held() == 0);
    }
    // Where the peer answers, a cancel has waited for it.
    let transfer = pair.peer.submit(&plan, Submit::new().notify(NoteId(1), b"never").within(SOON)).unwrap();
    until("its bytes are acknowledged", || transfer.bytes_moved() == 4096);
    assert!(matches!(transfer.cancel(SOON).remote, RemoteQuiesce::Quiesced));
    assert_eq!(seen.proofs.load(Ordering::SeqCst), 3);
}

#[test]
fn a_session_that_ends_lets_go_of_what_was_not_proven() {
    // Nobody has asked for the proof yet, or it was asked for and does not come.
    for is_asked_for in [false, true] {
        let pair = pair(&format!("unproven-{is_asked_for}"), 1, false);
        let (here, _there) = (pool(&pair.near.0, 1 << 20), pool(&pair.far.0, 1 << 20));
        let (remote, seen) = (pair.peer.wait_region("kv", SOON).unwrap(), &pair.near.1);
        let plan = Plan::write(&here, &remote).extents(&[Span { local: 0, remote: 0, len: 4096 }]).build().unwrap();
        seen.is_choked.store(true, Ordering::SeqCst);
        seen.proves_later.store(!is_asked_for, Ordering::SeqCst);
        seen.keeps_proofs.store(true, Ordering::SeqCst);
        let how = || Submit::new().notify(NoteId(1), b"never").within(SOON);
        let transfers: Vec<_> = (0..3).map(|_| pair.peer.submit(&plan, how()).unwrap()).collect();
        for transfer in &transfers {
            until("its bytes are acknowledged", || transfer.bytes_moved() == 4096);
            assert!(matches!(transfer.cancel(WITHIN / 20).remote, RemoteQuiesce::Quarantined(_)));
        }
        until("each was asked for", || seen.proofs.load(Ordering::SeqCst) == if is_asked_for { 3 } else { 0 });
        drop(transfers);
        assert_eq!(pair.near.0.transfers_held(), 3, "their places wait for the proofs");
        drop(pair.far);
        until("no place is held for a session that is over", || pair.near.0.transfers_held() == 0);
    }
}

#[test]
fn what_ends_well_or_carried_nothing_needs_no_proof() {
    let pair = pair("proven", 1, false);
    let (here, _there) = (pool(&pair.near.0, 1 << 20), pool(&pair.far.0, 1 << 20));
    let (remote, seen) = (pair.peer.wait_region("kv", SOON).unwrap(), &pair.near.1);
    let span = [Span { local: 0, remote: 0, len: 4096 }];
    let write = Plan::write(&here, &remote).extents(&span).build().unwrap();
    let read = Plan::read(&here, &remote).extents(&span).build().unwrap();
    let is_quiet = |transfer: &penstock::Transfer<SystemEnv>| {
        let CancelOutcome { local, remote } = transfer.cancel(Duration::ZERO);
        local.is_quiesced() && matches!(remote, RemoteQuiesce::Quiesced)
    };
    for how in [Submit::new(), Submit::new().notify(NoteId(1), b"there")] {
        let transfer = pair.peer.submit(&write, how).unwrap();
        transfer.wait().unwrap();
        assert!(is_quiet(&transfer));
    }
    seen.is_choked.store(true, Ordering::SeqCst);
    for plan in [Some(&read), None] {
        let how = Submit::new().within(WITHIN / 8);
        let transfer = match plan {
            Some(plan) => pair.peer.submit(plan, how.notify(NoteId(1), b"never")).unwrap(),
            None => pair.peer.notify(NoteId(1), b"never", how).unwrap(),
        };
        assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeadlineExceeded);
        assert!(is_quiet(&transfer));
    }
    assert_eq!(seen.proofs.load(Ordering::SeqCst), 0);
}

#[test]
fn lanes_talk_aside_from_any_thread_in_order_and_at_length() {
    let pair = pair("asides", 2, false);
    let (near, far) = (pair.near.1.session(), pair.far.1.session());
    let words: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; usize::from(number) * 41]).collect();
    let longest = vec![7; penstock::transport::link::TRANSPORT_MESSAGE_BYTES_MAX];
    std::thread::scope(|scope| {
        scope.spawn(|| words.iter().for_each(|words| near.say(words)));
        scope.spawn(|| far.say(&longest));
    });
    until("all of it is heard", || far.heard.lock().unwrap().len() == 100 && near.heard.lock().unwrap().len() == 1);
    assert_eq!(*far.heard.lock().unwrap(), words);
    assert_eq!(*near.heard.lock().unwrap(), [longest]);
    assert!(pair.peer.ended().is_none());
    assert!(pair.peer.disconnect(SOON));
    near.say(b"nobody is there any more");
    far.say(b"nor here");
    assert_eq!((far.heard.lock().unwrap().len(), near.heard.lock().unwrap().len()), (100, 1));
}

#[test]
fn an_inline_engine_talks_aside_in_its_own_turns() {
    let folder = Folder::new("asides-inline");
    let (far, there) = start(config(&folder, "far").listen(["127.0.0.1:0"]), false);
    let seen = Arc::new(Seen::default());
    let cards = Cards { name: "cards", splits: false, seen: Arc::clone(&seen) };
    let near = config(&folder, "near").progress(Progress::Inline);
    let near = Engine::start_with(SystemEnv, near, vec![Arc::new(cards)]).unwrap();
    let _peer = call(&near, &far);
    until("the other side has the session, too", || far.peers().len() == 1);
    seen.session().say(b"from the engine's thread");
    std::thread::scope(|scope| {
        let session = seen.session();
        scope.spawn(move || session.say(b"from another"));
    });
    there.session().say(b"and back");
    until("both are heard", || {
        near.progress().unwrap();
        there.session().heard.lock().unwrap().len() == 2 && seen.session().heard.lock().unwrap().len() == 1
    });
}

#[test]
fn nonsense_said_aside_ends_the_session_with_its_cause() {
    let pair = pair("nonsense", 1, false);
    pair.near.1.session().say(b"nonsense");
    let there = pair.far.0.peers().remove(0);
    until("the session is over on both sides", || pair.peer.ended().is_some() && there.ended().is_some());
    assert_eq!(there.ended(), Some(Cause::PeerCorrupt));
    until("nothing of it is left", || pair.far.0.peers().is_empty() && pair.near.0.peers().is_empty());
}

#[test]
fn who_hears_that_packets_do_not_pass_says_between_whom_and_what_to_do() {
    let pair = pair("no-path", 1, false);
    pair.far.1.session().say(b"no path");
    until("the session is over", || pair.peer.ended() == Some(Cause::NoPath));
    let (address, loss) = (pair.peer.address().unwrap().to_string(), pair.peer.loss().unwrap());
    assert!(loss.starts_with(&address) && loss.contains("let UDP pass"), "{loss}");
}

#[test]
fn words_aside_to_a_session_that_has_none_are_nonsense() {
    let folder = Folder::new("none");
    let (far, there) = start(config(&folder, "far").listen(["127.0.0.1:0"]), false);
    let silent = Arc::new(Seen::default());
    silent.is_silent.store(true, Ordering::SeqCst);
    let cards = Cards { name: "cards", splits: false, seen: silent };
    let near = Engine::start_with(SystemEnv, config(&folder, "near"), vec![Arc::new(cards)]).unwrap();
    let peer = call(&near, &far);
    until("the other side has the session, too", || far.peers().len() == 1);
    assert!(peer.ended().is_none());
    there.session().say(b"is anybody there?");
    until("who does not know what that is ends the session", || peer.ended() == Some(Cause::PeerCorrupt));
}

#[test]
fn a_transport_forgets_every_region_once_when_it_is_quiet_or_given_up() {
    let pair = pair("forget", 1, false);
    let (far, seen) = pair.far;
    let forgotten = || seen.forgotten.lock().unwrap().clone();
    let label = |label: &str| PoolSpec::host(1 << 20).block(4096).label(label);
    let memory = HostMemory::from_vec(vec![0; 8192]).unwrap();
    let register = || far.register(memory.part(0, 8192).unwrap(), "twice", Rights::READ).unwrap();
    let (twice, again) = (register(), register());
    assert!(matches!(twice.deregister(SOON), Ok(LocalQuiesce::StillRegistered(1))));
    assert_eq!(forgotten(), [], "it is registered once more");
    let slow = std::thread::spawn(move || again.deregister(SOON).unwrap().is_quiesced());
    std::thread::sleep(WITHIN / 4);
    assert_eq!(forgotten(), [], "nobody has proven anything yet");
    seen.session().passed.store(1, Ordering::SeqCst);
    assert!(slow.join().unwrap());
    assert_eq!(forgotten(), [(0, 0)]);
    // The same id in its next use.
    let pool = far.pool(label("quarantined")).unwrap();
    assert!(matches!(pool.deregister(WITHIN / 8), Ok(LocalQuiesce::Quarantined(_))));
    assert_eq!(forgotten(), [(0, 0), (0, 1)]);
    let (kept, other) = (far.pool(label("kept")).unwrap(), far.pool(label("other")).unwrap());
    assert!(pair.peer.wait_region("other", SOON).is_ok());
    // The engine ends while it still waits for its proof.
    let late = std::thread::spawn(move || other.deregister(SOON));
    until("its peer has heard that it is gone", || pair.peer.region("other").is_err());
    drop(far);
    let mut all = forgotten();
    all.sort_unstable();
    assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 0)]);
    drop(late.join().unwrap());
    assert!(kept.deregister(SOON).is_err());
    assert_eq!(forgotten().len(), 4, "each of them once");
}

#[test]
fn a_fault_names_the_rail_on_which_it_ended() {
    let pair = pair("rails", 1, false);
    let (here, _there) = (pool(&pair.near.0, 1 << 20), pool(&pair.far.0, 1 << 20));
    let remote = pair.peer.wait_region("kv", SOON).unwrap();
    let plan = Plan::write(&here, &remote).extents(&[Span { local: 0, remote: 0, len: 4096 }]).build().unwrap();
    assert_eq!(pair.peer.rails(), ["a0/1", "a1/1"]);
    let how = || Submit::new().within(SOON).notify(NoteId(1), b"there");
    let end = || pair.peer.submit(&plan, how()).unwrap().wait().unwrap_err();
    *pair.near.1.failure.lock().unwrap() = Some(Failure::on(1, Cause::MemoryGone));
    let fault = end();
    assert_eq!((fault.stage, fault.cause, fault.rail.as_deref()), (Stage::Move, Cause::MemoryGone, Some("a1/1")));
    assert!(fault.to_string().contains("moving bytes on rail `a1/1`: "), "{fault}");
    // One that nobody named, and none at all.
    *pair.near.1.failure.lock().unwrap() = Some(Failure::on(9, Cause::MemoryGone));
    assert_eq!(end().rail, None);
    *pair.near.1.failure.lock().unwrap() = Some(Cause::MemoryGone.into());
    assert_eq!(end().rail, None);
    *pair.near.1.failure.lock().unwrap() = None;
    *pair.near.1.unreported.lock().unwrap() = Some(Failure::on(0, Cause::PeerCorrupt));
    let fault = end();
    assert_eq!((fault.stage, fault.cause, fault.rail.as_deref()), (Stage::Notify, Cause::PeerCorrupt, Some("a0/1")));
}
