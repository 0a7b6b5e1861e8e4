//! Why something ended.

use std::fmt;

use penstock_core::Cause;

/// Why a flow ended before it had succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowCause {
    /// One side gave it up.
    Aborted,
    /// Its time was over.
    Deadline,
    /// The other engine is gone, nobody knows why.
    PeerLost,
    /// The other engine has ended the session.
    PeerClosed,
    /// The source's application said that it failed.
    SourceFailed,
    /// The sink's application said that it failed.
    SinkFailed,
    /// There was no memory for the next leg.
    NoMemory,
    /// The lease under which it was read has ended.
    Expired,
    /// The layouts of both sides do not fit each other.
    Unfit,
    /// The other side says that what was said makes no sense.
    Refused,
    /// This engine shuts down.
    EngineClosed,
    /// More was asked for than there will ever be.
    Never,
    /// The other engine does not speak this layer.
    NotSpoken,
    /// Bytes could not be moved.
    Moving(Cause),
    /// A cause of a newer release.
    Other(u16),
}

/// Causes of moves are written behind all others.
const MOVING: u16 = 0x100;

impl FlowCause {
    const NAMED: [Self; 13] = [
        Self::Aborted,
        Self::Deadline,
        Self::PeerLost,
        Self::PeerClosed,
        Self::SourceFailed,
        Self::SinkFailed,
        Self::NoMemory,
        Self::Expired,
        Self::Unfit,
        Self::Refused,
        Self::EngineClosed,
        Self::Never,
        Self::NotSpoken,
    ];

    /// Its number on the wire; never zero.
    pub fn code(self) -> u16 {
        match self {
            Self::Moving(cause) => MOVING + u16::from(cause.code()),
            Self::Other(code) => code,
            named => 1 + Self::NAMED.iter().position(|cause| *cause == named).unwrap_or(0) as u16,
        }
    }

    /// The cause of this number.
    pub fn of_code(code: u16) -> Self {
        let named = code.checked_sub(1).and_then(|place| Self::NAMED.get(usize::from(place)));
        let moving = code.checked_sub(MOVING).and_then(|code| u8::try_from(code).ok()).and_then(Cause::from_code);
        named.copied().or(moving.map(Self::Moving)).unwrap_or(Self::Other(code))
    }
}

impl fmt::Display for FlowCause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Aborted => "it was given up by one side",
            Self::Deadline => "its time was over; give it more, or look why the other side is slow",
            Self::PeerLost => "the other engine is gone; connect again when it is back",
            Self::PeerClosed => "the other engine has ended the session",
            Self::SourceFailed => "the source said that it failed; its words say why",
            Self::SinkFailed => "the sink said that it failed; its words say why",
            Self::NoMemory => "there was no memory for the next leg; free some, or set `legs.memory` to wait",
            Self::Expired => "the lease under which it was read has ended; renew sooner, or lend for longer",
            Self::Unfit => "the layouts of both sides do not fit each other",
            Self::Refused => "the other side says that this makes no sense there",
            Self::EngineClosed => "this engine shuts down",
            Self::Never => "more was asked for than there will ever be; ask for less",
            Self::NotSpoken => "the other engine's release does not speak of transfers by name; upgrade it",
            Self::Moving(cause) => return write!(out, "bytes could not be moved: {cause}"),
            Self::Other(code) => return write!(out, "cause {code}, which this release does not know"),
        };
        out.write_str(words)
    }
}

/// What somebody said of a cause, behind it, if they said anything.
pub(crate) struct Words<'a>(pub(crate) &'a str);

impl fmt::Display for Words<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(out, ": {:?}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_names_one_cause_and_every_cause_one_number() {
        for code in 1..=u16::MAX {
            assert_eq!(FlowCause::of_code(code).code(), code, "{:?}", FlowCause::of_code(code));
        }
        assert_eq!(FlowCause::Expired.code(), 8, "numbers stay what they are");
        assert_eq!(FlowCause::of_code(0x101), FlowCause::Moving(Cause::Cancelled));
        assert_eq!(FlowCause::of_code(14), FlowCause::Other(14));
    }
}
