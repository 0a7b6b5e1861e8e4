//! Reaching, offering and joining between two processes.

use std::sync::Arc;

use penstock_memory::{Beacon, ForeignProcess, MemoryError, Registry, WhyNot};
use penstock_transport::host::bounce::{Banks, BounceParts};
use penstock_transport::host::{Commons, CopyLane, CopyLaneParts, InboundRings};
use penstock_transport::link::Offering;
use penstock_transport::{Caps, Here, JoinError, Link, Placement, Sight, There, Transport, Trust};

use crate::offer::{self, Accepted};
use crate::registrar::ShmRegistrar;

/// The transport between two processes of one host.
pub struct ShmTransport {
    commons: Arc<Commons>,
    registry: Arc<Registry>,
    process_vm: bool,
}

impl ShmTransport {
    /// The name in `transports.allow`.
    pub const NAME: &'static str = "shm";

    /// The transport of the engine with these commons and these regions. `process_vm`: whether the kernel may
    /// copy between its process and peers'.
    pub fn new(commons: Arc<Commons>, registry: Arc<Registry>, process_vm: bool) -> Self {
        Self { commons, registry, process_vm }
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Cooperative,
            placement: Placement::AtCompletion,
            synchronous: true,
            ordered: false,
            splits: true,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, here: &Here, there: &There) -> Result<&'static str, &'static str> {
        if here.host == there.host {
            Ok("both engines are on this host: pools are mapped and written directly")
        } else {
            Err("the other engine is on another host")
        }
    }

    fn offer(&self, here: Here, there: There) -> Result<Offering, MemoryError> {
        let rings = offer::make_rings(there.workers)?;
        let slots = Banks::create(here.workers)?;
        let tokens = offer::tokens(&self.commons, &rings, &slots)?;
        let (commons, registry) = (Arc::clone(&self.commons), Arc::clone(&self.registry));
        let process_vm = self.process_vm;
        let ours = if process_vm { Beacon::of_this_process(here.epoch) } else { Beacon::NONE };
        let join = move |blob: &[u8], tokens| {
            let Accepted { commons: theirs, rings: outbound, slots: incoming, beacon } =
                offer::accept(blob, tokens, here.workers, there.workers)?;
            let theirs = Arc::new(theirs);
            let lanes = CopyLane::for_each_worker(CopyLaneParts {
                ours: &commons,
                theirs: &theirs,
                our_party: here.party,
                their_party: there.party,
                outbound: &outbound,
                inbound: InboundRings::over(&rings.place(), there.workers)?,
                hand_overs: None,
                bounce: Some(BounceParts { registry, outgoing: slots, incoming }),
            })?;
            let process =
                if process_vm { ForeignProcess::reach(&there.watch, beacon) } else { Err(WhyNot::SwitchedOff) };
            let registrar = ShmRegistrar::new(process);
            let path = registrar.path();
            Ok::<_, JoinError>(Link {
                lanes,
                registrar: Arc::new(registrar),
                sight: Sight::Shared(theirs),
                streams: None,
                asides: None,
                rails: Vec::new(),
                path,
            })
        };
        Ok(Offering { blob: offer::blob(ours), tokens, join: Box::new(join) })
    }
}
