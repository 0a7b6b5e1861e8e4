//! How others are reached.

use std::collections::HashSet;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use penstock::{Config, config};

use super::whole;
use crate::failure::Failure;

/// How another host is reached.
#[derive(Debug, Args)]
pub(crate) struct NetworkOptions {
    /// The file with the secret that hosts share [default: your own, copied from the host that serves]
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) secret_file: Option<PathBuf>,
    /// What moves bytes between sockets and memory here
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) io: SocketIo,
    /// TCP streams of each worker
    #[arg(long, value_parser = streams)]
    pub(crate) streams: Option<usize>,
    #[command(flatten)]
    pub(crate) cards: CardOptions,
}

impl NetworkOptions {
    /// The configuration with the secret that was named, if one was.
    pub(crate) fn configured(&self, config: Config) -> Config {
        match &self.secret_file {
            Some(file) => config.secret_file(file),
            None => config,
        }
    }
}

/// A file, by a path that means the same wherever it is used: an engine takes no others.
pub(crate) fn file(text: &str) -> Result<PathBuf, String> {
    std::path::absolute(text).map_err(|error| error.to_string())
}

/// Another host: a name or an address, with a port or without.
pub(crate) fn host(text: &str) -> Result<String, String> {
    let is_address = |text: &str| text.parse::<std::net::IpAddr>().is_ok();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if is_address(bare) {
        return Ok(text.to_owned());
    }
    let (host, port) = text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    if host.is_empty() {
        return Err("there is no host in it; give HOST or HOST:PORT".to_owned());
    }
    match port {
        None => Ok(text.to_owned()),
        Some(port) if port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(text.to_owned()),
        Some(port) => Err(format!("`{port}` is no port; ports are whole numbers from 1 to 65535")),
    }
}

/// Which RDMA devices are used, and how.
#[derive(Debug, Args)]
pub(crate) struct CardOptions {
    /// RDMA devices of this host for `verbs`, `device[:port[:gid index]]`, separated by commas [default: chosen]
    #[arg(long, value_delimiter = ',', value_name = "DEVICE", value_parser = device)]
    pub(crate) devices: Vec<String>,
    /// How `verbs` has queue pairs connected; both hosts need it alike [default: exchange]
    #[arg(long, value_enum)]
    pub(crate) connect: Option<QueueConnect>,
}

impl CardOptions {
    /// What was asked for overrules a configuration.
    pub(crate) fn overrule(&self, config: &mut Config) -> Result<(), Failure> {
        let mut seen = HashSet::new();
        if let Some(twice) = self.devices.iter().find(|device| !seen.insert(device.as_str())) {
            return Err(misused(&format!("--devices names {twice} twice; a port is used once")));
        }
        if !self.devices.is_empty() {
            config.transports.verbs_devices.clone_from(&self.devices);
        }
        if let Some(connect) = self.connect {
            config.transports.verbs_connect = connect.into();
        }
        Ok(())
    }

    /// They mean nothing here.
    pub(crate) fn refuse(&self, why: &str) -> Result<(), Failure> {
        let named = [("--devices", !self.devices.is_empty()), ("--connect", self.connect.is_some())];
        match named.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(misused(&format!("{option} {why}"))),
            None => Ok(()),
        }
    }
}

fn misused(words: &str) -> Failure {
    Failure::Usage(clap::Error::raw(ErrorKind::ArgumentConflict, words))
}

fn device(text: &str) -> Result<String, String> {
    penstock_doctor::check_device(text).map(|()| text.to_owned())
}

/// How queue pairs of RDMA devices are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueueConnect {
    /// By numbers that the engines tell each other
    Exchange,
    /// By the connection manager, `rdma_cm`
    Cm,
}

impl From<QueueConnect> for config::VerbsConnect {
    fn from(connect: QueueConnect) -> Self {
        match connect {
            QueueConnect::Exchange => Self::Exchange,
            QueueConnect::Cm => Self::Cm,
        }
    }
}

/// What moves bytes between sockets and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SocketIo {
    /// `io_uring` where the kernel lets this process, else epoll
    Auto,
    /// A ring shared with the kernel
    #[value(name = "io_uring")]
    IoUring,
    /// Ordinary calls
    Epoll,
}

impl From<SocketIo> for config::TcpIo {
    fn from(io: SocketIo) -> Self {
        match io {
            SocketIo::Auto => Self::Auto,
            SocketIo::IoUring => Self::IoUring,
            SocketIo::Epoll => Self::Epoll,
        }
    }
}

fn streams(text: &str) -> Result<usize, String> {
    whole(text, 16)
}
