//! The suite between two engines of one process.

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, suite};

const HERE: Place = Place::Here;

suite!(one_worker: Setting::adaptive(TransportName::Local, 1, HERE));
suite!(two_workers: Setting::adaptive(TransportName::Local, 2, HERE));
suite!(inline: Setting::inline(TransportName::Local, HERE));
