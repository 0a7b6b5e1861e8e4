//! Programs that measure a pair of RDMA devices without us, one short run of them a round: those of perftest, and one that
//! is built on the crate async-rdma.
//!
//! They are not installed as other peers are: both speak to the devices by libraries of the system. perftest is a package of
//! most distributions; the other one is in `bench/peers`, outside of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::child::command;
use super::error::{PeerError, last_words};
use super::tools::{free_port, play};

/// The largest packets of RDMA over Ethernet, which is what the engine asks for too; the device takes less if its link does.
const PACKET_BYTES: u32 = 4096;

/// Numbers in the shortest table of perftest.
const COLUMNS: usize = 5;

/// How often a run may fail to measure: perftest finds the processor's frequency by a few measurements of its own as it begins,
/// and prints rates of zero where a busy machine makes them disagree.
const TRIES: usize = 4;

/// The program that is built on async-rdma.
const ASYNC_RDMA: &str = "peer-async-rdma";

/// Two devices of this machine that reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// The initiator's.
    pub near: String,
    /// The target's.
    pub far: String,
    /// The cores on which each side's program is kept; where there are none, it runs anywhere.
    near_cores: Vec<usize>,
    far_cores: Vec<usize>,
}

/// What is run over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// So many writes of so many bytes.
    WriteBandwidth { bytes: u64, count: u64 },
    /// So many round trips of writes of 8 bytes, which both sides poll their memory for.
    WriteLatency {
        /// How many.
        count: u64,
    },
    /// So many round trips of messages of 8 bytes, which both sides poll their completions for.
    SendLatency {
        /// How many.
        count: u64,
    },
}

impl Devices {
    /// Where the system lists them.
    const FOLDER: &str = "/sys/class/infiniband";

    /// Two by their names, if they are there.
    pub fn find(near: &str, far: &str) -> Option<Self> {
        let is_there = |name: &str| Path::new(Self::FOLDER).join(name).is_dir();
        let (near_cores, far_cores) = (Vec::new(), Vec::new());
        let found = || Self { near: near.to_owned(), far: far.to_owned(), near_cores, far_cores };
        (is_there(near) && is_there(far)).then(found)
    }

    /// The same, each side's program kept on cores of its own.
    pub fn on_cores(self, near: &[usize], far: &[usize]) -> Self {
        Self { near_cores: near.to_vec(), far_cores: far.to_vec(), ..self }
    }

    /// The place of the address by which a device is reached over routed Ethernet, as perftest wants to be told it. The first,
    /// which every device has, where it has none of those.
    fn address_of(name: &str) -> usize {
        let port = Path::new(Self::FOLDER).join(name).join("ports/1");
        let read = |kind: &str, place: usize| std::fs::read_to_string(port.join(kind).join(place.to_string()));
        let is_routed = |place: &usize| {
            let kind = read("gid_attrs/types", *place).unwrap_or_default();
            let address = read("gids", *place).unwrap_or_default();
            kind.contains("v2") && address.starts_with("0000:0000:0000:0000:0000:ffff")
        };
        (0..256).find(is_routed).unwrap_or(0)
    }
}

impl Run {
    /// The program of perftest that does it.
    pub fn program(self) -> &'static str {
        match self {
            Self::WriteBandwidth { .. } => "ib_write_bw",
            Self::WriteLatency { .. } => "ib_write_lat",
            Self::SendLatency { .. } => "ib_send_lat",
        }
    }

    fn arguments(self) -> String {
        let (bytes, count) = match self {
            Self::WriteBandwidth { bytes, count } => (bytes, count),
            Self::WriteLatency { count } | Self::SendLatency { count } => (8, count),
        };
        format!("-F -s {bytes} -n {count} -m {PACKET_BYTES}")
    }

    /// Nanoseconds of one write, or of one way, from the last line of numbers.
    fn read(self, text: &str) -> Option<f64> {
        let numbers = |line: &str| {
            let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
            numbers.ok().filter(|numbers: &Vec<f64>| numbers.len() >= COLUMNS)
        };
        let numbers = text.lines().rev().find_map(numbers)?;
        let nanos = match self {
            // bytes, writes, peak, average in MiB a second, writes in millions a second
            Self::WriteBandwidth { bytes, .. } => bytes as f64 * 1e9 / (numbers[3] * f64::from(1 << 20)),
            // bytes, rounds, least, most, typical, average: microseconds of one way
            Self::WriteLatency { .. } | Self::SendLatency { .. } => numbers[4] * 1e3,
        };
        (nanos > 0.0 && nanos.is_finite()).then_some(nanos)
    }
}

