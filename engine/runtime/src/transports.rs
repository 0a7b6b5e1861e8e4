//! The transports of an engine: those of the configuration that this host has, and why it has not the others.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::budget::Budget;
use penstock_core::config::{Config, DatagramConfig, ProcessVmChoice, TransportName, VerbsConnect};
use penstock_core::env::TransportEnv;
use penstock_cuda::CudaDevices;
use penstock_datagram_transport::dpdk::{DpdkOptions, DpdkPorts};
use penstock_datagram_transport::udp::{UdpOptions, UdpPort};
use penstock_datagram_transport::{DatagramOptions, DatagramTransport, OpenPort};
use penstock_local::LocalTransport;
use penstock_memory::Registry;
use penstock_shm::ShmTransport;
use penstock_tcp::TcpTransport;
use penstock_transport::host::EngineSegments;
use penstock_transport::{Devices, Scope, Transport};
use penstock_verbs::adapter::Adapter;
use penstock_verbs::device::{self, WantedDevice};
use penstock_verbs::{VerbsOptions, VerbsTransport};

use crate::error::StartError;

/// A transport of `transports.allow`, as this engine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportReport {
    /// As the configuration and reports call it: `local`, `shm`, `verbs`, `tcp`, `datagram`.
    pub name: &'static str,
    /// Why this engine does not offer it to anybody; none: it does.
    pub missing: Option<String>,
    /// What of this host it uses and what not, and why: a sentence each.
    pub details: Vec<String>,
}

/// What an engine starts with.
pub(crate) struct Opened {
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    pub(crate) reports: Vec<TransportReport>,
    /// The devices of this process, where there is a driver.
    pub(crate) devices: Option<Arc<dyn Devices>>,
}

/// Opens the transports that the configuration allows. One of the caller's own takes the place of the one that has its
/// name; the others follow. `place` is that of a file beside the socket where the engine listens already.
pub(crate) fn open(
    env: &Arc<dyn TransportEnv>,
    config: &Config,
    segments: &Arc<EngineSegments>,
    registry: &Arc<Registry>,
    place: &Path,
    mut own: Vec<Arc<dyn Transport>>,
) -> Result<Opened, StartError> {
    // An engine that has nothing but transports of the caller's own has the caller's devices.
    let is_own = |name: &TransportName| own.iter().any(|own| own.name() == name.as_str());
    let devices = if config.transports.allow.iter().all(is_own) { None } else { devices(env, segments)? };
    let mut opened = Opened { transports: Vec::new(), reports: Vec::new(), devices };
    for &name in &config.transports.allow {
        let mut report = TransportReport { name: name.as_str(), missing: None, details: Vec::new() };
        let its = own.iter().position(|own| own.name() == report.name).map(|place| own.remove(place));
        let one = match its {
            Some(own) => Ok((own, Vec::new())),
            None if name == TransportName::Local => {
                let local = LocalTransport::new(Arc::clone(segments), opened.devices.clone());
                Ok((Arc::new(local) as Arc<dyn Transport>, Vec::new()))
            }
            None => open_one(name, env, config, (segments, registry), place, opened.devices.as_ref())?,
        };
        match one {
            Ok((transport, details)) => {
                report.details = details;
                opened.transports.push(transport);
            }
            Err(why) => {
                tracing::info!(
                    transport = report.name,
                    why,
                    "a transport is not offered: this host has not what it needs"
                );
                report.missing = Some(why);
            }
        }
        opened.reports.push(report);
    }
    opened.transports.extend(own);
    opened.check(config)?;
    Ok(opened)
}

/// One transport and what it uses, or why this host has it not.
type One = Result<(Arc<dyn Transport>, Vec<String>), String>;

fn open_one(
    name: TransportName,
    env: &Arc<dyn TransportEnv>,
    config: &Config,
    (segments, registry): (&Arc<EngineSegments>, &Arc<Registry>),
    place: &Path,
    devices: Option<&Arc<dyn Devices>>,
) -> Result<One, StartError> {
    let (segments, registry, choices) = (Arc::clone(segments), Arc::clone(registry), &config.transports);
    let failed = |source| StartError::System { what: "a transport; see `transports.tcp_io`", source };
    let transport: Arc<dyn Transport> = match name {
        TransportName::Shm => {
            let process_vm = choices.process_vm == ProcessVmChoice::Auto;
            let mapped = match config.session.mapped_bytes {
                0 => penstock_memory::machine_bytes().map_or(u64::MAX, |bytes| bytes.saturating_mul(4)),
                bytes => bytes,
            };
            let shm = ShmTransport::new(Arc::clone(env), segments, registry, process_vm, place, Budget::new(mapped));
            Arc::new(shm.map_err(|source| StartError::System { what: "a socket where peers ring", source })?)
        }
        TransportName::Verbs => {
            check_manager(choices.verbs_connect, device::has_manager)?;
            return Ok(verbs(config, segments, registry, devices.cloned()));
        }
        TransportName::Tcp => {
            let tcp = TcpTransport::new(segments, registry, choices.tcp_io, choices.tcp_streams);
            Arc::new(tcp.map_err(failed)?)
        }
        TransportName::Datagram => Arc::new(datagram(config, segments, registry, Arc::clone(env))?),
        // A name that the configuration knows and this engine does not is a mistake of ours.
        other => return Err(failed(io::Error::other(format!("transport `{other}` is not built in")))),
    };
    Ok(Ok((transport, Vec::new())))
}

