//! A peer that says anything.

use proptest::prelude::*;

use super::*;
use crate::ended::QueueEnded;
use crate::message::{
    Body, Forgotten, Head, Immediate, MESSAGE_BYTES_MAX, NOTIFICATIONS, NotifyMessage, RailHello, Says, encode,
};

/// One thing that is said. Numbers are mostly those that are due, or what it says would not be looked at.
#[derive(Debug, Clone)]
enum Said {
    Message {
        off: u32,
        heard: u32,
        taken: u32,
        gone: u64,
        what: u8,
        number: u16,
        marks: u8,
        index: u32,
    },
    Immediate {
        off: u32,
        heard: u32,
        is_mark: bool,
        value: u16,
    },
    Bytes(Vec<u8>),
    Ended {
        rail: u8,
        life: u32,
        heard: u32,
        has_token: bool,
    },
    /// The side that hears all this does something, and has a turn.
    Own(bool),
}

fn said() -> impl Strategy<Value = Said> {
    let off = || prop_oneof![12 => Just(0u32), 1 => any::<u32>()];
    let few = || prop_oneof![8 => 0u32..3, 1 => any::<u32>()];
    let number = || prop_oneof![8 => 0u16..4, 1 => 0..NOTIFICATIONS];
    prop_oneof![
        8 => (off(), few(), few(), any::<u64>(), 0u8..6, number(), 0u8..3, 0u32..3)
            .prop_map(|(off, heard, taken, gone, what, number, marks, index)| Said::Message {
                off, heard, taken, gone, what, number, marks, index,
            }),
        6 => (off(), few(), any::<bool>(), number())
            .prop_map(|(off, heard, is_mark, value)| Said::Immediate { off, heard, is_mark, value }),
        1 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Said::Bytes),
        1 => (0u8..3, 0u32..2, few(), prop::bool::weighted(0.2))
            .prop_map(|(rail, life, heard, has_token)| Said::Ended { rail, life, heard, has_token }),
        4 => any::<bool>().prop_map(Said::Own),
    ]
}

struct Victim {
    network: ModelNetwork,
    sides: [Side; 2],
    source: Pool,
    target: Pool,
    /// What was heard before, of the own messages, and by the other side.
    confirmed: u32,
    next: u64,
}

impl Victim {
    fn hear(&mut self, said: &Said) {
        let channel = &self.sides[0].channel;
        let (life, due) = (channel.rails[0].life, channel.inbox.rails[0].heard());
        match said {
            Said::Message { off, heard, taken, gone, what, number, marks, index } => {
                let (number, marks) = (*number % NOTIFICATIONS, *marks);
                let counter = Some(CounterRef { index: *index, generation: 1 });
                let note = Some(Note { id: NoteId(7), payload: b"note" });
                let body = match what {
                    0 => Body::Hello(RailHello { channel: NUMBER, rail: 0, grants: 8 }),
                    1 => Body::Notify(NotifyMessage { number, marks, counter, note: None }),
                    2 => Body::Notify(NotifyMessage { number, marks, counter, note }),
                    3 => Body::Mark(number),
                    4 => Body::Forget(Forgotten { number, marks, is_said: index % 2 == 0 }),
                    _ => Body::Fence(u64::from(*index)),
                };
                self.confirmed = self.confirmed.wrapping_add(*heard);
                let head = Head {
                    life: life as u8,
                    number: due.wrapping_add(*off),
                    heard: self.confirmed,
                    taken: *taken,
                    gone: *gone,
                };
                let mut bytes = [0; MESSAGE_BYTES_MAX];
                let len = encode(&head, &body, &mut bytes);
                self.sides[0].come(&bytes[..len], None);
            }
            Said::Immediate { off, heard, is_mark, value } => {
                self.confirmed = self.confirmed.wrapping_add(*heard);
                let says = if *is_mark { Says::Mark(*value) } else { Says::Count(*value) };
                self.sides[0]
                    .come(&[], Some(Immediate::new(life, (due.wrapping_add(*off), self.confirmed), says).encode()));
            }
            Said::Bytes(bytes) => self.sides[0].come(bytes, None),
            Said::Ended { rail, life: ahead, heard, has_token } => {
                let heard = self.confirmed.wrapping_add(*heard);
                let ended = QueueEnded {
                    rail: *rail,
                    life: life.wrapping_add(*ahead),
                    heard,
                    gone: 0,
                    revision: 0,
                    queue: 1,
                    first_packet: 1,
                    token: has_token.then_some(Token([7; 16])),
                };
                self.sides[0].hear(&ended.encode());
            }
            Said::Own(has_turn) => {
                self.next += 1;
                let token = (2 * self.next, self.next, 64);
                let Self { sides, source, target, .. } = self;
                // Whatever is answered: it is the other side that is not well.
                let _ = sides[0].post(WRITE, source, target, &[span(0, 0, 64)], token);
                let _ = sides[0].tell((token.0 + 1, token.1, 64), None, Some((1, b"x")));
                if *has_turn {
                    self.network.run();
                    self.sides[0].turn();
                }
            }
        }
    }
}

#[test]
fn a_peer_that_ignores_its_credits_is_noticed() {
    let network = ModelNetwork::by_hand();
    for grants in [4, 32] {
        let mut sides = connected(&network, Shape { grants, ..SHAPE });
        let more = |sides: &mut [Side; 2]| {
            let rail = &sides[0].channel.rails[0];
            let says = Immediate::new(rail.life, (sides[0].channel.inbox.rails[0].heard(), 1), Says::Mark(1));
            sides[0].come(&[], Some(says.encode()));
        };
        // Its hello is one of them. Between any two looks of this side it may send as many as it was granted.
        (1..grants).for_each(|_| more(&mut sides));
        assert_eq!(sides[0].fault, None, "{grants} are granted");
        sides[0].turn();
        (0..grants).for_each(|_| more(&mut sides));
        assert_eq!(sides[0].fault, None, "{grants} more, for what was confirmed");
        more(&mut sides);
        assert_eq!(sides[0].fault, Some(LaneFault(Cause::PeerCorrupt)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_peer_says_it_is_heard_or_the_session_ends(all in prop::collection::vec(said(), 1..60), room in 0usize..4) {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, Shape { grants: 8, ..SHAPE });
        let (source, target) = (sides[0].pool(vec![1; 64]), sides[1].pool(vec![0; 64]));
        sides[0].got.room = room;
        sides[0].counter(0).begin_use(1);
        let confirmed = 1; // Its hello.
        let mut victim = Victim { network, sides, source, target, confirmed, next: 0 };
        for said in &all {
            victim.hear(said);
            let side = &victim.sides[0];
            if let Some(fault) = side.fault {
                prop_assert_eq!(fault, LaneFault(Cause::PeerCorrupt));
                break;
            }
            prop_assert!(side.got.notes.len() <= room);
            let tokens: std::collections::BTreeSet<_> = side.got.completed.iter().map(|(token, _)| token).collect();
            prop_assert_eq!(tokens.len(), side.got.completed.len(), "each ends once");
        }
    }
}
