//! `penstock serve`: an engine that engines of other hosts can test against.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::secret::SECRET_ITSELF_VARIABLE;
use penstock::{Config, Engine, StartError, TransportReport};
use penstock_doctor::Host;
use penstock_lab::ends::network::unique_name;
use penstock_lab::service::{self, Event, Limits, Server};
use serde_json::json;

use crate::addresses::Reached;
use crate::arguments::ServeOptions;
use crate::console;
use crate::failure::{Ended, Failure};
use crate::network::{self, Over, PORT};

/// Peers that are served at the same time.
const PEERS: usize = 64;

/// How long what is under way may take to finish in the end.
const DRAIN: Duration = Duration::from_secs(3);

/// How long a greeting may take, where nothing else is configured: many clients of one busy host come at the same time.
const GREETING: Duration = Duration::from_secs(5);

/// Serves until it is asked to end.
pub(crate) fn run(options: &ServeOptions) -> Result<Ended, Failure> {
    let over = Over::watch()?;
    let until = options.lasting.map(|lasting| Instant::now() + lasting);
    let config = config(options)?;
    let secret = Shared::before(&config);
    let (engine, config) = start(config, options)?;
    let pool_bytes = options.memory_mib.map_or_else(|| available() / 4, |mib| mib << 20);
    console::print(&greeting(&engine, &secret, pool_bytes, options))?;
    let doctor = || {
        let host = Host::this(std::env::current_exe().ok(), &config);
        serde_json::to_value(penstock_doctor::examine(&host, &[])).unwrap_or_default()
    };
    let server = Server::new(&engine, Limits { pool_bytes, peers: PEERS }, &doctor);
    let is_over = || over.is_set() || until.is_some_and(|until| Instant::now() >= until);
    // A reader that has left is no reason to stop serving.
    let mut refusals = Refusals { second: Instant::now(), said: 0 };
    let ended = server.serve(is_over, DRAIN, |event| {
        refusals.say(&event);
        drop(console::print(&line(&event, options.json)));
    });
    drop(engine);
    console::print(&farewell(&ended, options.json))?;
    Ok(Ended::Well)
}

/// The secret that hosts share.
struct Shared {
    file: Option<PathBuf>,
    /// It was not there before this engine started.
    is_fresh: bool,
}

impl Shared {
    /// As it is before the engine starts, which makes the user's own.
    fn before(config: &Config) -> Self {
        let file = network::secret_file(config);
        let is_fresh = file.as_ref().is_some_and(|file| !file.exists());
        Self { file, is_fresh }
    }
}

fn config(options: &ServeOptions) -> Result<Config, Failure> {
    let mut config = match &options.config {
        Some(file) => Config::load(file)?,
        None => Config::default().greeting_timeout(GREETING).connect_timeout(network::CONNECT),
    };
    options.cards.overrule(&mut config)?;
    let config = match (&options.name, &config.engine.name) {
        (Some(name), _) => config.named(name),
        (None, Some(_)) => config,
        (None, None) => config.named(unique_name("serve")),
    };
    let config = match &options.secret_file {
        Some(file) => config.secret_file(file),
        None => config,
    };
    Ok(if options.listen.is_empty() { config } else { config.listen(&options.listen) })
}

/// Starts the engine, where nothing else is said at the usual port of all addresses: of both families, if the host has both.
fn start(config: Config, options: &ServeOptions) -> Result<(Engine, Config), Failure> {
    let config = match config.transports.allow.contains(&TransportName::Tcp) {
        true => config,
        false => {
            let allow = [config.transports.allow.as_slice(), &[TransportName::Tcp]].concat();
            config.transports(allow)
        }
    };
    if !options.listen.is_empty() || !config.session.listen.is_empty() {
        return Ok((Engine::start(config.clone())?, config));
    }
    let (old, new) = (format!("0.0.0.0:{PORT}"), format!("[::]:{PORT}"));
    let both = config.clone().listen([&old, &new]);
    match Engine::start(both.clone()) {
        Ok(engine) => Ok((engine, both)),
        // A host without the newer family.
        Err(StartError::Network { address, .. }) if address == new => {
            let one = config.listen([&old]);
            Ok((Engine::start(one.clone())?, one))
        }
        Err(error) => Err(error.into()),
    }
}

/// Memory that this host could give, in bytes.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib.saturating_mul(1024))
}

