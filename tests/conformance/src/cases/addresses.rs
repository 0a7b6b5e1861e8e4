//! Callers that think in addresses: plans by address, regions by address, what is known when.

use std::time::{Duration, Instant};

use penstock::plan::{Near, Side};
use penstock::{Cause, HostMemory, NoteId, Plan, PlanError, Rights, Span, Submit, SubmitError};

use crate::command::{Command, Reply};
use crate::pattern::{self, Random};
use crate::stage::{FAR_SEED, KV, PATIENCE, Stage, apply};
use crate::{RemoteRegion, Setting};

/// Bytes of every region of these cases.
const LEN: u64 = 1 << 20;

/// One plan names any registered addresses of both sides, also across regions that adjoin.
pub fn entries_lie_in_any_regions(setting: &Setting) {
    let mut stage = Stage::sized(setting, LEN);
    stage.order(0, Command::Halves { label: "halves".to_owned(), bytes: LEN, seed: FAR_SEED });
    stage.peer().refresh(PATIENCE).unwrap();
    // Here a pool and memory that is registered in two halves, there the same.
    let own = HostMemory::from_vec(pattern::bytes(5, 0, LEN as usize)).unwrap();
    let window = own.window().clone();
    for (offset, label) in [(0, "first"), (LEN / 2, "second")] {
        stage.engine.register(own.part(offset, LEN / 2).unwrap(), label, Rights::NONE).unwrap();
    }
    let (near, far) = stage.models();
    let (mut here, mut there) = ([near, pattern::bytes(5, 0, LEN as usize)], [far.clone(), far]);
    let local_base = [stage.near.base(), window.base_address()];
    let remote_base = [stage.far().base(), stage.region(0, "halves").base()];
    for (round, is_write) in [(1, true), (2, false), (3, true)] {
        let mut random = Random::new(round);
        let (mut entries, mut at, mut crossing) = (Vec::new(), [0_u64; 2], 0);
        // Destinations one after another, sources anywhere; every seventh entry is of no bytes.
        while at.iter().any(|&at| at < LEN - 9000) {
            let to = random.below(2) as usize;
            let len = if random.below(7) == 0 { 0 } else { random.below(9000).min(LEN - at[to]) };
            let from = random.below(2) as usize;
            let source = random.below(LEN - len + 1);
            let destination = at[to];
            at[to] += len;
            crossing += u64::from(to == 1 && destination < LEN / 2 && destination + len > LEN / 2);
            let (local, remote, span) = match is_write {
                true => (from, to, Span { local: source, remote: destination, len }),
                false => (to, from, Span { local: destination, remote: source, len }),
            };
            let (mine, theirs) = (&mut here[local], &mut there[remote]);
            if is_write {
                apply(span, mine, theirs, true)
            } else {
                apply(span, theirs, mine, false)
            }
            entries.push((local_base[local] + span.local, remote_base[remote] + span.remote, len));
        }
        assert_eq!(crossing, 1, "one entry lies in both halves");
        let peer = stage.peer();
        let plan = if is_write { Plan::write_addresses(peer, &entries) } else { Plan::read_addresses(peer, &entries) };
        let plan = plan.build().unwrap();
        assert_eq!((plan.blocks(), plan.bytes()), (entries.len() as u64, entries.iter().map(|entry| entry.2).sum()));
        assert_eq!(stage.submit(peer, &plan, Submit::new()).wait().unwrap().bytes, plan.bytes());
    }
    stage.assert_far(0, KV, &there[0]);
    stage.assert_far(0, "halves", &there[1][..LEN as usize / 2]);
    stage.assert_far(0, "halves-2", &there[1][LEN as usize / 2..]);
    stage.assert_near(&here[0]);
    assert!(pattern::read(&window) == here[1], "what was read is not what was there");
}

/// Destinations may repeat, as null blocks do; a plan of nothing tells and moves nothing.
pub fn repeated_destinations_and_plans_of_nothing(setting: &Setting) {
    let mut stage = Stage::sized(setting, LEN);
    let (near, mut far) = stage.models();
    let (local, remote) = (stage.near.base(), stage.far().base());
    let mut entries: Vec<_> = (0..300).map(|_| (local, remote, 4096)).collect();
    entries.push((local + 8192, remote + 8192, 100));
    let plan = Plan::write_addresses(stage.peer(), &entries).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
    apply(Span { local: 0, remote: 0, len: 4096 }, &near, &mut far, true);
    apply(Span { local: 8192, remote: 8192, len: 100 }, &near, &mut far, true);
    for entries in [&[][..], &[(1, 2, 0)]] {
        let plan = Plan::write_addresses(stage.peer(), entries).build().unwrap();
        assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 0);
        let told = Submit::new().notify(NoteId(entries.len() as u128), b"nothing");
        stage.submit(stage.peer(), &plan, told).wait().unwrap();
        assert_eq!(stage.take_notes(0, 1, PATIENCE)[0].id.0, entries.len() as u64);
    }
    stage.assert_far(0, KV, &far);
}

