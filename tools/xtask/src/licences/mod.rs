//! Every crate we build with may be used the way we use it.
//!
//! Looks at everything `cargo metadata` resolves for the workspace: normal, build and test
//! dependencies, on every platform. Works without a network.

pub(crate) mod notices;
mod spdx;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::tree;

/// Licences that ask for nothing an Apache-2.0 project cannot give.
const ALLOWED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CC0-1.0",
    "BSL-1.0",
    "0BSD",
];

/// A crate whose manifest says nothing, what its licence is, and where that was read.
struct Clarified {
    name: &'static str,
    licence: &'static str,
    #[expect(dead_code, reason = "read by people, when they wonder")]
    reason: &'static str,
}

/// Crates whose manifests name no licence. None is in use at present.
const CLARIFIED: &[Clarified] = &[];

/// Checks every package; says on standard error which may not be used.
pub(crate) fn check(root: &Path) -> Result<bool, String> {
    let metadata = tree::metadata(root, &["--locked"])?;
    let packages = used(&metadata)?;
    let refused: Vec<String> = packages.iter().filter_map(|package| refusal(package, CLARIFIED)).collect();
    for line in &refused {
        eprintln!("{line}");
    }
    if refused.is_empty() {
        println!("licences: {} packages, all of them allowed", packages.len());
    } else {
        eprintln!("licences: {} of {} packages refused", refused.len(), packages.len());
        eprintln!(
            "    mend: use another crate, or clarify the licence in tools/xtask/src/licences/mod.rs with a reason"
        );
    }
    Ok(refused.is_empty())
}

/// One package as the check sees it.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
}

/// The packages that members of the workspace reach.
fn used(metadata: &Value) -> Result<Vec<Package>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(String::from);
    let mut edges: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let id = text(&node["id"]).ok_or("a resolved package without an id")?;
        edges.insert(id, list(&node["dependencies"]).iter().filter_map(text).collect());
    }
    let mut waiting: Vec<String> = list(&metadata["workspace_members"]).iter().filter_map(text).collect();
    if edges.is_empty() || waiting.is_empty() {
        return Err("cargo metadata resolved nothing".into());
    }
    let mut reached = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if reached.insert(id.clone()) {
            waiting.extend(edges.get(&id).cloned().unwrap_or_default());
        }
    }
    let packages = list(&metadata["packages"]).into_iter();
    let packages = packages.filter(|package| text(&package["id"]).is_some_and(|id| reached.contains(&id)));
    packages
        .map(|package| {
            let name = text(&package["name"]).ok_or("a package without a name")?;
            let version = text(&package["version"]).ok_or("a package without a version")?;
            Ok(Package { name, version, licence: text(&package["license"]) })
        })
        .collect()
}

/// Why `package` may not be used, if so.
fn refusal(package: &Package, clarified: &[Clarified]) -> Option<String> {
    let clarification = clarified.iter().find(|known| known.name == package.name).map(|known| known.licence);
    let Package { name, version, licence } = package;
    let Some(licence) = licence.as_deref().or(clarification) else {
        return Some(format!("{name} {version}: its manifest names no licence"));
    };
    match spdx::allows(licence, ALLOWED) {
        Ok(true) => None,
        Ok(false) => Some(format!("{name} {version}: {licence} is not satisfied by the licences we allow")),
        Err(error) => Some(format!("{name} {version}: cannot read its licence {licence:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(licence: Option<&str>) -> Package {
        Package { name: "x".into(), version: "1.0.0".into(), licence: licence.map(String::from) }
    }

    #[test]
    fn allowed_licences_pass_and_others_do_not() {
        assert_eq!(refusal(&package(Some("MIT OR Apache-2.0")), &[]), None);
        for licence in [Some("GPL-3.0"), Some("MIT AND GPL-3.0"), Some("MIT OR"), None] {
            assert!(refusal(&package(licence), &[]).is_some(), "{licence:?}");
        }
    }

    #[test]
    fn a_clarification_speaks_for_a_silent_manifest_only() {
        let clarified = [Clarified { name: "x", licence: "MIT", reason: "its LICENSE file" }];
        assert_eq!(refusal(&package(None), &clarified), None);
        assert!(refusal(&package(Some("GPL-3.0")), &clarified).is_some());
    }

    #[test]
    fn only_what_the_workspace_reaches_is_looked_at() {
        let metadata = serde_json::json!({
            "workspace_members": ["a"],
            "resolve": { "nodes": [
                { "id": "a", "dependencies": ["b"] },
                { "id": "b", "dependencies": [] },
                { "id": "c", "dependencies": [] },
            ]},
            "packages": [
                { "id": "a", "name": "a", "version": "1.0.0", "license": "Apache-2.0" },
                { "id": "b", "name": "b", "version": "1.0.0", "license": null },
                { "id": "c", "name": "c", "version": "1.0.0", "license": "GPL-3.0" },
            ],
        });
        let names: Vec<_> = used(&metadata).expect("well formed").into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(used(&serde_json::json!({})).is_err());
    }
}