/// The devices of this process. They are no transport: lanes are given them.
fn devices(
    env: &Arc<dyn TransportEnv>,
    segments: &Arc<EngineSegments>,
) -> Result<Option<Arc<dyn Devices>>, StartError> {
    match CudaDevices::open(env, segments) {
        Ok(opened) => {
            let devices = opened.map_err(|source| StartError::System { what: "a bell for devices", source })?;
            Ok(Some(Arc::new(devices)))
        }
        Err(why) => {
            tracing::debug!(%why, "there is no device memory: this host has no CUDA driver that can be used");
            Ok(None)
        }
    }
}

/// Whether there is what connects queue pairs. Who asks for the connection manager is not served by anything else.
fn check_manager<E: Display>(connect: VerbsConnect, open: impl FnOnce() -> Result<(), E>) -> Result<(), StartError> {
    match connect {
        VerbsConnect::Exchange => Ok(()),
        VerbsConnect::Cm => open().map_err(|error| StartError::Manager { why: error.to_string() }),
    }
}

fn verbs(
    config: &Config,
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    devices: Option<Arc<dyn Devices>>,
) -> One {
    let choices = &config.transports;
    let wanted = choices.verbs_devices.iter().map(|name| name.parse());
    let options = device::Options {
        wanted: wanted.collect::<Result<Vec<WantedDevice>, _>>().map_err(|error| error.to_string())?,
        nodes: nodes_of(&config.workers.cores),
        is_on_demand: choices.verbs_on_demand,
        is_managed: choices.verbs_connect == VerbsConnect::Cm,
        ..device::Options::default()
    };
    let found = device::adapters(&options).map_err(|error| error.to_string())?;
    let adapters = found.adapters.into_iter().map(|adapter| adapter as Arc<dyn Adapter>).collect();
    let usual = VerbsOptions::default();
    // Who lets a silent peer stand for longer lets one stand for as long whose rails are gone.
    let patience = usual.patience.max(Duration::from_millis(config.session.heartbeat_ms));
    let transport = VerbsTransport::new(segments, registry, adapters, VerbsOptions { patience, ..usual });
    let transport = transport.map_err(|error| error.to_string())?.with_devices(devices);
    let sentences = found.sentences.iter().map(ToString::to_string);
    Ok((Arc::new(transport), sentences.chain([found.device_memory]).collect()))
}

/// The transport in datagrams, over a device of DPDK where one is named and else over UDP.
fn datagram(
    config: &Config,
    segments: Arc<EngineSegments>,
    registry: Arc<Registry>,
    env: Arc<dyn TransportEnv>,
) -> Result<DatagramTransport, StartError> {
    let over_dpdk = dpdk(config, &env)?;
    let options = DatagramOptions {
        patience: Duration::from_millis(config.session.heartbeat_ms),
        frame_bytes_max: config.datagram.frame_bytes,
        opens_at_start: over_dpdk.is_some(),
    };
    let open = over_dpdk.unwrap_or_else(|| udp(config));
    let failed = |source| StartError::System { what: "the transport in datagrams", source };
    DatagramTransport::new(segments, registry, env, open, options).map_err(failed)
}

/// What opens the queues of the device that the configuration names. DPDK and the device are open then.
fn dpdk(config: &Config, env: &Arc<dyn TransportEnv>) -> Result<Option<OpenPort>, StartError> {
    let Some(options) = DpdkOptions::of(config) else { return Ok(None) };
    let ports =
        DpdkPorts::open(options, Arc::clone(env)).map_err(|error| StartError::Dpdk { why: error.to_string() })?;
    Ok(Some(Arc::new(move |worker| Ok(Box::new(ports.port(worker)?)))))
}

