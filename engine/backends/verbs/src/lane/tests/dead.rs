//! An adapter that fails while another rail lives.

use super::*;

const BLOCK: u64 = 64 << 10;
const BLOCKS: u64 = 64;

fn reset_counts(sides: &[Side; 2]) -> Vec<u64> {
    sides.iter().flat_map(|side| &side.engine.adapters).map(|adapter| adapter.counts().resets).collect()
}

#[test]
fn a_card_that_fails_in_the_middle_ends_nothing_while_another_rail_lives() {
    for failing in 0..2 {
        let (_network, mut sides) = session(2);
        let bytes = (BLOCK * BLOCKS) as usize;
        let from = sides[0].engine.region(pattern(3, bytes), Rights::NONE);
        let to = sides[1].engine.region(vec![0; bytes], Rights::WRITE);
        let there = sides[1].show(&to, &sides[0]);
        sides[1].engine.adapters[1].hold();
        for block in 0..BLOCKS {
            until(&mut sides, "there is room", |sides| {
                // The adapter that fails stands still with what it has, and the other one goes on.
                let at = block * BLOCK;
                sides[0].post(WRITE, &from, &there, &[span(at, at, BLOCK)], (block, block)).is_ok()
            });
            if block == BLOCKS / 2 {
                assert!((0..block).any(|token| sides[0].result(token).is_none()), "it has something under way");
                sides[failing].engine.adapters[1].fail();
                sides[1].engine.adapters[1].release();
            }
        }
        until(&mut sides, "all have ended", |sides| (0..BLOCKS).all(|token| sides[0].result(token).is_some()));
        assert!((0..BLOCKS).all(|token| sides[0].result(token) == Some(Ok(BLOCK))), "card of side {failing}");
        until(&mut sides, "it is told", |sides| sides[0].tell(1000, 1000, 9, b"all").is_ok());
        until(&mut sides, "it is heard", |sides| sides[0].result(1000) == Some(Ok(1)));
        assert!(bytes_of(&to) == bytes_of(&from));
        assert_eq!(sides[1].got().notes, [(9, b"all".to_vec())]);
        // Whoever has the failed adapter has given its queue back, and the other side leaves the rail alone.
        assert_eq!(sides[failing].engine.adapters[1].counts().queues, 0);
        let resets = reset_counts(&sides);
        let later = Instant::now() + Duration::from_millis(300);
        until(&mut sides, "time has passed", |_| Instant::now() >= later);
        assert_eq!(reset_counts(&sides), resets, "nobody tries the rail again");
        // Memory is taken back on either side, and nobody has to be forced.
        for (at, region) in [(0, &from), (1, &to)] {
            let [one, two] = &mut sides;
            let (mine, other) = if at == 0 { (one, two) } else { (two, one) };
            let revision = mine.withdraw(region, 0, 64, Some(other));
            until(&mut sides, "it is quiet", |sides| sides[at].fence().has_passed(revision));
        }
        // New memory and new transfers do without it, each way.
        let revisions = |at| Revisions { local: 1, remote: 1 + u64::from(at > 1) };
        for at in 0..2 {
            sides[at].expected = revisions(at);
            let from = sides[at].engine.region(pattern(7, bytes), Rights::READ);
            let to = sides[1 - at].engine.region(vec![0; bytes], Rights::READ_WRITE);
            let there = sides[1 - at].show(&to, &sides[at]);
            for (token, direction) in [(2000, WRITE), (2002, READ)] {
                for transfer in token..token + 2 {
                    sides[at].post(direction, &from, &there, &[span(0, 0, BLOCK)], (transfer, transfer)).unwrap();
                    until(&mut sides, "it has moved", |sides| sides[at].result(transfer) == Some(Ok(BLOCK)));
                }
            }
            settle(&mut sides);
            assert!(bytes_of(&to)[..BLOCK as usize] == pattern(7, bytes)[..BLOCK as usize]);
        }
        // The end of the session forgets no queue of somebody else.
        sides.iter_mut().for_each(|side| side.workers[0].lane = None);
        assert!(sides.iter().flat_map(|side| &side.engine.adapters).all(|adapter| adapter.counts().queues == 0));
    }
}

#[test]
fn the_number_of_a_queue_that_was_given_back_may_be_anothers() {
    let (_network, mut sides) = session(2);
    let adapter = Arc::clone(&sides[0].engine.adapters[1]);
    adapter.refuse_resets(1);
    // Queues are numbered alike on all adapters of the model, from the lowest number that is free.
    let first = sides[0].engine.offer(PARTY + 1, 1);
    let theirs = crate::offer::VerbsOffer::parse(&first.blob, 1, 1).unwrap().rails[1].queues[0].number;
    drop(first);
    let number = theirs - 1;
    assert!(adapter.break_queue(number));
    until(&mut sides, "it is given back", |_| adapter.counts().queues == 0);
    settle(&mut sides);
    let hub = Arc::clone(sides[0].engine.transport.hub(0));
    let inbox = hub.lock().new_inbox(PARTY + 2);
    let other = hub.queue(1, inbox, 0, (64, 32)).unwrap();
    assert_eq!((other.number(), hub.lock().receives().1), (number, 64), "the desk has forgotten the first one");
    hub.lock().assign(1, number, 0);
    sides[0].workers[0].lane = None;
    hub.lock().event(1, crate::adapter::AsyncEvent::QueueBroken(number));
    let mut items = VecDeque::new();
    hub.lock().take(inbox, &mut items);
    assert_eq!(items.len(), 1, "it is still heard of");
}

#[test]
fn a_card_that_makes_a_queue_neither_new_nor_takes_it_back_proves_nothing() {
    for (resets, backs, is_proven) in [(1, 0, true), (0, 1, true), (u64::MAX, u64::MAX, false)] {
        let (_network, mut sides) = session(2);
        let adapter = Arc::clone(&sides[0].engine.adapters[1]);
        adapter.refuse_resets(resets);
        adapter.refuse_to_take_back(backs);
        settle(&mut sides);
        sides[0].workers[0].lane = None;
        let fence = sides[0].fence();
        assert_eq!((fence.is_unproven(), fence.has_passed(u64::MAX)), (!is_proven, is_proven), "{resets}, {backs}");
    }
}
