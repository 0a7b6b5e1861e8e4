//! What RDMA cards can do to an engine: rails that fail, keys that are refused, silence, peers that do not answer.

use std::time::{Duration, Instant};

use penstock::config::Progress;
use penstock::{Cause, NoteId, Notified, Submit, Transfer};
use penstock_faults::pair::{PATIENCE, submit};
use penstock_faults::rails::{Rails, Severing, holds, lay};

const THREADS: (Progress, Progress) = (Progress::Adaptive, Progress::Adaptive);
const LARGE: u64 = 64 << 20;
const SMALL: u64 = 64 << 10;

/// How long it takes until a session without any rail is given up, and some more: the machine may be busy.
const GIVEN_UP: Duration = Duration::from_secs(8);

fn begun(transfer: &Transfer<Severing>) {
    let since = Instant::now();
    while transfer.bytes_moved() == 0 && transfer.poll().is_none() {
        assert!(since.elapsed() < PATIENCE, "it does not begin");
        std::thread::yield_now();
    }
}

/// The ids of the notifications that have come to the far engine, at least so many.
fn notes(rails: &Rails, count: usize) -> Vec<u128> {
    let mut taken = Vec::new();
    rails.until("the notifications are there", || {
        rails.far.engine.notifications(&mut taken);
        taken.len() >= count
    });
    std::thread::sleep(Duration::from_millis(20));
    rails.far.engine.notifications(&mut taken);
    taken.iter().map(|note| note.id.0).collect()
}

/// What can become of one rail of two.
#[derive(Debug, Clone, Copy)]
enum Loss {
    PortHere,
    PortThere,
    Silence,
    Queue,
}

fn lose(rails: &Rails, loss: Loss) {
    let (near, far) = (&rails.near.cards[1], &rails.far.cards[1]);
    match loss {
        Loss::PortHere => near.set_port(false),
        Loss::PortThere => far.set_port(false),
        Loss::Silence => rails.network.cut(near, far),
        Loss::Queue => near.break_after(0),
    }
}

fn mend(rails: &Rails, loss: Loss) {
    let (near, far) = (&rails.near.cards[1], &rails.far.cards[1]);
    match loss {
        Loss::PortHere => near.set_port(true),
        Loss::PortThere => far.set_port(true),
        Loss::Silence => rails.network.mend(near, far),
        Loss::Queue => {}
    }
}

#[test]
fn one_of_two_rails_is_lost_in_mid_transfer_and_no_byte_or_notification_with_it() {
    for loss in [Loss::PortHere, Loss::PortThere, Loss::Silence, Loss::Queue] {
        let rails = Rails::open(&format!("cards-{loss:?}"), 2, THREADS);
        let (near, far) = (rails.near.pool("kv", LARGE), rails.far.pool("kv", LARGE));
        let (small, many) = (rails.near.pool("many", SMALL), rails.far.pool("many", SMALL));
        lay(near.window(), 1);
        lay(small.window(), 2);
        let plan = rails.write(&near, "kv", LARGE);
        let little = rails.write(&small, "many", SMALL);
        let how = |id| Submit::new().notify(NoteId(id), b"moved").within(2 * PATIENCE);
        let large = submit(&rails.peer, &plan, how(1000));
        let mut others = Vec::new();
        begun(&large);
        lose(&rails, loss);
        for id in 0..50 {
            others.push(submit(&rails.peer, &little, how(id)));
        }
        assert_eq!(large.wait().unwrap_or_else(|fault| panic!("{loss:?}: {fault}")).bytes, LARGE);
        for other in &others {
            let done = other.wait().unwrap_or_else(|fault| panic!("{loss:?}: {fault}"));
            assert_eq!((done.bytes, done.notified), (SMALL, Notified::Yes));
        }
        let mut told = notes(&rails, 51);
        told.sort_unstable();
        assert_eq!(told, (0..50).chain([1000]).collect::<Vec<_>>(), "{loss:?}: each was told once");
        assert!(holds(far.window(), 1, LARGE) && holds(many.window(), 2, SMALL), "{loss:?}: bytes are wrong");
        mend(&rails, loss);
        let before = rails.near.cards[1].counts().bytes;
        rails.until("the rail is used again", || {
            submit(&rails.peer, &plan, Submit::new().within(PATIENCE)).wait().expect("nothing is wrong any more");
            rails.near.cards[1].counts().bytes > before
        });
        assert_eq!(rails.peer.ended(), None);
    }
}

