use super::*;

#[test]
fn a_withdrawal_passes_once_the_peer_has_said_so_on_every_rail() {
    let (_network, mut sides) = session(2);
    let region = sides[1].engine.region(vec![0; 4096], Rights::WRITE);
    let revision = sides[1].withdraw(&region, 0, 64, None);
    settle(&mut sides);
    assert!(!sides[1].fence().has_passed(revision), "the peer was not even told");
    let RegionKey { region, generation } = key_of(&region);
    let withdrawal = Withdrawal { region: region.0, generation: generation.0, offset: 0, len: 64 };
    sides[0].peer_view.on_withdrawals(0, [withdrawal].into_iter());
    assert!(!sides[1].fence().has_passed(revision), "told, and not heard");
    until(&mut sides, "the fence has passed", |sides| sides[1].fence().has_passed(revision));
    assert!(!sides[1].fence().has_passed(revision + 1));
}

#[test]
fn what_this_side_has_under_way_keeps_its_own_fence_closed() {
    let (network, mut sides) = session(1);
    let from = sides[0].engine.region(pattern(3, 65536), Rights::NONE);
    let to = sides[1].engine.region(vec![0; 65536], Rights::WRITE);
    let there = sides[1].show(&to, &sides[0]);
    network.cut(&sides[0].engine.adapters[0], &sides[1].engine.adapters[0]);
    sides[0].post(WRITE, &from, &there, &[span(0, 0, 65536)], (1, 1)).unwrap();
    let [one, two] = &mut sides;
    let revision = one.withdraw(&from, 0, 64, Some(two));
    // Posted against what stands no more.
    let again = one.post(WRITE, &from, &there, &[span(0, 0, 64)], (2, 2));
    assert_eq!(again, Err(PostError::StaleRevisions(Revisions { local: 1, remote: 0 })));
    assert!(!one.fence().has_passed(revision));
    network.mend(&sides[0].engine.adapters[0], &sides[1].engine.adapters[0]);
    until(&mut sides, "it has landed", |sides| sides[0].result(1) == Some(Ok(65536)));
    until(&mut sides, "all is quiet", |sides| sides[0].fence().has_passed(revision));
}

#[test]
fn what_the_peer_has_withdrawn_is_not_posted_to() {
    let (_network, mut sides) = session(1);
    let from = sides[0].engine.region(pattern(3, 4096), Rights::NONE);
    let to = sides[1].engine.region(vec![0; 4096], Rights::WRITE);
    let there = sides[1].show(&to, &sides[0]);
    let [one, two] = &mut sides;
    two.withdraw(&to, 0, 64, Some(one));
    let refused = one.post(WRITE, &from, &there, &[span(0, 0, 64)], (1, 1));
    assert_eq!(refused, Err(PostError::StaleRevisions(Revisions { local: 0, remote: 1 })));
    // Looked at again, it concerns something else.
    one.expected = Revisions { local: 0, remote: 1 };
    one.post(WRITE, &from, &there, &[span(0, 64, 64)], (2, 2)).unwrap();
    until(&mut sides, "it has landed", |sides| sides[0].result(2) == Some(Ok(64)));
    assert!(sides[1].fence().has_passed(1));
}

#[test]
fn a_lane_that_is_gone_touches_nothing_and_leaves_nothing() {
    let (_network, mut sides) = session(2);
    let counts =
        |sides: &[Side; 2]| sides[0].engine.adapters.iter().map(|adapter| adapter.counts()).collect::<Vec<_>>();
    let from = sides[0].engine.region(pattern(3, 65536), Rights::NONE);
    let to = sides[1].engine.region(vec![0; 65536], Rights::WRITE);
    let there = sides[1].show(&to, &sides[0]);
    for adapter in &sides[0].engine.adapters {
        adapter.hold();
    }
    sides[0].post(WRITE, &from, &there, &[span(0, 0, 65536)], (1, 1)).unwrap();
    sides[0].workers[0].lane().ring_doorbell().unwrap();
    let revision = sides[0].withdraw(&from, 0, 64, None);
    assert!(!sides[0].fence().has_passed(revision));
    sides[0].workers[0].lane = None;
    assert!(sides[0].fence().has_passed(revision), "its queues are gone");
    assert!(counts(&sides).iter().all(|counts| counts.queues == 0), "{:?}", counts(&sides));
    for adapter in &sides[0].engine.adapters {
        adapter.release();
    }
    for _ in 0..100 {
        sides[1].turn();
    }
    assert_eq!(bytes_of(&to), vec![0; 65536]);
}

