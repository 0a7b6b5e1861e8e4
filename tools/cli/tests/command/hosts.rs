//! `penstock serve`, and all that goes to it: ping, perf and doctor with a host.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::gpu::stand_in;
use crate::run::{Folder, LIMIT, Ran, finish, wait};

/// A few blocks, so that it takes no time even without optimisation.
const TINY: &str = "name: tiny\nwhat: a test\nblock_bytes: 4096\nblocks: 64\nlayers: 2\n";

const SERVE: [&str; 6] = ["serve", "--listen", "127.0.0.1:0", "--memory-mib", "64", "--json"];

/// `penstock serve` at a free port of this host; ended with this value.
struct Serving {
    child: Child,
    lines: Receiver<String>,
    address: String,
}

impl Serving {
    fn start(folder: &Folder, more: &[&str]) -> Self {
        Self::spawn(with_home(folder, &[&SERVE[..], more].concat()))
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)))
        });
        let mut serving = Self { child, lines, address: String::new() };
        let first = serving.event("serving");
        // Offered or not, and then why.
        let rdma = &first["rdma"];
        assert_eq!(rdma["offered"].as_bool().unwrap(), rdma["why_not"].is_null(), "{first}");
        serving.address = first["addresses"][0].as_str().unwrap().to_owned();
        serving
    }

    /// Waits for the next event of this kind.
    fn event(&self, kind: &str) -> Value {
        loop {
            let line = self.lines.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("it did not say {kind}"));
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }

    fn signal(&self, signal: &str) {
        send_signal(signal, self.child.id());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send_signal(signal: &str, process: u32) {
    let kill = format!("kill -s {signal} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// The command of a user whose own secret is in this folder.
fn with_home(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    command
        .env("XDG_CONFIG_HOME", folder.path().join("home"))
        .env_remove("PENSTOCK_SECRET_FILE")
        .env_remove("PENSTOCK_SECRET");
    command
}

fn run(folder: &Folder, arguments: &[&str]) -> Ran {
    let ran = finish(&mut with_home(folder, arguments));
    assert_eq!(folder.left_behind(), Vec::<String>::new(), "{arguments:?}");
    ran
}

#[test]
fn another_host_answers_pings() {
    let folder = Folder::new();
    let serving = Serving::start(&folder, &["--name", "other"]);
    let ran = run(&folder, &["ping", &serving.address, "-c", "3", "-i", "0.01", "-s", "4096", "--within", "10"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
    assert!(ran.out.starts_with(&format!("other answers at {}: release ", serving.address)), "{}", ran.out);
    assert_eq!(ran.out.matches("4096 bytes: seq=").count(), 3, "{}", ran.out);
    assert!(ran.out.contains("\nother: 3 sent, 3 answered, 0 lost (0.0 %)\nround trip: least "), "{}", ran.out);
    let ran = run(
        &folder,
        &["ping", &serving.address, "-c", "2", "-i", "0", "-s", "0", "--json", "--io", "epoll", "--within", "10"],
    );
    let summary = ran.json();
    assert_eq!((ran.status, &summary["transport"], &summary["received"]), (0, &"tcp".into(), &2.into()), "{ran:?}");
    assert!(summary["path"].as_str().unwrap().contains("epoll"), "{summary}");
    assert!(summary["min_us"].as_f64().unwrap() <= summary["p99_us"].as_f64().unwrap());
}

#[test]
fn a_workload_is_measured_to_another_host_and_every_byte_verified() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.yaml", TINY);
    let serving = Serving::start(&folder, &[]);
    let common = ["perf", &serving.address, "--workload", &tiny, "--pool-mib", "8", "--rounds", "5"];
    for more in
        [&["--json"][..], &["--json", "--op", "read", "-P", "2"], &["--json", "--progress", "inline", "--io", "epoll"]]
    {
        let ran = run(&folder, &[&common, more].concat());
        assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{more:?}: {ran:?}");
        let report = ran.json();
        assert_eq!((&report["verified"], &report["transport"]), (&true.into(), &"tcp".into()), "{report}");
        assert_eq!((&report["address"], &report["floor_us"]), (&serving.address.clone().into(), &Value::Null));
        assert!(report["p50_us"].as_f64().unwrap() > 0.0);
        let came = serving.event("came");
        assert_eq!(serving.event("went")["peer"], came["peer"]);
    }
    let ran = run(&folder, &common);
    assert!(ran.status == 0 && ran.out.contains("\nfloor      none: "), "{ran:?}");
    let ran = run(&folder, &["perf", &serving.address, "--pool-mib", "65", "--rounds", "1"]);
    assert!(ran.status == 1 && ran.err.contains("--memory-mib"), "{ran:?}");
    let ran = run(&folder, &["perf", &serving.address, "--transport", "shm"]);
    assert!(ran.status == 2 && ran.err.contains("another host is reached by tcp, datagram or verbs"), "{ran:?}");
}

#[test]
fn a_device_that_stands_still_until_the_time_is_over_is_no_measurement() {
    let folder = Folder::new();
    let serving = Serving::start(&folder, &[]);
    let asked = ["perf", &serving.address, "--memory", "device", "--pool-mib", "32", "-t", "2.5", "-i", "0.5"];
    let mut command = with_home(&folder, &asked);
    command.env("PENSTOCK_CUDA_DRIVER", stand_in()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut perf = command.spawn().unwrap();
    let mut told = BufReader::new(perf.stderr.take().unwrap()).lines();
    told.find(|line| line.as_ref().unwrap().contains("GB/s")).expect("it says what was moved").unwrap();
    let children = format!("/proc/{0}/task/{0}/children", perf.id());
    let children = std::fs::read_to_string(children).expect("it is still there");
    let card = children.split_whitespace().next().expect("the stand-in's card").parse().unwrap();
    send_signal("STOP", card);
    let told = std::thread::spawn(move || told.map_while(Result::ok).collect::<Vec<_>>());
    let ran = perf.wait_with_output().unwrap();
    // It has nobody to work for any more.
    send_signal("CONT", card);
    let (said, told) = (String::from_utf8(ran.stdout).unwrap(), told.join().unwrap());
    assert_eq!(ran.status.code(), Some(1), "{said} {told:?}");
    assert!(said.contains("cut off") && said.contains("nothing was confirmed for"), "{said} {told:?}");
}

#[test]
fn the_doctor_goes_there_step_by_step() {
    let folder = Folder::new();
    let serving = Serving::start(&folder, &[]);
    let ran = run(&folder, &["doctor", &serving.address, "--json"]);
    let report = ran.json();
    let steps: Vec<&str> = report["steps"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    let all = [
        "name",
        "port",
        "secret",
        "session",
        "transport",
        "service",
        "write",
        "round trips",
        "datagrams",
        "its doctor",
    ];
    assert_eq!(steps, all, "{report}");
    assert!(report["steps"].as_array().unwrap().iter().all(|step| step["status"] == "ok"), "{report}");
    assert!(!report["there"]["findings"].as_array().unwrap().is_empty() && report["here"]["ok"].is_boolean());
    let ran = run(&folder, &["doctor", &serving.address]);
    assert!(ran.out.starts_with(&format!("the way to {}\n\nname ", serving.address)), "{}", ran.out);
    assert_eq!(run(&folder, &["doctor", &serving.address, "limits"]).status, 2, "a host or topics");
}

/// What a report says of datagrams.
fn of_datagrams(report: &Value) -> &Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().find(|step| step["name"] == "datagrams").unwrap_or(&Value::Null)
}

#[test]
fn the_doctor_says_whether_datagrams_pass_where_both_allow_them() {
    let folder = Folder::new();
    let serving = Serving::start(&folder, &[]);
    let report = run(&folder, &["doctor", &serving.address, "--json"]).json();
    let found = of_datagrams(&report)["found"].as_str().unwrap();
    assert!(found.starts_with("UDP passes in both directions: in datagrams over udp"), "{report}");
    // Not allowed here: not tried.
    let others = folder.write("others.yaml", "transports: { allow: [verbs, tcp] }\n");
    let report = run(&folder, &["doctor", &serving.address, "--json", "--config", &others]).json();
    assert_eq!((of_datagrams(&report), &report["steps"][9]["name"]), (&Value::Null, &Value::Null), "{report}");
    // Not allowed there: said, and no reason to call the way broken.
    let serving = Serving::start(&folder, &["--config", &others]);
    let ran = run(&folder, &["doctor", &serving.address, "--json"]);
    let (report, step) = (ran.json(), of_datagrams(&ran.json()).clone());
    assert_eq!((&step["status"], &report["steps"][10]["status"]), (&"missing".into(), &Value::Null), "{report}");
    assert!(step["mends"][0]["advice"].as_str().unwrap().contains("transports.allow"), "{step}");
    assert_eq!(report["ok"], report["here"]["ok"], "the way itself is whole: {report}");
}

/// A secret that others have not.
fn write_secret(folder: &Folder, name: &str, digits: &str) -> String {
    let path = folder.write(name, &digits.repeat(32));
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    path
}

#[test]
fn without_a_secret_none_is_made_and_it_is_said_where_one_is() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let serving = Serving::start(&folder, &[]);
    let named = ["ping", &serving.address, "-c", "1", "--secret-file", "none.secret"];
    for arguments in
        [&["ping", &serving.address, "-c", "1"][..], &["perf", &serving.address, "--pool-mib", "1"], &named]
    {
        let ran = run(&stranger, arguments);
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{ran:?}");
        assert!(ran.err.contains("there is no secret here yet"), "{ran:?}");
        assert!(ran.err.contains("scp 127.0.0.1:.config/penstock/secret "), "{ran:?}");
    }
    let report = run(&stranger, &["doctor", &serving.address, "--json"]).json();
    let last = report["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["name"], &last["status"]), (&"secret".into(), &"broken".into()), "{report}");
    assert!(last["mends"][0]["advice"].as_str().unwrap().contains("scp"), "{last}");
    assert!(!stranger.path().join("home").exists(), "nothing was made");
}

#[test]
fn another_secret_is_refused_and_said_to_be() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    std::fs::create_dir_all(stranger.path().join("home/penstock")).unwrap();
    write_secret(&stranger, "home/penstock/secret", "4d");
    let serving = Serving::start(&folder, &[]);
    for arguments in [&["ping", &serving.address, "-c", "1"][..], &["perf", &serving.address, "--pool-mib", "1"]] {
        let ran = run(&stranger, arguments);
        assert_eq!((ran.status, ran.out.as_str()), (1, ""), "{ran:?}");
        assert!(ran.err.contains("does not share this engine's secret") && ran.err.contains("scp "), "{ran:?}");
    }
    let report = run(&stranger, &["doctor", &serving.address, "--json"]).json();
    let last = report["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["name"], &last["status"]), (&"secret".into(), &"broken".into()), "{report}");
    assert!(last["mends"][0]["advice"].as_str().unwrap().contains("scp"), "{last}");
    assert_eq!(
        run(&folder, &["ping", &serving.address, "-c", "1", "--within", "10"]).status,
        0,
        "its own are still served"
    );
}

#[test]
fn a_file_with_a_secret_can_be_named_by_a_relative_path() {
    let folder = Folder::new();
    write_secret(&folder, "lab.secret", "7b");
    let serving = Serving::start(&folder, &["--secret-file", "lab.secret"]);
    let ran = run(&folder, &["ping", &serving.address, "-c", "1", "--within", "10", "--secret-file", "lab.secret"]);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""), "{ran:?}");
}

#[test]
fn what_is_no_host_is_refused_as_an_argument() {
    for command in ["ping", "perf", "doctor"] {
        for (host, words) in [("10.77.0.1:99999", "from 1 to 65535"), (":7400", "no host"), ("gpu-b:x", "no port")] {
            let ran = crate::run::penstock(&[command, host]);
            assert!(ran.status == 2 && ran.err.contains(words), "{command} {host}: {ran:?}");
        }
    }
}

#[test]
fn another_program_that_answers_is_called_one() {
    let folder = Folder::new();
    write_secret(&folder, "lab.secret", "7b");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let ran = run(&folder, &["ping", &there, "-c", "1", "--secret-file", "lab.secret"]);
    assert!(ran.status == 1 && ran.err.contains(&format!("what answers at {there} is not Penstock")), "{ran:?}");
    let ran = run(&folder, &["perf", &there, "--pool-mib", "1", "--secret-file", "lab.secret"]);
    assert!(ran.status == 1 && ran.err.contains("is not Penstock") && ran.err.contains("penstock serve"), "{ran:?}");
}

#[test]
fn serve_says_what_it_made_and_who_can_reach_it() {
    let folder = Folder::new();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--memory-mib", "64", "--for", "0.1"];
    let ran = run(&folder, &serve);
    assert_eq!(ran.status, 0, "{ran:?}");
    for words in [
        "by this host alone",
        "then, here    penstock ping 127.0.0.1:",
        "made just now",
        "\nended: no peer was connected\n",
    ] {
        assert!(ran.out.contains(words), "{words}: {ran:?}");
    }
    assert!(!run(&folder, &serve).out.contains("made just now"));
    // Nobody lives there, and where there is no room for a folder: neither is made, and both are said.
    for (home, words) in [
        ("/nonexistent-home", "HOME is /nonexistent-home, which is no folder"),
        ("/proc", "/proc/.config/penstock/secret"),
    ] {
        let ran = finish(
            folder
                .command(&serve)
                .env("HOME", home)
                .env_remove("XDG_CONFIG_HOME")
                .env_remove("PENSTOCK_SECRET_FILE")
                .env_remove("PENSTOCK_SECRET"),
        );
        assert!(ran.status == 1 && ran.err.contains(words), "{home}: {ran:?}");
    }
    assert!(!std::path::Path::new("/nonexistent-home").exists());
}

#[test]
fn a_secret_in_the_environment_needs_no_file_and_is_never_shown() {
    let folder = Folder::new();
    let digits = "5ec4e7".repeat(11)[..64].to_owned();
    let with = |secret: &str, arguments: &[&str]| {
        let mut command = with_home(&folder, arguments);
        command.env("HOME", "/nonexistent-home").env_remove("XDG_CONFIG_HOME");
        command.env("PENSTOCK_SECRET", secret).env("PENSTOCK_LOG", "trace");
        command
    };
    let serving = Serving::spawn(with(&digits, &[&SERVE[..], &["--name", "other"]].concat()));
    let ping = ["ping", &serving.address, "-c", "1", "--within", "10"];
    let ran = finish(&mut with(&digits, &ping));
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(!format!("{ran:?}").contains(&digits[..16]), "{ran:?}");
    let ran = finish(&mut with(&"00".repeat(32), &ping));
    assert!(ran.status != 0 && ran.err.contains("does not share"), "{ran:?}");
    for wrong in [&digits[..63], ""] {
        let ran = finish(&mut with(wrong, &ping));
        assert!(ran.status != 0 && ran.err.contains("what PENSTOCK_SECRET says"), "{ran:?}");
        assert!(!format!("{ran:?}").contains(&digits[..16]), "{ran:?}");
    }
}

#[test]
fn a_port_that_cannot_be_had_comes_with_what_mends_it() {
    let folder = Folder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    for (listen, words) in
        [(taken.1.as_str(), "another program listens there"), ("192.0.2.1:7400", "addresses of this host")]
    {
        let ran = run(&folder, &["serve", "--listen", listen, "--for", "0.1"]);
        assert!(ran.status == 1 && ran.err.contains(words), "{listen}: {ran:?}");
    }
}

#[test]
fn nobody_there_and_no_such_host_are_told_apart() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("home/penstock")).unwrap();
    write_secret(&folder, "home/penstock/secret", "4d");
    // Bound by nobody: the listener that had it is gone.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let start = Instant::now();
    let ran = run(&folder, &["ping", &free, "-c", "1"]);
    assert!(ran.status == 1 && ran.err.contains("start `penstock serve`"), "{ran:?}");
    let ran = run(&folder, &["ping", "no-such-host.invalid", "-c", "1"]);
    assert!(ran.status == 1 && ran.err.contains("no-such-host.invalid"), "{ran:?}");
    let report = run(&folder, &["doctor", &free, "--json"]).json();
    let last = report["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&report["ok"], &last["name"], &report["there"]), (&false.into(), &"port".into(), &Value::Null));
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn a_server_that_is_killed_in_the_middle_ends_a_measurement_soon() {
    let folder = Folder::new();
    let mut serving = Serving::start(&folder, &[]);
    let mut perf = with_home(&folder, &["perf", &serving.address, "--pool-mib", "32", "-t", "50"]);
    let mut perf = perf.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    serving.event("came");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(perf.try_wait().unwrap(), None, "it measures");
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    let start = Instant::now();
    assert_eq!(wait(&mut perf), Some(1));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_server_that_is_asked_to_end_in_the_middle_says_so() {
    let folder = Folder::new();
    let tiny = folder.write("tiny.yaml", TINY);
    let mut serving = Serving::start(&folder, &[]);
    let perf = with_home(&folder, &["perf", &serving.address, "-w", &tiny, "--pool-mib", "8", "-t", "50"]);
    let perf = std::thread::spawn(move || finish(&mut { perf }));
    serving.event("came");
    std::thread::sleep(Duration::from_millis(500));
    serving.signal("TERM");
    let ended = serving.event("ended");
    assert_eq!((&ended["drained"], &ended["told"]), (&true.into(), &1.into()), "{ended}");
    assert_eq!(wait(&mut serving.child), Some(0));
    let ran = perf.join().unwrap();
    assert!(ran.status == 1 && ran.err.contains("is shutting down") && !ran.err.contains("revoked"), "{ran:?}");
}

#[test]
fn a_server_that_is_asked_to_end_drains_and_leaves_nothing() {
    let folder = Folder::new();
    for signal in ["TERM", "INT"] {
        let mut serving = Serving::start(&folder, &[]);
        assert_eq!(run(&folder, &["ping", &serving.address, "-c", "1", "--within", "10"]).status, 0);
        serving.signal(signal);
        assert_eq!(serving.event("ended")["drained"], true);
        assert_eq!(wait(&mut serving.child), Some(0));
        assert_eq!(folder.left_behind(), Vec::<String>::new());
    }
    let sockets = std::fs::read_dir(folder.path().join("penstock")).map(Iterator::count);
    assert_eq!(sockets.unwrap_or(0), 0, "no socket is left");
    let mut serving = Serving::start(&folder, &["--for", "0.2"]);
    assert_eq!(wait(&mut serving.child), Some(0));
}
