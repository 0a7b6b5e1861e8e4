//! Two hosts on one machine: two network namespaces whose only link is a wire.
//!
//! Side A is 10.77.0.1 and fd00:77::1, side B is 10.77.0.2 and fd00:77::2; each device is called `wire0`. Nothing else
//! can be reached from either. Neighbours are written down in advance: a lost ARP answer would cost a second, and a
//! partition would be noticed by the kernel as an unreachable host rather than as silence.
//!
//! The wire is a thread of the test's process and the devices live as long as its descriptors: if the process dies,
//! however it dies, they are gone. Namespaces carry the number of the process in their name, and the next one that
//! makes some removes those of processes that are no longer there.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::control::Answer;
use crate::pump::Pump;
use crate::scenario::{Direction, Scenario, ScenarioError, parse_faults};
use crate::tap::{self, Place, Tap};
use crate::wire::Stats;

/// One of the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The one at the other end.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Why there are no two hosts.
#[derive(Debug, Error)]
pub enum HostsError {
    /// A step of making or changing them went wrong.
    #[error("`{step}` went wrong: {why}")]
    Step {
        /// What was tried.
        step: String,
        /// What it said.
        why: String,
    },
    /// Something that was asked of the system.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The wire does not do that.
    #[error("the wire refuses `{order}`: {why}")]
    Refused {
        /// What it was told.
        order: String,
        /// What it said.
        why: String,
    },
    /// These are no faults.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The hosts are there but do not hear each other.
    #[error("the two hosts do not hear each other after {0:?}")]
    Silent(Duration),
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> HostsError {
    move |error| HostsError::Io { what, error }
}

/// The device of each host.
const DEVICE: &str = "wire0";

/// How names of namespaces begin; the number of the process follows.
const PREFIX: &str = "penstock-wire-";

/// Longest wait for anything that should take no time.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many were made by this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Two hosts and the wire between them. Dropping removes everything.
pub struct TwoHosts {
    names: [Name; 2],
    namespaces: [File; 2],
    mtu: u32,
    orders: UnixStream,
    answers: BufReader<UnixStream>,
    wire: Option<JoinHandle<io::Result<()>>>,
}

/// A namespace that is removed at the end.
struct Name(String);

impl Drop for Name {
    fn drop(&mut self) {
        // At the end there is nobody to tell; what is left is swept by the next process that makes hosts.
        let _ = ip(&["netns", "del", &self.0]);
    }
}

impl TwoHosts {
    /// Makes two hosts with the usual MTU of 1500. The scenario begins when they hear each other.
    pub fn create(scenario: Scenario) -> Result<Self, HostsError> {
        Self::with_mtu(scenario, 1500)
    }

    /// Makes two hosts with another MTU: 9000 for speed.
    pub fn with_mtu(scenario: Scenario, mtu: u32) -> Result<Self, HostsError> {
        sweep();
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let make = |side: &str| {
            let name = format!("{PREFIX}{}-{number}-{side}", std::process::id());
            ip(&["netns", "add", &name])?;
            Ok::<_, HostsError>(Name(name))
        };
        let names = [make("a")?, make("b")?];
        let open = |name: &Name| tap::namespace(&name.0).map_err(io_error("opening a namespace"));
        let namespaces = [open(&names[0])?, open(&names[1])?];
        let end = |name: &Name| {
            let place = Place { namespace: Some(name.0.clone()), device: DEVICE.to_owned() };
            Tap::open(&place).map_err(io_error("making a TAP device"))
        };
        let pump = Pump::new([end(&names[0])?, end(&names[1])?], scenario, true);
        let (orders, theirs) = UnixStream::pair().map_err(io_error("making a channel to the wire"))?;
        orders.set_read_timeout(Some(PATIENCE)).map_err(io_error("setting a deadline"))?;
        let answers = BufReader::new(orders.try_clone().map_err(io_error("making a channel to the wire"))?);
        let run = move || pump.run(Some(theirs.as_fd()), theirs.as_fd());
        let wire = std::thread::Builder::new().name("wire".to_owned()).spawn(run);
        let wire = Some(wire.map_err(io_error("starting the wire"))?);
        let mut hosts = Self { names, namespaces, mtu, orders, answers, wire };
        hosts.hear("waiting for the wire")?;
        for side in Side::BOTH {
            hosts.furnish(side)?;
        }
        hosts.wait_until_heard()?;
        hosts.tell("start")?;
        Ok(hosts)
    }

    /// Why two hosts cannot be made here, if they cannot: a lab's reason to be skipped.
    pub fn why_not() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("needs root".to_owned());
        }
        if let Err(error) = Command::new("ip").arg("-V").output() {
            return Some(format!("needs the command ip of the package iproute2: {error}"));
        }
        if let Err(error) = File::open("/dev/net/tun") {
            return Some(format!("needs TAP devices: /dev/net/tun: {error}"));
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let probe = Name(format!("{PREFIX}{}-{number}-probe", std::process::id()));
        match ip(&["netns", "add", &probe.0]) {
            Ok(()) => None,
            Err(error) => Some(format!("needs network namespaces: {error}")),
        }
    }

    fn name(&self, side: Side) -> &str {
        &self.names[usize::from(side.number()) - 1].0
    }

