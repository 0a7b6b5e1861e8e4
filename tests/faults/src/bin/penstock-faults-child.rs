//! The other processes of the tests, each in the role that its first argument names.

#![forbid(unsafe_code)]

use std::path::Path;

use penstock_faults::{bystanders, frozen, owner, pullers, pushers, reader, storm};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["sleep", folder, name] => bystanders::sleep_among_peers(Path::new(folder), name),
        ["receive", folder, card] => bystanders::receive(Path::new(folder), card),
        ["own", folder, name] => owner::own(Path::new(folder), name),
        ["read", folder, name, card, berth] => reader::read(Path::new(folder), name, card, berth),
        ["pull", folder, name, transport, card] => pullers::read(Path::new(folder), name, transport, card),
        ["push", folder, name, transport] => pushers::push(Path::new(folder), name, transport),
        ["storm", folder, card] => storm::apart::serve(Path::new(folder), card),
        ["write", folder, name, card] => frozen::write_again_and_again(Path::new(folder), name, card),
        _ => panic!("no such role: {words:?}; the tests of this crate start this program"),
    }
}
