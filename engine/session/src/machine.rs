//! State machines as tables.
//!
//! A machine is declared in one place: its states, its events, and what each event does in each state. What is not written is
//! refused. The declaration makes the function that steps, and keeps the whole table as data, so that tests can look for states
//! that nothing leads to, and a picture and a matrix can be made of it.
//!
//! ```
//! penstock_session::machine! {
//!     /// A door.
//!     pub Door on Push {
//!         states {
//!             /// It can be walked through.
//!             Open,
//!             /// It cannot.
//!             Shut,
//!         }
//!         ends {
//!             /// There is a wall now.
//!             Walled,
//!         }
//!         events {
//!             /// Somebody pushed it.
//!             Pushed,
//!             /// Somebody pulled it.
//!             Pulled,
//!             /// A mason came.
//!             Bricked,
//!         }
//!         Open { Pushed => Shut, Pulled => Open }
//!         Shut { Pulled => Open, Bricked => Walled }
//!     }
//! }
//!
//! use penstock_session::machine::Step;
//! assert_eq!(Door::Open.step(Push::Pushed), Step::Go(Door::Shut));
//! assert_eq!(Door::Open.step(Push::Pulled), Step::Stay);
//! assert_eq!(Door::Open.step(Push::Bricked), Step::Refused);
//! assert_eq!(Door::Walled.step(Push::Pushed), Step::Stay, "an end stays");
//! assert_eq!(Door::DECLARED.faults(), Vec::<String>::new());
//! ```

use std::fmt::Write;

/// What an event does in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<S> {
    /// This state is the next one.
    Go(S),
    /// Nothing changes: it has happened before, or does not matter any more.
    Stay,
    /// It cannot happen here: whoever says so is wrong.
    Refused,
}

/// A machine's whole table, as data.
#[derive(Debug, Clone, Copy)]
pub struct Declared {
    /// Its name.
    pub name: &'static str,
    /// Its states, in the order of their declaration: the first is where it begins, the ends are last.
    pub states: &'static [&'static str],
    /// The place of its first end.
    pub first_end: usize,
    /// Its events.
    pub events: &'static [&'static str],
    /// What the event at a place does in the state at a place.
    pub cell: fn(usize, usize) -> Step<usize>,
}

