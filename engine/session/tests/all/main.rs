//! The words of sessions and the tables behind them, without I/O.
//!
//! One program, as each is compiled and linked by itself.

mod defects_000;
mod leases;
mod machines;
mod vectors;
