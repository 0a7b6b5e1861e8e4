//! The text of a directory.

use penstock_session::Directory;
use penstock_session::directory::{DIRECTORY_BYTES_MAX, DIRECTORY_ENTRIES_MAX};

/// Any text is a directory or a typed error. What was read finds each of its engines, and says the same when it
/// is written anew.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let Ok(directory) = Directory::parse(&text) else { return };
    assert!(directory.len() <= DIRECTORY_ENTRIES_MAX && text.len() <= DIRECTORY_BYTES_MAX);
    let mut again = String::new();
    for (name, addresses) in directory.entries() {
        assert!(!addresses.is_empty());
        assert_eq!(directory.find(name.as_str()), Some(addresses));
        again += &format!("{name} {}\n", addresses.join(","));
    }
    assert_eq!(Directory::parse(&again).as_ref(), Ok(&directory), "a directory changes on its way");
}

/// Reads one text.
pub fn parse(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        drop(Directory::parse(text));
    }
}
