//! Taking memory back: revoking and deregistering while transfers run.

use std::time::{Duration, Instant};

use penstock::transport::Trust;
use penstock::{Cause, HostMemory, LocalQuiesce, Plan, RegionError, Rights, Span, Submit};

use crate::burst;
use crate::command::{Command, Reply};
use crate::pattern;
use crate::stage::{FAR_SEED, KV, NEAR_SEED, PATIENCE, Stage, apply};
use crate::{RemoteRegion, Setting, Transfer};

fn revoke(extents: &[(u64, u64)]) -> Command {
    Command::Revoke { label: KV.to_owned(), extents: extents.to_vec(), within_ms: 5000 }
}

/// Whether any has failed in its middle, and none by anything but this; those that were faster have ended well.
fn any_cut_by(cause: Cause, transfers: &[Transfer]) -> bool {
    let faults: Vec<_> = transfers.iter().filter_map(|transfer| transfer.wait().err()).collect();
    assert!(faults.iter().all(|fault| fault.cause == cause), "{faults:?}");
    faults.iter().any(|fault| fault.bytes > 0)
}

/// A target revokes what is being written: the writer ends typed, nothing lands afterwards, transfers
/// elsewhere do not notice, and a new plan works.
pub fn revoke_while_a_transfer_moves(setting: &Setting) {
    let large = setting.large();
    let mut stage = Stage::sized(setting, large);
    stage.make_pool(0, "other", 4 << 20, 4096, Rights::READ_WRITE);
    let span = Span { local: 0, remote: 0, len: large };
    let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    let beside = Span { local: 0, remote: 0, len: 4 << 20 };
    let beside = Plan::write(&stage.near, &stage.region(0, "other")).extents(&[beside]).build().unwrap();
    burst::rounds("the command to revoke", |at_once| {
        // A plan that was built before the last revocation is stale.
        let plan = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
        let transfers = burst::begin(&stage, at_once, || stage.submit(stage.peer(), &plan, Submit::new()));
        let neighbour = stage.submit(stage.peer(), &beside, Submit::new());
        let revoked = vec![(large - 8192, 4096), (0, large / 2)];
        assert_eq!(stage.ask(0, revoke(&revoked)), Reply::Quiesced(true));
        // Beside them a part that was under way may land: it is nobody's concern.
        let watch = Command::FillAndWatch { label: KV.to_owned(), extents: revoked, seed: 77, hold_ms: 10 };
        assert_eq!(stage.ask(0, watch), Reply::Yes(true), "bytes landed after the answer");
        let caught = any_cut_by(Cause::RevokedByPeer, &transfers);
        assert_eq!(neighbour.wait().unwrap().bytes, 4 << 20, "another region is not affected");
        caught
    });
    let stale = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap_err();
    assert_eq!(stale.cause, Cause::RevokedByPeer);
    let again = Plan::write(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    assert_eq!(stage.submit(stage.peer(), &again, Submit::new()).wait().unwrap().bytes, large);
    stage.assert_far(0, KV, &pattern::bytes(NEAR_SEED, 0, large as usize));
}

/// Revoking concerns the plans that touch what was revoked, and no others.
pub fn revoke_spares_plans_that_do_not_touch_it(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let plan = |block| Plan::write(&stage.near, &stage.far()).blocks(&[(0, block)]).block_bytes(4096).build().unwrap();
    let (touched, spared) = (plan(3), plan(4));
    assert_eq!(stage.ask(0, revoke(&[(3 * 4096 + 4095, 1)])), Reply::Quiesced(true));
    let fault = stage.submit(stage.peer(), &touched, Submit::new()).wait().unwrap_err();
    assert_eq!((fault.cause, fault.bytes), (Cause::RevokedByPeer, 0));
    assert!(fault.to_string().contains("build a new plan"), "{fault}");
    for _ in 0..3 {
        assert_eq!(stage.submit(stage.peer(), &spared, Submit::new()).wait().unwrap().bytes, 4096);
    }
    for (offset, len) in [(1 << 20, 1), (0, 0), (0, (1 << 20) + 1), (u64::MAX, 2)] {
        let Reply::Refused(why) = stage.ask(0, revoke(&[(offset, len)])) else { panic!("({offset}, {len}) was taken") };
        assert!(why.contains("outside"), "{why}");
    }
    // More withdrawals than the log keeps, even if the news of the last of them is late: the plan cannot be judged any
    // more, and says so.
    for _ in 0..600 {
        assert_eq!(stage.ask(0, revoke(&[(0, 1)])), Reply::Quiesced(true));
    }
    let fault = stage.submit(stage.peer(), &spared, Submit::new()).wait().unwrap_err();
    assert_eq!(fault.cause, Cause::PlanTooOld);
    let fresh = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 4)]).block_bytes(4096).build().unwrap();
    assert_eq!(stage.submit(stage.peer(), &fresh, Submit::new()).wait().unwrap().bytes, 4096);
}

