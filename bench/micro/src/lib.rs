//! The engine's smallest parts, each in a loop of its own.
//!
//! - [`bench`]: what a micro-bench is, and how its time is taken; [`cases`]: all of them
//! - [`pair`]: two inline engines of one thread, connected
//! - [`scatter`]: orders that are the same in every run
//! - [`hot`]: the hot path and nothing else, for a tool that counts instructions

#![forbid(unsafe_code)]

pub mod bench;
pub mod cases;
pub mod hot;
pub mod pair;
pub mod scatter;

/// Why something could not be set up.
pub type Refusal = Box<dyn std::error::Error + Send + Sync>;
