//! Real adapters, two of them in one process with a wire between: what the seam promises, on the real stack.
//!
//! Runs where `rxe_a0` and `rxe_b0` are, which are soft devices on the two ends of a wire: the guest of the RDMA lab. Elsewhere
//! `PENSTOCK_RDMA_PORTS=mlx5_0:1,mlx5_1:1` names two ports of this host, or one twice; tests that cut wires are left out then.

#![allow(clippy::print_stdout, reason = "the figures are what a reader of the output looks for")]

mod breaking;
mod ends;
mod here;
mod lanes;
mod managed;
mod memory;
mod moving;
