//! Hostile bytes: what they are thrown at, where they come from, and how they are varied.
//!
//! Everything that another process can write is a target: frames, cards, records, rings, owner state. A
//! target is a plain function of bytes that panics when a promise is broken, so that the replay in
//! `make test` and a coverage-guided fuzzer call the very same code.
//!
//! - [`targets`]: the functions and what each promises
//! - [`corpus`]: the small files the variations start from, committed under `corpus/`
//! - [`vary`]: seeded variations of them
//!
//! `make fuzz` is that fuzzer: it lives in `fuzz/`, outside the workspace, because only it needs a C++ compiler.
//!
//! After a change of a format, `cargo run -p penstock-fuzz --bin make-corpus` writes the files anew.
//! Inputs that once broke something are put beside them by hand and stay.

#![forbid(unsafe_code)]

pub mod corpus;
pub mod targets;
pub mod vary;

pub use targets::{TARGETS, Target};
pub use vary::Variations;
