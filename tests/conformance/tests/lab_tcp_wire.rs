//! Labs: two network namespaces joined by a wire that loses, delays, damages and is cut. Transfers end in time, bytes
//! arrive as they were sent, and who comes back is taken back.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

#[path = "lab_tcp_wire/cut.rs"]
mod cut;
mod wired;
#[path = "lab_tcp_wire/workloads.rs"]
mod workloads;
