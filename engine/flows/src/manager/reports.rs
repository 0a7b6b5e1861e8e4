//! How transfers by name ended, for whoever writes it down. Nothing is gathered of ends that nobody wants to hear of.

use penstock_session::control::Side;
use penstock_session::few::Few;
use penstock_session::transfers::table::EntryKey;
use penstock_session::{PeerKey, RequestId, TransferId};

use super::TransferManager;
use super::flow::Flow;
use crate::action::Action;
use crate::cause::FlowCause;
use crate::status::Status;

/// Of which ends somebody wants to hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reported {
    /// Of those that failed.
    pub failures: bool,
    /// Of those that went well.
    pub successes: bool,
}

/// How a transfer has ended on one of its sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which side this engine is.
    pub side: Side,
    /// Which transfer.
    pub transfer: TransferId,
    /// What this side's scheduler calls it.
    pub request: RequestId,
    /// Who has a part in it, each once: of a source none that has said nothing.
    pub peers: Vec<PeerKey>,
    /// How it has ended.
    pub how: HowEnded,
}

/// How a transfer has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HowEnded {
    /// Well.
    Well {
        /// How many tokens a sink has received.
        tokens: Option<u64>,
    },
    /// With this cause, which this side has said, and these words.
    Failed {
        /// Why.
        cause: FlowCause,
        /// Which side said so.
        said_by: Side,
        /// What it said about it.
        words: String,
    },
}

impl TransferManager {
    /// Says of which ends [`Action::Report`] is wanted from now on.
    pub fn report(&mut self, reported: Reported) {
        self.reported = reported;
    }

    /// A live transfer has ended, and is about to lose its names.
    pub(super) fn report_end(&mut self, key: EntryKey) {
        let Some((flow, (side, transfer, request))) = self.flow(key).zip(self.transfers.names(key)) else { return };
        let how = match flow.status() {
            Status::Failed if self.reported.failures => flow.how_failed(),
            Status::Success if self.reported.successes => HowEnded::Well { tokens: flow.received() },
            _ => return,
        };
        let mut peers: Few<PeerKey> = Few::default();
        flow.each_peer(|peer| {
            if !peers.contains(&peer) {
                peers.push(peer);
            }
        });
        let request = request.clone();
        let report = Report { side, transfer, request, peers: peers.to_vec(), how };
        self.actions.push_back(Action::Report { report: Box::new(report) });
    }
}

impl Flow {
    fn how_failed(&self) -> HowEnded {
        let failure = match self {
            Self::Source(source) => source.legs.failure().map(|failed| (failed.cause, failed.said_by, &failed.words)),
            Self::Lent(lent) => lent.loans.failure().map(|failed| (failed.cause, failed.said_by, &failed.words)),
            Self::Sink(sink) => sink.legs.failed().map(|failed| (failed.cause, failed.said_by, &failed.words)),
            Self::Pull(pulled) => {
                pulled.pull.legs().failed().map(|failed| (failed.cause, failed.said_by, &failed.words))
            }
        };
        let words = String::new();
        let (cause, said_by, words) = failure.unwrap_or((FlowCause::Aborted, self.head().side, &words));
        HowEnded::Failed { cause, said_by, words: words.clone() }
    }

    fn received(&self) -> Option<u64> {
        match self {
            Self::Sink(sink) => Some(sink.legs.received()),
            Self::Pull(pulled) => Some(pulled.pull.legs().received()),
            Self::Source(_) | Self::Lent(_) => None,
        }
    }
}
