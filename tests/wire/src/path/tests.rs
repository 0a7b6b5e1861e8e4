use proptest::prelude::*;

use super::*;
use crate::scenario::parse_faults;

const SIZE: usize = 1_000;

fn faults(text: &str) -> Faults {
    Faults::default().with(&parse_faults(text).unwrap())
}

/// A frame of IPv4 that carries its number where no fault of these tests is decided by it.
fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![0; SIZE];
    frame[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    frame[100..104].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[100..104].try_into().unwrap())
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Offers frames at a steady pace and takes each the moment it is due: when it left, and what it is.
fn pass(path: &mut Path, faults: &Faults, count: u32, pace: Duration) -> Vec<(Duration, Vec<u8>)> {
    let mut left = Vec::new();
    for k in 0..count {
        let now = pace * k;
        drain(path, Some(now), &mut left);
        path.offer(now, frame(k), faults, false);
    }
    drain(path, None, &mut left);
    left
}

fn drain(path: &mut Path, until: Option<Duration>, left: &mut Vec<(Duration, Vec<u8>)>) {
    while let Some(due) = path.next_due().filter(|due| until.is_none_or(|until| *due <= until)) {
        left.push((due, path.take(due).unwrap()));
    }
}

fn assert_all_accounted(stats: PathStats) {
    let ends = stats.delivered + stats.lost + stats.cut + stats.overflowed + stats.refused + stats.held;
    assert_eq!(stats.frames + stats.duplicated, ends, "{stats:?}");
}

#[test]
fn without_faults_all_pass_at_once_unchanged_and_in_order() {
    let mut path = Path::new(1, 0);
    let left = pass(&mut path, &Faults::default(), 1_000, us(10));
    for (k, (at, passed)) in left.iter().enumerate() {
        assert_eq!((*at, passed), (us(10) * k as u32, &frame(k as u32)));
    }
    let stats = path.stats();
    assert_eq!((stats.delivered, stats.delayed, stats.reordered), (1_000, 0, 0));
    assert_all_accounted(stats);
}

#[test]
fn loss_is_within_its_bounds_and_counted() {
    for seed in 0..10 {
        let mut path = Path::new(seed, 0);
        let left = pass(&mut path, &faults("loss=5%"), 20_000, us(10));
        let stats = path.stats();
        // Expected 1 000, with a deviation of about 31.
        assert!((850..1_150).contains(&stats.lost), "seed {seed}: {}", stats.lost);
        assert_eq!(left.len() as u64, 20_000 - stats.lost);
        assert_all_accounted(stats);
    }
}

#[test]
fn udp_is_lost_alone_and_other_faults_meet_the_same_frames() {
    // IPv4 and IPv6, each with TCP and UDP.
    let of = |number: u32| {
        let (kind, place) = if number.is_multiple_of(2) { (0x0800u16, HEADER + 9) } else { (0x86dd, HEADER + 6) };
        let mut frame = frame(number);
        frame[12..14].copy_from_slice(&kind.to_be_bytes());
        frame[place] = if number % 4 < 2 { 6 } else { 17 };
        frame
    };
    let run = |text: &str| {
        let (mut path, mut left) = (Path::new(2, 0), Vec::new());
        for k in 0..4_000 {
            path.offer(us(10) * k, of(k), &faults(text), false);
            drain(&mut path, None, &mut left);
        }
        assert_all_accounted(path.stats());
        left.iter().map(|(_, frame)| number(frame)).collect::<Vec<_>>()
    };
    let tcp = |number: &u32| number % 4 < 2;
    assert_eq!(run("udp-loss=100%"), (0..4_000).filter(tcp).collect::<Vec<_>>());
    let losing = run("loss=10%");
    assert_eq!(run("loss=10%,udp-loss=100%"), losing.into_iter().filter(tcp).collect::<Vec<_>>());
    // Expected 1 000 of 2 000, with a deviation of about 22.
    let half = run("udp-loss=50%").len() - 2_000;
    assert!((850..1_150).contains(&half), "{half}");
    // Too short to say what they carry.
    let mut path = Path::new(2, 0);
    for short in [frame(0)[..HEADER + 9].to_vec(), vec![0; 13], vec![]] {
        path.offer(us(0), short, &faults("udp-loss=100%"), false);
    }
    assert_eq!(path.stats().lost, 0);
}

