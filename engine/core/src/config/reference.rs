//! The reference page and the commented default file, both made from the table of keys.

use std::fmt::Write;

use super::keys::{KEYS, KeyDoc, Range};

/// What each section is about, in the order of the file.
const SECTIONS: &[(&str, &str)] = &[
    ("engine", "What the engine is called and where it can be found."),
    ("workers", "The threads that move bytes."),
    ("transfers", "How many transfers there may be and how long they may take."),
    ("credits", "What a peer may occupy here before it must wait."),
    ("transports", "The ways bytes may take."),
    ("datagram", "What carries the packets of the transport `datagram`."),
    ("dpdk", "The device that carries them, where no sockets do. It needs the library that `make dpdk` builds."),
    ("device", "How memory of GPUs is moved."),
    ("memory", "How pools get their memory."),
    ("session", "How long conversations with peers may take."),
    ("control", "How much is kept of transfers by name, and how long."),
    ("legs", "In which pieces transfers by name go."),
];

/// Columns of a comment line in the default file.
const COMMENT_COLUMNS: usize = 100;

/// The text of `docs/CONFIGURATION.md`.
pub fn reference_markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    page.push_str("\n## All keys\n\n| key | default | unit | accepts |\n|---|---|---|---|\n");
    for doc in KEYS {
        line(&mut page, format_args!("| `{}` | `{}` | {} | {} |", doc.key, doc.default, dash(doc.unit), doc.range));
    }
    for (section, about) in SECTIONS {
        line(&mut page, format_args!("\n## {section}\n\n{about}"));
        for doc in KEYS.iter().filter(|doc| doc.parts().0 == *section) {
            line(&mut page, format_args!("\n### `{}`\n\n{}\n", doc.key, doc.what));
            line(&mut page, format_args!("- Default: `{}`{}", doc.default, in_parentheses(doc.unit)));
            line(&mut page, format_args!("- Accepts: {}", doc.range));
            for (label, cost) in costs(doc) {
                line(&mut page, format_args!("- {label}: {cost}"));
            }
        }
    }
    page
}

/// The text of `configs/default.yaml`: every key with its default, its unit and its trade-off.
pub fn default_yaml() -> String {
    let mut file = String::new();
    comment(&mut file, "", "Every key with its default. Start from a copy, and keep only what you change.");
    for (section, about) in SECTIONS {
        file.push('\n');
        comment(&mut file, "", about);
        line(&mut file, format_args!("{section}:"));
        for (index, doc) in KEYS.iter().filter(|doc| doc.parts().0 == *section).enumerate() {
            if index > 0 {
                file.push('\n');
            }
            comment(&mut file, "  ", doc.what);
            comment(&mut file, "  ", &format!("Accepts {}{}.", doc.range, in_parentheses(doc.unit)));
            for (label, cost) in costs(doc) {
                comment(&mut file, "  ", &format!("{label}: {cost}"));
            }
            line(&mut file, format_args!("  {}: {}", doc.parts().1, doc.default));
        }
    }
    file
}

const INTRODUCTION: &str = "\
# Configuration

One YAML file, or the same settings made in code. Every key may be left out and then has its
default; a key that does not exist, a value out of range and two values that do not go together
are refused with file, line and column, never ignored or adjusted.

This page and `configs/default.yaml` are made from the table in
`engine/core/src/config/keys/table.rs`, and a test compares them. After a change there, run

    PENSTOCK_UPDATE=1 cargo test -p penstock-core config

| file | when to use it |
|---|---|
| `configs/default.yaml` | a start for your own: every key, its default, its cost |
| `configs/low-latency.yaml` | cores to spare, and every microsecond counts |
| `configs/inline.yaml` | the program has a loop of its own and wants no threads beside it |
| `configs/small-host.yaml` | few cores or little memory, shared with other work |
| `configs/datagram-udp.yaml` | hosts without RDMA cards that are to meet in datagrams over UDP, at a port that a firewall can name |
| `configs/datagram-memif.yaml` | two processes of one host that meet in datagrams over DPDK, through memory that they share; the other one has `configs/datagram-memif-peer.yaml` |
| `configs/datagram-af-packet.yaml` | datagrams over DPDK by any interface of Linux, as root: to try the way without a card that DPDK drives |
| `configs/datagram-mlx5.yaml` | datagrams over DPDK by a ConnectX card (not run) |
| `configs/datagram-ena.yaml` | datagrams over DPDK by a second interface of an EC2 instance (not run) |
";

/// The two ends of the trade-off, named as this kind of value names them.
fn costs(doc: &KeyDoc) -> [(String, &'static str); 2] {
    let (more, less) = match doc.range {
        Range::OneOf([first, .., last]) => (format!("`{first}` costs"), format!("`{last}` costs")),
        Range::Name | Range::Folder | Range::Device | Range::Network => {
            ("Setting it costs".into(), "Not setting it costs".into())
        }
        _ => ("More costs".into(), "Less costs".into()),
    };
    [(more, doc.more_costs), (less, doc.less_costs)]
}

fn dash(unit: &str) -> &str {
    if unit.is_empty() { "–" } else { unit }
}

fn in_parentheses(unit: &str) -> String {
    if unit.is_empty() { String::new() } else { format!(" ({unit})") }
}

fn line(page: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(page, "{text}").expect("writing to a String does not fail");
}

fn comment(file: &mut String, indent: &str, text: &str) {
    let mut width = 0;
    for word in text.split(' ') {
        let letters = word.chars().count();
        if width == 0 || width + 1 + letters > COMMENT_COLUMNS {
            file.push_str(if width == 0 { "" } else { "\n" });
            file.push_str(indent);
            file.push('#');
            width = indent.len() + 1;
        }
        file.push(' ');
        file.push_str(word);
        width += 1 + letters;
    }
    file.push('\n');
}
