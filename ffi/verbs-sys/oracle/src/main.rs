//! Prints what rdma-sys says of facts that a lab of `penstock-verbs-sys` asks for.
//!
//! The lab writes the list, one expression a line, and leaves out what rdma-sys does not have.

use std::io::Write;

/// Each fact's name and what it is here.
const FACTS: &[(&str, i64)] =
    include!(env!("PENSTOCK_FACTS", "this is built by the lab `lab_layout` of penstock-verbs-sys, which makes the list"));

/// The bytes of a field, which `of` names and is never called.
#[allow(dead_code, reason = "the list may ask for no field")]
const fn field_size<S, F>(_of: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    FACTS.iter().try_for_each(|(key, value)| writeln!(out, "{value} {key}"))
}
