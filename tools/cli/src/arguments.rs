//! What can be asked of the command, and the help.

mod demo;
mod network;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use penstock::config;
use penstock::limits::{NOTE_BYTES_MAX, WORKERS_MAX};
use penstock_doctor::Topic;
use penstock_lab::perf;

pub(crate) use self::demo::{DemoCommand, NodeOptions, Over, PdOptions};
pub(crate) use self::network::{CardOptions, NetworkOptions};
use self::network::{file, host};
use crate::selftest::Sabotage;

const LONG_ABOUT: &str = "\
Penstock moves scattered blocks of memory between processes, as fast as the memory allows, and \
tells both sides exactly once when they have arrived.

This command tests the engine on this machine, measures it, says what the machine lacks for it, and checks \
configurations.";

const AFTER: &str = "\
Exit status:
  0  everything asked for was done, and what was tested is right
  1  something was found wrong or could not be done
  2  the arguments, a file or PENSTOCK_LOG make no sense

Environment:
  PENSTOCK_LOG  what to log to standard error, e.g. `info` or `penstock=debug`; overrules -v
  TMPDIR        where a folder for sockets is made until two processes have met
  PENSTOCK_SECRET       the secret that hosts share, itself: 64 hexadecimal digits. No file is looked for then
  PENSTOCK_SECRET_FILE  a file with the secret that hosts share; otherwise ~/.config/penstock/secret, made by the first `penstock serve`

Examples:
  penstock selftest                        does it work here, and how fast?
  penstock perf --workload kv16            one workload in detail, beside its floor
  penstock doctor                          what can this host do, and what would mend the rest?
  penstock demo pd                         how do prefill and decode hand over requests by name?
  penstock config check my.yaml --show     is this file right, and what does it come to?

Between two hosts:
  penstock serve                           on one of them; it says what to do on the other
  penstock ping gpu-b                      does it answer, and how quickly?
  penstock perf gpu-b                      how fast is it, every byte verified?
  penstock doctor gpu-b                    if anything of that fails: which step, and what to do";

const SELFTEST_AFTER: &str = "\
For each transport two engines connect (in two processes; `local`: in one), write and read scattered \
16 KiB blocks, notify, count, cancel and revoke. Every byte is looked at. The table shows

  kv16 p50   the median time of one transfer of 1,000 scattered blocks of 16 KiB
  GB/s p50   what that median is, in 10^9 bytes a second
  vs floor   that time over the time of the bare copy kernel, taken in the same run
  verified   whether everything was right; if not, what was not is listed below the table

--json has that rate as `gbps_p50`, and as `gbps` that of all measured transfers together: their bytes over their time.

Ctrl-C or SIGTERM ends it after the step under way: what was tested by then is printed, the rest is not verified, and \
nothing is left behind.

It takes a few seconds and 400 MB of memory (--quick: about one second and 100 MB).

Exit status: 0 if everything tested is right, 1 if anything is not or it was interrupted, 2 for arguments that make no sense.

Examples:
  penstock selftest
  penstock selftest --transport shm
  penstock selftest --json | jq '.transports[] | {transport, verified}'";

const PERF_AFTER: &str = "\
Without HOST both ends run on this host: the initiator here, the target in a process of its own (`local`: here too; \
`tcp`: over loopback). With HOST the target is there, where `penstock serve` runs, and the floor is left out: no thread \
here reaches its memory. \
Each round moves the workload once, through other blocks than the round before. Without HOST bare threads copy the same \
blocks with the same kernel, in turns with it: that is the floor.

  moved     all bytes that were confirmed, and the time they took. With HOST that is the time from the first round's \
beginning to the last one's end; without, the rounds alone, as the floor has its turns between them
  rate      the one over the other: what iperf3 would call the bitrate
  time      of single rounds; `rate p50` is the rate of the middle one
  cpu       of both processes for 10^9 bytes. Of a `penstock serve` that serves others at the same time it is a part: \
what its process uses is measured, and dealt out every half second among all that measure, by the bytes each has moved. \
What it does to fill and to verify is left out

-t is kept on a slow link as well. A round that takes long there is moved in slices of about a tenth of a second, so that what \
is under way at the end can be waited for; it counts in `moved`, not among the rounds. Nothing else of size crosses the \
link: both sides make the bytes from a seed, and whoever has received them looks at every byte where it arrived. Making and \
verifying the pools is not part of -t, and takes longer for larger ones (--pool-mib).

