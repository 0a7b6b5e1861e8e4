//! Who may depend on whom: arrows point down only, in manifests and in sources.
//!
//! ```text
//! tools/cli ──► bench/lab ──► bench/micro, tools/doctor     tests/conformance ──► tests/wire
//!        \         |         /
//!           engine/runtime
//!          /       |       \
//!         /        |      flows
//!        /         |         |
//!    backends      |      session          backends never know session, nor session them
//!        |         |         |
//!     transport ───┘         |
//!      |     |               |
//!   memory  ring             |
//!        \   |               |
//!           core ────────────┘
//! ```

use super::is_under;
use crate::finding::Finding;
use crate::source::Source;
use crate::tree::{Manifest, Tree};

/// A crate of the workspace and its place in the picture.
struct Place {
    name: &'static str,
    folder: &'static str,
    /// Crates of this workspace it may depend on.
    may_use: &'static [&'static str],
    /// Crates that its tests may use on top of those.
    tests_may_use: &'static [&'static str],
}

const fn place(name: &'static str, folder: &'static str, may_use: &'static [&'static str]) -> Place {
    Place { name, folder, may_use, tests_may_use: &[] }
}

const TRANSPORTS_MAY_USE: &[&str] = &["penstock-core", "penstock-memory", "penstock-ring", "penstock-transport"];

const ENGINE: &[&str] = &[
    "penstock-core",
    "penstock-memory",
    "penstock-ring",
    "penstock-transport",
    "penstock-session",
    "penstock-flows",
    "penstock-local",
    "penstock-cuda",
    "penstock-shm",
    "penstock-tcp",
    "penstock-verbs",
    "penstock-datagram-transport",
];

/// The lab runs the micro-benches beside everything else.
const LAB: &[&str] = &[
    "penstock",
    "penstock-core",
    "penstock-memory",
    "penstock-ring",
    "penstock-transport",
    "penstock-session",
    "penstock-flows",
    "penstock-local",
    "penstock-datagram-transport",
    "penstock-shm",
    "penstock-tcp",
    "penstock-verbs",
    "penstock-micro",
];

/// What measures the engine's parts, or attacks them, may name any of them.
const ALL: &[&str] = &[
    "penstock",
    "penstock-core",
    "penstock-memory",
    "penstock-ring",
    "penstock-transport",
    "penstock-datagram",
    "penstock-session",
    "penstock-flows",
    "penstock-local",
    "penstock-shm",
    "penstock-tcp",
    "penstock-verbs",
    "penstock-datagram-transport",
];

/// The simulation has devices in itself.
const SIMULATION: &[&str] =
    &["penstock", "penstock-core", "penstock-datagram", "penstock-datagram-transport", "penstock-cuda-driver"];

/// The labs also try the doctor in places that only root can make.
const CONFORMANCE: &[&str] = &[
    "penstock",
    "penstock-core",
    "penstock-cuda-driver",
    "penstock-memory",
    "penstock-ring",
    "penstock-transport",
    "penstock-session",
    "penstock-flows",
    "penstock-local",
    "penstock-shm",
    "penstock-tcp",
    "penstock-verbs",
    "penstock-doctor",
];

