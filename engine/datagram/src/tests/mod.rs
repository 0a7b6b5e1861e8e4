//! Two connections over a network that loses, doubles, delays, rots and forges packets, against a naive model: bytes are compared
//! the moment an operation has ended, and what is written over them afterwards must stay.

mod faults;
mod network;
mod transitions;
mod wire;
