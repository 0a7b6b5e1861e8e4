use penstock_core::Cause;

use super::*;
use crate::adapter::{
    AccessFlags, ConnectParams, Opcode, QueuePair, Registration, SendRequest, Sge, WorkCompletion, WorkerCq,
};
use crate::offer::{By, OfferedQueue, OfferedRail, VerbsOffer};

/// The other end of a session, which says what it likes.
struct Stranger {
    cq: Box<dyn WorkerCq>,
    queue: Box<dyn QueuePair>,
    memory: HostMemory,
    registration: Arc<dyn Registration>,
}

impl Stranger {
    /// A session of an engine with a stranger.
    fn cm(network: &ModelNetwork) -> (Self, Side) {
        let (engine, adapter) = (Engine::new(network, 1, 1), network.adapter());
        let mut cq = adapter.worker_cq(1024, 64).unwrap();
        let queue = cq.queue(64).unwrap();
        let offered = OfferedQueue { number: queue.number(), first_packet: 5, token: None };
        let rails = vec![OfferedRail::of(adapter.attr(), vec![offered])];
        let ours = VerbsOffer { workers: 1, grants: 32, by: By::Exchange, rails };
        let offering = engine.offer(PARTY, 1);
        let theirs = VerbsOffer::parse(&offering.blob, 1, 1).unwrap();
        let link = (offering.join)(&ours.blob(), Vec::new()).unwrap();
        let memory = HostMemory::from_vec(vec![0; 8192]).unwrap();
        let registration =
            adapter.register(memory.window(), AccessFlags { read: true, write: true, land: true }).unwrap();
        let mut stranger = Self { cq, queue, memory, registration };
        let there = theirs.rails[0].endpoint(0);
        let connecting = ConnectParams { there, first_packet: 5, mtu: 4096, reads_there: 1, reads_here: 1, cm: None };
        stranger.queue.connect(&connecting).unwrap();
        (stranger, Side::new(engine, link))
    }

    fn do_it(&mut self, kind: Opcode, bytes: &[u8]) {
        self.memory.window().write_from(0, bytes).unwrap();
        let address = self.memory.window().base_address();
        let sge = Sge { address, bytes: bytes.len() as u32, key: self.registration.local_key() };
        let request = SendRequest { id: 1, opcode: kind, sges: 1, signalled: true, inline: false };
        self.queue.post(&[request], &[sge]).unwrap();
    }

    fn done(&mut self) -> Vec<WorkCompletion> {
        let mut done = [WorkCompletion::default(); 16];
        let count = self.cq.poll(&mut done).unwrap();
        done[..count].to_vec()
    }
}

fn fault_after(say: impl FnOnce(&mut Stranger)) -> Option<LaneFault> {
    let network = ModelNetwork::new(crate::model::Options::default());
    let (mut stranger, mut side) = Stranger::cm(&network);
    say(&mut stranger);
    for _ in 0..200 {
        side.turn();
        stranger.done();
    }
    side.fault()
}

#[test]
fn a_peer_whose_messages_make_no_sense_is_left_and_nothing_else_happens() {
    const CORRUPT: Option<LaneFault> = Some(LaneFault(Cause::PeerCorrupt));
    assert_eq!(fault_after(|_| {}), None, "who says nothing is waited for");
    assert_eq!(fault_after(|stranger| stranger.do_it(Opcode::Send, b"good morning")), CORRUPT);
    assert_eq!(fault_after(|stranger| stranger.do_it(Opcode::Send, &[0; 4096])), CORRUPT);
    assert_eq!(fault_after(|stranger| stranger.do_it(Opcode::Send, b"")), CORRUPT);
    let immediate = |immediate| Opcode::WriteWithImm { address: 0, key: 0, immediate };
    assert_eq!(fault_after(|stranger| stranger.do_it(immediate(0xffff_ffff), b"")), CORRUPT);
    for immediate_first in [false, true] {
        // One after the other, in one poll.
        let many = |stranger: &mut Stranger| {
            if immediate_first {
                stranger.do_it(immediate(7), b"");
            }
            (0..20).for_each(|_| stranger.do_it(Opcode::Send, &[1; 100]));
        };
        assert_eq!(fault_after(many), CORRUPT);
    }
}

#[test]
fn what_a_peer_says_aside_without_sense_ends_its_session() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let (_stranger, mut side) = Stranger::cm(&network);
    assert_eq!(side.transport_messages.on_message(b"\x09\0to nobody"), Err(LaneFault(Cause::PeerCorrupt)));
    side.transport_messages.on_message(b"\0\0what?").unwrap();
    side.turn();
    assert_eq!(side.fault(), Some(LaneFault(Cause::PeerCorrupt)));
}

#[test]
fn a_peer_that_writes_where_it_may_not_breaks_its_own_queue() {
    let network = ModelNetwork::new(crate::model::Options::default());
    let (mut stranger, side) = Stranger::cm(&network);
    let region = side.engine.region(vec![9; 4096], Rights::READ);
    let path = side.registrar.export(&region).access_blob;
    let Ok(crate::registrar::Path::Keyed { base, keys, .. }) = crate::registrar::parse(&path) else { panic!() };
    stranger.do_it(Opcode::Write { address: base, key: keys[0] }, &[1; 64]);
    let mut done = Vec::new();
    for _ in 0..50 {
        done.extend(stranger.done());
    }
    assert!(
        matches!(
            done[..],
            [WorkCompletion { result: crate::adapter::Wc::Failed(crate::adapter::WcStatus::Refused), .. }]
        ),
        "{done:?}"
    );
    assert_eq!(bytes_of(&region), vec![9; 4096]);
}

#[test]
fn a_card_that_fails_ends_its_sessions_in_time() {
    let (_network, mut sides) = session(1);
    sides[0].engine.adapters[0].fail();
    let deadline = Instant::now() + Duration::from_secs(20);
    while sides[0].fault().is_none() {
        sides[0].turn();
        assert!(Instant::now() < deadline, "a lane waits for a card that is gone");
    }
    assert_eq!(sides[0].fault().map(|fault| fault.0 == Cause::PeerCorrupt), Some(false), "it was not the peer");
    // Nobody trips over it afterwards.
    sides[0].workers[0].lane = None;
    assert!(!sides[0].workers[0].driver.turn());
}
