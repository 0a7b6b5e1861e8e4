//! Whole engines on one thread, ordered by a seed.

#![forbid(unsafe_code)]
