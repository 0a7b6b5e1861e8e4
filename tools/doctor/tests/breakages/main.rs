//! Hosts that are broken in exactly one way. Each test looks at the whole report: what is broken is named with its
//! mend, and nothing else has changed.

#![forbid(unsafe_code)]

mod access;
mod devices;
mod fixture;
mod host;
mod memory;
