//! Reaching, offering and joining between simulated hosts.
//!
//! ```text
//! offer    version u16 | 0 u16 | workers u32 | port u64
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_memory::{MemoryError, Registry};
use penstock_transport::host::EngineSegments;
use penstock_transport::link::Offering;
use penstock_transport::mediated::{LaneTarget, Notes, TargetMediatedRegistrar};
use penstock_transport::{
    Caps, Driver, JoinError, Link, LocalEnd, PeerView, Placement, RemoteEnd, RemoteGateLog, Scope, Transport, Trust,
};

use crate::fabric::Fabric;
use crate::hub::{Hub, SimDriver, SimPort};
use crate::incoming::Incoming;
use crate::lane::SimLane;
use crate::line::Line;
use crate::outgoing::Outgoing;
use crate::packet::VERSION;

/// How long a peer may say nothing while it is spoken to.
const PATIENCE: Duration = Duration::from_secs(5);

/// Exports regions to, and imports them from, engines on other simulated hosts.
const REGISTRAR: TargetMediatedRegistrar =
    TargetMediatedRegistrar { name: SimTransport::NAME, reason: "the peer is met over a simulated network" };

/// The transport between simulated hosts. Its engines have one worker each, as engines without threads have.
pub struct SimTransport {
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    hub: Arc<Hub>,
    patience: Duration,
}

impl SimTransport {
    pub const NAME: &'static str = "sim";

    /// The transport of the engine with these segments and these regions, over this fabric.
    pub fn new(segments: Arc<EngineSegments>, registry: Arc<Registry>, fabric: Arc<dyn Fabric>) -> io::Result<Self> {
        if segments.workers() != 1 {
            let text = format!("`sim` is for engines of one worker, and this one has {}", segments.workers());
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(Self { segments, registry, hub: Arc::new(Hub::new(fabric)), patience: PATIENCE })
    }

    /// Gives a peer up that says nothing for so long while it is spoken to.
    pub fn patient_for(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Checked,
            // The bytes are there at completion as well; who leans on that here would be wrong elsewhere.
            placement: Placement::AtNotification,
            synchronous: false,
            ordered: true,
            multi_worker: false,
            remote_caller_memory: true,
            hand_over: false,
        }
    }

    fn reaches(&self, here: &LocalEnd, there: &RemoteEnd) -> Result<&'static str, &'static str> {
        if here.workers == 1 && there.workers == 1 {
            Ok("the engines have met over a simulated network")
        } else {
            Err("simulated engines have one worker each")
        }
    }

    fn scope(&self) -> Scope {
        Scope::Network
    }

    fn driver(&self, worker: usize) -> io::Result<Option<Box<dyn Driver>>> {
        if worker != 0 {
            return Ok(None);
        }
        let ready = self.segments.mailbox.view().ready(worker);
        Ok(Some(Box::new(SimDriver::new(Arc::clone(&self.hub), ready)?)))
    }

    fn offer(&self, here: LocalEnd, there: RemoteEnd) -> Result<Offering, MemoryError> {
        let port = SimPort::open(&self.hub, here.epoch, here.peer_index);
        let blob = blob(port.number(), here.workers);
        let (segments, registry, patience) = (Arc::clone(&self.segments), Arc::clone(&self.registry), self.patience);
        let join = move |blob: &[u8], fds: Vec<_>| {
            if !fds.is_empty() {
                return Err(JoinError::Fds { expected: 0, found: fds.len() });
            }
            let to = accept(blob, there.workers)?;
            Ok(join(segments, registry, &here, &there, port, to, patience))
        };
        Ok(Offering { blob, fds: Vec::new(), join: Box::new(join) })
    }
}

fn blob(port: u64, workers: usize) -> Vec<u8> {
    let mut blob = Vec::new();
    blob.extend(VERSION.to_le_bytes());
    blob.extend(0u16.to_le_bytes());
    blob.extend((workers as u32).to_le_bytes());
    blob.extend(port.to_le_bytes());
    blob
}

/// The peer's port, if both sides speak the same.
fn accept(blob: &[u8], workers: usize) -> Result<u64, JoinError> {
    let &[v0, v1, 0, 0, w0, w1, w2, w3, ref port @ ..] = blob else {
        return Err(JoinError::Malformed("it has another length"));
    };
    let Some(port) = port.first_chunk().filter(|_| port.len() == size_of::<u64>()) else {
        return Err(JoinError::Malformed("it has another length"));
    };
    if u16::from_le_bytes([v0, v1]) != VERSION {
        return Err(JoinError::Malformed("its packets have another version: run the same release on both hosts"));
    }
    if u32::from_le_bytes([w0, w1, w2, w3]) as usize != workers || workers != 1 {
        return Err(JoinError::Malformed("it does not say one worker, as its greeting must"));
    }
    Ok(u64::from_le_bytes(*port))
}

fn join(
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    here: &LocalEnd,
    there: &RemoteEnd,
    port: SimPort,
    to: u64,
    patience: Duration,
) -> Link {
    let told = Arc::new(RemoteGateLog::default());
    let lane = SimLane {
        target: LaneTarget::new(Arc::clone(&segments), registry, here.peer_index, 0),
        told: Arc::clone(&told),
        ready: segments.mailbox.view().ready(0),
        peer_index: here.peer_index,
        to,
        epochs: (here.epoch, there.epoch),
        line: Line::new(patience, port.now()),
        port,
        outgoing: Outgoing::default(),
        incoming: Incoming::default(),
        notes: Notes::default(),
    };
    Link {
        lanes: vec![Box::new(lane)],
        registrar: Arc::new(REGISTRAR),
        peer_view: PeerView::Reported(told),
        streams: None,
        transport_messages: None,
        rails: Vec::new(),
        path: "over a simulated network, in packets".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_accepted_by_who_speaks_the_same_and_what_was_changed_is_refused() {
        let good = blob(77, 1);
        assert_eq!(accept(&good, 1).unwrap(), 77);
        for place in 0..8 {
            let mut bad = good.clone();
            bad[place] ^= 0x80;
            assert!(accept(&bad, 1).is_err(), "byte {place}");
        }
        assert!(accept(&good[..good.len() - 1], 1).is_err());
        assert!(accept(&[&good[..], &[0]].concat(), 1).is_err());
        assert!(accept(&good, 2).is_err());
    }
}
