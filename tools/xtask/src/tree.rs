//! The repository as the rules see it: its files, its sources taken apart, its manifests.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::source::{self, Source};

/// A crate of the workspace and what it depends on.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    /// The package's name.
    pub(crate) name: String,
    /// Its folder, from the root.
    pub(crate) folder: String,
    /// Every dependency, of this workspace or not.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a manifest.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    /// The package depended on.
    pub(crate) name: String,
    /// Whether only tests, examples and benches see it.
    pub(crate) dev: bool,
}

/// Everything the rules look at. Built from the disk, or by hand in a rule's own tests.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Every file that is tracked or about to be.
    pub(crate) paths: Vec<String>,
    /// The text of those that are text.
    pub(crate) texts: BTreeMap<String, String>,
    /// The Rust sources among them.
    pub(crate) sources: Vec<Source>,
    /// The crates of the workspace.
    pub(crate) manifests: Vec<Manifest>,
}

impl Tree {
    /// Reads the repository at `root`.
    pub(crate) fn load(root: &Path) -> Result<Self, String> {
        let paths = list(root)?;
        let mut texts = BTreeMap::new();
        for path in &paths {
            let bytes = std::fs::read(root.join(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                texts.insert(path.clone(), text);
            }
        }
        let manifests = manifests(&metadata(root, &["--no-deps"])?, root)?;
        Ok(Self::of(paths, texts, manifests))
    }

    /// A tree of `texts`, with `paths` that may name more files than those.
    pub(crate) fn of(paths: Vec<String>, texts: BTreeMap<String, String>, manifests: Vec<Manifest>) -> Self {
        let mut sources: Vec<Source> = texts
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| Source::new(path, text))
            .collect();
        source::mark_test_files(&mut sources);
        Self { paths, texts, sources, manifests }
    }

    /// A tree made of these files, for the rules' own tests.
    #[cfg(test)]
    pub(crate) fn fixture(files: &[(&str, &str)]) -> Self {
        let texts: BTreeMap<String, String> = files.iter().map(|(p, t)| ((*p).into(), (*t).into())).collect();
        Self::of(texts.keys().cloned().collect(), texts, Vec::new())
    }
}

/// Tracked files and new ones that git does not ignore, as long as they exist.
fn list(root: &Path) -> Result<Vec<String>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run git: {error}; install git, tidy reads the list of files from it"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    let mut paths: Vec<String> =
        names.split('\0').filter(|name| !name.is_empty() && root.join(name).is_file()).map(String::from).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// What `cargo metadata` answers, without touching the network.
pub(crate) fn metadata(root: &Path, more: &[&str]) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(more)
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed; `make setup` fetches the crates it needs\n{}", reason.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata is not JSON: {error}"))
}

/// The workspace's crates out of `cargo metadata --no-deps`.
pub(crate) fn manifests(metadata: &Value, root: &Path) -> Result<Vec<Manifest>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    packages.iter().map(|package| manifest(package, root)).collect()
}

fn manifest(package: &Value, root: &Path) -> Result<Manifest, String> {
    let name = package["name"].as_str().ok_or("a package without a name")?.to_string();
    let path = package["manifest_path"].as_str().ok_or("a package without a path")?;
    let folder = Path::new(path).parent().and_then(|folder| folder.strip_prefix(root).ok());
    let folder = folder.ok_or_else(|| format!("{name} lies outside the repository"))?;
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let dependencies = dependencies.iter().filter_map(|dependency| {
        let name = dependency["name"].as_str()?.to_string();
        Some(Dependency { name, dev: dependency["kind"].as_str() == Some("dev") })
    });
    Ok(Manifest { name, folder: folder.to_string_lossy().into_owned(), dependencies: dependencies.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_knows_its_folder_and_which_dependencies_are_for_tests() {
        let metadata = serde_json::json!({ "packages": [{
            "name": "penstock-ring",
            "manifest_path": "/repo/engine/ring/Cargo.toml",
            "dependencies": [{ "name": "loom", "kind": null }, { "name": "proptest", "kind": "dev" }],
        }]});
        let found = manifests(&metadata, Path::new("/repo")).expect("well formed");
        assert_eq!(found[0].folder, "engine/ring");
        let dev: Vec<_> = found[0].dependencies.iter().map(|d| (d.name.as_str(), d.dev)).collect();
        assert_eq!(dev, [("loom", false), ("proptest", true)]);
    }
}
