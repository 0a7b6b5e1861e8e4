//! Notes and counters: each once, behind all bytes of its transfer.

use penstock::{NoteId, Plan, Submit};
use penstock_simulation::{Random, replay};

use crate::stage::{
    BLOCKS, FAR, NEAR, SECOND, SOON, Stage, bytes_of, config, connect, expect_blocks, fill, pool, storm,
};

/// One transfer a block, each with a note that names it. Whenever a note is there its block is.
#[test]
fn every_note_comes_once_and_behind_its_bytes() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        fill(&stage.near, 11);
        let pairs = stage.pairs(0);
        let mut transfers = Vec::new();
        for &pair in &pairs {
            let plan = stage.write(&[pair]);
            let how = Submit::new().notify(NoteId(pair.1.into()), b"a block");
            transfers.push(stage.submit(&plan, how));
        }
        let mut told = vec![0; BLOCKS as usize];
        let looked = world.wait(SOON, || {
            let mut notes = Vec::new();
            stage.target.notifications(&mut notes);
            if !notes.is_empty() {
                let found = bytes_of(&stage.far);
                for note in &notes {
                    let to = u32::try_from(note.id.0).unwrap();
                    told[to as usize] += 1;
                    let pair = pairs.iter().find(|pair| pair.1 == to).unwrap();
                    expect_blocks(&found, 11, &[*pair]);
                }
            }
            transfers.iter().all(|transfer| transfer.poll().is_some())
        });
        looked.unwrap();
        world.run_for(SECOND / 20);
        let mut notes = Vec::new();
        stage.target.notifications(&mut notes);
        notes.iter().for_each(|note| told[note.id.0 as usize] += 1);
        assert_eq!(told, vec![1; BLOCKS as usize]);
        assert!(transfers.iter().all(|transfer| transfer.poll().unwrap().is_ok()));
        drop(transfers);
        stage.close();
    });
}

#[test]
fn every_counter_goes_up_once_for_each_transfer() {
    replay(0..100, |world| {
        let stage = Stage::open(world, storm());
        fill(&stage.near, 12);
        let counter = stage.far.counter("arrivals").unwrap();
        world.wait(SOON, || stage.peer.counter("arrivals").is_some()).unwrap();
        let arrivals = stage.peer.counter("arrivals").unwrap();
        let plan = stage.write(&stage.pairs(0));
        let transfers: Vec<_> = (0..5).map(|_| stage.submit(&plan, Submit::new().count(arrivals))).collect();
        for transfer in &transfers {
            stage.end(transfer).unwrap();
        }
        world.run_for(SECOND / 20);
        assert_eq!(counter.value(), 5);
        drop((transfers, counter, plan));
        stage.close();
    });
}

/// The inbox is smaller than what is sent: what has no room waits, and nothing else waits behind it.
#[test]
fn notes_wait_for_room_and_bytes_do_not_wait_for_notes() {
    replay(0..100, |world| {
        world.set_weather(storm());
        let identity = |host| penstock_simulation::Identity::on(host);
        let target = world.start_as(identity(FAR), config(FAR, "target").notifications_per_peer(2)).unwrap();
        let source = world.start_as(identity(NEAR), config(NEAR, "source")).unwrap();
        let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
        fill(&near, 13);
        let peer = connect(world, &source, &target);
        let remote = peer.region("kv").unwrap();
        let payload = vec![9; 3000];
        let note = |id| Submit::new().notify(NoteId(id), &payload).within(SOON);
        let plan = Plan::write(&near, &remote).blocks(&[(0, 0)]).build().unwrap();
        let noted: Vec<_> = (0..8).map(|id| peer.submit(&plan, note(id)).unwrap()).collect();
        let silent = Plan::write(&near, &remote).blocks(&[(1, 1)]).build().unwrap();
        let silent = peer.submit(&silent, Submit::new().within(SOON)).unwrap();
        world.wait(SOON, || silent.poll().is_some()).unwrap();
        silent.poll().unwrap().unwrap();
        expect_blocks(&bytes_of(&far), 13, &[(1, 1)]);
        let mut random = Random::new(world.seed());
        let mut notes = Vec::new();
        world
            .wait(SOON, || {
                if random.once_in(50) {
                    target.notifications(&mut notes);
                }
                notes.len() == 8
            })
            .unwrap();
        world.wait(SOON, || noted.iter().all(|transfer| transfer.poll().is_some())).unwrap();
        let mut ids: Vec<u128> = notes.iter().map(|note| note.id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..8).collect::<Vec<_>>());
        assert!(notes.iter().all(|note| note.payload.as_slice() == payload));
    });
}
