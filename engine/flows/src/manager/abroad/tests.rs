use penstock_core::{Cause, EngineName, Epoch};
use penstock_session::control::{Buffer, Form, LayoutNews, LeaseExpired, Rows};

use super::*;
use crate::action::{Action, BlocksRef};
use crate::continuation::{self, Group, Home, Parent};
use crate::manager::Settings;

const NOW: Timestamp = Timestamp::from_ns(1);
const WITHIN: Duration = Duration::from_secs(5);
/// Each as the other knows it.
const LENDER: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(7) };
const READER: PeerKey = PeerKey { peer_index: 4, epoch: Epoch(8) };

/// Two transfer managers that know each other; the lender has pinned 40 tokens of `a` in three blocks.
struct Two {
    lender: TransferManager,
    reader: TransferManager,
    now: Timestamp,
}

fn parent() -> RequestId {
    RequestId::new("a").unwrap()
}

impl Two {
    fn new() -> Self {
        let [mut lender, mut reader] = [1, 2].map(|number| TransferManager::new(Settings::default(), [number, 2, 3]));
        let name = |name: &str| EngineName::new(name).unwrap();
        lender.handle(Event::Joined { peer: READER, name: name("decode-1") }, NOW);
        reader.handle(Event::Joined { peer: LENDER, name: name("decode-0") }, NOW);
        let rows = Rows { first: 0, count: 8, of: 8, bytes: 256 };
        let news = LayoutNews {
            number: 0,
            generation: 0,
            label: "kv".to_owned(),
            region: 1,
            region_generation: 1,
            block_tokens: 16,
            blocks: 8,
            rank: 0,
            ranks: 1,
            buffers: vec![Buffer { layer: 0, base: 0, stride: 32_768, form: Form::TokenMajor(rows) }],
        };
        let layout = lender.add_layout(news, 1 << 20).unwrap();
        lender.open_pins(continuation::PinSettings::default(), Home { engine: name("decode-0"), rank: 0 }).unwrap();
        let group = Group { block_tokens: 16, blocks: vec![5, 1, 6], computed: 40, block_bytes: 64, hashes: vec![] };
        let (isolation, groups, blob) = (Isolation::default(), vec![group], Vec::new());
        let parent = Parent { request: parent(), isolation, groups, blob };
        let pinned = lender.call_pins(|pins| pins.pin(parent, vec![BlocksRef(7)], Duration::from_secs(60), NOW));
        lender.lend_pin(pinned.unwrap().unwrap(), layout);
        let mut two = Self { lender, reader, now: NOW };
        two.carry();
        two
    }

    /// Carries words to and fro until there are none; watches are answered at once.
    fn carry(&mut self) {
        loop {
            let mut is_idle = true;
            let Self { lender, reader, now } = self;
            for is_lender in [true, false] {
                let (from, to, sender) =
                    if is_lender { (&mut *lender, &mut *reader, LENDER) } else { (&mut *reader, &mut *lender, READER) };
                while let Some(action) = from.poll_action() {
                    is_idle = false;
                    match action {
                        Action::Say { said, .. } => to.handle(Event::Said { peer: sender, said }, *now),
                        Action::Watch { id, .. } => from.handle(Event::Quiet { id }, *now),
                        _ => {}
                    }
                }
            }
            if is_idle {
                return;
            }
        }
    }

    fn ask(&mut self) -> AskKey {
        self.reader.ask_parent(LENDER, &parent(), &Isolation::default(), 100, WITHIN, self.now).unwrap()
    }

    fn uses(&self) -> (usize, usize, usize) {
        (self.lender.metrics().pins.uses, self.lender.metrics().lent, self.reader.metrics().borrowed)
    }
}

#[test]
fn a_parent_is_lent_and_given_back_and_its_lease_stood_until_then() {
    let mut two = Two::new();
    let ask = two.ask();
    assert!(!two.reader.has_parent(ask));
    two.carry();
    let lent = two.reader.parent_lent(ask).unwrap().unwrap();
    assert_eq!((lent.tokens, &lent.blocks, two.uses()), (32, &vec![5, 1], (1, 1, 1)));
    two.reader.give_back_parent(&lent, true);
    assert!(!two.reader.knows_parent_stood(&lent));
    two.carry();
    assert_eq!((two.reader.parent_stood(&lent), two.uses()), (Some(Ok(())), (0, 0, 0)));
    assert_eq!(two.reader.parent_stood(&lent), None, "said once");
    assert!(two.reader.metrics().refused + two.lender.metrics().refused == 0);
}

#[test]
fn what_is_over_when_somebody_asks_for_something_else_is_freed() {
    let mut two = Two::new();
    two.now = NOW + Duration::from_secs(61);
    let (isolation, nobody) = (Isolation::default(), RequestId::new("nobody").unwrap());
    let ask = PinAsk { ask: 1, parent: nobody.as_str().to_owned(), isolation: isolation.digest(), tokens: 100 };
    two.lender.handle(Event::Said { peer: READER, said: ControlMessage::PinAsk(ask) }, two.now);
    assert_eq!(two.lender.metrics().pins.pins, 0, "its time was over");
    let freed = std::iter::from_fn(|| two.lender.poll_action());
    assert!(freed.into_iter().any(|action| matches!(action, Action::Free { ticket: BlocksRef(7) })));
}

