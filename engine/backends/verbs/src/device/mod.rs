//! Real adapters, by libibverbs: which there are, which are used, and what the seam asks of them.
//!
//! Read in this order:
//!
//! - [`choose`]: which ports become rails ([`seen`] and [`networks`] say what there is, [`wanted`] how settings name it)
//! - `open`: devices; `adapter`, `cq`, `queue` (and its `post`), `memory`: what the seam asks for; `manager` and `meet`:
//!   queues that are connected by librdmacm; `status`: the seam's words for what verbs answer

mod adapter;
pub mod choose;
mod cm;
mod cq;
mod manager;
mod memory;
pub mod networks;
mod open;
mod queue;
pub mod seen;
mod status;
pub mod wanted;

use std::io;
use std::path::Path;
use std::sync::Arc;

use penstock_verbs_sys::Verbs;

pub use adapter::DeviceAdapter;
pub use choose::{ChoiceError, Chosen, Sentence};
pub use queue::Posting;
pub use seen::SeenDevice;
pub use wanted::{BadName, WantedDevice};

use crate::adapter::AdapterError;

/// What is asked of adapters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The adapters to use; chosen if none is named.
    pub wanted: Vec<WantedDevice>,
    /// The NUMA nodes of the workers.
    pub nodes: Vec<u32>,
    /// Whether adapters page memory in when it is first touched, where they can. It is pinned otherwise.
    pub is_on_demand: bool,
    /// The class that networks which tell traffic apart treat packets by.
    pub traffic_class: u8,
    /// Whether queues are connected by the connection manager.
    pub is_managed: bool,
    /// How requests are posted; by lists where the driver knows nothing else.
    pub posting: Posting,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wanted: Vec::new(),
            nodes: Vec::new(),
            is_on_demand: false,
            traffic_class: 0,
            is_managed: false,
            posting: Posting::Extended,
        }
    }
}

/// Adapters that were opened.
#[derive(Debug)]
pub struct FoundAdapter {
    /// The adapters, best first.
    pub adapters: Vec<Arc<DeviceAdapter>>,
    /// Why each is used, and everything else is not.
    pub sentences: Vec<Sentence>,
    /// What this machine has for memory of other devices, in words.
    pub device_memory: String,
}

/// Why there are no adapters.
#[derive(Debug, thiserror::Error)]
pub enum NotHere {
    /// The kernel knows of none.
    #[error(
        "this machine has no RDMA device: {why}; with a card in it, load its driver (`modprobe mlx5_ib` or the like) and \
         `modprobe ib_uverbs`; without, `rdma link add rxe0 type rxe netdev NAME` makes one in software"
    )]
    NoDevice {
        /// What was looked at.
        why: String,
    },
    /// The libraries are not installed.
    #[error(transparent)]
    Library(#[from] penstock_verbs_sys::NotHere),
    /// None can be used, or not the ones that were named.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// None could be opened, or not the ones that were named.
    #[error(transparent)]
    Card(#[from] AdapterError),
}

/// What a machine has, and what of it would be used.
#[derive(Debug)]
pub struct Looked {
    /// The devices, in the order of their numbers.
    pub seen: Vec<SeenDevice>,
    /// What would be used of them.
    pub chosen: Result<Chosen, ChoiceError>,
}

/// Looks what of the devices that `sys`, normally `/sys`, shows would be used, as [`adapters`] does. Nothing is opened. `drivers` are the
/// devices that libibverbs has a driver for; if that is not known, all are taken to have one.
pub fn look(sys: &Path, drivers: Option<&[&str]>, wanted: &[WantedDevice], nodes: &[u32]) -> io::Result<Looked> {
    let mut seen = seen::read(sys, &networks::read().unwrap_or_default())?;
    if let Some(drivers) = drivers {
        seen.iter_mut().for_each(|device| device.has_driver = drivers.contains(&device.name.as_str()));
    }
    let chosen = choose::choose(&seen, wanted, nodes);
    Ok(Looked { seen, chosen })
}

/// Whether the library of the connection manager is here.
pub fn has_manager() -> Result<(), penstock_verbs_sys::NotHere> {
    manager::open().map(drop)
}

/// Opens the adapters of this machine.
pub fn adapters(options: &Options) -> Result<FoundAdapter, NotHere> {
    adapters_in(Path::new("/sys"), options)
}

fn adapters_in(sys: &Path, options: &Options) -> Result<FoundAdapter, NotHere> {
    let no_device = |why: String| NotHere::NoDevice { why };
    let networks = networks::read().unwrap_or_else(|error| {
        tracing::warn!("getifaddrs failed: {error}; cards are not known by their networks");
        Vec::new()
    });
    let mut seen = seen::read(sys, &networks)
        .map_err(|error| no_device(format!("/sys/class/infiniband cannot be read: {error}")))?;
    if seen.is_empty() {
        return Err(no_device("/sys/class/infiniband shows none".to_owned()));
    }
    let verbs = Verbs::open()?;
    let drivers = open::names(verbs).map_err(|error| no_device(format!("ibv_get_device_list failed: {error}")))?;
    for device in &mut seen {
        device.has_driver = drivers.contains(&device.name);
    }
    let mut chosen = choose::choose(&seen, &options.wanted, &options.nodes)?;
    let mut adapters = Vec::new();
    let mut refused = None;
    for pick in &chosen.picks {
        match DeviceAdapter::open(verbs, pick, options) {
            Ok(adapter) => adapters.push(Arc::new(adapter)),
            // Who names an adapter wants to know; who does not is served by the others.
            Err(error) if !options.wanted.is_empty() => return Err(error.into()),
            Err(error) => {
                let about = format!("{}:{}", pick.device, pick.port);
                chosen.sentences.retain(|sentence| sentence.about != about);
                chosen.sentences.push(Sentence { about, is_used: false, why: error.to_string() });
                refused = Some(error);
            }
        }
    }
    match refused {
        Some(error) if adapters.is_empty() => Err(error.into()),
        _ => Ok(FoundAdapter { adapters, sentences: chosen.sentences, device_memory: device_memory(sys) }),
    }
}

/// What this machine has by which adapters reach memory of other devices.
fn device_memory(sys: &Path) -> String {
    let has = |path: &str| sys.join(path).exists();
    let peer =
        ["module/nvidia_peermem", "module/nv_peer_mem", "kernel/mm/memory_peers"].into_iter().find(|path| has(path));
    match peer {
        Some(found) => {
            format!("peer memory by {} ({})", found.rsplit('/').next().unwrap_or(found), sys.join(found).display())
        }
        None => "no module for peer memory; dma-bufs where a card's driver takes them".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_rdma_says_how_to_get_it() {
        let nothing = std::env::temp_dir().join(format!("penstock-verbs-{}-no-such-folder", std::process::id()));
        let error = adapters_in(&nothing, &Options::default()).expect_err("there is nothing");
        assert!(matches!(error, NotHere::NoDevice { .. }), "{error:?}");
        let words = error.to_string();
        assert!(words.contains("modprobe ib_uverbs") && words.contains("rdma link add"), "{words}");
    }

    #[test]
    fn peer_memory_is_told_by_its_module() {
        let root = std::env::temp_dir().join(format!("penstock-verbs-{}-peer", std::process::id()));
        std::fs::create_dir_all(root.join("module/nvidia_peermem")).expect("a folder");
        let found = device_memory(&root);
        std::fs::remove_dir_all(&root).expect("it is removed");
        assert!(found.contains("nvidia_peermem"), "{found}");
        assert!(device_memory(&root).contains("no module"), "{}", device_memory(&root));
    }
}
