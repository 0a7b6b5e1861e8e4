//! The first call after a session stands.

use penstock::flows::relay::{Destination, Extents, Put, Relay, RelaySpec};
use penstock::flows::{Group, Input, InputEvent, Isolation, Parent, PinSettings, Pins, Receive, Send};
use penstock::{Blocks, SystemEnv};

use super::Side;
use super::end::{End, Geometry, request, transfer};
use super::layers::{WITHIN, end_well};
use super::line::{from_word, to_word};
use crate::Peer;
use crate::stage::{KV, PATIENCE};

const TOKENS: u64 = 48;
/// The parent that the child process has pinned.
const PARENT: u32 = 1_000_000;
/// What is put has this name.
const PUT: u32 = 2_000_000;

fn relay(end: &End) -> Relay<SystemEnv> {
    end.engine.relay(RelaySpec::new().berths(64 << 10, 2, 2)).expect("it is the first one")
}

fn pins(end: &End) -> Pins<SystemEnv> {
    end.engine.pins(0, PinSettings::default()).expect("they are the first")
}

/// `connect`, `reconnect`, and a session that comes in, are whole when they are seen: what another engine can do is known, so `consume`,
/// `inherit_from` and `put` are served at once. Nothing waits for a layout here.
pub mod the_first_calls_after_connect_and_reconnect_are_served {
    use super::*;

    /// An engine that is started anew in each round, and connects.
    pub fn test(side: &mut Side) {
        let card = from_word(&side.line.hear());
        for round in 0..side.rounds {
            let end = side.pooled(Geometry::SMALL);
            let (relay, pins) = (relay(&end), pins(&end));
            let peer = end.engine.connect(&card, PATIENCE).expect("the other engine is there");
            calls_at_once(side, (&end, &relay, &pins), &peer, (round, 0));
            if round % 2 == 0 {
                side.line.say("stay");
                assert!(peer.disconnect(PATIENCE));
            } else {
                side.line.say("leave");
                let since = std::time::Instant::now();
                while peer.ended().is_none() {
                    assert!(since.elapsed() < PATIENCE, "the other side ends the session in round {round}");
                    std::thread::yield_now();
                }
            }
            let peer = end.engine.reconnect(&peer, PATIENCE).expect("the other engine is there");
            calls_at_once(side, (&end, &relay, &pins), &peer, (round, 1));
            drop(peer);
            relay.close(PATIENCE);
            drop((relay, pins));
            drop(end);
            side.line.expect("gone");
        }
    }

    /// The three calls, in an order that changes from round to round.
    fn calls_at_once(
        side: &mut Side,
        (end, relay, pins): (&End, &Relay<SystemEnv>, &Pins<SystemEnv>),
        peer: &Peer,
        (round, session): (u32, u32),
    ) {
        let name = 4 * round + 2 * session;
        let (mut input, mut put) = (None, None);
        for call in 0..3 {
            match (round + session + call) % 3 {
                0 => {
                    let how = Receive::into(&end.layout).from(0, peer).within(WITHIN);
                    match end.engine.consume(transfer(name), &request(name), how) {
                        Ok(begun) => input = Some(begun),
                        Err(refused) => side.note(round, Err(format!("consume, session {session}: {refused}"))),
                    }
                }
                1 => {
                    let own = end.take(3);
                    let given = inherit(end, pins, peer, &own);
                    side.note(round, given.map_err(|why| format!("inherit_from, session {session}: {why}")));
                }
                _ => {
                    let blocks = end.take(1);
                    end.compute_all(PUT, blocks.indices(), 0..16);
                    match relay.put(
                        Put::extents(Extents::blocks(&end.layout, &[&blocks])),
                        &request(PUT + name),
                        &[peer],
                    ) {
                        Ok(begun) => put = Some(begun),
                        Err(refused) => side.note(round, Err(format!("put, session {session}: {refused}"))),
                    }
                }
            }
        }
        // What was begun comes to its end.
        let metadata = put.as_ref().map_or(String::new(), |put| to_word(put.metadata()));
        side.line.say(&format!("{} {metadata}", u8::from(input.is_some())));
        if let Some(input) = input {
            let blocks = end.take(3);
            input.grant(&blocks).expect("it stands");
            let ended = received(end, &input, (name, blocks.indices()));
            side.note(round, ended.map_err(|why| format!("session {session}: {why}")));
        }
        if let Some(put) = put {
            let ended = put.wait(PATIENCE).expect("it ends");
            side.note(round, ended.map_err(|failed| format!("put, session {session}: {failed}")));
        }
        // And what the other side has begun in a session that came in.
        peer.wait_layout(KV, PATIENCE).expect("it has a layout");
        if side.line.hear() == "consumes" {
            let output =
                end.engine.produce(transfer(name + 1), &request(name + 1), Send::from(&end.layout).within(WITHIN));
            let output = output.expect("the name is new");
            let blocks = end.take(3);
            end.compute_all(name + 1, blocks.indices(), 0..TOKENS);
            output.chunk(&blocks, TOKENS, true).expect("it stands");
            end_well(side, round, &output);
        }
        side.line.expect("next");
    }