/// The picture as a table. A new crate is added here and in the picture above.
const PLACES: &[Place] = &[
    // Foreign interfaces know nothing of ours.
    place("penstock-loader", "ffi/loader", &[]),
    place("penstock-cuda-sys", "ffi/cuda-sys", &["penstock-loader"]),
    place("penstock-dpdk-shim", "ffi/dpdk-shim", &["penstock-loader"]),
    place("penstock-verbs-sys", "ffi/verbs-sys", &["penstock-loader"]),
    place("penstock-core", "engine/core", &[]),
    place("penstock-ring", "engine/ring", &["penstock-core"]),
    place("penstock-memory", "engine/memory", &["penstock-core", "penstock-ring"]),
    place("penstock-transport", "engine/transport", &["penstock-core", "penstock-memory", "penstock-ring"]),
    place("penstock-datagram", "engine/datagram", &["penstock-core", "penstock-transport"]),
    place("penstock-session", "engine/session", &["penstock-core"]),
    place("penstock-flows", "engine/flows", &["penstock-core", "penstock-session"]),
    place("penstock-local", "engine/backends/local", TRANSPORTS_MAY_USE),
    place("penstock-shm", "engine/backends/shm", TRANSPORTS_MAY_USE),
    place(
        "penstock-datagram-transport",
        "engine/backends/datagram",
        &[
            "penstock-core",
            "penstock-memory",
            "penstock-ring",
            "penstock-transport",
            "penstock-datagram",
            "penstock-dpdk-shim",
        ],
    ),
    place(
        "penstock-cuda",
        "engine/backends/cuda",
        &["penstock-core", "penstock-memory", "penstock-ring", "penstock-transport", "penstock-cuda-sys"],
    ),
    place("penstock-tcp", "engine/backends/tcp", TRANSPORTS_MAY_USE),
    place(
        "penstock-verbs",
        "engine/backends/verbs",
        &["penstock-core", "penstock-memory", "penstock-ring", "penstock-transport", "penstock-verbs-sys"],
    ),
    place("penstock", "engine/runtime", ENGINE),
    // What C sees: handles are a table of `ring`.
    place("penstock-capi", "ffi/capi", &["penstock", "penstock-ring"]),
    // Opens the C library at run time, and knows it by its header only.
    place("penstock-python", "ffi/python", &[]),
    place("penstock-micro", "bench/micro", ALL),
    place("penstock-lab", "bench/lab", LAB),
    // Looks whether the libraries open, and which cards would be used, in the way in which the transport will.
    place(
        "penstock-doctor",
        "tools/doctor",
        &["penstock", "penstock-cuda", "penstock-dpdk-shim", "penstock-verbs", "penstock-verbs-sys"],
    ),
    // Its labs are between two hosts, and its doctor looks at a stand-in for a driver.
    Place {
        tests_may_use: &["penstock-cuda-driver", "penstock-wire"],
        ..place("penstock-cli", "tools/cli", &["penstock", "penstock-doctor", "penstock-lab"])
    },
    // Labs are tests of this crate; one of them runs the engines of others as the lab does, and one asks DPDK what is left in it.
    Place {
        tests_may_use: &["penstock-dpdk-shim", "penstock-lab", "penstock-wire"],
        ..place("penstock-conformance", "tests/conformance", CONFORMANCE)
    },
    place("penstock-faults", "tests/faults", ALL),
    place("penstock-simulation", "tests/sim", SIMULATION),
    place("penstock-fuzz", "tests/fuzz", ALL),
    // Stands in for the driver, and knows nothing of engines; its tests ask it as they ask a real one.
    Place {
        tests_may_use: &["penstock", "penstock-core", "penstock-cuda", "penstock-loader", "penstock-verbs"],
        ..place("penstock-cuda-driver", "tests/cuda-driver", &["penstock-cuda-sys"])
    },
    // Knows frames, not engines: labs of any crate may put it between theirs.
    place("penstock-wire", "tests/wire", &[]),
    // Knows guests, not engines: what runs in them are programs of others.
    place("penstock-lab-rdma", "tests/labs/rdma", &[]),
    place("xtask", "tools/xtask", &[]),
];

/// Finds dependencies and paths that point up or sideways.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.manifests.iter().flat_map(|manifest| check_manifest(manifest, tree));
    let sources = tree.sources.iter().flat_map(check_source);
    manifests.chain(sources).collect()
}

fn check_manifest(manifest: &Manifest, tree: &Tree) -> Vec<Finding> {
    let path = format!("{}/Cargo.toml", manifest.folder);
    let known = PLACES.iter().find(|place| place.name == manifest.name && place.folder == manifest.folder);
    let Some(place) = known else {
        let wrong = format!("crate {} in {} has no place in the dependency picture", manifest.name, manifest.folder);
        return vec![Finding::of(
            &path,
            wrong,
            "add it to PLACES in tools/xtask/src/rules/arrows.rs, as low as it fits",
        )];
    };
    let ours = manifest.dependencies.iter().filter(|dependency| is_ours(&dependency.name));
    let upward = ours.filter(|dependency| !may_use(place, &dependency.name, dependency.dev));
    upward
        .map(|dependency| {
            let text = tree.texts.get(&path).map_or("", String::as_str);
            let line = text.lines().position(|line| line.trim_start().starts_with(&dependency.name)).unwrap_or(0);
            Finding::at(&path, line, upward_words(place, &dependency.name), MEND)
        })
        .collect()
}

