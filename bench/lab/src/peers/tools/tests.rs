use std::process::Command;

use super::*;

fn nanos(reading: Option<Reading>) -> Option<f64> {
    reading.map(|reading| reading.nanos)
}

#[test]
fn the_output_of_ucx_is_read() {
    let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                100000,0.065,0.074,0.075,103.32,103.32,13541807,13541807\n";
    assert_eq!(nanos(read_ucx(text)), Some(75.0));
    assert_eq!(nanos(read_ucx(" 500,14.376,44.25,44.25,1.38,1.38,22559,22559")), Some(44_250.0));
    for broken in ["", "iterations,a,b\n", "100000,0.065\n", "100000,0.065,1,zero\n", "100000,0.065,1,0.000\n"] {
        assert_eq!(read_ucx(broken), None, "{broken:?}");
    }
}

#[test]
fn the_output_of_fi_pingpong_is_read() {
    let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                8       200k    =200k    3m          0.73s      4.39       1.82       0.55\n";
    assert_eq!(nanos(read_libfabric(text)), Some(1820.0));
    for broken in ["", "bytes #sent\n8 200k\n", "bytes usec/xfer\n", "bytes usec/xfer\n8 inf\n"] {
        assert_eq!(read_libfabric(broken), None, "{broken:?}");
    }
}

#[test]
fn the_output_of_qperf_is_read() {
    assert_eq!(nanos(read_qperf("tcp_lat:\n    latency  =  27.5 us\nquit:\n")), Some(27_500.0));
    assert_eq!(nanos(read_qperf("tcp_lat:\n    latency  =  980 ns\n")), Some(980.0));
    for broken in ["", "tcp_lat:\n", "latency = us", "latency = 3 sec", "latency = -1 us"] {
        assert_eq!(read_qperf(broken), None, "{broken:?}");
    }
}

#[test]
fn the_output_of_iperf3_is_read_with_the_cpus_of_both_sides() {
    let text = r#"{"end": {"sum_received": {"bits_per_second": 16e9},
                   "cpu_utilization_percent": {"host_total": 90.0, "remote_total": 30.0}}}"#;
    let reading = read_iperf3(text).unwrap();
    assert!((reading.nanos - 0.5).abs() < 1e-9 && (reading.cpu_s_per_gb.unwrap() - 0.6).abs() < 1e-9, "{reading:?}");
    let silent = read_iperf3(r#"{"end": {"sum_received": {"bits_per_second": 8e9}}}"#).unwrap();
    assert_eq!(silent, Reading { nanos: 1.0, cpu_s_per_gb: None });
    for broken in ["", "{}", r#"{"error": "no"}"#, r#"{"end": {"sum_received": {"bits_per_second": 0}}}"#] {
        assert_eq!(read_iperf3(broken), None, "{broken:?}");
    }
}

#[test]
fn client_and_server_are_told_the_same_port_and_provider() {
    assert_eq!((UCX.server)(70, 5), "-p 70");
    assert_eq!((LIBFABRIC.server)(70, 5), "-p shm -e rdm -S 8 -I 5 -B 70");
    assert!((UCX.client)(70, 5).contains("127.0.0.1 -p 70 -t ucp_put_lat -s 8 -n 5"));
    assert!((UCX_TCP_AM.client)(70, 5).contains("-t ucp_am_lat -s 64"));
    assert!((LIBFABRIC.client)(70, 5).contains("-I 5 -P 70 127.0.0.1"));
    assert_eq!(
        (UCX_TCP_AM.settings_in_words(), QPERF.settings_in_words()),
        ("UCX_TLS=tcp,self".into(), "as it comes".into())
    );
    for tool in TOOLS {
        assert!((tool.server)(70, 5).contains("70") && (tool.client)(70, 5).contains("70"), "{}", tool.title);
    }
}

#[test]
fn a_listener_is_found_in_the_kernels_list_and_a_connection_is_not_one() {
    let list = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 77 1\n   \
                1: 0100007F:1F91 0100007F:AAAA 01 0:0 0:0 0 0 0 78 1\n";
    assert_eq!(listeners(list, 0x1f90), ["77"]);
    assert!(listeners(list, 0x1f91).is_empty() && listeners(list, 0xaaaa).is_empty());
}

#[test]
fn a_listener_of_somebody_else_is_not_the_servers() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = Running::start(Command::new("/bin/sh").args(["-c", "exit 0"])).unwrap();
    assert!(!wait_for_listener(port, &mut server).unwrap());
    let lists = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets = listeners(&lists, port);
    assert!(sockets.iter().any(|socket| holds(std::process::id(), socket)), "{sockets:?}");
}

#[test]
fn shared_memory_of_an_ended_program_is_removed_and_nobody_elses() {
    assert!(is_of_process("4711:0:0", 4711));
    assert!(!is_of_process("4711:0:0", 47) && !is_of_process("47110:0:0", 4711) && !is_of_process("4711", 4711));
    let running = Running::start(Command::new("/bin/sh").args(["-c", "exec sleep 60"])).unwrap();
    let mut leavings = Leavings::default();
    leavings.of(&running);
    let place = |name: String| Path::new(SHARED_MEMORY).join(name);
    let (own, other) = (place(format!("{}:0:0", running.id())), place(format!("{}:penstock-lab", std::process::id())));
    for path in [&own, &other] {
        std::fs::write(path, "").unwrap();
    }
    drop(running);
    drop(leavings);
    let left = [own.exists(), other.exists()];
    std::fs::remove_file(&other).unwrap();
    assert_eq!(left, [false, true]);
}
