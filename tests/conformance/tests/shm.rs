//! The suite between two processes of one host.

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

suite!(one_worker: Setting::adaptive(TransportName::Shm, 1, THERE));
suite!(two_workers: Setting::adaptive(TransportName::Shm, 2, THERE));
suite!(inline: Setting::inline(TransportName::Shm, THERE));
suite_by_name!(one_worker_by_name: Setting::adaptive(TransportName::Shm, 1, THERE));
suite_by_name!(inline_by_name: Setting::inline(TransportName::Shm, THERE));
// Legs go in parts that end inside blocks of both sides.
suite_by_name!(small_parts_by_name: Setting::adaptive(TransportName::Shm, 1, THERE).parts(64 << 10));