/// What the peer has under way and cannot be asked about is cut off, and goes again when it is heard of.
#[test]
fn a_peer_that_does_not_answer_is_cut_off_and_repaired_when_it_does() {
    for rails in [1, 2] {
        let (_network, mut sides) = session(rails);
        let from = sides[0].engine.region(pattern(3, 65536), Rights::NONE);
        let to = sides[1].engine.region(vec![0; 65536], Rights::WRITE);
        let there = sides[1].show(&to, &sides[0]);
        // Its adapters stand still with everything on the way, and its worker does nothing.
        sides[0].engine.adapters.iter().for_each(|adapter| adapter.hold());
        for transfer in 0..8u64 {
            let at = transfer * 8192;
            sides[0].post(WRITE, &from, &there, &[span(at, at, 8192)], (transfer, transfer)).unwrap();
        }
        sides[0].workers[0].lane().ring_doorbell().unwrap();
        let revision = sides[1].withdraw(&to, 0, 8192, None);
        sides[1].fence().force(revision);
        let deadline = Instant::now() + Duration::from_secs(5);
        while !sides[1].fence().has_passed(revision) {
            sides[1].turn();
            assert_eq!(sides[1].fault(), None);
            assert!(Instant::now() < deadline, "the fence is not forced");
        }
        // Nothing of it lands from now on, in whatever the owner does with its memory.
        to.host().unwrap().write_from(0, &[0xee; 8192]).unwrap();
        sides[0].engine.adapters.iter().for_each(|adapter| adapter.release());
        for _ in 0..200 {
            sides[1].turn();
        }
        assert_eq!(bytes_of(&to)[..8192], [0xee; 8192]);
        // It wakes up. Its control channel tells it first what was withdrawn, and then which rails were cut.
        let RegionKey { region, generation } = key_of(&to);
        let withdrawal = Withdrawal { region: region.0, generation: generation.0, offset: 0, len: 8192 };
        sides[0].peer_view.on_withdrawals(0, [withdrawal].into_iter());
        until(&mut sides, "all have ended", |sides| (0..8).all(|transfer| sides[0].result(transfer).is_some()));
        assert_eq!(sides[0].result(0), Some(Err(Cause::RevokedByPeer)), "over {rails} rails");
        assert!((1..8).all(|transfer| sides[0].result(transfer) == Some(Ok(8192))), "the others are innocent");
        assert_eq!(bytes_of(&to)[..8192], [0xee; 8192]);
        assert!(bytes_of(&to)[8192..] == pattern(3, 65536)[8192..]);
        // And all goes on as before.
        sides[0].expected = Revisions { local: 0, remote: 1 };
        let counted = |sides: &mut [Side; 2], token: u64| {
            until(sides, "the rail takes posts", |sides| {
                sides[0].post(WRITE, &from, &there, &[span(0, 8192, 64)], (token, token)).is_ok()
            });
            until(sides, "it has ended", |sides| sides[0].result(token) == Some(Ok(64)));
        };
        (0..4).for_each(|round| counted(&mut sides, 100 + round));
        until(&mut sides, "both fences are closed no more", |sides| {
            sides[1].fence().has_passed(revision) && sides[0].fence().has_passed(0)
        });
    }
}

/// This side's own adapters are cut off from memory that is taken back, too.
#[test]
fn what_this_side_has_under_way_is_cut_off_by_force() {
    let (network, mut sides) = session(1);
    let from = sides[0].engine.region(pattern(3, 65536), Rights::NONE);
    let to = sides[1].engine.region(vec![0; 65536], Rights::WRITE);
    let there = sides[1].show(&to, &sides[0]);
    network.cut(&sides[0].engine.adapters[0], &sides[1].engine.adapters[0]);
    sides[0].post(WRITE, &from, &there, &[span(0, 0, 4096)], (1, 1)).unwrap();
    sides[0].post(WRITE, &from, &there, &[span(8192, 8192, 4096)], (2, 2)).unwrap();
    sides[0].workers[0].lane().ring_doorbell().unwrap();
    let [one, two] = &mut sides;
    let revision = one.withdraw(&from, 0, 64, Some(two));
    sides[0].fence().force(revision);
    until(&mut sides, "all is quiet here", |sides| sides[0].fence().has_passed(revision));
    network.mend(&sides[0].engine.adapters[0], &sides[1].engine.adapters[0]);
    until(&mut sides, "both have ended", |sides| (1..3).all(|token| sides[0].result(token).is_some()));
    assert_eq!((sides[0].result(1), sides[0].result(2)), (Some(Err(Cause::RevokedHere)), Some(Ok(4096))));
}
