//! A report for people: aligned, and silent about what is well.

use crate::finding::{Act, By, Finding, Port, Status};
use crate::parse::count;
use crate::report::{Report, WayReport};

/// Columns of a page; commands may be longer, for they must not be broken.
const WIDTH: usize = 110;
/// The columns before what was found.
const TOPIC: usize = 11;
const NAME: usize = 16;
const STATUS: usize = 8;
/// The label before what a finding means and what mends it.
const LABEL: usize = 7;

/// The whole report.
pub(crate) fn of(report: &Report) -> String {
    let mut text = String::new();
    let mut topic = None;
    // When everything is asked about, paths of later releases get a line and no lecture.
    let is_whole = !report.paths.is_empty();
    for finding in &report.findings {
        let shown = if topic == Some(finding.topic) { "" } else { finding.topic.as_str() };
        topic = Some(finding.topic);
        let head = format!("{shown:<TOPIC$} {:<NAME$} {:<STATUS$} ", finding.name, finding.status.as_str());
        paragraph(&mut text, &head, &finding.found);
        ports(&mut text, finding);
        if finding.status != Status::Ok && !(is_whole && finding.is_for_later()) {
            details(&mut text, finding);
        }
    }
    if is_whole {
        paths(&mut text, report);
    }
    text.push('\n');
    text.push_str(&verdict(report));
    text
}

/// A line for each port, and why below it.
fn ports(text: &mut String, finding: &Finding) {
    let indent = " ".repeat(TOPIC + 1 + NAME + 1);
    let longest = |of: fn(&Port) -> &str| finding.ports.iter().map(|port| of(port).chars().count()).max().unwrap_or(0);
    let names = longest(|port| &port.name);
    let netdevs = longest(|port| port.netdev.as_deref().unwrap_or("-"));
    for port in &finding.ports {
        let Port { name, used, why, address, speaks, netdev, node, bits_per_second, .. } = port;
        let used = if *used { "used" } else { "not used" };
        let node = node.map_or_else(|| "node -".to_owned(), |node| format!("node {node}"));
        let rate = bits_per_second.map_or_else(|| "-".to_owned(), |bits| format!("{} Gb/s", bits / 1_000_000_000));
        let netdev = netdev.as_deref().unwrap_or("-");
        let speaks = speaks.as_ref().map(|speaks| format!(" by {speaks}")).unwrap_or_default();
        let address = address.as_deref().unwrap_or("");
        let line =
            format!("{indent}{name:<names$}  {used:<8}  {netdev:<netdevs$}  {node:<6}  {rate:<9}  {address}{speaks}");
        text.push_str(line.trim_end());
        text.push('\n');
        paragraph(text, &format!("{indent}  "), why);
    }
}

fn details(text: &mut String, finding: &Finding) {
    let indent = " ".repeat(TOPIC + 1 + NAME + 1);
    if let Some(means) = &finding.means {
        paragraph(text, &format!("{indent}{:<LABEL$} ", "means"), means);
    }
    for mend in &finding.mends {
        let who = match mend.by {
            By::You => "mend",
            By::Root => "root",
            By::Outside => "outside",
        };
        let head = format!("{indent}{who:<LABEL$} ");
        match &mend.act {
            Act::Command(command) => text.push_str(&format!("{head}{command}\n")),
            Act::Advice(advice) => paragraph(text, &head, advice),
        }
    }
}

fn paths(text: &mut String, report: &Report) {
    text.push('\n');
    for (index, path) in report.paths.iter().enumerate() {
        let shown = if index == 0 { "paths" } else { "" };
        let offered = if path.offered { "yes" } else { "no" };
        let head = format!("{shown:<TOPIC$} {:<NAME$} {offered:<STATUS$} ", path.path.as_str());
        paragraph(text, &head, &why(path));
    }
}

fn why(path: &WayReport) -> String {
    let (what, lacks) = (path.path.what(), path.lacks.join(", "));
    match (path.in_this_release, path.lacks.is_empty()) {
        (true, true) => what.to_owned(),
        (true, false) => format!("{what}; this host lacks {lacks}"),
        (false, true) => format!("{what}; not in this release (nothing that was looked at is missing here)"),
        (false, false) => format!("{what}; not in this release (this host lacks {lacks})"),
    }
}

fn verdict(report: &Report) -> String {
    let number = |status: Status| report.findings.iter().filter(|finding| finding.status == status).count();
    let (broken, limited, unknown) = (number(Status::Broken), number(Status::Limited), number(Status::Unknown));
    let mut text = match broken {
        0 => "What this release needs works here".to_owned(),
        _ => format!(
            "{} that this release needs {} not work here",
            count(broken, "thing"),
            if broken == 1 { "does" } else { "do" }
        ),
    };
    if limited > 0 {
        text.push_str(&format!("; {} could be better", count(limited, "thing")));
    }
    if unknown > 0 {
        text.push_str(&format!("; {} could not be looked at", count(unknown, "thing")));
    }
    text.push_str(".\n");
    if report.findings.iter().any(|finding| finding.is_for_later() && finding.blocks()) && !report.paths.is_empty() {
        text.push_str("What a later release could use and is missing: `penstock doctor TOPIC` says how to get it.\n");
    }
    text
}

/// A head, and words behind it that are wrapped and stand under each other.
fn paragraph(text: &mut String, head: &str, words: &str) {
    let indent = head.chars().count();
    let mut line = head.to_owned();
    let mut used = indent;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if used > indent && used + 1 + length > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(indent);
            used = indent;
        }
        if used > indent {
            line.push(' ');
            used += 1;
        }
        line.push_str(word);
        used += length;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
