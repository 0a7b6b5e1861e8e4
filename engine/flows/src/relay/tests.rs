use std::path::Path;

use penstock_core::{Generation, RegionId};
use penstock_session::control::ControlMessage;
use penstock_session::machine::Declared;

use super::join::Join;
use super::*;
use crate::action::RegionRef;

/// Compares a machine with its committed table; `PENSTOCK_UPDATE=1` writes it anew.
fn is_as_committed(declared: &Declared, file: &str) {
    assert_eq!(declared.faults(), Vec::<String>::new());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots").join(file);
    if std::env::var_os("PENSTOCK_UPDATE").is_some() {
        std::fs::write(&path, declared.matrix()).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(declared.matrix(), committed, "{} changed: look at it, and run with PENSTOCK_UPDATE=1", declared.name);
}

#[test]
fn the_machines_are_as_committed() {
    is_as_committed(&Put::DECLARED, "put.txt");
    is_as_committed(&Get::DECLARED, "get.txt");
    is_as_committed(&Stream::DECLARED, "stream.txt");
    is_as_committed(&Join::DECLARED, "join.txt");
}

fn pool(region: u32) -> StagingPool {
    let region = RegionRef { region: RegionId(region), generation: Generation(1) };
    StagingPool { region, base: 0, berth_bytes: 64, berths: 2 }
}

fn relay() -> Relays {
    Relays::new(RelaySettings {
        name: EngineName::new("a").unwrap(),
        epoch: Epoch(1),
        puts: pool(1),
        gets: pool(2),
        each: 2,
        control: 1,
        most: 2,
        early: EarlyFrameBounds { messages: 4, bytes: 4096, age: Duration::from_secs(1) },
        tombs: 4,
        tomb: Duration::from_secs(1),
        abort: Duration::from_millis(50),
        first_number: 0,
    })
}

fn peer(peer_index: u32) -> PeerKey {
    PeerKey { peer_index, epoch: Epoch(9) }
}

fn joined(able: &[(u16, u16)]) -> Relays {
    let mut relay = relay();
    for (peer_index, &(version_min, version_max)) in able.iter().enumerate() {
        let (peer, name) = (peer(peer_index as u32), EngineName::new(&format!("b{peer_index}")).unwrap());
        relay.handle(&crate::Event::Joined { peer, name }, Timestamp::default());
        let able = penstock_session::control::PeerFeatures { version_min, version_max, tag: 1, credits: 4 };
        relay.handle(&crate::Event::Said { peer, said: ControlMessage::PeerFeatures(able) }, Timestamp::default());
    }
    relay
}

fn to_put(readers: &[PeerKey]) -> ToPut {
    ToPut {
        request: RequestId::new("r").unwrap(),
        source: PutSource::Berths { bytes: 64 },
        readers: readers.to_vec(),
        schema: Vec::new(),
        header: Vec::new(),
        within: Duration::from_secs(1),
    }
}

#[test]
fn what_cannot_be_put_is_refused_with_the_reason_and_changes_nothing() {
    let mut relay = joined(&[(1, 1), (2, 3)]);
    let now = Timestamp::default();
    let able = peer(0);
    let mut refused = |what: ToPut| relay.put(what, now).unwrap_err();
    assert_eq!(refused(to_put(&[])), RelayError::Readers { found: 0, most: READERS_MAX });
    assert_eq!(refused(to_put(&[peer(7)])), RelayError::PeerLost(peer(7)));
    assert_eq!(refused(to_put(&[peer(1)])), RelayError::NotSpoken(peer(1)), "it speaks newer versions only");
    assert_eq!(refused(to_put(&[able, able])), RelayError::ReaderTwice(able));
    let long = vec![0; SCHEMA_BYTES_MAX + 1];
    let words = ToPut { header: long.clone(), ..to_put(&[able]) };
    assert_eq!(refused(words), RelayError::TooLong { what: "header", bytes: long.len() });
    let empty = StagingPlace { region: pool(3).region, offset: 0, len: 0 };
    for extents in [vec![], vec![empty], vec![StagingPlace { len: 1, ..empty }; EXTENTS_MAX + 1]] {
        let source = PutSource::Extents { extents, keep: BlocksRef(1), is_ready: true };
        assert_eq!(refused(ToPut { source, ..to_put(&[able]) }), RelayError::Extents);
    }
    assert!(relay.is_empty() && relay.poll_action().is_none());
    for _ in 0..2 {
        relay.put(to_put(&[able]), now).unwrap();
    }
    let full = relay.put(to_put(&[able]), now).unwrap_err();
    assert_eq!(full, RelayError::Full { what: "puts", most: 2 });
    relay.close(now);
    assert_eq!(relay.put(to_put(&[able]), now), Err(RelayError::Closed));
}

/// Both have called each other, so that there are two sessions with one engine, and what is announced comes in the second one.
#[test]
fn a_get_finds_its_chunk_in_whichever_session_it_is_announced() {
    for is_announced_before in [true, false] {
        let (mut relay, now) = (relay(), Timestamp::default());
        for peer_index in [0, 1] {
            let (peer, name) = (peer(peer_index), EngineName::new("b").unwrap());
            relay.handle(&crate::Event::Joined { peer, name }, now);
        }
        let chunk = penstock_session::control::Chunk {
            op: 5,
            request: "r".into(),
            stream: 0,
            number: 0,
            part: 0,
            parts: 1,
            bytes: 0,
            readers: 1,
            kind: ChunkKind::Data,
            extents: Vec::new(),
            schema: Vec::new(),
            header: Vec::new(),
        };
        let announced = crate::Event::Said { peer: peer(1), said: chunk.into() };
        let (engine, request) = (EngineName::new("b").unwrap(), RequestId::new("r").unwrap());
        let metadata = Metadata { engine, epoch: Epoch(9), op: 5, request, bytes: 0, parts: 1 }.encode();
        let ask = |relay: &mut Relays| relay.get(&metadata, Destination::Berths, Duration::from_secs(1), now).unwrap();
        let get = if is_announced_before {
            relay.handle(&announced, now);
            ask(&mut relay)
        } else {
            let get = ask(&mut relay);
            relay.handle(&announced, now);
            get
        };
        assert_eq!(relay.get_result(get), Some(&Ok(())), "announced before: {is_announced_before}");
        relay.check().unwrap();
    }
}

#[test]
fn words_are_cut_between_letters() {
    assert_eq!(cut("short"), "short");
    let long = "é".repeat(200);
    assert_eq!(cut(&long).len(), 256);
    assert_eq!(cut(&format!("a{long}")).len(), 255);
}
