//! What a hostile reading of the engine once found, each as it was shown.

#![allow(clippy::print_stderr)] // Figures for whoever runs one of them alone.

use penstock::config::{Progress, TransportName};
use penstock::*;
use std::time::{Duration, Instant};
const S: Duration = Duration::from_secs(2);
struct Folder(std::path::PathBuf);
impl Folder {
    fn new(l: &str) -> Self {
        let p = std::env::temp_dir().join(format!("penstock-hostile-{}-{l}", std::process::id()));
        std::fs::create_dir_all(&p).unwrap();
        Self(p)
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
fn cfg(f: &Folder, n: &str) -> Config {
    Config::default()
        .named(n)
        .directory(&f.0)
        .transports([TransportName::Local])
        .progress(Progress::Adaptive)
        .workers(1)
}
fn note(e: &Engine) -> Notification {
    assert!(e.wait_notification(S));
    let mut v = Vec::new();
    e.notifications(&mut v);
    v.remove(0)
}

#[test]
fn an_empty_payload_is_empty_whatever_its_slot_carried_before() {
    let f = Folder::new("a");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    p.notify(NoteId(1), b"secret of another", Submit::new()).unwrap().wait().unwrap();
    note(&b);
    std::thread::sleep(Duration::from_millis(50));
    p.notify(NoteId(2), b"", Submit::new()).unwrap().wait().unwrap();
    let n = note(&b);
    assert_eq!(n.payload, b"", "got {:?}", String::from_utf8_lossy(&n.payload));
}
#[test]
fn a_hand_over_counts_too() {
    let f = Folder::new("b");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let pool = b.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
    let c = pool.counter("c").unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    let rc = p.wait_counter("c", S).unwrap();
    let r = p.hand_over(std::sync::Arc::new(5u32), NoteId(1), b"x", Submit::new().count(rc)).unwrap().wait().unwrap();
    assert_eq!(r.notified, Notified::Yes);
    assert!(c.wait(1, Duration::from_millis(200)), "counter is {}", c.value());
}
#[test]
fn commands_of_an_ended_session_are_not_for_the_next_peer_at_its_place() {
    let f = Folder::new("c");
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let big = Engine::start(cfg(&f, "big")).unwrap();
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let d = Engine::start(cfg(&f, "d")).unwrap();
    let spec = |l: &str| PoolSpec::host(256 << 20).block(64 << 10).label(l);
    let far = big.pool(spec("kv")).unwrap();
    let near = a.pool(spec("kv")).unwrap();
    let _ = &far;
    let pb = a.connect(&b.descriptor(), S).unwrap();
    let pbig = a.connect(&big.descriptor(), S).unwrap();
    let plan = Plan::write(&near, &pbig.wait_region("kv", S).unwrap())
        .extents(&[Span { local: 0, remote: 0, len: 256 << 20 }])
        .build()
        .unwrap();
    // urgent work makes turns long
    let busy: Vec<_> = (0..12).map(|_| pbig.submit(&plan, Submit::new().priority(Priority::Urgent)).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(20));
    let notes: Vec<_> = (0..900u128).map(|i| pb.notify(NoteId(i), b"for b only", Submit::new()).unwrap()).collect();
    let t = Instant::now();
    pb.disconnect(S);
    let pd = a.connect(&d.descriptor(), S).unwrap();
    eprintln!("disconnect+connect {:?}", t.elapsed());
    let _ = pd;
    let mut got = Vec::new();
    let until = Instant::now() + Duration::from_secs(8);
    let mut ended = 0;
    while Instant::now() < until && ended < notes.len() {
        ended = notes.iter().filter(|n| n.poll().is_some()).count();
        std::thread::sleep(Duration::from_millis(10));
    }
    d.notifications(&mut got);
    let ok = notes.iter().filter(|n| matches!(n.poll(), Some(Ok(_)))).count();
    let mut at_b = Vec::new();
    b.notifications(&mut at_b);
    eprintln!("ended {ended}, ok {ok}, at b {}, at d {}", at_b.len(), got.len());
    drop(busy);
    assert!(
        got.is_empty(),
        "d received {} notes meant for b, e.g. {:?}",
        got.len(),
        String::from_utf8_lossy(&got[0].payload)
    );
}
#[test]
fn nothing_moves_after_a_cancel_answered_quiesced() {
    let f = Folder::new("d");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let far = b.pool(PoolSpec::host(64 << 20).block(64 << 10).label("kv").rights(Rights::READ_WRITE)).unwrap();
    let near = a.pool(PoolSpec::host(64 << 20).block(64 << 10).label("kv")).unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    let spans: Vec<Span> = (0..200_000u64).map(|i| Span { local: i * 256, remote: i * 256, len: 128 }).collect();
    let plan = Plan::write(&near, &p.wait_region("kv", S).unwrap()).extents(&spans).build().unwrap();
    let mut lies = 0;
    let mut quiesced = 0;
    for round in 0..3000u64 {
        let t = p.submit(&plan, Submit::new()).unwrap();
        let spin = Instant::now();
        while spin.elapsed() < Duration::from_nanos(20_000 + round * 37 % 60_000) {}
        let ans = t.cancel(Duration::ZERO);
        if ans.local.is_quiesced() && t.poll().is_none() {
            // still in hands?
            quiesced += 1;
            let at = t.bytes_moved();
            let sum = || {
                let mut buf = [0u8; 1];
                far.window().read_into(0, &mut buf).unwrap();
                buf[0]
            };
            let _ = sum();
            let _ = t.wait();
            if t.bytes_moved() != at {
                lies += 1;
            }
        } else {
            let _ = t.wait();
        }
    }
    eprintln!("quiesced-before-terminal {quiesced}, bytes moved after Quiesced {lies}");
    assert_eq!(lies, 0);
}
#[test]
fn one_plan_belongs_to_one_engine() {
    let f = Folder::new("e");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let x = Engine::start(cfg(&f, "x")).unwrap();
    let far = b.pool(PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap();
    let _ = &far;
    let na = a.register(HostMemory::from_vec(vec![1; 8192]).unwrap(), "pad", Rights::NONE).unwrap();
    let na2 = a.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
    let nx = x.register(HostMemory::from_vec(vec![7; 8192]).unwrap(), "mem", Rights::NONE).unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    let r = p.wait_region("kv", S).unwrap();
    let _ = na;
    let plan = Plan::read(&na2, &r)
        .extents(&[Span { local: 0, remote: 0, len: 4096 }])
        .between(&nx, &r)
        .extents(&[Span { local: 0, remote: 0, len: 4096 }])
        .build();
    match plan {
        Err(e) => eprintln!("refused: {e}"),
        Ok(plan) => {
            assert!(nx.deregister(S).unwrap().is_quiesced());
            let out = p.submit(&plan, Submit::new()).unwrap().wait();
            let mut byte = [9u8; 1];
            nx.host().unwrap().read_into(0, &mut byte).unwrap();
            panic!("after x's deregister answered Quiesced, a's worker wrote: {out:?}, byte {}", byte[0]);
        }
    }
}
#[test]
fn arming_sees_what_happened_though_a_counter_was_closed() {
    let f = Folder::new("f");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let ab = a.pool(PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap();
    let c = ab.counter("c").unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    // b counts a's counter up
    let back = b.peers().remove(0);
    let rc = back.wait_counter("c", S).unwrap();
    let bp = b.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
    let plan = Plan::write(&bp, &back.wait_region("kv", S).unwrap()).blocks(&[(0, 0)]).build().unwrap();
    back.submit(&plan, Submit::new().count(rc)).unwrap().wait().unwrap();
    assert!(c.wait(1, S));
    while a.arm().unwrap() == Armed::Busy {}
    drop(c);
    let t = p.notify(NoteId(1), b"x", Submit::new()).unwrap();
    t.wait().unwrap();
    // Whoever waits for the transfer may be there before it is counted.
    let since = Instant::now();
    while a.arm().unwrap() != Armed::Busy {
        assert!(since.elapsed() < S, "a transfer completed since the last arm()");
        std::thread::sleep(Duration::from_millis(1));
    }
}
#[test]
fn a_region_registered_twice_stands_until_both_ended() {
    let f = Folder::new("g");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let mut mem = vec![0u8; 8192];
    let (ptr, len) = (mem.as_mut_ptr(), mem.len());
    // SAFETY: the vector outlives both engines' use of it: both registrations end below.
    #[allow(unsafe_code)]
    let memory = || unsafe { HostMemory::from_raw(ptr, len) }.unwrap();
    let one = b.register(memory(), "m", Rights::READ_WRITE).unwrap();
    let two = b.register(memory(), "m", Rights::READ_WRITE).unwrap();
    let near = a.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
    near.window().fill(0, 4096, 7).unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    let plan = Plan::write(&near, &p.wait_region("m", S).unwrap())
        .extents(&[Span { local: 0, remote: 0, len: 4096 }])
        .build()
        .unwrap();
    assert!(matches!(one.deregister(S).unwrap(), LocalQuiesce::StillRegistered(1)));
    assert!(two.deregister(S).unwrap().is_quiesced());
    assert!(p.submit(&plan, Submit::new()).unwrap().wait().is_err());
    assert_eq!(mem[0], 0, "bytes landed after Quiesced");
}
#[test]
fn a_listener_that_accepts_nobody_holds_nothing_up() {
    let f = Folder::new("h");
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let path = f.0.join("trap.sock");
    use std::os::unix::net::{UnixListener, UnixStream};
    let l = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&l, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let mine = session::EngineDescriptor::decode(&a.descriptor()).unwrap();
    let socket = path.display().to_string();
    let card =
        session::EngineDescriptor { name: "trap".into(), epoch: 77, host: mine.host, socket, addresses: Vec::new() };
    let t = Instant::now();
    let r = a.connect(&card.encode(), Duration::from_millis(300));
    eprintln!("{:?} after {:?}", r.err().map(|e| e.to_string()), t.elapsed());
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(a);
        let _ = tx.send(());
    });
    assert!(rx.recv_timeout(Duration::from_secs(4)).is_ok(), "dropping the engine hangs");
}
#[test]
fn an_old_handle_ends_no_later_session() {
    let f = Folder::new("i");
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let d = Engine::start(cfg(&f, "d")).unwrap();
    let old = a.connect(&b.descriptor(), S).unwrap();
    drop(b);
    while old.ended().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50));
    let new = a.connect(&d.descriptor(), S).unwrap();
    old.disconnect(S);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(new.ended(), None, "d's session was ended by disconnecting b's old handle");
}
#[test]
fn room_that_comes_back_is_noticed() {
    let f = Folder::new("r");
    let b = Engine::start(cfg(&f, "b").notifications_per_peer(1).spin(Duration::ZERO)).unwrap();
    let a = Engine::start(cfg(&f, "a").spin(Duration::ZERO)).unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    let body = vec![1u8; 4096];
    for i in 0..16u128 {
        p.notify(NoteId(i), &body, Submit::new()).unwrap().wait().unwrap();
    }
    let (mut worst, mut slow, mut rounds) = (Duration::ZERO, 0, 0u64);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        rounds += 1;
        let t = p.notify(NoteId(rounds.into()), &body, Submit::new()).unwrap();
        let spin = Instant::now();
        while spin.elapsed() < Duration::from_nanos(rounds * 131 % 12_000) {}
        let t0 = Instant::now();
        let mut v = Vec::new();
        while v.is_empty() {
            b.notifications(&mut v);
        }
        t.wait().unwrap();
        let took = t0.elapsed();
        worst = worst.max(took);
        // Who misses it sleeps for a second.
        if took > Duration::from_millis(800) {
            slow += 1;
        }
    }
    eprintln!("rounds {rounds}, worst {worst:?}, over 800 ms: {slow}");
    assert_eq!(slow, 0);
}
/// Runs what a fork that exits its scopes would: the destructor of a counter it inherited.
#[allow(unsafe_code)]
fn in_a_fork(counter: &Counter<SystemEnv>) {
    // SAFETY: these are the C library's own signatures.
    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(code: i32) -> !;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    }
    // SAFETY: the child only runs one destructor on memory that it alone has now, and exits without
    // returning; the parent never uses the copy that is read out.
    unsafe {
        let pid = fork();
        if pid == 0 {
            drop(std::ptr::read(counter));
            _exit(0);
        }
        let mut status = 0;
        waitpid(pid, &mut status, 0);
    }
}

#[test]
fn a_forked_child_closes_nothing_of_its_parent() {
    let f = Folder::new("k");
    let b = Engine::start(cfg(&f, "b")).unwrap();
    let a = Engine::start(cfg(&f, "a")).unwrap();
    let pool = b.pool(PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap();
    let c = std::sync::Arc::new(pool.counter("c").unwrap());
    let near = a.pool(PoolSpec::host(1 << 20).block(4096).label("kv")).unwrap();
    let p = a.connect(&b.descriptor(), S).unwrap();
    let rc = p.wait_counter("c", S).unwrap();
    let plan = Plan::write(&near, &p.wait_region("kv", S).unwrap()).blocks(&[(0, 0)]).build().unwrap();
    p.submit(&plan, Submit::new().count(rc)).unwrap().wait().unwrap();
    assert!(c.wait(1, S));
    in_a_fork(&c);
    let r = p.submit(&plan, Submit::new().count(rc)).unwrap().wait().unwrap();
    assert!(
        c.wait(2, Duration::from_millis(300)),
        "the counter stands at {} although the initiator was told {:?}",
        c.value(),
        r.notified
    );
}