/// What opens the socket of a worker.
fn udp(config: &Config) -> OpenPort {
    let DatagramConfig { port, receive_bytes, send_bytes, .. } = config.datagram;
    let ip = udp_ip(&config.session.listen);
    Arc::new(move |worker| {
        let number = match port {
            0 => 0,
            first => u16::try_from(usize::from(first) + worker).map_err(|_| io::ErrorKind::InvalidInput)?,
        };
        let options =
            |ip| UdpOptions { bind: SocketAddr::new(ip, number), receive_bytes, send_bytes, segmentation: true };
        let opened = match UdpPort::open(options(ip)) {
            // A host without IPv6.
            Err(_) if ip == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => UdpPort::open(options(Ipv4Addr::UNSPECIFIED.into())),
            opened => opened,
        };
        let text =
            |error| io::Error::other(format!("UDP port {number} of {ip} cannot be had ({error}): see `datagram.port`"));
        Ok(Box::new(opened.map_err(text)?))
    })
}

/// Where sockets receive: at the one address that the engine listens at, else at all.
fn udp_ip(listen: &[String]) -> IpAddr {
    let ip = |address: &String| address.parse::<SocketAddr>().ok().map(|address| address.ip());
    let mut all = listen.iter().map(ip);
    match all.next() {
        Some(Some(first)) if all.all(|other| other == Some(first)) && first != IpAddr::V4(Ipv4Addr::UNSPECIFIED) => {
            first
        }
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The NUMA nodes of these cores, as far as the kernel says.
fn nodes_of(cores: &[usize]) -> Vec<u32> {
    let node_of = |core: &usize| {
        let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
    };
    let mut nodes: Vec<u32> = cores.iter().filter_map(node_of).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

impl Opened {
    /// Whether the engine can do what it is to be for: what was asked for by name, or is the only way there is.
    fn check(&self, config: &Config) -> Result<(), StartError> {
        let Some((name, why)) = self.reports.iter().find_map(|report| Some((report.name, report.missing.clone()?)))
        else {
            return Ok(());
        };
        if !config.transports.verbs_devices.is_empty() {
            return Err(StartError::Devices { why });
        }
        let reaches_others = self.transports.iter().any(|transport| transport.scope() == Scope::Network);
        let is_for_others = !config.session.listen.is_empty() || self.transports.is_empty();
        if is_for_others && !reaches_others { Err(StartError::NoTransport { name, why }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::SystemEnv;

    fn opened(names: &[TransportName]) -> Result<Opened, StartError> {
        let segments = EngineSegments::create(1).expect("memory");
        let config = Config::default().transports(names.iter().copied());
        let env: Arc<dyn TransportEnv> = Arc::new(SystemEnv);
        let thread = format!("penstock-opened-{}-{:?}", std::process::id(), std::thread::current().id());
        let socket = std::env::temp_dir().join(thread);
        open(&env, &config, &segments, &Arc::new(Registry::new()), &socket, Vec::new())
    }

    #[test]
    fn the_connection_manager_is_needed_by_those_who_ask_for_it_and_by_nobody_else() {
        let absent = || Err("librdmacm.so.1 cannot be opened (no such file): install librdmacm1");
        let error = check_manager(VerbsConnect::Cm, absent).expect_err("it is asked for");
        assert!(matches!(error, StartError::Manager { .. }), "{error:?}");
        let words = error.to_string();
        assert!(words.contains("transports.verbs_connect") && words.contains("librdmacm1"), "{words}");
        check_manager(VerbsConnect::Cm, || Ok::<_, &str>(())).expect("it is here");
        check_manager(VerbsConnect::Exchange, || -> Result<(), &str> { panic!("nobody looks for it") })
            .expect("it is not needed");
    }

    #[test]
    fn nodes_are_those_of_cores_that_are_there() {
        assert_eq!(nodes_of(&[]), [0; 0]);
        assert_eq!(nodes_of(&[usize::MAX]), [0; 0]);
        let both = nodes_of(&[0, 0]);
        assert!(both.len() <= 1, "{both:?}");
    }

    #[test]
    fn sockets_receive_where_the_engine_listens_if_that_is_one_address() {
        let ip = |listen: &[&str]| udp_ip(&listen.iter().map(ToString::to_string).collect::<Vec<_>>()).to_string();
        assert_eq!(ip(&["127.0.0.1:7400", "127.0.0.1:0"]), "127.0.0.1");
        assert_eq!(ip(&["[::1]:7400"]), "::1");
        for several in [&[][..], &["0.0.0.0:7400"], &["[::]:1"], &["127.0.0.1:1", "127.0.0.2:1"], &["a name:1"]] {
            assert_eq!(ip(several), "::");
        }
    }

    #[test]
    fn what_opens_without_devices_is_offered_in_the_order_of_its_names() {
        let opened =
            opened(&[TransportName::Tcp, TransportName::Local, TransportName::Shm]).expect("nothing is missing");
        let names: Vec<&str> = opened.transports.iter().map(|transport| transport.name()).collect();
        assert_eq!(names, ["tcp", "local", "shm"]);
        assert!(opened.reports.iter().all(|report| report.missing.is_none()));
    }
}
