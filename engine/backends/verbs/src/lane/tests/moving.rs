use penstock_memory::Deregistered;
use penstock_transport::{AccessPath, ImportError, Placement, Trust};

use super::*;

#[test]
fn a_write_lands_and_is_announced_behind_it() {
    let (_network, mut sides) = session(1);
    let from = sides[0].engine.region(pattern(7, 4096), Rights::NONE);
    let to = sides[1].engine.region(vec![0; 4096], Rights::WRITE);
    let there = sides[1].show(&to, &sides[0]);
    let spans = [span(0, 64, 64), span(1000, 2000, 1), span(128, 3000, 1096)];
    assert_eq!(sides[0].post(WRITE, &from, &there, &spans, (10, 1)), Ok(Posted::Accepted(3)));
    assert_eq!(sides[0].tell(1, 11, 99, b"there"), Ok(NotifyPosted::Accepted));
    until(&mut sides, "the notification has ended", |sides| sides[0].result(11).is_some());
    assert_eq!((sides[0].result(10), sides[0].result(11)), (Some(Ok(1161)), Some(Ok(1))));
    assert_eq!(sides[1].got().notes, [(99, b"there".to_vec())]);
    let (mut expected, source) = (vec![0; 4096], pattern(7, 4096));
    for Span { local, remote, len } in spans {
        let (local, remote, len) = (local as usize, remote as usize, len as usize);
        expected[remote..remote + len].copy_from_slice(&source[local..local + len]);
    }
    assert_eq!(bytes_of(&to), expected);
}

#[test]
fn a_read_fetches() {
    let (_network, mut sides) = session(1);
    let to = sides[0].engine.region(vec![0; 300_000], Rights::NONE);
    let from = sides[1].engine.region(pattern(9, 300_000), Rights::READ);
    let there = sides[1].show(&from, &sides[0]);
    let spans = [span(0, 100_000, 200_000), span(200_000, 0, 100_000)];
    assert_eq!(sides[0].post(READ, &to, &there, &spans, (1, 1)), Ok(Posted::Accepted(2)));
    until(&mut sides, "it is there", |sides| sides[0].result(1).is_some());
    assert_eq!(sides[0].result(1), Some(Ok(300_000)));
    let source = pattern(9, 300_000);
    assert!(bytes_of(&to) == [&source[100_000..], &source[..100_000]].concat());
}

#[test]
fn workers_of_different_numbers_have_a_channel_for_each_pair() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let mut sides = join(Engine::new(&network, 2, 1), Engine::new(&network, 2, 3));
    settle(&mut sides);
    assert_eq!((sides[0].rails.len(), sides[1].rails.len()), (2, 2));
    assert!(sides[0].path.contains("3 channels of 2 rails: model0/1 to model2/1 (same network)"), "{}", sides[0].path);
    let from: Vec<_> =
        (0..2).map(|at| sides[at].engine.region(pattern(at as u64, 9 << 12), Rights::READ_WRITE)).collect();
    let shown = [sides[0].show(&from[0], &sides[1]), sides[1].show(&from[1], &sides[0])];
    // Each transfer goes over the channel that it falls to, and nobody hears of another's.
    for transfer in 0..6u64 {
        let spans = [span(transfer << 12, (transfer + 1) << 12, 64)];
        sides[0].post_of(0, WRITE, &from[0], &shown[1], &spans, (transfer, transfer)).unwrap();
        sides[1].post_of(transfer as usize % 3, READ, &from[1], &shown[0], &spans, (transfer, transfer)).unwrap();
        let note = Some(Note { id: penstock_core::NoteId(transfer.into()), payload: b"done" });
        let arrival =
            NotifyRequest { transfer, transfer_bytes: 64, completion_id: 100 + transfer, counter: None, note };
        assert_eq!(sides[0].workers[0].lane().notify(&arrival), Ok(NotifyPosted::Accepted));
    }
    until(&mut sides, "all have ended", |sides| {
        let all =
            |side: &Side, tokens: std::ops::Range<u64>| tokens.into_iter().all(|token| side.result(token).is_some());
        all(&sides[0], 0..6) && all(&sides[0], 100..106) && all(&sides[1], 0..6)
    });
    for worker in &sides[1].workers {
        assert_eq!(worker.got.notes.len(), 2, "the channels of one worker are dealt to all of the other side");
    }
}

#[test]
fn counters_go_up_once_and_one_that_is_gone_is_said_to_be() {
    let (_network, mut sides) = session(1);
    let value = |sides: &[Side; 2]| sides[1].engine.segments.mailbox.view().counter(7).unwrap().value();
    let generation = sides[1].engine.segments.mailbox.view().counter(7).unwrap().generation();
    let counter = CounterRef { index: 7, generation };
    for round in 1..=5 {
        assert_eq!(sides[0].count(round, round, counter), Ok(NotifyPosted::Accepted));
        until(&mut sides, "it was counted", |sides| sides[0].result(round).is_some());
        assert_eq!((sides[0].result(round), value(&sides)), (Some(Ok(1)), round));
    }
    assert_eq!(sides[0].count(9, 9, CounterRef { index: 7, generation: generation + 1 }), Ok(NotifyPosted::Accepted));
    until(&mut sides, "it was not counted", |sides| sides[0].result(9).is_some());
    assert_eq!((sides[0].result(9), value(&sides)), (Some(Ok(0)), 5));
}

