//! What people and pipes see: reports on standard output, complaints and progress on standard error.

use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Prints a text as it is. A reader that has left (`penstock … | head`) is no failure: the rest is
/// simply not shown.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}

/// Prints one JSON object on a line of its own.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).expect("reports have text keys and finite numbers only");
    print(&format!("{text}\n"))
}

/// Says on standard error what went wrong, under the program's name.
pub(crate) fn complain(what: &dyn Display) {
    // Nobody is left to hear that this failed.
    let _ = writeln!(std::io::stderr(), "penstock: {what}");
}

/// One line of progress on standard error, for people only: it is rewritten in place and gone when dropped.
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { shown: std::io::stderr().is_terminal() }
    }

    pub(crate) fn say(&self, what: &str) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K{what} …");
        }
    }

    /// A line on standard error that stays, also where nobody watches.
    pub(crate) fn note(&self, line: &str) {
        let clear = if self.shown { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{clear}{line}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Lays rows out in columns; those named in `right` have their figures under each other.
pub(crate) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = widths[column];
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A time in three figures and the unit in which a person reads it at once.
pub(crate) fn time(us: f64) -> String {
    match us {
        1_000_000.0.. => format!("{} s", figure(us / 1e6)),
        1_000.0.. => format!("{} ms", figure(us / 1e3)),
        1.0.. => format!("{} µs", figure(us)),
        _ => format!("{} ns", figure(us * 1e3)),
    }
}

/// Three figures.
pub(crate) fn figure(number: f64) -> String {
    match number {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        1.0.. => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{table, time};

    #[test]
    fn times_have_three_figures() {
        let shown = [0.0456, 1.5, 45.61, 1_551.0, 2_000_000.0].map(time);
        assert_eq!(shown, ["45.6 ns", "1.50 µs", "45.6 µs", "1.55 ms", "2.00 s"]);
    }

    #[test]
    fn columns_stand_under_each_other() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["name", "p50", "path"]), row(["x", "1.23 µs", ""]), row(["longer", "9 µs", "y"])];
        assert_eq!(table(&rows, &[1]), "name        p50  path\nx       1.23 µs\nlonger     9 µs  y\n");
    }
}
