//! A metric that needs devices which this machine lacks, measured in a virtual machine of the RDMA labs that has them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Effort, Row};
use crate::peers::run_within;

/// What boots the machine: `penstock-guest`, beside this program.
const PROGRAM: &str = "penstock-guest";
/// The machine emulates its processors: it boots in ten seconds and measures for minutes.
const MEASURES_WITHIN: Duration = Duration::from_secs(1500);

/// A soft device works by threads of the kernel, which may run on any core, and everybody's figures depend on which. They
/// are kept on the core of everybody's target.
const ON_THE_FIRST_CORE: &str = "echo 1 >/sys/devices/virtual/workqueue/cpumask && exec \"$0\" \"$@\"";
const BOOTS_WITHIN: Duration = Duration::from_secs(240);

/// Measures the metric there. Otherwise why not, in words.
pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's own file is not known: {error}"))?;
    let guest = beside(&own).ok_or_else(|| {
        format!("no RDMA devices are here, and no {PROGRAM}: `cargo build --release -p penstock-lab-rdma` makes it")
    })?;
    let within = MEASURES_WITHIN.as_secs().to_string();
    let own = own.to_string_lossy();
    let mut words = vec!["run", "--rails", "1", "--within", &within, "--", "sh", "-c", ON_THE_FIRST_CORE, &own];
    words.extend(["scoreboard", "--only", "M10", "--json", "--no-peers"]);
    if effort.quick {
        words.push("--quick");
    }
    effort.tell("in a guest, which takes about fifteen minutes, or two if it is quick");
    let said = run_within(&guest, &words, MEASURES_WITHIN + BOOTS_WITHIN).map_err(|error| error.to_string())?;
    read(&said)
}

fn beside(own: &Path) -> Option<PathBuf> {
    own.ancestors().skip(1).take(2).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file())
}

fn read(said: &str) -> Result<Vec<Row>, String> {
    let rows: Result<Vec<Row>, _> =
        said.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str).collect();
    match rows {
        Ok(rows) if rows.is_empty() => Err("the guest measured nothing".to_owned()),
        Ok(rows) => Ok(rows.into_iter().map(|row| row.noted("in an emulated machine: only ratios count")).collect()),
        Err(error) => Err(format!("what the guest said is no row: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::row::Goal;

    #[test]
    fn rows_are_taken_from_what_else_is_said() {
        let row = Row::compared("verbs", (&[2e3], "us", 1e3), ("x", &[2e3]), Goal::RatioAtMost(1.05));
        let text = format!("a warning\n{}\n", serde_json::to_string(&row).unwrap());
        let rows = read(&text).unwrap();
        assert_eq!((rows.len(), rows[0].met), (1, Some(true)));
        assert!(rows[0].note.starts_with("in an emulated machine"), "{}", rows[0].note);
        assert!(read("nothing\n").is_err());
        assert!(read("{\"id\": 1}\n").is_err());
    }

    #[test]
    fn what_is_not_beside_this_program_is_not_found() {
        assert_eq!(beside(Path::new("/nowhere/deps/program")), None);
    }
}