#[test]
fn a_refused_key_ends_its_own_transfer_and_no_other() {
    for count in [1, 2] {
        let rails = Rails::open(&format!("cards-refused-{count}"), count, THREADS);
        let (near, guilty) = (rails.near.pool("kv", 1 << 20), rails.far.pool("guilty", 1 << 20));
        let innocent = rails.far.pool("innocent", 1 << 20);
        lay(near.window(), 1);
        lay(guilty.window(), 2);
        let (bad, good) = (rails.write(&near, "guilty", 1 << 20), rails.write(&near, "innocent", 1 << 20));
        submit(&rails.peer, &bad, Submit::new()).wait().expect("its key is good yet");
        lay(guilty.window(), 2);
        for card in &rails.far.cards {
            card.refuse_keys(guilty.window());
        }
        let how = |id| Submit::new().notify(NoteId(id), b"").within(PATIENCE);
        let mut transfers = Vec::new();
        for id in 0..40 {
            let plan = if id % 10 == 5 { &bad } else { &good };
            transfers.push((id, submit(&rails.peer, plan, how(id))));
        }
        for (id, transfer) in &transfers {
            match transfer.wait() {
                Ok(done) => assert!(id % 10 != 5 && done.bytes == 1 << 20, "{id}"),
                Err(fault) => {
                    assert!(id % 10 == 5, "{id} is innocent: {fault}");
                    assert_eq!(fault.cause, Cause::AccessRefused, "{fault}");
                    assert!(fault.rail.as_ref().is_some_and(|rail| rail.contains("model")), "{fault}");
                }
            }
        }
        let mut told = notes(&rails, 36);
        told.sort_unstable();
        assert_eq!(told, (0..40).filter(|id| id % 10 != 5).collect::<Vec<_>>(), "each was told once");
        assert!(holds(innocent.window(), 1, 1 << 20) && holds(guilty.window(), 2, 1 << 20), "bytes are wrong");
        assert_eq!(rails.peer.ended(), None, "the session stands");
    }
}

#[test]
fn silence_ends_the_session_with_its_cause_in_time_and_it_can_be_made_again() {
    let mut rails = Rails::open("cards-silence", 2, THREADS);
    let (near, far) = (rails.near.pool("kv", LARGE), rails.far.pool("kv", LARGE));
    lay(near.window(), 1);
    let plan = rails.write(&near, "kv", LARGE);
    let transfers: Vec<_> = (0..3).map(|_| submit(&rails.peer, &plan, Submit::new().within(3 * GIVEN_UP))).collect();
    begun(&transfers[0]);
    let since = Instant::now();
    for (near, far) in rails.near.cards.iter().zip(&rails.far.cards) {
        rails.network.cut(near, far);
    }
    let ends: Vec<_> = transfers.iter().map(Transfer::wait).collect();
    assert!(since.elapsed() < GIVEN_UP, "{:?}", since.elapsed());
    let faults: Vec<_> = ends.iter().filter_map(|end| end.as_ref().err()).collect();
    assert!(!faults.is_empty(), "all were faster than the cut");
    assert!(faults.iter().all(|fault| fault.cause == Cause::PeerLost), "{faults:?}");
    rails.until("both sides have given up", || {
        rails.peer.ended() == Some(Cause::PeerLost) && rails.far.engine.peers().is_empty()
    });
    for (near, far) in rails.near.cards.iter().zip(&rails.far.cards) {
        rails.network.mend(near, far);
    }
    rails.connect_again();
    let plan = rails.write(&near, "kv", LARGE);
    submit(&rails.peer, &plan, Submit::new().within(PATIENCE)).wait().expect("the way is whole again");
    assert!(holds(far.window(), 1, LARGE));
}