/// An address that no region has, and a region without the right, are named with what is close.
pub fn what_lies_in_no_region_is_named(setting: &Setting) {
    let mut stage = Stage::sized(setting, LEN);
    stage.make_pool(0, "silent", LEN, 4096, Rights::NONE);
    stage.peer().refresh(PATIENCE).unwrap();
    let (local, remote) = (stage.near.base(), stage.far().base());
    let silent: RemoteRegion = stage.region(0, "silent");
    let refused =
        |entries: &[(u64, u64, u64)]| Plan::write_addresses(stage.peer(), entries).build().map(drop).unwrap_err();
    let good = (local, remote, 4096);
    match refused(&[good, (8, remote, 16)]) {
        PlanError::NoRegion { entry: 1, side: Side::Local, address: 8, bytes: 16, peer: None, near: Some(near) } => {
            assert_eq!(near, Near { label: KV.to_owned(), base: local, bytes: LEN });
        }
        other => panic!("{other:?}"),
    }
    // The first byte past the end is named, and not the entry's first.
    let error = refused(&[good, good, (local + LEN - 8, remote, 16)]);
    match &error {
        PlanError::NoRegion { entry: 2, side: Side::Local, address, bytes: 8, .. } => assert_eq!(*address, local + LEN),
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains(&format!("{:#x}", local + LEN)), "{error}");
    match refused(&[(local, 16, 16)]) {
        PlanError::NoRegion { side: Side::Remote, address: 16, peer: Some(peer), near: Some(_), .. } => {
            assert_eq!(peer, *stage.peer().name());
        }
        other => panic!("{other:?}"),
    }
    match refused(&[(local, silent.base() + 5, 16)]) {
        PlanError::NoRight { side: Side::Remote, near, is_write: true, .. } => assert_eq!(near.label, "silent"),
        other => panic!("{other:?}"),
    }
    let huge = refused(&[(local, remote, u64::MAX)]);
    assert!(matches!(huge, PlanError::NoRegion { .. }), "{huge}");
    // A region that is gone is not used, and one that lies over the same bytes is.
    let gone = stage.ask(0, Command::Deregister { label: KV.to_owned(), within_ms: 5000 });
    assert_eq!(gone, Reply::Quiesced(true));
    stage.peer().refresh(PATIENCE).unwrap();
    let gone = Plan::write_addresses(stage.peer(), &[good]).build().map(drop).unwrap_err();
    assert!(matches!(gone, PlanError::NoRegion { side: Side::Remote, .. }), "{gone}");
    stage.disconnect_first();
    let ended = Plan::write_addresses(stage.peer(), &[good]).build().map(drop).unwrap_err();
    assert!(ended.to_string().contains(&Cause::PeerClosed.to_string()), "{ended}");
}

/// Regions are found by address on both sides, and after a refresh all that the peer had registered before are known.
pub fn regions_are_found_by_address_after_a_refresh(setting: &Setting) {
    let mut stage = Stage::sized(setting, LEN);
    let mut labels = vec![KV.to_owned()];
    for round in 0..20 {
        let label = format!("region-{round}");
        stage.make_pool(0, &label, 4096 * (1 + round % 3), 4096, Rights::READ_WRITE);
        labels.push(label);
        stage.peer().refresh(PATIENCE).unwrap();
        // No wait: it is known.
        let known: Vec<String> = stage.peer().regions().iter().map(|region| region.label().to_owned()).collect();
        assert_eq!(known, labels);
        let region = stage.peer().region(&labels[labels.len() - 1]).unwrap();
        let found = stage.peer().region_at(region.base() + 1, region.bytes() - 1).expect("it has these bytes");
        assert_eq!(found.label(), region.label());
        assert!(
            stage
                .peer()
                .region_at(region.base() + 1, region.bytes())
                .is_none_or(|other| other.label() != region.label())
        );
    }
    let base = stage.near.base();
    let memory = HostMemory::from_vec(vec![0; 100]).unwrap();
    let at = memory.window().base_address();
    let region = stage.engine.register(memory, "own", Rights::READ).unwrap();
    let own = |address, bytes| stage.engine.region_at(address, bytes).map(|region| region.label().to_owned());
    assert_eq!((own(at + 99, 1), own(at + 99, 2), own(base, LEN)), (Some("own".into()), None, Some(KV.into())));
    let labels = || stage.engine.regions().iter().map(|region| region.label().to_owned()).collect::<Vec<_>>();
    assert_eq!(labels(), [KV, "own"]);
    assert!(region.deregister(PATIENCE).unwrap().is_quiesced());
    assert_eq!((own(at, 1), labels()), (None, vec![KV.to_owned()]));
    // One that is gone does not answer, and says so by its deadline.
    stage.disconnect_first();
    let since = Instant::now();
    assert_eq!(stage.peer().refresh(Duration::from_secs(10)), Err(Cause::PeerClosed));
    assert!(since.elapsed() < Duration::from_secs(5));
    let nothing = Plan::write_addresses(stage.peer(), &[]).build();
    assert!(nothing.is_err());
    let refused = stage.peer().notify(NoteId(1), b"", Submit::new()).map(drop);
    assert!(matches!(refused, Err(SubmitError::PeerGone { .. })));
}
