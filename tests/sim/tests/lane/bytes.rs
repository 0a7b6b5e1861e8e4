//! Bytes land where they belong, or nowhere.

use std::time::Duration;

use penstock::{Cause, NoteId, Notified, Submit};
use penstock_simulation::{Random, Weather, World, replay};

use crate::stage::{
    BLOCK_BYTES, BLOCKS, BYTES, Ends, SECOND, SOON, Stage, a_while, bytes_of, cause, expect_blocks, fill, storm,
};

#[test]
fn blocks_that_are_written_land_where_they_belong_and_are_told_of() {
    replay(0..100, |world| {
        let stage = Stage::open(world, Weather::default());
        fill(&stage.near, 1);
        let pairs = stage.pairs(0);
        let transfer = stage.submit(&stage.write(&pairs), Submit::new().notify(NoteId(7), b"layer 3"));
        let mut notes = Vec::new();
        world.wait(SOON, || stage.target.notifications(&mut notes) > 0).unwrap();
        assert_eq!((notes[0].id, notes[0].payload.as_slice()), (NoteId(7), b"layer 3".as_slice()));
        expect_blocks(&bytes_of(&stage.far), 1, &pairs);
        let done = stage.end(&transfer).unwrap();
        assert_eq!((done.bytes, done.notified), (BYTES, Notified::Yes));
        drop(transfer);
        stage.close();
    });
}

#[test]
fn blocks_that_are_read_come_whole() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        fill(&stage.far, 2);
        let pairs = stage.pairs(0);
        // A read goes from the second of each pair to the first.
        let back: Vec<(u32, u32)> = pairs.iter().map(|&(here, there)| (there, here)).collect();
        let how = Submit::new().notify(NoteId(1), b"read");
        let transfer = stage.submit(&stage.read(&pairs), how);
        assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
        expect_blocks(&bytes_of(&stage.near), 2, &back);
        let mut notes = Vec::new();
        world.wait(SOON, || stage.target.notifications(&mut notes) > 0).unwrap();
        drop(transfer);
        stage.close();
    });
}

/// Write, read back over it, compare every byte.
fn there_and_back(world: &World, weather: Weather) {
    let stage = Stage::open(world, weather);
    fill(&stage.near, 3);
    let pairs = stage.pairs(0);
    let transfer = stage.submit(&stage.write(&pairs), Submit::new());
    assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
    expect_blocks(&bytes_of(&stage.far), 3, &pairs);
    fill(&stage.near, 4);
    drop(transfer);
    let transfer = stage.submit(&stage.read(&pairs), Submit::new());
    assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
    let same: Vec<(u32, u32)> = (0..BLOCKS).map(|block| (block, block)).collect();
    expect_blocks(&bytes_of(&stage.near), 3, &same);
    drop(transfer);
    stage.close();
}

#[test]
fn one_packet_in_twenty_may_vanish() {
    replay(0..100, |world| there_and_back(world, Weather { lost: 50, ..Weather::default() }));
}

#[test]
fn packets_may_come_twice() {
    replay(0..100, |world| there_and_back(world, Weather { doubled: 300, ..Weather::default() }));
}

#[test]
fn packets_may_overtake_each_other() {
    let delays = Weather { delay_min: Duration::ZERO, delay_max: Duration::from_millis(3), ..Weather::default() };
    replay(0..100, |world| there_and_back(world, delays));
}

#[test]
fn the_one_direction_may_be_worse_than_the_other() {
    replay(0..100, |world| {
        let bad = Weather { lost: 300, ..storm() };
        let (from, to) = if world.seed() % 2 == 0 { (1, 2) } else { (2, 1) };
        world.set_weather_between(from, to, bad);
        there_and_back(world, Weather::default());
    });
}

#[test]
fn many_transfers_in_both_directions_do_not_disturb_each_other() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        let back = stage.target.peers().remove(0);
        world.wait(SOON, || back.region("up").is_err() && back.region("kv").is_ok()).unwrap();
        fill(&stage.near, 5);
        let up = crate::stage::pool(&stage.source, "up");
        world.wait(SOON, || back.region("up").is_ok()).unwrap();
        let from = crate::stage::pool(&stage.target, "from");
        fill(&from, 6);
        let pairs = stage.pairs(1);
        let halves = pairs.split_at(pairs.len() / 2);
        let plans = [stage.write(halves.0), stage.write(halves.1)];
        let remote = back.region("up").unwrap();
        let returned = penstock::Plan::write(&from, &remote).blocks(&pairs).build().unwrap();
        let there: Vec<_> = plans.iter().map(|plan| stage.submit(plan, Submit::new())).collect();
        let here = back.submit(&returned, Submit::new().within(SOON)).unwrap();
        for transfer in there.iter().chain([&here]) {
            stage.end(transfer).unwrap();
        }
        expect_blocks(&bytes_of(&stage.far), 5, &pairs);
        expect_blocks(&bytes_of(&up), 6, &pairs);
        drop((there, here, up, from, back, plans, returned, remote));
        stage.close();
    });
}

