//! The service for those who measure from elsewhere, between two engines.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, TransportName};
use penstock::{Cause, Config, Engine, Plan, PoolSpec, Span, Submit, SubmitError};
use penstock_lab::layout::{Layout, LayoutSpec};
use penstock_lab::service::{Answer, Client, Event, Limits, Refusal, Request, Server, ServiceError};
use penstock_lab::workload::Workload;

const SOON: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { pool_bytes: 64 << 20, peers: 2 };

struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("penstock-service-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn engine(&self, name: &str) -> Engine {
        let config = Config::default().named(name).directory(&self.0).transports([TransportName::Local]);
        Engine::start(config).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Serves while a test asks, and answers what the server saw.
fn serving(test: impl FnOnce(&Folder, &Engine)) -> Vec<Event> {
    /// Ends the server also where the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release); // SYNC over: pairs with the server thread's Acquire
        }
    }
    let (folder, over) = (Folder::new(), AtomicBool::new(false));
    let engine = folder.engine("server");
    let long = "x".repeat(20_000);
    let doctor = || serde_json::json!({ "ok": true, "words": long });
    let mut seen = Vec::new();
    let server = Server::new(&engine, LIMITS, &doctor);
    std::thread::scope(|scope| {
        // SYNC over: pairs with Over's Release
        scope.spawn(|| server.serve(|| over.load(Ordering::Acquire), SOON, |event| seen.push(event)));
        let _over = Over(&over);
        test(&folder, &engine);
    });
    seen
}

fn client(engine: &Engine, server: &Engine) -> Client {
    Client::new(engine.connect(&server.descriptor(), SOON).unwrap())
}

fn spec(pool_bytes_min: u64) -> LayoutSpec {
    LayoutSpec { workload: Workload::find("kv16").unwrap(), pool_bytes_min, concurrency: 1, seed: 5 }
}

fn refusal(asked: Result<Answer, ServiceError>) -> Refusal {
    match asked {
        Err(ServiceError::Refused { refusal, .. }) => refusal,
        other => panic!("it was not refused: {other:?}"),
    }
}

#[test]
fn a_pool_is_made_filled_written_looked_at_and_given_back() {
    serving(|folder, server| {
        let near = folder.engine("near");
        let mut client = client(&near, server);
        let about = client.about(&near, SOON).unwrap();
        assert_eq!((about.name.as_str(), about.pool_bytes_max), ("server", LIMITS.pool_bytes));
        let layout = Layout::new(&spec(32 << 20));
        let make = Request::Pool { bytes: layout.pool_bytes(), pages: PagesChoice::Small };
        let Ok(Answer::Pool { label, counter, .. }) = client.ask(&near, &make, SOON) else { panic!("no pool") };
        let ours = near.pool(PoolSpec::host(layout.pool_bytes()).label("near")).unwrap();
        let remote = client.peer().wait_region(&label, SOON).unwrap();
        let arrivals = client.peer().wait_counter(&counter, SOON).unwrap();
        layout.fill(ours.window());
        assert_eq!(client.ask(&near, &Request::Wipe { pool: label.clone() }, SOON).unwrap(), Answer::Done);
        let check = Request::Check { pool: label.clone(), layout: spec(32 << 20), first_bytes: None, from_byte: 0 };
        assert!(matches!(client.ask(&near, &check, SOON).unwrap(), Answer::Wrong(_)), "nothing has arrived yet");
        for pairs in layout.sets() {
            let plan = Plan::write(&ours, &remote).blocks(pairs).block_bytes(16 << 10).strides(16 << 10, 16 << 10);
            let transfer = client.peer().submit(&plan.build().unwrap(), Submit::new().count(arrivals)).unwrap();
            transfer.wait().unwrap();
        }
        let bytes = layout.sets().len() as u64 * layout.workload().bytes();
        assert_eq!(client.ask(&near, &check, SOON).unwrap(), Answer::Checked { bytes });
        let Answer::Cpu { nanos } = client.ask(&near, &Request::Cpu, SOON).unwrap() else { panic!("no time") };
        assert!(nanos > 0);
        assert_eq!(client.ask(&near, &Request::Drop { pool: label.clone() }, SOON).unwrap(), Answer::Done);
        assert_eq!(refusal(client.ask(&near, &check, SOON)), Refusal::NoSuchPool { label });
    });
}

