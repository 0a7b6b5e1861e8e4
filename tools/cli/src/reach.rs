//! `penstock doctor HOST`: is the other host reached, step by step, and what to do at the step that fails.

mod datagrams;

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, TransportName};
use penstock::{Config, ConnectError, Plan, PoolSpec, Submit};
use penstock_doctor::{By, Host, Mend, Status, Topic};
use penstock_lab::layout::{Layout, LayoutSpec};
use penstock_lab::service::{Answer, Client, Request, ServiceError};
use penstock_lab::workload::Workload;
use serde::Serialize;

use crate::arguments::NetworkOptions;
use crate::console::{self, Progress};
use crate::failure::{Ended, Failure};
use crate::network::{self, ANSWER, CONNECT, NoSecret, Unreached};

/// What of this host the way to another one stands on.
const TOPICS: [Topic; 6] =
    [Topic::Kernel, Topic::Processor, Topic::Memory, Topic::Limits, Topic::Cgroup, Topic::IoUring];
/// Bytes that are written there and verified.
const WRITTEN: u64 = 8 << 20;
/// Round trips that are timed.
const TRIPS: usize = 32;
/// How long examining another host may take.
const EXAMINE: Duration = Duration::from_secs(30);

/// One step of the way.
#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    status: Status,
    found: String,
    means: Option<String>,
    mends: Vec<Mend>,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    ok: bool,
    host: String,
    steps: Vec<Step>,
    here: penstock_doctor::Report,
    there: Option<serde_json::Value>,
}

impl Step {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Status::Ok, found: found.into(), means: None, mends: Vec::new() }
    }

    fn broken(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let mends = vec![Mend::advice(By::You, advice)];
        let means = Some("the steps after it were not tried".to_owned());
        Self { name, status: Status::Broken, found: found.into(), means, mends }
    }
}

/// Goes there, and prints how far it came.
pub(crate) fn run(
    host: &str,
    here: &Host,
    config: &Config,
    options: &NetworkOptions,
    json: bool,
) -> Result<Ended, Failure> {
    let host = network::with_port(host);
    let progress = Progress::new();
    progress.say(&format!("going to {host}"));
    let mut way = Way { host: &host, steps: Vec::new(), there: None };
    // A step that fails has said so among the steps.
    let reached = way.go(config, options).is_some();
    let Way { steps, there, .. } = way;
    progress.say("looking at this host");
    let here = penstock_doctor::examine(here, &TOPICS);
    drop(progress);
    let ok = reached && here.ok;
    let report = Report { version: env!("CARGO_PKG_VERSION"), ok, host, steps, here, there };
    if json {
        console::print_json(&report)?
    } else {
        console::print(&shown(&report))?
    }
    Ok(if ok { Ended::Well } else { Ended::Badly })
}

struct Way<'a> {
    host: &'a str,
    steps: Vec<Step>,
    there: Option<serde_json::Value>,
}

impl Way<'_> {
    fn go(&mut self, config: &Config, options: &NetworkOptions) -> Option<()> {
        let found = resolve(self.host);
        let addresses = self.step("name", found)?;
        let found = knock(&addresses);
        self.step("port", found)?;
        if let Err(missing) = NoSecret::check(self.host, &options.configured(Config::default())) {
            return self.stop("secret", &missing.to_string(), &missing.advice());
        }
        let engine = match network::engine("doctor", options) {
            Ok(engine) => engine,
            Err(failure) => return self.stop("engine", &failure.to_string(), "mend that on this host"),
        };
        let peer = match engine.connect_address(self.host, CONNECT) {
            Ok(peer) => peer,
            Err(error) => {
                let name = if is_about_secret(&error) { "secret" } else { "session" };
                let unreached = Unreached { host: self.host.to_owned(), error };
                let advice = unreached.advice().unwrap_or_else(|| "the words above say what to do".to_owned());
                return self.stop(name, &unreached.error.to_string(), &advice);
            }
        };
        self.steps.push(Step::ok("secret", "both sides have the same"));
        self.steps.push(Step::ok("session", format!("with {}", peer.name())));
        self.steps.push(Step::ok("transport", format!("{}: {}", peer.transport(), peer.path())));
        let mut client = Client::new(peer);
        let found = client.about(&engine, ANSWER).map_err(said).map(|about| {
            let found =
                format!("release {}, {}, {} cores, Linux {}", about.release, about.cpu, about.cores, about.kernel);
            (about.dpdk, found)
        });
        let at_device = self.step("service", found)?;
        let found = write(&engine, &mut client);
        self.step("write", found.map(|found| ((), found)))?;
        let found = trips(&engine, &mut client);
        self.step("round trips", found.map(|found| ((), found)))?;
        // Over a device of DPDK the session above has shown it, and a socket would try another way.
        if config.transports.allow.contains(&TransportName::Datagram) && config.dpdk.device.is_none() {
            // Of the default transports `tcp` is enough: the way ends at no step but its own.
            self.steps.push(match at_device {
                Some(address) => datagrams::at_device(&address),
                None => datagrams::step(self.host, options, &config.datagram),
            });
        }
        let found = match client.ask(&engine, &Request::Doctor, EXAMINE) {
            Ok(Answer::Doctor(report)) => Ok((report, "it has examined its host".to_owned())),
            Ok(other) => Err(said(client.unexpected(&other))),
            Err(error) => Err(said(error)),
        };
        self.there = Some(self.step("its doctor", found)?);
        Some(())
    }

    fn step<T>(&mut self, name: &'static str, found: Result<(T, String), (String, String)>) -> Option<T> {
        match found {
            Ok((value, found)) => {
                self.steps.push(Step::ok(name, found));
                Some(value)
            }
            Err((found, advice)) => self.stop(name, &found, &advice),
        }
    }

    fn stop<T>(&mut self, name: &'static str, found: &str, advice: &str) -> Option<T> {
        self.steps.push(Step::broken(name, found, advice));
        None
    }
}

