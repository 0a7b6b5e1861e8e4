use proptest::prelude::*;

use super::*;

fn some() -> Metadata {
    Metadata {
        engine: EngineName::new("stage-a").unwrap(),
        epoch: Epoch(7),
        op: 300,
        request: RequestId::new("cmpl-1").unwrap(),
        bytes: 1 << 20,
        parts: 2,
    }
}

#[test]
fn what_is_no_metadata_is_refused_with_the_reason() {
    let whole = some().encode();
    assert_eq!(Metadata::parse(&whole), Ok(some()));
    for cut in 0..whole.len() {
        let expected = if cut < 4 { MetadataError::Magic } else { MetadataError::Cut };
        assert_eq!(Metadata::parse(&whole[..cut]), Err(expected), "cut at {cut}");
    }
    let mut newer = whole.clone();
    newer[4] = 2;
    assert_eq!(Metadata::parse(&newer), Err(MetadataError::Version(2)));
    let mut long = whole;
    long.push(0);
    assert_eq!(Metadata::parse(&long), Err(MetadataError::Trailing(1)));
    assert_eq!(Metadata::parse(&[b'P'; 513]), Err(MetadataError::TooLong(513)));
    let none = Metadata { parts: 0, ..some() };
    assert_eq!(Metadata::parse(&none.encode()), Err(MetadataError::Impossible("number of parts")));
    let hidden: Vec<u8> = some().encode().iter().map(|&byte| if byte == b's' { b'/' } else { byte }).collect();
    assert_eq!(Metadata::parse(&hidden), Err(MetadataError::Impossible("name of an engine")));
}

proptest! {
    #[test]
    fn every_metadata_reads_as_it_is_written_and_is_small(
        engine in "[a-z0-9_-]{1,64}", epoch: u64, op: u64, request in "[!-~]{1,256}", bytes: u64, parts in 1u32..,
    ) {
        let (engine, request) = (EngineName::new(&engine).unwrap(), RequestId::new(&request).unwrap());
        let metadata = Metadata { engine, epoch: Epoch(epoch), op, request, bytes, parts };
        let written = metadata.encode();
        prop_assert!(written.len() <= METADATA_BYTES_MAX);
        prop_assert_eq!(Metadata::parse(&written), Ok(metadata));
    }

    #[test]
    fn any_bytes_give_metadata_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Metadata::parse(&bytes);
        let mut begun = MAGIC.to_vec();
        begun.push(VERSION);
        begun.extend(bytes);
        let _ = Metadata::parse(&begun);
    }
}