#[test]
fn a_receiver_that_does_not_poll_receives_bytes_and_hears_everything_later() {
    let rails = Rails::open("cards-rests", 1, (Progress::Adaptive, Progress::Inline));
    let (near, far) = (rails.near.pool("kv", SMALL), rails.far.pool("kv", SMALL));
    lay(near.window(), 1);
    rails.until("the pool is announced", || rails.peer.region("kv").is_ok());
    let plan = rails.write(&near, "kv", SMALL);
    let bare = submit(&rails.peer, &plan, Submit::new().within(PATIENCE));
    assert_eq!(bare.wait().expect("bytes need nobody there").bytes, SMALL);
    assert!(holds(far.window(), 1, SMALL));
    let how = |id| Submit::new().notify(NoteId(id), b"later").within(2 * PATIENCE);
    let told: Vec<_> = (0..500).map(|id| submit(&rails.peer, &plan, how(id))).collect();
    // Longer than any card waits for a receive.
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(rails.peer.ended(), None, "{:?}", told.iter().find_map(|told| told.poll()?.err()));
    assert!(told.iter().all(|told| told.poll().is_none_or(|end| end.is_ok())));
    let mut heard = notes(&rails, 500);
    heard.sort_unstable();
    assert_eq!(heard, (0..500).collect::<Vec<_>>());
    rails.until("all have ended", || told.iter().all(|told| told.poll().is_some()));
    assert!(
        told.iter().all(|told| told.poll().is_some_and(|end| end.is_ok_and(|done| done.notified == Notified::Yes)))
    );
}

