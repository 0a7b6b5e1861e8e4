use super::*;
use crate::descriptor::EngineDescriptor;

fn parse(text: &str) -> Result<Directory, DirectoryError> {
    Directory::parse(text)
}

#[test]
fn a_line_says_where_an_engine_is() {
    let text = "# prefill\nprefill-0 10.0.0.7:4711,[2001:db8::7]:1\n\n  decode-0\t decode-0.lab:65535 # new\r\n";
    let directory = parse(text).unwrap();
    assert_eq!(directory.find("prefill-0").unwrap(), ["10.0.0.7:4711", "[2001:db8::7]:1"]);
    assert_eq!(directory.find("decode-0").unwrap(), ["decode-0.lab:65535"]);
    assert_eq!(directory.find("decode-1"), None);
    assert_eq!(directory.find("not a name"), None);
    let names: Vec<&str> = directory.entries().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, directory.len()), (vec!["decode-0", "prefill-0"], 2));
    assert!(parse("").unwrap().is_empty());
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let wrong = |text: &str| parse(text).unwrap_err();
    let twice = DirectoryError::Twice { line: 3, first: 1, name: "a".to_owned() };
    assert_eq!(wrong("a h:1\nb h:1\na h:2"), twice);
    assert_eq!(wrong("#\na"), DirectoryError::Shape(2));
    assert_eq!(wrong("a h:1, h:2"), DirectoryError::Shape(1));
    assert!(matches!(wrong("\n../up h:1"), DirectoryError::Name { line: 2, .. }));
    assert_eq!(wrong(&"x".repeat(DIRECTORY_BYTES_MAX + 1)), DirectoryError::TooLong(DIRECTORY_BYTES_MAX + 1));
    let many = format!("a {}h:1", "h:1,".repeat(ADDRESSES_MAX));
    assert_eq!(wrong(&many), DirectoryError::TooManyAddresses { line: 1, found: ADDRESSES_MAX + 1 });
    for address in ["h", "h:", ":1", "h:0", "h:65536", "h:+1", "::1:1", "[::1]", "[::1]:0", "[h]:1", "h/x:1", "ö:1"] {
        assert_eq!(wrong(&format!("a ok:1,{address}")), DirectoryError::Address { line: 1, place: 2 }, "{address}");
    }
    assert_eq!(wrong("a h:1,,h:2"), DirectoryError::Address { line: 1, place: 2 });
}

#[test]
fn a_directory_has_so_many_engines_and_no_more() {
    let lines = |count: usize| -> String { (0..count).map(|number| format!("n{number} h:1\n")).collect() };
    assert_eq!(parse(&lines(DIRECTORY_ENTRIES_MAX)).unwrap().len(), DIRECTORY_ENTRIES_MAX);
    let over = DIRECTORY_ENTRIES_MAX + 1;
    assert_eq!(parse(&lines(over)), Err(DirectoryError::TooManyEntries(over)));
}

fn card(name: &str, epoch: u64) -> EngineDescriptor {
    EngineDescriptor {
        name: name.to_owned(),
        epoch,
        host: 1,
        socket: String::new(),
        addresses: vec!["10.0.0.7:4711".to_owned()],
    }
}

#[test]
fn an_engines_own_word_counts_more_than_what_others_say() {
    let mut book = PeerBook::new();
    assert_eq!(book.learn_hearsay(card("a", 1)), Learned::New);
    assert_eq!(book.learn_hearsay(card("a", 2)), Learned::New, "the last word counts among equals");
    assert_eq!(book.learn_own(card("a", 3)), Learned::New);
    assert_eq!(book.learn_hearsay(card("a", 2)), Learned::Outdone);
    assert_eq!(book.learn_hearsay(card("a", 3)), Learned::Known);
    assert_eq!(book.find("a").unwrap().epoch, 3);
    assert_eq!(book.learn_own(card("a", 4)), Learned::New, "it was started anew");
    book.forget_own("a", 3);
    assert_eq!(book.learn_hearsay(card("a", 2)), Learned::Outdone, "another epoch ended");
    book.forget_own("a", 4);
    assert_eq!(book.find("a").unwrap().epoch, 4, "it is still the best guess");
    assert_eq!(book.learn_hearsay(card("a", 5)), Learned::New);
    assert_eq!(book.find("a").unwrap().epoch, 5);
}

#[test]
fn only_what_engines_said_themselves_is_told_further() {
    let mut book = PeerBook::new();
    book.learn_own(card("a", 1));
    book.learn_own(card("b", 2));
    book.learn_hearsay(card("c", 3));
    assert_eq!(book.to_tell("a"), [card("b", 2)]);
    assert_eq!(book.to_tell("nobody"), [card("a", 1), card("b", 2)]);
    book.forget_own("b", 2);
    assert_eq!(book.to_tell("a"), []);
    assert_eq!(book.len(), 3);
}

#[test]
fn what_no_engine_could_be_is_not_kept() {
    let mut book = PeerBook::new();
    assert_eq!(book.learn_own(card("../up", 1)), Learned::Unusable);
    let lost = EngineDescriptor { addresses: vec!["nowhere".to_owned()], ..card("a", 1) };
    assert_eq!(book.learn_hearsay(lost), Learned::Unusable);
    assert!(book.is_empty());
}

#[test]
fn a_full_book_keeps_what_engines_say_themselves() {
    let mut book = PeerBook::new();
    for number in 0..PEERS_KEPT_MAX {
        assert_eq!(book.learn_hearsay(card(&format!("h{number}"), 1)), Learned::New);
    }
    assert_eq!(book.learn_hearsay(card("late", 1)), Learned::Full);
    assert_eq!(book.learn_own(card("late", 1)), Learned::New);
    assert_eq!((book.find("h0"), book.len()), (None, PEERS_KEPT_MAX));
    for number in 1..PEERS_KEPT_MAX {
        assert_eq!(book.learn_own(card(&format!("h{number}"), 1)), Learned::Known);
    }
    assert_eq!(book.learn_own(card("later", 1)), Learned::Full);
}
