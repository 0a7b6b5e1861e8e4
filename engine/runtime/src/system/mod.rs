//! The real environment: the kernel's clock, randomness, threads and sockets.

mod listen;
mod reactor;
mod stream;
mod tcp;

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::env::{Address, BlockingJob, Credentials, Env};
use penstock_memory::BlockingCalls;
use penstock_memory::fork::PerProcess;
use rustix::thread::CpuSet;

pub use self::listen::SystemListener;
pub use self::reactor::SystemReactor;
pub use self::stream::SystemStream;

/// Time, randomness, threads and sockets of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEnv;

impl Env for SystemEnv {
    type Stream = SystemStream;
    type Listener = SystemListener;
    type Reactor = SystemReactor;

    #[inline]
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Timestamp::from_ns(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    fn run_blocking(&self, process: u32, job: BlockingJob) {
        BlockingCalls::of(process).run_job(job);
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(more) => filled += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random numbers: {error}"),
            }
        }
        u64::from_ne_bytes(bytes)
    }

    fn spawn(&self, name: &str, core: Option<usize>, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
        if let Some(core) = core.filter(|&core| core >= CpuSet::MAX_CPU) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
        }
        let pinned = move || {
            if let Some(core) = core {
                let mut set = CpuSet::new();
                set.set(core);
                if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                    tracing::warn!(core, %error, "cannot pin this thread; it runs where the kernel puts it");
                }
            }
            body();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(pinned)
    }

    fn listen(&self, address: &Address) -> io::Result<SystemListener> {
        SystemListener::bind(address)
    }

    fn connect(&self, address: &Address) -> io::Result<SystemStream> {
        SystemStream::connect(address)
    }

    fn reactor(&self) -> io::Result<SystemReactor> {
        SystemReactor::new()
    }

    fn pause(&self, span: Duration) {
        if span.is_zero() { std::thread::yield_now() } else { std::thread::sleep(span) }
    }

    fn credentials(&self) -> Credentials {
        Credentials { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() }
    }

    /// A digest of the kernel's boot id.
    fn host(&self) -> u64 {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }

    fn process(&self) -> u64 {
        static MARK: PerProcess<u64> = PerProcess::new();
        *MARK.get(|| self.random() | 1)
    }

    fn fds_max(&self) -> usize {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.map_or(usize::MAX, |most| most as usize)
    }
}