    /// A program to be run on a host.
    pub fn command(&self, side: Side, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.name(side)]).arg(program);
        command
    }

    /// Runs something on a host, on a thread of its own in this process. Sockets made there stay on that host, wherever
    /// they are used later.
    pub fn inside<T: Send>(&self, side: Side, run: impl FnOnce() -> T + Send) -> Result<T, HostsError> {
        tap::inside(&self.namespaces[usize::from(side.number()) - 1], run).map_err(io_error("entering a namespace"))
    }

    /// A host's address.
    pub fn address(&self, side: Side, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, 77, 0, side.number()).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, side.number().into()).into(),
        }
    }

    /// Cuts the wire: nothing passes once this returns, and what was under way is lost.
    pub fn cut(&mut self, direction: Direction) -> Result<(), HostsError> {
        self.tell(&format!("partition {direction}")).map(drop)
    }

    /// Ends every partition of a direction, the script's too.
    pub fn heal(&mut self, direction: Direction) -> Result<(), HostsError> {
        self.tell(&format!("heal {direction}")).map(drop)
    }

    /// Changes faults (`loss=5%,delay=1ms`); those that are not named stay.
    pub fn set(&mut self, direction: Direction, faults: &str) -> Result<(), HostsError> {
        parse_faults(faults)?;
        self.tell(&format!("set {direction} {faults}")).map(drop)
    }

    /// What came of all frames since the scenario began.
    pub fn stats(&mut self) -> Result<Stats, HostsError> {
        match self.tell("stats")? {
            Answer::Stats(stats) => Ok(*stats),
            other => Err(HostsError::Refused { order: "stats".to_owned(), why: format!("{other:?}") }),
        }
    }

    /// Takes a host's device down, as when a cable is pulled there: its own kernel knows.
    pub fn link_down(&self, side: Side) -> Result<(), HostsError> {
        ip(&["-n", self.name(side), "link", "set", DEVICE, "down"])
    }

    /// Brings it up again, with its addresses.
    pub fn link_up(&self, side: Side) -> Result<(), HostsError> {
        self.furnish(side)
    }

    /// Gives a host's device another MTU: its own kernel sends nothing longer from then on. Coming up again makes it the first one.
    pub fn set_mtu(&self, side: Side, mtu: u32) -> Result<(), HostsError> {
        ip(&["-n", self.name(side), "link", "set", DEVICE, "mtu", &mtu.to_string()])
    }

    /// Addresses, neighbours and all that a device loses when it goes down.
    fn furnish(&self, side: Side) -> Result<(), HostsError> {
        let (own, other) = (side.number(), side.other().number());
        let mac = |number: u8| format!("02:77:00:00:00:{number:02x}");
        let name = self.name(side);
        let run = |line: &str| ip(&[&["-n", name], &line.split_whitespace().collect::<Vec<_>>()[..]].concat());
        run("link set lo up")?;
        // The queue in front of the wire is long: what is lost there, because this machine is busy, no seed has decided.
        run(&format!("link set {DEVICE} mtu {} txqueuelen 10000 address {}", self.mtu, mac(own)))?;
        run(&format!("link set {DEVICE} up"))?;
        for (family, address) in [(Family::V4, "/24"), (Family::V6, "/64 nodad")] {
            let (here, there) = (self.address(side, family), self.address(side.other(), family));
            run(&format!("addr replace {here}{address} dev {DEVICE}"))?;
            run(&format!("neigh replace {there} lladdr {} dev {DEVICE} nud permanent", mac(other)))?;
        }
        Ok(())
    }

    /// Sends until the other side hears, in both families and both directions.
    fn wait_until_heard(&self) -> Result<(), HostsError> {
        let deadline = Instant::now() + PATIENCE;
        for (side, family) in
            [(Side::A, Family::V4), (Side::B, Family::V4), (Side::A, Family::V6), (Side::B, Family::V6)]
        {
            let bind = |side: Side| {
                let address = self.address(side, family);
                self.inside(side, || UdpSocket::bind((address, 0)))?.map_err(io_error("binding a socket on a host"))
            };
            let (near, far) = (bind(side)?, bind(side.other())?);
            let there = far.local_addr().map_err(io_error("asking for a port"))?;
            far.set_read_timeout(Some(Duration::from_millis(20))).map_err(io_error("setting a deadline"))?;
            // What cannot be sent yet is tried again, like what was not heard.
            while near.send_to(b"there?", there).is_err() || far.recv(&mut [0; 8]).is_err() {
                if Instant::now() > deadline {
                    return Err(HostsError::Silent(PATIENCE));
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, order: &str) -> Result<Answer, HostsError> {
        self.orders.write_all(format!("{order}\n").as_bytes()).map_err(io_error("telling the wire"))?;
        self.hear(order)
    }

    fn hear(&mut self, order: &str) -> Result<Answer, HostsError> {
        let refused = |why: String| HostsError::Refused { order: order.to_owned(), why };
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(io_error("listening to the wire"))?;
        match serde_json::from_str(&line) {
            Ok(Answer::Error(why)) => Err(refused(why)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(refused(format!("{error} in {line:?}"))),
        }
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        // The end of its input is the end of the wire; the devices go with it, then the namespaces.
        let _ = self.orders.shutdown(std::net::Shutdown::Both);
        if let Some(wire) = self.wire.take() {
            let _ = wire.join();
        }
    }
}

/// Removes namespaces of processes that are no longer there: killed ones remove nothing themselves.
fn sweep() {
    let Ok(folder) = std::fs::read_dir("/run/netns") else { return };
    for entry in folder.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        let process = name[PREFIX.len()..].split('-').next().and_then(|number| number.parse::<u32>().ok());
        let is_gone = process.is_some_and(|number| !std::path::Path::new(&format!("/proc/{number}")).exists());
        if is_gone {
            // Another process may sweep the same one at the same time.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), HostsError> {
    let step = || format!("ip {}", arguments.join(" "));
    match Command::new("ip").args(arguments).output() {
        Err(error) => Err(HostsError::Step { step: step(), why: error.to_string() }),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(HostsError::Step { step: step(), why })
        }
    }
}
