//! Queues that meet by the connection manager (librdmacm), on the real stack.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use penstock_verbs::adapter::{Adapter, AdapterError, AsyncEvent, CmConnect, CmError, ConnectParams, Connected, Token};

use crate::ends::{End, LIMIT, Pair, open_managed, ports, wire};

/// Takes what has happened to connections. Answers the queues of which something was told.
fn events(end: &End) -> Vec<u32> {
    let met = |event| match event {
        AsyncEvent::CmProgress(number) => Some(number),
        _ => None,
    };
    std::iter::from_fn(|| end.adapter.next_event()).filter_map(met).collect()
}

fn connecting(end: &End, cm: CmConnect) -> ConnectParams {
    let (there, mtu) = (end.endpoint(0), end.attr().mtu);
    ConnectParams { there, first_packet: 0, mtu, reads_there: 4, reads_here: 4, cm: Some(cm) }
}

/// Goes on until a queue has met or will not.
fn until_met(ends: &mut [&mut End]) -> Result<(), AdapterError> {
    let began = Instant::now();
    loop {
        let mut all = true;
        for end in &mut *ends {
            events(end);
            all &= end.queue.cm_state()? == Connected::Yes;
        }
        if all {
            return Ok(());
        }
        assert!(began.elapsed() < LIMIT, "they meet within {LIMIT:?}");
        sleep(Duration::from_micros(100));
    }
}

/// Both ends of a wire, that have met: the first has called.
fn met() -> Pair {
    let (a, b) = (End::on(open_managed(&ports()[0])), End::on(open_managed(&ports()[1])));
    let mut pair = Pair::of(a, b);
    cm(&mut pair);
    pair
}

/// In a guest that is slow enough the first packet takes longer than the kernel is given for it, as it would with a session, which tries
/// again by itself.
fn cm(pair: &mut Pair) {
    for _ in 0..3 {
        match try_to_meet(pair) {
            Ok(()) => return,
            Err(AdapterError::Cm { why: why @ (CmError::NoWay | CmError::Silence), .. }) => {
                println!("once more: {why}")
            }
            Err(error) => panic!("they meet: {error}"),
        }
        pair.a.queue.reset().expect("it is new");
        pair.b.queue.reset().expect("it is new");
    }
    panic!("they meet at the third attempt");
}

fn try_to_meet(pair: &mut Pair) -> Result<(), AdapterError> {
    let token = Token::random().expect("random bytes");
    pair.b.queue.expect(token);
    let call = pair.b.attr().cm_address;
    let calls = connecting(&pair.a, CmConnect { call, token });
    let waits = connecting(&pair.b, CmConnect { call: None, token });
    pair.a.queue.connect(&calls).expect("it calls");
    pair.b.queue.connect(&waits).expect("it waits");
    until_met(&mut [&mut pair.a, &mut pair.b])
}

/// Why a call of a queue of its own comes to nothing, and how long that took.
fn called_in_vain(call: SocketAddr, token: Token) -> (CmError, Duration) {
    let mut end = End::on(open_managed(&ports()[0]));
    let calls = connecting(&end, CmConnect { call: Some(call), token });
    let began = Instant::now();
    let error = match end.queue.connect(&calls) {
        Ok(_) => until_met(&mut [&mut end]).expect_err("it meets nobody"),
        Err(error) => error,
    };
    match error {
        AdapterError::Cm { why, .. } => (why, began.elapsed()),
        other => panic!("{other}"),
    }
}

#[test]
fn two_cards_meet_and_carry_as_if_they_had_exchanged_numbers() {
    let Some(_wire) = wire("two_cards_meet_and_carry_as_if_they_had_exchanged_numbers") else { return };
    let began = Instant::now();
    let mut pair = met();
    println!("{}\nmet, cards opened, within {:?}", pair.b.adapter.describe(), began.elapsed());
    pair.works();
}

