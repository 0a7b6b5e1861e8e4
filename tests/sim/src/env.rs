//! What an engine sees of its world.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock::Timestamp;
use penstock::env::{Address, BlockingJob, Credentials, Env, Listener, Reactor, Stream, Waker};

use crate::network::{EndId, Party};
use crate::random::Random;
use crate::trace::What;
use crate::world::Core;

/// One readiness in so many is told a wait later than it might be.
const LATE_ONCE_IN: usize = 5;

/// On which host, in which process and as which user an engine believes it runs.
///
/// All engines of a world share one real process, whatever they believe; whoever believes to be in
/// another one reaches the rest through shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The host.
    pub host: u64,
    /// The process; never zero.
    pub process: u64,
    /// The user.
    pub uid: u32,
    /// The process as the operating system tells it to others; zero if they cannot see it.
    pub pid: u32,
    /// How its clock stands to that of the world.
    pub clock: Clock,
}

/// The clock of a host: it never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    /// So much it is ahead of the world's.
    pub ahead: Duration,
    /// So many millionths it is faster, or slower where this is negative.
    pub drift_ppm: i32,
}

impl Clock {
    /// What it shows when the world's clock shows this.
    pub(crate) fn read(&self, world: Timestamp) -> Timestamp {
        let drift = i128::from(world.as_ns()) * i128::from(self.drift_ppm.max(-999_999)) / 1_000_000;
        let ns = i128::from(world.as_ns()) + drift;
        Timestamp::from_ns(u64::try_from(ns).unwrap_or(0)) + self.ahead
    }
}

impl Identity {
    /// An engine on this host, of which others know only what it says.
    pub fn on(host: u64) -> Self {
        Self { host, process: 1 + host, pid: 0, ..Self::default() }
    }

    /// The address of its host.
    pub fn ip(&self) -> IpAddr {
        let [.., high, middle, low] = self.host.to_be_bytes();
        Ipv4Addr::new(10, high, middle, low).into()
    }
}

impl Default for Identity {
    fn default() -> Self {
        let clock = Clock::default();
        Self { host: 0x40_57, process: 0x9e_0c, uid: 1000, pid: std::process::id(), clock }
    }
}

/// Time, randomness and streams of one engine, by the seed of its world. There are no threads.
#[derive(Clone)]
pub struct SimEnv {
    core: Arc<Core>,
    engine: usize,
    identity: Identity,
    random: Arc<Mutex<Random>>,
}

impl SimEnv {
    pub(crate) fn new(core: &Arc<Core>, engine: usize, identity: Identity, random: Random) -> Self {
        Self { core: Arc::clone(core), engine, identity, random: Arc::new(Mutex::new(random)) }
    }

    fn party(&self) -> Party {
        let Identity { host, .. } = self.identity;
        Party { engine: self.engine, host, ip: self.identity.ip(), who: self.credentials() }
    }

    fn is_dead(&self) -> bool {
        self.core.lock().is_dead(self.engine)
    }

    fn stream(&self, end: EndId) -> SimStream {
        SimStream { core: Arc::clone(&self.core), engine: self.engine, end }
    }
}

impl Env for SimEnv {
    type Stream = SimStream;
    type Listener = SimListener;
    type Reactor = SimReactor;

    fn now(&self) -> Timestamp {
        self.core.now_of(self.engine)
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }

    fn spawn(&self, name: &str, _core: Option<usize>, _body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        let text = format!("no thread `{name}` here: set `workers.progress: inline` in a simulated world");
        Err(io::Error::new(ErrorKind::Unsupported, text))
    }

    fn listen(&self, address: &Address) -> io::Result<SimListener> {
        let (id, reached) = self.core.lock().network.listen(address, self.party())?;
        self.core.record(self.engine, What::Listened, id);
        Ok(SimListener { env: self.clone(), id, reached })
    }

    /// Nothing is slow in here.
    fn run_blocking(&self, _: u32, job: BlockingJob) {
        job.run();
    }

    /// There are no folders in here: a real one, where each thread has one file at a time.
    fn place_beside(&self, _: &Path) -> PathBuf {
        std::env::temp_dir().join(format!("penstock-sim-{}-{:?}", std::process::id(), std::thread::current().id()))
    }

    fn connect(&self, address: &Address) -> io::Result<SimStream> {
        if self.is_dead() {
            return Err(ErrorKind::NetworkUnreachable.into());
        }
        let connected = self.core.lock().network.connect(address, self.party());
        self.core.record(self.engine, What::Called, u64::from(connected.is_ok()));
        connected.map(|end| self.stream(end))
    }

    fn reactor(&self) -> io::Result<SimReactor> {
        Ok(SimReactor { core: Arc::clone(&self.core), watched: BTreeMap::new() })
    }

    fn pause(&self, span: Duration) {
        self.core.pause(self.engine, span);
    }

    fn credentials(&self) -> Credentials {
        Credentials { uid: self.identity.uid, pid: self.identity.pid }
    }

    fn host(&self) -> u64 {
        self.identity.host
    }

    fn process(&self) -> u64 {
        self.identity.process
    }
}

/// One end of a stream in memory.
pub struct SimStream {
    core: Arc<Core>,
    engine: usize,
    end: EndId,
}

