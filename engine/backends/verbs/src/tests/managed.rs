//! Rails whose queues meet by the connection manager.

use super::*;
use crate::adapter::{AdapterError, CmError, Connected};

const MANAGED: Shape = Shape { is_managed: true, ..SHAPE };
const TWO: Shape = Shape { rails: 2, ..MANAGED };
const MS: Duration = Duration::from_millis(1);

/// Writes something and tells of it, and sees both arrive.
fn carries(network: &ModelNetwork, sides: &mut [Side; 2], number: u64) {
    let source = sides[0].pool(pattern(number, 4096));
    let target = sides[1].pool(vec![0; 4096]);
    let before = sides[1].got.notes.len();
    sides[0].post(WRITE, &source, &target, &[span(0, 0, 4096)], (2 * number, number, 4096)).unwrap();
    sides[0].tell((2 * number + 1, number, 4096), None, Some((number.into(), b"there"))).unwrap();
    pass_time(network, sides, 20 * MS);
    assert_eq!(sides[0].result(2 * number), Some(Ok(4096)));
    assert_eq!(sides[1].got.notes.len(), before + 1);
    assert_eq!(source.bytes(), target.bytes());
}

fn lives(sides: &[Side; 2]) -> [Vec<u32>; 2] {
    [0, 1].map(|at: usize| sides[at].channel.rails.iter().map(|rail| rail.life).collect())
}

#[test]
fn queues_that_meet_carry_and_greet_like_all_others() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    assert!((0..2).all(|rail| sides.iter().all(|side| side.is_up(rail))));
    carries(&network, &mut sides, 1);
    assert_eq!(lives(&sides), [[0, 0], [0, 0]], "at the first attempt");
}

#[test]
fn who_is_called_before_it_is_ready_answers_once_it_is() {
    let network = ModelNetwork::by_hand();
    let mut sides = unconnected(&network, MANAGED);
    sides[0].connect();
    settle(&network, &mut sides);
    pass_time(&network, &mut sides, 500 * MS);
    assert!(!sides[0].is_up(0) && matches!(sides[0].channel.rails[0].standing, Standing::Meeting(_)));
    sides[1].connect();
    settle(&network, &mut sides);
    assert!(sides.iter().all(|side| side.is_up(0)));
    assert_eq!(lives(&sides), [[0], [0]]);
}

#[test]
fn a_broken_rail_meets_again_by_a_token_of_its_own() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, MANAGED);
    for (at, breaks) in [(0, 1), (1, 2), (0, 3)] {
        let token = sides[1].channel.rails[0].connecting.cm.unwrap().token;
        let number = sides[at].channel.rails[0].number;
        assert!(sides[at].adapters[0].break_queue(number));
        pass_time(&network, &mut sides, 50 * MS);
        assert_eq!(lives(&sides), [[breaks], [breaks]]);
        assert_ne!(sides[1].channel.rails[0].connecting.cm.unwrap().token, token);
        carries(&network, &mut sides, breaks.into());
    }
}

#[test]
fn one_rail_meets_again_while_the_other_carries() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    sides[1].adapters[1].set_port(false);
    pass_time(&network, &mut sides, 100 * MS);
    assert!(!sides[0].is_up(1) && sides[0].is_up(0));
    carries(&network, &mut sides, 1);
    sides[1].adapters[1].set_port(true);
    pass_time(&network, &mut sides, Duration::from_secs(4));
    assert!(sides.iter().all(|side| side.is_up(1)));
    carries(&network, &mut sides, 2);
}

#[test]
fn who_leaves_is_told_of_by_the_manager_and_not_by_silence() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, MANAGED);
    // The other engine dies: its queues go without a word.
    sides[1].channel.rails[0].make_queue_new().unwrap();
    sides[0].turn();
    assert!(!sides[0].is_up(0), "at once, and long before anything posted would have told it");
    for _ in 0..600 {
        network.advance(10 * MS);
        sides[0].now += 10 * MS;
        sides[0].turn();
    }
    assert_eq!(sides[0].fault, Some(LaneFault(Cause::PeerLost)), "nothing comes of it, and that is told");
}

