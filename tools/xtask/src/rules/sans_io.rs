//! Control logic never reads a clock or a random source, never opens a socket or starts a thread:
//! time and bytes are its arguments. That is what lets a simulator run it.

use super::is_under;
use crate::finding::Finding;
use crate::source::words;
use crate::tree::Tree;

/// Folders whose code is pure.
const PURE: &[&str] = &["engine/core", "engine/session", "engine/flows", "engine/datagram"];

/// The file that names the outside world, so that everybody else need not.
const DOOR: &str = "engine/core/src/env.rs";

const WORLD: &[&str] =
    &["Instant", "SystemTime", "TcpStream", "TcpListener", "UdpSocket", "UnixStream", "UnixListener"];

/// Modules of the standard library, told by their path.
const MODULES: &[&str] = &["std::thread", "std::net", "std::os::unix::net", "std::process"];

/// Finds clocks, sockets and threads in pure code.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pure = tree.sources.iter().filter(|source| PURE.iter().any(|folder| is_under(&source.path, folder)));
    let mut findings = Vec::new();
    for source in pure.filter(|source| source.path != DOOR) {
        for (index, line) in source.code.iter().enumerate() {
            let word = words(line).map(|(_, word)| word).find(|word| WORLD.contains(word));
            let module = MODULES.iter().copied().find(|module| line.contains(module));
            if let Some(name) = word.or(module).filter(|_| !source.in_test(index)) {
                let wrong = format!("`{name}` in code that must not touch the outside world");
                findings.push(Finding::at(&source.path, index, wrong, "take the moment or the bytes as an argument"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::assert_rule;
    use super::*;

    #[test]
    fn pure_code_takes_time_as_an_argument() {
        let good = "fn tick(now: Moment) {}\n#[cfg(test)]\nmod tests {\n    use std::thread;\n}\n";
        let bad = "use std::time::Instant;\nfn tick() { std::thread::sleep(x); }\n";
        let passes =
            [("engine/session/src/a.rs", good), ("engine/core/src/env.rs", bad), ("engine/runtime/src/a.rs", bad)];
        assert_rule(check, &passes, &[("engine/session/src/a.rs", bad)], 2);
    }
}
