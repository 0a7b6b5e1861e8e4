//! Names of hosts to addresses, within a time: the system's own look-up waits as long as it likes.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::Duration;

use penstock_core::Env;
use penstock_memory::fork::PerProcess;
use penstock_session::descriptor::ADDRESSES_MAX;

use crate::engine_inner::EngineInner;

/// Look-ups that may be under way in this process: each one that nobody waits for any more still has a thread.
const LOOKUPS_MAX: usize = 8;

static LOOKUPS: PerProcess<AtomicUsize> = PerProcess::new();

fn lookups() -> &'static AtomicUsize {
    LOOKUPS.get(AtomicUsize::default)
}

/// Counts one look-up for as long as it runs.
struct Counted;

impl Counted {
    fn take() -> Option<Self> {
        let one_more = |running: usize| (running < LOOKUPS_MAX).then_some(running + 1);
        lookups().fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        lookups().fetch_sub(1, Ordering::Relaxed);
    }
}

/// The addresses that `text` (`host:port`) stands for, or why there are none, in words.
pub(crate) fn resolve<E: Env>(
    engine: &EngineInner<E>,
    text: &str,
    within: Duration,
) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    if text.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err("it is not of the form `host:port`".to_owned());
    }
    let counted = Counted::take().ok_or("too many look-ups of names are under way and unanswered")?;
    let (answer, answered) = mpsc::sync_channel(1);
    let asked = text.to_owned();
    let body = move || {
        let found = asked.to_socket_addrs().map(|found| found.take(ADDRESSES_MAX).collect::<Vec<_>>());
        drop(counted);
        // Nobody may be waiting any more.
        let _ = answer.send(found.map_err(|error| error.to_string()));
    };
    let env = &engine.shared.env;
    env.spawn("penstock-resolve", None, Box::new(body)).map_err(|error| error.to_string())?;
    let mut found = None;
    if engine.is_inline() {
        engine.wait_until(env.now() + within, || {
            if found.is_none() {
                found = match answered.try_recv() {
                    Ok(answer) => Some(answer),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => Some(Err("the look-up failed".to_owned())),
                };
            }
            found.is_some()
        });
    } else {
        found = answered.recv_timeout(within).ok();
    }
    match found.unwrap_or_else(|| Err(format!("no answer came within {within:?}")))? {
        found if found.is_empty() => Err("the name has no addresses".to_owned()),
        found => Ok(found),
    }
}
