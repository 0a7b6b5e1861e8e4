//! The scripts of the stream target do what they are there for: variations of what does nothing find nothing.

use penstock_core::Cause;
use penstock_fuzz::corpus;
use penstock_fuzz::targets::stream::{Outcome, play};

fn outcome(name: &str) -> Outcome {
    let made = corpus::made().into_iter().find(|entry| entry.target == "stream" && entry.name == format!("{name}.bin"));
    play(&made.expect("the corpus has this script").bytes)
}

const NOTHING: Outcome = Outcome { fault: None, written: 0, read: 0, notes: 0, ended: (0, 0) };

#[test]
fn the_scripts_reach_what_they_are_for() {
    let corrupt = Outcome { fault: Some(Cause::PeerCorrupt), ..NOTHING };
    let asked = Outcome { written: 1000, notes: 1, ..NOTHING };
    for (name, expected) in [
        ("asked", asked),
        ("asked-byte-by-byte", asked),
        ("asked-in-pieces", asked),
        ("forbidden", NOTHING),
        ("withdrawn", NOTHING),
        ("too-many", corrupt),
        ("answers", Outcome { read: 500, ended: (3, 0), ..NOTHING }),
        ("refusals", Outcome { ended: (0, 3), ..NOTHING }),
        ("given-up", Outcome { ended: (0, 1), ..NOTHING }),
        ("own-side-withdrawn", Outcome { ended: (0, 1), ..NOTHING }),
        ("answer-of-another-length", corrupt),
        ("answered-twice", Outcome { read: 500, ended: (1, 0), ..corrupt }),
        ("spoiled", Outcome { written: 18, ..NOTHING }),
        ("spoiled-nothing", Outcome { written: 9, ..corrupt }),
        ("hung-up-later", Outcome { fault: Some(Cause::PeerLost), ..asked }),
        ("raw", corrupt),
        ("done-early", Outcome { ended: (1, 0), ..corrupt }),
    ] {
        assert_eq!(outcome(name), expected, "{name}");
    }
}
