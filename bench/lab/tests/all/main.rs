//! What measures, tried with so little that it says nothing about speed; and what was kept of measurements.
//!
//! One program, as each is compiled and linked by itself.

mod perf;
mod results;
mod service;
mod stream;