/// Regions that come and go on either side, more than the log keeps, leave a plan over others as it is; its own region's end does not.
pub fn a_plan_outlives_regions_that_come_and_go(setting: &Setting) {
    let mut stage = Stage::open(setting);
    stage.make_pool(0, "other", 1 << 20, 4096, Rights::READ_WRITE);
    let other = stage.region(0, "other");
    let plan = |far: &RemoteRegion| Plan::write(&stage.near, far).blocks(&[(0, 4)]).block_bytes(4096).build().unwrap();
    let (plan, ending) = (plan(&stage.far()), plan(&other));
    let come_and_go = || {
        for _ in 0..300 {
            let memory = HostMemory::from_vec(vec![0; 64]).unwrap();
            let region = stage.engine.register(memory, "passing", Rights::NONE).unwrap();
            assert!(region.deregister(PATIENCE).unwrap().is_quiesced());
        }
    };
    come_and_go();
    let (near, mut far) = stage.models();
    apply(Span { local: 0, remote: 4 * 4096, len: 4096 }, &near, &mut far, true);
    assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 4096);
    come_and_go();
    stage.order(0, Command::ComeAndGo { times: 300 });
    // At once: what the peer has told of so far may be older than its log reaches.
    let remote = stage.peer().region_at(stage.far().base(), 4096).expect("it stands all the time");
    assert_eq!(remote.base(), stage.far().base());
    let entries = [(stage.near.base(), remote.base() + 4 * 4096, 4096)];
    let fresh = Plan::write_addresses(stage.peer(), &entries).build().unwrap();
    for plan in [&plan, &fresh] {
        assert_eq!(stage.submit(stage.peer(), plan, Submit::new()).wait().unwrap().bytes, 4096);
    }
    // Nor do parts of others, taken back, end it.
    let parts: Vec<(u64, u64)> = (0..60).map(|part| (part * 8192, 4096)).collect();
    for _ in 0..5 {
        let revoke = Command::Revoke { label: "other".to_owned(), extents: parts.clone(), within_ms: 5000 };
        assert_eq!(stage.ask(0, revoke), Reply::Quiesced(true));
        stage.peer().refresh(PATIENCE).unwrap();
    }
    assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 4096);
    let gone = stage.ask(0, Command::Deregister { label: "other".to_owned(), within_ms: 5000 });
    assert_eq!(gone, Reply::Quiesced(true));
    stage.order(0, Command::ComeAndGo { times: 300 });
    stage.peer().refresh(PATIENCE).unwrap();
    assert_eq!(stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap().bytes, 4096);
    let fault = stage.submit(stage.peer(), &ending, Submit::new()).wait().unwrap_err();
    assert_eq!(fault.cause, Cause::RevokedByPeer);
    stage.assert_far(0, KV, &far);
}

/// The initiator takes its own memory back: its transfers end typed.
pub fn revoke_of_the_own_side(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let (_, far) = stage.models();
    let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(3, 4)]).block_bytes(4096).build().unwrap();
    assert!(stage.near.revoke(&[(3 * 4096, 1)], PATIENCE).unwrap().is_quiesced());
    let fault = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap_err();
    assert_eq!(fault.cause, Cause::RevokedHere);
    stage.assert_far(0, KV, &far);
}

