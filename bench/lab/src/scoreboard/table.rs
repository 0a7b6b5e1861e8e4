//! Rows for people.

use super::row::Row;

const HEADINGS: [&str; 8] = ["id", "transport", "figure", "against", "its figure", "ratio", "goal", "met"];

/// All rows as a table, each with its note below it.
pub fn render(rows: &[Row]) -> String {
    let cells: Vec<[String; 8]> = rows.iter().map(cells).collect();
    let width = |column: usize| {
        let widest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        widest.max(HEADINGS[column].len())
    };
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
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

fn cells(row: &Row) -> [String; 8] {
    let number = |number: Option<f64>| number.map_or("-".to_owned(), |number| number.to_string());
    let with_unit = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure} {}", row.unit));
    let met = match row.met {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    [
        row.id.to_owned(),
        row.transport.to_owned(),
        with_unit(row.figure),
        row.against.clone(),
        with_unit(row.against_figure),
        number(row.ratio),
        row.goal.clone(),
        met.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::row::Goal;
    use super::*;

    #[test]
    fn columns_line_up_and_misses_stand_out() {
        let row = |most| Row::compared("shm", (&[2e3], "us", 1e3), ("the floor", &[1e3]), Goal::RatioAtMost(most));
        let text = render(&[Row { id: "M3", ..row(1.05) }, Row { id: "M12", ..row(2.5) }.noted("a note")]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        let column = lines[0].find("met").unwrap();
        assert_eq!((&lines[1][column..], &lines[3][column..]), ("NO", "yes"));
        assert_eq!(lines[4].trim(), "a note; +1.000 us over it; minima 2.000 x");
    }
}
