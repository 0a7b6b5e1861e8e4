//! What one peer may cost: regions and questions without end.

use penstock::config::TransportName;
use penstock::session::descriptor::EngineDescriptor;
use penstock::session::{Frame, RegionNews, RegionsAdvertised};
use penstock::{Config, Engine, Rights, SystemEnv};
use penstock_conformance::folder::Folder;
use penstock_conformance::rogue::{Heard, Intruder, Rogue, encoded};
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Place, Setting};

fn victim(folder: &Folder, configured: impl FnOnce(Config) -> Config) -> (Engine<SystemEnv>, Intruder) {
    let setting = Setting::adaptive(TransportName::Shm, 1, Place::Here);
    let engine = Engine::start(configured(setting.spec(folder.path(), "victim").config())).unwrap();
    let card = EngineDescriptor::decode(&engine.descriptor()).unwrap();
    let intruder = Rogue::connect(card.socket.as_ref()).greet(&card).join();
    (engine, intruder)
}

/// Regions with texts as long as they may be.
fn regions(ids: impl Iterator<Item = u32>) -> Frame {
    let rights = Rights::READ_WRITE.into();
    let (label, path) = ("x".repeat(128), vec![7; 256]);
    let one = |id| RegionNews {
        id,
        generation: 1,
        label: label.clone(),
        bytes: 4096,
        base: 0,
        rights,
        block_bytes: 4096,
        path: path.clone(),
        token: None,
    };
    Frame::Regions(RegionsAdvertised { revision: 0, news: ids.map(one).collect() })
}

fn still_answers(intruder: &mut Intruder, number: u64) {
    intruder.rogue.send(&Frame::Ping { number }, &[]);
    loop {
        match intruder.rogue.hear(PATIENCE) {
            Heard::Frame(Frame::Pong { number: heard }, _) if heard == number => return,
            Heard::Frame(..) => {}
            other => panic!("the session does not stand: {other:?}"),
        }
    }
}

#[test]
fn regions_without_end_end_their_session() {
    let folder = Folder::fresh();
    let (engine, mut intruder) = victim(&folder, |config| config.announced_bytes_per_peer(100 << 10));
    // What takes the place of another counts once.
    for _ in 0..20 {
        intruder.rogue.send(&regions(0..100), &[]);
    }
    still_answers(&mut intruder, 1);
    assert_eq!(engine.network_statistics().announced_too_much, 0);
    intruder.rogue.send(&regions(100..120), &[]);
    intruder.wait_for_the_end();
    assert_eq!(engine.network_statistics().announced_too_much, 1);
}

#[test]
fn questions_of_a_peer_that_does_not_read_end_its_session() {
    let folder = Folder::fresh();
    let (engine, mut intruder) = victim(&folder, |config| config.unsent_bytes(1 << 20));
    let questions: Vec<u8> = (0..1000).flat_map(|number| encoded(&Frame::Ping { number }, 0)).collect();
    let sent = (0..2000).take_while(|_| intruder.rogue.say(&questions)).count();
    assert!(sent < 2000, "it is answered without end");
    assert_eq!(engine.network_statistics().unread, 1);
    assert!(engine.peers().is_empty());
}