impl Stream for SimStream {
    fn send(&mut self, bytes: &[u8], tokens: &[BorrowedFd<'_>]) -> io::Result<usize> {
        if self.is_dead() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let sent = self.core.lock().send(self.end, bytes, tokens);
        match sent {
            Ok((taken, said)) => {
                said.into_iter().for_each(|(what, digest)| self.core.record(self.engine, what, digest));
                Ok(taken)
            }
            Err(error) => {
                self.core.record(self.engine, What::Held, error.kind() as u64);
                Err(error)
            }
        }
    }

    fn receive(&mut self, bytes: &mut [u8], tokens: &mut Vec<OwnedFd>) -> io::Result<usize> {
        if self.is_dead() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        self.core.lock().network.receive(self.end, bytes, tokens)
    }

    fn credentials(&self) -> io::Result<Credentials> {
        self.core.lock().network.other_credentials(self.end)
    }

    fn end_of_process(&self) -> io::Result<Option<OwnedFd>> {
        let mut world = self.core.lock();
        let pid = world.network.other_credentials(self.end)?.pid;
        Ok(world.end_of(pid))
    }

    fn remote(&self) -> Option<SocketAddr> {
        self.core.lock().network.remote(self.end)
    }
}

impl SimStream {
    /// Its engine has died, and its end of the stream is gone.
    fn is_dead(&self) -> bool {
        self.core.lock().is_dead(self.engine)
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        if self.is_dead() {
            return;
        }
        self.core.lock().network.close(self.end);
        self.core.record(self.engine, What::Closed, 0);
    }
}

/// A listener in memory.
pub struct SimListener {
    env: SimEnv,
    id: u64,
    /// Where other hosts reach it.
    reached: Option<SocketAddr>,
}

impl Listener for SimListener {
    type Stream = SimStream;

    fn accept(&mut self) -> io::Result<SimStream> {
        let end = self.env.core.lock().accept(self.id).ok_or(ErrorKind::WouldBlock)?;
        self.env.core.record(self.env.engine, What::Accepted, 0);
        Ok(self.env.stream(end))
    }

    fn address(&self) -> Option<SocketAddr> {
        self.reached
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        self.env.core.lock().network.close_listener(self.id);
    }
}

enum Watched {
    Listener(u64),
    Stream { end: EndId, writable: bool },
}

/// Says which streams are ready, in any order, and now and then a wait too late. It never blocks.
pub struct SimReactor {
    core: Arc<Core>,
    watched: BTreeMap<u64, Watched>,
}

impl SimReactor {
    fn forget(&mut self, stream: &SimStream) {
        self.watched.retain(|_, watched| !matches!(watched, Watched::Stream { end, .. } if *end == stream.end));
    }
}

impl Reactor for SimReactor {
    type Listener = SimListener;
    type Stream = SimStream;

    fn watch_listener(&mut self, listener: &SimListener, token: u64) -> io::Result<()> {
        self.watched.insert(token, Watched::Listener(listener.id));
        Ok(())
    }

    fn unwatch_listener(&mut self, listener: &SimListener) -> io::Result<()> {
        self.watched.retain(|_, watched| !matches!(watched, Watched::Listener(id) if *id == listener.id));
        Ok(())
    }

    fn watch_stream(&mut self, stream: &SimStream, token: u64, writable: bool) -> io::Result<()> {
        self.watched.insert(token, Watched::Stream { end: stream.end, writable });
        Ok(())
    }

    fn rewatch_stream(&mut self, stream: &SimStream, token: u64, writable: bool) -> io::Result<()> {
        self.forget(stream);
        self.watch_stream(stream, token, writable)
    }

    fn unwatch_stream(&mut self, stream: &SimStream) -> io::Result<()> {
        self.forget(stream);
        Ok(())
    }

    fn watch_bell(&mut self, _bell: BorrowedFd<'_>) -> io::Result<()> {
        Ok(()) // A wait that never blocks has nobody to wake.
    }

    fn watch_driver(&mut self, _driver: BorrowedFd<'_>) -> io::Result<()> {
        Ok(()) // As above.
    }

    fn wake_at(&mut self, _moment: Timestamp) -> io::Result<()> {
        Ok(()) // As above.
    }

    fn wait(&mut self, _timeout: Option<Duration>, ready: &mut Vec<u64>) -> io::Result<()> {
        let mut state = self.core.lock();
        let mut found = Vec::new();
        for (&token, watched) in &self.watched {
            let is_ready = match *watched {
                Watched::Listener(id) => state.can_accept(id),
                Watched::Stream { end, writable } => writable || state.network.can_read(end),
            };
            if is_ready && !state.random.once_in(LATE_ONCE_IN) {
                found.push(token);
            }
        }
        state.random.shuffle(&mut found);
        ready.append(&mut found);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(NobodySleeps)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

struct NobodySleeps;

impl Waker for NobodySleeps {
    fn wake(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_ahead_and_drift_and_never_go_back() {
        let at = Timestamp::from_ns;
        let fast = Clock { ahead: Duration::from_nanos(7), drift_ppm: 100 };
        assert_eq!(fast.read(at(1_000_000)), at(1_000_107));
        let slow = Clock { ahead: Duration::ZERO, drift_ppm: -100 };
        assert_eq!(slow.read(at(1_000_000)), at(999_900));
        let stopping = Clock { ahead: Duration::ZERO, drift_ppm: i32::MIN };
        for clock in [fast, slow, stopping] {
            let reads: Vec<Timestamp> = (0..3000).map(|ns| clock.read(at(ns * 500))).collect();
            assert!(reads.is_sorted(), "{clock:?}");
        }
    }

    #[test]
    fn every_host_has_an_address_of_its_own() {
        assert_eq!(Identity::on(2).ip(), IpAddr::from([10, 0, 0, 2]));
        assert_eq!(Identity::on(0x01_02_03).ip(), IpAddr::from([10, 1, 2, 3]));
        assert_ne!(Identity::on(1).process, Identity::on(2).process);
    }
}
