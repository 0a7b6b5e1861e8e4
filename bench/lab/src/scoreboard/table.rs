//! Rows for people.

use super::row::Row;

/// What the columns are called. What processors were busy with stands last, and only where some row knows it.
pub(crate) const HEADINGS: [&str; 10] =
    ["id", "transport", "figure", "against", "its figure", "ratio", "goal", "met", "CPU s/GB", "its CPU s/GB"];

/// How absences and verdicts are written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks {
    pub(crate) absent: &'static str,
    pub(crate) missed: &'static str,
}

const PLAIN: Marks = Marks { absent: "-", missed: "NO" };

/// How many columns these rows need.
pub(crate) fn columns(rows: &[Row]) -> usize {
    let is_costing = |row: &Row| row.cpu_s_per_gb.is_some() || row.against_cpu_s_per_gb.is_some();
    if rows.iter().any(is_costing) { HEADINGS.len() } else { HEADINGS.len() - 2 }
}

/// All rows as a table, each with its note below it.
pub fn render(rows: &[Row]) -> String {
    let columns = columns(rows);
    let cells: Vec<[String; HEADINGS.len()]> = rows.iter().map(|row| cells(row, PLAIN)).collect();
    let width = |column: usize| {
        let widest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        widest.max(HEADINGS[column].len())
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    let mut text = line(&HEADINGS.map(str::to_owned));
    for (row, cells) in rows.iter().zip(&cells) {
        text.push_str(&line(cells));
        if !row.note.is_empty() {
            text.push_str(&format!("{:width$}  {}\n", "", row.note, width = widths[0]));
        }
    }
    text
}

/// A row in the columns of [`HEADINGS`]; its note is not among them.
pub(crate) fn cells(row: &Row, marks: Marks) -> [String; HEADINGS.len()] {
    let number = |number: Option<f64>| number.map_or(marks.absent.to_owned(), |number| number.to_string());
    let with_unit =
        |figure: Option<f64>| figure.map_or(marks.absent.to_owned(), |figure| format!("{figure} {}", row.unit));
    let met = match row.met {
        Some(true) => "yes",
        Some(false) => marks.missed,
        None => marks.absent,
    };
    [
        row.id.clone(),
        row.transport.clone(),
        with_unit(row.figure),
        row.against.clone(),
        with_unit(row.against_figure),
        number(row.ratio),
        row.goal.clone(),
        met.to_owned(),
        number(row.cpu_s_per_gb),
        number(row.against_cpu_s_per_gb),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::row::Goal;
    use super::*;

    #[test]
    fn columns_line_up_and_misses_stand_out() {
        let row = |most| Row::compared("shm", (&[2e3], "us", 1e3), ("the floor", &[1e3]), Goal::RatioAtMost(most));
        let of = |id: &str, row: Row| Row { id: id.to_owned(), ..row };
        let rows = [of("M3", row(1.05)), of("M12", row(2.5)).noted("a note")];
        let text = render(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        let column = lines[0].find("met").unwrap();
        assert_eq!((&lines[1][column..], &lines[3][column..]), ("NO", "yes"));
        assert_eq!(lines[4].trim(), "a note; +1.000 us over it; minima 2.000 x");
        assert!(!text.contains("CPU"));
        let [first, second] = rows;
        let text = render(&[first.costing(Some(0.25), None), second]);
        let lines: Vec<&str> = text.lines().collect();
        let column = lines[0].find("CPU s/GB").unwrap();
        assert_eq!(lines[1][column..].split_whitespace().collect::<Vec<_>>(), ["0.25", "-"]);
    }
}
