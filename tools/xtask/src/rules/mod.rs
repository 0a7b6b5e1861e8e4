//! The rules, one file each. A rule reads the [`Tree`] and says what breaks it.
//!
//! Every rule has a fixture that passes and one that fails: a check that cannot fail is a defect.

mod arrows;
mod config_keys;
mod dependencies;
mod leftovers;
mod length;
mod machine_paths;
mod names;
mod orderings;
mod sans_io;
mod top_level;
mod unsafety;

use crate::finding::Finding;
use crate::tree::Tree;

/// One rule.
type Rule = fn(&Tree) -> Vec<Finding>;

/// Every rule, in the order in which they report.
pub(crate) const ALL: [Rule; 11] = [
    top_level::check,
    arrows::check,
    sans_io::check,
    unsafety::check,
    orderings::check,
    leftovers::check,
    length::check,
    config_keys::check,
    dependencies::check,
    machine_paths::check,
    names::check,
];

/// What all rules find.
pub(crate) fn check_all(tree: &Tree) -> Vec<Finding> {
    ALL.iter().flat_map(|rule| rule(tree)).collect()
}

/// Whether `path` lies in `folder`.
fn is_under(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Asserts that `rule` finds nothing in one fixture and `breaches` breaches in another.
#[cfg(test)]
fn assert_rule(rule: Rule, passes: &[(&str, &str)], fails: &[(&str, &str)], breaches: usize) {
    assert_eq!(rule(&Tree::fixture(passes)), [], "this fixture should pass");
    let found = rule(&Tree::fixture(fails));
    assert_eq!(found.len(), breaches, "this fixture should fail: {found:#?}");
}