#[test]
fn what_was_broken_meets_again_and_again() {
    let Some(_wire) = wire("what_was_broken_meets_again_and_again") else { return };
    let mut pair = met();
    let mut times = Vec::new();
    for life in 0..20 {
        let began = Instant::now();
        let (first, second) = if life % 2 == 0 { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
        first.queue.set_error().expect("it breaks");
        first.queue.reset().expect("it is new");
        second.queue.reset().expect("it is new");
        cm(&mut pair);
        times.push(began.elapsed());
        pair.works();
    }
    times.sort_unstable();
    println!("a queue pair is new and has met again after {:?} (median), {:?} (longest of 20)", times[10], times[19]);
}

#[test]
fn who_leaves_is_told_of_at_once() {
    let Some(_wire) = wire("who_leaves_is_told_of_at_once") else { return };
    for side in 0..2 {
        let mut pair = met();
        let (leaves, stays) = if side == 0 { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
        events(stays);
        assert_eq!(stays.queue.cm_state().expect("it stands"), Connected::Yes);
        let began = Instant::now();
        leaves.queue.reset().expect("it is new");
        assert!(End::is_woken(&stays.adapter.events(), LIMIT), "a sign");
        while !events(stays).contains(&stays.queue.number()) {
            assert!(began.elapsed() < LIMIT, "an event");
        }
        let error = stays.queue.cm_state().expect_err("it is over");
        assert!(matches!(error, AdapterError::Cm { why: CmError::Ended, .. }), "{error}");
        println!("heard after {:?}: {error}", began.elapsed());
    }
}

#[test]
fn a_call_without_the_right_token_is_refused_and_the_right_one_is_good_once() {
    let Some(_wire) = wire("a_call_without_the_right_token_is_refused_and_the_right_one_is_good_once") else { return };
    let mut pair = met();
    let (mut caller, mut waits) = (End::on(open_managed(&ports()[0])), End::on(pair.b.adapter.clone()));
    let token = Token::random().expect("random bytes");
    waits.queue.expect(token);
    let at = waits.attr().cm_address.expect("it listens");
    let answers = |token| {
        std::thread::scope(|scope| {
            let call = scope.spawn(move || called_in_vain(at, token));
            while !call.is_finished() {
                while pair.b.adapter.next_event().is_some() {}
                sleep(Duration::from_millis(1));
            }
            call.join().expect("it has not panicked")
        })
    };
    let (why, took) = answers(Token::random().expect("random bytes"));
    assert_eq!(why, CmError::NotExpected, "after {took:?}");
    println!("a wrong token is refused after {took:?}");
    // It is still good for whom it is meant for.
    caller.queue.connect(&connecting(&caller, CmConnect { call: Some(at), token })).expect("it calls");
    waits.queue.connect(&connecting(&waits, CmConnect { call: None, token })).expect("it waits");
    until_met(&mut [&mut caller, &mut waits]).unwrap_or_else(|error| panic!("they meet: {error}"));
    assert_eq!(answers(token).0, CmError::NotExpected, "a second time");
    pair.works();
}

#[test]
fn who_calls_where_nobody_is_hears_so_in_time() {
    let Some(_wire) = wire("who_calls_where_nobody_is_hears_so_in_time") else { return };
    let token = Token::random().expect("random bytes");
    let (why, took) = called_in_vain("10.77.0.2:9".parse().expect("an address"), token);
    assert_eq!(why, CmError::NobodyListens, "after {took:?}");
    println!("nobody listens: told after {took:?}");
    let (why, took) = called_in_vain("10.77.0.99:9".parse().expect("an address"), token);
    assert!(matches!(why, CmError::NoWay | CmError::Other(_)), "{why}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    println!("nobody has the address: told after {took:?}: {why}");
}

#[test]
fn who_is_never_called_or_never_answered_hears_so_in_time() {
    let Some(_wire) = wire("who_is_never_called_or_never_answered_hears_so_in_time") else { return };
    let (mut waits, deaf) = (End::on(open_managed(&ports()[0])), End::on(open_managed(&ports()[1])));
    let token = Token::random().expect("random bytes");
    let began = Instant::now();
    waits.queue.expect(token);
    waits.queue.connect(&connecting(&waits, CmConnect { call: None, token })).expect("it waits");
    // Nobody looks at this one's calls.
    let (why, took) = called_in_vain(deaf.attr().cm_address.expect("it listens"), token);
    assert_eq!(why, CmError::Silence);
    assert!((2..6).contains(&took.as_secs()), "{took:?}");
    let error = until_met(&mut [&mut waits]).expect_err("nobody calls");
    assert!(matches!(error, AdapterError::Cm { why: CmError::Silence, .. }), "{error}");
    let waited = began.elapsed();
    assert!((7..10).contains(&waited.as_secs()), "{waited:?}");
    println!("no answer: told after {took:?}; no call: told after {waited:?}");
}
