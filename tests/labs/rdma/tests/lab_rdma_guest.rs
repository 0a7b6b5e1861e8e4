//! Lab: the guest is what other labs take it for. Its devices are there, traffic crosses the wire, faults are real, and
//! whatever goes wrong in it is noticed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use penstock_lab_rdma::counters::{Counters, Resources};
use penstock_lab_rdma::lab::{self, Lab, Outcome, Step};
use penstock_lab_rdma::netem::{self, Faults, Victims};
use penstock_lab_rdma::pair::Pair;
use penstock_lab_rdma::perftest::Perftest;
use penstock_lab_rdma::rails::{self, Side};
use penstock_lab_rdma::suite::Suite;
use penstock_lab_rdma::{End, Guest, Job, LabError, Machine, programs};

const RAILS: u8 = 2;

const STEPS: &[Step] = &[
    Step::new("commands_have_output_status_and_a_deadline", commands),
    Step::new("what_a_guest_writes_is_gone_with_it", host_is_safe),
    Step::new("every_device_is_active", devices),
    Step::new("bandwidth_crosses_the_wire_of_each_rail", bandwidth),
    Step::new("latency_crosses_the_wire", latency),
    Step::new("what_is_lost_is_sent_again", loss),
    Step::new("a_link_that_goes_down_ends_what_used_it", link_down),
    Step::new("a_killed_process_leaves_no_resources", killed),
    Step::new("tests_of_this_project_run_inside_and_are_counted", project_tests),
    Step::new("a_guest_that_dies_is_noticed", death),
    Step::new("a_guest_that_hangs_is_noticed", silence),
    Step::new("a_boot_that_takes_too_long_is_given_up", late_boot),
    Step::new("a_host_dies_and_the_other_one_lives_on", host_death),
];

fn main() -> ExitCode {
    lab::run(env!("CARGO_BIN_EXE_penstock-guest"), RAILS, STEPS)
}

const SOON: Duration = Duration::from_secs(20);

/// An assertion whose failure is a step's.
fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

fn commands(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    lab.note(&format!("{} booted in {:.1} s", guest.image.release, guest.booted_in.as_secs_f64()));
    let both = guest.run(&Job::shell("echo out; echo err >&2; exit 7"))?;
    require(both.end == End::Status(7), || format!("{:?}", both.end))?;
    require(both.output() == "out\n" && both.lines.len() == 2, || format!("{:?}", both.lines))?;
    let late = guest.run(&Job::shell("echo before; sleep 60 & wait").within(Duration::from_secs(5)))?;
    require(late.end == End::TooLate && late.output() == "before\n", || format!("{late:?}"))?;
    let absent = guest.run(&Job::new("no-such-command-anywhere"))?;
    require(matches!(absent.end, End::Unstarted(_)), || format!("{:?}", absent.end))?;
    let killed = guest.spawn(&Job::shell("sleep 60"))?;
    killed.signal(9)?;
    let killed = killed.wait()?;
    require(killed.end == End::Signal(9), || format!("{:?}", killed.end))?;
    for line in ["cargo", "rustc"] {
        let found = guest.run(&Job::shell(format!("command -v {line}")))?;
        require(!found.end.is_success(), || format!("{line} is found in the guest: {}", found.output()))?;
    }
    let many = guest.check(&Job::shell("seq 1 20000"))?;
    require(many.lines().count() == 20_000 && many.ends_with("\n20000\n"), || format!("{} bytes", many.len()))
}

fn host_is_safe(lab: &Lab) -> Outcome {
    let path = std::env::temp_dir().join(format!("penstock-lab-rdma-{}-here", std::process::id()));
    std::fs::write(&path, "host")?;
    let name = path.to_string_lossy().into_owned();
    let guest = lab.guest()?;
    let seen = guest.check(&Job::shell(format!("cat {name}; echo guest >{name}; cat {name}; rm {name}")))?;
    let kept = std::fs::read_to_string(&path);
    std::fs::remove_file(&path)?;
    require(seen == "hostguest\n" && kept? == "host", || seen)
}

fn devices(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let text = guest.check(&Job::new("ibv_devinfo").argument("-v"))?;
    for rail in 0..RAILS {
        for side in Side::BOTH {
            let gid = format!("::ffff:{}", side.address(rail));
            let has_both = text.contains(&side.device(rail)) && text.contains(&gid);
            require(has_both, || format!("no {} with {gid} in:\n{text}", side.device(rail)))?;
        }
    }
    let active = text.matches("PORT_ACTIVE (4)").count();
    lab.note(&format!("{active} devices are active"));
    require(active == 2 * usize::from(RAILS), || text)
}

