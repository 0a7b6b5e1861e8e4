//! Waiting for several sockets with epoll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::env::{Reactor, Waker};
use penstock_transport::host::silence;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::{SystemListener, SystemStream};

const WAKE_TOKEN: u64 = u64::MAX;
const DRIVER_TOKEN: u64 = u64::MAX - 1;
const TIMER_TOKEN: u64 = u64::MAX - 2;
/// That of the first descriptor of a bell; the others' follow.
const BELLS_TOKEN: u64 = u64::MAX - 100;
const EVENTS_PER_WAIT: usize = 64;

/// An epoll set and the eventfd that wakes it.
#[derive(Debug)]
pub struct SystemReactor {
    set: OwnedFd,
    wake: Arc<Wake>,
    bells: Vec<OwnedFd>,
    /// Made when it is first needed.
    timer: Option<OwnedFd>,
}

#[derive(Debug)]
struct Wake(OwnedFd);

impl Waker for Wake {
    fn wake(&self) {
        // The only failure is a full counter, which wakes just as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

fn interest(writable: bool) -> epoll::EventFlags {
    if writable { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

impl SystemReactor {
    pub(super) fn new() -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&set, &wake, epoll::EventData::new_u64(WAKE_TOKEN), epoll::EventFlags::IN)?;
        Ok(Self { set, wake: Arc::new(Wake(wake)), bells: Vec::new(), timer: None })
    }
}

impl Reactor for SystemReactor {
    type Listener = SystemListener;
    type Stream = SystemStream;

    fn watch_listener(&mut self, listener: &SystemListener, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.set, listener, epoll::EventData::new_u64(token), interest(false))?)
    }

    fn unwatch_listener(&mut self, listener: &SystemListener) -> io::Result<()> {
        Ok(epoll::delete(&self.set, listener)?)
    }

    fn watch_stream(&mut self, stream: &SystemStream, token: u64, writable: bool) -> io::Result<()> {
        Ok(epoll::add(&self.set, stream, epoll::EventData::new_u64(token), interest(writable))?)
    }

    fn rewatch_stream(&mut self, stream: &SystemStream, token: u64, writable: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.set, stream, epoll::EventData::new_u64(token), interest(writable))?)
    }

    fn unwatch_stream(&mut self, stream: &SystemStream) -> io::Result<()> {
        Ok(epoll::delete(&self.set, stream)?)
    }

    fn watch_bell(&mut self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN;
        epoll::add(&self.set, bell, epoll::EventData::new_u64(BELLS_TOKEN + self.bells.len() as u64), flags)?;
        self.bells.push(bell.try_clone_to_owned()?);
        Ok(())
    }

    fn watch_driver(&mut self, driver: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.set, driver, epoll::EventData::new_u64(DRIVER_TOKEN), epoll::EventFlags::IN)?)
    }

    fn wake_at(&mut self, moment: Timestamp) -> io::Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let never = moment == Timestamp::NEVER;
        let timer = match &self.timer {
            Some(timer) => timer,
            None if never => return Ok(()),
            None => {
                let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
                let flags = epoll::EventFlags::IN;
                epoll::add(&self.set, &timer, epoll::EventData::new_u64(TIMER_TOKEN), flags)?;
                self.timer.insert(timer)
            }
        };
        // Zero would stop the timer: who asks for the beginning of time is woken at once.
        let since_boot = moment.since(Timestamp::default()).max(Duration::from_nanos(1));
        let it_value = if never { zero } else { Timespec::try_from(since_boot).map_err(io::Error::other)? };
        let spec = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec)?;
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<u64>) -> io::Result<()> {
        let timeout = timeout.and_then(|span| Timespec::try_from(span).ok());
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_WAIT];
        let (events, _) = match epoll::wait(&self.set, &mut space, timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            other => other?,
        };
        for event in events {
            match event.data.u64() {
                WAKE_TOKEN => {
                    let _ = rustix::io::read(&self.wake.0, &mut [0u8; 8]);
                }
                DRIVER_TOKEN => {}
                TIMER_TOKEN => {
                    let _ = self.timer.as_ref().map(|timer| rustix::io::read(timer, &mut [0u8; 8]));
                }
                token => match token.checked_sub(BELLS_TOKEN).and_then(|place| self.bells.get(place as usize)) {
                    Some(bell) => silence(bell),
                    None => ready.push(token),
                },
            }
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::<Wake>::clone(&self.wake)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.set.as_fd())
    }
}
