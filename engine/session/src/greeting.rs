//! Who may talk to whom, over which transport.
//!
//! ```text
//!            caller                                    listener
//!              │ Hello ─────────────────────────────────▶ │ checks user, versions, epoch
//!              │ ◀───────────────────── Hello, Offer      │ chooses the transport
//!   joins it   │ Offer ─────────────────────────────────▶ │ joins it
//!         established                               established
//! ```
//!
//! The listener chooses the transport: the caller's order of preference, filtered by what both
//! allow and by what reaches. Either side may answer with `Refuse` instead, in words.

use penstock_core::env::Credentials;
use penstock_core::planted::{self, Bug};

use crate::frame::{Frame, Hello, Offer, RefusalCode, VERSION_MAX, VERSION_MIN};

/// Which side of the greeting this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Caller,
    /// The side that listened.
    Listener,
}

/// What a received frame led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloOutcome {
    /// The listener must answer with its own `Hello` and an `Offer` for this transport.
    Choose {
        /// Names the caller allows and this side allows too, in the caller's order.
        candidates: Vec<String>,
    },
    /// The other side's `Hello` was taken; its offer follows.
    Wait,
    /// The caller joins with this offer and answers with its own; then the session stands.
    JoinAndOffer(Offer),
    /// The listener joins with this offer; then the session stands.
    Join(Offer),
}

/// Why a greeting ended without a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GreetingError {
    /// The other side refused, in its own words.
    #[error("refused by the other engine: {text} ({})", code.advice())]
    Refused {
        code: RefusalCode,
        /// Why, in its words.
        text: String,
    },
    /// This side refuses; the code and words are sent to the other.
    #[error("{text} ({})", code.advice())]
    Refuse { code: RefusalCode, text: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitHello,
    AwaitOffer,
    Established,
}

/// One greeting, from the first byte to a session or a refusal.
#[derive(Debug)]
pub struct Greeting {
    role: Role,
    ours: Hello,
    theirs: Option<Hello>,
    state: State,
}

fn refuse<T>(code: RefusalCode, text: String) -> Result<T, GreetingError> {
    Err(GreetingError::Refuse { code, text })
}

impl Greeting {
    /// A greeting that has not begun. A caller sends `ours` first.
    pub fn new(role: Role, ours: Hello) -> Self {
        Self { role, ours, theirs: None, state: State::AwaitHello }
    }

    /// Which side this is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// This side's hello.
    pub fn ours(&self) -> &Hello {
        &self.ours
    }

    /// The other side's hello, once it came.
    pub fn theirs(&self) -> Option<&Hello> {
        self.theirs.as_ref()
    }

    /// Whether both sides have what they need.
    pub fn is_established(&self) -> bool {
        self.state == State::Established
    }

    /// The operating system's word on who is calling, checked before any of the caller's own words.
    pub fn check_user(here: Credentials, there: Credentials) -> Result<(), GreetingError> {
        if here.uid == there.uid {
            return Ok(());
        }
        let text = format!("the caller is user {} and this engine runs as user {}", there.uid, here.uid);
        refuse(RefusalCode::ForeignUser, text)
    }

    /// Takes one frame of the other side.
    pub fn handle(&mut self, frame: Frame) -> Result<HelloOutcome, GreetingError> {
        match (self.state, frame) {
            (_, Frame::Refuse { code, text }) => Err(GreetingError::Refused { code, text }),
            (State::AwaitHello, Frame::Hello(theirs)) => self.handle_hello(theirs),
            (State::AwaitOffer, Frame::Offer(offer)) => {
                self.state = State::Established;
                Ok(match self.role {
                    Role::Caller => HelloOutcome::JoinAndOffer(offer),
                    Role::Listener => HelloOutcome::Join(offer),
                })
            }
            (state, frame) => {
                let text = format!("frame kind {} does not belong here ({state:?})", frame.kind());
                refuse(RefusalCode::Malformed, text)
            }
        }
    }

    fn handle_hello(&mut self, theirs: Hello) -> Result<HelloOutcome, GreetingError> {
        if theirs.version_min > VERSION_MAX || theirs.version_max < VERSION_MIN {
            let text = format!(
                "the other engine speaks versions {} to {}, this one {VERSION_MIN} to {VERSION_MAX}",
                theirs.version_min, theirs.version_max
            );
            return refuse(RefusalCode::Version, text);
        }
        if let Err(error) = penstock_core::EngineName::new(&theirs.name) {
            return refuse(RefusalCode::Malformed, format!("the other engine's name is unusable: {error}"));
        }
        if theirs.epoch == 0 {
            return refuse(RefusalCode::Malformed, "epoch 0 is no engine's".to_owned());
        }
        if theirs.workers == 0 || usize::from(theirs.workers) > penstock_core::limits::WORKERS_MAX {
            return refuse(RefusalCode::Malformed, format!("{} workers are not possible", theirs.workers));
        }
        if theirs.peer_index as usize >= penstock_core::limits::PEERS_MAX {
            return refuse(
                RefusalCode::Malformed,
                format!("there is no place {} in a table of peers", theirs.peer_index),
            );
        }
        let expected = match self.role {
            Role::Listener => (theirs.expects, self.ours.epoch),
            Role::Caller => (self.ours.expects, theirs.epoch),
        };
        if expected.0 != 0 && expected.0 != expected.1 && !planted::is(Bug::StaleEpochAccepted) {
            return refuse(RefusalCode::Epoch, format!("expected epoch {:x}, found {:x}", expected.0, expected.1));
        }
        // Each of this side's own at most once, however often the other names it.
        let mut candidates: Vec<String> = Vec::new();
        for name in theirs.transports.iter().filter(|name| self.ours.transports.contains(name)) {
            if !candidates.contains(name) {
                candidates.push(name.clone());
            }
        }
        self.theirs = Some(theirs);
        self.state = State::AwaitOffer;
        Ok(match self.role {
            Role::Listener => HelloOutcome::Choose { candidates },
            Role::Caller => HelloOutcome::Wait,
        })
    }
}

#[cfg(test)]
mod tests;
