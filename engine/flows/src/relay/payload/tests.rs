use proptest::prelude::*;

use super::*;

fn item<'a>(path: &'a str, shape: &'a [u64], dtype: Dtype) -> PayloadItem<'a> {
    PayloadItem { path, shape, dtype }
}

#[test]
fn items_stand_one_behind_the_other_at_multiples_of_64() {
    let schema = Schema::pack(&[
        item("data.ids", &[3], Dtype::I32),
        item("data.hidden", &[2, 33], Dtype::Bf16),
        item("data.none", &[0, u64::MAX, u64::MAX], Dtype::F64),
        item("data.scale", &[], Dtype::F32),
    ])
    .unwrap();
    let places: Vec<(u64, u64)> = schema.fields().iter().map(|field| (field.offset, field.bytes)).collect();
    assert_eq!(places, [(0, 12), (64, 132), (256, 0), (256, 4)]);
    assert_eq!(schema.bytes(), 260);
    assert_eq!(schema.find("data.scale").unwrap().offset, 256);
    assert_eq!(Schema::parse(&schema.encode()), Ok(schema));
}

#[test]
fn what_cannot_be_packed_is_refused_with_the_reason() {
    let refused = |items: &[PayloadItem<'_>]| Schema::pack(items).unwrap_err();
    let byte = item("a", &[1], Dtype::U8);
    assert_eq!(refused(&[byte, byte]), PayloadError::Twice("a".to_owned()));
    assert_eq!(refused(&vec![byte; 1025]), PayloadError::Items(1025));
    assert_eq!(refused(&[item("a", &[u64::MAX, 2], Dtype::U8)]), PayloadError::TooLarge(0));
    assert_eq!(refused(&[item("a", &[u64::MAX], Dtype::U8), item("b", &[1], Dtype::U8)]), PayloadError::TooLarge(1));
    assert_eq!(refused(&[item("a", &[1; 17], Dtype::U8)]), PayloadError::Dimensions { item: 0, dimensions: 17 });
    let long = "a".repeat(257);
    assert_eq!(refused(&[item(&long, &[1], Dtype::U8)]), PayloadError::Path { item: 0, bytes: 257 });
    let paths: Vec<String> = (0..300).map(|number| format!("{number:0256}")).collect();
    let many: Vec<PayloadItem<'_>> = paths.iter().map(|path| item(path, &[1], Dtype::U8)).collect();
    assert!(matches!(refused(&many), PayloadError::TooLong(bytes) if bytes > SCHEMA_BYTES_MAX));
}

#[test]
fn what_another_has_written_is_believed_only_as_far_as_it_adds_up() {
    let schema = Schema::pack(&[item("a", &[3], Dtype::U8), item("b", &[2], Dtype::U16)]).unwrap();
    let whole = schema.encode();
    for cut in 0..whole.len() {
        assert!(matches!(Schema::parse(&whole[..cut]), Err(PayloadError::Cut(_))), "cut at {cut}");
    }
    let mut long = whole.clone();
    long.push(0);
    assert_eq!(Schema::parse(&long), Err(PayloadError::Trailing(1)));
    let mut newer = whole.clone();
    newer[0] = 2;
    assert_eq!(Schema::parse(&newer), Err(PayloadError::Version(2)));
    // The second item is moved onto the first one.
    let mut moved = schema.clone();
    moved.fields[1].offset = 0;
    let (said, found) = (Stretch { offset: 0, bytes: 4 }, Stretch { offset: 64, bytes: 4 });
    assert_eq!(Schema::parse(&moved.encode()), Err(PayloadError::Place { item: 1, said, found }));
    let mut large = schema.clone();
    large.fields[1].bytes = 5;
    assert!(matches!(Schema::parse(&large.encode()), Err(PayloadError::Place { item: 1, .. })));
    let mut unknown = whole;
    let place = unknown.iter().position(|&byte| byte == b'a').unwrap() + 1;
    unknown[place] = 16;
    assert_eq!(Schema::parse(&unknown), Err(PayloadError::Dtype { item: 0, number: 16 }));
}

#[test]
fn types_have_the_numbers_of_their_places() {
    for (place, dtype) in Dtype::ALL.into_iter().enumerate() {
        assert_eq!(dtype as usize, place);
    }
}

fn shapes() -> impl Strategy<Value = Vec<(String, Vec<u64>, usize)>> {
    prop::collection::vec(("[a-z.]{0,12}", prop::collection::vec(0u64..70, 0..5), 0usize..16), 0..20)
}

proptest! {
    #[test]
    fn every_schema_reads_as_it_is_written_and_no_items_overlap(items in shapes()) {
        let items: Vec<PayloadItem<'_>> =
            items.iter().map(|(path, shape, dtype)| item(path, shape, Dtype::ALL[*dtype])).collect();
        let Ok(schema) = Schema::pack(&items) else { return Ok(()) };
        let read = Schema::parse(&schema.encode());
        prop_assert_eq!(read.as_ref(), Ok(&schema));
        let mut end = 0;
        for field in schema.fields() {
            prop_assert!(field.offset >= end && field.offset % ITEM_ALIGN == 0 && field.offset < end + ITEM_ALIGN);
            end = field.offset + field.bytes;
        }
        prop_assert_eq!(schema.bytes(), end);
    }

    #[test]
    fn any_bytes_give_a_schema_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Schema::parse(&bytes);
        let mut begun = vec![VERSION];
        begun.extend(bytes);
        if let Ok(schema) = Schema::parse(&begun) {
            prop_assert!(schema.fields().len() <= begun.len());
        }
    }

    #[test]
    fn a_changed_byte_gives_another_schema_or_a_reason(items in shapes(), at: prop::sample::Index, byte: u8) {
        let items: Vec<PayloadItem<'_>> =
            items.iter().map(|(path, shape, dtype)| item(path, shape, Dtype::ALL[*dtype])).collect();
        let Ok(schema) = Schema::pack(&items) else { return Ok(()) };
        let mut bytes = schema.encode();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        prop_assert_ne!(Schema::parse(&bytes), Ok(schema));
    }
}
