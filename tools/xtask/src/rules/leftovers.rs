//! Nothing unfinished, nothing left from debugging, no silent holes in the tests, and no
//! `unwrap()` where a user's data could reach it.

use crate::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;

const UNFINISHED: &[&str] = &["todo", "unimplemented", "dbg"];

/// Finds leftovers.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources.iter().flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, column, word) in source.words() {
        let line = &source.code[index];
        let (before, after) = (&line[..column], &line[column + word.len()..]);
        if UNFINISHED.contains(&word) && after.starts_with('!') && !after.starts_with("!=") {
            let wrong = format!("`{word}!` left in");
            findings.push(Finding::at(
                &source.path,
                index,
                wrong,
                "finish it, or take it out and say so in docs/SCOPE.md",
            ));
        }
        if word == "ignore" && before.ends_with("#[") && after.starts_with(']') {
            let mend = "give it a reason: #[ignore = \"…\"]; the reason is counted and printed as a skip";
            findings.push(Finding::at(&source.path, index, "a test is ignored without a reason", mend));
        }
        if word == "unwrap" && before.ends_with('.') && after.starts_with("()") && !source.in_test(index) {
            let mend = "return a typed error, or `expect` with the invariant that makes it impossible";
            findings.push(Finding::at(&source.path, index, "`unwrap()` outside tests", mend));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn leftovers_are_found_in_code_only() {
        let good = "// todo!() later\nlet s = \"dbg!\";\nfn todo() {}\nlet x = todo != 1;\n#[ignore = \"needs root\"]\nx.expect(\"y\");\n";
        let bad =
            "todo!();\nunimplemented!(\"x\");\ndbg!(x);\nx.unwrap();\n#[test]\n#[ignore]\nfn t() { x.unwrap() }\n";
        assert_rule(check, &[("engine/x/src/a.rs", good)], &[("engine/x/src/a.rs", bad)], 5);
    }
}
