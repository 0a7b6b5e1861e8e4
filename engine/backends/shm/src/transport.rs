//! Reaching, offering and joining between two processes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use penstock_core::budget::Budget;
use penstock_core::env::TransportEnv;
use penstock_memory::{MemoryError, ProbeWords, Registry, Trial, WhyNot};
use penstock_transport::host::bounce::{Banks, BounceParts};
use penstock_transport::host::{BlockingRun, CopyLane, CopyLaneParts, EngineSegments, InboundRings};
use penstock_transport::link::Offering;
use penstock_transport::{Caps, JoinError, Link, LocalEnd, PeerView, Placement, RemoteEnd, Transport, Trust};

use crate::bells::Doors;
use crate::offer::{self, Accepted};
use crate::registrar::ShmRegistrar;

/// The transport between two processes of one host.
pub struct ShmTransport {
    env: Arc<dyn TransportEnv>,
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    process_vm: bool,
    doors: Doors,
    mapped: Arc<Budget>,
}

impl ShmTransport {
    /// The name in `transports.allow`.
    pub const NAME: &'static str = "shm";

    /// The transport of the engine with these segments and these regions. `process_vm`: whether the kernel may
    /// copy between its process and peers'. `place`: the path of a file beside the engine's socket, which is made and gone at once. `mapped`: what
    /// may be mapped of peers' pools, in bytes.
    pub fn new(
        env: Arc<dyn TransportEnv>,
        segments: Arc<EngineSegments>,
        registry: Arc<Registry>,
        process_vm: bool,
        place: &Path,
        mapped: Arc<Budget>,
    ) -> io::Result<Self> {
        let doors = Doors::open(&segments, place)?;
        Ok(Self { env, segments, registry, process_vm, doors, mapped })
    }
}

/// Makes calls where those of this process may wait.
fn blocking_run(env: Arc<dyn TransportEnv>, process: u32) -> BlockingRun {
    Arc::new(move |job| env.run_blocking(process, job))
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
            multi_worker: true,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, here: &LocalEnd, there: &RemoteEnd) -> Result<&'static str, &'static str> {
        if here.host == there.host {
            Ok("both engines are on this host: pools are mapped and written directly")
        } else {
            Err("the other engine is on another host")
        }
    }

    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError> {
        let rings = offer::make_rings(there.workers)?;
        let slots = Banks::create(here.workers)?;
        let fds = offer::fds(&self.segments, &rings, &slots, self.doors.sockets()?)?;
        let (segments, registry) = (Arc::clone(&self.segments), Arc::clone(&self.registry));
        let (process_vm, env) = (self.process_vm, Arc::clone(&self.env));
        let mapped = self.mapped.of_process(there.watch.id());
        let ours = if process_vm { ProbeWords::of_this_process(here.epoch) } else { ProbeWords::NONE };
        let join = move |blob: &[u8], fds| {
            let Accepted { segments: theirs, rings: outbound, slots: incoming, probe_words } =
                offer::accept(blob, fds, here.workers, there.workers)?;
            let theirs = Arc::new(theirs);
            let lanes = CopyLane::for_each_worker(CopyLaneParts {
                segments: &segments,
                peer_segments: &theirs,
                peer_index: here.peer_index,
                index_at_peer: there.peer_index,
                outbound: &outbound,
                inbound: InboundRings::over(&rings.range(), there.workers)?,
                hand_overs: None,
                bounce: Some(BounceParts { registry, outgoing: slots, incoming }),
                devices: None,
                kernel: process_vm.then(|| blocking_run(Arc::clone(&env), there.watch.id())),
            })?;
            let process = match process_vm {
                true => Trial::begin(&there.watch, probe_words, |job| env.run_blocking(there.watch.id(), job)),
                false => Trial::of(Err(WhyNot::SwitchedOff)),
            };
            let registrar = ShmRegistrar::new(process, mapped, there.watch.blocking());
            let path = registrar.path();
            Ok::<_, JoinError>(Link {
                lanes,
                registrar: Arc::new(registrar),
                peer_view: PeerView::Shared(theirs),
                streams: None,
                transport_messages: None,
                rails: Vec::new(),
                path,
            })
        };
        Ok(Offering { blob: offer::blob(ours), fds, join: Box::new(join) })
    }
}
