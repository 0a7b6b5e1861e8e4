//! Which part of the hot path an instruction belongs to.
//!
//! The compiler moves functions into each other, so the function that an instruction stands in says little. Its debug
//! information knows better: `addr2line -i` names the function it was written in and every one that was inlined
//! around it. The innermost of them that is named in the table below decides; helpers that many use are not named there.
//!
//! What is the copy, and left out: everything inside the kernels (`copy/cached.rs`, `copy/streaming.rs`, `copy/x86.rs`)
//! with their walk over the spans, and the C library's `memcpy` and `memmove`. Looking at bounds and choosing a kernel
//! is no part of it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::callgrind::Costs;
use super::error::GuardError;
use crate::ends::Folder;
use crate::limited;

/// Looking up some thousand addresses takes a second.
const LIMIT: Duration = Duration::from_secs(120);

/// A part of the hot path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// From the plan to spans.
    Expansion,
    /// The look at the bounds, and the choice of a kernel.
    Bounds,
    /// The lane: hazard, revisions.
    Post,
    /// Submission, the worker's turns, claims and the end of a transfer.
    Worker,
    /// Telling the peer.
    Notify,
    /// Nothing of the above: the caller's loop and what the system's libraries do.
    Other,
    /// The copy itself, which is not counted.
    Copy,
}

/// Parts of the names of files, and of functions where they decide; the first that fits.
const TABLE: &[(&str, &str, Stage)] = &[
    ("engine/memory/src/copy/cached.rs", "", Stage::Copy),
    ("engine/memory/src/copy/streaming.rs", "", Stage::Copy),
    ("engine/memory/src/copy/x86.rs", "", Stage::Copy),
    ("engine/memory/src/copy/", "", Stage::Bounds),
    ("engine/core/src/plan/", "", Stage::Expansion),
    ("engine/transport/src/host/lane.rs", "notify", Stage::Notify),
    ("engine/transport/src/host/mailbox.rs", "increment_counter", Stage::Notify),
    ("engine/transport/src/host/lane.rs", "push", Stage::Notify),
    ("engine/transport/src/record.rs", "", Stage::Notify),
    ("engine/transport/src/host/mailbox.rs", "", Stage::Notify),
    ("engine/runtime/src/worker/advance.rs", "notify", Stage::Notify),
    ("engine/ring/src/counter.rs", "", Stage::Notify),
    ("engine/transport/", "", Stage::Post),
    ("engine/backends/", "", Stage::Post),
    ("engine/ring/src/gate/", "", Stage::Post),
    ("engine/runtime/", "", Stage::Worker),
    ("engine/ring/src/slab.rs", "", Stage::Worker),
    ("engine/ring/src/mpsc.rs", "", Stage::Worker),
    ("engine/ring/src/ready.rs", "", Stage::Worker),
    ("engine/ring/src/thread_bound.rs", "", Stage::Worker),
];

/// Instructions by stage.
pub type Counted = BTreeMap<Stage, u64>;

/// A function, as `addr2line` names it, and its file.
type Frame = (String, String);

/// Deals every cost to its stage.
pub fn split(program: &Path, costs: &Costs) -> Result<Counted, GuardError> {
    let frames = look_up(program, costs.own.keys().copied())?;
    let mut counted = Counted::new();
    for (address, cost) in &costs.own {
        let stage = frames.get(address).map_or(Stage::Other, |frames| stage_of(frames));
        *counted.entry(stage).or_default() += cost;
    }
    for (function, cost) in &costs.foreign {
        let is_copy = function.contains("memcpy") || function.contains("memmove");
        *counted.entry(if is_copy { Stage::Copy } else { Stage::Other }).or_default() += cost;
    }
    Ok(counted)
}

