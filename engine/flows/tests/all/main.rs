//! The control layer without I/O: what it does, what it refuses, and how it ends.
//!
//! One program, as each is compiled and linked by itself.

mod aborts;
mod bounds_lives;
mod continuation;
mod declarations;
mod defects_001;
mod defects_002;
mod defects_003;
mod defects_004;
mod early_leavers;
mod endings_legs;
mod joins;
mod latecomers;
mod legs;
mod lifecycle;
mod lives;
mod losses;
mod machines_legs;
mod machines_lives;
mod managers;
mod models_lives;
mod protocol;
mod pulls;
mod readiness;
mod refused;
mod relays;
mod resuming;
mod scenario_13;
mod scenarios_11_12;
mod scenarios_14_15;
mod scenarios_legs;
mod stages;
mod vectors;
