//! Skips: which tests did not run, why, and whether that excuse is true.
//!
//! A test that finds at run time that it cannot run appends one line, `<test>: <reason>`, to the
//! file named by the environment variable `PENSTOCK_SKIPS`, and returns. A reason may begin with
//! `needs <requirement>`: `needs root`, `needs command:<name>`, `needs path:<path>`, then
//! optionally a comma or a semicolon and more words. Those are looked at: where everything must
//! run, a test that was skipped for want of something that is there has failed.

use std::fmt;
use std::path::Path;

/// One test that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    /// The test's name.
    pub(crate) test: String,
    /// Why it did not run.
    pub(crate) reason: String,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SKIPPED {}: {}", self.test, self.reason)
    }
}

/// What a machine has, as far as a reason for a skip can name it.
pub(crate) trait Machine {
    /// Whether `requirement` is met here; `None` if it is not one that can be looked at.
    fn meets(&self, requirement: &str) -> Option<bool>;
}

/// The machine this runs on.
pub(crate) struct ThisMachine;

impl Machine for ThisMachine {
    fn meets(&self, requirement: &str) -> Option<bool> {
        match requirement.split_once(':') {
            None if requirement == "root" => Some(is_root()),
            Some(("command", name)) => Some(finds_command(name)),
            Some(("path", path)) => Some(Path::new(path).exists()),
            _ => None,
        }
    }
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|uids| uids.split_whitespace().nth(1)).is_some_and(|effective| effective == "0")
}

/// Whether a folder of PATH has a program of this name.
pub(crate) fn finds_command(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Whether every test that could run has to: in CI, or when asked for.
pub(crate) fn all_required() -> bool {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"));
    is_set("CI") || is_set("PENSTOCK_REQUIRE_ALL")
}

/// The skips that tests wrote down.
pub(crate) fn parse_file(text: &str) -> Vec<Skip> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("SKIPPED ")).filter(|line| !line.is_empty());
    let skips = lines.map(|line| {
        let (test, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
        Skip { test: test.into(), reason: reason.into() }
    });
    skips.collect()
}

/// The skip in a harness line like `test a::b ... ignored, needs root`.
pub(crate) fn parse_ignored(line: &str) -> Option<Skip> {
    let (test, outcome) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = outcome.trim_start_matches([',', ' ']);
    let reason = if reason.is_empty() { "no reason given" } else { reason };
    Some(Skip { test: test.into(), reason: reason.into() })
}

/// Whether a test skipped for `reason` could have run on `machine` after all. In a lab, a reason
/// that cannot be looked at counts as one that could: a lab is there to be run.
pub(crate) fn could_have_run(reason: &str, is_lab: bool, machine: &impl Machine) -> bool {
    if reason.starts_with("known: ") {
        return false; // It was run, and what was found is a fault of somebody else's.
    }
    let requirement = reason.strip_prefix("needs ").and_then(|rest| rest.split([' ', ',', ';']).next());
    requirement.and_then(|requirement| machine.meets(requirement)).unwrap_or(is_lab)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct WithRootOnly;

    impl Machine for WithRootOnly {
        fn meets(&self, requirement: &str) -> Option<bool> {
            match requirement {
                "root" => Some(true),
                "command:qemu" => Some(false),
                _ => None,
            }
        }
    }

    #[test]
    fn skips_are_read_with_their_reasons() {
        let skips = parse_file("a::b: needs root: for setuid\nSKIPPED c: no AVX-512 here\n\nd\n");
        let texts: Vec<String> = skips.iter().map(Skip::to_string).collect();
        let expected =
            ["SKIPPED a::b: needs root: for setuid", "SKIPPED c: no AVX-512 here", "SKIPPED d: no reason given"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn ignored_tests_are_skips() {
        let skip = parse_ignored("test a::b ... ignored, takes an hour").expect("an ignored test");
        assert_eq!((skip.test.as_str(), skip.reason.as_str()), ("a::b", "takes an hour"));
        assert_eq!(parse_ignored("test a::b ... ok"), None);
    }

    #[test]
    fn an_excuse_is_believed_only_if_it_is_true() {
        for (reason, is_lab, could) in [
            ("needs root", true, true),
            ("needs root, to become another user", false, true),
            ("needs command:qemu; install it", true, false),
            ("felt like it", true, true),
            ("no AVX-512 here", false, false),
            ("known: a library's process died", true, false),
        ] {
            assert_eq!(could_have_run(reason, is_lab, &WithRootOnly), could, "{reason}");
        }
    }

    #[test]
    fn this_machine_knows_its_paths_and_commands() {
        assert_eq!(ThisMachine.meets("path:/proc/self"), Some(true));
        assert_eq!(ThisMachine.meets("path:/nowhere/at/all"), Some(false));
        assert_eq!(ThisMachine.meets("command:no-such-command-anywhere"), Some(false));
        assert_eq!(ThisMachine.meets("patience"), None);
    }
}
