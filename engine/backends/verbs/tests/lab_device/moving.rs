//! Bytes move, in every way that requests have.

use std::time::Duration;

use penstock_verbs::card::{Card, Kind, Outcome, Request};

use crate::ends::{ALL, End, POSTINGS, Pair, assert_sent, pattern, request, sent, wire};

#[test]
fn writes_reads_and_messages_cross_the_wire_in_both_ways_of_posting() {
    let Some(_wire) = wire("writes_reads_and_messages_cross_the_wire_in_both_ways_of_posting") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let before = sent();
        let bulk = pattern(1, 256 << 10);
        pair.a.fill(0, &bulk);
        let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        let whole = pair.a.piece(0, bulk.len() as u32);
        pair.a.post(&[request(1, write, 1)], &[whole]);
        pair.a.expect(1, Outcome::Did);
        assert_eq!(pair.b.bytes(0, bulk.len()), bulk);
        assert_sent(before, bulk.len() as u64);

        let other = pattern(2, 128 << 10);
        pair.b.fill(0, &other);
        let read = Kind::Read { address: pair.b.address(0), key: pair.b.key() };
        let place = pair.a.piece(300_000, other.len() as u32);
        pair.a.post(&[request(2, read, 1)], &[place]);
        pair.a.expect(2, Outcome::Did);
        assert_eq!(pair.a.bytes(300_000, other.len()), other);

        pair.b.supply(4);
        let message = pattern(3, 5000);
        pair.a.fill(0, &message);
        let piece = pair.a.piece(0, message.len() as u32);
        pair.a.post(&[request(3, Kind::Send, 1)], &[piece]);
        pair.a.expect(3, Outcome::Did);
        pair.b.expect(0, Outcome::Came { bytes: 5000, immediate: None });
        assert_eq!(pair.b.bytes(End::receive_at(0), 5000), message);

        let tell = |immediate| Kind::WriteAndTell { address: pair.b.address(0), key: pair.b.key(), immediate };
        let (with_bytes, without) = (tell(0x0102_0304), Kind::WriteAndTell { address: 0, key: 0, immediate: 7 });
        pair.a.post(&[request(4, with_bytes, 1), request(5, without, 0)], &[piece]);
        pair.a.expect(4, Outcome::Did);
        pair.a.expect(5, Outcome::Did);
        pair.b.expect(1, Outcome::Came { bytes: 0, immediate: Some(0x0102_0304) });
        pair.b.expect(2, Outcome::Came { bytes: 0, immediate: Some(7) });
        assert_eq!(pair.b.bytes(0, message.len()), message);
    }
}

#[test]
fn only_what_is_signalled_completes_and_says_it_for_all_before() {
    let Some(_wire) = wire("only_what_is_signalled_completes_and_says_it_for_all_before") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let bytes = pattern(4, 32 * 1000);
        pair.a.fill(0, &bytes);
        let requests: Vec<Request> = (0..32)
            .map(|place| Request {
                signalled: place == 31,
                ..request(place, Kind::Write { address: pair.b.address(place * 1000), key: pair.b.key() }, 1)
            })
            .collect();
        let pieces: Vec<_> = (0..32).map(|place| pair.a.piece(place * 1000, 1000)).collect();
        pair.a.post(&requests, &pieces);
        pair.a.expect(31, Outcome::Did);
        assert_eq!(pair.b.bytes(0, bytes.len()), bytes);
        assert!(pair.a.poll().is_empty());
    }
}

#[test]
fn thirty_pieces_are_one_request_gathered_and_scattered() {
    let Some(_wire) = wire("thirty_pieces_are_one_request_gathered_and_scattered") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let bytes = pattern(5, 30 * 500);
        // Sources lie with gaps, backwards.
        let pieces: Vec<_> = (0..30_u64).map(|place| pair.a.piece((29 - place) * 4096, 500)).collect();
        for (place, part) in bytes.chunks(500).enumerate() {
            pair.a.fill((29 - place as u64) * 4096, part);
        }
        let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        pair.a.post(&[request(1, write, 30)], &pieces);
        pair.a.expect(1, Outcome::Did);
        assert_eq!(pair.b.bytes(0, bytes.len()), bytes);

        let back = pattern(6, 30 * 500);
        pair.b.fill(0, &back);
        let read = Kind::Read { address: pair.b.address(0), key: pair.b.key() };
        pair.a.post(&[request(2, read, 30)], &pieces);
        pair.a.expect(2, Outcome::Did);
        for (place, part) in back.chunks(500).enumerate() {
            assert_eq!(pair.a.bytes((29 - place as u64) * 4096, 500), part);
        }

        let too_many = pair.a.facts().pieces_max + 1;
        let pieces = vec![pair.a.piece(0, 1); too_many];
        let failed = pair.a.queue.post(&[request(3, write, too_many as u32)], &pieces).expect_err("too many");
        assert!(failed.posted == 0 && failed.error.to_string().contains("pieces"), "{failed:?}");
        pair.works();
    }
}

