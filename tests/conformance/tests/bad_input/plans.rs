//! What callers get wrong: plans, rights, generations, configurations.

use penstock::config::ConfigError;
use penstock::{Config, Plan, PlanBuilder, PlanError, PoolSpec, Rights, Span, Submit};
use penstock_conformance::bystander::{Arena, attack};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::stage::{FAR_SEED, KV, PATIENCE};
use penstock_conformance::{Engine, Peer, Place, Pool, RemoteRegion, Setting, pattern};

/// An engine that gets things wrong, with a session and a pool.
struct Caller {
    _engine: Engine,
    pool: Pool,
    peer: Peer,
    remote: RemoteRegion,
}

fn caller(arena: &Arena) -> Caller {
    let config = Setting::adaptive(arena.setting.transport, 1, Place::Here);
    let engine = Engine::start(config.spec(arena.folder().path(), "caller").config()).unwrap();
    let pool = engine.pool(PoolSpec::host(1 << 20).block(4096).label("own")).unwrap();
    let peer = engine.connect(&arena.descriptor, PATIENCE).unwrap();
    let remote = peer.wait_region(KV, PATIENCE).unwrap();
    Caller { _engine: engine, pool, peer, remote }
}

fn refused(builder: PlanBuilder<'_>, words: &[&str]) {
    let refusal: PlanError = builder.build().map(drop).expect_err("the plan must be refused");
    let text = refusal.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} does not say {words:?}");
}

fn assert_untouched(arena: &mut Arena) {
    let untouched = pattern::digests(&pattern::bytes(FAR_SEED, 0, 1 << 20));
    assert_eq!(arena.ask(Command::Digest { label: KV.to_owned() }), Reply::Digests(untouched));
}

#[test]
fn zero_length_extents_are_refused() {
    attack("zero length", |arena| {
        let Caller { pool, remote, .. } = &caller(arena);
        let good = Span { local: 0, remote: 0, len: 8 };
        let empty = Span { local: 9, remote: 9, len: 0 };
        refused(Plan::write(pool, remote).extents(&[good, empty]), &["extent 1", "zero", "leave it out"]);
        refused(Plan::read(pool, remote).extents(&[empty]), &["extent 0", "zero"]);
        refused(Plan::write(pool, remote).extents(&[]), &["empty list", "leave the part out"]);
        refused(Plan::write(pool, remote).blocks(&[]), &["empty list"]);
        refused(Plan::write(pool, remote), &["moves nothing"]);
        assert_untouched(arena);
    });
}

#[test]
fn out_of_bounds_is_refused() {
    attack("out of bounds", |arena| {
        let Caller { pool, remote, .. } = &caller(arena);
        let end = 1 << 20;
        for (local, remote_offset, len, side) in [
            (0, end, 1, "remote"),
            (end, 0, 1, "local"),
            (0, 1, end, "remote"),
            (1, 0, end, "local"),
            (0, u64::MAX, 1, "remote"),
            (u64::MAX, 0, 2, "local"),
            (0, 0, u64::MAX, "past the end"),
        ] {
            let span = Span { local, remote: remote_offset, len };
            refused(Plan::write(pool, remote).extents(&[span]), &[side, "check its base"]);
        }
        refused(Plan::write(pool, remote).blocks(&[(0, 255), (0, 256)]), &["block 1", "remote"]);
        refused(Plan::write(pool, remote).layers(&[(0, u64::MAX - 4096)]).blocks(&[(0, 1)]), &["64 bits"]);
        assert_untouched(arena);
    });
}

#[test]
fn overlapping_destinations_are_refused() {
    attack("overlap", |arena| {
        let Caller { pool, remote, .. } = &caller(arena);
        let one = Span { local: 0, remote: 100, len: 50 };
        let other = Span { local: 500, remote: 149, len: 50 };
        refused(Plan::write(pool, remote).extents(&[one, other]), &["extent 0", "extent 1", "offset 149"]);
        refused(Plan::write(pool, remote).blocks(&[(0, 7), (1, 7)]), &["both write", "once"]);
        refused(Plan::write(pool, remote).layers(&[(0, 0), (8192, 4096)]).blocks(&[(0, 0), (1, 1)]), &["both write"]);
        // The same bytes may be read twice.
        Plan::write(pool, remote).blocks(&[(0, 7), (0, 8)]).build().unwrap();
        assert_untouched(arena);
    });
}

#[test]
fn wrong_rights_are_refused() {
    attack("rights", |arena| {
        let Caller { pool, peer, .. } = &caller(arena);
        for (label, rights) in [("readable", Rights::READ), ("writable", Rights::WRITE)] {
            let make = Command::Pool {
                label: label.to_owned(),
                bytes: 1 << 16,
                block: 4096,
                rights: rights.into(),
                seed: FAR_SEED,
            };
            assert_eq!(arena.ask(make), Reply::Done);
            let remote = peer.wait_region(label, PATIENCE).unwrap();
            let (write, read) = (Plan::write(pool, &remote), Plan::read(pool, &remote));
            let wrong = if rights.allows_write() { read } else { write };
            refused(wrong.blocks(&[(0, 0)]), &["needs that right", "ask its owner"]);
        }
        assert_untouched(arena);
    });
}

#[test]
fn stale_generations_are_refused() {
    attack("stale generation", |arena| {
        let Caller { pool, peer, .. } = &caller(arena);
        let make = || Command::Pool {
            label: "again".to_owned(),
            bytes: 1 << 16,
            block: 4096,
            rights: Rights::READ_WRITE.into(),
            seed: FAR_SEED,
        };
        assert_eq!(arena.ask(make()), Reply::Done);
        let old = peer.wait_region("again", PATIENCE).unwrap();
        let plan = Plan::write(pool, &old).blocks(&[(0, 0)]).build().unwrap();
        let gone = Command::Deregister { label: "again".to_owned(), within_ms: 5000 };
        assert_eq!(arena.ask(gone), Reply::Quiesced(true));
        assert_eq!(arena.ask(make()), Reply::Done);
        refused(Plan::write(pool, &old).blocks(&[(0, 0)]), &["deregistered", "use the region"]);
        let fault = peer.submit(&plan, Submit::new()).unwrap().wait().unwrap_err();
        assert_eq!(fault.cause, penstock::Cause::RevokedByPeer, "{fault}");
        let untouched = pattern::digests(&pattern::bytes(FAR_SEED, 0, 1 << 16));
        assert_eq!(arena.ask(Command::Digest { label: "again".to_owned() }), Reply::Digests(untouched));
    });
}

#[test]
fn unknown_yaml_keys_are_refused() {
    for (text, words) in [
        ("workers: { cout: 2 }", &["workers.cout", "workers.count", "mine.yaml:1:"][..]),
        ("wrokers: { count: 2 }", &["wrokers", "workers"]),
        ("workers:\n  count: 2\n  sleep: 3\n", &["mine.yaml:3:", "workers.sleep"]),
        ("extra: 1", &["extra"]),
    ] {
        let refusal = Config::parse(text, "mine.yaml").map(drop).expect_err("the key does not exist");
        assert!(matches!(refusal, ConfigError::UnknownKey { .. }), "{refusal}");
        let said = refusal.to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said:?} does not say {words:?}");
    }
    let refusal = Config::parse("workers: { count: many }", "mine.yaml").map(drop).unwrap_err();
    assert!(refusal.to_string().contains("`workers.count` must be a whole number"), "{refusal}");
}
