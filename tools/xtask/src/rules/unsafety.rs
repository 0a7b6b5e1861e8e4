//! Unsafe code lives in few folders and always says why it is sound.
//!
//! - In the folders of [`HOME`], each use stands under its reason: `// SAFETY:` for blocks and
//!   impls, a `# Safety` section for functions and traits.
//! - The name of a symbol needs none in `ffi` where it begins with ours: nothing else has it.
//! - Elsewhere the roots of a crate deny it, and this rule finds it where a lint is switched off.
//!   Tests and benches may switch the lint off (`#[allow(unsafe_code)]`), and then owe the reason.

use super::is_under;
use crate::finding::Finding;
use crate::source::Source;
use crate::tree::Tree;

/// Folders that may hold unsafe code: the last is what C would be elsewhere.
const HOME: &[&str] = &["engine/memory", "engine/ring", "engine/backends", "ffi", "tests/cuda-driver"];

/// What the word `unsafe` introduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A block, an impl, an extern block or an attribute: we promise something.
    Promise,
    /// A function or a trait: somebody else has to promise something.
    Demand,
    /// The type of a function pointer: nothing happens here.
    Type,
}

/// Finds unsafe code in the wrong place or without its reason, and crates that do not deny it.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let uses = tree.sources.iter().flat_map(check_uses);
    let roots = tree.sources.iter().filter(|source| is_crate_root(&source.path) && !is_home(&source.path));
    let open = roots.filter(|source| !denies(source)).map(|source| {
        let mend = "add #![forbid(unsafe_code)], or #![deny(unsafe_code)] where tests need to allow a line";
        Finding::of(&source.path, "this crate may not hold unsafe code but does not deny it", mend)
    });
    uses.chain(open).collect()
}

fn is_home(path: &str) -> bool {
    HOME.iter().any(|folder| is_under(path, folder))
}

/// Whether this is where a library or a program begins, as Cargo finds it.
fn is_crate_root(path: &str) -> bool {
    let is_binary = path.rsplit_once('/').is_some_and(|(folder, _)| folder.ends_with("/src/bin"));
    path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || is_binary
}

fn denies(source: &Source) -> bool {
    let mut lines = source.code.iter().map(|line| line.trim_start());
    lines.any(|line| (line.starts_with("#![forbid(") || line.starts_with("#![deny(")) && line.contains("unsafe_code"))
}

fn check_uses(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_allowed = false;
    let is_bench = is_under(&source.path, "bench") || source.path.contains("/benches/");
    for (index, column, word) in source.words() {
        let may_allow = is_bench || source.in_test(index) || is_home(&source.path);
        if word == "unsafe_code"
            && ["allow(", "expect("].iter().any(|lint| source.code[index][..column].ends_with(lint))
        {
            is_allowed = true;
            if !may_allow {
                findings.push(misplaced(source, index, "allowing unsafe code outside the folders that may hold it"));
            }
        }
        if word != "unsafe" {
            continue;
        }
        let after = source.code_after(index, column + word.len());
        let used = classify(&after);
        if used == Use::Type || is_under(&source.path, "ffi") && names_our_symbol(&after) {
            continue;
        }
        if !is_home(&source.path) && !may_allow {
            findings.push(misplaced(source, index, "unsafe code outside the folders that may hold it"));
        } else if !is_home(&source.path) && !is_allowed {
            let mend = "put #[allow(unsafe_code)] on the item, so that the exception is visible";
            findings.push(Finding::at(
                &source.path,
                index,
                "unsafe code in a test or bench that does not allow it",
                mend,
            ));
        } else if !has_reason(source, index, used) {
            let (wrong, mend) = reason_words(used);
            findings.push(Finding::at(&source.path, index, wrong, mend));
        }
    }
    findings
}

fn misplaced(source: &Source, index: usize, wrong: &str) -> Finding {
    let mend = format!("find a safe way, or move it into one of: {}", HOME.join(" "));
    Finding::at(&source.path, index, wrong, mend)
}

fn reason_words(used: Use) -> (&'static str, &'static str) {
    match used {
        Use::Demand => {
            ("unsafe function or trait without a `# Safety` section", "say there what the caller has to guarantee")
        }
        Use::Promise | Use::Type => {
            ("unsafe without its reason", "put `// SAFETY:` directly above: which invariant, and who keeps it")
        }
    }
}

/// Whether it is the attribute of a function whose symbol begins with our name.
fn names_our_symbol(after: &str) -> bool {
    let item = after.strip_prefix("(no_mangle)]").map(str::trim_start);
    item.and_then(|item| item.split_once("fn "))
        .is_some_and(|(before, name)| !before.contains(['{', ';', '#']) && name.starts_with("penstock_"))
}