/// What was found wrong, and what to do.
type Wrong = (String, String);

fn is_about_secret(error: &ConnectError) -> bool {
    matches!(error, ConnectError::WrongSecret { .. } | ConnectError::Secret(_))
}

fn said(error: ServiceError) -> Wrong {
    (
        error.to_string(),
        "see that `penstock serve` of the same release runs there, and look at what it prints".to_owned(),
    )
}

/// Its addresses. Names are looked up by the system, which takes as long as it likes: a thread waits for it instead.
fn resolve(host: &str) -> Result<(Vec<SocketAddr>, String), Wrong> {
    let advice = || "check the name (`getent hosts NAME`), or give an address with a port".to_owned();
    let (sender, answer) = channel();
    let asked = host.to_owned();
    let spawned = std::thread::Builder::new().spawn(move || {
        // Nobody may be waiting any more.
        let _ = sender.send(asked.to_socket_addrs().map(Iterator::collect::<Vec<_>>));
    });
    spawned.map_err(|error| (format!("no thread to look it up: {error}"), advice()))?;
    match answer.recv_timeout(ANSWER) {
        Ok(Ok(addresses)) if !addresses.is_empty() => {
            let found = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Ok((addresses, found))
        }
        Ok(Ok(_)) => Err((format!("{host} has no address"), advice())),
        Ok(Err(error)) => Err((format!("{host} is not known: {error}"), advice())),
        Err(_) => Err((format!("{host} was not looked up within {ANSWER:?}"), advice())),
    }
}

/// Whether anybody listens there, and how long the first packets took.
fn knock(addresses: &[SocketAddr]) -> Result<((), String), Wrong> {
    let mut reasons = Vec::new();
    for address in addresses {
        let start = Instant::now();
        match TcpStream::connect_timeout(address, ANSWER) {
            Ok(_) => {
                let took = console::time(start.elapsed().as_secs_f64() * 1e6);
                return Ok(((), format!("{address} accepts connections, after {took}")));
            }
            Err(error) => reasons.push(format!("{address}: {error}")),
        }
    }
    let advice = "start `penstock serve` there and use the port that it says; if it runs, look for a firewall between the two \
                  (`nc -vz HOST PORT`)";
    Err((reasons.join("; "), advice.to_owned()))
}

