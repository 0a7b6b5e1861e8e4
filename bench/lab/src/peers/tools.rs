//! Peers' own programs that measure latency, one short run of them a round.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::catalog::Peer;
use super::child::{self, Running};
use super::error::{PeerError, last_words};
use super::store::{Installed, Store};
use crate::measure::cores::Stay;

/// One run of either program; most take a tenth of a second.
const RUN: Duration = Duration::from_secs(20);
/// How long a server may take until it listens.
const LISTEN: Duration = Duration::from_secs(5);

/// A program of a peer that measures how long 8 bytes take one way between two processes.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// What rows call it.
    pub title: &'static str,
    /// Which peer.
    pub peer: &'static str,
    /// Its settings: environment variables.
    pub settings: &'static [(&'static str, &'static str)],
    program: &'static str,
    arguments: fn(port: u16, rounds: u64) -> Vec<String>,
    port_flag: &'static str,
    read: fn(&str) -> Option<f64>,
}

/// UCX over shared memory: a put of 8 bytes that the other side polls for.
pub const UCX: Latency = Latency {
    title: "UCX shm, ucp_put_lat",
    peer: "ucx",
    settings: &[("UCX_TLS", "shm,self")],
    program: "ucx_perftest",
    arguments: |port, rounds| words(&format!("127.0.0.1 -p {port} -t ucp_put_lat -s 8 -n {rounds} -w 1000 -f -v")),
    port_flag: "-p",
    read: read_ucx,
};

/// libfabric's shared-memory provider: a message of 8 bytes that the other side polls for.
pub const LIBFABRIC: Latency = Latency {
    title: "libfabric shm, fi_pingpong",
    peer: "libfabric",
    settings: &[],
    program: "fi_pingpong",
    arguments: |port, rounds| words(&format!("-p shm -e rdm -S 8 -I {rounds} -P {port} 127.0.0.1")),
    port_flag: "-B",
    read: read_libfabric,
};

/// All of them.
pub const METERS: &[Latency] = &[UCX, LIBFABRIC];

