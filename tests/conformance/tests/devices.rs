//! The suite where pools are of a device's memory, on the stand-in for its driver: copied within a process, staged by each transport, and reached by cards. What is
//! registered by hand is host memory here as elsewhere, and so are the sinks of `shards`, whose bytes a processor puts together.

use penstock::config::TransportName;
use penstock_conformance::{Devices, Place, Setting, suite};

const fn over(transport: TransportName, devices: Devices) -> Setting {
    Setting::adaptive(transport, 1, Place::Here).devices(devices)
}

suite!(local: over(TransportName::Local, Devices::Everywhere));
suite!(local_here: over(TransportName::Local, Devices::Here));
suite!(local_there: over(TransportName::Local, Devices::There));
suite!(shm: over(TransportName::Shm, Devices::Everywhere));
suite!(tcp: over(TransportName::Tcp, Devices::Everywhere));
suite!(datagram: over(TransportName::Datagram, Devices::Here));
suite!(verbs_staged: over(TransportName::Verbs, Devices::Everywhere).gpudirect(false));
suite!(verbs_gpudirect: over(TransportName::Verbs, Devices::Everywhere).gpudirect(true));
