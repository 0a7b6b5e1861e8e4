//! Every crate that the workspace takes from outside is justified in `docs/DEPENDENCIES.md`.

use crate::finding::Finding;
use crate::tree::Tree;

const PAGE: &str = "docs/DEPENDENCIES.md";

/// Finds dependencies that the page does not name.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(manifest) = tree.texts.get("Cargo.toml") else {
        return vec![Finding::of("Cargo.toml", "there is no workspace manifest", "run tidy from a whole checkout")];
    };
    let Some(page) = tree.texts.get(PAGE) else {
        return vec![Finding::of(PAGE, "the page is missing", "write it: a table of need, choice and why")];
    };
    let table: String = page.lines().filter(|line| line.starts_with('|')).collect();
    let unexplained = outside_crates(manifest).into_iter().filter(|(_, name)| !table.contains(&format!("`{name}`")));
    unexplained
        .map(|(index, name)| {
            let mend = format!("add a row for `{name}` to {PAGE}: what it is needed for, and why this one");
            Finding::at("Cargo.toml", index, format!("dependency {name} is not explained"), mend)
        })
        .collect()
}

/// Line and name of every entry of `[workspace.dependencies]` that is not a path of ours.
fn outside_crates(manifest: &str) -> Vec<(usize, &str)> {
    let lines = manifest.lines().enumerate();
    let section = lines.skip_while(|(_, line)| line.trim() != "[workspace.dependencies]").skip(1);
    let entries = section.take_while(|(_, line)| !line.starts_with('['));
    let named = entries.filter_map(|(index, line)| Some((index, line.split_once('=')?)));
    named.filter(|(_, (_, value))| !value.contains("path =")).map(|(index, (name, _))| (index, name.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn every_outside_crate_has_a_row() {
        let manifest = "[workspace.dependencies]\npenstock-core = { path = \"x\" }\n\nlibc = \"0.2\"\n[profile.dev]\nopt-level = 1\n";
        let page = "# Dependencies\n| calls | `libc` | why |\n";
        let silent = "# Dependencies\n`libc` is mentioned, but not in the table\n";
        assert_rule(check, &[("Cargo.toml", manifest), (PAGE, page)], &[("Cargo.toml", manifest), (PAGE, silent)], 1);
        assert_eq!(check(&Tree::fixture(&[("Cargo.toml", manifest)])).len(), 1);
    }
}
