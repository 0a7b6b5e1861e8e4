//! Labs: datagrams between two network namespaces joined by a wire that loses, delays, doubles, damages, lets no UDP pass and
//! is cut, and over loopback beside somebody who floods the port. Transfers end in time, bytes arrive as they were sent, and every
//! end has its cause.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

#[path = "lab_datagram_wire/arena.rs"]
mod arena;
#[path = "lab_datagram_wire/blocked.rs"]
mod blocked;
#[path = "lab_datagram_wire/cut.rs"]
mod cut;
#[path = "lab_datagram_wire/hostile.rs"]
mod hostile;
#[path = "lab_datagram_wire/injector.rs"]
mod injector;
#[path = "lab_datagram_wire/processes.rs"]
mod processes;
mod wired;
#[path = "lab_datagram_wire/workloads.rs"]
mod workloads;