/// Writes some MiB and has them looked at.
fn write(engine: &penstock::Engine, client: &mut Client) -> Result<String, Wrong> {
    let wrong = |what: &str, error: &dyn std::fmt::Display| {
        (format!("{what}: {error}"), "try again; if it stays, run `penstock perf` for the details".to_owned())
    };
    let workload =
        Workload::parse("{name: doctor, what: a first write, block_bytes: 16384, blocks: 256, layers: 1}", "doctor");
    let workload = workload.map_err(|error| wrong("no workload", &error))?;
    let spec = LayoutSpec { workload, pool_bytes_min: WRITTEN, concurrency: 1, seed: 7 };
    let layout = Layout::new(&spec);
    let bytes = layout.pool_bytes();
    let (pool, counter) = match client.ask(engine, &Request::Pool { bytes, pages: PagesChoice::Small }, ANSWER) {
        Ok(Answer::Pool { label, counter, .. }) => (label, counter),
        Ok(other) => return Err(said(client.unexpected(&other))),
        Err(error) => return Err(said(error)),
    };
    let near = engine.pool(PoolSpec::host(bytes).label("doctor")).map_err(|error| wrong("no pool here", &error))?;
    let remote = client.peer().wait_region(&pool, ANSWER).map_err(|error| wrong("its pool is not seen", &error))?;
    let counter = client.peer().wait_counter(&counter, ANSWER);
    layout.fill(near.window());
    let start = Instant::now();
    let mut moved = 0;
    for pairs in layout.sets() {
        let plan = Plan::write(&near, &remote).blocks(pairs).block_bytes(16 << 10).strides(16 << 10, 16 << 10).build();
        let plan = plan.map_err(|error| wrong("no plan", &error))?;
        let how = counter.map_or_else(Submit::new, |counter| Submit::new().count(counter)).within(CONNECT);
        let transfer = client.peer().submit(&plan, how).map_err(|error| wrong("not submitted", &error))?;
        moved += transfer.wait().map_err(|error| wrong("not written", &error))?.bytes;
    }
    let took = start.elapsed();
    match client.ask(engine, &Request::Check { pool, layout: spec, first_bytes: None, from_byte: 0 }, ANSWER) {
        Ok(Answer::Checked { bytes }) if bytes == moved => {
            let gbps = moved as f64 / took.as_secs_f64() / 1e9;
            Ok(format!("{} MiB arrived and are right, {} GB/s", moved >> 20, console::figure(gbps)))
        }
        Ok(Answer::Wrong(mismatch)) => Err(wrong("other bytes arrived than were sent", &mismatch)),
        Ok(other) => Err(said(client.unexpected(&other))),
        Err(error) => Err(said(error)),
    }
}

fn trips(engine: &penstock::Engine, client: &mut Client) -> Result<String, Wrong> {
    let mut times = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let took = client.echo(engine, &[7; 64], ANSWER).map_err(said)?;
        times.push(took.as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    let (least, middle) = (times[0], times[times.len() / 2]);
    Ok(format!("{} p50, {} least, 64 bytes seen and answered", console::time(middle), console::time(least)))
}

fn shown(report: &Report) -> String {
    let mut text = format!("the way to {}\n\n", report.host);
    let rows: Vec<_> = report
        .steps
        .iter()
        .map(|step| vec![step.name.to_owned(), step.status.as_str().to_owned(), step.found.clone()])
        .collect();
    text.push_str(&console::table(&rows, &[]));
    for step in &report.steps {
        // A step behind which others were tried says what it means for them who use it.
        if let Some(means) = step.means.as_ref().filter(|_| step.status != Status::Broken) {
            text.push_str(&format!("\n{}: {means}\n", step.name));
        }
        for mend in &step.mends {
            text.push_str(&format!("\nnext: {}\n", mend.text()));
        }
    }
    text.push_str("\nthis host\n\n");
    text.push_str(&report.here.to_text());
    if let Some(there) = &report.there {
        text.push_str(&format!("\n{}\n\n", report.host));
        text.push_str(&remote(there));
    }
    text
}

/// Another host's findings that are not well. Its release may be another one: what is not there is left out.
fn remote(report: &serde_json::Value) -> String {
    let word = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().map_or(&[][..], Vec::as_slice);
    // What only other paths need is that host's own business.
    let elsewhere = |path: &serde_json::Value| ["verbs", "dpdk", "cuda"].contains(&path.as_str().unwrap_or_default());
    let matters = |finding: &&serde_json::Value| {
        let paths = finding["paths"].as_array().map_or(&[][..], Vec::as_slice);
        word(finding, "status") != "ok" && (paths.is_empty() || !paths.iter().all(elsewhere))
    };
    let mut rows = Vec::new();
    for finding in findings.iter().filter(matters) {
        rows.push(["topic", "name", "status", "found"].map(|key| word(finding, key)).to_vec());
        for mend in finding["mends"].as_array().map_or(&[][..], Vec::as_slice) {
            let act = [word(mend, "command"), word(mend, "advice")].concat();
            rows.push(vec![String::new(), String::new(), word(mend, "by"), act]);
        }
    }
    match rows.is_empty() {
        true => format!("{} things were looked at there, and all are well.\n", findings.len()),
        false => console::table(&rows, &[]),
    }
}
