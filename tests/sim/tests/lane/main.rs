//! What the transport between simulated hosts promises, held to it over whole engines in any order.

mod bytes;
mod faults;
mod hosts;
mod incast;
mod notes;
mod seeds;
mod stage;
