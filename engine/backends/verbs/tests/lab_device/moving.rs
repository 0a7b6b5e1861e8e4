//! Bytes move, in every way that requests have.

use std::time::Duration;

use penstock_verbs::adapter::{Adapter, Opcode, SendRequest, Wc};

use crate::ends::{ALL, End, POSTINGS, Pair, assert_sent, pattern, request, sent, wire};

#[test]
fn writes_reads_and_messages_cross_the_wire_in_both_ways_of_posting() {
    let Some(_wire) = wire("writes_reads_and_messages_cross_the_wire_in_both_ways_of_posting") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let before = sent();
        let bulk = pattern(1, 256 << 10);
        pair.a.fill(0, &bulk);
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let whole = pair.a.sge(0, bulk.len() as u32);
        pair.a.post(&[request(1, write, 1)], &[whole]);
        pair.a.expect(1, Wc::Send);
        assert_eq!(pair.b.bytes(0, bulk.len()), bulk);
        assert_sent(before, bulk.len() as u64);

        let other = pattern(2, 128 << 10);
        pair.b.fill(0, &other);
        let read = Opcode::Read { address: pair.b.address(0), key: pair.b.key() };
        let place = pair.a.sge(300_000, other.len() as u32);
        pair.a.post(&[request(2, read, 1)], &[place]);
        pair.a.expect(2, Wc::Send);
        assert_eq!(pair.a.bytes(300_000, other.len()), other);

        pair.b.supply(4);
        let message = pattern(3, 5000);
        pair.a.fill(0, &message);
        let sge = pair.a.sge(0, message.len() as u32);
        pair.a.post(&[request(3, Opcode::Send, 1)], &[sge]);
        pair.a.expect(3, Wc::Send);
        pair.b.expect(0, Wc::Recv { bytes: 5000, immediate: None });
        assert_eq!(pair.b.bytes(End::receive_at(0), 5000), message);

        let tell = |immediate| Opcode::WriteWithImm { address: pair.b.address(0), key: pair.b.key(), immediate };
        let (with_bytes, without) = (tell(0x0102_0304), Opcode::WriteWithImm { address: 0, key: 0, immediate: 7 });
        pair.a.post(&[request(4, with_bytes, 1), request(5, without, 0)], &[sge]);
        pair.a.expect(4, Wc::Send);
        pair.a.expect(5, Wc::Send);
        pair.b.expect(1, Wc::Recv { bytes: 0, immediate: Some(0x0102_0304) });
        pair.b.expect(2, Wc::Recv { bytes: 0, immediate: Some(7) });
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
        let requests: Vec<SendRequest> = (0..32)
            .map(|place| SendRequest {
                signalled: place == 31,
                ..request(place, Opcode::Write { address: pair.b.address(place * 1000), key: pair.b.key() }, 1)
            })
            .collect();
        let sges: Vec<_> = (0..32).map(|place| pair.a.sge(place * 1000, 1000)).collect();
        pair.a.post(&requests, &sges);
        pair.a.expect(31, Wc::Send);
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
        let sges: Vec<_> = (0..30_u64).map(|place| pair.a.sge((29 - place) * 4096, 500)).collect();
        for (place, part) in bytes.chunks(500).enumerate() {
            pair.a.fill((29 - place as u64) * 4096, part);
        }
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        pair.a.post(&[request(1, write, 30)], &sges);
        pair.a.expect(1, Wc::Send);
        assert_eq!(pair.b.bytes(0, bytes.len()), bytes);

        let back = pattern(6, 30 * 500);
        pair.b.fill(0, &back);
        let read = Opcode::Read { address: pair.b.address(0), key: pair.b.key() };
        pair.a.post(&[request(2, read, 30)], &sges);
        pair.a.expect(2, Wc::Send);
        for (place, part) in back.chunks(500).enumerate() {
            assert_eq!(pair.a.bytes((29 - place as u64) * 4096, 500), part);
        }

        let too_many = pair.a.attr().sges_max + 1;
        let sges = vec![pair.a.sge(0, 1); too_many];
        let failed = pair.a.queue.post(&[request(3, write, too_many as u32)], &sges).expect_err("too many");
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
            let mut sges: Vec<_> =
                lengths.iter().enumerate().map(|(place, &len)| pair.a.sge(source(place), len)).collect();
            let single = pair.a.sge(0, 700);
            let count = lengths.len() as u32;
            let (address, key) = (pair.b.address(0), pair.b.key());
            let beside = request(1, Opcode::Write { address: pair.b.address(200_000), key }, 1);
            let immediate = number as u32;
            let kinds =
                [Opcode::Write { address, key }, Opcode::WriteWithImm { address, key, immediate }, Opcode::Send];
            for (seed, kind) in (100 + 10 * number..).zip(kinds) {
                let (bytes, whole) = (pattern(seed, total as usize), pattern(seed, 700));
                for (place, (at, len)) in places().enumerate() {
                    pair.a.fill(source(place), &bytes[at..at + len]);
                }
                pair.a.fill(0, &whole);
                pair.b.fill(0, &vec![0; total as usize]);
                sges.insert(0, single);
                pair.a.post(&[beside, request(2, kind, count)], &sges);
                sges.remove(0);
                pair.a.expect(1, Wc::Send);
                pair.a.expect(2, Wc::Send);
                let landed = match kind {
                    Opcode::Send => {
                        let receive = 2 * number + 1;
                        pair.b.expect(receive, Wc::Recv { bytes: total, immediate: None });
                        End::receive_at(receive)
                    }
                    Opcode::WriteWithImm { .. } => {
                        pair.b.expect(2 * number, Wc::Recv { bytes: 0, immediate: Some(immediate) });
                        0
                    }
                    Opcode::Write { .. } | Opcode::Read { .. } => 0,
                };
                assert!(pair.b.bytes(landed, total as usize) == bytes, "{posting:?}, {kind:?}, {lengths:?}");
                assert_eq!(pair.b.bytes(200_000, 700), whole);
            }
            let back = pattern(200 + number, total as usize);
            pair.b.fill(0, &back);
            pair.a.post(&[request(3, Opcode::Read { address, key }, count)], &sges);
            pair.a.expect(3, Wc::Send);
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
        let most = pair.a.attr().inline_max;
        assert!(most >= 64);
        let bytes = pattern(7, most);
        pair.a.fill(0, &bytes);
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let inline = |id, sges| SendRequest { inline: true, ..request(id, write, sges) };
        let half = most as u32 / 2;
        let whole = [pair.a.sge(0, most as u32)];
        let halves = [pair.a.sge(0, half), pair.a.sge(u64::from(half), most as u32 - half)];
        for sges in [&whole[..], &halves] {
            pair.a.fill(0, &bytes);
            pair.b.fill(0, &vec![0; most]);
            pair.a.post(&[inline(1, sges.len() as u32)], sges);
            pair.a.fill(0, &vec![0xee; most]);
            pair.a.expect(1, Wc::Send);
            assert_eq!(pair.b.bytes(0, most), bytes);
        }
        // A message too, and one with nothing in it.
        pair.b.supply(2);
        pair.a.fill(0, &bytes);
        let send = |id, sges| SendRequest { inline: true, ..request(id, Opcode::Send, sges) };
        pair.a.post(&[send(2, 1), send(3, 0)], &whole);
        pair.a.fill(0, &vec![0xee; most]);
        pair.a.expect(2, Wc::Send);
        pair.a.expect(3, Wc::Send);
        pair.b.expect(0, Wc::Recv { bytes: most as u32, immediate: None });
        pair.b.expect(1, Wc::Recv { bytes: 0, immediate: None });
        assert_eq!(pair.b.bytes(End::receive_at(0), most), bytes);

        let long = pair.a.sge(0, most as u32 + 1);
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
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let inline = SendRequest { inline: true, ..request(1, write, 1) };
        let good = pair.a.sge(0, 16);
        for bad in [
            penstock_verbs::adapter::Sge { address: 16, ..good },
            penstock_verbs::adapter::Sge { key: good.key ^ 0x00ff_ff00, ..good },
            penstock_verbs::adapter::Sge { address: good.address + crate::ends::BYTES as u64 - 8, ..good },
            penstock_verbs::adapter::Sge { address: u64::MAX - 4, ..good },
        ] {
            let failed = pair.a.queue.post(&[inline], &[bad]).expect_err("not its memory");
            assert_eq!(failed.posted, 0);
        }
        pair.a.post(&[inline], &[good]);
        pair.a.expect(1, Wc::Send);
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
        pair.b.cq.arm().expect("it is armed");
        assert!(pair.b.poll().is_empty());
        assert!(!End::is_woken(&pair.b.cq.descriptor(), Duration::from_millis(50)), "nothing has come yet");
        let sge = pair.a.sge(0, 8);
        pair.a.post(&[request(round, Opcode::Send, 1)], &[sge]);
        assert!(End::is_woken(&pair.b.cq.descriptor(), Duration::from_secs(10)), "it wakes, round {round}");
        pair.b.expect(round, Wc::Recv { bytes: 8, immediate: None });
        pair.a.expect(round, Wc::Send);
    }
}

