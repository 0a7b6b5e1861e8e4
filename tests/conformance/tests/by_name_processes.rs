//! Transfers by name between two processes whose applications reuse memory the moment they are told that they may: 20 rounds of each
//! case. `lab_by_name_processes` makes 200.

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, processes_suite};

const ROUNDS: u32 = 20;
const PROGRAM: &str = env!("CARGO_BIN_EXE_penstock-conformance-by-name");

processes_suite!(shm: Setting::adaptive(TransportName::Shm, 1, Place::Process(PROGRAM)), ROUNDS);
processes_suite!(tcp: Setting::adaptive(TransportName::Tcp, 1, Place::Process(PROGRAM)), ROUNDS);
