//! What came of a self-test, for people and for programs.

use serde::Serialize;

use super::flaw::Flaw;
use super::measure::Figures;
use crate::arguments::Transport;
use crate::console;

/// Transports that are not tested unasked, and why.
const ABSENT: [(&str, &str); 3] = [
    ("verbs", "where there are RDMA cards: --transport verbs"),
    ("dpdk", "where `make dpdk` has built what it needs: --transport dpdk"),
    ("cuda", "where there is a GPU and its driver: `penstock doctor gpu`"),
];

/// The whole self-test.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: &'static str,
    ok: bool,
    quick: bool,
    /// Somebody has asked for the end before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_off: Option<&'static str>,
    transports: Vec<Row>,
    absent: Vec<Absent>,
}

/// One transport.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    transport: &'static str,
    /// The way the bytes took, if the engines have met.
    pub(crate) path: Option<String>,
    /// The median time and what follows from it, if it came to that.
    #[serde(flatten)]
    pub(crate) figures: Option<Figures>,
    verified: bool,
    checks: Vec<Check>,
}

/// One test of one transport.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    name: &'static str,
    ok: bool,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    flaw: Option<String>,
}

#[derive(Debug, Serialize)]
struct Absent {
    transport: &'static str,
    reason: &'static str,
}

impl Check {
    pub(crate) fn of(name: &'static str, result: Result<(), Flaw>) -> Self {
        let flaw = result.err().map(|flaw| flaw.to_string());
        Self { name, ok: flaw.is_none(), flaw }
    }
}

impl Row {
    pub(crate) fn of(transport: Transport) -> Self {
        Self::named(transport.as_str())
    }

    /// Of what is no transport of its own.
    pub(crate) fn named(transport: &'static str) -> Self {
        Self { transport, path: None, figures: None, verified: false, checks: Vec::new() }
    }

    /// Adds the next test; answers whether it went well.
    pub(crate) fn add(&mut self, check: Check) -> bool {
        let ok = check.ok;
        self.checks.push(check);
        // Verified is what was measured and of which every test went well.
        self.verified = self.figures.is_some() && self.checks.iter().all(|check| check.ok);
        ok
    }

    fn cells(&self) -> Vec<String> {
        let path = self.path.clone().unwrap_or_else(|| "none".to_owned());
        let figures = match &self.figures {
            Some(figures) => {
                let vs_floor = figures.vs_floor.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}×"));
                [console::time(figures.p50_us), format!("{:.1}", figures.gbps_p50), vs_floor]
            }
            None => ["–", "–", "–"].map(str::to_owned),
        };
        let verified = if self.verified { "yes" } else { "NO" };
        [self.transport.to_owned(), path].into_iter().chain(figures).chain([verified.to_owned()]).collect()
    }
}

impl Report {
    pub(crate) fn new(transports: Vec<Row>, all: bool, quick: bool) -> Self {
        let ok = !transports.is_empty() && transports.iter().all(|row| row.verified);
        let is_absent = |absent: &&(&str, &str)| all && transports.iter().all(|row| row.transport != absent.0);
        let absent = ABSENT.iter().filter(is_absent).map(|&(transport, reason)| Absent { transport, reason }).collect();
        Self { version: env!("CARGO_PKG_VERSION"), ok, quick, cut_off: None, transports, absent }
    }

    /// It was ended before everything was tested: nothing is well that was not.
    pub(crate) fn cut_off(&mut self) {
        (self.ok, self.cut_off) = (false, Some("interrupted"));
    }

    pub(crate) fn ok(&self) -> bool {
        self.ok
    }

    pub(crate) fn to_text(&self) -> String {
        let head = ["transport", "path", "kv16 p50", "GB/s p50", "vs floor", "verified"].map(str::to_owned).to_vec();
        let rows = self.transports.iter().map(Row::cells);
        let absent = self.absent.iter().map(|absent| vec![absent.transport.to_owned(), absent.reason.to_owned()]);
        let rows: Vec<_> = std::iter::once(head).chain(rows).chain(absent).collect();
        let mut text = console::table(&rows, &[2, 3, 4]);
        for row in &self.transports {
            for check in &row.checks {
                if let Some(flaw) = &check.flaw {
                    text.push_str(&format!("\n{}, {}: {flaw}\n", row.transport, check.name));
                }
            }
        }
        if let Some(why) = self.cut_off {
            text.push_str(&format!("\ncut off: {why}; what is not listed was not tested\n"));
        }
        if self.quick {
            text.push_str("\n--quick: everything was tested, but the figures come from few rounds and small pools\n");
        }
        text
    }
}
