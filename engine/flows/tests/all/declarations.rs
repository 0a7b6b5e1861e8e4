//! Reads what can be said from the declarations that say it: a body is encoded field by field in the order of its declaration, so the
//! declaration is the description.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// A struct or an enum that is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) is_enum: bool,
    /// Fields with their types, or variants with what they carry.
    pub(crate) members: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) of: String,
    pub(crate) about: String,
}

/// A file of the crate of sessions.
pub(crate) fn source(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../session/src").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All structs and enums of a source that are declared to be encoded.
pub(crate) fn declared(source: &str) -> Vec<Declared> {
    let mut found = Vec::new();
    let (mut about, mut open): (Vec<&str>, Option<Declared>) = (Vec::new(), None);
    let mut is_encoded = false;
    for line in source.lines() {
        let text = line.trim();
        if let Some(words) = text.strip_prefix("///") {
            about.push(words.trim());
            continue;
        }
        if text.starts_with("#[derive(") {
            is_encoded = text.contains("Serialize");
            continue;
        }
        // What the codec writes itself, in its place.
        if text == "#[serde(skip)]" {
            continue;
        }
        let words = std::mem::take(&mut about).join(" ");
        if let Some(of) = &mut open {
            if line == "}" {
                found.extend(open.take());
            } else if let Some(member) = member(text, of.is_enum, words) {
                of.members.push(member);
            }
            continue;
        }
        let head = |keyword| text.strip_prefix(keyword).and_then(|rest: &str| rest.strip_suffix(" {"));
        if let Some((name, is_enum)) =
            head("pub struct ").map(|name| (name, false)).or(head("pub enum ").map(|name| (name, true)))
            && is_encoded
        {
            open = Some(Declared { name: name.to_owned(), about: words, is_enum, members: Vec::new() });
        }
        is_encoded = false;
    }
    found
}

fn member(text: &str, is_variant: bool, about: String) -> Option<Member> {
    let text = text.strip_suffix(',')?;
    let (name, of) = if is_variant {
        text.split_once('(').map_or((text, ""), |(name, of)| (name, of.trim_end_matches(')')))
    } else {
        text.strip_prefix("pub ")?.split_once(": ")?
    };
    Some(Member { name: name.to_owned(), of: of.to_owned(), about })
}

/// What each variant of an enum of a source carries, and what it is.
pub(crate) fn variants(source: &str, name: &str) -> BTreeMap<String, (String, String)> {
    let body = source.split_once(&format!("pub enum {name} {{")).expect("it is declared").1;
    let body = body.split_once("\n}").expect("it ends").0;
    let mut found = BTreeMap::new();
    let mut about: Vec<&str> = Vec::new();
    let mut open: Option<(String, Vec<String>, String)> = None;
    for line in body.lines() {
        let text = line.trim();
        if let Some(words) = text.strip_prefix("///") {
            about.push(words.trim());
            continue;
        }
        let words = std::mem::take(&mut about).join(" ");
        if let Some((name, of, about)) = &mut open {
            if text == "}," {
                found.insert(std::mem::take(name), (of.join(", "), std::mem::take(about)));
                open = None;
            } else if let Some((field, of_field)) = text.trim_end_matches(',').split_once(": ") {
                of.push(format!("`{field}`: {}", encoding(of_field)));
            }
            continue;
        }
        if let Some(name) = text.strip_suffix(" {") {
            open = Some((name.to_owned(), Vec::new(), words));
        } else if let Some(Member { name, of, about }) = member(text, true, words) {
            let of = if of.is_empty() { "nothing".to_owned() } else { encoding(&of) };
            found.insert(name, (of, about));
        }
    }
    found
}

/// The constants of a source, as they are written: `A + 0x10` is looked up.
pub(crate) fn constants(source: &str) -> BTreeMap<String, u64> {
    let mut known = BTreeMap::new();
    for line in source.lines() {
        let Some((name, value)) = line.split_once("const ").and_then(|(_, rest)| rest.split_once(": ")) else {
            continue;
        };
        let Some((_, value)) = value.split_once(" = ") else { continue };
        if let Some(value) = value.strip_suffix(';').and_then(|value| sum(value, &known)) {
            known.insert(name.to_owned(), value);
        }
    }
    known
}

fn sum(text: &str, known: &BTreeMap<String, u64>) -> Option<u64> {
    let number = |word: &str| match word.trim().replace('_', "") {
        hex if hex.starts_with("0x") => u64::from_str_radix(&hex[2..], 16).ok(),
        digits if digits.starts_with(|first: char| first.is_ascii_digit()) => digits.parse().ok(),
        _ => known.get(word.trim()).copied(),
    };
    text.split('+').map(number).sum()
}

/// The kinds that the function `kind` of a source gives to the variants: name and number.
pub(crate) fn kinds(source: &str, first: u64, known: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let body = source.split_once("pub const fn kind(&self) -> u16 {").expect("there is such a function").1;
    let body = body.split_once("\n    }").expect("it ends").0;
    let arm = |line: &str| {
        let (variant, kind) = line.trim().strip_prefix("Self::")?.split_once(" => ")?;
        let name = variant.split(['(', ' ', '{']).next()?;
        Some((name.to_owned(), first + sum(kind.trim_end_matches(','), known)?))
    };
    body.lines().filter_map(arm).collect()
}

/// The limit of each list and text that has one of its own: by body and field.
pub(crate) fn limits(source: &str, known: &BTreeMap<String, u64>) -> BTreeMap<(String, String), u64> {
    let mut found = BTreeMap::new();
    let mut body = "";
    for line in source.lines() {
        if let Some((_, rest)) = line.split_once("ControlMessage::")
            && let Some((name, _)) = rest.split_once('(')
        {
            body = name;
        }
        let Some((_, rest)) = line.split_once("most(\"") else { continue };
        let Some((_, rest)) = rest.split_once("\", ") else { continue };
        let Some((path, most)) = rest.split_once(".len(), ") else { continue };
        let field = path.split_once('.').expect("a list is a field").1;
        let most = most.split(')').next().expect("it ends");
        found.insert((body.to_owned(), field.to_owned()), known[most]);
    }
    found
}

/// How a type is written.
fn encoding(of: &str) -> String {
    let inside = |prefix: &str| of.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    let slice = of.strip_prefix("Box<[").and_then(|rest| rest.strip_suffix("]>"));
    if let Some(of) = inside("Vec<").or_else(|| inside("Few<")).or(slice) {
        return format!("list of {}", encoding(of));
    }
    if let Some(of) = inside("Option<") {
        return format!("optional {}", encoding(of));
    }
    if let Some(bytes) = of.strip_prefix("[u8; ").and_then(|rest| rest.strip_suffix(']')) {
        return format!("{bytes} bytes");
    }
    match of {
        "u8" => "byte".to_owned(),
        "u16" | "u32" | "u64" => format!("varint {of}"),
        "bool" => "byte, 0 or 1".to_owned(),
        "String" => "text".to_owned(),
        "TransferId" => "16 bytes".to_owned(),
        _ if of.starts_with('(') => {
            of.trim_matches(['(', ')']).split(", ").map(encoding).collect::<Vec<_>>().join(", ")
        }
        _ => format!("[{of}](#{})", of.to_lowercase()),
    }
}

/// A body as a table.
pub(crate) fn table(body: &Declared, limits: &BTreeMap<(String, String), u64>) -> String {
    let mut text = String::new();
    let (member, of) = if body.is_enum { ("number", "carries") } else { ("field", "written as") };
    let _ = writeln!(text, "| {member} | {of} | |\n|---|---|---|");
    for (number, Member { name, of, about }) in body.members.iter().enumerate() {
        let most = limits.get(&(body.name.clone(), name.clone()));
        let most = most.map(|most| format!(", at most {most}")).unwrap_or_default();
        let about = about.trim_end_matches('.');
        let _ = match (body.is_enum, of.as_str()) {
            (true, "") => writeln!(text, "| {number} `{name}` | nothing | {about} |"),
            (true, of) => writeln!(text, "| {number} `{name}` | {} | {about} |", encoding(of)),
            (false, of) => writeln!(text, "| `{name}` | {}{most} | {about} |", encoding(of)),
        };
    }
    text
}
