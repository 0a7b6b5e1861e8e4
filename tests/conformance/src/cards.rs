//! Cards in this process, for engines that have none: one network for each case.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock::config::VerbsConnect;
use penstock::device::CudaDevices;
use penstock::transport::Transport;
use penstock::{StartError, SystemEnv};
use penstock_core::env::TransportEnv;

use penstock_verbs::adapter::{Adapter, DeviceAttr};
use penstock_verbs::model::{ModelNetwork, Options, Pace};
use penstock_verbs::{VerbsOptions, VerbsTransport};

use crate::Engine;
use crate::setting::{EngineSpec, Manner};

/// Bytes that a step of a late network moves: a packet.
const LATE_STEP_BYTES: u64 = 4096;

/// The network of each case, by its folder.
static NETWORKS: Mutex<BTreeMap<PathBuf, ModelNetwork>> = Mutex::new(BTreeMap::new());

fn networks() -> MutexGuard<'static, BTreeMap<PathBuf, ModelNetwork>> {
    NETWORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The network of the case with this folder.
pub fn network(folder: &Path, manner: Manner) -> ModelNetwork {
    networks().entry(folder.to_owned()).or_insert_with(|| ModelNetwork::new(options(manner))).clone()
}

/// The case with this folder is over.
pub fn forget(folder: &Path) {
    // Out of the lock: its thread ends with it.
    let gone = networks().remove(folder);
    drop(gone);
}

fn options(manner: Manner) -> Options {
    let plain = Options::default();
    match manner {
        Manner::Polled => plain,
        Manner::Late => Options { seed: Some(1), places_late: true, step_bytes: LATE_STEP_BYTES, ..plain },
        Manner::Thread => Options { pace: Pace::Thread, ..plain },
    }
}

/// Starts an engine over so many cards in this process. The first cards of all engines are in one network, and so on.
pub fn start(spec: &EngineSpec, rails: u8, manner: Manner) -> Result<Engine, StartError> {
    let network = network(Path::new(&spec.folder), manner);
    let config = spec.config();
    let is_managed = config.transports.verbs_connect == VerbsConnect::Cm;
    let card = |rail| -> Arc<dyn Adapter> {
        let change = |facts: &mut DeviceAttr| facts.gid[7] = rail;
        if is_managed { network.managed_adapter_with(change) } else { network.adapter_with(change) }
    };
    let cards: Vec<_> = (0..rails).map(card).collect();
    Engine::start_making(SystemEnv, config, |segments, registry| {
        let (segments, registry) = (Arc::clone(segments), Arc::clone(registry));
        let made = VerbsTransport::new(segments, registry, cards, VerbsOptions::default());
        let made: Arc<dyn Transport> = Arc::new(made.map_err(io::Error::other)?);
        Ok(vec![made])
    })
}

/// Starts an engine over a card in this process and with the devices of the driver, whose memory the card reaches itself or does not.
pub fn start_beside_devices(spec: &EngineSpec, gpudirect: bool) -> Result<Engine, StartError> {
    let card = network(Path::new(&spec.folder), Manner::Polled).adapter();
    if !gpudirect {
        card.refuse_dma_bufs();
    }
    Engine::start_making(SystemEnv, spec.config(), |segments, registry| {
        let env: Arc<dyn TransportEnv> = Arc::new(SystemEnv);
        let devices = CudaDevices::open(&env, segments).map_err(io::Error::other)??;
        let (segments, registry) = (Arc::clone(segments), Arc::clone(registry));
        let made = VerbsTransport::new(segments, registry, vec![card], VerbsOptions::default());
        let made = made.map_err(io::Error::other)?.with_devices(Some(Arc::new(devices)));
        Ok(vec![Arc::new(made) as Arc<dyn Transport>])
    })
}
