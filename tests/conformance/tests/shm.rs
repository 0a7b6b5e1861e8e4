//! The suite between two processes of one host.

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, suite};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

suite!(one_worker: Setting::adaptive(TransportName::Shm, 1, THERE));
suite!(two_workers: Setting::adaptive(TransportName::Shm, 2, THERE));
suite!(inline: Setting::inline(TransportName::Shm, THERE));
