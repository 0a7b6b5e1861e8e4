//! Where the kernel or a setting forbids reaching another process's memory, the reason is told, and pools go
//! on working.

mod forbid;

use forbid::forbid_process_vm;
use penstock::config::{ProcessVmChoice, TransportName};
use penstock::{Config, Plan, PoolSpec, Rights, Span, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::folder::Folder;
use penstock_conformance::remote::Remote;
use penstock_conformance::stage::{FAR_SEED, PATIENCE};
use penstock_conformance::{Engine, Place, Setting};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));
const SETTING: Setting = Setting::adaptive(TransportName::Shm, 1, THERE);
const ONE: &[Span] = &[Span { local: 0, remote: 0, len: 4096 }];

/// An engine elsewhere with a pool and with memory of its own.
fn target(folder: &Folder, setting: Setting) -> (Remote, Vec<u8>) {
    let mut target = Remote::start(THERE);
    target.tell(Command::Start(setting.spec(folder.path(), "target").into()));
    let Reply::Started { descriptor } = target.hear(PATIENCE) else { panic!("the target does not start") };
    let (rights, bytes, seed) = (Rights::READ_WRITE.into(), 1 << 20, FAR_SEED);
    target.tell(Command::Pool { label: "pool".to_owned(), bytes, block: 4096, rights, seed });
    assert_eq!(target.hear(PATIENCE), Reply::Done);
    target.tell(Command::Register { label: "brought".to_owned(), bytes, rights, skew: 1, seed });
    assert_eq!(target.hear(PATIENCE), Reply::Done);
    (target, descriptor)
}

/// Connects with an engine that cannot reach the target's own memory, finds these words wherever the reason
/// is to be told, and writes it through its owner.
fn expect_refused(config: Config, descriptor: &[u8], words: &str) {
    let engine = Engine::start(config).expect("the engine starts all the same");
    let near = engine.pool(PoolSpec::host(1 << 20).block(4096).label("near")).expect("memory for a pool");
    let peer = engine.connect(descriptor, PATIENCE).expect("a session needs no such rights");
    assert!(peer.path().contains(words), "{}", peer.path());
    let pool = peer.wait_region("pool", PATIENCE).expect("it is announced");
    let brought = peer.wait_region("brought", PATIENCE).expect("it is announced");
    assert_eq!((pool.access_path(), brought.access_path()), ("mapped", "bounce"));
    assert!(brought.access_reason().contains(words), "{}", brought.access_reason());
    let plan = Plan::write(&near, &brought).extents(ONE).build().expect("there is another way");
    assert_eq!(peer.submit(&plan, Submit::new()).expect("room").wait().expect("it ends well").bytes, 4096);
    let plan = Plan::write(&near, &pool).extents(ONE).build().expect("pools need no such rights");
    assert_eq!(peer.submit(&plan, Submit::new()).expect("room").wait().expect("it ends well").bytes, 4096);
}

#[test]
fn the_setting_forbids_it_in_both_directions() {
    let folder = Folder::fresh();
    let (_target, descriptor) = target(&folder, SETTING);
    let config = SETTING.spec(folder.path(), "source").config().process_vm(ProcessVmChoice::Off);
    expect_refused(config, &descriptor, "the setting transports.process_vm is off");
    // The other way round: it is allowed here, but nobody tells where to try.
    let folder = Folder::fresh();
    let (_target, descriptor) = target(&folder, SETTING.without_process_vm());
    let config = SETTING.spec(folder.path(), "source").config();
    expect_refused(config, &descriptor, "the peer's setting transports.process_vm is off");
}

#[test]
fn a_seccomp_filter_is_named_as_the_reason() {
    let folder = Folder::fresh();
    let (_target, descriptor) = target(&folder, SETTING);
    let config = SETTING.spec(folder.path(), "source").config();
    // The filter is the thread's and is inherited by those it starts, which the engine's are.
    let filtered = std::thread::spawn(move || {
        forbid_process_vm();
        expect_refused(config, &descriptor, "a seccomp filter refuses process_vm_readv");
    });
    if let Err(failure) = filtered.join() {
        std::panic::resume_unwind(failure);
    }
}
