//! `penstock doctor` in places that are really broken: each test starts the command with one thing taken away, and
//! asks that this thing is named with its mend, and that nothing else has changed.
//!
//! - `broken`: what is taken away, and the comparison with the same place unbroken
//! - `limits`, `filters`, `folder`, `namespaces`: one file a family

#[allow(dead_code)] // The tests of the other commands use all of it.
#[path = "../command/run.rs"]
mod run;

mod broken;
mod filters;
mod folder;
mod limits;
mod namespaces;