#[test]
fn pieces_of_unequal_lengths_go_whole() {
    let Some(_wire) = wire("pieces_of_unequal_lengths_go_whole") else { return };
    // The last one is shorter, as where a transfer ends inside of a block; the last one is longer; all differ.
    let lists: [&[u32]; 4] = [&[128, 512], &[512, 512, 128], &[1000, 8, 4096, 300, 12], &[600, 600, 600, 1]];
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        pair.b.supply(2 * lists.len());
        for (number, lengths) in (0_u64..).zip(lists) {
            let total = lengths.iter().sum::<u32>();
            let places =
                || lengths.iter().scan(0, |at, &len| Some((std::mem::replace(at, *at + len as usize), len as usize)));
            // Sources lie with gaps, and even requests go with the uneven one.
            let source = |place: usize| 100_000 + 8192 * place as u64;
            let mut pieces: Vec<_> =
                lengths.iter().enumerate().map(|(place, &len)| pair.a.piece(source(place), len)).collect();
            let single = pair.a.piece(0, 700);
            let count = lengths.len() as u32;
            let (address, key) = (pair.b.address(0), pair.b.key());
            let beside = request(1, Kind::Write { address: pair.b.address(200_000), key }, 1);
            let immediate = number as u32;
            let kinds = [Kind::Write { address, key }, Kind::WriteAndTell { address, key, immediate }, Kind::Send];
            for (seed, kind) in (100 + 10 * number..).zip(kinds) {
                let (bytes, whole) = (pattern(seed, total as usize), pattern(seed, 700));
                for (place, (at, len)) in places().enumerate() {
                    pair.a.fill(source(place), &bytes[at..at + len]);
                }
                pair.a.fill(0, &whole);
                pair.b.fill(0, &vec![0; total as usize]);
                pieces.insert(0, single);
                pair.a.post(&[beside, request(2, kind, count)], &pieces);
                pieces.remove(0);
                pair.a.expect(1, Outcome::Did);
                pair.a.expect(2, Outcome::Did);
                let landed = match kind {
                    Kind::Send => {
                        let receive = 2 * number + 1;
                        pair.b.expect(receive, Outcome::Came { bytes: total, immediate: None });
                        End::receive_at(receive)
                    }
                    Kind::WriteAndTell { .. } => {
                        pair.b.expect(2 * number, Outcome::Came { bytes: 0, immediate: Some(immediate) });
                        0
                    }
                    Kind::Write { .. } | Kind::Read { .. } => 0,
                };
                assert!(pair.b.bytes(landed, total as usize) == bytes, "{posting:?}, {kind:?}, {lengths:?}");
                assert_eq!(pair.b.bytes(200_000, 700), whole);
            }
            let back = pattern(200 + number, total as usize);
            pair.b.fill(0, &back);
            pair.a.post(&[request(3, Kind::Read { address, key }, count)], &pieces);
            pair.a.expect(3, Outcome::Did);
            for (place, (at, len)) in places().enumerate() {
                assert!(pair.a.bytes(source(place), len) == back[at..at + len], "{posting:?}, read, {lengths:?}");
            }
        }
    }
}

#[test]
fn what_is_inline_is_taken_at_once() {
    let Some(_wire) = wire("what_is_inline_is_taken_at_once") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let most = pair.a.facts().inline_max;
        assert!(most >= 64);
        let bytes = pattern(7, most);
        pair.a.fill(0, &bytes);
        let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        let inline = |id, pieces| Request { inline: true, ..request(id, write, pieces) };
        let half = most as u32 / 2;
        let whole = [pair.a.piece(0, most as u32)];
        let halves = [pair.a.piece(0, half), pair.a.piece(u64::from(half), most as u32 - half)];
        for pieces in [&whole[..], &halves] {
            pair.a.fill(0, &bytes);
            pair.b.fill(0, &vec![0; most]);
            pair.a.post(&[inline(1, pieces.len() as u32)], pieces);
            pair.a.fill(0, &vec![0xee; most]);
            pair.a.expect(1, Outcome::Did);
            assert_eq!(pair.b.bytes(0, most), bytes);
        }
        // A message too, and one with nothing in it.
        pair.b.supply(2);
        pair.a.fill(0, &bytes);
        let send = |id, pieces| Request { inline: true, ..request(id, Kind::Send, pieces) };
        pair.a.post(&[send(2, 1), send(3, 0)], &whole);
        pair.a.fill(0, &vec![0xee; most]);
        pair.a.expect(2, Outcome::Did);
        pair.a.expect(3, Outcome::Did);
        pair.b.expect(0, Outcome::Came { bytes: most as u32, immediate: None });
        pair.b.expect(1, Outcome::Came { bytes: 0, immediate: None });
        assert_eq!(pair.b.bytes(End::receive_at(0), most), bytes);

        let long = pair.a.piece(0, most as u32 + 1);
        let failed = pair.a.queue.post(&[inline(4, 1)], &[long]).expect_err("too long");
        assert!(failed.error.to_string().contains("bytes in a request"), "{failed:?}");
        pair.works();
    }
}

