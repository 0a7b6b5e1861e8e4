//! The way to an engine on another host, and what to do where it ends.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock::config::TransportName;
use penstock::secret::{SECRET_ITSELF_VARIABLE, SECRET_VARIABLE};
use penstock::{Config, ConnectError, Engine};
use penstock_lab::LabError;
use penstock_lab::ends::network::unique_name;
use penstock_lab::service::{About, Client};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::arguments::NetworkOptions;
use crate::failure::Failure;

/// The port of `penstock serve`.
pub(crate) const PORT: u16 = 7400;

/// How long another host may take to be in touch.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// How long it may take for an answer that costs nothing.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Another host as it was written, with the usual port where it names none.
pub(crate) fn with_port(host: &str) -> String {
    if host.parse::<SocketAddr>().is_ok() {
        return host.to_owned();
    }
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, PORT).to_string(),
        Err(_) if host.contains(':') => host.to_owned(),
        Err(_) => format!("{host}:{PORT}"),
    }
}

/// An engine of this process with a session to one that serves.
pub(crate) struct Line {
    pub(crate) client: Client,
    pub(crate) about: About,
    pub(crate) engine: Engine,
}

/// Another host that was not reached.
#[derive(Debug)]
pub(crate) struct Unreached {
    pub(crate) host: String,
    pub(crate) error: ConnectError,
}

impl Unreached {
    /// What to do next, beyond what the engine says.
    pub(crate) fn advice(&self) -> Option<String> {
        let host = without_port(&self.host);
        match &self.error {
            ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } | ConnectError::Lost { .. } => {
                Some(format!(
                    "start `penstock serve` on {host}, and call the address and port that it says; `penstock doctor {}` looks \
                 step by step",
                    self.host
                ))
            }
            ConnectError::NotPenstock { .. } => {
                Some(format!("call the address and port that `penstock serve` says when it starts on {host}"))
            }
            ConnectError::WrongSecret { .. } => Some(format!(
                "copy the secret of the one that serves: `{}`; or name it with --secret-file",
                copying(&self.host, None)
            )),
            _ => None,
        }
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            ConnectError::Unreachable { path, reason, .. } => {
                write!(f, "cannot reach {}: nobody answers at {path} ({reason})", self.host)?;
            }
            error => write!(f, "cannot reach {}: {error}", self.host)?,
        }
        match self.advice() {
            Some(advice) => write!(f, "\n  {advice}"),
            None => Ok(()),
        }
    }
}

fn without_port(host: &str) -> &str {
    host.rsplit_once(':').map_or(host, |(host, _)| host)
}

/// The command that copies the secret of a host to here.
fn copying(host: &str, to: Option<&Path>) -> String {
    let to = to.map_or_else(|| "~/.config/penstock/secret".to_owned(), |to| to.display().to_string());
    format!("scp {}:.config/penstock/secret {to}", without_port(host))
}

/// There is no secret here to share with the host that is to be called. Nothing was made: a new one would be another than its.
#[derive(Debug)]
pub(crate) struct NoSecret {
    pub(crate) host: String,
    pub(crate) file: PathBuf,
}

impl NoSecret {
    /// What to do next.
    pub(crate) fn advice(&self) -> String {
        let folder = self.file.parent().map(|folder| folder.display().to_string()).unwrap_or_default();
        format!(
            "copy the secret of the one that serves: `mkdir -p -m 700 {folder} && {}`; or name it with --secret-file",
            copying(&self.host, Some(&self.file))
        )
    }

