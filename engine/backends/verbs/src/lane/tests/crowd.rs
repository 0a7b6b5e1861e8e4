use super::*;

/// Many sessions of two engines, whose only workers turn in one thread.
struct Crowd {
    engines: [Engine; 2],
    drivers: [Box<dyn Driver>; 2],
    lanes: [Vec<Option<Box<dyn Lane>>>; 2],
    registrars: [Option<Arc<dyn Registrar>>; 2],
    got: [Vec<Got>; 2],
}

impl Crowd {
    fn new(options: crate::model::Options, rails: usize, sessions: u32) -> Self {
        let network = ModelNetwork::new(options);
        let engines = [Engine::new(&network, rails, 1), Engine::new(&network, rails, 1)];
        let drivers = engines.each_ref().map(|engine| engine.transport.driver(0).unwrap().unwrap());
        let (lanes, registrars, got) = Default::default();
        let mut crowd = Self { engines, drivers, lanes, registrars, got };
        (0..sessions).for_each(|peer_index| crowd.begin(peer_index));
        crowd
    }

    fn begin(&mut self, peer_index: u32) {
        for (at, link) in links(&self.engines, peer_index).into_iter().enumerate() {
            let place = peer_index as usize;
            if self.lanes[at].len() == place {
                self.lanes[at].push(None);
                self.got[at].push(Got { room: usize::MAX, ..Got::default() });
            }
            self.lanes[at][place] = link.lanes.into_iter().next();
            self.registrars[at] = Some(link.registrar);
            self.engines[at].segments.mailbox.view().ready(0).mark(place);
        }
    }

    fn turn(&mut self) {
        for at in 0..2 {
            self.drivers[at].turn();
            let ready = self.engines[at].segments.mailbox.view().ready(0);
            ready.take_each(|peer_index| {
                let Some(lane) = self.lanes[at].get_mut(peer_index).and_then(Option::as_mut) else { return };
                if lane.poll(&mut self.got[at][peer_index]).unwrap() {
                    ready.mark(peer_index);
                }
                lane.ring_doorbell().unwrap();
            });
        }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so(self) {
            self.turn();
            assert!(Instant::now() < deadline, "waited too long until {what}");
        }
    }

    fn counts(&self) -> Vec<(usize, usize)> {
        let adapters = self.engines.iter().flat_map(|engine| &engine.adapters);
        adapters.map(|adapter| (adapter.counts().queues, adapter.counts().registrations)).collect()
    }
}

fn links(engines: &[Engine; 2], peer_index: u32) -> [Link; 2] {
    let offers = engines.each_ref().map(|engine| engine.offer(peer_index, 1));
    let blobs = offers.each_ref().map(|offer| offer.blob.clone());
    let mut at = 0;
    offers.map(|offer| {
        at += 1;
        (offer.join)(&blobs[2 - at], Vec::new()).unwrap()
    })
}

#[test]
fn sixty_four_sessions_keep_their_bytes_and_notes_apart() {
    const SESSIONS: u32 = 64;
    let mut crowd = Crowd::new(crate::model::Options::default(), 1, SESSIONS);
    let bytes = SESSIONS as usize * 4096;
    let from = crowd.engines[0].region(pattern(5, bytes), Rights::NONE);
    let to = crowd.engines[1].region(vec![0; bytes], Rights::WRITE);
    let [one, two] = crowd.registrars.each_ref().map(|registrar| registrar.as_ref().unwrap());
    let there = one.import(&remote(&to, &two.export(&to).access_blob), None).unwrap();
    for round in 0..4u64 {
        for peer_index in 0..SESSIONS as usize {
            let at = peer_index as u64 * 4096 + round * 1024;
            let spans = [span(at, at, 1000)];
            let batch = Batch {
                direction: WRITE,
                local: from.memory(),
                local_region: key_of(&from),
                remote_region: key_of(&from),
                remote: &there,
                spans: &spans,
                hint: Hint::Cached,
                checked_at: Revisions::default(),
                completion_id: round,
                transfer: round,
                transfer_bytes: 1000,
            };
            let note = Some(Note { id: penstock_core::NoteId(peer_index as u128), payload: &round.to_le_bytes() });
            let arrival = NotifyRequest {
                transfer: round,
                transfer_bytes: 1000,
                completion_id: 100 + round,
                counter: None,
                note,
            };
            let deadline = Instant::now() + Duration::from_secs(30);
            while crowd.lanes[0][peer_index].as_mut().unwrap().post(&batch) != Ok(Posted::Accepted(1)) {
                crowd.turn();
                assert!(Instant::now() < deadline, "there is never room");
            }
            assert_eq!(crowd.lanes[0][peer_index].as_mut().unwrap().notify(&arrival), Ok(NotifyPosted::Accepted));
            crowd.lanes[0][peer_index].as_mut().unwrap().ring_doorbell().unwrap();
        }
    }
    crowd.until("all was told", |crowd| crowd.got[0].iter().all(|got| got.completed.len() == 8));
    for (peer_index, got) in crowd.got[1].iter().enumerate() {
        let expected: Vec<_> = (0..4u64).map(|round| (peer_index as u128, round.to_le_bytes().to_vec())).collect();
        assert_eq!(got.notes, expected, "session {peer_index}");
    }
    let (mut expected, source) = (vec![0; bytes], pattern(5, bytes));
    for at in (0..bytes).step_by(1024) {
        expected[at..at + 1000].copy_from_slice(&source[at..at + 1000]);
    }
    assert!(bytes_of(&to) == expected);
}

#[test]
fn sessions_that_come_and_go_leave_nothing_behind() {
    for reset_cleans in [false, true] {
        let mut crowd = Crowd::new(crate::model::Options { reset_cleans, ..Default::default() }, 2, 3);
        let at_first = crowd.counts();
        let receives = |crowd: &Crowd| crowd.engines.each_ref().map(|engine| engine.transport.hub(0).lock().receives());
        let [(given, wanted), _] = receives(&crowd);
        assert_eq!((given, wanted), (3 * 2 * 32, 3 * 2 * 32));
        for round in 0..50u32 {
            let peer_index = round as usize % 3;
            // Whoever goes first has messages under way, both ways.
            for at in 0..2 {
                let note = Some(Note { id: penstock_core::NoteId(1), payload: &[7; 4096] });
                let arrival = NotifyRequest { transfer: 1, transfer_bytes: 0, completion_id: 9, counter: None, note };
                let lane = crowd.lanes[at][peer_index].as_mut().unwrap();
                while lane.notify(&arrival).is_ok() {}
                lane.ring_doorbell().unwrap();
            }
            for _ in 0..round % 5 {
                crowd.turn();
            }
            crowd.lanes[round as usize % 2][peer_index] = None;
            crowd.lanes[1 - round as usize % 2][peer_index] = None;
            crowd.begin(peer_index as u32);
            crowd.turn();
        }
        for _ in 0..100 {
            crowd.turn();
        }
        assert_eq!(crowd.counts(), at_first, "queues and registrations");
        assert_eq!(receives(&crowd)[0], (given, wanted), "receives (a reset cleans: {reset_cleans})");
    }
}
