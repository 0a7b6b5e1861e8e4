//! One target of `penstock-fuzz`, named by `PENSTOCK_FUZZ_TARGET`, under libFuzzer.
//!
//! The functions are those that `make test` replays: what is found here is put into the target's corpus by hand
//! and is replayed there from then on.

#![no_main]
#![deny(unsafe_code)]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use penstock_fuzz::{TARGETS, Target};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("PENSTOCK_FUZZ_TARGET").unwrap_or_default();
        TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            panic!("`{name}` is not a target; PENSTOCK_FUZZ_TARGET is one of {}", names.join(", "))
        })
    })
}

fuzz_target!(init: { target(); }, |bytes: &[u8]| {
    (target().run)(bytes);
});
