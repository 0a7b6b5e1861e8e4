//! Every target against its corpus and seeded variations of it.
//!
//! `PENSTOCK_FUZZ_ROUNDS` multiplies the rounds, for a longer look.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use penstock_fuzz::{TARGETS, Target, Variations, corpus};

/// Counts what the calling thread holds.
struct Counting;

thread_local! {
    // Neither has a destructor, so both are there whenever the allocator is called.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    MOST.set(MOST.get().max(held));
}

// SAFETY: everything is left to the system's allocator; counting allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps this function's contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `body` held at once at most, beyond what was held before.
fn most_held(body: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    body();
    (MOST.get() - before) as usize
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("the name is one of the table")
}

fn rounds(usual: u64) -> u64 {
    let factor = std::env::var("PENSTOCK_FUZZ_ROUNDS").ok().map(|text| text.parse::<u64>().unwrap());
    usual * factor.unwrap_or(1)
}

fn throw(target: &Target, input: &[u8], what: &str) {
    let thrown = catch_unwind(AssertUnwindSafe(|| {
        (target.run)(input);
        let Some(parse) = target.parse else { return };
        let (most, allowed) = (most_held(|| parse(input)), target.bytes + target.bytes_per_byte * input.len());
        assert!(most <= allowed, "{most} bytes were held for an input of {}, {allowed} are allowed", input.len());
    }));
    if thrown.is_err() {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        let folder = corpus::folder(target.name);
        panic!("target `{}`, {what}: keep this input in {}:\n{hex}", target.name, folder.display());
    }
}

fn replay(name: &str, usual_rounds: u64) {
    let target = target(name);
    let inputs = corpus::read(name).unwrap();
    assert!(!inputs.is_empty(), "the corpus of `{name}` is empty");
    throw(target, &[], "nothing");
    for (place, input) in inputs.iter().enumerate() {
        throw(target, input, &format!("file {place}"));
    }
    const SEED: u64 = 1;
    let mut variations = Variations::of(&inputs, SEED);
    for round in 0..rounds(usual_rounds) {
        throw(target, &variations.next_input(), &format!("round {round} of seed {SEED}"));
    }
}

#[test]
fn frames() {
    replay("frame", 50_000);
}

#[test]
fn cards() {
    replay("card", 80_000);
}

#[test]
fn records() {
    replay("record", 100_000);
}

#[test]
fn rings() {
    replay("ring", 10_000);
}

#[test]
fn owner_state() {
    replay("owner_state", 60_000);
}

#[test]
fn openings() {
    replay("opening", 100_000);
}

#[test]
fn channels() {
    replay("channel", 5_000);
}

#[test]
fn secrets() {
    replay("secret", 80_000);
}

#[test]
fn directories() {
    replay("directory", 20_000);
}

#[test]
fn offers() {
    replay("offer", 50_000);
}

#[test]
fn paths() {
    replay("path", 10_000);
}

#[test]
fn questions() {
    replay("question", 50_000);
}

#[test]
fn control_blocks() {
    replay("wire", 50_000);
}

#[test]
fn rails() {
    replay("rail", 50_000);
}

#[test]
fn streams() {
    replay("stream", 1_500);
}

#[test]
fn landings() {
    replay("landing", 100_000);
}

#[test]
fn schemas() {
    replay("schema", 50_000);
}

#[test]
fn metadata() {
    replay("metadata", 100_000);
}

#[test]
fn datagram() {
    replay("datagram", 60_000);
}

#[test]
fn the_corpus_is_what_this_release_makes() {
    for entry in corpus::made() {
        let found = std::fs::read(entry.path()).unwrap_or_default();
        assert!(
            found == entry.bytes,
            "{} is not what this release makes: run `cargo run -p penstock-fuzz --bin make-corpus`",
            entry.path().display()
        );
    }
}

#[test]
fn every_target_has_a_corpus_and_a_replay() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let inside = ["frame", "card", "record", "ring", "owner_state"];
    let between_hosts = ["opening", "channel", "secret", "directory"];
    let of_transports = ["offer", "datagram", "path", "question", "wire", "rail", "stream"];
    assert_eq!(names, [inside.as_slice(), &between_hosts, &of_transports, &["landing", "schema", "metadata"]].concat());
}

#[test]
fn a_broken_promise_is_noticed() {
    fn picky(input: &[u8]) {
        assert!(input.is_empty(), "not empty");
    }
    fn greedy(_input: &[u8]) {
        drop(std::hint::black_box(vec![0u8; 1 << 20]));
    }
    let picky = Target { name: "picky", run: picky, parse: None, bytes_per_byte: 0, bytes: 4096 };
    let greedy = Target { name: "greedy", run: |_| {}, parse: Some(greedy), bytes_per_byte: 1, bytes: 4096 };
    assert!(catch_unwind(|| throw(&picky, b"x", "a test")).is_err());
    assert!(catch_unwind(|| throw(&greedy, b"x", "a test")).is_err());
}
