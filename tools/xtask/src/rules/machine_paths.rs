//! No file speaks of the machine it was written on.

use crate::finding::Finding;
use crate::tree::Tree;

/// Folders of a person's or a machine's own, in pieces so that this file passes its own rule.
const PRIVATE: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// Finds absolute paths into private folders.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        for (index, line) in text.lines().enumerate() {
            if let Some(private) = PRIVATE.iter().find(|private| names(line, private)) {
                let wrong = format!("an absolute path under `{private}`");
                findings.push(Finding::at(
                    path,
                    index,
                    wrong,
                    "name it relative to the repository, or use a made-up path",
                ));
            }
        }
    }
    findings
}

/// Whether `line` holds `private` as the beginning of a path and not as a part of another one.
fn names(line: &str, private: &str) -> bool {
    line.match_indices(private).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}$".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn private_folders_are_not_named() {
        let good = "see frame/work/x, ~/work/y, the root/ and /usr/bin";
        let bad: String = PRIVATE.iter().map(|private| format!("cd {private}x\n`{private}y`\n")).collect();
        assert_rule(check, &[("README.md", good)], &[("docs/A.md", &bad)], 6);
    }
}
