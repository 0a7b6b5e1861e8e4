//! What can be said to a running wire: one order a line, answered by one line of JSON.
//!
//! ```text
//! start                    the script's clock begins, and with it all counts
//! partition [direction]    nothing passes from now on
//! heal [direction]         it passes again
//! set a-to-b loss=5%       faults change; those that are not named stay
//! stats                    what came of all frames
//! quit                     the wire and its ends go away; so they do at the end of the input
//! ```

use serde::{Deserialize, Serialize};

use crate::scenario::What;
use crate::wire::Stats;

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The script's clock begins.
    Start,
    /// Something happens.
    Happen(What),
    /// Asks for the counts.
    Stats,
    /// The end.
    Quit,
}

/// What a wire answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Both ends are there: the first line of every wire.
    Ready {
        /// The seed, so that a run can be had again.
        seed: u64,
    },
    /// Done.
    Done,
    /// The counts.
    Stats(Box<Stats>),
    /// Not understood, and why.
    Error(String),
}

/// Longest line that is listened to.
pub const LINE_MAX: usize = 4096;

/// Reads an order.
pub fn parse(line: &str) -> Result<Order, String> {
    match line.trim() {
        "start" => Ok(Order::Start),
        "stats" => Ok(Order::Stats),
        "quit" => Ok(Order::Quit),
        other => other.parse().map(Order::Happen).map_err(|error| error.to_string()),
    }
}

/// Bytes of the input until they are lines.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
    is_too_long: bool,
}

impl Lines {
    /// More input: calls back for every line that is complete now, with why it is none if it is not.
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Result<&str, &'static str>)) {
        for byte in bytes {
            if *byte != b'\n' {
                self.is_too_long |= self.partial.len() >= LINE_MAX;
                if !self.is_too_long {
                    self.partial.push(*byte);
                }
                continue;
            }
            each(match std::str::from_utf8(&self.partial) {
                _ if self.is_too_long => Err("this line is too long"),
                Ok(line) => Ok(line),
                Err(_) => Err("this line is no text"),
            });
            self.partial.clear();
            self.is_too_long = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Direction;

    #[test]
    fn orders_are_read_and_what_is_none_is_said() {
        assert_eq!(parse("start"), Ok(Order::Start));
        assert_eq!(parse(" partition "), Ok(Order::Happen(What::Partition(Direction::Both))));
        assert_eq!(parse("heal b-to-a"), Ok(Order::Happen(What::Heal(Direction::BToA))));
        assert!(matches!(parse("set both loss=5%,delay=1ms"), Ok(Order::Happen(What::Set(..)))));
        assert!(parse("dance").unwrap_err().contains("dance"));
        assert!(parse("set both loss=500%").is_err());
    }

    #[test]
    fn lines_are_put_together_from_any_pieces_and_never_grow_without_bound() {
        let mut text = b"stats\nhe".to_vec();
        text.extend(b"al\n\xff\n");
        text.extend(vec![b'x'; 3 * LINE_MAX]);
        text.extend(b"\nquit\n");
        for size in [1, 3, 1_000, text.len()] {
            let mut lines = Lines::default();
            let mut heard = Vec::new();
            for piece in text.chunks(size) {
                lines.feed(piece, |line| heard.push(line.map(str::to_owned)));
                assert!(lines.partial.len() <= LINE_MAX);
            }
            let heard: Vec<_> = heard.iter().map(|line| line.as_deref().map_err(|error| *error)).collect();
            let long = Err("this line is too long");
            assert_eq!(heard, [Ok("stats"), Ok("heal"), Err("this line is no text"), long, Ok("quit")]);
        }
    }
}