impl Declared {
    /// Every state against every event: the next state, `=` where it stays, `-` where it is refused.
    pub fn matrix(&self) -> String {
        let width = |names: &[&str]| names.iter().map(|name| name.len()).max().unwrap_or(0);
        let (first, others) = (width(self.states), width(self.states).max(width(self.events)));
        let mut text = format!("{:first$}", self.name, first = first.max(self.name.len()));
        let first = first.max(self.name.len());
        for event in self.events {
            let _ = write!(text, " | {event:others$}");
        }
        for (place, state) in self.states.iter().enumerate() {
            let _ = write!(text, "\n{state:first$}");
            for event in 0..self.events.len() {
                let cell = match (self.cell)(place, event) {
                    Step::Go(next) => self.states[next],
                    Step::Stay => "=",
                    Step::Refused => "-",
                };
                let _ = write!(text, " | {cell:others$}");
            }
        }
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// A picture of it, as Mermaid reads it.
    pub fn mermaid(&self) -> String {
        let mut text = format!("stateDiagram-v2\n    [*] --> {}\n", self.states[0]);
        for (place, state) in self.states.iter().enumerate() {
            for next in 0..self.states.len() {
                let goes = |event: &usize| (self.cell)(place, *event) == Step::Go(next);
                let events: Vec<&str> = (0..self.events.len()).filter(goes).map(|event| self.events[event]).collect();
                if !events.is_empty() {
                    let _ = writeln!(text, "    {state} --> {}: {}", self.states[next], events.join(", "));
                }
            }
        }
        for end in &self.states[self.first_end..] {
            let _ = writeln!(text, "    {end} --> [*]");
        }
        text
    }

    /// What is wrong with the table itself: states that nothing leads to, states from which no end is reached.
    pub fn faults(&self) -> Vec<String> {
        let states = self.states.len();
        let leads =
            |from: usize, to: usize| (0..self.events.len()).any(|event| (self.cell)(from, event) == Step::Go(to));
        let closure = |from: Vec<usize>, leads: &dyn Fn(usize, usize) -> bool| {
            let mut reached = vec![false; states];
            let mut open = from;
            while let Some(state) = open.pop() {
                if !std::mem::replace(&mut reached[state], true) {
                    open.extend((0..states).filter(|&next| leads(state, next)));
                }
            }
            reached
        };
        let reached = closure(vec![0], &leads);
        let ending = closure((self.first_end..states).collect(), &|from, to| leads(to, from));
        let named = |place: usize, what: &str| format!("{}: {} {what}", self.name, self.states[place]);
        let unreached = (0..states).filter(|&place| !reached[place]).map(|place| named(place, "is reached by nothing"));
        let endless = (0..states).filter(|&place| !ending[place]).map(|place| named(place, "leads to no end"));
        unreached.chain(endless).collect()
    }
}

/// Declares a state machine; see the module.
#[macro_export]
macro_rules! machine {
    (
        $(#[$about:meta])*
        $vis:vis $State:ident on $Event:ident {
            states { $($(#[$about_state:meta])* $state:ident,)+ }
            ends { $($(#[$about_end:meta])* $end:ident,)+ }
            events { $($(#[$about_event:meta])* $event:ident,)+ }
            $($from:ident { $($on:ident => $to:ident),* $(,)? })*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $State {
            $($(#[$about_state])* $state,)+
            $($(#[$about_end])* $end,)+
        }

        #[doc = concat!("What happens to a [`", stringify!($State), "`].")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $Event {
            $($(#[$about_event])* $event,)+
        }

        impl $State {
            /// All states, ends last.
            $vis const ALL: &'static [Self] = &[$(Self::$state,)+ $(Self::$end,)+];

            /// The whole table.
            $vis const DECLARED: $crate::machine::Declared = $crate::machine::Declared {
                name: stringify!($State),
                states: &[$(stringify!($state),)+ $(stringify!($end),)+],
                first_end: [$(stringify!($state),)+].len(),
                events: &[$(stringify!($event),)+],
                cell: |state, event| match Self::ALL[state].step($Event::ALL[event]) {
                    $crate::machine::Step::Go(next) => $crate::machine::Step::Go(next as usize),
                    $crate::machine::Step::Stay => $crate::machine::Step::Stay,
                    $crate::machine::Step::Refused => $crate::machine::Step::Refused,
                },
            };

            /// Whether nothing changes any more.
            $vis const fn is_end(self) -> bool {
                matches!(self, $(Self::$end)|+)
            }

            /// What an event does here.
            $vis const fn step(self, event: $Event) -> $crate::machine::Step<Self> {
                if self.is_end() {
                    return $crate::machine::Step::Stay;
                }
                let next = match (self, event) {
                    $($((Self::$from, $Event::$on) => Self::$to,)*)*
                    _ => return $crate::machine::Step::Refused,
                };
                if next as usize == self as usize {
                    $crate::machine::Step::Stay
                } else {
                    $crate::machine::Step::Go(next)
                }
            }
        }

        impl $Event {
            /// All events.
            $vis const ALL: &'static [Self] = &[$(Self::$event,)+];
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    machine! {
        /// One with a mistake of each kind.
        Wrong on Happening {
            states {
                /// Where it begins.
                First,
                /// Nothing leads out.
                Stuck,
                /// Nothing leads in.
                Lost,
            }
            ends {
                /// The end.
                Over,
            }
            events {
                /// On.
                Go,
                /// Astray.
                Stray,
            }
            First { Go => Over, Stray => Stuck }
            Lost { Go => Over, Stray => Lost }
        }
    }

    #[test]
    fn what_is_not_written_is_refused_and_ends_stay() {
        assert_eq!(Wrong::First.step(Happening::Go), Step::Go(Wrong::Over));
        assert_eq!(Wrong::Lost.step(Happening::Stray), Step::Stay);
        assert_eq!(Wrong::Stuck.step(Happening::Go), Step::Refused);
        assert_eq!(Wrong::Over.step(Happening::Stray), Step::Stay);
        assert!(Wrong::Over.is_end() && !Wrong::Stuck.is_end());
    }

    #[test]
    fn mistakes_of_a_table_are_found() {
        let faults = Wrong::DECLARED.faults();
        assert_eq!(faults, ["Wrong: Lost is reached by nothing", "Wrong: Stuck leads to no end"]);
    }

    #[test]
    fn the_table_can_be_read_and_drawn() {
        let matrix = "\
Wrong | Go    | Stray
First | Over  | Stuck
Stuck | -     | -
Lost  | Over  | =
Over  | =     | =
";
        assert_eq!(Wrong::DECLARED.matrix(), matrix);
        let picture = Wrong::DECLARED.mermaid();
        assert!(picture.starts_with("stateDiagram-v2\n    [*] --> First\n"), "{picture}");
        assert!(picture.contains("    First --> Over: Go\n") && picture.ends_with("    Over --> [*]\n"), "{picture}");
    }
}