#[test]
fn the_same_seed_does_the_same_and_another_does_not() {
    let hard = faults("loss=10%,delay=1ms,jitter=1ms,reorder=5%,duplicate=5%,corrupt=5%");
    let run = |seed| pass(&mut Path::new(seed, 0), &hard, 2_000, us(50));
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn what_a_kernel_sends_on_its_own_shifts_no_decision() {
    let losing = faults("loss=20%");
    let plain = pass(&mut Path::new(5, 0), &losing, 1_000, us(10));
    let mut path = Path::new(5, 0);
    let mut left = Vec::new();
    for k in 0..1_000 {
        let mut noise = vec![0; 60];
        noise[12..14].copy_from_slice(&0x0806u16.to_be_bytes());
        path.offer(us(10) * k, noise, &losing, false);
        path.offer(us(10) * k, frame(k), &losing, false);
        drain(&mut path, None, &mut left);
    }
    left.retain(|(_, frame)| frame.len() == SIZE);
    assert_eq!(plain, left);
}

#[test]
fn delay_holds_every_frame_and_jitter_keeps_the_order() {
    let left = pass(&mut Path::new(1, 0), &faults("delay=2ms,jitter=1ms"), 5_000, us(10));
    let waits: Vec<Duration> = left.iter().map(|(at, frame)| *at - us(10) * number(frame)).collect();
    assert!(waits.iter().all(|wait| (us(2_000)..=us(3_000)).contains(wait)));
    assert!(waits.iter().any(|wait| *wait < us(2_500)) || waits.iter().any(|wait| *wait > us(2_900)));
    assert!(left.is_sorted_by_key(|(_, frame)| number(frame)));
}

#[test]
fn reordering_really_lets_later_frames_overtake() {
    let mut path = Path::new(1, 0);
    let left = pass(&mut path, &faults("reorder=2%,reorder-by=1ms"), 10_000, us(10));
    let overtaken = left.windows(2).filter(|pair| number(&pair[0].1) > number(&pair[1].1)).count();
    // Expected 200, with a deviation of 14; two that are held together count once here.
    assert!((120..280).contains(&overtaken), "{overtaken}");
    assert!((120..280).contains(&path.stats().reordered));
    assert_eq!(left.len(), 10_000);
}

#[test]
fn duplicates_come_twice_and_nothing_else_does() {
    let mut path = Path::new(1, 0);
    let left = pass(&mut path, &faults("duplicate=10%"), 10_000, us(10));
    let twice = left.windows(2).filter(|pair| pair[0].1 == pair[1].1).count() as u64;
    assert_eq!(twice, path.stats().duplicated);
    assert!((850..1_150).contains(&twice), "{twice}");
    assert_all_accounted(path.stats());
}

#[test]
fn a_corrupted_frame_has_one_wrong_bit_behind_its_header() {
    let mut path = Path::new(1, 0);
    let left = pass(&mut path, &faults("corrupt=100%"), 1_000, us(10));
    for (k, (_, damaged)) in left.iter().enumerate() {
        let wrong = frame(k as u32).iter().zip(damaged).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        assert_eq!(wrong, 1);
        assert_eq!(damaged[..HEADER], frame(0)[..HEADER]);
    }
    assert_eq!(path.stats().corrupted, 1_000);
    // Nothing behind the header, and nothing that is IP: left alone.
    for alone in [frame(0)[..HEADER].to_vec(), vec![0; 60], vec![], vec![1; 13]] {
        path.offer(us(0), alone.clone(), &faults("corrupt=100%"), false);
        let due = path.next_due().unwrap();
        assert_eq!(path.take(due), Some(alone));
    }
}

#[test]
fn a_rate_is_kept_to_the_bit_and_its_queue_is_bounded() {
    // 8 mbit are a frame of 1 000 bytes each millisecond; they come ten times as fast.
    let mut path = Path::new(1, 0);
    let left = pass(&mut path, &faults("rate=8mbit,queue=20KiB"), 5_000, us(100));
    assert!(left.windows(2).all(|pair| pair[1].0 - pair[0].0 >= us(1_000)));
    let stats = path.stats();
    assert!(stats.held_bytes_max <= 20 << 10);
    // Half a second of sending, and the queue of twenty frames behind it.
    assert!((515..=525).contains(&stats.delivered), "{stats:?}");
    assert!(stats.overflowed > 4_000);
    assert_all_accounted(stats);
}

#[test]
fn a_cut_takes_what_is_under_way() {
    let mut path = Path::new(1, 0);
    let slow = faults("delay=10ms");
    for k in 0..10 {
        path.offer(us(0), frame(k), &slow, false);
    }
    path.cut();
    path.offer(us(1), frame(11), &slow, true);
    assert_eq!(path.next_due(), None);
    assert_eq!((path.stats().cut, path.stats().held_bytes), (11, 0));
    assert_all_accounted(path.stats());
}

proptest! {
    #[test]
    fn no_frame_is_unaccounted(
        seed: u64,
        loss in 0u32..1_000_000, duplicate in 0u32..1_000_000, reorder in 0u32..1_000_000,
        delay in 0u64..5_000, jitter in 0u64..5_000, rate in proptest::option::of(1u64..10_000_000_000),
        queue in 0usize..100_000, steps in proptest::collection::vec((0u8..8, 0usize..3_000), 0..300),
    ) {
        let share = crate::scenario::Share::of_million;
        let faults = Faults {
            loss: share(loss), duplicate: share(duplicate), reorder: share(reorder), corrupt: share(500_000),
            delay: us(delay), jitter: us(jitter), rate, queue, ..Faults::default()
        };
        let mut path = Path::new(seed, 1);
        let mut now = Duration::ZERO;
        for (step, size) in steps {
            now += us(size as u64 / 10);
            match step {
                0 => path.cut(),
                1 => { path.offer(now, vec![8; size], &faults, true); }
                2 => if let Some(frame) = path.take(now) { path.refused(frame.len()); },
                3 => { path.take(now); }
                _ => { path.offer(now, vec![8; size], &faults, false); }
            }
            let stats = path.stats();
            assert_all_accounted(stats);
            prop_assert!(stats.held_bytes <= queue as u64);
        }
        path.cut();
        prop_assert_eq!(path.stats().held, 0);
        prop_assert_eq!(path.stats().held_bytes, 0);
    }
}
