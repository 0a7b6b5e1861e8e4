//! Two engines' sides of a session over real adapters: what lanes promise, without the rest of the engines.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, NoteId, Rights, Span};
use penstock_memory::{Hint, HostMemory, ProcessWatch, Region, Registry};
use penstock_ring::{ReadyBits, Withdrawal};
use penstock_transport::host::EngineSegments;
use penstock_transport::lane::Handle;
use penstock_transport::{
    AdvertisedRegion, Batch, Driver, Failure, Lane, LaneEvents, Link, LocalEnd, Note, NotifyPosted, NotifyRequest,
    PeerView, PostError, Posted, Registrar, RemoteEnd, RemoteMemory, Revisions, Transport, TransportMessages,
};
use penstock_verbs::adapter::Adapter;
use penstock_verbs::device::Posting;
use penstock_verbs::{VerbsOptions, VerbsTransport};

use crate::ends::{LIMIT, POSTINGS, assert_sent, open, pattern, ports, run, sent, wire};

const PARTY: u32 = 3;

#[derive(Default)]
struct Got {
    notes: Vec<(u128, Vec<u8>)>,
    completed: Vec<(u64, Result<u64, Cause>)>,
}

impl LaneEvents for Got {
    fn reserve_note(&mut self) -> bool {
        true
    }

    fn note(&mut self, note: Note<'_>) {
        self.notes.push((note.id.0, note.payload.to_vec()));
    }

    fn handed_over(&mut self, _: Note<'_>, _: Handle) {
        panic!("nothing is handed over between hosts");
    }

    fn completed(&mut self, token: u64, result: Result<u64, Failure>) {
        self.completed.push((token, result.map_err(|failure| failure.cause)));
    }
}

struct Engine {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    transport: VerbsTransport,
}

impl Engine {
    fn new(adapter: &str, posting: Posting) -> Self {
        let (segments, registry) = (EngineSegments::create(1).expect("memory"), Arc::new(Registry::new()));
        let adapters: Vec<Arc<dyn Adapter>> = vec![open(adapter, posting)];
        let made = VerbsTransport::new(Arc::clone(&segments), Arc::clone(&registry), adapters, VerbsOptions::default());
        Self { segments, registry, transport: made.expect("a transport over a card") }
    }

    fn region(&self, bytes: Vec<u8>) -> Arc<Region> {
        let memory = HostMemory::from_vec(bytes).expect("memory");
        self.registry.register_host(memory, "pool", Rights::READ_WRITE).expect("a region")
    }
}

struct Side {
    lane: Box<dyn Lane>,
    driver: Box<dyn Driver>,
    ready: ReadyBits,
    registrar: Arc<dyn Registrar>,
    transport_messages: Arc<dyn TransportMessages>,
    peer_view: PeerView,
    said: Arc<Mutex<VecDeque<Vec<u8>>>>,
    got: Got,
    engine: Engine,
}

impl Side {
    fn new(engine: Engine, link: Link) -> Self {
        let Link { mut lanes, registrar, transport_messages, peer_view, path, rails, .. } = link;
        println!("{path}: {rails:?}");
        Self {
            lane: lanes.pop().expect("one lane"),
            driver: engine.transport.driver(0).expect("a driver").expect("it has one"),
            ready: engine.segments.mailbox.view().ready(0),
            registrar,
            transport_messages: transport_messages.expect("broken rails are talked about"),
            peer_view,
            said: Arc::default(),
            got: Got::default(),
            engine,
        }
    }

    fn turn(&mut self) {
        while let Some(words) = self.said.lock().expect("nobody panics").pop_front() {
            self.transport_messages.on_message(&words).expect("what was said is understood");
        }
        self.driver.turn();
        let mut is_marked = false;
        self.ready.take_each(|peer_index| is_marked |= peer_index == PARTY as usize);
        if is_marked && self.lane.poll(&mut self.got).expect("no fault") {
            self.ready.mark(PARTY as usize);
        }
        self.lane.ring_doorbell().expect("no fault");
    }
}

fn key_of(region: &Region) -> RegionKey {
    RegionKey { region: region.id(), generation: region.generation() }
}