#[test]
fn a_call_that_nobody_hears_or_answers_ends_in_its_time() {
    let network = ModelNetwork::by_hand();
    let mut sides = unconnected(&network, MANAGED);
    network.cut(&sides[0].adapters[0], &sides[1].adapters[0]);
    sides.iter_mut().for_each(|side| side.connect());
    // Neither knows of the other: both come to the end of their patience by themselves.
    for _ in 0..600 {
        network.advance(10 * MS);
        for side in &mut sides {
            side.now += 10 * MS;
            side.turn();
        }
    }
    assert!(sides.iter().all(|side| side.fault == Some(LaneFault(Cause::PeerLost))));
}

#[test]
fn a_call_goes_to_whom_it_is_for_and_to_nobody_else() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, MANAGED);
    let used = sides[1].channel.rails[0].connecting.cm.unwrap().token;
    let mut waits = Half::new(&network, MANAGED);
    let here = waits.adapters[0].attr().cm_address;
    let token = waits.expect(MANAGED)[0].unwrap().token;
    let calls = |call, token| -> AdapterError {
        let mut stranger = Half::new(&network, MANAGED);
        let cm = Some(CmConnect { call, token });
        let there = stranger.endpoint(0);
        let connecting = ConnectParams { there, first_packet: 1, mtu: 4096, reads_there: 1, reads_here: 1, cm };
        stranger.queues[0].connect(&connecting).expect_err("nobody is called so")
    };
    let not_met = |error: AdapterError| match error {
        AdapterError::Cm { why, .. } => why,
        other => panic!("{other}"),
    };
    let guessed = Token::random().unwrap();
    assert_eq!(not_met(calls(here, guessed)), CmError::NotExpected, "a token that nobody has given out");
    assert_eq!(
        not_met(calls(sides[1].adapters[0].attr().cm_address, used)),
        CmError::NotExpected,
        "a token that was used"
    );
    assert_eq!(
        not_met(calls(sides[1].adapters[0].attr().cm_address, token)),
        CmError::NotExpected,
        "another card's token"
    );
    assert_eq!(not_met(calls(Some("[fd00::ff]:9".parse().unwrap()), token)), CmError::NobodyListens);
    carries(&network, &mut sides, 1);
    // None of them has spent it.
    let mut caller = Half::new(&network, MANAGED);
    let meets = |there: QpAddress, cm| ConnectParams {
        there,
        first_packet: 1,
        mtu: 4096,
        reads_there: 1,
        reads_here: 1,
        cm: Some(cm),
    };
    let (to, from) = (waits.endpoint(0), caller.endpoint(0));
    let call = meets(to, CmConnect { call: here, token });
    assert_eq!(caller.queues[0].connect(&call).unwrap(), Connected::NotYet);
    let wait = meets(from, CmConnect { call: None, token });
    assert_eq!(waits.queues[0].connect(&wait).unwrap(), Connected::NotYet);
    assert_eq!(caller.queues[0].cm_state().unwrap(), Connected::Yes);
    assert_eq!(waits.queues[0].cm_state().unwrap(), Connected::Yes);
    assert_eq!(not_met(calls(here, token)), CmError::NotExpected, "once");
}

#[test]
fn words_about_a_life_without_the_token_that_it_needs_are_refused() {
    for (at, token) in [(0, None), (1, Some(Token([7; 16])))] {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, MANAGED);
        let (life, heard) = (0, 1);
        let ended =
            crate::ended::QueueEnded { rail: 0, life, heard, gone: 0, revision: 0, queue: 1, first_packet: 1, token };
        sides[at].hear(&ended.encode());
        assert_eq!(sides[at].fault, Some(LaneFault(Cause::PeerCorrupt)));
    }
}

#[test]
fn a_waiting_queue_that_waits_in_vain_says_so() {
    let network = ModelNetwork::by_hand();
    let mut half = Half::new(&network, MANAGED);
    let cm = half.expect(MANAGED)[0];
    let there = half.endpoint(0);
    let connecting = ConnectParams { there, first_packet: 1, mtu: 4096, reads_there: 1, reads_here: 1, cm };
    assert_eq!(half.queues[0].connect(&connecting).unwrap(), Connected::NotYet);
    network.advance(Duration::from_secs(6));
    assert_eq!(half.queues[0].cm_state().unwrap(), Connected::NotYet);
    network.advance(Duration::from_secs(1));
    let error = half.queues[0].cm_state().unwrap_err();
    assert!(matches!(error, AdapterError::Cm { why: CmError::Silence, .. }), "{error}");
    assert!(error.to_string().contains("does not answer"), "{error}");
}