/// Blocks are taken back while they are written. Once that is proven nothing lands in them any more.
#[test]
fn withdrawn_memory_is_not_touched_any_more() {
    let ends = Ends::default();
    replay(0..100, |world| {
        let mut random = Random::new(!world.seed());
        let stage = Stage::open(world, storm());
        fill(&stage.near, 7);
        let transfer = stage.submit(&stage.write(&stage.pairs(0)), Submit::new().notify(NoteId(1), b"all of it"));
        world.run_for(a_while(random.below(1000) as u64));
        let first = random.below(BLOCKS as usize / 2) as u64;
        let extent = (first * BLOCK_BYTES, BLOCK_BYTES * (1 + random.below(BLOCKS as usize / 2) as u64));
        assert!(stage.far.revoke(&[extent], SECOND).unwrap().is_quiesced());
        stage.far.window().fill(extent.0, extent.1, 0xee).unwrap();
        let mut notes = Vec::new();
        let ended = stage.end(&transfer);
        ends.note(&ended);
        match ended {
            // It was over before.
            Ok(_) => {
                world.wait(SOON, || stage.target.notifications(&mut notes) > 0).unwrap();
            }
            Err(fault) => {
                assert_eq!(fault.cause, Cause::RevokedByPeer);
                assert_ne!(fault.notified, Notified::Yes);
            }
        }
        world.run_for(Duration::from_millis(50));
        let found = bytes_of(&stage.far);
        let untouched = &found[extent.0 as usize..(extent.0 + extent.1) as usize];
        assert!(untouched.iter().all(|&byte| byte == 0xee), "something landed after it was proven that nothing can");
        stage.target.notifications(&mut notes);
        assert_eq!(notes.len(), usize::from(transfer.poll().unwrap().is_ok()), "a part is not told as the whole");
        drop(transfer);
        stage.close();
    });
    ends.expect_both();
}

#[test]
fn a_plan_over_withdrawn_memory_is_refused_and_not_told() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        fill(&stage.far, 8);
        let plans = [stage.write(&[(0, 3), (1, 4)]), stage.read(&[(0, 3), (1, 4)])];
        assert!(stage.far.revoke(&[(4 * BLOCK_BYTES + 17, 1)], SECOND).unwrap().is_quiesced());
        for plan in &plans {
            let transfer = stage.submit(plan, Submit::new().notify(NoteId(1), b"never"));
            assert_eq!(cause(stage.end(&transfer)), Cause::RevokedByPeer);
        }
        let rest = stage.submit(&stage.read(&[(0, 6), (1, 5)]), Submit::new());
        assert_eq!(stage.end(&rest).unwrap().bytes, 2 * BLOCK_BYTES);
        expect_blocks(&bytes_of(&stage.near), 8, &[(6, 0), (5, 1)]);
        world.run_for(Duration::from_millis(20));
        assert_eq!(stage.target.notifications(&mut Vec::new()), 0);
        drop((rest, plans));
        stage.close();
    });
}

/// Who has cancelled may write anything into its memory at once: what was on its way is what was there before.
#[test]
fn a_cancelled_write_carries_nothing_that_was_written_later() {
    let ends = Ends::default();
    replay(0..100, |world| {
        let mut random = Random::new(!world.seed());
        let stage = Stage::open(world, storm());
        fill(&stage.near, 9);
        stage.far.window().fill(0, BYTES, 0x11).unwrap();
        let pairs: Vec<(u32, u32)> = (0..BLOCKS).map(|block| (block, block)).collect();
        let transfer = stage.submit(&stage.write(&pairs), Submit::new().notify(NoteId(1), b"all of it"));
        world.run_for(a_while(random.below(1000) as u64));
        let answer = transfer.cancel(SECOND);
        let before = bytes_of(&stage.near);
        stage.near.window().fill(0, BYTES, 0xee).unwrap();
        let ended = stage.end(&transfer);
        ends.note(&ended);
        world.run_for(Duration::from_millis(50));
        for (place, (found, sent)) in bytes_of(&stage.far).iter().zip(&before).enumerate() {
            assert!(found == sent || *found == 0x11, "byte {place} is {found:#x} after {answer:?}, {ended:?}");
        }
        let told = stage.target.notifications(&mut Vec::new());
        assert_eq!(told, usize::from(ended.is_ok()), "{answer:?}, {ended:?}");
        drop(transfer);
        stage.close();
    });
    ends.expect_both();
}

