//! Labs: the command between two hosts, which are network namespaces joined by a wire.

#[path = "../command/run.rs"]
mod run;

mod ends;
mod examples;
mod reach;
mod stage;
mod words;
