//! Random transfers in both directions over rails that break in every way, against a plain copy.

use proptest::prelude::*;

use super::*;
use crate::model::{Losses, Options, Pace};

const BYTES: usize = 1 << 15;

/// One step of a run.
#[derive(Debug, Clone)]
enum Step {
    /// A side moves these pieces, in blocks of 16 bytes: where from, how many. So many of them are a batch.
    Move { side: usize, is_write: bool, sges: Vec<(u8, u8)>, batch: usize, is_large: bool, tells: (bool, bool) },
    /// The adapters do so much.
    Work(usize),
    /// A side has its turn.
    Turn(usize),
    /// Transport messages of a side arrive.
    TransportMessages(usize),
    /// So many milliseconds pass.
    Time(u64),
    /// A side's inbox has room for so many more notes.
    Room(usize, usize),
    /// A side gives up a transfer that it has begun, counted from the last.
    GiveUp(usize, usize),
    /// Something happens to a rail, on one side.
    Trouble { side: usize, rail: usize, what: Fault },
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Break,
    BreakAfter(u64),
    Cut,
    Hold,
    Release,
    LoseAnswers,
    LoseAll,
    Mend,
    PortDown,
    PortUp,
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0usize..2;
    let sges = prop::collection::vec((any::<u8>(), 1u8..=64), 1..9);
    let fault = prop_oneof![
        2 => Just(Fault::Break),
        3 => (0u64..6).prop_map(Fault::BreakAfter),
        2 => Just(Fault::Cut),
        1 => Just(Fault::Hold),
        2 => Just(Fault::Release),
        1 => Just(Fault::LoseAnswers),
        1 => Just(Fault::LoseAll),
        2 => Just(Fault::Mend),
        1 => Just(Fault::PortDown),
        2 => Just(Fault::PortUp),
    ];
    let moves = (side.clone(), any::<bool>(), sges, 1usize..4, any::<bool>(), any::<(bool, bool)>());
    prop_oneof![
        8 => moves.prop_map(|(side, is_write, sges, batch, is_large, tells)| {
            Step::Move { side, is_write, sges, batch, is_large, tells }
        }),
        6 => (1usize..12).prop_map(Step::Work),
        8 => side.clone().prop_map(Step::Turn),
        4 => side.clone().prop_map(Step::TransportMessages),
        1 => prop_oneof![1u64..5, Just(60)].prop_map(Step::Time),
        1 => (side.clone(), 0usize..4).prop_map(|(side, room)| Step::Room(side, room)),
        1 => (side.clone(), 0usize..4).prop_map(|(side, back)| Step::GiveUp(side, back)),
        3 => (side, 0usize..3, fault).prop_map(|(side, rail, what)| Step::Trouble { side, rail, what }),
    ]
}

/// A transfer that was begun, as it should end.
struct Transfer {
    side: usize,
    /// Where its bytes go, and what is there then.
    target: Pool,
    expected: Vec<u8>,
    /// Tokens of its batches and of what is told, and the note and whether a counter is counted.
    batches: Vec<u64>,
    tell: Option<(u64, Option<u128>, bool)>,
    /// Tokens that were given up quietly.
    quiet: Vec<u64>,
    is_given_up: bool,
}

struct Run {
    network: ModelNetwork,
    sides: [Side; 2],
    sources: [Pool; 2],
    transfers: Vec<Transfer>,
    next: u64,
    looked_at: [usize; 2],
}

const COUNTER: CounterRef = CounterRef { index: 7, generation: 3 };

