//! The first thing a visitor sees is short and says what is where.

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::tree::Tree;

/// What must be there.
const PRESENT: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "bench",
    "configs",
    "docs",
    "engine",
    "tests",
    "tools",
];

/// What may be there: later work fills it.
const LATER: &[&str] = &["ffi"];

/// Finds what is visible at the top and should not be, and what is missing.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let first = |path: &String| path.split('/').next().map(String::from);
    let visible: BTreeSet<String> = tree.paths.iter().filter_map(first).filter(|name| !name.starts_with('.')).collect();
    let expected = |name: &str| PRESENT.contains(&name) || LATER.contains(&name);
    let strange = visible.iter().filter(|name| !expected(name)).map(|name| {
        let mend = "move it into the folder it belongs to, or let git ignore it if a tool made it";
        Finding::of(name, "not one of the names of the top level", mend)
    });
    let missing = PRESENT
        .iter()
        .filter(|name| !visible.contains(**name))
        .map(|name| Finding::of(name, "missing from the top level", "bring it back; every clone needs it"));
    strange.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree_of(names: &[&str]) -> Tree {
        Tree { paths: names.iter().map(|name| (*name).to_string()).collect(), ..Tree::default() }
    }

    #[test]
    fn the_top_level_is_exactly_what_it_should_be() {
        let mut names: Vec<&str> = PRESENT.to_vec();
        names.extend([".gitignore", ".ci/run", "engine/core/src/lib.rs"]);
        assert_eq!(check(&tree_of(&names)), []);
        names.push("ffi/capi/Cargo.toml");
        assert_eq!(check(&tree_of(&names)), []);
        names.push("notes.txt");
        assert_eq!(check(&tree_of(&names)).len(), 1);
        assert_eq!(check(&tree_of(&PRESENT[1..])).len(), 1);
    }
}
