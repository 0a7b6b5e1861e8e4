//! A source file is short enough to be read at a sitting.

use crate::finding::Finding;
use crate::tree::Tree;

/// Lines of a file, tests at its end not counted.
const LIMIT: usize = 800;

/// Finds files that are too long.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = tree.sources.iter().filter(|source| !source.is_test());
    let long = sources.filter(|source| source.lines_without_trailing_tests() > LIMIT);
    long.map(|source| {
        let wrong = format!("{} lines, {LIMIT} is the limit", source.lines_without_trailing_tests());
        Finding::at(
            &source.path,
            LIMIT,
            wrong,
            "split it along its responsibilities; from 500 lines on it is worth a thought",
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn length_counts_code_and_not_tests() {
        let limit = "fn a() {}\n".repeat(LIMIT);
        let long = "fn a() {}\n".repeat(LIMIT + 1);
        let tested = format!("{limit}#[cfg(test)]\nmod tests {{\n}}\n");
        let passes = [
            ("engine/x/src/limit.rs", limit.as_str()),
            ("engine/x/src/tested.rs", &tested),
            ("engine/x/src/tests.rs", &long),
            ("engine/x/tests/all.rs", &long),
        ];
        assert_rule(check, &passes, &[("engine/x/src/long.rs", &long)], 1);
    }
}