#[test]
fn what_is_left_alone_ends_by_the_lenders_clock_and_no_sooner() {
    let mut two = Two::new();
    let ask = two.ask();
    two.carry();
    let lent = two.reader.parent_lent(ask).unwrap().unwrap();
    two.reader.leave_parent(&lent);
    let ttl = Settings::default().lease_ttl;
    // Nobody renews what nobody reads, and nobody says that it is given back.
    for part in 1..4 {
        two.now = NOW + ttl * part / 4;
        two.reader.expire(two.now);
        two.lender.expire(two.now);
        two.carry();
        assert_eq!(two.uses(), (1, 1, 0), "after {part} quarters");
    }
    two.now = NOW + ttl;
    two.lender.expire(two.now);
    two.carry();
    assert_eq!(two.uses(), (0, 0, 0));
    assert_eq!(two.reader.metrics().refused + two.lender.metrics().refused, 0);
}

#[test]
fn what_was_read_under_a_lease_that_has_ended_is_worth_nothing() {
    let mut two = Two::new();
    let ask = two.ask();
    two.carry();
    let lent = two.reader.parent_lent(ask).unwrap().unwrap();
    // Nobody renews: the lender's own clock ends it, and its reader is quiet.
    two.now = two.now + Settings::default().lease_ttl;
    two.lender.expire(two.now);
    assert_eq!(two.uses(), (1, 1, 1), "its reader may be in a copy");
    two.carry();
    assert_eq!(two.uses(), (0, 0, 0));
    two.reader.give_back_parent(&lent, true);
    two.carry();
    assert_eq!(two.reader.parent_stood(&lent), Some(Err(Miss::Expired)));
}

#[test]
fn a_lease_is_renewed_for_as_long_as_it_is_read() {
    let mut two = Two::new();
    let ask = two.ask();
    two.carry();
    let lent = two.reader.parent_lent(ask).unwrap().unwrap();
    for _ in 0..20 {
        two.now = two.now + Settings::default().lease_ttl / 2;
        two.reader.expire(two.now);
        two.carry();
        two.lender.expire(two.now);
        two.carry();
    }
    two.reader.give_back_parent(&lent, true);
    two.carry();
    assert_eq!((two.reader.parent_stood(&lent), two.uses()), (Some(Ok(())), (0, 0, 0)));
}

#[test]
fn nothing_is_left_of_a_question_that_nobody_waits_for() {
    let mut two = Two::new();
    // Given up before the answer, after it, and with a lost peer.
    let [first, second] = [two.ask(), two.ask()];
    two.reader.stop_asking(first);
    two.carry();
    assert_eq!(two.uses(), (1, 1, 1));
    two.reader.stop_asking(second);
    two.carry();
    assert_eq!((two.uses(), two.reader.has_parent(first), two.reader.has_parent(second)), ((0, 0, 0), false, false));
    let third = two.ask();
    two.carry();
    let lent = two.reader.parent_lent(third).unwrap().unwrap();
    let fourth = two.ask();
    while two.reader.poll_action().is_some() {} // Lost with the session.
    two.reader.handle(Event::Left { peer: LENDER, cause: Cause::PeerLost }, two.now);
    two.lender.handle(Event::Left { peer: READER, cause: Cause::PeerLost }, two.now);
    assert_eq!(two.reader.parent_lent(fourth), Some(Err(Miss::PeerLost)));
    two.reader.give_back_parent(&lent, true);
    assert_eq!(two.reader.parent_stood(&lent), Some(Err(Miss::Expired)));
    two.carry();
    assert_eq!(two.uses(), (0, 0, 0));
    assert!(two.reader.is_empty());
    let asked = two.reader.ask_parent(LENDER, &parent(), &Isolation::default(), 100, WITHIN, two.now);
    assert_eq!(asked, Err(Miss::PeerLost), "nobody is asked who is not there");
}

#[test]
fn a_late_answer_and_words_of_leases_that_nobody_has_change_nothing() {
    let mut two = Two::new();
    let ask = two.ask();
    two.reader.expire(two.now + WITHIN);
    assert_eq!(two.reader.parent_lent(ask), Some(Err(Miss::Late)));
    two.carry();
    assert_eq!(two.uses(), (1, 1, 0), "until its lease ends by itself");
    let over = LeaseExpired { lease: 77, cause: 8 };
    two.reader.handle(Event::Said { peer: LENDER, said: ControlMessage::LeaseExpired(over) }, two.now);
    two.now = two.now + Settings::default().lease_ttl;
    two.lender.expire(two.now);
    two.carry();
    assert_eq!(two.uses(), (0, 0, 0));
    // Blocks that are not in the layout.
    let ask = two.ask();
    let terms = PinAnswer {
        ask: 2,
        code: 0,
        lease: 5,
        ttl_ms: 1000,
        layout: 0,
        layout_generation: 9,
        tokens: 32,
        blocks: vec![1, 99],
    };
    two.reader.handle(Event::Said { peer: LENDER, said: ControlMessage::PinAnswer(terms) }, two.now);
    assert_eq!(two.reader.parent_lent(ask), Some(Err(Miss::Senseless)));
}
