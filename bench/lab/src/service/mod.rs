//! What an engine on another host does for whoever measures or examines: requests and answers over the engine's own
//! notifications, so that no second port and no second secret are needed.
//!
//! - [`message`]: what can be asked, what is answered, and how both become notes
//! - [`server`]: takes requests of all peers; `tenant`: does what one peer asks, in a thread of its own; `charge`: whose part of the
//!   CPU time is which
//! - [`client`]: asks, and waits with a deadline
//!
//! A peer can make the server allocate memory, so all that is made for others together is bounded; what a peer was given
//! is taken back when its session ends.

mod charge;
pub mod client;
pub mod message;
pub mod server;
pub(crate) mod tenant;

pub use self::client::{Client, ServiceError};
pub use self::message::{About, Answer, Refusal, Request};
pub use self::server::{Ended, Event, Limits, Server};