/// A target revokes what is being read: the reader ends typed, and may read what the target gives it next.
pub fn revoke_while_it_is_read(setting: &Setting) {
    let large = setting.large();
    let mut stage = Stage::sized(setting, large);
    let span = Span { local: 0, remote: 0, len: large };
    let (_, far) = stage.models();
    burst::rounds("the command to revoke", |at_once| {
        let plan = Plan::read(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
        let transfers = burst::begin(&stage, at_once, || stage.submit(stage.peer(), &plan, Submit::new()));
        assert_eq!(stage.ask(0, revoke(&[(large / 2, large / 2)])), Reply::Quiesced(true));
        let caught = any_cut_by(Cause::RevokedByPeer, &transfers);
        let stale = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap_err();
        assert_eq!(stale.cause, Cause::RevokedByPeer);
        caught
    });
    let again = Plan::read(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
    assert_eq!(stage.submit(stage.peer(), &again, Submit::new()).wait().unwrap().bytes, large);
    stage.assert_near(&far);
}

/// The initiator takes memory back where bytes of its own read are landing: once that is answered none does, and reads
/// into other memory do not notice.
pub fn the_own_side_is_taken_back_while_bytes_land_there(setting: &Setting) {
    let large = setting.large();
    let stage = Stage::sized(setting, large);
    let beside = stage.pool_here("beside", 4 << 20);
    let small = Span { local: 0, remote: 0, len: 4 << 20 };
    let span = Span { local: 0, remote: 0, len: large };
    burst::rounds("the revocation", |at_once| {
        let plan = Plan::read(&stage.near, &stage.far()).extents(&[span]).build().unwrap();
        let spared = Plan::read(&beside, &stage.far()).extents(&[small]).build().unwrap();
        let transfers = burst::begin(&stage, at_once, || stage.submit(stage.peer(), &plan, Submit::new()));
        let neighbour = stage.submit(stage.peer(), &spared, Submit::new());
        assert!(stage.near.revoke(&[(0, large)], PATIENCE).unwrap().is_quiesced());
        pattern::fill(&*stage.near, 77);
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(10) {
            stage.turn();
        }
        stage.assert_near(&pattern::bytes(77, 0, large as usize));
        let caught = any_cut_by(Cause::RevokedHere, &transfers);
        assert_eq!(neighbour.wait().unwrap().bytes, 4 << 20, "other memory is not affected");
        pattern::assert_same(
            &pattern::memory_digests(&*beside),
            &pattern::digests(&pattern::bytes(FAR_SEED, 0, 4 << 20)),
            "beside",
        );
        caught
    });
}

/// A target deregisters what is being written: the writer ends typed, nothing lands afterwards, and a
/// region of the same label is another region.
pub fn deregister_while_a_transfer_moves(setting: &Setting) {
    let large = setting.large();
    let mut stage = Stage::open(setting);
    let near = stage.pool_here("source", large);
    pattern::fill(&*near, NEAR_SEED);
    let span = Span { local: 0, remote: 0, len: large };
    let survivor = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    burst::rounds("the command to deregister", |at_once| {
        stage.make_pool(0, "passing", large, 4096, Rights::READ_WRITE);
        let passing = stage.region(0, "passing");
        let plan = Plan::write(&near, &passing).extents(&[span]).build().unwrap();
        let transfers = burst::begin(&stage, at_once, || stage.submit(stage.peer(), &plan, Submit::new()));
        let gone = Command::Deregister { label: "passing".to_owned(), within_ms: 5000 };
        assert_eq!(stage.ask(0, gone), Reply::Quiesced(true));
        let watch =
            Command::FillAndWatch { label: "passing".to_owned(), extents: vec![(0, large)], seed: 77, hold_ms: 10 };
        assert_eq!(stage.ask(0, watch), Reply::Yes(true), "bytes landed after the answer");
        let caught = any_cut_by(Cause::RevokedByPeer, &transfers);
        let fault = stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap_err();
        assert_eq!(fault.cause, Cause::RevokedByPeer);
        // The old name is stale at once, whether or not the news has come; between hosts with the news.
        let build = || Plan::write(&near, &passing).extents(&[span]).build().map(drop);
        if setting.is_between_hosts() {
            stage.wait_until("the news has come", || build().is_err());
        }
        let refused = build().unwrap_err();
        assert!(refused.to_string().contains("deregistered"), "{refused}");
        let until = Instant::now() + PATIENCE;
        while stage.peer().region("passing").is_ok() && Instant::now() < until {
            stage.turn();
        }
        let unknown = stage.peer().region("passing").map(drop).unwrap_err();
        assert!(matches!(unknown, RegionError::Unknown { .. }), "{unknown}");
        caught
    });
    assert_eq!(stage.submit(stage.peer(), &survivor, Submit::new()).wait().unwrap().bytes, 4096);
}

/// A handle of a region that was replaced is refused; the region that replaced it works.
pub fn a_stale_generation_is_refused(setting: &Setting) {
    let mut stage = Stage::open(setting);
    stage.make_pool(0, "again", 1 << 20, 4096, Rights::READ_WRITE);
    let old = stage.region(0, "again");
    let old_plan = Plan::write(&stage.near, &old).blocks(&[(0, 0)]).block_bytes(4096).build().unwrap();
    stage.submit(stage.peer(), &old_plan, Submit::new()).wait().unwrap();
    let gone = Command::Deregister { label: "again".to_owned(), within_ms: 5000 };
    assert_eq!(stage.ask(0, gone), Reply::Quiesced(true));
    stage.make_pool(0, "again", 1 << 20, 4096, Rights::READ_WRITE);
    let fresh = || Plan::write(&stage.near, &stage.region(0, "again")).blocks(&[(0, 0)]).block_bytes(4096).build();
    let stale = || Plan::write(&stage.near, &old).blocks(&[(0, 0)]).block_bytes(4096).build().map(drop);
    // Between hosts the news may be on its way; until then the peer refuses what is built, and the name is the old one's.
    stage.wait_until("the old region is known to be gone", || stale().is_err());
    stage.wait_until("the new region can be used", || fresh().is_ok());
    let refused = stale().unwrap_err();
    assert!(refused.to_string().contains("use the region that replaced it"), "{refused}");
    let fault = stage.submit(stage.peer(), &old_plan, Submit::new()).wait().unwrap_err();
    assert_eq!(fault.cause, Cause::RevokedByPeer);
    stage.submit(stage.peer(), &fresh().unwrap(), Submit::new()).wait().unwrap();
    let mut expected = pattern::bytes(FAR_SEED, 0, 1 << 20);
    expected[..4096].copy_from_slice(&pattern::bytes(NEAR_SEED, 0, 4096));
    stage.assert_far(0, "again", &expected);
}

/// Revoking answers by its deadline, also to a caller that gives it no time at all.
pub fn an_answer_comes_by_its_deadline(setting: &Setting) {
    let stage = Stage::open(setting);
    let is_hardware = stage.peer().caps().trust == Trust::Hardware;
    for within in [Duration::ZERO, Duration::from_millis(1)] {
        let begun = Instant::now();
        let held = stage.near.revoke(&[(0, 4096)], within).unwrap();
        assert!(begun.elapsed() < PATIENCE / 4, "{:?}", begun.elapsed());
        match held {
            // What the peer's card is doing only the peer can say, which takes a moment.
            LocalQuiesce::Quarantined(held) if is_hardware => {
                stage.wait_until("the peer has answered", || held.is_released())
            }
            held => assert!(held.is_quiesced(), "nobody copies: {held:?}"),
        }
    }
    assert!(stage.engine.quarantined().is_empty());
    assert!(stage.near.revoke(&[(0, 4096)], PATIENCE).unwrap().is_quiesced());
}
