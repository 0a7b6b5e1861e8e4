use penstock_core::limits::WORKERS_MAX;

use super::*;

fn hello(name: &str, epoch: u64) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        name: name.to_owned(),
        epoch,
        expects: 0,
        host: 1,
        process: 2,
        workers: 1,
        peer_index: 0,
        transports: vec!["local".to_owned(), "shm".to_owned()],
    }
}

fn caller() -> Greeting {
    Greeting::new(Role::Caller, Hello { expects: 20, ..hello("caller", 10) })
}

fn listener() -> Greeting {
    Greeting::new(Role::Listener, hello("listener", 20))
}

fn offer() -> Offer {
    Offer { transport: "shm".to_owned(), blob: vec![1, 2, 3] }
}

/// What a listener answers to the caller's hello with something changed in it.
fn answer_to(change: impl FnOnce(&mut Hello)) -> Result<HelloOutcome, GreetingError> {
    let mut theirs = caller().ours().clone();
    change(&mut theirs);
    listener().handle(Frame::Hello(theirs))
}

#[track_caller]
fn assert_refused(answer: Result<HelloOutcome, GreetingError>, expected: RefusalCode, word: &str) {
    match answer {
        Err(GreetingError::Refuse { code, text }) if code == expected && text.contains(word) => {}
        other => panic!("expected {expected:?} with `{word}`, found {other:?}"),
    }
}

#[test]
fn two_engines_that_fit_come_to_a_session() {
    let (mut caller, mut listener) = (caller(), listener());
    let chosen = listener.handle(Frame::Hello(caller.ours().clone())).unwrap();
    assert_eq!(chosen, HelloOutcome::Choose { candidates: vec!["local".to_owned(), "shm".to_owned()] });
    assert_eq!(caller.handle(Frame::Hello(listener.ours().clone())), Ok(HelloOutcome::Wait));
    assert!(!caller.is_established() && !listener.is_established());
    assert_eq!(caller.handle(Frame::Offer(offer())), Ok(HelloOutcome::JoinAndOffer(offer())));
    assert_eq!(listener.handle(Frame::Offer(offer())), Ok(HelloOutcome::Join(offer())));
    assert!(caller.is_established() && listener.is_established());
    assert_eq!(listener.theirs().unwrap().name, "caller");
}

#[test]
fn the_callers_order_of_transports_counts_among_those_both_allow() {
    let theirs = ["pigeon", "shm", "local"].map(str::to_owned).to_vec();
    let answer = answer_to(|hello| hello.transports = theirs);
    assert_eq!(answer, Ok(HelloOutcome::Choose { candidates: vec!["shm".to_owned(), "local".to_owned()] }));
    let answer = answer_to(|hello| hello.transports = vec!["pigeon".to_owned()]);
    assert_eq!(answer, Ok(HelloOutcome::Choose { candidates: Vec::new() }));
}

#[test]
fn versions_that_do_not_meet_are_refused() {
    let newer = answer_to(|hello| (hello.version_min, hello.version_max) = (VERSION_MAX + 1, VERSION_MAX + 3));
    assert_refused(newer, RefusalCode::Version, "versions 2 to 4");
    let older = answer_to(|hello| (hello.version_min, hello.version_max) = (0, VERSION_MIN - 1));
    assert_refused(older, RefusalCode::Version, "versions 0 to 0");
    assert!(answer_to(|hello| (hello.version_min, hello.version_max) = (0, u16::MAX)).is_ok());
}

#[test]
fn an_epoch_that_is_over_is_refused_on_either_side() {
    assert_refused(answer_to(|hello| hello.expects = 19), RefusalCode::Epoch, "expected epoch 13, found 14");
    let other = caller().handle(Frame::Hello(hello("listener", 21)));
    assert_refused(other, RefusalCode::Epoch, "expected epoch 14, found 15");
    assert!(answer_to(|hello| hello.expects = 0).is_ok(), "zero expects nothing");
}

#[test]
fn a_foreign_user_is_refused_by_the_systems_word() {
    let user = |uid| Credentials { uid, pid: 1 };
    assert_eq!(Greeting::check_user(user(1000), user(1000)), Ok(()));
    let refused = Greeting::check_user(user(1000), user(0)).map(|()| HelloOutcome::Wait);
    assert_refused(refused, RefusalCode::ForeignUser, "user 0");
}

#[test]
fn a_hello_that_makes_no_sense_is_refused() {
    assert_refused(answer_to(|hello| hello.name = "../up".to_owned()), RefusalCode::Malformed, "name is unusable");
    assert_refused(answer_to(|hello| hello.name.clear()), RefusalCode::Malformed, "name is unusable");
    assert_refused(answer_to(|hello| hello.workers = 0), RefusalCode::Malformed, "0 workers");
    let many = WORKERS_MAX as u16 + 1;
    assert_refused(answer_to(|hello| hello.workers = many), RefusalCode::Malformed, "17 workers");
}

#[test]
fn a_frame_out_of_order_is_refused() {
    assert_refused(listener().handle(Frame::Offer(offer())), RefusalCode::Malformed, "kind 3");
    assert_refused(listener().handle(Frame::Goodbye), RefusalCode::Malformed, "kind 7");
    let mut twice = listener();
    let hello = Frame::Hello(caller().ours().clone());
    twice.handle(hello.clone()).unwrap();
    assert_refused(twice.handle(hello.clone()), RefusalCode::Malformed, "kind 1");
    twice.handle(Frame::Offer(offer())).unwrap();
    for late in [hello, Frame::Offer(offer())] {
        assert_refused(twice.handle(late), RefusalCode::Malformed, "Established");
    }
}

#[test]
fn the_other_sides_refusal_is_told_in_its_words_at_any_moment() {
    let refusal = Frame::Refuse { code: RefusalCode::Closing, text: "going home".to_owned() };
    let expected = GreetingError::Refused { code: RefusalCode::Closing, text: "going home".to_owned() };
    let mut greeting = caller();
    assert_eq!(greeting.handle(refusal.clone()), Err(expected.clone()));
    greeting.handle(Frame::Hello(listener().ours().clone())).unwrap();
    assert_eq!(greeting.handle(refusal), Err(expected.clone()));
    assert!(expected.to_string().contains("going home (the engine is shutting down)"));
}