While it measures, a line a second on standard error says what was moved (--interval). Ctrl-C, SIGTERM, or a peer that goes \
away cuts it off, also while it verifies: what was measured by then is printed, marked `cut off`, and nothing is left behind. What \
was cancelled under way leaves its places undefined, and those are not looked at. So does a peer or a device that confirms nothing \
for the last second of -t. A transfer has 60 s, whatever `transfers.timeout_ms` of --config says.

Pools that this host has no memory for, both of them together where both are here, are refused before they are made, also \
where HOST is this very machine; with HOST it is asked first whether it lends as much.

--memory device with HOST or --transport has the bytes of this side in memory of the first GPU, and those of the other side in \
host memory; `device` says which GPU it is, and whether they go through pinned memory of the host (staged) or a card reaches the GPU \
(--json: device, an object of name and staged). A pool of the host as large is made beside it, by which it is filled and looked at. \
The floor remains that of host memory.

--memory device alone measures the GPU by itself, between two engines of this process: from host memory to it, within it, and \
from it, each in turns with one copy of as many bytes by the same device. The bytes are looked at after they went the whole way. \
--json prints device, cuda and, for each of the ways, p50_us, one_copy_us, gbps_p50 and vs_one_copy.

--json prints one object: transport, op, workload, bytes, blocks, rounds, bytes_total, elapsed_s, min_us, p50_us, p90_us, p99_us, \
gbps (bytes_total over elapsed_s, in 10^9 bytes a second), gbps_p50 (bytes over p50_us), post_us_p50 (the engine's own part of a \
round, without the copies), cpu_s_per_gb, floor_us (null with HOST), verified (null if no byte was looked at), bytes_verified, \
cut_off (null, `interrupted`, or why), path; over the network also address, with HOST served_by, and over datagram packets (of \
this end: sent, lost, spurious, repeated, timeouts, received, late, dropped, loss (0 to 1), round_trip_us, window_bytes). What \
follows from whole rounds is null if none came to its end.

Pools smaller than several times the last-level cache measure the cache: see --pool-mib.

Exit status: 0 if the bytes were verified, 1 if they are wrong or were not looked at, it was cut off or nothing could be \
measured, 2 for arguments or a workload file that make no sense.

Examples:
  penstock perf                                      kv16 written over shm by one worker
  penstock perf --list                               the workloads
  penstock perf --workload w2 --workers 2 --progress busy
  penstock perf --workload my.yaml --op read -t 10
  penstock perf --transport tcp --io epoll           over loopback, with epoll
  penstock perf gpu-b --workload w2 -t 10 -P 4       to another host, where `penstock serve` runs
  penstock perf --memory device --workload w2        blocks of a GPU's memory
  penstock perf gpu-b --memory device                from a GPU's memory to another host
  penstock perf --json | jq .p50_us";

const DOCTOR_AFTER: &str = "\
It only looks: nothing is changed, and no rights are needed beyond your own. System calls are tried once, in a \
process of their own, because some filters kill whoever makes them. Run it where the engine will run: in the same \
container, service, user and shell. Each thing is one of

  ok       as Penstock likes it
  limited  it works, but is slower, smaller or reaches less far than it could
  missing  not here, or not for this user: the paths that need it are not offered
  BROKEN   every engine of this release needs it, and it does not work
  unknown  it could not be looked at

and what is not ok comes with what it means for Penstock and what mends it: `mend` you can do yourself, `root` takes \
root on this host, `outside` takes whoever started the container or owns the host around it. What concerns only \
paths of later releases is explained when its topic is named.

--json prints one object: version, ok, paths (none if topics are named; each: path, offered, in_this_release, lacks), \
findings (each: topic, name, status, found, means or null, mends, paths, and for `rails` ports; a mend: by, and command or \
advice; a port: name, used, why, address, speaks, gid_index, netdev, node, bits_per_second; status in lower case). Names of topics, findings, statuses and fields stay what they are; more may be added.

With a HOST where `penstock serve` runs it goes there step by step (name, port, secret, session, transport, some MiB \
written and verified, round trips, datagrams: does UDP pass in both directions, where `transports.allow` has `datagram`), says at the step that fails what to do next, and asks that host's own doctor. \
--json is then one object: version, ok, host, steps (each: name, status, found, means or null, mends), here and there (reports \
as above; there is null if it was not reached). Datagrams that do not pass are `missing` and no fault: tcp does without them.

Exit status: 0 if everything that this release needs works and a HOST was reached, 1 if any of it is broken, 2 for \
arguments or a configuration that make no sense.

Examples:
  penstock doctor
  penstock doctor hugepages limits
  penstock doctor gpu-b
  penstock doctor 10.0.0.7:7400 --json
  penstock doctor --config my.yaml folder
  penstock doctor rdma --devices mlx5_0:1:3        would these ports be used, and why?
  penstock doctor --json | jq '.findings[] | select(.status != \"ok\") | {topic, name, found, mends}'";

const SERVE_AFTER: &str = "\
It starts an engine that engines of other hosts with the same secret can test against, and does for them what perf, ping \
and doctor ask: makes pools of up to --memory-mib together, fills and verifies them, sends notes back, has this host \
examined. What a peer was given is taken back when it is gone. It ends by SIGINT, SIGTERM or --for: its \
peers are told so, and what is under way has three seconds to finish.

--json prints one object a line, each with an `event`: serving (name, release, addresses that others use, the \
best first, this_host_only, listens_at, secret_file, secret_made, pool_bytes_max, \
rdma: offered, why_not, devices; null where it is not allowed), \
came (peer, transport, address or null), went (peer, why), ended (drained, told, broken_off).

Whom it turns away, and whom it refuses a pool, it logs to standard error, with the address and why; at most eight lines a \
second of each.

Exit status: 0 if it ended when it was asked to, 1 if it could not start, 2 for arguments or a configuration that make no \
sense.

Examples:
  penstock serve                                     at port 7400 of all addresses
  penstock serve --listen 10.0.0.7:0 --for 60        a free port of one address, for a minute
  penstock serve --secret-file lab.secret --memory-mib 8192
  penstock serve --devices mlx5_0,mlx5_1             two RDMA devices and no others, for `perf --transport verbs`";

const PING_AFTER: &str = "\
Each line is a round trip: a note written here, seen by the application there, and its answer seen here. What has no \
answer within --within is lost. The end says how many were lost, and the least, p50, p90, p99 and longest round trip.

--json prints one object at the end: host, name, release, transport, path, address, bytes, sent, received, lost, min_us, p50_us, \
p90_us, p99_us, max_us.

Exit status: 0 if all were answered, 1 if any was lost or nobody answers, 2 for arguments that make no sense.

Examples:
  penstock ping gpu-b
  penstock ping 10.0.0.7:7400 -c 1000 -i 0.01 -s 4096
  penstock ping [2001:db8::7]:7400 -c 5 --json | jq .p50_us";

const DEMO_AFTER: &str = "\
Examples:
  penstock demo pd                         prefill and decode hand over requests, over shm and over TCP
  penstock demo pd --kill decode           one of them is killed in the middle of it";

const PD_AFTER: &str = "\
Three processes: a proxy, which is this one, and two that it starts, each with an engine. The proxy mints a name for each \
request and gives it to both at once; each side makes a request id of its own, and what has finished is told under that.

  act 1  prefill pushes eight layers as they are computed, each behind a fence of its own; decode sees them land
  act 2  the same is lent under a lease, and decode reads it
  act 3  2,000 embeddings go in legs to a stage that has room for 1,024, and are in one piece there
  act 4  a turn of 500 and 200 tokens is kept at decode, and the next one has 705: 688 of them are inherited, and 17 come
  act 5  both stream chunks of three items to each other, larger than the two berths that each of them has

Every byte that arrived is held against what it was made from, by a digest: each act that is right says `verified`. With --kill \
one of the two is killed in the middle of act 1 (the others are left out then): the other one says why the transfer failed, \
within a second, and which of its blocks are not whole; a new process takes the dead one's name, and act 1 is played to its end. \
Nothing is left behind, processes and folders included.

--json prints one object a line: event, t_ms (since the transport's beginning), who (proxy, prefill, decode), transport, act, says (what the timeline \
says), and by event: transfer, request, parent, tokens, bytes, of (bytes of all tokens), layer, leg, blocks, cause, words, missing (runs of layer, first block, count), digest, took_ms. \
The last object's event is `ended`, with ok.

Exit status: 0 if all acts were verified over all transports, 1 if any was not, 2 for arguments that make no sense.

Examples:
  penstock demo pd
  penstock demo pd --transport tcp --kill prefill
  penstock demo pd --json | jq 'select(.event == \"verified\")'";

const CONFIG_AFTER: &str = "\
Examples:
  penstock config default > my.yaml        a file to start from, every key explained
  penstock config check my.yaml            `ok`, or file:line:column, what is wrong and what to do
  penstock config keys workers             what the keys of a section do, accept and cost";

const CHECK_AFTER: &str = "\
Exit status: 0 if all files are right, 2 if any is not.

Examples:
  penstock config check my.yaml
  penstock config check configs/*.yaml
  penstock config check my.yaml --show";

const KEYS_AFTER: &str = "\
Exit status: 0, or 2 if there is no such key.

Examples:
  penstock config keys                     all keys, one a line
  penstock config keys workers             a section in full
  penstock config keys workers.spin_us     one key in full
  penstock config keys --markdown          the reference page";

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "penstock", version, about = "Moves scattered blocks of memory between processes",
    long_about = LONG_ABOUT, after_long_help = AFTER, after_help = "`penstock help` says more.", max_term_width = 100)]
pub(crate) struct Arguments {
    /// Log more to standard error: -v sessions, -vv debug, -vvv everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Test the engine on this machine, over every transport it has, and say how fast it is
    #[command(after_long_help = SELFTEST_AFTER)]
    Selftest(SelftestOptions),
    /// Measure one workload between two engines, of this host or to another one, and verify every byte
    #[command(after_long_help = PERF_AFTER)]
    Perf(PerfOptions),
    /// Let engines of other hosts test against this one: for perf, ping and doctor there
    #[command(after_long_help = SERVE_AFTER)]
    Serve(ServeOptions),
    /// Say whether another host answers, and how quickly
    #[command(after_long_help = PING_AFTER)]
    Ping(PingOptions),
    /// Say what this host can do for Penstock and, for what it cannot, why and what mends it; or whether another is reached
    #[command(after_long_help = DOCTOR_AFTER)]
    Doctor(DoctorOptions),
    /// Show how engines hand over requests by name: processes of their own, as a timeline
    #[command(subcommand, after_long_help = DEMO_AFTER)]
    Demo(DemoCommand),
    /// Check configuration files; show the keys and the defaults
    #[command(subcommand, after_long_help = CONFIG_AFTER)]
    Config(ConfigCommand),
    /// The other process of a self-test
    #[command(name = "__selftest-target", hide = true)]
    SelftestTarget(TargetOptions),
    /// One of the two processes of a demonstration
    #[command(name = "__demo-node", hide = true)]
    DemoNode(NodeOptions),
}

/// `penstock selftest`.
#[derive(Debug, Args)]
pub(crate) struct SelftestOptions {
    /// Test this transport only [default: all that are here]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Less memory and fewer rounds: the same checks, but the figures mean little
    #[arg(long)]
    pub(crate) quick: bool,
    /// Break something on purpose, to see that the test notices
    #[arg(long, value_enum, hide = true)]
    pub(crate) sabotage: Option<Sabotage>,
}

/// `penstock perf`.
#[derive(Debug, Args)]
pub(crate) struct PerfOptions {
    /// Where `penstock serve` runs the target [default: this host; port 7400]
    #[arg(value_name = "HOST[:PORT]", value_parser = host)]
    pub(crate) host: Option<String>,
    /// A workload's name, or the path of a YAML file that describes one
    #[arg(short, long, value_name = "NAME|FILE", default_value = "kv16")]
    pub(crate) workload: String,
    /// The transport [default: shm; with HOST: tcp]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Transport>,
    /// Other memory here than the host's: the first GPU's; without HOST or --transport both ends are in this process
    #[arg(long, value_enum)]
    pub(crate) memory: Option<Memory>,
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
    /// The configuration of the engines that are started here; the other options, and their defaults, overrule it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Which way the bytes go, seen from the initiator
    #[arg(long, value_enum, default_value = "write")]
    pub(crate) op: Op,
    /// Workers of the initiator, each a copying thread; the floor gets as many
    #[arg(long, default_value_t = 1, value_parser = workers)]
    pub(crate) workers: usize,
    /// What moves bytes: threads that never sleep, threads that sleep when idle, or the caller
    #[arg(long, value_enum, default_value = "adaptive")]
    pub(crate) progress: Progress,
    /// The pages of both pools
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) pages: Pages,
    /// The core of each worker, separated by commas [default: the scheduler chooses]
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
    /// Transfers in flight at the same time
    #[arg(short = 'P', long, value_name = "TRANSFERS", default_value_t = 1)]
    pub(crate) concurrency: usize,
    /// Least size of each of the two pools [default: 512, with HOST 256; less for blocks of a few bytes]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub(crate) pool_mib: Option<u64>,
    #[command(flatten)]
    pub(crate) limit: PerfLimit,
    /// How often a line on standard error says what was moved meanwhile; 0 for never, as with --json
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = pause)]
    pub(crate) interval: Duration,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// List the workloads and do nothing else
    #[arg(long, exclusive = true)]
    pub(crate) list: bool,
    /// Spoil a byte on purpose, to see that it is noticed
    #[arg(long, hide = true)]
    pub(crate) sabotage: bool,
}

/// How long to measure [default: 31 rounds, but no longer than 20 s].
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct PerfLimit {
    /// Measure for so long [default: 31 rounds, or 20 s if they take longer]
    #[arg(short = 't', long, value_parser = seconds)]
    pub(crate) seconds: Option<Duration>,
    /// Measure so many rounds
    #[arg(long, value_parser = rounds)]
    pub(crate) rounds: Option<usize>,
}

/// `penstock doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// What to look at [default: everything], or the host to reach, with a dot, a digit, a hyphen or a port in it
    #[arg(value_name = "TOPIC|HOST[:PORT]", value_parser = SubjectParser)]
    pub(crate) subjects: Vec<Subject>,
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
    /// The configuration that the engine will have: its folder, workers, cores and RDMA devices
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

/// `penstock serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Where engines of other hosts can connect; port 0 takes a free one [default: 0.0.0.0:7400 and [::]:7400]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Vec<String>,
    /// The engine's name [default: one that nobody else has]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The file with the secret that hosts share [default: your own, made at first use]
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub(crate) secret_file: Option<PathBuf>,
    /// The configuration of the engine; the other options overrule it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cards: CardOptions,
    /// Pools that are made for all others together [default: a quarter of the memory that is available]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub(crate) memory_mib: Option<u64>,
    /// End after so long [default: when asked to]
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) lasting: Option<Duration>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `penstock ping`.
#[derive(Debug, Args)]
pub(crate) struct PingOptions {
    /// Where `penstock serve` runs [default port: 7400]
    #[arg(value_name = "HOST[:PORT]", value_parser = host)]
    pub(crate) host: String,
    /// So many round trips [default: until it is interrupted]
    #[arg(short, long, value_parser = rounds)]
    pub(crate) count: Option<usize>,
    /// From the beginning of one to the beginning of the next
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = pause)]
    pub(crate) interval: Duration,
    /// Bytes of each note
    #[arg(short, long, default_value_t = 56, value_parser = note_bytes)]
    pub(crate) size: usize,
    /// After so long one without an answer is lost
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) within: Duration,
    #[command(flatten)]
    pub(crate) network: NetworkOptions,
    /// Print one JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the doctor looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A part of this host.
    Topic(Topic),
    /// Another host.
    Host(String),
}

impl Subject {
    /// The topic, if it is one.
    pub(crate) fn topic(&self) -> Option<Topic> {
        match self {
            Self::Topic(topic) => Some(*topic),
            Self::Host(_) => None,
        }
    }

    /// The host, if it is one.
    pub(crate) fn host(&self) -> Option<&str> {
        match self {
            Self::Topic(_) => None,
            Self::Host(host) => Some(host),
        }
    }
}

/// Reads a topic or a host; the help lists the topics. A word that is neither is more likely a slip than a host.
#[derive(Debug, Clone)]
pub(crate) struct SubjectParser;

impl clap::builder::TypedValueParser for SubjectParser {
    type Value = Subject;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Subject, clap::Error> {
        let is_of_hosts = |c: char| c.is_ascii_digit() || matches!(c, '.' | ':' | '-');
        if let Some(word) = value.to_str()
            && Topic::find(word).is_none()
            && (word.contains(is_of_hosts) || word == "localhost")
            && !word.starts_with('-')
        {
            let wrong = |why| clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{word}: {why}"));
            return host(word).map(Subject::Host).map_err(wrong);
        }
        let words = PossibleValuesParser::new(self.listed()).parse_ref(command, argument, value)?;
        Ok(Subject::Topic(Topic::find(&words).expect("the parser accepts words of topics only")))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.listed()))
    }
}

impl SubjectParser {
    fn listed(&self) -> impl Iterator<Item = PossibleValue> + use<> {
        Topic::ALL.into_iter().map(|topic| {
            let (word, others, what) = topic.words();
            PossibleValue::new(word).aliases(others).help(what)
        })
    }
}

/// The hidden other process of a self-test.
#[derive(Debug, Args)]
pub(crate) struct TargetOptions {
    /// The folder of the rendezvous sockets
    #[arg(long)]
    pub(crate) directory: PathBuf,
    #[arg(long, value_enum)]
    pub(crate) transport: Transport,
    #[arg(long)]
    pub(crate) quick: bool,
}

/// `penstock config …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether files are right, or where they are wrong and what to do
    #[command(after_long_help = CHECK_AFTER)]
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Also print what each file comes to, with every key that it leaves out
        #[arg(long)]
        show: bool,
    },
    /// Say what can be set, what it does, accepts and costs
    #[command(after_long_help = KEYS_AFTER)]
    Keys {
        /// Only this section (`workers`) or key (`workers.spin_us`), in full
        key: Option<String>,
        /// Print the reference page
        #[arg(long, conflicts_with = "key")]
        markdown: bool,
    },
    /// Print a file with every key, its default and its cost: a start for one's own
    #[command(after_long_help = "Examples:\n  penstock config default > my.yaml")]
    Default,
}

/// A transport that can be tested or measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Within one process
    Local,
    /// Between two processes of one host
    Shm,
    /// Between hosts, by RDMA cards; without another one, from this host's cards to themselves
    Verbs,
    /// Between hosts; without another one, over loopback
    Tcp,
    /// Between hosts, in packets of the engine's own over UDP; without another one, over loopback
    Datagram,
    /// Between two processes of this host, in the same packets over DPDK (memif); needs what `make dpdk` builds. For another host:
    /// `datagram`, with a --config that names a device
    Dpdk,
}

impl Transport {
    /// Those that every host has.
    pub(crate) const USUAL: [Self; 4] = [Self::Local, Self::Shm, Self::Tcp, Self::Datagram];

    /// Its word on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        if self == Self::Dpdk { "dpdk" } else { self.name().as_str() }
    }

    /// Its name in a configuration.
    pub(crate) fn name(self) -> config::TransportName {
        match self {
            Self::Local => config::TransportName::Local,
            Self::Shm => config::TransportName::Shm,
            Self::Verbs => config::TransportName::Verbs,
            Self::Tcp => config::TransportName::Tcp,
            Self::Datagram | Self::Dpdk => config::TransportName::Datagram,
        }
    }
}

/// What memory is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Memory {
    /// A device's
    Device,
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    /// From the initiator to the target
    Write,
    /// From the target to the initiator
    Read,
}

/// What moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Progress {
    /// Threads that never sleep
    Busy,
    /// Threads that sleep when there is nothing to do
    Adaptive,
    /// No threads: the caller's own loop
    Inline,
}

/// The pages of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pages {
    /// Ordinary ones
    Small,
    /// Huge ones that were set aside, where there are enough
    Huge,
    /// What the kernel gives to whoever asks
    Auto,
}

impl From<Op> for perf::Op {
    fn from(op: Op) -> Self {
        match op {
            Op::Write => Self::Write,
            Op::Read => Self::Read,
        }
    }
}

impl From<Progress> for config::Progress {
    fn from(progress: Progress) -> Self {
        match progress {
            Progress::Busy => Self::Busy,
            Progress::Adaptive => Self::Adaptive,
            Progress::Inline => Self::Inline,
        }
    }
}

impl From<Pages> for config::PagesChoice {
    fn from(pages: Pages) -> Self {
        match pages {
            Pages::Small => Self::Small,
            Pages::Huge => Self::Huge,
            Pages::Auto => Self::Auto,
        }
    }
}

fn workers(text: &str) -> Result<usize, String> {
    whole(text, WORKERS_MAX)
}

fn note_bytes(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number <= NOTE_BYTES_MAX);
    number.ok_or_else(|| format!("give a whole number from 0 to {NOTE_BYTES_MAX}"))
}

fn pause(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|seconds: &f64| (0.0..=3600.0).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| "give seconds, from 0 to 3600".to_owned())
}

fn rounds(text: &str) -> Result<usize, String> {
    whole(text, 1_000_000)
}

fn whole(text: &str, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("give a whole number from 1 to {most}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    const MOST: f64 = 86_400.0;
    let number = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0 && seconds <= MOST);
    number.map(Duration::from_secs_f64).ok_or_else(|| format!("give seconds, more than 0 and at most {MOST}"))
}
