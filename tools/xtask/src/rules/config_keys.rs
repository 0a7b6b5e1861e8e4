//! Every configuration key is documented, and nothing is documented that does not exist.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::tree::Tree;

const DEFAULTS: &str = "configs/default.yaml";
const PAGE: &str = "docs/CONFIGURATION.md";

/// Finds keys without a row, and rows without a key.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(defaults) = tree.texts.get(DEFAULTS) else {
        return vec![Finding::of(DEFAULTS, "the defaults are missing", "write them: every key with its default value")];
    };
    let Some(page) = tree.texts.get(PAGE) else {
        return vec![Finding::of(PAGE, "the page is missing", "write it: a table whose first column is `section.key`")];
    };
    let (keys, rows) = (keys(defaults), rows(page));
    let undocumented = keys.iter().filter(|(key, _)| !rows.contains_key(*key)).map(|(key, index)| {
        let mend = format!("add a row to {PAGE}: | `{key}` | default | unit | what more and less of it costs |");
        Finding::at(DEFAULTS, *index, format!("configuration key {key} is not documented"), mend)
    });
    let stale = rows.iter().filter(|(key, _)| !keys.contains_key(*key)).map(|(key, index)| {
        let mend = format!("take the row out, or give the key its default in {DEFAULTS}");
        Finding::at(PAGE, *index, format!("`{key}` is documented but is not a configuration key"), mend)
    });
    undocumented.chain(stale).collect()
}

/// Dotted names of the keys of a YAML mapping that hold values, and their lines.
///
/// Reads the plain block style that our files are written in; the engine's own parser, not this,
/// decides what is valid.
fn keys(yaml: &str) -> BTreeMap<String, usize> {
    let mut open: Vec<(usize, String)> = Vec::new();
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for (index, line) in yaml.lines().enumerate() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.is_empty() || text.starts_with(['#', '-']) {
            continue;
        }
        let Some((key, _)) = text.split_once(':') else { continue };
        open.retain(|(outer, _)| *outer < indent);
        let outer: Vec<&str> = open.iter().map(|(_, name)| name.as_str()).collect();
        found.remove(&outer.join("."));
        open.push((indent, key.trim_matches(['"', '\'']).to_string()));
        let name: Vec<&str> = open.iter().map(|(_, name)| name.as_str()).collect();
        found.insert(name.join("."), index);
    }
    found
}

/// Keys in the first column of the page's tables, and their lines.
fn rows(page: &str) -> BTreeMap<String, usize> {
    let cell = |line: &str| {
        let first = line.trim_start().strip_prefix('|')?.split('|').next()?.trim();
        let name = first.strip_prefix('`')?.strip_suffix('`')?;
        let is_key = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        is_key.then(|| name.to_string())
    };
    page.lines().enumerate().filter_map(|(index, line)| Some((cell(line)?, index))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    const YAML: &str =
        "# head\nname: x # why\nworkers:\n  count: 1\n  cores: []\n  idle:\n    spin_us: 20\nlist:\n  - a: 1\n";
    const KEYS: [&str; 5] = ["list", "name", "workers.cores", "workers.count", "workers.idle.spin_us"];

    #[test]
    fn keys_are_read_from_nested_mappings() {
        assert_eq!(keys(YAML).into_keys().collect::<Vec<_>>(), KEYS);
    }

    #[test]
    fn keys_and_rows_agree() {
        let whole: String = KEYS.iter().map(|key| format!("| `{key}` | 1 |\n")).collect();
        let whole = format!("| `configs/default.yaml` | a file, not a key |\n{whole}");
        let other = whole.replace("workers.count", "workers.number");
        assert_rule(check, &[(DEFAULTS, YAML), (PAGE, &whole)], &[(DEFAULTS, YAML), (PAGE, &other)], 2);
    }

    #[test]
    fn a_missing_file_is_said_to_be_missing() {
        assert_eq!(check(&Tree::fixture(&[(DEFAULTS, YAML)])).len(), 1);
        assert_eq!(check(&Tree::fixture(&[(PAGE, "")])).len(), 1);
    }
}