#[test]
fn memory_is_had_back_from_a_peer_that_does_not_answer_and_nothing_lands_there_afterwards() {
    for count in [1, 2] {
        let rails = Rails::open(&format!("cards-frozen-{count}"), count, (Progress::Inline, Progress::Adaptive));
        let (near, far) = (rails.near.pool("kv", 8 << 20), rails.far.pool("kv", 8 << 20));
        let other = rails.far.pool("other", 8 << 20);
        lay(near.window(), 1);
        rails.until("the pools are announced", || ["kv", "other"].iter().all(|label| rails.peer.region(label).is_ok()));
        let (plan, spared) = (rails.write(&near, "kv", 8 << 20), rails.write(&near, "other", 8 << 20));
        let how = |id| Submit::new().notify(NoteId(id), b"").within(3 * PATIENCE);
        for card in &rails.near.cards {
            card.hold();
        }
        let guilty = submit(&rails.peer, &plan, how(1));
        let innocent = submit(&rails.peer, &spared, how(2));
        for _ in 0..20 {
            rails.near.engine.progress_all().expect("this thread started it");
        }
        // From here on nobody turns the initiator, and its cards hold what it has posted.
        assert!(rails.near.counts().iter().map(|counts| counts.requests).sum::<u64>() > 0);
        let since = Instant::now();
        let held = far.revoke(&[(0, 8 << 20)], Duration::from_secs(2)).expect("it is the owner's");
        assert!(held.is_quiesced(), "{held:?}");
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        lay(far.window(), 3);
        for card in &rails.near.cards {
            card.release();
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(holds(far.window(), 3, 8 << 20), "bytes landed after the answer");
        rails.until("both have ended", || guilty.poll().is_some() && innocent.poll().is_some());
        assert_eq!(guilty.wait().expect_err("its memory is gone").cause, Cause::RevokedByPeer);
        assert_eq!(innocent.wait().unwrap_or_else(|fault| panic!("innocent: {fault}")).bytes, 8 << 20);
        assert!(holds(other.window(), 1, 8 << 20) && holds(far.window(), 3, 8 << 20));
        assert_eq!(notes(&rails, 1), [2]);
        assert_eq!(rails.peer.ended(), None, "the session stands");
    }
}

#[test]
fn sessions_that_come_and_go_leave_cards_as_they_were() {
    const CYCLES: usize = 200;
    let mut rails = Rails::open("cards-cycles", 2, THREADS);
    let (near, far) = (rails.near.pool("kv", 1 << 20), rails.far.pool("kv", 1 << 20));
    lay(near.window(), 1);
    let counts = |rails: &Rails| -> Vec<_> {
        let both = [&rails.near, &rails.far].map(|peer_index| peer_index.counts());
        both.iter().flatten().map(|counts| (counts.queues, counts.registrations)).collect()
    };
    let mut first = None;
    for cycle in 0..CYCLES {
        let plan = rails.write(&near, "kv", 1 << 20);
        submit(&rails.peer, &plan, Submit::new().within(PATIENCE)).wait().expect("the session works");
        assert!(holds(far.window(), 1, 1 << 20));
        let standing = counts(&rails);
        assert_eq!(*first.get_or_insert_with(|| standing.clone()), standing, "cycle {cycle}");
        lay(far.window(), 2);
        let under_way: Vec<_> = (0..4).map(|_| submit(&rails.peer, &plan, Submit::new().within(PATIENCE))).collect();
        match cycle % 3 {
            0 => assert!(rails.peer.disconnect(PATIENCE)),
            1 => rails.near.wire.sever(),
            _ => {
                rails.network.cut(&rails.near.cards[0], &rails.far.cards[0]);
                rails.near.wire.sever();
            }
        }
        for transfer in under_way {
            if let Err(fault) = transfer.wait() {
                assert!([Cause::PeerLost, Cause::PeerClosed].contains(&fault.cause), "{fault}");
            }
        }
        rails.until("both sides know of the end", || {
            rails.peer.ended().is_some() && rails.far.engine.peers().is_empty()
        });
        rails.network.mend(&rails.near.cards[0], &rails.far.cards[0]);
        rails.until("the queues are gone", || counts(&rails).iter().all(|(queues, _)| *queues == 0));
        rails.connect_again();
    }
}

#[test]
fn memory_that_is_long_in_pinning_is_told_later_and_holds_up_nobody() {
    const PINNED: Duration = Duration::from_millis(1500);
    let rails = Rails::open("cards-pinning", 2, THREADS);
    let (near, far) = (rails.near.pool("kv", SMALL), rails.far.pool("kv", SMALL));
    lay(near.window(), 1);
    let plan = rails.write(&near, "kv", SMALL);
    let taken_back = rails.far.pool("taken back", SMALL);
    let withdrawn = rails.write(&near, "taken back", SMALL);
    rails.far.cards.iter().for_each(|card| card.pin_for(PINNED));
    let slow = rails.far.pool("slow", SMALL);
    let begun = Instant::now();
    // Whoever asks whether it lives is answered, other memory goes on, and is taken back.
    let (mut slowest, mut moves) = (Duration::ZERO, 0);
    while begun.elapsed() < PINNED {
        let asked = Instant::now();
        rails.peer.refresh(PATIENCE).unwrap();
        slowest = slowest.max(asked.elapsed());
        submit(&rails.peer, &plan, Submit::new().within(PATIENCE)).wait().unwrap();
        moves += 1;
        if moves == 3 {
            assert!(taken_back.deregister(PATIENCE).unwrap().is_quiesced());
            let fault = submit(&rails.peer, &withdrawn, Submit::new().within(PATIENCE)).wait().unwrap_err();
            assert_eq!(fault.cause, Cause::RevokedByPeer);
            assert!(begun.elapsed() < PINNED, "its end waited for other memory");
        }
    }
    assert!(slowest < Duration::from_millis(500), "the control loop was away for {slowest:?}");
    assert!(moves > 10, "{moves} transfers meanwhile");
    assert!(rails.peer.region("slow").is_err(), "its cards cannot have it yet");
    let late = rails.write(&near, "slow", SMALL);
    submit(&rails.peer, &late, Submit::new().within(PATIENCE)).wait().unwrap();
    assert!(holds(slow.window(), 1, SMALL) && holds(far.window(), 1, SMALL));
}
