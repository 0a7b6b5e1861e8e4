//! How the command ends, and why it could not do what it was asked.

use std::fmt;
use std::process::ExitCode;

use penstock::StartError;
use penstock::config::ConfigError;
use penstock::device::CudaError;
use penstock_lab::perf::PerfError;
use penstock_lab::service::ServiceError;

use crate::demo;
use crate::network::{self, NoSecret, Unreached};
use crate::selftest::Flaw;

/// How the command ends; the numbers are documented in its help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Everything asked for was done and is right.
    Well,
    /// Something was found wrong, or could not be done.
    Badly,
    /// The question was wrong: arguments, or a file that was handed in.
    Misasked,
}

impl From<Ended> for ExitCode {
    fn from(ended: Ended) -> Self {
        Self::from(match ended {
            Ended::Well => 0,
            Ended::Badly => 1,
            Ended::Misasked => 2,
        })
    }
}

/// Why the command could not do what it was asked. Shown as `penstock: what; what to do next`.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments make no sense.
    Usage(clap::Error),
    /// `PENSTOCK_LOG` makes no sense.
    Filter(String),
    /// A configuration is not right.
    Config(ConfigError),
    /// There is no such configuration key.
    Key(String),
    /// Standard output cannot be written to.
    Output(std::io::Error),
    /// A measurement could not be made, or wrong bytes arrived in it.
    Perf(PerfError),
    /// Neither could one to another host, and `penstock doctor` says more of the way there.
    There { error: PerfError, host: String },
    /// The engine could not start.
    Start(StartError),
    /// Another host could not be reached.
    Reach(Unreached),
    /// memif joins two processes of this host that nobody kills: what else was asked for, and what to do instead.
    Memif(&'static str),
    /// A configuration gives a device of DPDK to the two engines of one host.
    OneDevice,
    /// There is no secret here to share with it.
    NoSecret(NoSecret),
    /// The other host did not do what it was asked.
    Service(ServiceError),
    /// There is no device memory here, or not so much.
    Cuda(CudaError),
    /// A device did not do its part.
    Device(Flaw),
    /// An option that says nothing to a device that is measured by itself.
    DeviceAlone(&'static str),
    /// Signals cannot be waited for.
    Signals(std::io::Error),
    /// The hidden other process of the self-test could not do its part.
    Target(Flaw),
    /// A hidden process of the demonstration could not do its part.
    Node(demo::Flaw),
}

impl Failure {
    pub(crate) fn ended(&self) -> Ended {
        match self {
            Self::Usage(_) | Self::Filter(_) | Self::Config(_) | Self::Key(_) => Ended::Misasked,
            Self::DeviceAlone(_) => Ended::Misasked,
            Self::Perf(PerfError::Workload(_) | PerfError::Option { .. }) => Ended::Misasked,
            Self::Start(StartError::Config(_) | StartError::Name(_)) | Self::Memif(_) | Self::OneDevice => {
                Ended::Misasked
            }
            Self::Perf(_) | Self::There { .. } | Self::Output(_) | Self::Target(_) | Self::Node(_) => Ended::Badly,
            Self::Cuda(_) | Self::Device(_) => Ended::Badly,
            Self::Start(_) | Self::Reach(_) | Self::NoSecret(_) | Self::Service(_) | Self::Signals(_) => Ended::Badly,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) => {
                let text = error.render().to_string();
                // Without a command there is no error in the text, only the help.
                match text.strip_prefix("error: ") {
                    Some(error) => f.write_str(error.trim_end()),
                    None => write!(f, "tell it what to do\n\n{}", text.trim_end()),
                }
            }
            Self::Filter(reason) => {
                write!(f, "PENSTOCK_LOG is not a filter ({reason}); try `info`, or `penstock=debug`")
            }
            Self::Config(error) => error.fmt(f),
            Self::Key(key) => {
                write!(f, "there is no configuration key or section `{key}`; `penstock config keys` lists them")
            }
            Self::Output(error) => {
                write!(f, "cannot write to standard output ({error}); is the disk it goes to full?")
            }
            Self::Perf(error) => error.fmt(f),
            Self::There { error, host } => f.write_str(&network::with_doctor_of(host, &error.to_string())),
            Self::Target(flaw) => flaw.fmt(f),
            Self::Node(flaw) => flaw.fmt(f),
            Self::Cuda(error) => error.fmt(f),
            Self::Device(flaw) => flaw.fmt(f),
            Self::DeviceAlone(option) => write!(
                f,
                "`--memory device` alone measures the GPU by itself, to which {option} says nothing: leave that out, or add HOST or `--transport shm`"
            ),
            Self::Start(error) => error.fmt(f),
            Self::Memif(mend) => write!(f, "`--transport dpdk` is for two processes of this host: {mend}"),
            Self::OneDevice => f.write_str(
                "this measures between two engines of this host, and `dpdk.device` of the configuration is for one: give HOST, where `penstock serve` \
                 has another device, or leave the configuration out and add `--transport dpdk`",
            ),
            Self::Reach(unreached) => unreached.fmt(f),
            Self::NoSecret(missing) => write!(f, "{missing}\n  {}", missing.advice()),
            Self::Service(error) => error.fmt(f),
            Self::Signals(error) => write!(f, "cannot wait for signals ({error}); does a filter forbid sigaction?"),
        }
    }
}

impl From<PerfError> for Failure {
    fn from(error: PerfError) -> Self {
        Self::Perf(error)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self::Start(error)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Self::Service(error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}