fn greeting(engine: &Engine, secret: &Shared, pool_bytes: u64, options: &ServeOptions) -> String {
    let dpdk = &engine.config().dpdk;
    let device = dpdk.device.as_ref().zip(dpdk.address).map(|(device, address)| format!("{address} at {device}"));
    let reached = Reached::of(&engine.advertised());
    let in_words = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (addresses, listens_at) = (in_words(&reached.addresses), in_words(&engine.addresses()));
    let rdma = engine.transports().iter().find(|report| report.name == TransportName::Verbs.as_str());
    if options.json {
        let serving = json!({
            "event": "serving",
            "name": engine.name().as_str(),
            "release": env!("CARGO_PKG_VERSION"),
            "addresses": addresses,
            "this_host_only": reached.is_this_host_only,
            "listens_at": listens_at,
            "secret_file": secret.file,
            "secret_made": secret.is_fresh,
            "pool_bytes_max": pool_bytes,
            "dpdk": device,
            "rdma": rdma.map(|rdma| json!({ "offered": rdma.missing.is_none(), "why_not": rdma.missing, "devices": rdma.details })),
        });
        return format!("{serving}\n");
    }
    let mut text = format!("serving as {}, release {}\n", engine.name(), env!("CARGO_PKG_VERSION"));
    let mut row = |label: &str, words: &str| text.push_str(&format!("  {label:<14}{words}\n"));
    for (place, address) in addresses.iter().enumerate() {
        row(if place == 0 { "reached at" } else { "" }, address);
    }
    if reached.is_this_host_only {
        row("", "by this host alone: no address of another network is listened at (--listen)");
    }
    match rdma {
        None => row("RDMA", "not allowed (`transports.allow`)"),
        Some(TransportReport { missing: Some(why), .. }) => row("RDMA", &format!("none: {why}")),
        Some(TransportReport { details, .. }) => {
            for (place, words) in details.iter().enumerate() {
                row(if place == 0 { "RDMA" } else { "" }, words);
            }
        }
    }
    if let Some(words) = device {
        row("DPDK", &words);
    }
    row("for others", &format!("up to {} MiB of pools (--memory-mib)", pool_bytes >> 20));
    if let Some(file) = &secret.file {
        let made = if secret.is_fresh { ", made just now: no other host has it yet" } else { "" };
        row("secret", &format!("{}{made}", file.display()));
        if !reached.is_this_host_only {
            row("share it", &share(file));
        }
    } else if std::env::var_os(SECRET_ITSELF_VARIABLE).is_some() {
        row("secret", &format!("that of {SECRET_ITSELF_VARIABLE}: the same on the other hosts"));
    }
    if let Some(best) = reached.best() {
        row(if reached.is_this_host_only { "then, here" } else { "then, there" }, &format!("penstock ping {best}"));
        row("", &format!("penstock perf {best} --workload w2"));
        if rdma.is_some_and(|rdma| rdma.missing.is_none()) {
            row("", &format!("penstock perf {best} --workload w2 --transport verbs"));
        }
    }
    text.push_str("  Ctrl-C ends it.\n");
    text
}

/// The line that copies the secret to another host, to where it is looked for there. One that is there already stays.
fn share(secret: &Path) -> String {
    let path = secret.display();
    format!("ssh OTHER 'umask 077; mkdir -p .config/penstock; set -C; cat > .config/penstock/secret' < '{path}'")
}

/// Says whom it refuses something, at most eight times a second.
struct Refusals {
    second: Instant,
    said: u32,
}

impl Refusals {
    const MOST: u32 = 8;

    fn say(&mut self, event: &Event) {
        let Event::Refused { peer, address, refusal } = event else { return };
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.said) = (Instant::now(), 0);
        }
        self.said += 1;
        if self.said <= Self::MOST {
            let from = address.map(|address| format!(" from {address}")).unwrap_or_default();
            console::complain(&format!("refused {peer}{from}: {refusal}"));
        }
    }
}

fn line(event: &Event, json: bool) -> String {
    match (event, json) {
        (Event::Came { peer, transport, address }, true) => {
            let address = address.map(|address| address.to_string());
            format!(
                "{}\n",
                json!({ "event": "came", "peer": peer.as_str(), "transport": transport, "address": address })
            )
        }
        (Event::Came { peer, transport, address }, false) => {
            let from = address.map(|address| format!(" from {address}")).unwrap_or_default();
            format!("{peer} came over {transport}{from}\n")
        }
        // On standard error: [`refused`].
        (Event::Refused { .. }, _) => String::new(),
        (Event::Went { peer, why }, true) => {
            format!("{}\n", json!({ "event": "went", "peer": peer.as_str(), "why": why }))
        }
        (Event::Went { peer, why }, false) => format!("{peer} went: {why}\n"),
    }
}

fn farewell(ended: &service::Ended, json: bool) -> String {
    let drained = ended.broken_off.is_empty();
    let names: Vec<&str> = ended.broken_off.iter().map(|name| name.as_str()).collect();
    if json {
        let ended = json!({ "event": "ended", "drained": drained, "told": ended.told, "broken_off": names });
        return format!("{ended}\n");
    }
    let peers = if ended.told == 1 { "1 peer was".to_owned() } else { format!("{} peers were", ended.told) };
    match (ended.told, drained) {
        (0, true) => "ended: no peer was connected\n".to_owned(),
        (_, true) => {
            format!("ended: {peers} told so; what was under way has finished, what was to follow has not begun\n")
        }
        (_, false) => {
            let seconds = DRAIN.as_secs();
            format!(
                "ended: {peers} told so; broken off after {seconds} s with something under way: {}\n",
                names.join(", ")
            )
        }
    }
}
