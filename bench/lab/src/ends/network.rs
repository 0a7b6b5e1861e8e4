//! What two ends need that meet over the network, and the end that another host serves.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock::config::{ConfigError, PagesChoice, TcpIo, VerbsConnect};
use penstock::{Config, Engine, Peer, PeerPackets, RemoteRegion, SystemEnv};
use serde::{Deserialize, Serialize};

use super::end::End;
use super::memif::Memif;
use super::wire::{Command, Reply};
use crate::error::LabError;
use crate::layout::{LayoutSpec, Stretch};
use crate::perf::room::refuse_pools;
use crate::service::tenant::machine_mark;
use crate::service::{About, Answer, Client, Refusal, Request, ServiceError};

/// How long the other host may take to come into touch: its name is looked up, and a lost packet is sent again.
pub const CONNECT: Duration = Duration::from_secs(10);
/// How long it may take for anything: filling gigabytes is the longest. If it dies, the session's end says so sooner.
const ANSWER: Duration = Duration::from_secs(120);
/// The longest wait before it is looked whether to go on waiting.
const GLANCE: Duration = Duration::from_millis(50);

/// What ends do that meet over the network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// What moves bytes between sockets and memory; applies to ends that are started here.
    pub io: TcpIo,
    /// TCP streams that each worker has; the engine's default where absent.
    pub streams: Option<usize>,
    /// RDMA devices of this host; chosen where absent.
    #[serde(default)]
    pub devices: Vec<String>,
    /// How queue pairs of those are connected.
    #[serde(default)]
    pub connect: VerbsConnect,
    /// RDMA devices of a target that is started here, so that bytes leave by one port and come in by another; the same
    /// where absent.
    #[serde(default)]
    pub target_devices: Vec<String>,
    /// After how much silence a session is given up, or a greeting; the engine's defaults where absent.
    #[serde(default)]
    pub patience: Option<Duration>,
    /// The longest packet of the transport `datagram`; the engine's default where absent.
    #[serde(default)]
    pub frame_bytes: Option<usize>,
    /// What carries them in place of UDP.
    #[serde(default)]
    pub memif: Option<Memif>,
    /// Of a million of its packets so many are lost on their way, in each direction.
    #[serde(default)]
    pub loss_ppm: u32,
    /// Its packets carry a checksum of their payload, as they do where the carrier does not vouch for it.
    #[serde(default)]
    pub checksums: bool,
    /// A file with what is configured otherwise than usual, for both ends that are started here. Who they are, where they meet and what is
    /// measured stays the measurement's own.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// The secret of the group; that of the ends' own folder where both are started here, else the user's own.
    pub secret_file: Option<PathBuf>,
    /// `host:port` of an engine that serves the target; both ends are of this host where absent.
    pub host: Option<String>,
}

impl Network {
    /// What a configuration of an end begins with.
    pub fn base(&self) -> Result<Config, ConfigError> {
        let usual = || Ok(Config::default().connect_timeout(CONNECT));
        let mut config = self.config.as_ref().map_or_else(usual, Config::load)?;
        config.session.listen.clear();
        Ok(config)
    }

    /// A configuration with what is asked for.
    pub fn apply(&self, config: Config) -> Config {
        let config = if self.io == TcpIo::default() { config } else { config.tcp_io(self.io) };
        let config = if self.devices.is_empty() { config } else { config.verbs_devices(&self.devices) };
        let config = if self.connect == VerbsConnect::default() { config } else { config.verbs_connect(self.connect) };
        let config = match self.streams {
            Some(streams) => config.tcp_streams(streams),
            None => config,
        };
        let config = match self.frame_bytes {
            Some(bytes) => config.datagram_frame(bytes),
            None => config,
        };
        let config = match &self.memif {
            Some(memif) => Config { dpdk: memif.section(), ..config },
            None => config,
        };
        let config = match self.patience {
            Some(silence) => config.heartbeat(silence).greeting_timeout(silence),
            None => config,
        };
        match &self.secret_file {
            Some(file) => config.secret_file(file),
            None => config,
        }
    }
}

impl Network {
    /// What a target needs that is started here.
    pub(super) fn of_target(&self) -> Self {
        let devices = if self.target_devices.is_empty() { &self.devices } else { &self.target_devices };
        Self { devices: devices.clone(), memif: self.memif.as_ref().map(Memif::other), ..self.clone() }
    }
}

/// A name that no other host's measurement has at the same time.
pub fn unique_name(what: &str) -> String {
    use std::hash::{BuildHasher, Hasher};
    // Seeded by the system, differently in each process.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{what}-{:08x}", random as u32)
}

/// What refuses a pool does so at once; longer than this only making one takes.
const REFUSAL: Duration = Duration::from_millis(250);

/// A pool that another host makes.
pub(super) struct Asked {
    client: Client,
    about: About,
    number: u32,
    answer: Option<Answer>,
}

impl Asked {
    /// Has the peer make a pool of so many bytes, and waits until it has made it or has not refused it. Refuses it first where the peer is
    /// on this very machine, which has no room for two.
    pub(super) fn begin(
        engine: &Engine,
        peer: Peer<SystemEnv>,
        bytes: u64,
        pages: PagesChoice,
    ) -> Result<Self, LabError> {
        let mut client = Client::new(peer);
        let about = client.about(engine, CONNECT)?;
        if about.machine.is_some() && about.machine == machine_mark() {
            refuse_pools(2, bytes, 0)?;
        }
        let request = &Request::Pool { bytes, pages };
        let number = client.begin(request, CONNECT)?;
        let answer = match client.answer(engine, number, REFUSAL) {
            Ok(answer) => Some(answer),
            Err(ServiceError::Silent { .. }) => None,
            Err(refused) => return Err(refused.into()),
        };
        Ok(Self { client, about, number, answer })
    }

