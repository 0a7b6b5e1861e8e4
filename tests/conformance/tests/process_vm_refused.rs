//! Where the kernel or a setting forbids reaching another process's memory, the reason is told, and pools go
//! on working.

use penstock::config::{ProcessVmChoice, TransportName};
use penstock::{Config, Plan, PlanError, PoolSpec, RegionError, Rights, Span, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::folder::Folder;
use penstock_conformance::remote::Remote;
use penstock_conformance::stage::{FAR_SEED, PATIENCE};
use penstock_conformance::{Engine, Place, Setting};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));
const SETTING: Setting = Setting::adaptive(TransportName::Shm, 1, THERE);
const ONE: &[Span] = &[Span { local: 0, remote: 0, len: 4096 }];

/// An engine elsewhere with a pool and with memory of its own.
fn target(folder: &Folder) -> (Remote, Vec<u8>) {
    let mut target = Remote::start(THERE);
    target.tell(Command::Start(SETTING.spec(folder.path(), "target")));
    let Reply::Started { descriptor } = target.hear(PATIENCE) else { panic!("the target does not start") };
    let (rights, bytes, seed) = (Rights::READ_WRITE.into(), 1 << 20, FAR_SEED);
    target.tell(Command::Pool { label: "pool".to_owned(), bytes, block: 4096, rights, seed });
    assert_eq!(target.hear(PATIENCE), Reply::Done);
    target.tell(Command::Register { label: "brought".to_owned(), bytes, rights, skew: 1, seed });
    assert_eq!(target.hear(PATIENCE), Reply::Done);
    (target, descriptor)
}

/// Connects with an engine that cannot reach the target's own memory, and finds these words wherever the reason
/// is to be told.
fn expect_refused(config: Config, descriptor: &[u8], words: &str) {
    let engine = Engine::start(config).expect("the engine starts all the same");
    let near = engine.pool(PoolSpec::host(1 << 20).block(4096).label("near")).expect("memory for a pool");
    let peer = engine.connect(descriptor, PATIENCE).expect("a session needs no such rights");
    assert!(peer.path().contains(words), "{}", peer.path());
    let pool = peer.wait_region("pool", PATIENCE).expect("it is announced");
    let brought = peer.wait_region("brought", PATIENCE).expect("it is announced");
    assert_eq!((pool.way(), brought.way()), ("mapped", "none"));
    assert!(brought.why().contains(words), "{}", brought.why());
    let refused = Plan::write(&near, &brought).extents(ONE).build().map(drop).expect_err("there is no way");
    assert!(matches!(refused, PlanError::Region(RegionError::Import { .. })), "{refused:?}");
    assert!(refused.to_string().contains(words) && refused.to_string().contains("use a pool"), "{refused}");
    let plan = Plan::write(&near, &pool).extents(ONE).build().expect("pools need no such rights");
    assert_eq!(peer.submit(&plan, Submit::new()).expect("room").wait().expect("it ends well").bytes, 4096);
}

#[test]
fn the_setting_forbids_it_in_both_directions() {
    let folder = Folder::fresh();
    let (mut target, descriptor) = target(&folder);
    let config = SETTING.spec(folder.path(), "source").config().process_vm(ProcessVmChoice::Off);
    expect_refused(config.clone(), &descriptor, "the setting transports.process_vm is off");
    // The other way round: the target allows it, but is not told where to try.
    let engine = Engine::start(config.named("other")).expect("the engine starts");
    let memory = penstock::HostMemory::from_vec(vec![0; 4096]).expect("a page");
    engine.register(memory, "brought", Rights::READ_WRITE).expect("it is registered all the same");
    target.tell(Command::Connect { descriptor: engine.descriptor() });
    assert_eq!(target.hear(PATIENCE), Reply::Done);
    target.tell(Command::WriteTo { peer: "other".to_owned(), label: "brought".to_owned(), times: 1 });
    let Reply::Refused(why) = target.hear(PATIENCE) else { panic!("it was written all the same") };
    assert!(why.contains("the peer's setting transports.process_vm is off"), "{why}");
}

#[test]
fn a_seccomp_filter_is_named_as_the_reason() {
    let folder = Folder::fresh();
    let (_target, descriptor) = target(&folder);
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

/// From here on this thread may not make the two calls.
#[allow(unsafe_code, reason = "installing a filter is a plain system call with a pointer")]
fn forbid_process_vm() {
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(0x20, 0, 0, 0), // load the number of the call
        step(0x15, 1, 0, libc::SYS_process_vm_readv as u32),
        step(0x15, 0, 1, libc::SYS_process_vm_writev as u32),
        step(0x06, 0, 0, ERRNO | libc::EPERM as u32),
        step(0x06, 0, 0, ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: both calls concern this thread alone; the program is copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}
