//! Two network namespaces joined by a pair of virtual devices, with a rate if one is named; `penstock serve` in the one, and the command in
//! the other.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::run::{Folder, Ran, finish, wait};

/// Links take the whole machine, one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// Headers of a packet beside its payload: Ethernet 14, IPv4 20, TCP with time stamps 32.
const HEADERS: f64 = 66.0;
/// Ticks of the kernel's accounts in a second.
const TICKS: f64 = 100.0;

const SERVER: &str = "10.76.0.1";
const CLIENT: &str = "10.76.0.2";

/// Two namespaces; removed with this value.
pub(crate) struct Link {
    pub(crate) folder: Folder,
    client: Namespace,
    _server: Namespace,
    serving: Child,
    _alone: MutexGuard<'static, ()>,
}

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its devices go with it.
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

impl Link {
    /// A link, with a rate as `tc` has it; none where labs cannot run.
    pub(crate) fn new(test: &str, rate: Option<&str>) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = why_not() {
            crate::run::skip(test, &reason);
            return None;
        }
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |side: &str| format!("penstock-perf-{}-{number}-{side}", std::process::id());
        let (server, client) = (name("a"), name("b"));
        let make = |name: String| {
            run("ip", &["netns", "add", &name]);
            Namespace(name)
        };
        let (server, client) = (make(server), make(client));
        let pair = ["link", "add", "perf0", "netns", &server.0, "type", "veth", "peer", "name", "perf0", "netns"];
        run("ip", &[&pair[..], &[&client.0]].concat());
        for (side, address) in [(&server, SERVER), (&client, CLIENT)] {
            let name = side.0.as_str();
            run("ip", &["-n", name, "address", "add", &format!("{address}/24"), "dev", "perf0"]);
            run("ip", &["-n", name, "link", "set", "lo", "up"]);
            run("ip", &["-n", name, "link", "set", "perf0", "up"]);
            if let Some(rate) = rate {
                let shape = ["qdisc", "add", "dev", "perf0", "root", "tbf", "rate", rate, "burst", "32kb", "latency"];
                run("tc", &[&["-n", name], &shape[..], &["50ms"]].concat());
            }
        }
        let folder = Folder::new();
        let mut serve = within(&server, &folder, &["serve", "--memory-mib", "1024", "--json"]);
        let mut serving = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(serving.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("\"serving\""), "{first}");
        Some(Self { folder, client, _server: server, serving, _alone: alone })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        within(&self.client, &self.folder, &[&["perf", SERVER], arguments].concat())
    }

    /// Measures from the one to the other.
    pub(crate) fn perf(&self, arguments: &[&str]) -> Ran {
        finish(&mut self.command(arguments))
    }

    /// The same, under way.
    pub(crate) fn started(&self, arguments: &[&str]) -> Running {
        let mut child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let err = BufReader::new(child.stderr.take().unwrap());
        Running { child, err }
    }

    /// Lets hardly anything through for a while, from the client's side.
    pub(crate) fn is_dead_for(&self, time: Duration) {
        let of_client = |arguments: &[&str]| run("tc", &[&["-n", &self.client.0], arguments].concat());
        let shape =
            ["qdisc", "add", "dev", "perf0", "root", "tbf", "rate", "100bit", "burst", "2kb", "latency", "50ms"];
        of_client(&shape);
        std::thread::sleep(time);
        of_client(&["qdisc", "del", "dev", "perf0", "root"]);
    }

    /// Ends the server where it stands.
    pub(crate) fn kill_server(&mut self) {
        self.serving.kill().unwrap();
        self.serving.wait().unwrap();
    }

    /// Bytes of payload that have crossed the client's device, in the direction that had more.
    pub(crate) fn sent_or_received(&self) -> f64 {
        let shown = output("ip", &["-n", &self.client.0, "-s", "-j", "link", "show", "dev", "perf0"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let payload = |way: &str| {
            let counted = &shown[0]["stats64"][way];
            counted["bytes"].as_f64().unwrap() - HEADERS * counted["packets"].as_f64().unwrap()
        };
        payload("tx").max(payload("rx"))
    }

    /// Seconds of CPU that the server has used, and all commands that have ended.
    pub(crate) fn cpu(&self) -> f64 {
        let ticks = |process: &str, fields: [usize; 2]| {
            let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            let rest = text.rsplit_once(')').unwrap().1;
            let fields = fields.map(|field| rest.split_whitespace().nth(field - 3).unwrap().parse::<f64>().unwrap());
            fields[0] + fields[1]
        };
        // User and system time: the server's own, and that of children that were waited for.
        (ticks(&self.serving.id().to_string(), [14, 15]) + ticks("self", [16, 17])) / TICKS
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.serving.kill();
        let _ = self.serving.wait();
    }
}

/// A measurement under way.
pub(crate) struct Running {
    child: Child,
    err: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn wait_for_an_interval(&mut self) {
        let mut line = String::new();
        self.err.read_line(&mut line).unwrap();
        assert!(line.contains("bit/s"), "{line}");
    }

    pub(crate) fn interrupt(&self) {
        run("sh", &["-c", &format!("kill -s INT {}", self.child.id())]);
    }

    pub(crate) fn end(mut self) -> Ran {
        // Both pipes hold more than is printed.
        let status = wait(&mut self.child).expect("it ends by itself");
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.err.read_to_string(&mut err).unwrap();
        Ran { status, out, err }
    }
}

/// The command in a namespace. `ip netns exec` becomes it, so a signal to the one is one to the other.
fn within(side: &Namespace, folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &side.0, env!("CARGO_BIN_EXE_penstock")]).args(arguments);
    command.current_dir(folder.path()).env("TMPDIR", folder.path().join("tmp"));
    command.env("XDG_RUNTIME_DIR", folder.path()).env("XDG_CONFIG_HOME", folder.path().join("home"));
    command
        .env_remove("PENSTOCK_LOG")
        .env_remove("PENSTOCK_SECRET_FILE")
        .env_remove("PENSTOCK_SECRET")
        .stdin(Stdio::null());
    command
}

fn why_not() -> Option<String> {
    if std::env::var_os("PENSTOCK_LABS").is_none_or(|value| value != "1") {
        return Some("labs run when PENSTOCK_LABS=1 is set".to_owned());
    }
    let is_root = output("id", &["-u"]).trim() == "0";
    if !is_root {
        return Some("needs root".to_owned());
    }
    for tool in ["ip", "tc"] {
        if Command::new(tool).arg("-V").output().is_err() {
            return Some(format!("needs the command {tool} of the package iproute2"));
        }
    }
    let probe = format!("penstock-perf-{}-probe", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &probe]).output().is_ok_and(|made| made.status.success());
    drop(Namespace(probe));
    (!made).then(|| "needs network namespaces".to_owned())
}

fn run(program: &str, arguments: &[&str]) {
    let ran = Command::new(program).args(arguments).output().unwrap();
    assert!(ran.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn output(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8(ran.stdout).unwrap()
}
