use super::*;

fn descriptor() -> EngineDescriptor {
    EngineDescriptor {
        name: "decode-0".to_owned(),
        epoch: 42,
        host: u64::MAX,
        socket: "/run/penstock/decode-0.sock".to_owned(),
        addresses: Vec::new(),
    }
}

fn at(addresses: &[&str]) -> EngineDescriptor {
    EngineDescriptor { addresses: addresses.iter().map(|&text| text.to_owned()).collect(), ..descriptor() }
}

/// Closes a changed descriptor with a checksum that fits.
fn closed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    let sum = checksum(&bytes);
    bytes.extend(sum);
    bytes
}

#[test]
fn a_card_comes_out_as_it_went_in() {
    for descriptor in [descriptor(), at(&["10.0.0.7:4711"]), at(&["[fe80::1%3]:1", "[::]:65535", "127.0.0.1:0"])] {
        assert_eq!(EngineDescriptor::decode(&descriptor.encode()), Ok(descriptor));
    }
}

#[test]
fn a_card_is_written_in_the_lowest_version_that_can_say_it() {
    assert_eq!(descriptor().encode()[4..6], [1, 0]);
    assert_eq!(at(&["10.0.0.7:4711"]).encode()[4..6], [2, 0]);
}

#[test]
fn addresses_are_checked() {
    let wrong = |addresses: &[&str]| EngineDescriptor::decode(&at(addresses).encode()).unwrap_err();
    assert_eq!(wrong(&["host:1"]), DescriptorError::Address(0), "names are looked up by nobody");
    assert_eq!(wrong(&["10.0.0.1:1", "10.0.0.1"]), DescriptorError::Address(1));
    assert_eq!(wrong(&["::1:80:x"]), DescriptorError::Address(0));
    assert_eq!(wrong(&[&format!("[::1]:{}80", "0".repeat(64))]), DescriptorError::Address(0));
    assert_eq!(wrong(&["1.1.1.1:1"; 17]), DescriptorError::TooManyAddresses(17));
    assert!(EngineDescriptor::decode(&at(&["1.1.1.1:1"; 16]).encode()).is_ok());
}

#[test]
fn what_is_not_a_card_is_told_from_a_damaged_one() {
    let bytes = descriptor().encode();
    assert_eq!(EngineDescriptor::decode(b""), Err(DescriptorError::NotACard));
    assert_eq!(EngineDescriptor::decode(b"PNSK and so on, and so on"), Err(DescriptorError::NotACard));
    assert_eq!(EngineDescriptor::decode(&bytes[..13]), Err(DescriptorError::NotACard), "too short for any card");
    assert_eq!(EngineDescriptor::decode(&bytes[..bytes.len() - 1]), Err(DescriptorError::Damaged));
    assert_eq!(EngineDescriptor::decode(&[bytes.as_slice(), b"\0"].concat()), Err(DescriptorError::Damaged));
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = at(&["10.0.0.7:4711"]).encode();
    for place in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[place / 8] ^= 1 << (place % 8);
        assert!(EngineDescriptor::decode(&flipped).is_err(), "bit {place}");
    }
}

#[test]
fn another_version_is_named() {
    for version in [0, 3] {
        let mut bytes = descriptor().encode();
        bytes[4] = version;
        assert_eq!(EngineDescriptor::decode(&closed(bytes)), Err(DescriptorError::Version(version.into())));
    }
}

#[test]
fn a_body_of_the_other_version_is_refused() {
    for (descriptor, version) in [(descriptor(), 2), (at(&["10.0.0.7:4711"]), 1)] {
        let mut bytes = descriptor.encode();
        bytes[4] = version;
        assert_eq!(EngineDescriptor::decode(&closed(bytes)), Err(DescriptorError::Damaged));
    }
}

#[test]
fn a_right_checksum_does_not_excuse_a_wrong_body() {
    let mut bytes = descriptor().encode();
    bytes[6] = 0xff;
    assert_eq!(EngineDescriptor::decode(&closed(bytes)), Err(DescriptorError::Damaged), "a name longer than the card");
    let mut bytes = descriptor().encode();
    bytes.insert(6 + 30, b'x');
    assert!(EngineDescriptor::decode(&closed(bytes)).is_err(), "more than a card");
}

#[test]
fn a_card_longer_than_allowed_is_refused_unread() {
    let long = EngineDescriptor { socket: "s".repeat(DESCRIPTOR_BYTES_MAX), ..descriptor() }.encode();
    assert_eq!(EngineDescriptor::decode(&long), Err(DescriptorError::NotACard));
}
