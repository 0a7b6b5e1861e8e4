//! One word for one thing: no type name of the engine stands for two types, and no definition has a word in its name that readers of
//! the field would have to look up.
//!
//! The names that stand for two types today are listed in [`DOUBLE`]; the list may only shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::is_under;
use crate::finding::Finding;
use crate::source::{Source, words};
use crate::tree::Tree;

/// Where the rule applies.
const ENGINE: &str = "engine";

/// Names of two types that are still there.
const DOUBLE: &str = "tools/xtask/double_names.txt";

/// Words that were replaced, and by what.
const REPLACED: &[(&str, &str)] = &[
    ("sight", "peer view"),
    ("aside", "transport message"),
    ("party", "peer index"),
    ("commons", "segments"),
    ("beacon", "probe words"),
    ("foresee", "prefetch"),
    ("abandon", "cancel"),
    ("runway", "tracker"),
    ("grounded", "tracker"),
    ("flights", "operations in flight"),
    ("happening", "event"),
];

/// What begins the definition of a type.
const TYPES: &[&str] = &["struct", "enum", "trait", "type", "union"];
/// What begins any other definition.
const OTHERS: &[&str] = &["fn", "const", "static", "mod"];

/// Finds double names and replaced words.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let engine: Vec<&Source> =
        tree.sources.iter().filter(|source| is_under(&source.path, ENGINE) && !source.is_test()).collect();
    let mut findings = doubles(tree, &engine);
    for source in engine {
        for (index, name) in definitions(source, &[TYPES, OTHERS].concat()) {
            let parts = parts(name);
            if let Some((word, better)) = REPLACED.iter().find(|(word, _)| parts.iter().any(|part| part == word)) {
                let wrong = format!("`{name}`: this word is not used in names");
                findings.push(Finding::at(&source.path, index, wrong, format!("`{word}` was replaced by: {better}")));
            }
        }
    }
    findings
}

fn doubles(tree: &Tree, engine: &[&Source]) -> Vec<Finding> {
    let mut places: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for source in engine {
        for (index, name) in
            definitions(source, TYPES).filter(|(index, name)| is_visible(&source.code[*index]) && is_camel(name))
        {
            places.entry(name).or_default().entry(&source.path).or_insert(index);
        }
    }
    places.retain(|_, places| places.len() > 1 && !is_one_role(&places.keys().copied().collect::<Vec<_>>()));
    let listed: BTreeSet<&str> = tree.texts.get(DOUBLE).map_or("", String::as_str).split_whitespace().collect();
    let new = places.iter().filter(|(name, _)| !listed.contains(*name)).map(|(name, places)| {
        let (path, index) = places.last_key_value().expect("a double name has places");
        let all: Vec<&str> = places.keys().copied().collect();
        let wrong = format!("`{name}` stands for a type in each of {}", all.join(", "));
        Finding::at(path, *index, wrong, "give one of them a word of its own")
    });
    let gone = listed.iter().filter(|name| !places.contains_key(**name)).map(|name| {
        let wrong = format!("`{name}` stands for two types no more");
        Finding::at(DOUBLE, 0, wrong, "take it off the list, which may only shrink")
    });
    new.chain(gone).collect()
}

/// Whether the types are one role: in sibling backends, or as runtime's handle over a state of flows.
fn is_one_role(paths: &[&str]) -> bool {
    let backends: BTreeSet<&str> = paths.iter().filter_map(|path| backend(path)).collect();
    let is_handle = |path: &&&str| is_under(path, "engine/runtime/src/flows");
    let is_state = |path: &&&str| is_under(path, "engine/flows/src");
    let (handles, states) = (paths.iter().filter(is_handle).count(), paths.iter().filter(is_state).count());
    backends.len() == paths.len() || (handles, states, paths.len()) == (1, 1, 2)
}

/// The backend that a file belongs to; those of verbs that stand behind its adapters count as backends of their own.
fn backend(path: &str) -> Option<&str> {
    const ADAPTERS: [&str; 2] = ["engine/backends/verbs/src/device", "engine/backends/verbs/src/model"];
    let adapter = ADAPTERS.into_iter().find(|folder| is_under(path, folder));
    adapter.or_else(|| path.strip_prefix("engine/backends/")?.split('/').next())
}

/// The names that lines of code outside tests define, if a line begins so.
fn definitions<'s>(source: &'s Source, keywords: &[&str]) -> impl Iterator<Item = (usize, &'s str)> {
    let lines = source.code.iter().enumerate().filter(|(index, _)| !source.in_test(*index));
    lines.filter_map(|(index, line)| Some((index, defined(line, keywords)?)))
}

/// The name that a line defines.
fn defined<'l>(line: &'l str, keywords: &[&str]) -> Option<&'l str> {
    let mut words = words(line).map(|(_, word)| word).skip_while(|word| is_before(word));
    let (mut keyword, mut name) = (words.next()?, words.next()?);
    // Of a `const fn` the `fn` is meant.
    while matches!(name, "fn" | "unsafe" | "async") {
        (keyword, name) = (name, words.next()?);
    }
    keywords.contains(&keyword).then_some(name)
}

/// Words that may stand before the keyword of a definition.
fn is_before(word: &str) -> bool {
    matches!(word, "pub" | "crate" | "super" | "in" | "unsafe" | "async" | "default")
}

/// Whether more than the module sees what this line defines.
fn is_visible(line: &str) -> bool {
    line.trim_start().starts_with("pub")
}

/// Whether it is a type's own name, not the parameter of a macro.
fn is_camel(name: &str) -> bool {
    name.starts_with(|c: char| c.is_uppercase())
}

/// The words in a name: `PeerView` and `peer_view` have the same two.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_small) {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        was_small = c.is_lowercase() || c.is_ascii_digit();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn a_name_of_two_types_is_found_unless_they_are_one_role() {
        let place = "pub struct Place;\n";
        let passes = [
            ("engine/backends/tcp/src/lane.rs", "pub(crate) struct TcpOps;\npub struct Ops;\n"),
            ("engine/backends/verbs/src/lane.rs", "pub(crate) struct Ops;\n"),
            ("engine/runtime/src/flows/pins.rs", "pub struct Pins;\n"),
            ("engine/flows/src/pins.rs", "pub(crate) struct Pins;\n"),
            ("engine/ring/src/a.rs", "struct Place;\n"),
            ("engine/ring/src/b.rs", place),
            ("bench/lab/src/b.rs", place),
            ("engine/ring/src/c.rs", "#[cfg(test)]\nmod tests {\n    pub struct Place;\n}\n"),
        ];
        let fails = [("engine/ring/src/a.rs", place), ("engine/core/src/a.rs", "pub(crate) enum Place {}\n")];
        assert_rule(check, &passes, &fails, 1);
        let listed = [fails[0], fails[1], (DOUBLE, "Place\n")];
        assert_rule(check, &listed, &[(DOUBLE, "Place\n"), fails[0]], 1);
    }

    #[test]
    fn a_replaced_word_is_found_in_any_definition() {
        let good = "pub struct PeerView;\nfn insight() {}\nfn f(sight: u8) {}\n";
        let bad = "pub struct PeerSight;\npub(crate) const fn runway() {}\nmod sight;\nconst PARTY: u8 = 0;\n";
        let passes = [("engine/x/src/a.rs", good), ("tests/x/src/a.rs", bad)];
        assert_rule(check, &passes, &[("engine/x/src/a.rs", bad)], 4);
    }
}