#[test]
fn bytes_come_back_and_long_answers_arrive_whole() {
    serving(|folder, server| {
        let near = folder.engine("near");
        let mut client = client(&near, server);
        for bytes in [0, 56, 4096] {
            let payload: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            assert!(client.echo(&near, &payload, SOON).unwrap() < SOON);
        }
        let Answer::Doctor(report) = client.ask(&near, &Request::Doctor, SOON).unwrap() else { panic!("no report") };
        assert_eq!(report["words"].as_str().unwrap().len(), 20_000);
    });
}

#[test]
fn what_cannot_be_had_is_refused_and_nothing_of_it_is_kept() {
    serving(|folder, server| {
        let near = folder.engine("near");
        let mut client = client(&near, server);
        let make = |bytes| Request::Pool { bytes, pages: PagesChoice::Small };
        let too_much = refusal(client.ask(&near, &make(LIMITS.pool_bytes + 1), SOON));
        assert_eq!(too_much, Refusal::TooMuchMemory { asked: LIMITS.pool_bytes + 1, left: LIMITS.pool_bytes });
        assert!(matches!(refusal(client.ask(&near, &make(u64::MAX), SOON)), Refusal::TooMuchMemory { .. }));
        assert!(matches!(refusal(client.ask(&near, &make(0), SOON)), Refusal::Failed { .. }));
        let Ok(Answer::Pool { label, .. }) = client.ask(&near, &make(1 << 20), SOON) else { panic!("no pool") };
        let fill = Request::Fill { pool: label, layout: spec(32 << 20) };
        assert!(matches!(refusal(client.ask(&near, &fill, SOON)), Refusal::Layout { .. }));
        // Bytes that are no request; the client's own numbers begin with 1.
        let id = penstock_lab::service::message::Kind::Request.id(99);
        client.peer().notify(id, b"{\"dance\":1}", Submit::new()).unwrap().wait().unwrap();
        assert!(near.wait_notification(SOON));
        let mut notes = Vec::new();
        near.notifications(&mut notes);
        let answer: Answer = serde_json::from_slice(&notes[0].payload).unwrap();
        assert!(matches!(answer, Answer::Refused(Refusal::NotUnderstood { .. })), "{answer:?}");
    });
}