fn show(region: &Arc<Region>, from: &Side, to: &Side) -> RemoteMemory {
    let exported = from.registrar.export(region);
    let shown = AdvertisedRegion {
        epoch: 1,
        id: region.id(),
        generation: region.generation(),
        base: region.base_address(),
        bytes: region.bytes(),
        rights: region.rights(),
        access_blob: &exported.access_blob,
    };
    to.registrar.import(&shown, None).expect("cards reach it")
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.bytes() as usize];
    region.host().unwrap().read_into(0, &mut bytes).expect("it is inside");
    bytes
}

fn session(posting: Posting) -> [Side; 2] {
    let [one, two] = ports().map(|name| Engine::new(&name, posting));
    let offer = |engine: &Engine, number: u64| {
        let watch = Arc::new(ProcessWatch::of(std::process::id()));
        let here = LocalEnd { host: number, process: number, epoch: number, workers: 1, peer_index: PARTY };
        let other = 3 - number;
        let there = RemoteEnd {
            host: other,
            process: other,
            epoch: other,
            workers: 1,
            peer_index: PARTY,
            address: None,
            watch,
        };
        engine.transport.offer(here, there).expect("an offer")
    };
    let (offer_one, offer_two) = (offer(&one, 1), offer(&two, 2));
    let (blob_one, blob_two) = (offer_one.blob.clone(), offer_two.blob.clone());
    let link_one = (offer_one.join)(&blob_two, Vec::new()).unwrap_or_else(|error| panic!("one joins: {error}"));
    let link_two = (offer_two.join)(&blob_one, Vec::new()).unwrap_or_else(|error| panic!("two joins: {error}"));
    let sides = [Side::new(one, link_one), Side::new(two, link_two)];
    for at in 0..2 {
        let ear = Arc::clone(&sides[1 - at].said);
        sides[at]
            .transport_messages
            .start(Box::new(move |words| ear.lock().expect("nobody panics").push_back(words.to_vec())));
    }
    sides
}