#[test]
fn a_queue_that_is_full_says_how_much_of_a_list_it_took() {
    let Some(_wire) = wire("a_queue_that_is_full_says_how_much_of_a_list_it_took") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let requests: Vec<SendRequest> = (0..1000).map(|id| request(id, write, 1)).collect();
        let sges = vec![pair.a.sge(0, 8); 1000];
        let failed = pair.a.queue.post(&requests, &sges).expect_err("it has no room for a thousand");
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
    // Two adapters, four CQs on each, a queue on each CQ.
    let mut pairs: Vec<Pair> = (0..4).map(|place| Pair::connected(POSTINGS[place % 2])).collect();
    let (a, b) = (pairs[0].a.adapter.clone(), pairs[0].b.adapter.clone());
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
                    let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
                    let inline = SendRequest { inline: true, signalled: false, ..request(round, write, 1) };
                    let sge = pair.a.sge(0, 200);
                    pair.a.post(&[inline, request(round, Opcode::Send, 1)], &[sge, sge]);
                    // Registrations come and go beside it.
                    let other = pair.a.adapter.register(pair.a.memory.window(), ALL).expect("it is registered");
                    pair.a.expect(round, Wc::Send);
                    drop(other);
                    pair.b.expect(round % 4, Wc::Recv { bytes: 200, immediate: None });
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
