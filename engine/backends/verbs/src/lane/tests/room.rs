use penstock_core::Timestamp;
use penstock_transport::{Driver, Rest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

/// A transport with little room and the adapters that it is on.
fn narrow(network: &ModelNetwork, queues: usize) -> Engine {
    Engine::with(vec![network.adapter()], 1, VerbsOptions { queues, ..VerbsOptions::default() })
}

#[test]
fn a_desk_without_room_refuses_the_offer_and_says_what_is_missing() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let engine = narrow(&network, 2);
    let offers: Vec<_> = (0..2).map(|peer_index| engine.offer(peer_index, 1)).collect();
    let here = LocalEnd { host: 1, process: 1, epoch: 1, workers: 1, peer_index: 2 };
    let watch = Arc::new(ProcessWatch::of(std::process::id()));
    let there = || RemoteEnd {
        host: 2,
        process: 2,
        epoch: 2,
        workers: 1,
        peer_index: 2,
        address: None,
        watch: Arc::clone(&watch),
    };
    let refused = engine.transport.offer(here, there()).err().expect("there is no room").to_string();
    assert!(refused.contains("model0/1 has no room for the completions of one more queue"), "{refused}");
    assert_eq!(engine.adapters[0].counts().queues, 2);
    drop(offers);
    assert_eq!(engine.adapters[0].counts().queues, 0, "what was not joined is given back");
    let memory = engine.adapters[0].counts().registrations;
    for _ in 0..10 {
        drop(engine.offer(0, 1));
    }
    assert_eq!(engine.adapters[0].counts().registrations, memory, "memory for messages is used again");
}

#[test]
fn an_engine_without_a_card_is_not_offered() {
    let segments = EngineSegments::create(1).unwrap();
    let none = VerbsTransport::new(segments, Arc::new(Registry::new()), Vec::new(), VerbsOptions::default());
    assert!(none.err().expect("there is none").to_string().contains("penstock doctor"));
}

#[test]
fn a_card_whose_queues_take_too_little_is_refused() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let small: Arc<dyn Adapter> = network.adapter_with(|attr| attr.requests_max = 8);
    let segments = EngineSegments::create(1).unwrap();
    let refused = VerbsTransport::new(segments, Arc::new(Registry::new()), vec![small], VerbsOptions::default());
    let refused = refused.err().expect("it is of no use").to_string();
    assert!(refused.contains("it has 8, 16 are wanted"), "{refused}");
}

#[test]
fn cards_that_do_not_reach_each_other_are_named() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let far = network.adapter_with(|attr| attr.gid[0] = 0xfc);
    let refused = try_join(Engine::new(&network, 1, 1), Engine::with(vec![far], 1, VerbsOptions::default()));
    let Err(JoinError::NoPath(why)) = refused else { panic!("they are joined") };
    assert!(why.contains("model0/1 (fc") && why.contains("model1/1 (fd"), "{why}");
}

#[test]
fn what_finds_no_partner_is_not_used_and_named() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let (one, two) = (Engine::new(&network, 3, 1), Engine::new(&network, 1, 1));
    let mut sides = join(one, two);
    settle(&mut sides);
    assert_eq!(sides[0].rails, ["model0/1 to model3/1"]);
    assert!(sides[0].path.contains("without a partner of this engine: model1/1 (fd"), "{}", sides[0].path);
    assert!(sides[1].path.contains("without a partner of the peer: model1/1 (fd"), "{}", sides[1].path);
    let queues: Vec<_> = sides[0].engine.adapters.iter().map(|adapter| adapter.counts().queues).collect();
    assert_eq!(queues, [1, 0, 0], "queues without a partner are given back");
}

#[test]
fn an_offer_for_an_impossible_number_of_workers_is_small_and_refused() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let (one, two) = (Engine::new(&network, 1, 1), Engine::new(&network, 1, 1));
    let offer = one.offer(PARTY, 60_000);
    assert_eq!(one.adapters[0].counts().queues, penstock_core::limits::WORKERS_MAX);
    assert!((offer.join)(&two.offer(PARTY, 1).blob, Vec::new()).is_err());
    assert_eq!(one.adapters[0].counts().queues, 0);
}

