//! A peer that says what it likes: the lane ends, or goes on, and nothing lands where it may not.

use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use proptest::prelude::*;
use rustix::io::{read, write};

use super::*;
use crate::wire::{
    Asked, HEAD_BYTES, Head, PAYLOAD_BYTES_MAX, ReadRefusal, TRAILER_BYTES, Trailer, put_credit, put_data, put_done,
    put_refused, put_request,
};

/// A side, and the raw end of its stream.
fn raw() -> (Side, OwnedFd) {
    let (near, far) = pair();
    sockopt::set_socket_send_buffer_size(&far, 1 << 20).unwrap();
    rustix::io::ioctl_fionbio(&far, true).unwrap();
    let side = offer(1);
    let blob = side.offering.blob.clone();
    (join(side, &blob, vec![near]), far)
}

/// One group of these messages with this payload behind it.
fn group(control: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Head::encode(control, payload.len() as u32).to_vec();
    bytes.extend(control);
    if !payload.is_empty() {
        bytes.extend(payload);
        bytes.extend(Trailer::default().to_bytes());
    }
    bytes
}

fn request(is_write: bool, key: RegionKey, sequence: u64, extents: &[(u64, u64)]) -> Vec<u8> {
    let mut control = Vec::new();
    let asked = Asked { sequence, transfer: 1, key, revision: 0 };
    put_request(&mut control, is_write, &asked, extents.iter().copied());
    control
}

/// What the side makes of these bytes.
fn feed(side: &mut Side, far: &OwnedFd, mut bytes: &[u8]) -> Option<Cause> {
    for _ in 0..200 {
        if let Ok(sent) = write(far, bytes) {
            bytes = &bytes[sent..];
        }
        side.turn();
    }
    side.fault.map(|fault| fault.0)
}

#[test]
fn what_nobody_can_say_ends_the_lane() {
    let said = |put: &dyn Fn(&mut Vec<u8>)| {
        let mut control = Vec::new();
        put(&mut control);
        group(&control, &[])
    };
    let nobody =
        key_of(&offer(1).registry.register_host(HostMemory::from_vec(vec![0]).unwrap(), "", Rights::READ).unwrap());
    let mut trailer = group(&request(true, nobody, 1, &[(0, 8)]), &[1; 8]);
    let end = trailer.len();
    trailer[end - TRAILER_BYTES] = 2;
    let mut flipped = said(&|out| put_done(out, 0));
    flipped[HEAD_BYTES] ^= 1;
    let too_many: Vec<u8> = (1..=IN_FLIGHT_PER_LANE_MAX as u64 + 1)
        .flat_map(|sequence| group(&request(false, nobody, sequence, &[(0, 8)]), &[]))
        .collect();
    for (what, bytes) in [
        ("no group", vec![7; 64]),
        ("a broken checksum", flipped),
        ("the end of what never began", said(&|out| put_done(out, 1))),
        ("a refusal of what never began", said(&|out| put_refused(out, 1, Some(Cause::OutOfBounds), 0))),
        (
            "an answer to no question",
            said(&|out| put_data(out, 1, Err(ReadRefusal { cause: Cause::OutOfBounds, revision: 0 }))),
        ),
        (
            "an answer with bytes to no question",
            group(
                &{
                    let mut control = Vec::new();
                    put_data(&mut control, 1, Ok(8));
                    control
                },
                &[1; 8],
            ),
        ),
        ("room for what was not sent", said(&|out| put_credit(out, 1))),
        ("a number that is not the next", group(&request(true, nobody, 2, &[(0, 8)]), &[1; 8])),
        ("the first number again", [1, 1].map(|at| group(&request(true, nobody, at, &[(0, 8)]), &[1; 8])).concat()),
        ("a spoiled part that is not there", trailer),
        ("more than a window has", too_many),
        ("more payload than its messages have", group(&request(true, nobody, 1, &[(0, 8)]), &[1; 16])),
    ] {
        let (mut side, far) = raw();
        assert_eq!(feed(&mut side, &far, &bytes), Some(Cause::PeerCorrupt), "{what}");
    }
}

#[test]
fn reads_that_nobody_takes_are_bounded() {
    let (mut side, far) = raw();
    let region = side.region(vec![5; PAYLOAD_BYTES_MAX as usize], Rights::READ);
    let reads: Vec<u8> = (1..=2 * IN_FLIGHT_PER_LANE_MAX as u64)
        .flat_map(|sequence| group(&request(false, key_of(&region), sequence, &[(0, PAYLOAD_BYTES_MAX)]), &[]))
        .collect();
    assert_eq!(feed(&mut side, &far, &reads), Some(Cause::PeerCorrupt));
}

#[test]
fn a_stream_that_ends_ends_the_lane() {
    for cut in [0, 3, HEAD_BYTES, HEAD_BYTES + 20, HEAD_BYTES + 60, HEAD_BYTES + 66] {
        let (mut side, far) = raw();
        let region = side.region(vec![0; 64], Rights::WRITE);
        let bytes = group(&request(true, key_of(&region), 1, &[(0, 8)]), &[1; 8]);
        assert_eq!(feed(&mut side, &far, &bytes[..cut]), None, "cut at {cut}");
        drop(far);
        side.turn();
        side.turn();
        assert_eq!(side.fault, Some(LaneFault(Cause::PeerLost)), "cut at {cut}");
        assert!(bytes_of(&region)[8..].iter().all(|&byte| byte == 0));
    }
}

/// All that a side has answered.
fn answered(far: &OwnedFd) -> Vec<u8> {
    let (mut all, mut some) = (Vec::new(), [0; 4096]);
    while let Ok(bytes) = read(far, &mut some) {
        if bytes == 0 {
            break;
        }
        all.extend(&some[..bytes]);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_land_nowhere(bytes in prop::collection::vec(any::<u8>(), 1..3000), is_framed in any::<bool>()) {
        let (mut side, far) = raw();
        let region = side.region(vec![0; 4096], Rights::NONE);
        let bytes = if is_framed {
            let words = bytes.len() / 8 * 8;
            group(&bytes[..words], &[])
        } else {
            bytes
        };
        feed(&mut side, &far, &bytes);
        prop_assert!(bytes_of(&region).iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_request_lands_within_its_region_or_not_at_all(
        offset in prop_oneof![0u64..5000, (u64::MAX - 5000)..u64::MAX],
        len in 1u64..5000,
        generation in 0u32..2,
        region in 0u32..3,
    ) {
        let (mut side, far) = raw();
        let regions = [
            side.region(vec![0; 4096], Rights::WRITE),
            side.region(vec![0; 4096], Rights::READ),
        ];
        let key = RegionKey {
            region: penstock_core::RegionId(region),
            generation: penstock_core::Generation(regions[0].generation().0 + generation),
        };
        let bytes = group(&request(true, key, 1, &[(offset, len)]), &vec![1; len as usize]);
        let fault = feed(&mut side, &far, &bytes);
        let is_garbled = offset.checked_add(len).is_none();
        prop_assert_eq!(fault, is_garbled.then_some(Cause::PeerCorrupt));
        let is_fine = region == 0 && generation == 0 && offset.checked_add(len).is_some_and(|end| end <= 4096);
        let landed = |region: &Region| bytes_of(region).iter().filter(|&&byte| byte == 1).count() as u64;
        prop_assert_eq!(landed(&regions[0]), if is_fine { len } else { 0 });
        prop_assert_eq!(landed(&regions[1]), 0);
        prop_assert_eq!(answered(&far).is_empty(), is_garbled);
    }
}
