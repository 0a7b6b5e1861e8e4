//! Asks a server on another host, and waits with a deadline.

use std::fmt;
use std::time::{Duration, Instant};

use penstock::limits::NOTE_BYTES_MAX;
use penstock::{Cause, Engine, NoteId, Notification, Peer, Submit, SubmitError, SystemEnv};

use super::message::{ANSWER_BYTES_MAX, About, Answer, Kind, Refusal, Request};

/// The longest wait before the session is looked at again.
const GLANCE: Duration = Duration::from_millis(50);
/// The shortest and the longest pause before something is asked again of one that has enough to do.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(1);

/// Why a request has no answer that can be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServiceError {
    /// It was not answered in time.
    Silent {
        peer: String,
        /// How long it had.
        within: Duration,
    },
    /// The session ended meanwhile.
    Ended {
        /// With whom.
        peer: String,
        /// Why.
        cause: Cause,
        /// What was seen of it last, in words, if it was lost.
        loss: Option<String>,
    },
    /// The peer ends, and has said so.
    Closing {
        /// Who.
        peer: String,
    },
    /// The request could not be sent.
    NotSent(Box<dyn std::error::Error + Send + Sync>),
    /// It was refused.
    Refused {
        /// Who refused.
        peer: String,
        /// Why.
        refusal: Refusal,
    },
    /// The answer is none to what was asked.
    Malformed {
        /// Who answered.
        peer: String,
        /// What is wrong with it.
        why: String,
    },
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent { peer, within } => {
                write!(f, "`{peer}` did not answer within {within:?}; is it `penstock serve` that runs there?")
            }
            Self::Ended { peer, cause, loss } => {
                match loss {
                    Some(loss) => write!(f, "the session with `{peer}` ended: {loss}")?,
                    None => write!(f, "the session with `{peer}` ended ({cause})")?,
                }
                // Every other cause says itself what to do, and the peer still runs.
                match cause {
                    Cause::PeerLost | Cause::PeerClosed => f.write_str("; does `penstock serve` still run there?"),
                    _ => Ok(()),
                }
            }
            Self::Closing { peer } => write!(f, "{}", closing(peer)),
            Self::NotSent(source) => write!(f, "the request could not be sent: {source}"),
            Self::Refused { peer, refusal } => write!(f, "`{peer}` refused: {refusal}"),
            Self::Malformed { peer, why } => {
                write!(f, "`{peer}` answered something else ({why}); run the same release on both hosts")
            }
        }
    }
}

impl std::error::Error for ServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotSent(source) => Some(&**source),
            _ => None,
        }
    }
}

/// What is said of a peer that ends its sessions in good order.
pub(crate) fn closing(peer: &dyn fmt::Display) -> String {
    format!("`{peer}` is shutting down: the server was asked to end, and takes nothing new")
}

/// One who asks. All notifications of its engine are its own.
pub struct Client {
    peer: Peer<SystemEnv>,
    next: u32,
    notes: Vec<Notification>,
}

impl Client {
    /// Will ask this peer.
    pub fn new(peer: Peer<SystemEnv>) -> Self {
        Self { peer, next: 1, notes: Vec::new() }
    }

    /// Who is asked.
    pub fn peer(&self) -> &Peer<SystemEnv> {
        &self.peer
    }