    /// Looks for the secret that an engine with this configuration shares.
    pub(crate) fn check(host: &str, config: &Config) -> Result<(), Self> {
        match secret_file(config) {
            // What is wrong with one that is there says the engine.
            Some(file) if matches!(file.try_exists(), Ok(false)) => Err(Self { host: host.to_owned(), file }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for NoSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no secret here yet that {} could share: {} is not there", self.host, self.file.display())
    }
}

/// Why a measurement to this host failed, with what to do next where the host was not reached.
pub(crate) fn explained(error: LabError, host: Option<&str>) -> Failure {
    if let (LabError::Refused { source, .. }, Some(host)) = (&error, host)
        && let Some(error) = source.downcast_ref::<ConnectError>()
    {
        return Failure::Reach(Unreached { host: host.to_owned(), error: error.clone() });
    }
    match host {
        Some(host) if error.to_string().contains(DOCTOR) => Failure::There { error, host: host.to_owned() },
        _ => Failure::Perf(error),
    }
}

/// How the engine, which knows of no command line, names the look at this host.
const DOCTOR: &str = "`penstock doctor`";

/// Words in which that is the look at the way to another host.
pub(crate) fn with_doctor_of(host: &str, words: &str) -> String {
    words.replace(DOCTOR, &format!("`penstock doctor {host}`"))
}

/// An engine that reaches other hosts, and nobody here.
pub(crate) fn engine(what: &str, options: &NetworkOptions) -> Result<Engine, Failure> {
    let config = Config::default().named(unique_name(what)).transports([TransportName::Tcp]).tcp_io(options.io.into());
    // A server that many call at once needs longer than the engine's own bounds for the streams of a session.
    let config = config.connect_timeout(CONNECT);
    let config = match options.streams {
        Some(streams) => config.tcp_streams(streams),
        None => config,
    };
    Ok(Engine::start(options.configured(config))?)
}

/// Connects to the engine that serves at this address, and hears who it is.
pub(crate) fn call(what: &str, host: &str, options: &NetworkOptions) -> Result<Line, Failure> {
    NoSecret::check(host, &options.configured(Config::default())).map_err(Failure::NoSecret)?;
    let engine = engine(what, options)?;
    let peer = engine.connect_address(host, CONNECT);
    let peer = peer.map_err(|error| Failure::Reach(Unreached { host: host.to_owned(), error }))?;
    let mut client = Client::new(peer);
    let about = client.about(&engine, ANSWER)?;
    Ok(Line { client, about, engine })
}

/// Set when somebody asks this process to end. A second time the system's own way is taken: nobody has to wait for a drain.
#[derive(Debug, Clone)]
pub(crate) struct Over(Arc<AtomicBool>);

impl Over {
    pub(crate) fn watch() -> Result<Self, Failure> {
        let over = Arc::new(AtomicBool::new(false));
        let register = |signal| -> io::Result<()> {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&over))?;
            signal_hook::flag::register(signal, Arc::clone(&over))?;
            Ok(())
        };
        [SIGINT, SIGTERM].into_iter().try_for_each(register).map_err(Failure::Signals)?;
        Ok(Self(over))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where the secret is that hosts share, as the engine looks for it. None where no file is sought: the environment says it itself.
pub(crate) fn secret_file(config: &Config) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if std::env::var_os(SECRET_ITSELF_VARIABLE).is_some() {
        return None;
    }
    let own = || {
        let folder = variable("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let folder = folder.or_else(|| Some(variable("HOME").filter(|path| path.is_absolute())?.join(".config")));
        Some(folder?.join("penstock").join("secret"))
    };
    config.session.secret_file.clone().or_else(|| variable(SECRET_VARIABLE)).or_else(own)
}

#[cfg(test)]
mod tests {
    use penstock::Cause;
    use penstock_lab::LabError;
    use penstock_lab::service::ServiceError;

    use super::{explained, with_port};

    #[test]
    fn the_doctor_looks_at_the_way_where_a_host_is_known() {
        let ended = |cause| LabError::Service(ServiceError::Ended { peer: "serve-b".to_owned(), cause, loss: None });
        let there = explained(ended(Cause::NoPath), Some("gpu-b:7400")).to_string();
        assert!(there.contains("; `penstock doctor gpu-b:7400` says what is missing"), "{there}");
        let here = explained(ended(Cause::NoPath), None).to_string();
        assert!(here.contains("; `penstock doctor` says what is missing"), "{here}");
        let lost = explained(ended(Cause::PeerLost), Some("gpu-b:7400")).to_string();
        assert!(!lost.contains("doctor"), "{lost}");
    }

    #[test]
    fn the_usual_port_is_added_where_there_is_none() {
        for (written, meant) in [
            ("gpu-b", "gpu-b:7400"),
            ("gpu-b:1", "gpu-b:1"),
            ("10.0.0.7", "10.0.0.7:7400"),
            ("10.0.0.7:1", "10.0.0.7:1"),
            ("2001:db8::7", "[2001:db8::7]:7400"),
            ("[2001:db8::7]", "[2001:db8::7]:7400"),
            ("[2001:db8::7]:1", "[2001:db8::7]:1"),
        ] {
            assert_eq!(with_port(written), meant);
        }
    }
}