    fn inherit(end: &End, pins: &Pins<SystemEnv>, peer: &Peer, own: &Blocks) -> Result<(), String> {
        let (parent, isolation) = (request(PARENT), Isolation::default());
        let asked = (&parent, &isolation);
        let given = pins.inherit_from(peer, asked, TOKENS + 1, (&end.layout, own), PATIENCE);
        match given.map_err(|refused| refused.to_string())?.map_err(|miss| miss.to_string())? {
            TOKENS => end.check(PARENT, own.indices(), TOKENS),
            tokens => Err(format!("{tokens} tokens")),
        }
    }

    /// The engine that stays.
    pub fn child(side: &mut Side) {
        let end = side.pooled(Geometry::SMALL);
        let (relay, pins) = (relay(&end), pins(&end));
        let blocks = end.take(3);
        end.compute_all(PARENT, blocks.indices(), 0..TOKENS);
        let group = Group {
            block_tokens: 16,
            blocks: blocks.indices().to_vec(),
            computed: TOKENS,
            block_bytes: end.geometry.block_bytes(),
            hashes: Vec::new(),
        };
        let isolation = Isolation::default();
        let parent = Parent { request: request(PARENT), isolation, groups: vec![group], blob: Vec::new() };
        pins.pin_for_all(parent, &end.layout, &[&blocks], 100 * PATIENCE).expect("they are held");
        side.line.say(&to_word(&end.engine.descriptor()));
        for round in 0..side.rounds {
            let peer = end.peer();
            serve(side, (&end, &relay), &peer, (round, 0));

            if side.line.hear() == "leave" {
                assert!(peer.disconnect(PATIENCE));
            }
            wait_until_gone(&peer);
            let peer = end.peer();
            serve(side, (&end, &relay), &peer, (round, 1));
            wait_until_gone(&peer);
            side.line.say("gone");
        }
        relay.close(PATIENCE);
    }

    /// Consumes at once in the session that came in, and answers what the other side has begun.
    fn serve(side: &mut Side, (end, relay): (&End, &Relay<SystemEnv>), peer: &Peer, (round, session): (u32, u32)) {
        let name = 4 * round + 2 * session;
        let how = Receive::into(&end.layout).from(0, peer).within(WITHIN);
        let input = end.engine.consume(transfer(name + 1), &request(name + 1), how);
        let begun = side.line.hear();
        let (is_consumed, metadata) = begun.split_once(' ').expect("two words");
        if is_consumed == "1" {
            let output = end.engine.produce(transfer(name), &request(name), Send::from(&end.layout).within(WITHIN));
            let output = output.expect("the name is new");
            let blocks = end.take(3);
            end.compute_all(name, blocks.indices(), 0..TOKENS);
            output.chunk(&blocks, TOKENS, true).expect("it stands");
            end_well(side, round, &output);
        }
        if !metadata.is_empty() {
            let got = relay.get(&from_word(metadata), Destination::memory()).expect("it was put");
            let got = got.wait(PATIENCE).expect("it comes");
            let bytes = got.map(|got| got.bytes.len()).map_err(|failed| failed.to_string());
            side.note_unless(round, bytes == Ok(2 * 16 * 256), || format!("got {bytes:?}"));
        }
        let blocks = end.take(3);
        let granted = input.and_then(|input| input.grant(&blocks).map(|_| input));
        let ended = match granted {
            Ok(input) => {
                side.line.say("consumes");
                received(end, &input, (name + 1, blocks.indices()))
            }
            Err(refused) => {
                side.line.say("refused");
                Err(refused.to_string())
            }
        };
        side.note(round, ended.map_err(|why| format!("consume in incoming session {session}: {why}")));
        side.line.say("next");
    }

    /// Waits until a transfer has ended, and looks at its bytes.
    fn received(end: &End, input: &Input<SystemEnv>, (name, blocks): (u32, &[u32])) -> Result<(), String> {
        loop {
            match input.next(PATIENCE).expect("it ends") {
                InputEvent::Done { .. } => return end.check(name, blocks, TOKENS),
                InputEvent::Failed(failed) => return Err(failed.to_string()),
                _ => {}
            }
        }
    }

    fn wait_until_gone(peer: &Peer) {
        let since = std::time::Instant::now();
        while peer.ended().is_none() {
            assert!(since.elapsed() < PATIENCE, "the session ends");
            std::thread::yield_now();
        }
    }
}
