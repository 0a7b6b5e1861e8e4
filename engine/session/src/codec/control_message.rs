//! What is said of transfers, as bodies of frames, and how much of it may be said at once.

use super::{WireError, get as get_body, put as put_body};
use crate::control::{
    BLOCKS_MAX, BUFFERS_MAX, ControlMessage, EXTENTS_MAX, FIRST_KIND, LEASES_MAX, MISSING_MAX, SCHEMA_BYTES_MAX,
    TRACE_BYTES_MAX, WORDS_BYTES_MAX,
};
use crate::frame::LABEL_BYTES_MAX;
use crate::transfers::id::{REQUEST_BYTES_MAX, TransferId};

macro_rules! bodies {
    ($($number:literal $name:ident,)+) => {
        /// Appends the body. The transfer that it names is its first bytes, and goes in one piece.
        pub(super) fn put(out: &mut Vec<u8>, said: &ControlMessage) {
            if let Some(head) = said.head() {
                out.extend_from_slice(head.transfer.as_bytes());
            }
            match said {
                $(ControlMessage::$name(body) => put_body(out, body),)+
            }
        }

        /// What a body of this kind says, if this release knows the kind.
        pub(super) fn get(kind: u16, body: &[u8]) -> Result<Option<ControlMessage>, WireError> {
            let (transfer, rest) = match body.split_first_chunk() {
                Some((transfer, rest)) if names_a_transfer(kind) => (TransferId::from_bytes(*transfer), rest),
                None if names_a_transfer(kind) => return Err(WireError::Body(kind)),
                _ => (TransferId::default(), body),
            };
            let mut said = match kind.checked_sub(FIRST_KIND) {
                $(Some($number) => ControlMessage::$name(get_body(kind, rest)?),)+
                _ => return Ok(None),
            };
            if let Some(head) = said.head_mut() {
                head.transfer = transfer;
            }
            Ok(Some(said))
        }
    };
}

bodies! {
    0 PeerFeatures,
    1 LayoutNews,
    2 LayoutGone,
    3 Grant,
    4 ReadOffer,
    5 EndOfData,
    6 Ack,
    7 LeaseVerdict,
    8 Fail,
    9 Abort,
    10 AbortAck,
    11 Refused,
    12 Renew,
    13 LeaseExpired,
    14 PinAsk,
    15 PinAnswer,
    16 Chunk,
    17 ChunkAck,
    18 RelayAbort,
    19 PullRequest,
}

/// Whether what is said in a frame of this kind has a head.
const fn names_a_transfer(kind: u16) -> bool {
    matches!(kind.wrapping_sub(FIRST_KIND), 3..=11 | 19)
}

/// Each list and each text has a limit of its own, on both sides.
pub(super) fn check(said: &ControlMessage) -> Result<(), WireError> {
    let kind = said.kind();
    let most = |what, found: usize, most: usize| {
        if found > most { Err(WireError::TooMuch { kind, what, found, most }) } else { Ok(()) }
    };
    match said {
        ControlMessage::PeerFeatures(able) if able.tag == 0 => Err(WireError::Zero { kind, what: "tag of notes" }),
        ControlMessage::LayoutNews(news) => {
            most("bytes of a label", news.label.len(), LABEL_BYTES_MAX)?;
            most("buffers", news.buffers.len(), BUFFERS_MAX)
        }
        ControlMessage::Grant(grant) => {
            most("blocks", grant.blocks.len(), BLOCKS_MAX)?;
            most("bytes of a trace context", grant.trace.len(), TRACE_BYTES_MAX)
        }
        ControlMessage::PullRequest(claim) => most("bytes of a trace context", claim.trace.len(), TRACE_BYTES_MAX),
        ControlMessage::ReadOffer(lend) => most("blocks", lend.blocks.len(), BLOCKS_MAX),
        ControlMessage::EndOfData(seal) => most("runs of sent rows", seal.rows.len(), BUFFERS_MAX),
        ControlMessage::Fail(fail) => {
            most("bytes of words", fail.words.len(), WORDS_BYTES_MAX)?;
            most("runs of missing blocks", fail.missing.len(), MISSING_MAX)
        }
        ControlMessage::Renew(renew) => most("leases", renew.leases.len(), LEASES_MAX),
        ControlMessage::PinAsk(ask) => most("bytes of a request id", ask.parent.len(), REQUEST_BYTES_MAX),
        ControlMessage::PinAnswer(answer) => most("blocks", answer.blocks.len(), BLOCKS_MAX),
        ControlMessage::Chunk(chunk) => {
            most("bytes of a request id", chunk.request.len(), REQUEST_BYTES_MAX)?;
            most("extents", chunk.extents.len(), EXTENTS_MAX)?;
            most("bytes of a schema", chunk.schema.len(), SCHEMA_BYTES_MAX)?;
            most("bytes of a header", chunk.header.len(), SCHEMA_BYTES_MAX)
        }
        ControlMessage::RelayAbort(abort) => {
            most("bytes of a request id", abort.request.len(), REQUEST_BYTES_MAX)?;
            most("bytes of words", abort.words.len(), WORDS_BYTES_MAX)
        }
        ControlMessage::PeerFeatures(_)
        | ControlMessage::LayoutGone(_)
        | ControlMessage::Ack(_)
        | ControlMessage::LeaseVerdict(_)
        | ControlMessage::Abort(_)
        | ControlMessage::AbortAck(_)
        | ControlMessage::Refused(_)
        | ControlMessage::LeaseExpired(_)
        | ControlMessage::ChunkAck(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
