//! Connections that come to nothing: who is told why, and what is logged of them.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_core::{Env, Timestamp};
use penstock_session::Refusal;

use super::opening::Awaits;
use super::{Control, Phase, Talk};

/// Lines in each [`WINDOW`]. Anybody can make connections: a log must not grow as quickly.
const LINES_MAX: u32 = 8;
const WINDOW: Duration = Duration::from_secs(1);

/// Bytes of a text of somebody else's in a line.
const TEXT_BYTES_MAX: usize = 256;

/// As much of somebody else's text as is logged.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// How many lines about connections are logged, and how many were left out.
#[derive(Debug, Default)]
pub(super) struct AwayLog {
    since: Timestamp,
    lines: u32,
    left_out: u64,
}

impl AwayLog {
    /// Whether there is a line for one more now, and then how many had none since the last.
    fn take(&mut self, now: Timestamp) -> Option<u64> {
        if self.lines == 0 || now.since(self.since) >= WINDOW {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<E: Env> Control<E> {
    /// Ends a stranger's connection, with a word about why where that helps it.
    pub(super) fn turn_away(&mut self, token: u64, why: &str, refusal: Option<Refusal>) {
        self.shared.knocks.refused.add(1);
        self.send_away(token, why, refusal);
    }

    pub(super) fn send_away(&mut self, token: u64, why: &str, refusal: Option<Refusal>) {
        let Some(mut talk) = self.remove(token) else { return };
        // A stream of a session takes no words: what comes over it is its peer's.
        let is_stream = matches!(&talk.phase, Phase::Opening(opening) if matches!(opening.awaits, Awaits::Session(_)));
        if let Some(refusal) = refusal.filter(|_| !is_stream) {
            // What is not read would make the system throw the answer away.
            let _ = talk.connection.skip_little();
            talk.connection.send_plain(refusal.encode());
        }
        self.log_away(talk.line.as_ref().map(|line| line.remote), why);
    }

    /// Says in the log that a connection from there came to nothing.
    pub(super) fn log_away(&mut self, address: Option<SocketAddr>, why: &str) {
        let Some(left_out) = self.away_log.take(self.shared.env.now()) else { return };
        let (address, why) = (address.map_or_else(|| "this host".to_owned(), |address| address.to_string()), cut(why));
        match left_out {
            0 => tracing::warn!(address, why, "a caller was turned away"),
            _ => tracing::warn!(address, why, not_logged_before = left_out, "a caller was turned away"),
        }
    }

    /// Says in the log why the session of this talk is ended, which a peer can have as often as it connects.
    pub(super) fn log_end(&mut self, token: u64, why: &str) {
        let Some(left_out) = self.away_log.take(self.shared.env.now()) else { return };
        if let Some(Talk { phase: Phase::Open { peer, .. }, .. }) = self.talks.get(&token) {
            tracing::warn!(peer = %peer.name, why, not_logged_before = left_out, "a peer ends its session");
        }
    }

    /// A stranger closed its connection before it said anything, as who looks whether a port is open does.
    pub(super) fn left_silently(&mut self, token: u64) {
        self.shared.knocks.refused.add(1);
        if let Some(Talk { line: Some(line), .. }) = self.remove(token) {
            tracing::info!(address = %line.remote, "a caller left without a word");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_some_lines_and_a_count() {
        let mut log = AwayLog::default();
        let at = |millis: u64| Timestamp::from_ns(millis * 1_000_000);
        let lines: Vec<_> = (0..100).filter_map(|_| log.take(at(5))).collect();
        assert_eq!(lines, vec![0; LINES_MAX as usize]);
        assert_eq!(log.take(at(900)), None);
        assert_eq!(log.take(at(1005)), Some(93), "the next line says how many had none");
        assert_eq!(log.take(at(1006)), Some(0));
        assert_eq!(log.take(at(60_000)), Some(0));
    }
}
