//! Peers' own programs that measure, one short run of them a round.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::catalog::Peer;
use super::child::{Running, Said};
use super::error::{PeerError, last_words};
use super::store::{Installed, Store};
use crate::measure::cores::Stay;

/// One run of any of them; most take a tenth of a second.
const RUN: Duration = Duration::from_secs(60);
/// How long a server may take until it listens.
const LISTEN: Duration = Duration::from_secs(20);

/// A program of a peer that measures itself: how long so many bytes take one way between two processes, or how many
/// go over in a second.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// What rows call it.
    pub title: &'static str,
    /// Which peer.
    pub peer: &'static str,
    /// Its settings: environment variables.
    pub settings: &'static [(&'static str, &'static str)],
    program: &'static str,
    client: fn(port: u16, amount: u64) -> String,
    server: fn(port: u16, amount: u64) -> String,
    read: fn(&str) -> Option<Reading>,
}

/// What one run of a program told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The time of one way, or of one byte where it measures throughput; in nanoseconds.
    pub nanos: f64,
    /// CPU time of both sides for 10^9 bytes, in seconds, where it tells.
    pub cpu_s_per_gb: Option<f64>,
}

/// UCX over shared memory: a put of 8 bytes that the other side polls for.
pub const UCX: Tool = Tool {
    title: "UCX shm, ucp_put_lat",
    peer: "ucx",
    settings: &[("UCX_TLS", "shm,self")],
    program: "ucx_perftest",
    client: |port, rounds| format!("127.0.0.1 -p {port} -t ucp_put_lat -s 8 -n {rounds} -w 1000 -f -v"),
    // All else its client tells it.
    server: |port, _| format!("-p {port}"),
    read: read_ucx,
};

/// UCX over TCP: a put of 64 bytes that the other side polls for.
pub const UCX_TCP_PUT: Tool = Tool {
    title: "UCX tcp, ucp_put_lat",
    settings: &[("UCX_TLS", "tcp,self")],
    client: |port, rounds| format!("127.0.0.1 -p {port} -t ucp_put_lat -s 64 -n {rounds} -w 1000 -f -v"),
    ..UCX
};

/// UCX over TCP: an active message of 64 bytes.
pub const UCX_TCP_AM: Tool = Tool {
    title: "UCX tcp, ucp_am_lat",
    client: |port, rounds| format!("127.0.0.1 -p {port} -t ucp_am_lat -s 64 -n {rounds} -w 1000 -f -v"),
    ..UCX_TCP_PUT
};

/// libfabric's shared-memory provider: a message of 8 bytes that the other side polls for.
pub const LIBFABRIC: Tool = Tool {
    title: "libfabric shm, fi_pingpong",
    peer: "libfabric",
    settings: &[],
    program: "fi_pingpong",
    client: |port, rounds| format!("-p shm -e rdm -S 8 -I {rounds} -P {port} 127.0.0.1"),
    // It wants to know all from its own command line.
    server: |port, rounds| format!("-p shm -e rdm -S 8 -I {rounds} -B {port}"),
    read: read_libfabric,
};

/// qperf: 64 bytes over TCP, both sides asleep until something comes. It runs for a second, whatever it is told.
pub const QPERF: Tool = Tool {
    title: "qperf, tcp_lat",
    peer: "qperf",
    settings: &[],
    program: "qperf",
    // The second test is the one that ends the server.
    client: |port, _| format!("127.0.0.1 -lp {port} -m 64 -t 1 tcp_lat quit"),
    server: |port, _| format!("-lp {port}"),
    read: read_qperf,
};

/// iperf3: so many bytes in one stream over TCP, from one small buffer into another.
pub const IPERF3: Tool = Tool {
    title: "iperf3, one stream",
    peer: "iperf3",
    settings: &[],
    program: "iperf3",
    client: |port, bytes| format!("-c 127.0.0.1 -p {port} -n {bytes} -J"),
    server: |port, _| format!("-s -1 -p {port}"),
    read: read_iperf3,
};

