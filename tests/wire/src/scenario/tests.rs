use proptest::prelude::*;

use super::*;

#[test]
fn the_whole_grammar_is_read() {
    let text = "seed=7; a-to-b loss=1%,udp-loss=50%,delay=2ms,jitter=0.5ms,reorder=2%,duplicate=0.1%,corrupt=0.25%,rate=100mbit\n\
                both queue=256KiB,reorder-by=3ms # a remark; loss=7%\n\
                at=2s partition both for=1.5s; at=4s heal b-to-a; at=5s set b-to-a loss=20%,delay=1us for=3s\n\
                at=9s set both none";
    let scenario: Scenario = text.parse().unwrap();
    assert_eq!(scenario.seed, 7);
    let expected = Faults {
        loss: Share::of_million(10_000),
        udp_loss: Share::of_million(500_000),
        delay: Duration::from_millis(2),
        jitter: Duration::from_micros(500),
        reorder: Share::of_million(20_000),
        reorder_by: Duration::from_millis(3),
        duplicate: Share::of_million(1_000),
        corrupt: Share::of_million(2_500),
        rate: Some(100_000_000),
        queue: 256 << 10,
    };
    assert_eq!(scenario.a_to_b, expected);
    assert_eq!(scenario.b_to_a, Faults { queue: 256 << 10, reorder_by: Duration::from_millis(3), ..Faults::default() });
    let seconds = |seconds| Duration::from_secs(seconds);
    let partition = What::Partition(Direction::Both);
    assert_eq!(
        scenario.events[0],
        Event { at: seconds(2), lasts: Some(Duration::from_millis(1_500)), what: partition }
    );
    assert_eq!(scenario.events[1].what, What::Heal(Direction::BToA));
    let worse = vec![Fault::Loss(Share::of_million(200_000)), Fault::Delay(Duration::from_micros(1))];
    let set = What::Set(Direction::BToA, worse);
    assert_eq!(scenario.events[2], Event { at: seconds(5), lasts: Some(seconds(3)), what: set });
    assert_eq!(scenario.events[3].what, What::Set(Direction::Both, vec![Fault::None]));
}

#[test]
fn what_is_wrong_is_refused_with_its_reason() {
    for (text, part) in [
        ("a-to-c loss=1%", "no direction"),
        ("both lost=1%", "no fault"),
        ("both loss=1", "no unit"),
        ("both loss=101%", "no number"),
        ("both delay=-1ms", "no number"),
        ("both delay=infs", "no number"),
        ("both rate=0bit", "no number"),
        ("both delay=2", "no unit"),
        ("seed=x", "no number"),
        ("at=2s", "cannot happen"),
        ("at=2s explode", "cannot happen"),
        ("at=2s heal both for=1s", "cannot happen"),
        ("loss=1%", "no statement"),
        ("at=99999999999s partition", "no number"),
    ] {
        let error = text.parse::<Scenario>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_scenario_or_an_error(text in "\\PC{0,60}") {
        let _ = text.parse::<Scenario>();
    }

    #[test]
    fn texts_near_the_grammar_never_panic(text in "(seed=|at=|a-to-b |both |set |for=|partition |loss=|udp-|delay=|[0-9.]{1,9}|%|ms|s|;| ){0,12}") {
        if let Ok(scenario) = text.parse::<Scenario>() {
            prop_assert!(scenario.a_to_b.loss.per_million() <= 1_000_000);
            prop_assert!(scenario.events.iter().all(|event| event.at <= Duration::from_secs(86_400)));
        }
    }
}