fn is_readable(driver: &dyn Driver) -> bool {
    let descriptor = driver.fd();
    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

fn may_sleep(side: &mut Side) -> bool {
    side.workers[0].driver.rest(Timestamp::default()) != Rest::Busy
}

/// The names of an engine's adapters in its next offer.
fn offered(engine: &Engine) -> Vec<String> {
    let offer = crate::offer::VerbsOffer::parse(&engine.offer(PARTY + 1, 1).blob, 1, 1).unwrap();
    offer.rails.into_iter().map(|rail| rail.name).collect()
}

#[test]
fn a_card_that_makes_no_queues_is_left_out() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let engine = Engine::new(&network, 3, 1);
    engine.adapters[0].refuse_queues(1);
    let mut sides = join(engine, Engine::new(&network, 1, 1));
    settle(&mut sides);
    assert_eq!(sides[0].rails, ["model1/1 to model3/1"]);
    let queues: Vec<_> = sides[0].engine.adapters.iter().map(|adapter| adapter.counts().queues).collect();
    assert_eq!(queues, [0, 1, 0]);
    let (ours, theirs) = (sides[0].engine.region(pattern(1, 4096), Rights::READ), vec![0; 4096]);
    let theirs = sides[1].engine.region(theirs, Rights::READ_WRITE);
    let shown = sides[1].show(&theirs, &sides[0]);
    sides[0].post(WRITE, &ours, &shown, &[span(0, 0, 4096)], (1, 1)).unwrap();
    until(&mut sides, "it has moved", |sides| sides[0].result(1) == Some(Ok(4096)));
    settle(&mut sides);
    assert_eq!(bytes_of(&theirs), bytes_of(&ours));
    assert_eq!(offered(&sides[0].engine), ["model0/1", "model1/1", "model2/1"], "it may have been full for a while");
}

#[test]
fn a_card_that_has_failed_keeps_nobody_awake_and_is_not_offered() {
    let (_network, mut sides) = session(2);
    sides[0].engine.adapters[1].fail();
    until(&mut sides, "it was noticed", |sides| !may_sleep(&mut sides[0]));
    settle(&mut sides);
    assert!(is_readable(&*sides[0].workers[0].driver), "its device is gone");
    until(&mut sides, "there is nothing to do", |sides| may_sleep(&mut sides[0]));
    assert!(!is_readable(&*sides[0].workers[0].driver));
    assert_eq!(offered(&sides[0].engine), ["model0/1"]);
}

/// A worker that sleeps is woken by what comes, and not without a reason.
#[test]
fn a_driver_sleeps_until_something_comes() {
    let (_network, mut sides) = session(1);
    for _ in 0..3 {
        settle(&mut sides);
        assert!(may_sleep(&mut sides[1]));
        assert!(!is_readable(&*sides[1].workers[0].driver), "nothing has come");
        sides[0].workers[0].got.completed.clear();
        sides[0].tell(1, 1, 1, b"wake up").unwrap();
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        while sides[0].turn() {}
        assert!(is_readable(&*sides[1].workers[0].driver));
        assert!(!may_sleep(&mut sides[1]));
        until(&mut sides, "the note is there", |sides| sides[0].result(1) == Some(Ok(1)));
    }
    sides[1].engine.adapters[0].raise(crate::adapter::AsyncEvent::PortDown);
    assert!(is_readable(&*sides[1].workers[0].driver), "events of a card wake too");
    assert!(!may_sleep(&mut sides[1]));
}

#[test]
fn a_session_that_begins_stops_no_write_of_another() {
    const SLOW: Duration = Duration::from_secs(2);
    let (_network, mut sides) = session(1);
    let source = sides[0].engine.region(vec![7; 4096], Rights::NONE);
    let target = sides[1].engine.region(vec![0; 4096], Rights::READ_WRITE);
    let remote = sides[1].show(&target, &sides[0]);
    sides[0].engine.adapters[0].slow_queues(SLOW);
    let hub = Arc::clone(sides[0].engine.transport.hub(0));
    let inbox = hub.lock().new_inbox(PARTY + 1);
    let making = std::thread::spawn(move || {
        let queue = hub.queue(0, inbox, 0, (64, 32)).unwrap();
        hub.lock().forget_queue(0, queue.number());
    });
    let mut token = 0;
    while !making.is_finished() {
        token += 1;
        sides[0].post(WRITE, &source, &remote, &[span(0, 0, 4096)], (token, token)).unwrap();
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        until(&mut sides, "the write is over", |sides| sides[0].result(token).is_some());
    }
    making.join().unwrap();
    assert!(token > 20, "{token} writes in {SLOW:?}");
}