fn bandwidth(lab: &Lab) -> Outcome {
    const BYTES: u64 = 65_536 * 200;
    let guest = lab.guest()?;
    for rail in 0..RAILS {
        let before = Counters::read(&guest)?;
        let table = Perftest::new("ib_write_bw -s 65536 -n 200 -m 4096", rail).run(&guest)?;
        let moved = Counters::read(&guest)?.since(&before);
        moved.expect_crossed(Side::A, rail, BYTES)?;
        let (sent, packets) = (moved.sent_bytes(Side::A, rail), moved.sent_packets(Side::A, rail));
        lab.note(&format!(
            "rail {rail}: ib_write_bw 64 KiB {:.1} MB/s; {sent} bytes, {packets} packets",
            table.mb_per_s()
        ));
        let other = moved.sent_bytes(Side::A, 1 - rail);
        require(other < 10_000, || format!("{other} bytes went by the other rail"))?;
    }
    Ok(())
}

fn latency(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let before = Counters::read(&guest)?;
    let table = Perftest::new("ib_write_lat -s 64 -n 300", 0).run(&guest)?;
    let packets = Counters::read(&guest)?.since(&before).sent_packets(Side::A, 0);
    lab.note(&format!("ib_write_lat 64 B: {:.0} µs typically; {packets} packets", table.typical_us()));
    require(packets >= 300, || format!("{packets} packets"))
}

fn loss(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let faults = Faults { loss_percent: 1.0, delay_us: 500, reorder_percent: 25.0, ..Faults::default() };
    netem::set(&guest, Side::A, 0, faults)?;
    let before = Counters::read(&guest)?;
    let table = Perftest::new("ib_write_bw -s 16384 -n 100 -m 4096", 0).run(&guest)?;
    let moved = Counters::read(&guest)?.since(&before);
    let toll = netem::toll(&guest, Side::A, 0)?;
    let retries = moved.of_device(Side::A, 0, "completer_retry_err");
    let disordered = moved.of_device(Side::B, 0, "out_of_seq_request");
    lab.note(&format!(
        "{} frames lost of {}, {retries} times sent again, {disordered} out of order; {:.1} MB/s",
        toll.lost,
        toll.lost + toll.passed,
        table.mb_per_s()
    ));
    require(toll.lost > 0 && retries > 0 && disordered > 0, || "no fault was felt".to_owned())?;
    // Everything lost is nothing received: the faults are those of this wire.
    netem::set(&guest, Side::A, 0, Faults { loss_percent: 100.0, victims: Victims::All, ..Faults::default() })?;
    let cut = Job::new("busybox").arguments(["ping", "-c", "1", "-W", "1"]);
    let cut = guest.run(&cut.argument(Side::B.address(0).to_string()))?;
    require(!cut.end.is_success(), || cut.output())
}

fn link_down(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let test = Perftest::new("ib_write_bw -s 65536 -D 20 -m 4096", 0);
    let (server, client) = (test.serve(&guest)?, test.call(&guest)?);
    client.wait_for("remote address", SOON)?;
    std::thread::sleep(Duration::from_secs(2));
    let cut = Instant::now();
    rails::down(&guest, Side::A, 0)?;
    let client = client.wait()?;
    let text = client.output() + &client.lines.iter().map(|line| line.text.clone() + "\n").collect::<String>();
    lab.note(&format!("the client {} {:.1} s after the link went down", client.end, cut.elapsed().as_secs_f64()));
    require(!client.end.is_success(), || text.clone())?;
    // What was under way is given up (12), or flushed (5) because the device itself has noticed.
    require(["Failed status 12", "Failed status 5"].iter().any(|words| text.contains(words)), || text)?;
    drop(server);
    rails::up(&guest, Side::A, 0)?;
    let table = Perftest::new("ib_write_bw -s 65536 -n 20 -m 4096", 0).run(&guest)?;
    require(table.0[1] as u64 == 20, || format!("{table:?}"))
}

