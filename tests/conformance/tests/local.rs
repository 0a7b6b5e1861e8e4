//! The suite between two engines of one process.

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, suite, suite_by_name};

const HERE: Place = Place::Here;

suite!(one_worker: Setting::adaptive(TransportName::Local, 1, HERE));
suite!(two_workers: Setting::adaptive(TransportName::Local, 2, HERE));
suite!(inline: Setting::inline(TransportName::Local, HERE));
suite_by_name!(one_worker_by_name: Setting::adaptive(TransportName::Local, 1, Place::Here));
suite_by_name!(inline_by_name: Setting::inline(TransportName::Local, Place::Here));
