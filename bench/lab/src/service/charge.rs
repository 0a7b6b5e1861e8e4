//! Which part of a server's CPU time is whose, where several clients measure at the same time.
//!
//! The workers of a server serve all of its peers, so no thread and no clock belongs to one of them. What is known is the CPU
//! time of the whole process, and how many bytes each client says that it has moved. In each interval the former is dealt out by
//! the latter, and every nanosecond once: what several clients are charged adds up to at most what the process used. The time in
//! which the server fills, looks at or makes pools for somebody is nobody's part of a measurement and is left out.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How long an interval is at least; clients report twice in it.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// Who measures, and what each has been charged.
#[derive(Debug)]
pub(super) struct Ledger<K> {
    clients: HashMap<K, Client>,
    /// CPU time of the process that has been dealt out, or was nobody's.
    dealt: Duration,
    /// CPU time that was used for requests, and is not dealt out.
    aside: Duration,
    drained: Option<Instant>,
}

/// One who measures.
#[derive(Debug)]
struct Client {
    charged: Duration,
    /// Bytes that it had moved by its last report, and when that came.
    moved: u64,
    at: Instant,
    /// Bytes a second between its last two reports.
    rate: f64,
    /// Bytes that have been a weight already.
    weighed: f64,
}

impl Client {
    /// Bytes since the last interval. What it has moved since its last report is guessed from those before.
    fn weight(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).min(INTERVAL).as_secs_f64();
        (self.moved as f64 + self.rate * since - self.weighed).max(0.0)
    }
}

impl<K: Eq + Hash> Ledger<K> {
    pub(super) fn new() -> Self {
        Self { clients: HashMap::new(), dealt: Duration::ZERO, aside: Duration::ZERO, drained: None }
    }

    /// CPU time that was used for a request, and is no part of any measurement.
    pub(super) fn set_aside(&mut self, cpu: Duration) {
        self.aside += cpu;
    }

    /// A client says how many bytes it has moved since its first report, which begins its measurement; `process` is the CPU time
    /// of the process by now. Answers what it has been charged since then; for the last report up to this moment.
    pub(super) fn report(&mut self, client: K, moved: u64, is_last: bool, now: Instant, process: Duration) -> Duration {
        let is_new = !self.clients.contains_key(&client);
        if is_new || is_last || self.drained.is_none_or(|drained| now.saturating_duration_since(drained) >= INTERVAL) {
            // The last bytes are known before they are weighed.
            self.note(&client, moved, now);
            self.settle(now, process);
        } else {
            self.note(&client, moved, now);
        }
        if is_new {
            let begun = Client { charged: Duration::ZERO, moved, at: now, rate: 0.0, weighed: moved as f64 };
            self.clients.insert(client, begun);
            return Duration::ZERO;
        }
        if is_last {
            return self.clients.remove(&client).map_or(Duration::ZERO, |client| client.charged);
        }
        self.clients.get(&client).map_or(Duration::ZERO, |client| client.charged)
    }

    /// A client has gone without a last report.
    pub(super) fn forget(&mut self, client: &K, now: Instant, process: Duration) {
        if self.clients.contains_key(client) {
            self.settle(now, process);
            self.clients.remove(client);
        }
    }

    fn note(&mut self, client: &K, moved: u64, now: Instant) {
        let Some(client) = self.clients.get_mut(client) else { return };
        let since = now.saturating_duration_since(client.at).as_secs_f64();
        // Two reports at the same moment say nothing about a rate.
        if since > 1e-3 {
            client.rate = moved.saturating_sub(client.moved) as f64 / since;
            (client.moved, client.at) = (moved, now);
        } else {
            client.moved = client.moved.max(moved);
        }
    }

    /// Deals out what the process has used since the last time.
    fn settle(&mut self, now: Instant, process: Duration) {
        let all = process.saturating_sub(self.aside);
        let used = all.saturating_sub(self.dealt);
        self.dealt = self.dealt.max(all);
        self.drained = Some(now);
        let weights: f64 = self.clients.values().map(|client| client.weight(now)).sum();
        let count = self.clients.len() as f64;
        for client in self.clients.values_mut() {
            let weight = client.weight(now);
            let part = if weights > 0.0 { weight / weights } else { 1.0 / count };
            client.charged += used.mul_f64(part);
            client.weighed += weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn one_client_is_charged_all_that_was_used_while_it_measured() {
        let (mut ledger, start) = (Ledger::new(), Instant::now());
        assert_eq!(ledger.report("a", 0, false, start, ms(900)), Duration::ZERO);
        assert_eq!(ledger.report("a", 50, false, start + ms(250), ms(1000)), Duration::ZERO, "not an interval yet");
        assert_eq!(ledger.report("a", 100, false, start + ms(500), ms(1200)), ms(300));
        assert_eq!(ledger.report("a", 120, true, start + ms(600), ms(1250)), ms(350));
        // What was used meanwhile is nobody's.
        assert_eq!(ledger.report("a", 0, false, start + ms(900), ms(5000)), Duration::ZERO);
        assert_eq!(ledger.report("a", 0, true, start + ms(1000), ms(5010)), ms(10));
    }

    #[test]
    fn two_clients_share_by_their_bytes_and_are_never_charged_more_than_was_used() {
        let (mut ledger, start) = (Ledger::new(), Instant::now());
        ledger.report("a", 0, false, start, ms(0));
        ledger.report("b", 0, false, start, ms(0));
        let mut at = 0;
        for _ in 0..20 {
            at += 250;
            ledger.report("a", 3 * at, false, start + ms(at), ms(at));
            ledger.report("b", at, false, start + ms(at), ms(at));
        }
        let a = ledger.report("a", 3 * at, true, start + ms(at), ms(at));
        let b = ledger.report("b", at, true, start + ms(at), ms(at));
        let used = ms(at);
        assert!(a + b <= used && a + b > used.mul_f64(0.999), "{a:?} and {b:?} of {used:?}");
        assert!((a.as_secs_f64() / used.as_secs_f64() - 0.75).abs() < 0.05, "{a:?} of {used:?}");
    }

    #[test]
    fn who_comes_later_and_who_goes_silently_pays_for_its_own_time_only() {
        let (mut ledger, start) = (Ledger::new(), Instant::now());
        ledger.report("a", 0, false, start, ms(0));
        ledger.report("a", 100, false, start + ms(900), ms(900));
        ledger.report("b", 0, false, start + ms(1000), ms(1000));
        ledger.report("b", 100, false, start + ms(1100), ms(1100));
        ledger.forget(&"b", start + ms(1200), ms(1200));
        let a = ledger.report("a", 200, true, start + ms(2000), ms(2000));
        assert!(a >= ms(1800) && a <= ms(2000), "{a:?}");
    }

    #[test]
    fn what_requests_cost_is_left_out() {
        let (mut ledger, start) = (Ledger::new(), Instant::now());
        ledger.report("a", 0, false, start, ms(0));
        ledger.set_aside(ms(700));
        assert_eq!(ledger.report("a", 10, true, start + ms(1000), ms(1000)), ms(300));
    }
}