#[test]
fn memory_of_the_reader_that_is_taken_back_is_not_touched_any_more() {
    let ends = Ends::default();
    replay(0..100, |world| {
        let mut random = Random::new(!world.seed());
        let stage = Stage::open(world, storm());
        fill(&stage.far, 10);
        let transfer = stage.submit(&stage.read(&stage.pairs(0)), Submit::new());
        world.run_for(a_while(random.below(1000) as u64));
        assert!(stage.near.revoke(&[(0, BYTES)], SECOND).unwrap().is_quiesced());
        stage.near.window().fill(0, BYTES, 0xee).unwrap();
        let ended = stage.end(&transfer);
        ends.note(&ended);
        if let Err(fault) = ended {
            assert_eq!(fault.cause, Cause::RevokedHere);
        }
        world.run_for(Duration::from_millis(50));
        assert!(bytes_of(&stage.near).iter().all(|&byte| byte == 0xee));
        drop(transfer);
        stage.close();
    });
    ends.expect_both();
}

/// Of each block its transfer says whether it is there. Where it is not, each byte is the one from before or the one that was sent.
#[test]
fn in_the_worst_weather_every_transfer_ends_and_says_how() {
    let ends = Ends::default();
    let worst = Weather { lost: 200, doubled: 100, rotten: 50, late_copies: 50, ..storm() };
    replay(0..100, |world| {
        let mut random = Random::new(!world.seed());
        let stage = Stage::open(world, worst);
        fill(&stage.near, 41);
        stage.far.window().fill(0, BYTES, 0x11).unwrap();
        let pairs = stage.pairs(2);
        let transfers: Vec<_> = pairs
            .iter()
            .map(|&pair| {
                let within = if random.once_in(3) { a_while(random.below(1000) as u64) } else { SOON };
                let how = Submit::new().notify(NoteId(pair.1.into()), b"a block").within(within);
                stage.peer.submit(&stage.write(&[pair]), how).unwrap()
            })
            .collect();
        let ended: Vec<_> = transfers.iter().map(|transfer| stage.end(transfer)).collect();
        world.run_for(Duration::from_millis(60));
        let (found, sent) = (bytes_of(&stage.far), bytes_of(&stage.near));
        for (pair, ended) in pairs.iter().zip(&ended) {
            ends.note(ended);
            match ended {
                Ok(done) => {
                    assert_eq!((done.bytes, done.notified), (BLOCK_BYTES, Notified::Yes));
                    expect_blocks(&found, 41, &[*pair]);
                }
                Err(fault) => {
                    // A peer is asked eight times before it is lost, each time in vain here with a chance of nearly a half.
                    let is_lost = fault.cause == Cause::PeerLost && stage.peer.ended() == Some(Cause::PeerLost);
                    assert!(is_lost || fault.cause == Cause::DeadlineExceeded, "{fault:?}");
                    let part =
                        |block: u32| block as usize * BLOCK_BYTES as usize..(block as usize + 1) * BLOCK_BYTES as usize;
                    let its = found[part(pair.1)].iter().zip(&sent[part(pair.0)]);
                    assert!(its.into_iter().all(|(found, sent)| found == sent || *found == 0x11), "block {}", pair.1);
                }
            }
        }
        drop(transfers);
        if stage.peer.ended().is_none() {
            stage.close();
        }
    });
    ends.expect_both();
}

/// Memory is used again as soon as a transfer has ended, while copies of its packets are still to come.
#[test]
fn what_comes_from_an_earlier_transfer_lands_nowhere() {
    let repeats = Weather { lost: 100, doubled: 200, late_copies: 300, ..storm() };
    replay(0..60, |world| {
        let stage = Stage::open(world, repeats);
        for round in 0..4 {
            fill(&stage.near, 50 + round);
            let pairs = stage.pairs(round);
            let transfer = stage.submit(&stage.write(&pairs), Submit::new());
            assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
            expect_blocks(&bytes_of(&stage.far), 50 + round, &pairs);
            // What is there now is somebody else's, here and there.
            fill(&stage.far, 60 + round);
            let transfer = stage.submit(&stage.read(&pairs), Submit::new());
            assert_eq!(stage.end(&transfer).unwrap().bytes, BYTES);
            let same: Vec<(u32, u32)> = (0..BLOCKS).map(|block| (block, block)).collect();
            expect_blocks(&bytes_of(&stage.far), 60 + round, &same);
            let back: Vec<(u32, u32)> = pairs.iter().map(|&(here, there)| (there, here)).collect();
            expect_blocks(&bytes_of(&stage.near), 60 + round, &back);
            stage.near.window().fill(0, BYTES, 0xee).unwrap();
            world.run_for(Duration::from_millis(if world.seed() % 2 == 0 { 60 } else { 2 }));
            assert!(bytes_of(&stage.near).iter().all(|&byte| byte == 0xee), "something landed here in round {round}");
            expect_blocks(&bytes_of(&stage.far), 60 + round, &same);
        }
        stage.close();
    });
}