const MEND: &str = "move what is needed into a crate below both, or pass it in from above as a trait or an argument";

fn upward_words(place: &Place, other: &str) -> String {
    format!("{} may not depend on {other}: the arrow points up or sideways", place.name)
}

fn check_source(source: &Source) -> Vec<Finding> {
    let Some(place) = PLACES.iter().find(|place| is_under(&source.path, place.folder)) else { return Vec::new() };
    let mut findings = Vec::new();
    for (index, column, word) in source.words() {
        if !word.starts_with("penstock") {
            continue;
        }
        let name = word.replace('_', "-");
        let line = &source.code[index];
        let is_path = line[column + word.len()..].trim_start().starts_with("::") && !line[..column].ends_with("::");
        let is_import = ["use", "crate"].iter().any(|keyword| line[..column].trim_end().ends_with(keyword));
        if is_ours(&name) && (is_path || is_import) && !may_use(place, &name, source.in_test(index)) {
            findings.push(Finding::at(&source.path, index, upward_words(place, &name), MEND));
        }
    }
    findings
}

fn is_ours(name: &str) -> bool {
    PLACES.iter().any(|place| place.name == name)
}

fn may_use(place: &Place, name: &str, in_test: bool) -> bool {
    place.name == name || place.may_use.contains(&name) || (in_test && place.tests_may_use.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;
    use crate::tree::Dependency;

    fn tree_with(name: &str, folder: &str, uses: &[(&str, bool)]) -> Tree {
        let dependencies = uses.iter().map(|(name, dev)| Dependency { name: (*name).into(), dev: *dev }).collect();
        Tree { manifests: vec![Manifest { name: name.into(), folder: folder.into(), dependencies }], ..Tree::default() }
    }

    #[test]
    fn manifests_point_down() {
        let down = [("penstock-core", false), ("penstock-ring", false), ("proptest", true)];
        assert_eq!(check(&tree_with("penstock-transport", "engine/transport", &down)), []);
        for (name, folder, up) in [
            ("penstock-core", "engine/core", "penstock-memory"),
            ("penstock-ring", "engine/ring", "penstock-memory"),
            ("penstock-shm", "engine/backends/shm", "penstock-session"),
            ("penstock-shm", "engine/backends/shm", "penstock-local"),
            ("penstock-session", "engine/session", "penstock-transport"),
            ("penstock", "engine/runtime", "penstock-lab"),
            ("penstock-cli", "tools/cli", "penstock-core"),
            ("xtask", "tools/xtask", "penstock-core"),
        ] {
            for dev in [false, true] {
                assert_eq!(check(&tree_with(name, folder, &[(up, dev)])).len(), 1, "{name} on {up}");
            }
        }
    }

    #[test]
    fn a_crate_without_a_place_is_refused() {
        assert_eq!(check(&tree_with("penstock-new", "engine/new", &[])).len(), 1);
        assert_eq!(check(&tree_with("penstock-core", "engine/elsewhere", &[])).len(), 1);
    }

    #[test]
    fn sources_point_down() {
        let down = "// penstock_session::Frame\nuse penstock_core::Cause;\nlet s = \"penstock_session::x\";\n";
        let up = "use penstock_session::Frame;\nfn f(x: penstock::Engine) {}\nuse penstock_core as core;\n";
        assert_rule(check, &[("engine/backends/shm/src/a.rs", down)], &[("engine/backends/shm/src/a.rs", up)], 2);
    }

    #[test]
    fn the_picture_has_no_cycle() {
        fn depth(name: &str, above: usize) -> usize {
            assert!(above < PLACES.len(), "a cycle through {name}");
            let place = PLACES.iter().find(|place| place.name == name).expect("every name in the table is a place");
            place.may_use.iter().map(|below| depth(below, above + 1)).max().unwrap_or(above)
        }
        for place in PLACES {
            depth(place.name, 0);
        }
    }
}
