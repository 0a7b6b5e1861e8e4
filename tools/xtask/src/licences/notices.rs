//! The licences of what is linked into a package, in full: who passes a program on passes them on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::tree;

/// What packages are built for.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// How the names of files begin that hold a licence, or what it wants to be passed on.
const FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// Prints them for these crates of the workspace, each text once, with the crates that it is of.
pub(crate) fn print(root: &Path, packages: &[String]) -> Result<bool, String> {
    let metadata = tree::metadata(root, &["--locked", "--filter-platform", PLATFORM])?;
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for linked in linked(&metadata, packages)? {
        let files = files_of(&linked)?;
        for file in files {
            let text =
                std::fs::read_to_string(&file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            texts.entry(text).or_default().push(format!("{} {} ({})", linked.name, linked.version, linked.licence));
        }
    }
    for (text, crates) in texts {
        println!("{}\n\n{}\n\n{}\n", crates.join("\n"), text.trim_end(), "-".repeat(80));
    }
    Ok(true)
}

/// A crate of others that is linked in.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Linked {
    name: String,
    version: String,
    licence: String,
    folder: PathBuf,
}

/// What these packages link, however far away: neither what only builds or tests need, nor macros, nor the workspace itself.
fn linked(metadata: &Value, packages: &[String]) -> Result<BTreeSet<Linked>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let is_macro = |package: &Value| {
        list(&package["targets"]).iter().any(|target| list(&target["kind"]).iter().any(|kind| kind == "proc-macro"))
    };
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let mut waiting = Vec::new();
    for name in packages {
        let found = all.iter().find(|(_, package)| package["name"] == **name && package["source"].is_null());
        waiting.push(found.ok_or_else(|| format!("the workspace has no crate {name}"))?.0.clone());
    }
    let (mut seen, mut linked) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = waiting.pop() {
        let Some(package) = all.get(&id).filter(|package| !is_macro(package)) else { continue };
        if !seen.insert(id.clone()) {
            continue;
        }
        if !package["source"].is_null() {
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            linked.insert(Linked {
                name: text(&package["name"]),
                version: text(&package["version"]),
                licence: text(&package["license"]),
                folder: manifest.parent().map(Path::to_owned).unwrap_or_default(),
            });
        }
        let dependencies = nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default();
        let is_linked = |dependency: &&Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        waiting.extend(dependencies.iter().filter(is_linked).map(|dependency| text(&dependency["pkg"])));
    }
    Ok(linked)
}

/// The files that have its licence. Of a choice that has MIT, MIT is taken.
fn files_of(linked: &Linked) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(&linked.folder).map_err(|error| format!("{}: {error}", linked.folder.display()))?;
    let name_of = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file() && FILES.iter().any(|start| name_of(path).starts_with(start)))
        .collect();
    files.sort();
    if linked.licence.contains("MIT")
        && !linked.licence.contains(" AND ")
        && let Some(mit) = files.iter().find(|path| name_of(path).contains("MIT"))
    {
        return Ok(vec![mit.clone()]);
    }
    if files.is_empty() {
        return Err(format!("{} {} brings no text of its licence ({})", linked.name, linked.version, linked.licence));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_found_and_nothing_else() {
        let package = |id: &str, source: Option<&str>, kind: &str| {
            serde_json::json!({ "id": id, "name": id, "version": "1.0.0", "license": "MIT", "source": source,
                "manifest_path": format!("/crates/{id}/Cargo.toml"), "targets": [{ "kind": [kind] }] })
        };
        let edge = |to: &str, kind: Option<&str>| serde_json::json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let metadata = serde_json::json!({
            "packages": [
                package("ours", None, "cdylib"), package("core", None, "lib"), package("a", Some("r"), "lib"),
                package("b", Some("r"), "lib"), package("derive", Some("r"), "proc-macro"), package("tests", Some("r"), "lib"),
            ],
            "resolve": { "nodes": [
                { "id": "ours", "deps": [edge("core", None), edge("tests", Some("dev"))] },
                { "id": "core", "deps": [edge("a", None), edge("derive", None)] },
                { "id": "a", "deps": [edge("b", None), edge("tests", Some("build"))] },
                { "id": "derive", "deps": [edge("tests", None)] },
            ]},
        });
        let found = linked(&metadata, &["ours".to_owned()]).unwrap();
        assert_eq!(found.iter().map(|linked| linked.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found.iter().next().unwrap().folder, Path::new("/crates/a"));
        assert!(linked(&metadata, &["nobody".to_owned()]).is_err());
    }
}
