//! The two ends sending each other one small write after the other: how long one takes one way is
//! half of a round.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Armed, NoteId, Notification, Peer, Plan, RemoteCounter, Span, Submit, SystemEnv, Transfer, Window};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::end::{ARRIVALS, End, LABEL};
use crate::error::LabError;

/// How long the other end may take for its turn.
const TURN: Duration = Duration::from_secs(10);
/// Looks at a counter between two looks at everything else.
const LOOKS: u32 = 1 << 14;
/// What is written, from and to places that nothing else here writes; as long as the rules say.
const WORD: Span = Span { local: 0, remote: 4096, len: 8 };
/// The longest that a rally writes: it ends before anything else that lies in the pool.
const BYTES_MAX: u64 = 2048;

/// How an end waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// Looks at the arrival counter all the time.
    Poll,
    /// Looks at the written word itself all the time; nothing else tells of it.
    PollWord,
    /// Sleeps until the arrival counter goes up.
    SleepOnCounter,
    /// Sleeps until a notification arrives.
    SleepOnNote,
}

/// How a rally is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// How many rounds.
    pub rounds: u64,
    /// How many bytes go over each time; where the word itself is looked at, it is the first of them.
    pub bytes: u64,
    /// How each end waits for its turn.
    pub manner: Manner,
    /// How long each end sleeps before it sends, at least, so that everybody else is idle by then. Not part
    /// of the time that is measured.
    pub pause: Duration,
}

/// Sleeps so long, and answers how long that really was.
pub(super) fn pause(length: Duration) -> Duration {
    if length.is_zero() {
        return Duration::ZERO;
    }
    let start = Instant::now();
    std::thread::sleep(length);
    start.elapsed()
}

/// One side of a rally.
pub struct Rally<'a> {
    end: &'a End,
    peer: Peer<SystemEnv>,
    plan: Plan,
    counter: RemoteCounter,
    rules: Rules,
    /// What this end has paused in all.
    paused: Duration,
    /// Arrivals before this rally and in it.
    seen: u64,
    /// Whether arrivals come by themselves while this end looks for them, because the other end writes them.
    is_written_to: bool,
    /// Whether what this end sends is done only while it turns its engine.
    is_own_work: bool,
    /// What was sent last, where that is so and nothing else turns it.
    sent: Option<Transfer<SystemEnv>>,
    notes: Vec<Notification>,
}

impl<'a> Rally<'a> {
    /// This side of a rally with a peer.
    pub fn new(end: &'a End, peer: &Peer<SystemEnv>, rules: Rules) -> Result<Self, LabError> {
        let remote = peer.wait_region(LABEL, TURN).map_err(LabError::refused("find the other end's pool"))?;
        let counter = peer.wait_counter(ARRIVALS, TURN).ok_or(LabError::Silent { doing: "announce", waited: TURN })?;
        if !(8..=BYTES_MAX).contains(&rules.bytes) {
            return Err(LabError::Option { option: "bytes", mend: "a rally writes 8 to 2,048" });
        }
        let plan = Plan::write(&end.pool, &remote).extents(&[Span { len: rules.bytes, ..WORD }]).build();
        let plan = plan.map_err(LabError::refused("plan a write of one word"))?;
        let seen = match rules.manner {
            Manner::PollWord => load(end.pool.window(), WORD.remote)?,
            _ => end.arrivals.value(),
        };
        let (paused, notes) = (Duration::ZERO, Vec::new());
        let is_card = peer.transport() == TransportName::Verbs.as_str();
        let is_between_hosts =
            TransportName::ALL.iter().any(|name| name.is_between_hosts() && name.as_str() == peer.transport());
        let is_written_to = end.is_threaded() || !is_between_hosts || (is_card && rules.manner == Manner::PollWord);
        let is_own_work = is_card && !end.is_threaded();
        let (peer, sent) = (peer.clone(), None);
        Ok(Self { end, peer, plan, counter, rules, paused, seen, is_written_to, is_own_work, sent, notes })
    }

    /// This side of a rally with whoever is connected.
    pub fn with_first_peer(end: &'a End, rules: Rules) -> Result<Self, LabError> {
        let start = Instant::now();
        loop {
            if let Some(peer) = end.engine.peers().first() {
                return Self::new(end, peer, rules);
            }
            if start.elapsed() > TURN {
                return Err(LabError::Silent { doing: "connect", waited: TURN });
            }
            end.turn()?;
        }
    }

    /// Sends first. Answers how long all rounds took, without the pauses of this end.
    pub fn send_first(&mut self) -> Result<Duration, LabError> {
        let start = Instant::now();
        for _ in 0..self.rules.rounds {
            self.send()?;
            self.receive()?;
        }
        Ok(start.elapsed() - self.paused)
    }

    /// Sends first. Answers how long each round took, in nanoseconds, pauses included.
    pub fn send_first_each(&mut self) -> Result<Vec<f64>, LabError> {
        let mut times = Vec::with_capacity(self.rules.rounds as usize);
        let mut begun = Instant::now();
        for _ in 0..self.rules.rounds {
            self.send()?;
            self.receive()?;
            let ended = Instant::now();
            times.push((ended - begun).as_nanos() as f64);
            begun = ended;
        }
        Ok(times)
    }