#[test]
fn memory_is_registered_once_for_all_and_until_it_is_forgotten() {
    let (_network, sides) = session(2);
    let engine = &sides[0].engine;
    let at_first: Vec<_> = engine.adapters.iter().map(|adapter| adapter.counts().registrations).collect();
    let counts = || {
        engine
            .adapters
            .iter()
            .zip(&at_first)
            .map(|(adapter, first)| adapter.counts().registrations - first)
            .collect::<Vec<_>>()
    };
    let (region, other) = (engine.region(vec![0; 100], Rights::READ), engine.region(vec![0; 200], Rights::READ_WRITE));
    let path = sides[0].registrar.export(&region).access_blob;
    assert_eq!(path, sides[0].registrar.export(&region).access_blob, "once for all peers");
    sides[0].registrar.export(&other);
    assert_eq!((counts(), engine.transport.registrations()), (vec![2, 2], 4));
    // The region's memory was renewed: a new registration, and the old one stays.
    engine.registry.renew(region.id(), region.generation()).unwrap();
    assert_ne!(sides[0].registrar.export(&region).access_blob, path);
    assert_eq!((counts(), engine.transport.registrations()), (vec![3, 3], 6));
    assert!(matches!(engine.registry.deregister(region.id(), region.generation()), Ok(Deregistered::Last(_))));
    // Its id is another's before it is forgotten.
    let next = engine.region(vec![0; 300], Rights::READ);
    assert_eq!(next.id(), region.id());
    sides[0].registrar.export(&next);
    engine.transport.release_registrations(region.id(), region.generation());
    assert_eq!((counts(), engine.transport.registrations()), (vec![2, 2], 4));
    assert_eq!(sides[0].registrar.export(&region).access_blob[..2], [1, 0], "nothing is registered for who is gone");
    assert_eq!(engine.transport.registrations(), 4);
}

#[test]
fn what_cannot_be_reached_says_why() {
    let (_network, sides) = session(1);
    let (engine, peer) = (&sides[0].engine, &sides[1]);
    let private = engine.region(vec![0; 100], Rights::NONE);
    let path = sides[0].registrar.export(&private).access_blob;
    assert!(matches!(peer.registrar.import(&remote(&private, &path), None), Err(ImportError::NoPath(_))));
    assert_eq!(peer.registrar.access_path(&remote(&private, &path)).name, AccessPath::NONE);
    engine.adapters[0].refuse_registrations(1);
    let refused = engine.region(vec![0; 100], Rights::READ);
    let path = sides[0].registrar.export(&refused).access_blob;
    let Err(ImportError::NoPath(why)) = peer.registrar.import(&remote(&refused, &path), None) else { panic!() };
    assert!(why.contains("model0/1") && why.contains("ulimit -l"), "{why}");
    assert_eq!(
        peer.registrar.access_path(&remote(&refused, &path)),
        AccessPath { name: AccessPath::NONE, reason: why }
    );
    let path = sides[0].registrar.export(&refused).access_blob;
    assert!(peer.registrar.import(&remote(&refused, &path), None).is_ok(), "the next peer may be luckier");
    assert_eq!(peer.registrar.access_path(&remote(&refused, &path)).name, AccessPath::VERBS);
}

#[test]
fn paths_that_make_no_sense_are_refused() {
    let (_network, sides) = session(2);
    let region = sides[0].engine.region(vec![0; 100], Rights::READ);
    let path = sides[0].registrar.export(&region).access_blob;
    let import = |path: &[u8]| sides[1].registrar.import(&remote(&region, path), None);
    assert!(import(&path).is_ok());
    for end in 0..path.len() {
        assert!(matches!(import(&path[..end]), Err(ImportError::Malformed(_))), "cut at {end}");
    }
    assert!(import(&[&path[..], &[0]].concat()).is_err());
    assert!(import(&[1, 0, 0xff]).is_err(), "no text");
    assert!(import(&[2, 0]).is_err(), "another version");
    let mut moved = path.clone();
    moved[3] ^= 1;
    assert!(import(&moved).is_err(), "another base");
    let mut fewer = path[..path.len() - 4].to_vec();
    fewer[2] -= 1;
    assert!(import(&fewer).is_err(), "another number of rails");
    let far = AdvertisedRegion { bytes: u64::MAX, ..remote(&region, &path) };
    assert!(sides[1].registrar.import(&far, None).is_err(), "beyond all memory");
}

#[test]
fn it_says_what_it_can() {
    let (_network, sides) = session(1);
    let caps = sides[0].engine.transport.caps();
    assert_eq!((caps.trust, caps.placement), (Trust::Hardware, Placement::AtNotification));
    assert!(caps.ordered && caps.remote_caller_memory && !caps.multi_worker && !caps.hand_over && !caps.synchronous);
    assert_eq!(sides[0].rails, ["model0/1 to model1/1"]);
    assert_eq!(sides[1].rails, ["model1/1 to model0/1"]);
}