    /// Asks and waits for the answer. A refusal is an error; who has enough to do is asked again as long as there is time.
    pub fn ask(&mut self, engine: &Engine, request: &Request, within: Duration) -> Result<Answer, ServiceError> {
        let deadline = Instant::now() + within;
        let mut pause = AGAIN_AFTER;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.ask_once(engine, request, left) {
                Err(ServiceError::Refused { refusal: Refusal::Busy { .. }, .. }) if left > pause => {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(AGAIN_AFTER_MAX);
                }
                Err(ServiceError::Silent { peer, .. }) => return Err(ServiceError::Silent { peer, within }),
                answered => return answered,
            }
        }
    }

    fn ask_once(&mut self, engine: &Engine, request: &Request, within: Duration) -> Result<Answer, ServiceError> {
        let number = self.begin(request, within)?;
        self.answer(engine, number, within)
    }

    /// Asks; [`Client::answer`] waits for what is answered. Of what nobody waits for nothing is kept.
    pub fn begin(&mut self, request: &Request, within: Duration) -> Result<u32, ServiceError> {
        let number = self.number();
        let bytes = serde_json::to_vec(request).map_err(|error| ServiceError::NotSent(error.into()))?;
        if bytes.len() > NOTE_BYTES_MAX {
            let why = format!(
                "it takes {} bytes where a note has {NOTE_BYTES_MAX}: shorten the workload's words",
                bytes.len()
            );
            return Err(ServiceError::NotSent(why.into()));
        }
        self.send(Kind::Request.id(number), &bytes, Instant::now() + within)?;
        Ok(number)
    }

    /// Waits for the answer to the request of this number. A refusal is an error. One that is silent can be waited for again.
    pub fn answer(&mut self, engine: &Engine, number: u32, within: Duration) -> Result<Answer, ServiceError> {
        let deadline = Instant::now() + within;
        let mut whole = Vec::new();
        loop {
            let (kind, part) = self.receive(engine, number, &[Kind::Part, Kind::Last], (deadline, within))?;
            if whole.len() + part.len() > ANSWER_BYTES_MAX {
                return Err(self.garbled("it does not end"));
            }
            whole.extend_from_slice(&part);
            if kind == Kind::Last {
                break;
            }
        }
        match serde_json::from_slice(&whole) {
            Ok(Answer::Refused(refusal)) => Err(ServiceError::Refused { peer: self.name(), refusal }),
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.garbled(&error.to_string())),
        }
    }

    /// Asks something whose answer is of no use, without any wait, and throws away what was answered before. Answers whether there was
    /// room for it.
    pub fn mention(&mut self, engine: &Engine, request: &Request) -> bool {
        engine.notifications(&mut self.notes);
        self.notes.clear();
        let id = Kind::Request.id(self.number());
        let Ok(bytes) = serde_json::to_vec(request) else { return false };
        // Dropped: nobody waits for it.
        bytes.len() <= NOTE_BYTES_MAX && self.peer.notify(id, &bytes, Submit::new()).map(drop).is_ok()
    }

    /// Asks who answers.
    pub fn about(&mut self, engine: &Engine, within: Duration) -> Result<About, ServiceError> {
        match self.ask(engine, &Request::About, within)? {
            Answer::About(about) => Ok(about),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has bytes sent back, and answers how long that took.
    pub fn echo(&mut self, engine: &Engine, payload: &[u8], within: Duration) -> Result<Duration, ServiceError> {
        let number = self.number();
        let start = Instant::now();
        self.send(Kind::Echo.id(number), payload, start + within)?;
        let (_, back) = self.receive(engine, number, &[Kind::Echoed], (start + within, within))?;
        let took = start.elapsed();
        if back == payload { Ok(took) } else { Err(self.garbled("other bytes came back than were sent")) }
    }

    /// The failure that this answer is, where another one was expected.
    pub fn unexpected(&self, answer: &Answer) -> ServiceError {
        let mut said = format!("{answer:?}");
        if let Some((end, _)) = said.char_indices().nth(200) {
            said.truncate(end);
        }
        self.garbled(&said)
    }

    fn name(&self) -> String {
        self.peer.name().to_string()
    }

    fn garbled(&self, why: &str) -> ServiceError {
        ServiceError::Malformed { peer: self.name(), why: why.to_owned() }
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    fn send(&self, id: NoteId, bytes: &[u8], deadline: Instant) -> Result<(), ServiceError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.peer.notify(id, bytes, Submit::new().within(left)) {
                // Dropped: the answer says that it arrived.
                Ok(transfer) => {
                    drop(transfer);
                    return Ok(());
                }
                Err(SubmitError::Full { .. }) if !left.is_zero() => std::thread::sleep(Duration::from_millis(1)),
                Err(refused) => {
                    self.look()?;
                    return Err(ServiceError::NotSent(refused.into()));
                }
            }
        }
    }

    fn look(&self) -> Result<(), ServiceError> {
        if self.peer.draining() == Some(Cause::PeerDraining) {
            return Err(ServiceError::Closing { peer: self.name() });
        }
        match self.peer.ended() {
            Some(cause) => {
                Err(ServiceError::Ended { peer: self.name(), cause, loss: self.peer.loss().map(str::to_owned) })
            }
            None => Ok(()),
        }
    }

    /// The next note about this request. Answers to earlier ones, which came too late, are thrown away.
    fn receive(
        &mut self,
        engine: &Engine,
        number: u32,
        kinds: &[Kind],
        (deadline, within): (Instant, Duration),
    ) -> Result<(Kind, Vec<u8>), ServiceError> {
        loop {
            let wanted = |note: &Notification| {
                let mine = note.peer == *self.peer.name();
                Kind::of(note.id).is_some_and(|(kind, of)| mine && of == number && kinds.contains(&kind))
            };
            if let Some(place) = self.notes.iter().position(wanted) {
                let note = self.notes.drain(..=place).next_back();
                if let Some((kind, note)) = note.and_then(|note| Some((Kind::of(note.id)?.0, note))) {
                    return Ok((kind, note.payload));
                }
            }
            self.notes.clear();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.look()?;
                return Err(ServiceError::Silent { peer: self.name(), within });
            }
            if !engine.wait_notification(left.min(GLANCE)) {
                self.look()?;
            }
            engine.notifications(&mut self.notes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_peer_that_has_left_or_is_silent_may_have_ended() {
        let ended = |cause, loss: Option<&str>| {
            let (peer, loss) = ("serve-b".to_owned(), loss.map(str::to_owned));
            ServiceError::Ended { peer, cause, loss }.to_string()
        };
        let unheard = "UDP 192.0.2.1:7400: not one packet of the peer has come: let UDP pass";
        assert_eq!(ended(Cause::NoPath, Some(unheard)), format!("the session with `serve-b` ended: {unheard}"));
        for (cause, loss, is_asked) in [
            (Cause::NoPath, None, false),
            (Cause::PeerCorrupt, None, false),
            (Cause::PeerLost, Some("no answer for 3.0 s"), true),
            (Cause::PeerLost, None, true),
            (Cause::PeerClosed, None, true),
        ] {
            let words = ended(cause, loss);
            assert_eq!(words.contains("does `penstock serve` still run there?"), is_asked, "{words}");
        }
    }
}