impl Latency {
    /// Its settings in words.
    pub fn settings_in_words(&self) -> String {
        let settings: Vec<String> = self.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if settings.is_empty() { "as it comes".to_owned() } else { settings.join(", ") }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A peer's program that is ready to be run.
pub struct Meter {
    latency: &'static Latency,
    installed: Installed,
    near: Vec<usize>,
    far: Vec<usize>,
}

impl Meter {
    /// Its client will stay on the near cores and its server on the far ones.
    pub fn open(store: &Store, latency: &'static Latency, near: &[usize], far: &[usize]) -> Result<Self, PeerError> {
        let installed = store.find(Peer::find(latency.peer)?)?;
        Ok(Self { latency, installed, near: near.to_owned(), far: far.to_owned() })
    }

    /// Its version.
    pub fn version(&self) -> &str {
        self.installed.version()
    }

    fn command(&self) -> Command {
        let mut command = self.installed.program(self.latency.program);
        command.envs(self.latency.settings.iter().copied());
        command
    }

    /// One run of so many rounds. Answers the time of one way, in nanoseconds, as the program tells it.
    pub fn run(&self, rounds: u64) -> Result<f64, PeerError> {
        let port = free_port()?;
        let server = {
            let _stay = Stay::on(&self.far);
            let mut command = self.command();
            command.args(server_arguments(self.latency, port, rounds));
            Running::start(&mut command)?
        };
        wait_for_listener(port)?;
        let said = {
            let _stay = Stay::on(&self.near);
            child::run(self.command().args((self.latency.arguments)(port, rounds)), RUN)?
        };
        server.finish(RUN)?;
        (self.latency.read)(&said.out).ok_or_else(|| PeerError::Unreadable {
            program: self.latency.program,
            wanted: "latency",
            words: last_words(&said.out),
        })
    }
}

/// The server is told its port; all else UCX's client tells it, and libfabric's wants to know from its own
/// command line.
fn server_arguments(latency: &Latency, port: u16, rounds: u64) -> Vec<String> {
    let port_of_server = [latency.port_flag.to_owned(), port.to_string()];
    if latency.peer == UCX.peer {
        return port_of_server.into();
    }
    let same = (latency.arguments)(port, rounds).into_iter().take_while(|argument| argument != "-P");
    same.chain(port_of_server).collect()
}

fn free_port() -> Result<u16, PeerError> {
    let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(PeerError::file("find a free port on", Path::new("127.0.0.1")))
}

/// Looks into the kernel's list of listeners: a connection would be taken for the client.
fn wait_for_listener(port: u16) -> Result<(), PeerError> {
    let start = Instant::now();
    loop {
        let lists = ["/proc/net/tcp", "/proc/net/tcp6"].map(|list| std::fs::read_to_string(list).unwrap_or_default());
        if lists.iter().any(|list| is_listening(list, port)) {
            return Ok(());
        }
        if start.elapsed() > LISTEN {
            return Err(PeerError::TooLong { program: format!("a server on port {port}"), waited: LISTEN });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a list such as `/proc/net/tcp` has this port in the state of listening.
fn is_listening(list: &str, port: u16) -> bool {
    const LISTENING: &str = "0A";
    let wanted = format!(":{port:04X}");
    list.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (local, state) = (columns.next(), columns.nth(1));
        local.is_some_and(|local| local.ends_with(&wanted)) && state == Some(LISTENING)
    })
}

/// The overall latency of the last line, which is CSV: iterations, a percentile, average and overall latency
/// in microseconds, and more.
fn read_ucx(text: &str) -> Option<f64> {
    let last = text.lines().rev().find(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    micros(last.split(',').nth(3)?)
}

/// The column `usec/xfer` of the line below the headings.
fn read_libfabric(text: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("bytes"));
    let column = lines.next()?.split_whitespace().position(|heading| heading == "usec/xfer")?;
    micros(lines.next()?.split_whitespace().nth(column)?)
}

fn micros(text: &str) -> Option<f64> {
    let micros: f64 = text.parse().ok()?;
    (micros > 0.0 && micros.is_finite()).then_some(micros * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_ucx_is_read() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                    100000,0.065,0.074,0.075,103.32,103.32,13541807,13541807\n";
        assert_eq!(read_ucx(text), Some(75.0));
        for broken in ["", "iterations,a,b\n", "100000,0.065\n", "100000,0.065,1,zero\n", "100000,0.065,1,0.000\n"] {
            assert_eq!(read_ucx(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn the_output_of_fi_pingpong_is_read() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    8       200k    =200k    3m          0.73s      4.39       1.82       0.55\n";
        assert_eq!(read_libfabric(text), Some(1820.0));
        for broken in ["", "bytes #sent\n8 200k\n", "bytes usec/xfer\n", "bytes usec/xfer\n8 inf\n"] {
            assert_eq!(read_libfabric(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn client_and_server_are_told_the_same_port_and_provider() {
        assert_eq!(server_arguments(&UCX, 70, 5), ["-p", "70"]);
        assert_eq!(server_arguments(&LIBFABRIC, 70, 5).join(" "), "-p shm -e rdm -S 8 -I 5 -B 70");
        assert!((UCX.arguments)(70, 5).join(" ").contains("127.0.0.1 -p 70 -t ucp_put_lat -s 8 -n 5"));
        assert!((LIBFABRIC.arguments)(70, 5).join(" ").contains("-I 5 -P 70 127.0.0.1"));
    }

    #[test]
    fn a_listener_is_found_in_the_kernels_list_and_a_connection_is_not_one() {
        let list = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0\n   1: 0100007F:1F91 0100007F:AAAA 01 0\n";
        assert!(is_listening(list, 0x1f90) && !is_listening(list, 0x1f91) && !is_listening(list, 0xaaaa));
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        wait_for_listener(listener.local_addr().unwrap().port()).unwrap();
    }
}
