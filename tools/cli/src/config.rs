//! `penstock config`: files checked, keys explained.

use std::fmt::Write;

use penstock::config::{Config, KEYS, KeyDoc, Range, default_yaml, reference_markdown};
use serde_json::Value;

use crate::arguments::ConfigCommand;
use crate::console;
use crate::failure::{Ended, Failure};

/// Runs one of its commands.
pub(crate) fn run(command: &ConfigCommand) -> Result<Ended, Failure> {
    match command {
        ConfigCommand::Check { files, show } => return check(files, *show),
        ConfigCommand::Keys { markdown: true, .. } => console::print(&reference_markdown())?,
        ConfigCommand::Keys { key: None, .. } => console::print(&overview())?,
        ConfigCommand::Keys { key: Some(key), .. } => {
            let text = in_full(key).ok_or_else(|| Failure::Key(key.clone()))?;
            console::print(&text)?;
        }
        ConfigCommand::Default => console::print(&default_yaml())?,
    }
    Ok(Ended::Well)
}

/// Checks all files, also those after a bad one: whoever mends one wants to know of the next.
fn check(files: &[std::path::PathBuf], show: bool) -> Result<Ended, Failure> {
    let mut ended = Ended::Well;
    for file in files {
        match Config::load(file) {
            Err(error) => {
                console::complain(&error);
                ended = Ended::Misasked;
            }
            // The remark makes the whole a YAML file again.
            Ok(config) if show => console::print(&format!("# {}: ok\n{}", file.display(), effective(&config)))?,
            Ok(_) => console::print(&format!("{}: ok\n", file.display()))?,
        }
    }
    Ok(ended)
}

/// Every key with its value, as a YAML file; what differs from the default says so.
fn effective(config: &Config) -> String {
    let values = serde_json::to_value(config).expect("a configuration has text keys and whole numbers only");
    let mut text = String::new();
    let mut section = "";
    for doc in KEYS {
        let (of, name) = doc.parts();
        if of != section {
            section = of;
            line(&mut text, format_args!("{section}:"));
        }
        let value = written(&values[of][name], doc);
        let remark = if value == doc.default { String::new() } else { format!("  # default: {}", doc.default) };
        line(&mut text, format_args!("  {name}: {value}{remark}"));
    }
    text
}

/// A value as it is written in the documented defaults.
fn written(value: &Value, doc: &KeyDoc) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(|item| written(item, doc)).collect::<Vec<_>>().join(", "))
        }
        // A word of the key's own needs no quotes; a name might read as a number.
        Value::String(word) if !matches!(doc.range, Range::Name | Range::Folder) => word.clone(),
        other => other.to_string(),
    }
}

fn overview() -> String {
    let head = ["key", "default", "unit", "accepts"].map(str::to_owned).to_vec();
    let row = |doc: &KeyDoc| {
        let unit = if doc.unit.is_empty() { "–" } else { doc.unit };
        vec![doc.key.to_owned(), doc.default.to_owned(), unit.to_owned(), doc.range.to_string()]
    };
    let rows: Vec<_> = std::iter::once(head).chain(KEYS.iter().map(row)).collect();
    let mut text = console::table(&rows, &[]);
    text.push_str("\n`penstock config keys <key>` says what one does and what it costs.\n");
    text
}

/// One key, or all of a section.
fn in_full(wanted: &str) -> Option<String> {
    let chosen = KEYS.iter().filter(|doc| doc.key == wanted || doc.parts().0 == wanted);
    let texts: Vec<String> = chosen.map(explained).collect();
    if texts.is_empty() { None } else { Some(texts.join("\n")) }
}

fn explained(doc: &KeyDoc) -> String {
    let unit = if doc.unit.is_empty() { String::new() } else { format!(" {}", doc.unit) };
    let rows = [
        ("does", doc.what.to_owned()),
        ("default", format!("{}{unit}", doc.default)),
        ("accepts", format!("{}{unit}", doc.range)),
        ("more costs", doc.more_costs.to_owned()),
        ("less costs", doc.less_costs.to_owned()),
    ];
    let mut text = format!("{}\n", doc.key);
    for (label, value) in rows {
        line(&mut text, format_args!("  {label:<11} {value}"));
    }
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back_as_the_same_configuration() {
        let text = "engine: { name: \"007\", directory: /run/x }\nworkers: { count: 2, cores: [0, 1], progress: busy }\n\
                    transports: { allow: [shm] }\nmemory: { pages: huge }\n";
        for config in [Config::default(), Config::parse(text, "text").unwrap()] {
            let shown = effective(&config);
            assert_eq!(Config::parse(&shown, "shown").unwrap(), config, "{shown}");
        }
        assert!(!effective(&Config::default()).contains("# default"));
    }

    #[test]
    fn keys_and_sections_are_found() {
        assert!(in_full("workers.spin_us").unwrap().starts_with("workers.spin_us\n  does"));
        assert!(in_full("workers").unwrap().contains("workers.cores\n"));
        assert_eq!(in_full("workers.spin"), None);
    }
}
