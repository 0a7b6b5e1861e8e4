//! Corpora of hostile bytes and their seeded replay.

#![forbid(unsafe_code)]