fn until(sides: &mut [Side; 2], what: &str, mut is_so: impl FnMut(&mut [Side; 2]) -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so(sides) {
        sides.iter_mut().for_each(Side::turn);
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn a_session_over_real_cards_writes_reads_and_tells() {
    let Some(_wire) = wire("a_session_over_real_cards_writes_reads_and_tells") else { return };
    for posting in POSTINGS {
        let mut sides = session(posting);
        let bytes = pattern(11, 1 << 20);
        let source = sides[0].engine.region(bytes.clone());
        let target = sides[1].engine.region(vec![0; 1 << 20]);
        let remote = show(&target, &sides[1], &sides[0]);
        let before = sent();
        // Blocks of 16 KiB that change their order on the way, sixteen to a batch.
        let spans: Vec<Span> =
            (0..64_u64).map(|block| Span { local: block * 16384, remote: (63 - block) * 16384, len: 16384 }).collect();
        let batch = |direction, spans, token, transfer| Batch {
            direction,
            local: source.memory(),
            local_region: key_of(&source),
            remote_region: key_of(&source),
            remote: &remote,
            spans,
            hint: Hint::Cached,
            checked_at: Revisions::default(),
            completion_id: token,
            transfer,
            transfer_bytes: 1 << 20,
        };
        let mut posts = 0;
        for mut rest in spans.chunks(16) {
            until(&mut sides, "there is room", |sides| {
                match sides[0].lane.post(&batch(Direction::Write, rest, posts, 1)) {
                    Ok(Posted::Accepted(taken)) => {
                        posts += 1;
                        rest = &rest[taken..];
                    }
                    Err(PostError::Full) => {}
                    other => panic!("{other:?}"),
                }
                rest.is_empty()
            });
        }
        let payload = pattern(12, 4000);
        let note = Some(Note { id: NoteId(99), payload: &payload });
        let arrival = NotifyRequest { transfer: 1, transfer_bytes: 1 << 20, completion_id: 77, counter: None, note };
        let told = sides[0].lane.notify(&arrival).expect("it is told");
        assert!(matches!(told, NotifyPosted::Accepted), "{told:?}");
        until(&mut sides, "the note is there and all has ended", |sides| {
            sides[1].got.notes.len() == 1 && sides[0].got.completed.len() == posts as usize + 1
        });
        assert_eq!(sides[1].got.notes, [(99, payload)]);
        assert!(sides[0].got.completed.iter().all(|(_, result)| result.is_ok()), "{:?}", sides[0].got.completed);
        let arrived = bytes_of(&target);
        for block in 0..64 {
            let (from, to) = (block * 16384, (63 - block) * 16384);
            assert_eq!(arrived[to..to + 16384], bytes[from..from + 16384], "block {block}");
        }
        assert_sent(before, 1 << 20);

        // And back, one block of it.
        let back = [Span { local: 0, remote: 0, len: 65536 }];
        let posted = sides[0].lane.post(&batch(Direction::Read, &back, 200, 2));
        assert!(matches!(posted, Ok(Posted::Accepted(1))), "{posted:?}");
        until(&mut sides, "it is read", |sides| sides[0].got.completed.len() == posts as usize + 2);
        assert_eq!(sides[0].got.completed.last(), Some(&(200, Ok(65536))));
        assert_eq!(bytes_of(&source)[..65536], arrived[..65536]);
    }
}

/// How often a receiver refused a message because it had nowhere to put it.
fn refusals() -> u64 {
    let path = "/sys/class/infiniband/rxe_b0/ports/1/hw_counters/send_rnr_err";
    std::fs::read_to_string(path).expect("the device counts").trim().parse().expect("a number")
}

/// Frames of both links are small until this is dropped.
struct Narrow([(&'static str, String); 2]);

impl Narrow {
    const BYTES: &str = "1300";

    fn make() -> Self {
        let before = ["a0", "b0"].map(|link| {
            let path = format!("/sys/class/net/{link}/mtu");
            (link, std::fs::read_to_string(path).expect("a link has a size of frames").trim().to_owned())
        });
        before.iter().for_each(|(link, _)| drop(run("ip", &["link", "set", link, "mtu", Self::BYTES])));
        Self(before)
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        self.0.iter().for_each(|(link, bytes)| drop(run("ip", &["link", "set", link, "mtu", bytes])));
    }
}

#[test]
fn two_hundred_resets_under_long_messages_cost_no_receive() {
    let Some(_wire) = wire("two_hundred_resets_under_long_messages_cost_no_receive") else { return };
    // Small frames, so that a message is of several packets.
    let _narrow = Narrow::make();
    let began = Instant::now();
    let mut sides = session(POSTINGS[0]);
    let payload = pattern(13, 4096);
    let mut told = 0;
    let mut tell = |sides: &mut [Side; 2], count: u64| {
        for _ in 0..count {
            told += 1;
            let note = Some(Note { id: NoteId(told.into()), payload: &payload });
            let arrival = NotifyRequest { transfer: told, transfer_bytes: 0, completion_id: told, counter: None, note };
            until(sides, "there is room", |sides| sides[0].lane.notify(&arrival).is_ok());
        }
        sides[0].lane.ring_doorbell().expect("no fault");
        told as usize
    };
    for round in 0..200 {
        tell(&mut sides, 6);
        std::thread::sleep(Duration::from_micros(150 * (round % 20)));
        // The receiver wants memory back at once: its queue is made new, in the middle of a message as a rule.
        let owner_state = &sides[1].engine.segments.owner_state;
        let since = owner_state.view().revision();
        let withdrawal = Withdrawal { region: 9, generation: 0, offset: round, len: 1 };
        let revision = owner_state.withdraw(&[withdrawal]);
        sides[0].peer_view.on_withdrawals(since, [withdrawal].into_iter());
        let fence = Arc::clone(sides[1].peer_view.fence().expect("cards are fenced"));
        fence.force(revision);
        until(&mut sides, "it is quiet", |_| fence.has_passed(revision));
    }
    let count = tell(&mut sides, 1);
    until(&mut sides, "all are told", |sides| sides[0].got.completed.len() == count);
    let (took, before) = (began.elapsed(), refusals());
    // As many at once as the receiver has granted.
    let count = tell(&mut sides, 30);
    until(&mut sides, "all are told", |sides| sides[0].got.completed.len() == count);
    assert_eq!(refusals(), before, "the receiver had nowhere to put one");
    let mut ids: Vec<u128> = sides[1].got.notes.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(1..=count as u128), "each note comes once");
    println!("200 resets in {took:.1?}, and thirty long messages at once find room");
}
