//! A kept result for people.

use std::fmt::Write;

use super::Record;
use crate::scoreboard::table::{self, HEADINGS, Marks};

const MARKDOWN: Marks = Marks { absent: "–", missed: "**no**" };

/// One page of Markdown.
pub(super) fn render(record: &Record) -> String {
    let Record { date, commit, machine, load, quick, peers, rows, .. } = record;
    let mut text = format!("# Scoreboard, {date}\n\n");
    if *quick {
        text.push_str("**A quick run: everything was measured, too briefly to believe the figures.**\n\n");
    }
    let lines = [
        ("commit", commit.clone()),
        ("processor", format!("{}, {} cores", machine.cpu, machine.cores)),
        ("kernel", machine.kernel.clone()),
        ("memory", format!("{} GiB; {}", machine.memory_gib, machine.pages)),
        ("load average", format!("{} before, {} at the end", load[0], load[1])),
    ];
    text.push_str("| | |\n|---|---|\n");
    for (name, value) in lines {
        line(&mut text, &[name, &value]);
    }
    text.push_str("\n| peer | version | settings |\n|---|---|---|\n");
    for peer in peers {
        line(&mut text, &[&peer.title, peer.version.as_deref().unwrap_or("not installed"), &peer.settings]);
    }
    let met = rows.iter().filter(|row| row.met == Some(true)).count();
    let missed = rows.iter().filter(|row| row.met == Some(false)).count();
    let open = rows.len() - met - missed;
    text.push_str(&format!(
        "\n{met} goals met, {missed} missed, {open} rows without a verdict. Each figure is a median; "
    ));
    text.push_str("each ratio is the median of the ratios of neighbouring rounds.\n\n");
    let columns = table::columns(rows);
    let headings: Vec<&str> = HEADINGS[..columns].iter().copied().chain(["note"]).collect();
    line(&mut text, &headings);
    text.push_str(&format!("|{}\n", "---|".repeat(headings.len())));
    for row in rows {
        let cells = table::cells(row, MARKDOWN);
        let shown = cells[..columns].iter().map(String::as_str).chain([row.note.as_str()]);
        line(&mut text, &shown.collect::<Vec<_>>());
    }
    text
}

fn line(text: &mut String, cells: &[&str]) {
    for cell in cells {
        // Writing to a string does not fail.
        let _ = write!(text, "| {} ", cell.replace('|', "\\|"));
    }
    text.push_str("|\n");
}
