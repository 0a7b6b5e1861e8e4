//! Runs the measured program under callgrind and reads what each of its instructions cost.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::error::GuardError;
use crate::ends::Folder;
use crate::limited;

/// A case takes a second or two.
const LIMIT: Duration = Duration::from_secs(120);
/// Only what happens inside this function is counted.
const COUNTED: &str = "*counted_rounds*";

/// What one case cost.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Instructions executed at each address of the measured program.
    pub own: BTreeMap<u64, u64>,
    /// Instructions executed in each function of its libraries.
    pub foreign: BTreeMap<String, u64>,
}

impl Costs {
    /// Instructions of the program and its libraries together.
    pub fn sum(&self) -> u64 {
        self.own.values().chain(self.foreign.values()).sum()
    }
}

/// What the measured program says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The kernels it used.
    pub kernels: String,
    /// Blocks of one round.
    pub blocks: u64,
}

/// Runs one case for so many rounds.
pub fn run(program: &Path, case: &str, rounds: u64) -> Result<(Said, Costs), GuardError> {
    let folder = Folder::create().map_err(|error| GuardError::Failed { tool: "valgrind", words: error.to_string() })?;
    let out = folder.path().join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--tool=callgrind",
        "--dump-instr=yes",
        "--dump-line=no",
        "--compress-pos=no",
        "--compress-strings=no",
    ]);
    valgrind.args(["--collect-atstart=no", &format!("--toggle-collect={COUNTED}")]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display())).arg(program).args([case, &rounds.to_string()]);
    let ended =
        limited::run(&mut valgrind, LIMIT).map_err(|source| GuardError::Tool { package: "valgrind", source })?;
    if !ended.status.success() {
        let last: Vec<&str> = ended.complaints.lines().rev().take(30).collect();
        let words = last.into_iter().rev().collect::<Vec<_>>().join("\n");
        return Err(GuardError::Failed { tool: "valgrind", words });
    }
    let text = std::fs::read_to_string(&out).map_err(|source| GuardError::File { path: out, source })?;
    let own = program.canonicalize().map_err(|source| GuardError::File { path: program.to_owned(), source })?;
    Ok((said(&ended.output)?, parse(&text, &own.to_string_lossy())?))
}

/// The version of valgrind.
pub fn version() -> Result<String, GuardError> {
    let ended = limited::run(Command::new("valgrind").arg("--version"), LIMIT);
    let ended = ended.map_err(|source| GuardError::Tool { package: "valgrind", source })?;
    Ok(ended.output.trim().trim_start_matches("valgrind-").to_owned())
}

fn said(output: &str) -> Result<Said, GuardError> {
    let garbled = || GuardError::Malformed { tool: "the measured program", found: output.to_owned() };
    let (kernels, blocks) = output.trim().split_once(' ').ok_or_else(garbled)?;
    Ok(Said { kernels: kernels.to_owned(), blocks: blocks.parse().map_err(|_| garbled())? })
}

/// Reads an output file. Its lines: `ob=` and `fn=` say where the costs after them were; `0x… N` is a cost at an
/// address; a cost after `calls=` is that of the callee, counted there already.
fn parse(text: &str, own: &str) -> Result<Costs, GuardError> {
    let mut costs = Costs::default();
    let (mut is_own, mut function, mut is_callee) = (false, "", false);
    let mut total = None;
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_own = object == own;
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if line.starts_with("calls=") {
            is_callee = true;
        } else if let Some(summary) = line.strip_prefix("summary: ") {
            total = summary.parse::<u64>().ok();
        } else if line.starts_with("0x") && !std::mem::take(&mut is_callee) {
            let garbled = || GuardError::Malformed { tool: "callgrind", found: line.to_owned() };
            let (address, cost) = line.split_once(' ').ok_or_else(garbled)?;
            let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).map_err(|_| garbled())?;
            let cost: u64 = cost.trim().parse().map_err(|_| garbled())?;
            if is_own {
                *costs.own.entry(address).or_default() += cost;
            } else {
                *costs.foreign.entry(function.to_owned()).or_default() += cost;
            }
        }
    }
    let sum = costs.sum();
    if sum == 0 || total != Some(sum) {
        let found = format!("costs that sum up to {sum} and a summary of {total:?}");
        return Err(GuardError::Malformed { tool: "callgrind", found });
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: 1\npositions: instr\nevents: Ir\nsummary: 16\n\nob=/a/program\nfl=???\nfn=main\n0x10 1\n\
                        0x12 2\ncob=/lib/libc.so\ncfn=memcpy\ncalls=1 0x900\n0x12 7\nfn=other\n0x12 4\n\n\
                        ob=/lib/libc.so\nfn=memcpy\n0x900 3\n0x904 4\nob=/a/program\nfn=main\n0x10 2\ntotals: 16\n";

    #[test]
    fn costs_are_summed_by_address_and_callees_are_not_counted_twice() {
        let costs = parse(TEXT, "/a/program").unwrap();
        assert_eq!(costs.own, BTreeMap::from([(0x10, 3), (0x12, 6)]));
        assert_eq!(costs.foreign, BTreeMap::from([("memcpy".to_owned(), 7)]));
    }

    #[test]
    fn a_sum_that_is_not_the_summary_is_noticed() {
        let wrong = TEXT.replace("summary: 16", "summary: 17");
        assert!(matches!(parse(&wrong, "/a/program"), Err(GuardError::Malformed { .. })));
        assert!(parse("summary: 0\n", "/a/program").is_err(), "a function that was never entered");
    }

    #[test]
    fn the_measured_program_says_its_kernels_and_its_blocks() {
        assert_eq!(said("avx2 1000\n").unwrap(), Said { kernels: "avx2".to_owned(), blocks: 1000 });
        assert!(said("").is_err() && said("avx2 many").is_err());
    }
}