/// What `unsafe` introduces, from the code that follows it.
fn classify(after: &str) -> Use {
    let mut rest = after.trim_start();
    if let Some(foreign) = rest.strip_prefix("extern") {
        let abi_end = foreign.trim_start().strip_prefix('"').and_then(|abi| abi.split_once('"'));
        rest = abi_end.map_or(foreign, |(_, behind)| behind).trim_start();
    }
    match rest.strip_prefix("fn") {
        Some(function) if function.trim_start().starts_with('(') => Use::Type,
        Some(function) if function.starts_with(char::is_whitespace) => Use::Demand,
        _ if rest.starts_with("trait ") || rest.starts_with("auto trait ") => Use::Demand,
        _ => Use::Promise,
    }
}

fn has_reason(source: &Source, index: usize, used: Use) -> bool {
    let comments = source.comments_about(index);
    let says = |what: &str| comments.iter().any(|comment| comment.contains(what));
    match used {
        // What a method of a trait demands is said once, at the trait.
        Use::Demand => says("# Safety") || source.is_in_trait_impl(index),
        Use::Promise | Use::Type => says("SAFETY:"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    const GOOD: &str = "\
// unsafe in a comment
let s = \"unsafe {}\";
// SAFETY: the pool outlives the block, which the borrow keeps.
let x = unsafe { *p };
let y = unsafe { *p }; // SAFETY: as above.
// SAFETY: the fields are plain integers.
// They have no interior pointers.
#[rustfmt::skip]
unsafe impl Send for X {}
// SAFETY: the statement below is longer than a line.
let z = call(
    a,
    unsafe { *p },
);
/// Reads it.
///
/// # Safety
///
/// `p` points to a byte.
pub unsafe fn read(p: *const u8) {}
impl Lines for Avx {
    unsafe fn stream(p: *const u8) {}
}
type Callback = unsafe fn(u8);
type Foreign = unsafe extern \"C\" fn(u8);
";

    const BAD: &str = "\
let x = unsafe { *p };
// SAFETY: for the next line only.
unsafe impl Send for X {}
unsafe impl Sync for X {}
/// Reads it, without saying what it needs.
pub unsafe fn read(p: *const u8) {}
unsafe trait Stable {}
unsafe extern \"C\" {
}
#[unsafe(no_mangle)]
fn f() {}
";

    #[test]
    fn every_use_has_its_reason() {
        assert_rule(check, &[("engine/memory/src/a.rs", GOOD)], &[("engine/memory/src/a.rs", BAD)], 6);
    }

    #[test]
    fn symbols_of_ours_need_no_reason() {
        let ours = "#[unsafe(no_mangle)]\npub extern \"C\" fn penstock_abi() {}\n";
        let others = "#[unsafe(no_mangle)]\npub extern \"C\" fn malloc() {}\n";
        assert_rule(
            check,
            &[("ffi/capi/src/a.rs", ours)],
            &[("ffi/capi/src/b.rs", others), ("engine/ring/src/a.rs", ours)],
            2,
        );
    }

    #[test]
    fn unsafe_code_stays_at_home() {
        let reasoned = "// SAFETY: p is valid.\nlet x = unsafe { *p };\n";
        let fails = [("engine/transport/src/a.rs", reasoned), ("engine/runtime/src/b.rs", "#![allow(unsafe_code)]\n")];
        assert_rule(check, &[("engine/backends/shm/src/a.rs", reasoned)], &fails, 2);
    }

    #[test]
    fn tests_and_benches_may_allow_it_with_a_reason() {
        let allowed = "#[allow(unsafe_code)]\nfn f() {\n    // SAFETY: p is valid.\n    unsafe { *p };\n}\n";
        let silent = "fn f() {\n    // SAFETY: p is valid.\n    unsafe { *p };\n}\n";
        let unreasoned = "#[allow(unsafe_code)]\nfn f() {\n    unsafe { *p };\n}\n";
        assert_rule(
            check,
            &[("bench/lab/src/a.rs", allowed), ("tests/conformance/tests/a.rs", allowed)],
            &[("bench/lab/src/a.rs", silent), ("tests/conformance/tests/a.rs", unreasoned)],
            2,
        );
    }

    #[test]
    fn crates_outside_deny_it_at_their_root() {
        let passes = [
            ("engine/core/src/lib.rs", "//! Core.\n#![forbid(unsafe_code)]\n"),
            ("bench/lab/src/bin/x.rs", "#![deny(unsafe_code)]\n"),
            ("engine/ring/src/lib.rs", "//! Ring.\n"),
        ];
        let fails = [
            ("engine/core/src/lib.rs", "// #![forbid(unsafe_code)]\n"),
            ("tools/cli/src/main.rs", ""),
            ("tools/cli/src/bin/x.rs", "#![warn(unsafe_code)]\n"),
        ];
        assert_rule(check, &passes, &fails, 3);
    }
}