#[test]
fn what_is_inline_is_read_from_registered_memory_only() {
    let Some(_wire) = wire("what_is_inline_is_read_from_registered_memory_only") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        let inline = Request { inline: true, ..request(1, write, 1) };
        let good = pair.a.piece(0, 16);
        for bad in [
            penstock_verbs::card::Piece { address: 16, ..good },
            penstock_verbs::card::Piece { key: good.key ^ 0x00ff_ff00, ..good },
            penstock_verbs::card::Piece { address: good.address + crate::ends::BYTES as u64 - 8, ..good },
            penstock_verbs::card::Piece { address: u64::MAX - 4, ..good },
        ] {
            let failed = pair.a.queue.post(&[inline], &[bad]).expect_err("not its memory");
            assert_eq!(failed.posted, 0);
        }
        pair.a.post(&[inline], &[good]);
        pair.a.expect(1, Outcome::Did);
        // Its registration ends: what was just allowed is refused.
        pair.a.registration = None;
        pair.a.queue.post(&[inline], &[good]).expect_err("not registered any more");
    }
}

#[test]
fn an_armed_desk_wakes_whoever_sleeps_on_it() {
    let Some(_wire) = wire("an_armed_desk_wakes_whoever_sleeps_on_it") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    pair.b.supply(8);
    for round in 0..4 {
        pair.b.desk.arm().expect("it is armed");
        assert!(pair.b.poll().is_empty());
        assert!(!End::is_woken(&pair.b.desk.descriptor(), Duration::from_millis(50)), "nothing has come yet");
        let piece = pair.a.piece(0, 8);
        pair.a.post(&[request(round, Kind::Send, 1)], &[piece]);
        assert!(End::is_woken(&pair.b.desk.descriptor(), Duration::from_secs(10)), "it wakes, round {round}");
        pair.b.expect(round, Outcome::Came { bytes: 8, immediate: None });
        pair.a.expect(round, Outcome::Did);
    }
}

#[test]
fn a_queue_that_is_full_says_how_much_of_a_list_it_took() {
    let Some(_wire) = wire("a_queue_that_is_full_says_how_much_of_a_list_it_took") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        let requests: Vec<Request> = (0..1000).map(|id| request(id, write, 1)).collect();
        let pieces = vec![pair.a.piece(0, 8); 1000];
        let failed = pair.a.queue.post(&requests, &pieces).expect_err("it has no room for a thousand");
        assert!(failed.error.to_string().contains("requests of a queue"), "{failed:?}");
        assert!(failed.posted < 1000);
        // Exactly what was taken is done.
        let names: Vec<u64> = pair.a.take(failed.posted).iter().map(|done| done.id).collect();
        assert_eq!(names, (0..failed.posted as u64).collect::<Vec<_>>());
        pair.works();
        assert!(pair.a.poll().is_empty());
    }
}

#[test]
fn workers_with_desks_of_their_own_move_bytes_at_the_same_time() {
    let Some(_wire) = wire("workers_with_desks_of_their_own_move_bytes_at_the_same_time") else { return };
    // Two cards, four desks on each, a queue on each desk.
    let mut pairs: Vec<Pair> = (0..4).map(|place| Pair::connected(POSTINGS[place % 2])).collect();
    let (a, b) = (pairs[0].a.card.clone(), pairs[0].b.card.clone());
    for pair in &mut pairs[1..] {
        pair.a = End::on(a.clone());
        pair.b = End::on(b.clone());
        pair.connect();
    }
    std::thread::scope(|scope| {
        for (seed, pair) in pairs.iter_mut().enumerate() {
            scope.spawn(move || {
                pair.b.supply(4);
                for round in 0..20_u64 {
                    let bytes = pattern(seed as u64 * 1000 + round, 200);
                    pair.a.fill(0, &bytes);
                    let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
                    let inline = Request { inline: true, signalled: false, ..request(round, write, 1) };
                    let piece = pair.a.piece(0, 200);
                    pair.a.post(&[inline, request(round, Kind::Send, 1)], &[piece, piece]);
                    // Registrations come and go beside it.
                    let other = pair.a.card.register(pair.a.memory.window(), ALL).expect("it is registered");
                    pair.a.expect(round, Outcome::Did);
                    drop(other);
                    pair.b.expect(round % 4, Outcome::Came { bytes: 200, immediate: None });
                    assert_eq!(pair.b.bytes(0, 200), bytes);
                    assert_eq!(pair.b.bytes(End::receive_at(round % 4), 200), bytes);
                    if round % 4 == 3 {
                        pair.b.supply(4);
                    }
                }
            });
        }
    });
}
