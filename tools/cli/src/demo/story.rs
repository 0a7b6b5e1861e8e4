//! The timeline: what has happened, in the order in which it has.

use penstock::{Env, SystemEnv};
use serde_json::{Map, Value, json};

use super::words::{Event, Role};
use crate::console;
use crate::failure::Failure;

/// Where the columns of a timeline begin: of the proxy, of prefill and of decode.
const COLUMNS: [usize; 3] = [12, 44, 76];

/// The moment, by the clock that all processes of a host have in common.
pub(crate) fn now_ns() -> u64 {
    SystemEnv.now().as_ns()
}

/// Keeps what comes until it is told in its order.
pub(crate) struct Story {
    is_json: bool,
    began_ns: u64,
    transport: &'static str,
    act: u32,
    kept: Vec<(Option<Role>, Event)>,
    /// Why nothing can be told any more.
    broken: Option<Failure>,
}

impl Story {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json, began_ns: now_ns(), transport: "", act: 0, kept: Vec::new(), broken: None }
    }

    /// From here on over this transport.
    pub(crate) fn over(&mut self, transport: &'static str) {
        self.tell();
        (self.transport, self.act, self.began_ns) = (transport, 0, now_ns());
        let [proxy, prefill, decode] = COLUMNS;
        let (proxy, prefill) = (prefill - proxy, decode - prefill);
        self.print_text(&format!("\n{transport:>9}   {:proxy$}{:prefill$}decode\n", "proxy", "prefill"));
    }

    /// An act begins.
    pub(crate) fn act(&mut self, act: u32, title: &str) {
        self.tell();
        self.act = act;
        self.print_text(&format!("\nAct {act}: {title}\n"));
        self.proxy("act", title, json!({}));
    }

    /// Text that is for people only.
    pub(crate) fn print_text(&mut self, text: &str) {
        if !self.is_json {
            self.print(text);
        }
    }

    fn print(&mut self, text: &str) {
        if let Err(failure) = console::print(text) {
            self.broken.get_or_insert(failure);
        }
    }

    /// Tells the rest, and says whether everything could be told.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        self.tell();
        self.broken.map_or(Ok(()), Err)
    }

    /// Something that the proxy did.
    pub(crate) fn proxy(&mut self, event: &str, says: &str, figures: Value) -> u64 {
        let figures = if let Value::Object(figures) = figures { figures } else { Map::new() };
        let t_ns = now_ns();
        self.kept.push((None, Event { t_ns, act: self.act, event: event.to_owned(), says: says.to_owned(), figures }));
        t_ns
    }

    /// Something that one of the processes did.
    pub(crate) fn player(&mut self, role: Role, event: Event) {
        self.kept.push((Some(role), event));
    }

    /// Tells what was kept, in its order.
    pub(crate) fn tell(&mut self) {
        self.kept.sort_by_key(|(_, event)| event.t_ns);
        let mut text = String::new();
        for (role, event) in std::mem::take(&mut self.kept) {
            match self.is_json {
                true => text.push_str(&self.object(role, event)),
                false => text.push_str(&self.line(role, &event)),
            }
        }
        self.print(&text);
    }

    fn ms(&self, t_ns: u64) -> f64 {
        t_ns.saturating_sub(self.began_ns) as f64 / 1e6
    }

    fn object(&self, role: Option<Role>, event: Event) -> String {
        let mut object = event.figures;
        object.insert("event".to_owned(), event.event.into());
        object.insert("t_ms".to_owned(), self.ms(event.t_ns).into());
        object.insert("who".to_owned(), role.map_or("proxy", Role::as_str).into());
        object.insert("transport".to_owned(), self.transport.into());
        object.insert("act".to_owned(), event.act.into());
        object.insert("says".to_owned(), event.says.into());
        format!("{}\n", Value::Object(object))
    }

    fn line(&self, role: Option<Role>, event: &Event) -> String {
        // The title stands above.
        if event.event == "act" {
            return String::new();
        }
        let column = role.map_or(0, |role| 1 + role as usize);
        let gap = COLUMNS[column] - COLUMNS[0];
        format!("{:>9.3}   {:gap$}{}\n", self.ms(event.t_ns), "", event.says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_late_is_told_in_its_turn() {
        let mut story = Story::new(true);
        story.transport = "shm";
        let first = story.proxy("one", "says one", json!({ "n": 1 }));
        let event = |t_ns, event: &str| Event {
            t_ns,
            act: 1,
            event: event.to_owned(),
            says: String::new(),
            figures: Map::new(),
        };
        story.player(Role::Decode, event(first + 2, "three"));
        story.player(Role::Prefill, event(first + 1, "two"));
        story.kept.sort_by_key(|(_, event)| event.t_ns);
        let names: Vec<&str> = story.kept.iter().map(|(_, event)| event.event.as_str()).collect();
        assert_eq!(names, ["one", "two", "three"]);
        let (role, event) = story.kept.remove(1);
        let object: Value = serde_json::from_str(&story.object(role, event.clone())).unwrap();
        assert_eq!(
            (&object["who"], &object["event"], &object["transport"]),
            (&"prefill".into(), &"two".into(), &"shm".into())
        );
        let line = story.line(role, &Event { says: "here".to_owned(), ..event });
        assert_eq!(line.find("here"), Some(COLUMNS[1]), "{line:?}");
    }
}