fn killed(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let before = Resources::read(&guest)?;
    let test = Perftest::new("ib_write_bw -s 65536 -D 20 -m 4096", 1);
    let (server, client) = (test.serve(&guest)?, test.call(&guest)?);
    client.wait_for("remote address", SOON)?;
    let during = Resources::read(&guest)?;
    for side in Side::BOTH {
        let (device, kind) = (side.device(1), "qp");
        require(during.count(&device, kind) > before.count(&device, kind), || during.to_string())?;
    }
    client.signal(9)?;
    server.signal(9)?;
    require(client.wait()?.end == End::Signal(9), || "the client lives on".to_owned())?;
    require(server.wait()?.end == End::Signal(9), || "the server lives on".to_owned())?;
    Resources::wait_until(&guest, &before, SOON)?;
    Ok(())
}

fn project_tests(lab: &Lab) -> Outcome {
    let program = programs::test_of("penstock-conformance", "tests/conformance", "local")?;
    lab.suite(&Suite::new(program).argument("one_worker::notes"), &[])
}

fn death(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let job =
        Job::shell("echo 1 >/proc/sys/kernel/sysrq; echo last words; sleep 1; echo c >/proc/sysrq-trigger; sleep 60");
    let started = Instant::now();
    let error = guest.run(&job).err().ok_or("a guest that died has ended well")?;
    lab.note(&format!("noticed after {:.1} s", started.elapsed().as_secs_f64()));
    let text = error.to_string();
    let is_told = matches!(error, LabError::Died { .. }) && text.contains("sysrq triggered crash");
    require(is_told && started.elapsed() < SOON, || text)?;
    let after = guest.run(&Job::new("true"));
    require(matches!(after, Err(LabError::Died { .. })), || format!("{after:?}"))
}

fn silence(lab: &Lab) -> Outcome {
    let guest = Guest::boot(&Machine::new("guest", lab.program()).silent_for(Duration::from_secs(4)))?;
    let started = Instant::now();
    let error = guest.run(&Job::shell("kill -STOP $PPID; sleep 60")).err().ok_or("a guest that hung has ended well")?;
    let is_told = matches!(&error, LabError::Died { why, .. } if why.contains("said nothing"));
    require(is_told && started.elapsed() < SOON, || error.to_string())
}

fn late_boot(lab: &Lab) -> Outcome {
    let limit = Duration::from_millis(200);
    let booted = Guest::boot(&Machine::new("guest", lab.program()).boots_within(limit));
    let error = booted.err().ok_or("a guest has booted in less than anybody believes")?;
    require(matches!(error, LabError::TooLate { .. }), || error.to_string())
}

fn host_death(lab: &Lab) -> Outcome {
    let started = Instant::now();
    let pair = Pair::boot(lab.program(), &lab::note)?;
    lab.note(&format!("two guests hear each other after {:.1} s", started.elapsed().as_secs_f64()));
    let before_all = Resources::read(&pair.a)?;
    let test = Perftest::new("ib_write_bw -s 16384 -n 100000 -m 1024", 0).within(Duration::from_secs(120));
    let server = test.serve(&pair.b)?;
    let before = Counters::read(&pair.a)?;
    let client = test.call(&pair.a)?;
    client.wait_for("remote address", SOON)?;
    std::thread::sleep(Duration::from_secs(3));
    let moved = Counters::read(&pair.a)?.since(&before);
    lab.note(&format!("{} bytes left side A before the power failed", moved.sent_bytes(Side::A, 0)));
    moved.expect_crossed(Side::A, 0, 16_384)?;
    pair.b.power_off();
    require(matches!(server.wait(), Err(LabError::Died { .. })), || "the server lives on".to_owned())?;
    // Perftest asks for seven retries, which this device takes for endless ones: it tries and hears nothing.
    let lone = Counters::read(&pair.a)?;
    std::thread::sleep(Duration::from_secs(2));
    let later = Counters::read(&pair.a)?.since(&lone);
    let (heard, tried) = (later.of_device(Side::A, 0, "rcvd_pkts"), later.of_device(Side::A, 0, "completer_retry_err"));
    lab.note(&format!("{tried} retries and {heard} answers in the two seconds after that"));
    require(heard == 0 && tried > 0, || format!("{later:?}"))?;
    client.signal(9)?;
    require(client.wait()?.end == End::Signal(9), || "the client lives on".to_owned())?;
    Ok(Resources::wait_until(&pair.a, &before_all, SOON)?)
}