/// All of them.
pub const TOOLS: &[Tool] = &[UCX, LIBFABRIC, UCX_TCP_PUT, UCX_TCP_AM, QPERF, IPERF3];

impl Tool {
    /// Its settings in words.
    pub fn settings_in_words(&self) -> String {
        let settings: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if settings.is_empty() { "as it comes".to_owned() } else { settings.join(", ") }
    }
}

/// A peer's program that is ready to be run.
pub struct Meter {
    tool: &'static Tool,
    installed: Installed,
    near: Vec<usize>,
    far: Vec<usize>,
}

impl Meter {
    /// Its client will stay on the near cores and its server on the far ones.
    pub fn open(store: &Store, tool: &'static Tool, near: &[usize], far: &[usize]) -> Result<Self, PeerError> {
        let installed = store.find(Peer::find(tool.peer)?)?;
        Ok(Self { tool, installed, near: near.to_owned(), far: far.to_owned() })
    }

    /// Its version.
    pub fn version(&self) -> &str {
        self.installed.version()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = self.installed.program(self.tool.program);
        command.envs(self.tool.settings.iter().copied()).args(arguments.split(' '));
        command
    }

    /// One run of so many rounds, or bytes. A port that was free may be somebody else's a moment later, so a run that
    /// failed is begun once more at another; the second failure is told.
    pub fn run(&self, amount: u64) -> Result<Reading, PeerError> {
        self.run_once(amount).or_else(|_| self.run_once(amount))
    }

    fn run_once(&self, amount: u64) -> Result<Reading, PeerError> {
        let port = free_port()?;
        let server = self.command(&(self.tool.server)(port, amount));
        let client = self.command(&(self.tool.client)(port, amount));
        let said = play(port, (server, &self.far), (client, &self.near), &mut || {})?;
        (self.tool.read)(&said.out).ok_or_else(|| self.unreadable("figure", &said.out))
    }

    fn unreadable(&self, wanted: &'static str, words: &str) -> PeerError {
        PeerError::Unreadable { program: self.tool.program, wanted, words: last_words(words) }
    }
}

/// Runs a server and then its client, each on cores of its own, to their ends. Answers what the client said. What has to be done
/// while both run is done ten times a second.
pub(super) fn play(
    port: u16,
    (mut server, far): (Command, &[usize]),
    (mut client, near): (Command, &[usize]),
    meanwhile: &mut dyn FnMut(),
) -> Result<Said, PeerError> {
    // Dropped last: what is removed belongs to nobody by then.
    let mut leavings = Leavings::default();
    let mut serving = {
        let _stay = Stay::on(far);
        Running::start(&mut server)?
    };
    leavings.of(&serving);
    if !wait_for_listener(port, &mut serving)? {
        // It ended before it listened, so its words are the reason.
        let program = serving.program().to_owned();
        return Err(match serving.finish(LISTEN) {
            Ok(_) => PeerError::Deaf { program, port },
            Err(error) => error,
        });
    }
    let calling = {
        let _stay = Stay::on(near);
        Running::start(&mut client)?
    };
    leavings.of(&calling);
    let said = calling.finish_beside(RUN, meanwhile)?;
    serving.finish_beside(RUN, meanwhile)?;
    Ok(said)
}

/// Shared memory that programs leave behind when they are ended before they end: libfabric names it by the number
/// of the process.
#[derive(Default)]
struct Leavings(Vec<u32>);

/// Where shared memory with names is.
const SHARED_MEMORY: &str = "/dev/shm";

impl Leavings {
    fn of(&mut self, program: &Running) {
        self.0.push(program.id());
    }
}

