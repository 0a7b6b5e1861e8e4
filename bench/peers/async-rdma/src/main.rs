//! The two ends of a measurement over async-rdma, for Penstock's RDMA lab.
//!
//! One end serves, the other measures and prints one line of JSON. Each end is one process with one connection.

#![forbid(unsafe_code)]

use std::alloc::Layout;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_rdma::{LocalMrWriteAccess, Rdma, RdmaBuilder};

const USAGE: &str = "\
usage: peer-async-rdma serve ADDRESS DEVICE GID-INDEX
       peer-async-rdma bandwidth ADDRESS DEVICE GID-INDEX BYTES COUNT DEPTH
       peer-async-rdma latency ADDRESS DEVICE GID-INDEX BYTES COUNT

  serve      takes one connection at ADDRESS (IPv4:port) and answers until it is told to stop
  bandwidth  COUNT writes of BYTES each, DEPTH of them at a time
  latency    COUNT round trips: a write of BYTES with an immediate, 8 bytes back

example: peer-async-rdma serve 10.77.0.1:7000 rxe_a0 1 &
         peer-async-rdma latency 10.77.0.1:7000 rxe_b0 1 8 1000";

/// The immediate that asks for one like it.
const PING: u32 = 1;
/// The immediate that ends the service.
const STOP: u32 = 2;
/// Nobody is waited for longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let run = async {
        match words.as_slice() {
            ["serve", address, device, gid] => serve(address, device, number(gid)?).await,
            ["bandwidth", address, device, gid, bytes, count, depth] => {
                let rdma = call(address, device, number(gid)?).await?;
                bandwidth(rdma, number(bytes)?, number(count)?, number(depth)?).await
            }
            ["latency", address, device, gid, bytes, count] => {
                let rdma = call(address, device, number(gid)?).await?;
                latency(&rdma, number(bytes)?, number(count)?).await
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, USAGE)),
        }
    };
    let ended = tokio::time::timeout(PATIENCE, run).await;
    match ended.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "two minutes are over"))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> io::Result<usize> {
    let bad = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("`{text}` is no number\n{USAGE}"));
    text.parse().map_err(bad)
}

fn layout(bytes: usize) -> io::Result<Layout> {
    Layout::from_size_align(bytes.max(1), 64).map_err(io::Error::other)
}

fn builder(device: &str, gid: usize) -> RdmaBuilder {
    // Its agent posts receives when it gets to it; without end, a card with none is asked again until then.
    RdmaBuilder::default()
        .set_dev(device)
        .set_gid_index(gid)
        .set_rnr_retry(7)
        .set_min_rnr_timer(12)
        .set_qp_max_send_wr(128)
        .set_qp_max_recv_wr(128)
}

async fn call(address: &str, device: &str, gid: usize) -> io::Result<Rdma> {
    builder(device, gid).connect(address).await
}

/// Answers each ping with one until it is told to stop. Plain writes need no answer from here.
async fn serve(address: &str, device: &str, gid: usize) -> io::Result<()> {
    let rdma = builder(device, gid).listen(address).await?;
    let mut answer: Option<(async_rdma::LocalMr, async_rdma::RemoteMr)> = None;
    loop {
        match rdma.receive_write_imm().await? {
            PING => {
                if answer.is_none() {
                    answer = Some((rdma.alloc_local_mr(layout(8)?)?, rdma.request_remote_mr(layout(8)?).await?));
                }
                let (ours, theirs) = answer.as_mut().expect("it was made just now");
                rdma.write_with_imm(ours, theirs, PING).await?;
            }
            _ => return Ok(()),
        }
    }
}

async fn bandwidth(rdma: Rdma, bytes: usize, count: usize, depth: usize) -> io::Result<()> {
    let (rdma, depth) = (Arc::new(rdma), depth.clamp(1, count.max(1)));
    let mut pairs = Vec::with_capacity(depth);
    for _ in 0..depth {
        let mut ours = rdma.alloc_local_mr(layout(bytes)?)?;
        // Touched once, so that no first touch is measured.
        ours.as_mut_slice().fill(0x5e);
        let mut theirs = rdma.request_remote_mr(layout(bytes)?).await?;
        rdma.write(&ours, &mut theirs).await?;
        pairs.push((ours, theirs));
    }
    let start = Instant::now();
    let mut tasks = Vec::with_capacity(depth);
    for (place, (ours, mut theirs)) in pairs.into_iter().enumerate() {
        let rdma = Arc::clone(&rdma);
        let writes = count / depth + usize::from(place < count % depth);
        tasks.push(tokio::spawn(async move {
            for _ in 0..writes {
                rdma.write(&ours, &mut theirs).await?;
            }
            // Kept until all are done: giving memory back is not a part of this.
            Ok::<_, io::Error>((ours, theirs))
        }));
    }
    let mut kept = Vec::with_capacity(depth);
    for task in tasks {
        kept.push(task.await.map_err(io::Error::other)??);
    }
    report("bandwidth", bytes, count, depth, start.elapsed());
    stop(&rdma).await
}

async fn latency(rdma: &Rdma, bytes: usize, count: usize) -> io::Result<()> {
    let ours = rdma.alloc_local_mr(layout(bytes)?)?;
    let mut theirs = rdma.request_remote_mr(layout(bytes)?).await?;
    let mut start = Instant::now();
    // The first one is not measured: memory is asked for on the way.
    for round in 0..=count {
        rdma.write_with_imm(&ours, &mut theirs, PING).await?;
        rdma.receive_write_imm().await?;
        if round == 0 {
            start = Instant::now();
        }
    }
    report("round_trip", bytes, count, 1, start.elapsed());
    stop(rdma).await
}

async fn stop(rdma: &Rdma) -> io::Result<()> {
    let ours = rdma.alloc_local_mr(layout(1)?)?;
    let mut theirs = rdma.request_remote_mr(layout(1)?).await?;
    rdma.write_with_imm(&ours, &mut theirs, STOP).await
}

fn report(what: &str, bytes: usize, count: usize, depth: usize, took: Duration) {
    let seconds = took.as_secs_f64();
    println!(r#"{{"what":"{what}","bytes":{bytes},"count":{count},"depth":{depth},"seconds":{seconds:.6}}}"#);
}
