//! `xtask labs`: tests that need root, other users, devices or packages.
//!
//! A lab is an integration test named `lab_…` of one of the crates in [`HOMES`]. It is told to run by `PENSTOCK_LABS=1` and
//! says what it misses as a skip. What it needs of packages is installed first, as root. Labs that run test programs
//! elsewhere, in a guest, find them by the list that `PENSTOCK_PROGRAMS` names; those that can only run there begin with `lab_guest_`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::binaries::{self, Binary};
use super::suite::{notes_file, run_all};
use super::{packages, skips};

/// A crate whose integration tests are labs.
struct Home {
    package: &'static str,
    folder: &'static str,
    /// How the names of its labs begin, where they can be told by it from those of others.
    labs: &'static str,
    /// Crates whose test programs its labs run.
    runs: &'static [&'static str],
}

const HOMES: [Home; 9] = [
    Home { package: "penstock-conformance", folder: "tests/conformance", labs: "lab_", runs: &[] },
    Home { package: "penstock-lab", folder: "bench/lab", labs: "lab_", runs: &[] },
    Home { package: "penstock-wire", folder: "tests/wire", labs: "lab_", runs: &[] },
    // Examples with a device's memory run on the stand-in.
    Home { package: "penstock-cli", folder: "tools/cli", labs: "lab_", runs: &["penstock-cuda-driver"] },
    Home { package: "penstock-verbs-sys", folder: "ffi/verbs-sys", labs: "lab_", runs: &[] },
    Home { package: "penstock-dpdk-shim", folder: "ffi/dpdk-shim", labs: "lab_dpdk_shim", runs: &[] },
    Home { package: "penstock-capi", folder: "ffi/capi", labs: "lab_capi_", runs: &[] },
    Home { package: "penstock-python", folder: "ffi/python", labs: "lab_python_", runs: &[] },
    Home {
        package: "penstock-lab-rdma",
        folder: "tests/labs/rdma",
        labs: "lab_rdma_",
        runs: &["penstock-conformance", "penstock-verbs", "penstock"],
    },
];

/// How the names of labs begin that only make sense in a guest: others start them there.
const IN_A_GUEST: &str = "lab_guest_";

/// Runs every lab, or those whose names begin with `prefix`.
pub(crate) fn labs(root: &Path, prefix: &str) -> Result<bool, String> {
    if !skips::is_root() {
        println!("labs: not running as root; labs that need it will be skipped");
        println!("      to run them all: sudo env \"PATH=$PATH\" \"HOME=$HOME\" make labs");
    }
    packages::provide();
    let shim = dpdk_shim(root);
    let homes = homes_of(prefix);
    let packages = homes.iter().flat_map(|home| home.runs.iter().copied().chain([home.package]));
    let arguments: Vec<&str> = packages.flat_map(|package| ["-p", package]).collect();
    let programs = binaries::build(&mut binaries::cargo(root), &arguments)?;
    let notes = notes_file(root)?;
    let list = Listed::write(&notes.with_extension("programs"), &programs)?;
    let is_home = |program: &&Binary| homes.iter().any(|home| program.folder == root.join(home.folder));
    let labs = programs.iter().filter(|program| program.is_lab() && program.target.starts_with(prefix));
    let labs = labs.filter(|lab| is_home(lab) && !lab.target.starts_with(IN_A_GUEST));
    let mut environment = vec![("PENSTOCK_LABS", "1"), ("PENSTOCK_PROGRAMS", list.name())];
    environment.extend(shim.as_deref().map(|shim| ("PENSTOCK_DPDK_SHIM", shim)));
    Ok(super::conclude(run_all(labs, &notes, &environment)?, true))
}

/// The library between Penstock and DPDK, built as a user builds it; none: DPDK's headers are not here.
fn dpdk_shim(root: &Path) -> Option<String> {
    let succeeds = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let is_built = succeeds(Command::new("pkg-config").args(["--exists", "libdpdk"]))
        && succeeds(Command::new("make").args(["-s", "dpdk"]).current_dir(root).stdout(Stdio::null()));
    is_built.then(|| root.join("target/dpdk/libpenstock-dpdk.so.1").display().to_string())
}

/// The crates that can have labs of which the names begin with `prefix`.
fn homes_of(prefix: &str) -> Vec<&'static Home> {
    // A home with a prefix of its own has all of the labs that begin with it.
    let owner = HOMES.iter().find(|home| home.labs != "lab_" && !prefix.is_empty() && belongs(prefix, home.labs));
    match owner {
        Some(owner) => vec![owner],
        None => HOMES.iter().filter(|home| belongs(prefix, home.labs) || home.labs.starts_with(prefix)).collect(),
    }
}

/// Whether all names that begin with `prefix` begin with `labs`, a last underscore apart.
fn belongs(prefix: &str, labs: &str) -> bool {
    prefix.starts_with(labs.trim_end_matches('_'))
}

/// The list of test programs; gone with this.
struct Listed(PathBuf);

impl Listed {
    fn write(path: &Path, programs: &[Binary]) -> Result<Self, String> {
        let lines: String = programs.iter().map(|program| format!("{}\n", program.as_json())).collect();
        std::fs::write(path, lines).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Self(path.to_owned()))
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // It is in the target folder, where it harms nobody.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages_of(prefix: &str) -> Vec<&'static str> {
        homes_of(prefix).iter().map(|home| home.package).collect()
    }

    #[test]
    fn only_what_can_have_the_labs_is_built() {
        assert_eq!(packages_of("").len(), HOMES.len());
        assert_eq!(packages_of("lab_").len(), HOMES.len());
        assert_eq!(packages_of("lab_rdma"), ["penstock-lab-rdma"]);
        assert_eq!(packages_of("lab_rdma_guest"), ["penstock-lab-rdma"]);
        assert_eq!(packages_of("lab_capi"), ["penstock-capi"]);
        assert_eq!(packages_of("lab_python"), ["penstock-python"]);
        assert_eq!(
            packages_of("lab_tcp"),
            ["penstock-conformance", "penstock-lab", "penstock-wire", "penstock-cli", "penstock-verbs-sys"]
        );
    }
}