/// The stage of an instruction with these functions around it, the innermost first.
fn stage_of(frames: &[Frame]) -> Stage {
    let rule = |(function, file): &Frame| {
        let fits = |(path, name, _): &&(&str, &str, Stage)| file.contains(path) && function.contains(name);
        TABLE.iter().find(fits).map(|&(.., stage)| stage)
    };
    // A kernel's walk over the spans is written elsewhere and is the kernel's all the same.
    if frames.iter().any(|frame| rule(frame) == Some(Stage::Copy)) {
        return Stage::Copy;
    }
    frames.iter().find_map(rule).unwrap_or(Stage::Other)
}

fn look_up(program: &Path, addresses: impl Iterator<Item = u64>) -> Result<HashMap<u64, Vec<Frame>>, GuardError> {
    let folder =
        Folder::create().map_err(|error| GuardError::Failed { tool: "addr2line", words: error.to_string() })?;
    let list = folder.path().join("addresses");
    let text: String = addresses.map(|address| format!("{address:#x}\n")).collect();
    std::fs::write(&list, text).map_err(|source| GuardError::File { path: list.clone(), source })?;
    let mut tool = Command::new("addr2line");
    tool.args(["--addresses", "--functions", "--inlines", "--exe"]).arg(program).arg(format!("@{}", list.display()));
    let ended = limited::run(&mut tool, LIMIT).map_err(|source| GuardError::Tool { package: "binutils", source })?;
    if !ended.status.success() {
        return Err(GuardError::Failed { tool: "addr2line", words: ended.complaints });
    }
    Ok(parse(&ended.output))
}

/// An address stands in a line of its own; then come a function and its place, two lines each, from the inside out.
fn parse(output: &str) -> HashMap<u64, Vec<Frame>> {
    let mut all = HashMap::new();
    let mut frames: Option<&mut Vec<Frame>> = None;
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        let address = line.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        match (address, &mut frames) {
            (Some(address), _) => frames = Some(all.entry(address).or_default()),
            (None, Some(frames)) => {
                let place = lines.next().unwrap_or_default();
                frames.push((line.to_owned(), place.to_owned()));
            }
            (None, None) => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(places: &[(&str, &str)]) -> Vec<Frame> {
        places.iter().map(|&(function, file)| (function.to_owned(), file.to_owned())).collect()
    }

    #[test]
    fn the_innermost_named_file_decides_and_a_kernel_takes_all_inside_it() {
        let core = ("next", "/rustc/x/library/core/src/slice/iter.rs:1");
        let bounds = ("check_bounds", "/x/engine/memory/src/copy/batch.rs:100");
        let post = ("post", "/x/engine/transport/src/host/lane.rs:205");
        assert_eq!(stage_of(&frames(&[core, bounds, post])), Stage::Bounds);
        let kernel = ("copy", "/x/engine/memory/src/copy/cached.rs:20");
        assert_eq!(stage_of(&frames(&[core, bounds, kernel])), Stage::Copy);
        assert_eq!(stage_of(&frames(&[("count", "/x/engine/ring/src/sync.rs:1"), post])), Stage::Post);
        assert_eq!(stage_of(&frames(&[("_ZN…6notify17h", "/x/engine/transport/src/host/lane.rs:2")])), Stage::Notify);
        assert_eq!(stage_of(&frames(&[core])), Stage::Other);
    }

    #[test]
    fn places_are_read_from_the_inside_out() {
        let output =
            "0x0000000000000010\ninner\n/a/b.rs:1\nouter\n/a/c.rs:2 (discriminator 3)\n0x0000000000000012\n??\n??:0\n";
        let all = parse(output);
        assert_eq!(all[&0x10], frames(&[("inner", "/a/b.rs:1"), ("outer", "/a/c.rs:2 (discriminator 3)")]));
        assert_eq!(stage_of(&all[&0x12]), Stage::Other);
    }

    #[test]
    fn every_file_of_the_table_is_in_the_repository() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        for (path, ..) in TABLE {
            assert!(root.join(path).exists(), "{path} is gone; the table of stages has to follow");
        }
    }
}
