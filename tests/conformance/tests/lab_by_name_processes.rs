//! A lab: the cases of `by_name_processes`, 200 rounds of each.

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, processes_suite, skip};

const ROUNDS: u32 = 200;
const PROGRAM: &str = env!("CARGO_BIN_EXE_penstock-conformance-by-name");

processes_suite!(shm: Setting::adaptive(TransportName::Shm, 1, Place::Process(PROGRAM)), ROUNDS, skip::labs_are_off());
processes_suite!(tcp: Setting::adaptive(TransportName::Tcp, 1, Place::Process(PROGRAM)), ROUNDS, skip::labs_are_off());
