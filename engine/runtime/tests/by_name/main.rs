//! The control layer in whole engines of this process: transfers by name, lives of requests, pins and relays, over real transports.
//!
//! One program, as each is compiled and linked by itself.

mod at_once;
mod continuation;
mod ends;
mod flows;
mod leaving;
mod lifecycle;
mod pinned;
mod pull;
mod quiet;
mod readiness;
mod relay;
mod used;
mod whole_swaps;
