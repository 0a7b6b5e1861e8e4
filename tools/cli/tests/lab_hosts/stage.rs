//! Two hosts, `penstock serve` on the one, and whatever is run on the other.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_wire::{Family, Side, TwoHosts};
use serde_json::Value;

use crate::run::{Folder, LIMIT, Ran, finish, wait};

/// A few blocks, so that it takes no time even without optimisation.
pub(crate) const TINY: &str = "name: tiny\nwhat: a test\nblock_bytes: 4096\nblocks: 64\nlayers: 2\n";

static ALONE: Mutex<()> = Mutex::new(());

/// Two hosts. Whoever runs on them has the secret of this folder.
pub(crate) struct Stage {
    pub(crate) hosts: TwoHosts,
    pub(crate) folder: Folder,
    _alone: MutexGuard<'static, ()>,
}

/// What a command has printed so far.
#[derive(Clone, Default)]
pub(crate) struct Text(Arc<Mutex<String>>);

impl Text {
    pub(crate) fn get(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    /// Until there is no more.
    fn fill(&self, from: impl Read + Send + 'static) -> JoinHandle<()> {
        let text = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                let mut text = text.0.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        })
    }

    /// Waits until these words have been printed.
    pub(crate) fn wait_for(&self, words: &str) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let text = self.get();
            if text.contains(words) {
                return text;
            }
            assert!(Instant::now() < until, "`{words}` was not printed, but this:\n{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Stage {
    /// Two hosts with a quick wire; none where labs cannot run.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let are_on = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
        let reason = (!are_on).then(|| "labs run when PENSTOCK_LABS=1 is set".to_owned()).or_else(TwoHosts::why_not);
        if let Some(reason) = reason {
            crate::run::skip(test, &reason);
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let hosts = TwoHosts::with_mtu("".parse().unwrap(), 9000).expect("two hosts");
        let folder = Folder::new();
        folder.write("tiny.yaml", TINY);
        Some(Self { hosts, folder, _alone: alone })
    }

    /// The address of the host that serves, as clients write it.
    pub(crate) fn there(&self, family: Family) -> String {
        match self.hosts.address(Side::A, family) {
            std::net::IpAddr::V4(ip) => format!("{ip}:7400"),
            std::net::IpAddr::V6(ip) => format!("[{ip}]:7400"),
        }
    }

    /// A program on a host, in this folder and with its secret.
    pub(crate) fn program(&self, side: Side, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.hosts.command(side, program);
        command.args(arguments);
        self.folder.furnish(&mut command);
        command
            .env("XDG_CONFIG_HOME", self.folder.path().join("home"))
            .env_remove("PENSTOCK_SECRET_FILE")
            .env_remove("PENSTOCK_SECRET");
        command
    }

    /// The command on the host that does not serve.
    pub(crate) fn here(&self, arguments: &[&str]) -> Command {
        self.program(Side::B, env!("CARGO_BIN_EXE_penstock"), arguments)
    }

    /// The same, to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        finish(&mut self.here(arguments))
    }

    /// Serves on the other host.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Serving {
        let arguments = [&["serve"], arguments].concat();
        let mut command = self.program(Side::A, env!("CARGO_BIN_EXE_penstock"), &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, err) = (Text::default(), Text::default());
        let filling = vec![out.fill(child.stdout.take().unwrap()), err.fill(child.stderr.take().unwrap())];
        out.wait_for(if arguments.contains(&"--json") { "\"serving\"" } else { "Ctrl-C ends it." });
        Serving { child, out, err, filling }
    }
}

/// `penstock serve`; killed with this value.
pub(crate) struct Serving {
    child: Child,
    pub(crate) out: Text,
    pub(crate) err: Text,
    filling: Vec<JoinHandle<()>>,
}

impl Serving {
    /// The first event, of one that prints JSON.
    pub(crate) fn event(&self, kind: &str) -> Value {
        let text = self.out.wait_for(&format!("\"event\":\"{kind}\""));
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.into_iter().find(|event| event["event"] == kind).unwrap()
    }

    /// Asks it to end, and waits until it has. Answers all that it printed.
    pub(crate) fn end(mut self) -> (String, String) {
        let kill = format!("kill -s INT {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(wait(&mut self.child), Some(0));
        self.filling.drain(..).for_each(|filling| filling.join().unwrap());
        (self.out.get(), self.err.get())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs on the other host.
pub(crate) struct Running {
    pub(crate) child: Child,
    ended: Receiver<(String, String)>,
}

impl Running {
    pub(crate) fn begin(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let complaints = std::thread::spawn(move || {
                let mut text = String::new();
                let _ = err.read_to_string(&mut text);
                text
            });
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            let _ = sender.send((text, complaints.join().unwrap()));
        });
        Self { child, ended }
    }

    pub(crate) fn end(mut self) -> Ran {
        let status = wait(&mut self.child).expect("it ends in time");
        let (out, err) = self.ended.recv_timeout(LIMIT).unwrap();
        Ran { status, out, err }
    }
}