    /// Waits until it is made. Answers it, with the pool as plans name it, and the label of its counter.
    pub(super) fn finish(mut self, engine: &Engine) -> Result<(Served, RemoteRegion<SystemEnv>, String), LabError> {
        let answer = match self.answer {
            Some(answer) => answer,
            None => self.client.answer(engine, self.number, ANSWER)?,
        };
        let (label, counter) = match answer {
            Answer::Pool { label, counter, .. } => (label, counter),
            other => return Err(self.client.unexpected(&other).into()),
        };
        let peer = self.client.peer();
        let remote = peer.wait_region(&label, CONNECT).map_err(LabError::refused("find the target's pool"));
        let remote = remote.map_err(|error| error.or_loss_of(peer))?;
        Ok((Served { client: self.client, about: self.about, pool: label }, remote, counter))
    }
}

/// The target on another host.
pub(crate) struct Served {
    client: Client,
    about: About,
    pool: String,
}

impl Served {
    /// Says how many bytes this side has moved since it said so first, which begins a measurement. Answers the part of the server's CPU
    /// time that is charged to it.
    pub(crate) fn charge(&mut self, near: &End, moved: u64, is_last: bool) -> Result<Duration, LabError> {
        match self.client.ask(&near.engine, &Request::Charge { moved, is_last }, ANSWER)? {
            Answer::Cpu { nanos } => Ok(Duration::from_nanos(nanos)),
            other => Err(self.client.unexpected(&other).into()),
        }
    }

    /// The same in passing.
    pub(crate) fn mention(&mut self, near: &End, moved: u64) {
        // Where there is no room for it the next one says as much.
        let _ = self.client.mention(&near.engine, &Request::Charge { moved, is_last: false });
    }

    /// What has become of the packets to and from it, while the session stands and where there are some.
    pub(crate) fn packets(&self) -> Option<PeerPackets> {
        self.client.peer().packets()
    }

    /// Has a stretch of the blocks looked at. Answers how many bytes were; none where `is_over` said so before the answer came.
    pub(crate) fn check(
        &mut self,
        near: &End,
        layout: &LayoutSpec,
        stretch: Stretch,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, LabError> {
        let (pool, layout) = (self.pool.clone(), layout.clone());
        let request = Request::Check { pool, layout, first_bytes: Some(stretch.bytes), from_byte: stretch.from };
        match self.ask_until(near, &request, is_over)? {
            None => Ok(None),
            Some(Answer::Checked { bytes }) => Ok(Some(bytes)),
            Some(Answer::Wrong(mismatch)) => Err(LabError::Corrupt(mismatch)),
            Some(other) => Err(self.client.unexpected(&other).into()),
        }
    }

    /// Asks and waits for the answer; none where `is_over` said so before.
    fn ask_until(
        &mut self,
        near: &End,
        request: &Request,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<Answer>, LabError> {
        let until = Instant::now() + ANSWER;
        let mut number = self.client.begin(request, ANSWER)?;
        loop {
            match self.client.answer(&near.engine, number, GLANCE) {
                Ok(answer) => return Ok(Some(answer)),
                Err(ServiceError::Silent { peer, .. }) if Instant::now() >= until => {
                    return Err(ServiceError::Silent { peer, within: ANSWER }.into());
                }
                Err(ServiceError::Silent { .. } | ServiceError::Refused { refusal: Refusal::Busy { .. }, .. })
                    if is_over() =>
                {
                    return Ok(None);
                }
                Err(ServiceError::Silent { .. }) => {}
                Err(ServiceError::Refused { refusal: Refusal::Busy { .. }, .. }) if Instant::now() < until => {
                    std::thread::sleep(GLANCE);
                    number = self.client.begin(request, ANSWER)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Who serves.
    pub(super) fn about(&self) -> &About {
        &self.about
    }

    /// Has the other host do something and waits for its answer.
    pub(super) fn ask(&mut self, near: &End, command: &Command) -> Result<Reply, LabError> {
        let pool = self.pool.clone();
        let request = match command {
            Command::Fill(layout) => Request::Fill { pool, layout: layout.clone() },
            Command::Wipe(_) => Request::Wipe { pool },
            Command::Check(layout) => Request::Check { pool, layout: layout.clone(), first_bytes: None, from_byte: 0 },
            Command::Cpu => Request::Cpu,
            _ => {
                let mend = "a target on another host is filled, wiped and checked; the rest needs both ends here";
                return Err(LabError::Option { option: "host", mend });
            }
        };
        match self.client.ask(&near.engine, &request, ANSWER)? {
            Answer::Done => Ok(Reply::Done),
            Answer::Checked { bytes } => Ok(Reply::Checked { bytes }),
            Answer::Wrong(mismatch) => Ok(Reply::Wrong(mismatch)),
            Answer::Cpu { nanos } => Ok(Reply::Cpu { nanos }),
            other => Err(self.client.unexpected(&other).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_and_differ() {
        let names = [unique_name("perf"), unique_name("perf")];
        assert!(names.iter().all(|name| penstock::EngineName::new(name).is_ok()));
        assert_ne!(names[0], names[1]);
    }
}