#[test]
fn what_a_peer_had_is_taken_back_when_it_is_gone() {
    let seen = serving(|folder, server| {
        let make = Request::Pool { bytes: LIMITS.pool_bytes, pages: PagesChoice::Small };
        for name in ["first", "second", "third"] {
            let near = folder.engine(name);
            let mut client = client(&near, server);
            let start = Instant::now();
            // All there is: whoever comes next gets it once the one before is gone.
            loop {
                match client.ask(&near, &make, SOON) {
                    Ok(_) => break,
                    Err(refused) => assert!(start.elapsed() < SOON, "{name}: {refused}"),
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    });
    let came = seen.iter().filter(|event| matches!(event, Event::Came { transport: "local", .. })).count();
    assert_eq!(came, 3, "{seen:?}");
    assert!(seen.iter().any(|event| matches!(event, Event::Went { peer, .. } if peer.as_str() == "first")), "{seen:?}");
}

#[test]
fn one_peer_does_not_wait_for_anothers_request() {
    serving(|folder, server| {
        let (busy, quick) = (folder.engine("busy"), folder.engine("quick"));
        let (mut heavy, mut light) = (client(&busy, server), client(&quick, server));
        let make = Request::Pool { bytes: 48 << 20, pages: PagesChoice::Small };
        let Ok(Answer::Pool { label, .. }) = heavy.ask(&busy, &make, SOON) else { panic!("no pool") };
        light.about(&quick, SOON).unwrap();
        // A third one is over the limit and is told so.
        let third = folder.engine("third");
        let begun = Instant::now();
        let answer = client(&third, server).ask(&third, &Request::Cpu, Duration::from_secs(3));
        assert!(matches!(refusal(answer), Refusal::Busy { .. }) && begun.elapsed() > Duration::from_millis(100));
        let over = AtomicBool::new(false);
        let (mut filled, mut wiped, mut most, answered) = (0, 0, 0, AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (over, answered, filled, wiped, most) = (&over, &answered, &mut filled, &mut wiped, &mut most);
            scope.spawn(move || {
                let since = Instant::now();
                // Nobody else may have had a core during the first ones.
                while *wiped < 10 || (*most <= 3 && since.elapsed() < SOON) {
                    let before = answered.load(Ordering::Relaxed);
                    let done = heavy.ask(&busy, &Request::Wipe { pool: label.clone() }, SOON);
                    *filled += u32::from(matches!(done, Ok(Answer::Done)));
                    *wiped += 1;
                    *most = answered.load(Ordering::Relaxed).wrapping_sub(before).max(*most);
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                light.echo(&quick, b"ping", SOON).unwrap();
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert_eq!(filled, wiped);
        assert!(most > 3, "several round trips during one request of the other one, and there were {most}");
    });
}

#[test]
fn who_comes_when_there_are_enough_is_served_when_one_has_left() {
    serving(|folder, server| {
        let (first, second, third) = (folder.engine("first"), folder.engine("second"), folder.engine("third"));
        let kept = [client(&first, server), client(&second, server)];
        for (engine, mut client) in [&first, &second].into_iter().zip(kept) {
            client.about(engine, SOON).unwrap();
        }
        let waits = std::thread::spawn({
            let mut client = client(&third, server);
            move || client.about(&third, SOON).map(|about| about.name)
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!waits.is_finished(), "two are served, as many as may be");
        drop(first);
        assert_eq!(waits.join().unwrap().unwrap(), "server");
    });
}

#[test]
fn a_server_that_ends_says_so_before_it_takes_anything_back() {
    let folder = Folder::new();
    let server = folder.engine("server");
    let near = folder.engine("near");
    let (over, doctor) = (AtomicBool::new(false), || serde_json::Value::Null);
    let serves = Server::new(&server, LIMITS, &doctor);
    std::thread::scope(|scope| {
        // SYNC over: pairs with the Release below
        let ended = scope.spawn(|| serves.serve(|| over.load(Ordering::Acquire), SOON, drop));
        let mut client = client(&near, &server);
        let make = Request::Pool { bytes: 1 << 20, pages: PagesChoice::Small };
        let Ok(Answer::Pool { label, .. }) = client.ask(&near, &make, SOON) else { panic!("no pool") };
        let ours = near.pool(PoolSpec::host(1 << 20).label("near")).unwrap();
        let remote = client.peer().wait_region(&label, SOON).unwrap();
        let plan = Plan::write(&ours, &remote).extents(&[Span { local: 0, remote: 0, len: 1 << 20 }]).build().unwrap();
        over.store(true, Ordering::Release); // SYNC over: pairs with the Acquire above
        // All that was begun comes to its end; what follows hears that the server ends, never that its memory is gone.
        let refused = loop {
            match client.peer().submit(&plan, Submit::new()) {
                Ok(transfer) => assert_eq!(transfer.wait().expect("it was under way").bytes, 1 << 20),
                Err(refused) => break refused,
            }
        };
        let is_told = matches!(
            refused,
            SubmitError::Draining { cause: Cause::PeerDraining, .. }
                | SubmitError::PeerGone { cause: Cause::PeerClosed, .. }
        );
        assert!(is_told, "{refused}");
        let asked = client.about(&near, SOON);
        assert!(matches!(&asked, Err(ServiceError::Closing { peer }) if peer == "server"), "{asked:?}");
        let ended = ended.join().unwrap();
        assert_eq!((ended.told, ended.broken_off.len()), (1, 0));
    });
}

#[test]
fn an_end_of_the_server_is_told_in_time() {
    let folder = Folder::new();
    let near = folder.engine("near");
    let server = folder.engine("server");
    let mut client = client(&near, &server);
    // Nobody serves there: the deadline is kept.
    let start = Instant::now();
    let within = Duration::from_millis(200);
    assert!(matches!(client.about(&near, within), Err(ServiceError::Silent { .. })));
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(server);
    assert!(matches!(client.about(&near, SOON), Err(ServiceError::Ended { .. } | ServiceError::NotSent(_))));
}