/// One run of a program of perftest that has figures. Answers nanoseconds of one write, or of one way. `meanwhile` is called ten
/// times a second.
pub fn measure(devices: &Devices, run: Run, meanwhile: &mut dyn FnMut()) -> Result<f64, PeerError> {
    let mut words = String::new();
    for _ in 0..TRIES {
        let out = run_once(devices, run, meanwhile)?;
        if let Some(nanos) = run.read(&out) {
            return Ok(nanos);
        }
        words = last_words(&out);
    }
    Err(PeerError::Unreadable { program: run.program(), wanted: "table with rates above zero", words })
}

/// What the client of one run printed.
fn run_once(devices: &Devices, run: Run, meanwhile: &mut dyn FnMut()) -> Result<String, PeerError> {
    let (program, port) = (run.program(), free_port()?);
    let side = |device: &str, host: &[&str]| {
        let mut command = command(Path::new(program), "");
        command.args(run.arguments().split(' ')).args(["-p", &port.to_string(), "-d", device]);
        command.args(["-x", &Devices::address_of(device).to_string()]).args(host);
        command
    };
    let server = (side(&devices.far, &[]), &devices.far_cores[..]);
    let client = (side(&devices.near, &["127.0.0.1"]), &devices.near_cores[..]);
    Ok(play(port, server, client, meanwhile)?.out)
}

/// The program that is built on async-rdma, if it is there: where programs are looked for, beside this one, or among its own
/// sources.
pub fn async_rdma() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().unwrap_or_default();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../peers/async-rdma/target/release");
    let folders =
        std::env::split_paths(&path).chain(own.ancestors().skip(1).take(2).map(Path::to_owned)).chain([sources]);
    folders.map(|folder| folder.join(ASYNC_RDMA)).find(|path| path.is_file())
}

/// One run of the program that is built on async-rdma; `depth` writes at a time where it measures throughput. A message of it
/// is a write with an immediate, as it has no sends of its own.
pub fn measure_async_rdma(
    program: &Path,
    devices: &Devices,
    (run, depth): (Run, u64),
    meanwhile: &mut dyn FnMut(),
) -> Result<f64, PeerError> {
    let port = free_port()?;
    let side = |words: &str, device: &str, rest: String| -> Command {
        let mut command = command(program, "");
        command.args([words, &format!("127.0.0.1:{port}"), device, &Devices::address_of(device).to_string()]);
        command.args(rest.split_whitespace());
        command
    };
    let (words, rest, ways) = match run {
        Run::WriteBandwidth { bytes, count } => ("bandwidth", format!("{bytes} {count} {depth}"), 1.0),
        Run::WriteLatency { count } | Run::SendLatency { count } => ("latency", format!("8 {count}"), 2.0),
    };
    let server = (side("serve", &devices.far, String::new()), &devices.far_cores[..]);
    let client = (side(words, &devices.near, rest), &devices.near_cores[..]);
    let said = play(port, server, client, meanwhile)?;
    read_async_rdma(&said.out).map(|nanos| nanos / ways).ok_or_else(|| PeerError::Unreadable {
        program: ASYNC_RDMA,
        wanted: "figure",
        words: last_words(&said.out),
    })
}

/// Nanoseconds of each: of one write, or of one round trip.
fn read_async_rdma(text: &str) -> Option<f64> {
    let value: Value = serde_json::from_str(text.lines().find(|line| line.starts_with('{'))?).ok()?;
    let nanos = value["seconds"].as_f64()? * 1e9 / value["count"].as_f64()?;
    (nanos > 0.0 && nanos.is_finite()).then_some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_numbers_counts() {
        let text = " #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]\n \
                    65536  400  47.21  62.50  0.001000\n---\n";
        let run = Run::WriteBandwidth { bytes: 65_536, count: 400 };
        assert_eq!(run.read(text), Some(1e6));
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n \
                    8  1000  71.19  5470.54  224.42  \t 582.99  \t92.03\t\t537.77 \t\t5470.54\n---\n";
        assert_eq!(Run::WriteLatency { count: 1000 }.read(text), Some(224_420.0));
        assert_eq!(Run::SendLatency { count: 1 }.read("Conflicting CPU frequency values"), None);
        assert_eq!(run.read("65536 400 0 0 0"), None, "its clock was not found");
    }

    #[test]
    fn what_was_moved_is_divided_by_how_often() {
        let text = "a warning\n{\"what\":\"bandwidth\",\"bytes\":65536,\"count\":200,\"depth\":8,\"seconds\":0.2}\n";
        assert_eq!(read_async_rdma(text), Some(1e6));
        assert_eq!(read_async_rdma("{\"seconds\":0.0,\"count\":1}"), None);
        assert_eq!(read_async_rdma(""), None);
    }

    #[test]
    fn devices_that_are_not_there_are_none() {
        assert_eq!(Devices::find("no-such-device", "nor-this"), None);
        assert_eq!(Devices::address_of("no-such-device"), 0);
    }
}
