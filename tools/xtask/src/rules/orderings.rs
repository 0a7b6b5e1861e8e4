//! Every atomic ordering stronger than relaxed names its partner.
//!
//! An acquire without a release on the other side orders nothing; the comment
//! `// SYNC <name>: pairs with …` makes the pair findable and reviewable.

use std::ops::RangeInclusive;

use super::is_under;
use crate::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;

const STRONG: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// How far above its ordering a comment may stand: one ordering of a pair may be between them.
const REACH: usize = 2;

/// Finds orderings without a partner.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let engine = tree.sources.iter().filter(|source| is_under(&source.path, "engine") && !source.is_test());
    engine.flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let imports = imports(source);
    let bare = bare_names(&imports);
    let is_import = |index: usize| imports.iter().any(|(lines, _)| lines.contains(&index));
    let mut findings: Vec<Finding> = Vec::new();
    for (index, column, word) in source.words() {
        let before = &source.code[index][..column];
        let is_qualified = before.ends_with("Ordering::");
        let is_bare = bare.contains(&word) && !before.ends_with([':', '.']);
        let is_ordering = STRONG.contains(&word) && (is_qualified || is_bare);
        if !is_ordering || source.in_test(index) || is_import(index) || has_partner(source, index) {
            continue;
        }
        let line = index + 1;
        if findings.last().is_none_or(|last| last.line != line) {
            let wrong = format!("`{word}` does not say what it pairs with");
            let mend = "put `// SYNC <name>: pairs with <where>` on the line or within two lines above";
            findings.push(Finding::at(&source.path, index, wrong, mend));
        }
    }
    findings
}

fn has_partner(source: &Source, index: usize) -> bool {
    let mut comments = source.comments_about(index).into_iter().chain(source.comments_near(index, REACH));
    comments.any(|comment| comment.contains("SYNC"))
}

/// First and last line of every `use` declaration, and its code.
fn imports(source: &Source) -> Vec<(RangeInclusive<usize>, String)> {
    let mut found = Vec::new();
    for (start, line) in source.code.iter().enumerate() {
        let line = line.trim_start();
        let is_use = line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "));
        if is_use {
            let length = source.code[start..].iter().position(|line| line.contains(';')).unwrap_or(0);
            found.push((start..=start + length, source.code[start..=start + length].join(" ")));
        }
    }
    found
}

/// Orderings that the file imports by their bare names.
fn bare_names(imports: &[(RangeInclusive<usize>, String)]) -> Vec<&'static str> {
    let of_atomics = imports.iter().filter(|(_, code)| code.contains("Ordering::"));
    let names = of_atomics.flat_map(|(_, code)| {
        STRONG.iter().copied().filter(move |name| code.contains("Ordering::*") || code.contains(name))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    const GOOD: &str = "\
use std::sync::atomic::Ordering::{self, Acquire, Release};
self.a.load(Ordering::Relaxed);
self.a.load(Acquire); // SYNC slot: pairs with push()'s Release
// SYNC slot: pairs with pop()'s Acquire
self.a.store(1, Release);

// SYNC claim: pairs with the Release
// in give(), which runs on another thread.
self.a.compare_exchange(
    0,
    1,
    Ordering::AcqRel,
    Acquire,
);
let frame = Frame::Release;
match a.cmp(b) { Ordering::Less => {} }
";

    const BAD: &str = "\
use std::sync::atomic::Ordering::{
    self,
    Release,
};
self.a.load(Ordering::Acquire); // no word of it
self.a.store(1, Release);
// SYNC far: too far away



self.a.swap(1, Ordering::SeqCst);
self.a.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
";

    #[test]
    fn strong_orderings_name_their_partner() {
        let passes = [("engine/x/src/a.rs", GOOD), ("engine/x/src/tests.rs", BAD), ("bench/lab/src/a.rs", BAD)];
        assert_rule(check, &passes, &[("engine/x/src/a.rs", BAD)], 4);
    }

    #[test]
    fn a_name_that_is_not_an_ordering_is_left_alone() {
        let other = "enum Frame { Release }\nuse Frame::*;\nlet x = Release;\n";
        assert_rule(check, &[("engine/x/src/a.rs", other)], &[("engine/x/src/a.rs", BAD)], 4);
    }
}