impl Drop for Leavings {
    fn drop(&mut self) {
        let Ok(entries) = std::fs::read_dir(SHARED_MEMORY) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if self.0.iter().any(|&id| is_of_process(&name.to_string_lossy(), id)) {
                // Another of its processes may have removed it in this moment.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether a name in the folder of shared memory begins with this process's number: `4711:0:0`.
fn is_of_process(name: &str, id: u32) -> bool {
    name.split_once(':').is_some_and(|(number, _)| number.parse() == Ok(id))
}

pub(super) fn free_port() -> Result<u16, PeerError> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(PeerError::file("find a free port on", Path::new("127.0.0.1")))
}

/// Waits until the server listens; answers whether it does, or has ended instead. It is looked for in the kernel's list, as
/// a connection would be taken for the client; and it has to be the server's own, as the port may have become somebody
/// else's.
fn wait_for_listener(port: u16, server: &mut Running) -> Result<bool, PeerError> {
    let start = Instant::now();
    loop {
        let lists = ["/proc/net/tcp", "/proc/net/tcp6"].map(|list| std::fs::read_to_string(list).unwrap_or_default());
        let mut sockets = lists.iter().flat_map(|list| listeners(list, port));
        if sockets.any(|socket| holds(server.id(), &socket)) {
            return Ok(true);
        }
        if server.has_ended() {
            return Ok(false);
        }
        if start.elapsed() > LISTEN {
            return Err(PeerError::TooLong { program: format!("a server on port {port}"), waited: LISTEN });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sockets in a list such as `/proc/net/tcp` that listen at this port.
fn listeners(list: &str, port: u16) -> Vec<String> {
    const LISTENING: &str = "0A";
    let wanted = format!(":{port:04X}");
    let listener = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (local, state, socket) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
        (local.ends_with(&wanted) && *state == LISTENING).then(|| (*socket).to_owned())
    };
    list.lines().filter_map(listener).collect()
}

/// Whether a process has this socket open.
fn holds(process: u32, socket: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let wanted = format!("socket:[{socket}]");
    entries.flatten().filter_map(|entry| entry.path().read_link().ok()).any(|path| path.as_os_str() == wanted.as_str())
}

/// The overall latency of the last line, which is CSV: iterations, a percentile, average and overall latency
/// in microseconds, and more.
fn read_ucx(text: &str) -> Option<Reading> {
    let last = text.lines().rev().map(str::trim).find(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    latency(last.split(',').nth(3)?, "us")
}

/// The column `usec/xfer` of the line below the headings.
fn read_libfabric(text: &str) -> Option<Reading> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes"));
    let column = lines.next()?.split_whitespace().position(|heading| heading == "usec/xfer")?;
    latency(lines.next()?.split_whitespace().nth(column)?, "us")
}

/// The line `latency = 27.1 us`.
fn read_qperf(text: &str) -> Option<Reading> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("latency"))?;
    let (figure, unit) = line.trim_start().strip_prefix('=')?.trim().split_once(' ')?;
    latency(figure, unit.trim())
}

/// What the receiver counted, and the shares of a CPU that both sides used meanwhile.
fn read_iperf3(text: &str) -> Option<Reading> {
    let end = serde_json::from_str::<Value>(text).ok()?["end"].take();
    let bits_per_second = end["sum_received"]["bits_per_second"].as_f64().filter(|&rate| rate.is_normal())?;
    let percent = &end["cpu_utilization_percent"];
    let cpus = percent["host_total"].as_f64().zip(percent["remote_total"].as_f64());
    let nanos = 8e9 / bits_per_second;
    // CPUs in use, for as many seconds as 10^9 bytes take.
    let cpu_s_per_gb = cpus.map(|(near, far)| (near + far) / 100.0 * nanos);
    (nanos > 0.0).then_some(Reading { nanos, cpu_s_per_gb })
}

fn latency(figure: &str, unit: &str) -> Option<Reading> {
    let nanos_a_unit = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        _ => return None,
    };
    let nanos = figure.parse::<f64>().ok()? * nanos_a_unit;
    (nanos > 0.0 && nanos.is_finite()).then_some(Reading { nanos, cpu_s_per_gb: None })
}

#[cfg(test)]
mod tests;
