use std::collections::BTreeMap;

use penstock_core::Timestamp;
use penstock_session::control::Side;
use penstock_session::transfers::table::Transfers;
use penstock_session::{RequestId, TransferId};
use proptest::prelude::*;

use super::*;
use crate::manager::Settings;

fn key() -> EntryKey {
    let mut table = Transfers::new(Settings::default().transfers, (1, 2));
    let (transfer, request) = (TransferId::from_bytes([1; 16]), RequestId::new("r").unwrap());
    table.admit(Side::Sink, transfer, request, (), Timestamp::from_ns(1)).unwrap().0
}

proptest! {
    /// Names that are over lead nowhere, also when their places are used again, and when the list has shrunk and grown meanwhile.
    #[test]
    fn what_moves_is_what_a_plain_map_says(steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>()), 0..300)) {
        // The names' uses begin anew meanwhile.
        let (key, mut moves) = (key(), Moves { uses: USES - 20, ..Moves::default() });
        let (mut plain, mut over): (BTreeMap<u64, u64>, Vec<MoveId>) = Default::default();
        for (number, (step, which)) in (0..).zip(steps) {
            match step {
                0 | 1 => {
                    let next = moves.next();
                    let id = moves.add((key, 3, number));
                    prop_assert_eq!(id, next);
                    prop_assert_eq!(id.0 >> 62, 0, "the two highest bits are not its own");
                    prop_assert_eq!(plain.insert(id.0, number), None);
                }
                2 if !plain.is_empty() => {
                    let (&id, &number) = plain.iter().nth(which.index(plain.len())).unwrap();
                    prop_assert_eq!(moves.remove(MoveId(id)), Some((key, 3, number)));
                    plain.remove(&id);
                    over.push(MoveId(id));
                }
                _ => moves.shrink(),
            }
            prop_assert_eq!((moves.len(), moves.is_empty()), (plain.len(), plain.is_empty()));
            let mut found: Vec<(u64, u64)> = moves.iter().map(|(id, (_, _, number))| (id.0, number)).collect();
            found.sort_unstable();
            prop_assert_eq!(found, plain.clone().into_iter().collect::<Vec<_>>());
            for id in &over {
                prop_assert_eq!(moves.get(*id), None);
                prop_assert_eq!(moves.remove(*id), None);
            }
        }
    }
}