impl Run {
    fn new(shape: Shape, options: Options) -> Self {
        let network = ModelNetwork::new(options);
        let mut sides = connected(&network, shape);
        let sources = [0, 1].map(|at| sides[at].pool(pattern(at as u64 + 9, BYTES)));
        for side in &mut sides {
            side.counter(COUNTER.index).begin_use(COUNTER.generation);
            side.got.room = 2;
        }
        Self { network, sides, sources, transfers: Vec::new(), next: 1, looked_at: [0; 2] }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn begin(
        &mut self,
        side: usize,
        is_write: bool,
        sges: &[(u8, u8)],
        batch: usize,
        large: bool,
        tells: (bool, bool),
    ) {
        let other = 1 - side;
        let (giver, taker) = if is_write { (side, other) } else { (other, side) };
        let target = self.sides[taker].pool(vec![0; 8 * 64 * 16]);
        let given = self.sources[giver].bytes();
        let (mut spans, mut expected, mut at) = (Vec::new(), vec![0; 8 * 64 * 16], 0u64);
        for &(from, blocks) in sges {
            let (from, len) = (u64::from(from) * 64, u64::from(blocks) * 16);
            expected[at as usize..(at + len) as usize].copy_from_slice(&given[from as usize..(from + len) as usize]);
            spans.push(if is_write { span(from, at, len) } else { span(at, from, len) });
            // Some are neighbours, some are not.
            at += len + u64::from(blocks % 2) * 16;
            at = at.min(7 * 64 * 16);
            if at == 7 * 64 * 16 {
                break;
            }
        }
        let whole = if large { 1 << 20 } else { spans.iter().map(|span| span.len).sum() };
        let transfer = self.token();
        let mut begun =
            Transfer { side, target, expected, batches: Vec::new(), tell: None, quiet: Vec::new(), is_given_up: false };
        let mut left = &spans[..];
        while !left.is_empty() {
            let token = self.token();
            let Self { sides, sources, .. } = self;
            let (local, remote, direction) = match is_write {
                true => (&sources[side], &begun.target, WRITE),
                false => (&begun.target, &sources[other], READ),
            };
            let part = &left[..left.len().min(batch)];
            let Ok(Posted::Accepted(count)) =
                sides[side].post(direction, local, remote, part, (token, transfer, whole))
            else {
                break;
            };
            begun.batches.push(token);
            left = &left[count..];
        }
        if left.is_empty() && tells != (false, false) {
            let token = self.token();
            let (note, counter) = (tells.0.then_some(u128::from(transfer)), tells.1.then_some(COUNTER));
            let payload = pattern(transfer, transfer as usize * 37 % 700);
            let told = self.sides[side].tell((token, transfer, whole), counter, note.map(|note| (note, &payload[..])));
            if told == Ok(NotifyPosted::Accepted) {
                begun.tell = Some((token, note, tells.1));
            }
        }
        self.transfers.push(begun);
    }

    fn turn(&mut self, side: usize) {
        self.sides[side].turn();
        assert_eq!(self.sides[side].fault, None);
        // What is told is there at that moment.
        for (id, payload) in &self.sides[side].got.notes[self.looked_at[side]..] {
            let is_its = |transfer: &&Transfer| transfer.tell.is_some_and(|(_, note, _)| note == Some(*id));
            let transfer = self.transfers.iter().find(is_its).expect("somebody told it");
            assert!(transfer.target.bytes() == transfer.expected, "told before it was there: {id}");
            assert!(*payload == pattern(*id as u64, *id as usize * 37 % 700), "another note");
        }
        self.looked_at[side] = self.sides[side].got.notes.len();
    }

    fn give_up(&mut self, side: usize, back: usize) {
        let mut its: Vec<_> = self.transfers.iter_mut().filter(|transfer| transfer.side == side).collect();
        let Some(place) = its.len().checked_sub(back + 1) else { return };
        let transfer = &mut its[place];
        if std::mem::replace(&mut transfer.is_given_up, true) {
            return;
        }
        let tokens: Vec<_> = transfer.batches.iter().copied().chain(transfer.tell.map(|(token, ..)| token)).collect();
        for token in tokens {
            if self.sides[side].result(token).is_none()
                && self.sides[side].channel.cancel_op(token) == penstock_transport::lane::CancelledOp::Quiesced
            {
                transfer.quiet.push(token);
            }
        }
    }

    fn status(&mut self, side: usize, rail: usize, what: Fault) {
        let rail = rail % self.sides[0].adapters.len();
        let (here, there) = (&self.sides[side].adapters[rail], &self.sides[1 - side].adapters[rail]);
        match what {
            Fault::Break => drop(here.break_queue(self.sides[side].channel.rails[rail].number)),
            Fault::BreakAfter(requests) => here.break_after(requests),
            Fault::Cut => self.sides[side].cut(rail as u8),
            Fault::Hold => here.hold(),
            Fault::Release => here.release(),
            Fault::LoseAnswers => self.network.lose(there, here, Losses { answers: true, ..Losses::default() }),
            Fault::LoseAll => self.network.cut(here, there),
            Fault::Mend => self.network.mend(here, there),
            Fault::PortDown => here.set_port(false),
            Fault::PortUp => here.set_port(true),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Move { side, is_write, sges, batch, is_large, tells } => {
                self.begin(*side, *is_write, sges, *batch, *is_large, *tells);
            }
            Step::Work(steps) => (0..*steps).for_each(|_| {
                self.network.step();
            }),
            Step::Turn(side) => self.turn(*side),
            Step::TransportMessages(side) => {
                pass_asides(&mut self.sides, *side);
            }
            Step::Time(ms) => {
                self.network.advance(Duration::from_millis(*ms));
                self.sides.iter_mut().for_each(|side| side.now += Duration::from_millis(*ms));
            }
            Step::Room(side, room) => self.sides[*side].got.room += room,
            Step::GiveUp(side, back) => self.give_up(*side, *back),
            Step::Trouble { side, rail, what } => self.status(*side, *rail, *what),
        }
    }

    /// All is mended, and everybody has time.
    fn finish(&mut self) {
        for side in 0..2 {
            for rail in 0..self.sides[side].adapters.len() {
                for what in [Fault::Release, Fault::Mend, Fault::PortUp] {
                    self.status(side, rail, what);
                }
                self.sides[side].adapters[rail].break_after(u64::MAX);
            }
            self.sides[side].got.room = usize::MAX / 2;
        }
        for _ in 0..200 {
            self.network.advance(Duration::from_millis(20));
            self.sides.iter_mut().for_each(|side| side.now += Duration::from_millis(20));
            for _ in 0..12 {
                self.network.run();
                for side in 0..2 {
                    self.turn(side);
                    pass_asides(&mut self.sides, side);
                }
            }
            let is_over = |side: &Side| {
                let rails = 0..side.adapters.len();
                side.channel.ops.iter().count() == 0 && rails.into_iter().all(|rail| side.is_up(rail))
            };
            if self.sides.iter().all(is_over) {
                break;
            }
        }
        settle(&self.network, &mut self.sides);
    }

    fn check(&self) {
        let mut counted = [0; 2];
        let mut noted: [Vec<u128>; 2] = Default::default();
        for transfer in &self.transfers {
            let side = &self.sides[transfer.side];
            let mut is_whole = true;
            for token in &transfer.batches {
                let result = side.result(*token);
                match result {
                    Some(Ok(_)) => {}
                    Some(Err(Cause::Cancelled)) => assert!(transfer.is_given_up),
                    Some(Err(Cause::RailLost)) => {}
                    None => assert!(transfer.quiet.contains(token), "nobody said what became of {token}"),
                    other => panic!("{token} ended with {other:?}"),
                }
                assert!(result.is_none() || !transfer.quiet.contains(token), "quiet is quiet");
                is_whole &= matches!(result, Some(Ok(_)));
            }
            if is_whole && !transfer.batches.is_empty() && transfer.tell.is_some() {
                assert!(transfer.target.bytes() == transfer.expected);
            }
            let Some((token, note, counts)) = transfer.tell else { continue };
            match side.result(token) {
                Some(Ok(1)) => {
                    assert!(is_whole, "told, though not all of it has moved");
                    counted[1 - transfer.side] += u64::from(counts);
                    noted[1 - transfer.side].extend(note);
                }
                Some(Err(_)) => assert!(!is_whole || transfer.is_given_up),
                None => assert!(transfer.quiet.contains(&token), "nobody said whether {token} was told"),
                other => panic!("{token} ended with {other:?}"),
            }
        }
        for (at, side) in self.sides.iter().enumerate() {
            let mut got: Vec<_> = side.got.notes.iter().map(|(id, _)| *id).collect();
            got.sort_unstable();
            noted[at].sort_unstable();
            assert_eq!(got, noted[at], "each note once");
            assert_eq!(side.counter(COUNTER.index).value(), counted[at], "each count once");
            assert_eq!(side.channel.ops.iter().count(), 0);
            assert_eq!((side.channel.oldest(), side.channel.inbox.open()), (u64::MAX, 0));
            assert!(
                side.channel.lots.is_empty() && side.channel.rails.iter().any(|rail| rail.standing == Standing::Up)
            );
            assert!(side.channel.rails.iter().all(|rail| rail.bytes() == 0));
        }
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    (
        1usize..4,
        prop_oneof![Just(16), Just(64)],
        prop_oneof![Just(4), Just(16)],
        1usize..5,
        prop_oneof![Just(0), Just(100)],
        any::<bool>(),
    )
        .prop_map(|(rails, requests, grants, sges_max, inline_max, is_managed)| Shape {
            rails,
            requests,
            grants,
            sges_max,
            inline_max,
            is_managed,
        })
}

fn options() -> impl Strategy<Value = Options> {
    (prop::option::of(any::<u64>()), any::<bool>(), any::<bool>()).prop_map(|(seed, places_late, reset_cleans)| {
        Options { pace: Pace::ByHand, seed, places_late, reset_cleans, step_bytes: 4096, ..Options::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn whatever_breaks_when_all_ends_once_and_is_as_if_it_were_copied(
        shape in shape(),
        options in options(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut run = Run::new(shape, options);
        steps.iter().for_each(|step| run.step(step));
        run.finish();
        run.check();
    }
}