    /// Returns what comes. Answers how long the pauses of this end were in all.
    pub fn receive_first(&mut self) -> Result<Duration, LabError> {
        for _ in 0..self.rules.rounds {
            self.receive()?;
            self.send()?;
        }
        Ok(self.paused)
    }

    #[inline]
    fn send(&mut self) -> Result<(), LabError> {
        self.paused += pause(self.rules.pause);
        let how = match self.rules.manner {
            Manner::SleepOnNote => Submit::new().notify(NoteId(1), b""),
            Manner::PollWord => {
                // The same in both directions: how many this side has sent.
                let word = load(self.end.pool.window(), WORD.local)?;
                store(self.end.pool.window(), WORD.local, word + 1)?;
                Submit::new()
            }
            Manner::Poll | Manner::SleepOnCounter => Submit::new().count(self.counter),
        };
        let sent = self.peer.submit(&self.plan, how).map_err(LabError::refused("submit a write of one word"))?;
        // Dropped elsewhere: the other end's answer tells that it arrived.
        self.sent = (self.is_own_work && self.is_written_to).then_some(sent);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<(), LabError> {
        self.seen += 1;
        let came = match self.rules.manner {
            Manner::Poll => self.poll(|| Ok(self.end.arrivals.value() >= self.seen))?,
            Manner::PollWord => self.poll(|| Ok(load(self.end.pool.window(), WORD.remote)? == self.seen))?,
            Manner::SleepOnCounter if self.end.is_threaded() => self.end.arrivals.wait(self.seen, TURN),
            Manner::SleepOnCounter => self.sleep_inline()?,
            Manner::SleepOnNote => {
                let came = self.end.engine.wait_notification(TURN);
                self.notes.clear();
                self.end.engine.notifications(&mut self.notes);
                came
            }
        };
        if came { Ok(()) } else { Err(LabError::Silent { doing: "take its turn", waited: TURN }) }
    }

    #[inline]
    fn poll(&self, has_come: impl Fn() -> Result<bool, LabError>) -> Result<bool, LabError> {
        let mut is_under_way = self.sent.is_some();
        loop {
            for _ in 0..LOOKS {
                if has_come()? {
                    return Ok(true);
                }
                is_under_way = is_under_way && self.sent.as_ref().is_some_and(|sent| sent.poll().is_none());
                if self.is_written_to && !is_under_way {
                    std::hint::spin_loop();
                } else {
                    self.end.engine.progress().map_err(LabError::refused("turn an inline engine"))?;
                }
            }
            // Also where the other end has ended: then the session does.
            self.end.turn()?;
            if self.peer.ended().is_some() {
                return Ok(false);
            }
        }
    }

    /// As an application with other things to wait for does it: arms the engine and sleeps on its descriptor.
    fn sleep_inline(&self) -> Result<bool, LabError> {
        let longest = Timespec::try_from(TURN).ok();
        while self.end.arrivals.value() < self.seen {
            if self.peer.ended().is_some() {
                return Ok(false);
            }
            if self.end.engine.arm().map_err(LabError::refused("arm an inline engine"))? == Armed::Busy {
                continue;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.end.engine.event_fd(), PollFlags::IN)];
            if poll(&mut fds, longest.as_ref()) == Ok(0) {
                return Ok(false);
            }
            if self.end.arrivals.value() < self.seen {
                self.end.turn()?;
            }
        }
        Ok(true)
    }
}

/// Where each side of a rally of cache lines writes.
const LINES: [u64; 2] = [8192, 8192 + 256];

/// The floor of a rally: nothing but one word that goes over and one that comes back, `rounds` times.
/// Answers the time of one way, in nanoseconds.
pub fn send_cache_lines(pool: &Window, rounds: u64) -> Result<f64, LabError> {
    let begun = load(pool, LINES[0])?;
    let start = Instant::now();
    for round in begun + 1..=begun + rounds {
        store(pool, LINES[0], round)?;
        await_word(pool, LINES[1], round)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / (2 * rounds) as f64)
}

/// The other side of [`send_cache_lines`].
pub fn return_cache_lines(pool: &Window, rounds: u64) -> Result<(), LabError> {
    let begun = load(pool, LINES[1])?;
    for round in begun + 1..=begun + rounds {
        await_word(pool, LINES[0], round)?;
        store(pool, LINES[1], round)?;
    }
    Ok(())
}

/// Makes both lines agree before the first rally.
pub fn reset_cache_lines(pool: &Window) -> Result<(), LabError> {
    LINES.into_iter().try_for_each(|line| store(pool, line, 0))
}

#[inline]
fn load(pool: &Window, offset: u64) -> Result<u64, LabError> {
    pool.load_u64(offset).map_err(LabError::refused("look at a cache line"))
}

#[inline]
fn store(pool: &Window, offset: u64, value: u64) -> Result<(), LabError> {
    pool.store_u64(offset, value).map_err(LabError::refused("change a cache line"))
}

#[inline]
fn await_word(pool: &Window, offset: u64, value: u64) -> Result<(), LabError> {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if load(pool, offset)? == value {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > TURN {
            return Err(LabError::Silent { doing: "change a cache line", waited: TURN });
        }
    }
}
