//! The loop between the ends: the only place with a clock.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{Answer, Lines, Order, parse};
use crate::scenario::Scenario;
use crate::tap::Tap;
use crate::wire::Wire;

/// Frames taken from one end before the other has its turn.
const BATCH: usize = 64;

/// Longest frame of any device.
const FRAME_MAX: usize = 65_536 + 64;

/// A wire at work.
pub struct Pump {
    /// A, then B.
    taps: [Tap; 2],
    wire: Wire,
    script: Scenario,
    begun: Instant,
    buffer: Vec<u8>,
}

/// What a round has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

impl Pump {
    /// A wire between two ends. With `waits`, frames pass without faults until it is told to start.
    pub fn new(taps: [Tap; 2], script: Scenario, waits: bool) -> Self {
        let first = if waits { Scenario { seed: script.seed, ..Scenario::clean() } } else { script.clone() };
        Self { taps, wire: Wire::new(first), script, begun: Instant::now(), buffer: vec![0; FRAME_MAX] }
    }

    /// Passes frames until told to quit or the input of orders ends. Without an input, until an end fails.
    pub fn run(mut self, orders: Option<BorrowedFd<'_>>, answers: BorrowedFd<'_>) -> io::Result<()> {
        let mut lines = Lines::default();
        say(answers, &Answer::Ready { seed: self.wire.seed() })?;
        loop {
            let has_orders = self.wait(orders)?;
            for from in 0..2 {
                self.fetch(from)?;
                self.flush()?;
            }
            if let Some(orders) = orders.filter(|_| has_orders)
                && self.listen(&mut lines, orders, answers)? == Next::Stop
            {
                return Ok(());
            }
        }
    }

    /// Waits for a frame, an order, or the next moment of the wire. Whether there are orders.
    fn wait(&self, orders: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let limit = self.wire.next_moment().map(|moment| moment.saturating_sub(self.begun.elapsed()));
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() });
        let mut waited: Vec<PollFd<'_>> = self.taps.iter().map(|tap| PollFd::new(tap, PollFlags::IN)).collect();
        if let Some(orders) = &orders {
            waited.push(PollFd::new(orders, PollFlags::IN));
        }
        match poll(&mut waited, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_orders = waited.get(2).is_some_and(|orders| !orders.revents().is_empty());
        Ok(has_orders)
    }

    fn fetch(&mut self, from: usize) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(length) = self.taps[from].read(&mut self.buffer)? else { return Ok(()) };
            let now = self.begun.elapsed();
            self.wire.advance(now);
            self.wire.offer(from, now, self.buffer[..length].to_vec());
        }
        Ok(())
    }

    /// Hands on whatever is due, and lets the script go on where no frame comes.
    fn flush(&mut self) -> io::Result<()> {
        let now = self.begun.elapsed();
        self.wire.advance(now);
        for path in 0..2 {
            while let Some(frame) = self.wire.take(path, now) {
                if !self.taps[1 - path].write(&frame)? {
                    self.wire.refused(path, frame.len());
                }
            }
        }
        Ok(())
    }

    fn listen(&mut self, lines: &mut Lines, orders: BorrowedFd<'_>, answers: BorrowedFd<'_>) -> io::Result<Next> {
        let mut bytes = [0; 1024];
        let length = match rustix::io::read(orders, &mut bytes) {
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Next::Go),
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Ok(Next::Stop);
        }
        let mut heard = Vec::new();
        lines.feed(&bytes[..length], |line| heard.push(line.map_err(str::to_owned).and_then(parse)));
        for order in heard {
            let (next, answer) = match order {
                Ok(order) => self.obey(order),
                Err(error) => (Next::Go, Answer::Error(error)),
            };
            say(answers, &answer)?;
            if next == Next::Stop {
                return Ok(Next::Stop);
            }
        }
        Ok(Next::Go)
    }

    fn obey(&mut self, order: Order) -> (Next, Answer) {
        match order {
            Order::Start => {
                self.begun = Instant::now();
                self.wire = Wire::new(self.script.clone());
            }
            Order::Happen(what) => {
                self.wire.advance(self.begun.elapsed());
                self.wire.happen(what);
            }
            Order::Stats => return (Next::Go, Answer::Stats(Box::new(self.wire.stats()))),
            Order::Quit => return (Next::Stop, Answer::Done),
        }
        (Next::Go, Answer::Done)
    }
}

/// Writes an answer as one line. Nobody listening is no reason to stop.
fn say(answers: BorrowedFd<'_>, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        match rustix::io::write(answers, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::PIPE) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
