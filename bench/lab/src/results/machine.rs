//! What machine figures are from: enough to judge them by, nothing that names it.

use serde::{Deserialize, Serialize};

use crate::measure::cores;

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its processor, as the kernel calls it.
    pub cpu: String,
    /// Cores that this program may run on.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Memory, in GiB.
    pub memory_gib: f64,
    /// The pages of the pools that are measured, and what the kernel does of itself.
    pub pages: String,
}

impl Machine {
    /// This one. What the kernel does not tell is called unknown.
    pub fn this() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        let kilobytes: f64 = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.split(' ').next()?.parse().ok())
            .unwrap_or(0.0);
        let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
        Self {
            cpu: or_unknown(&field(&read("/proc/cpuinfo"), "model name").unwrap_or_default()),
            cores: cores::available().len(),
            kernel: or_unknown(read("/proc/sys/kernel/osrelease").trim()),
            memory_gib: (kilobytes / 104_857.6).round() / 10.0,
            pages: format!("4 KiB pages unless a row says otherwise; transparent huge pages: {}", chosen(&huge)),
        }
    }

    /// It in a file's name: `amd-epyc-2c`.
    pub fn slug(&self) -> String {
        let words: String = self.cpu.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
        let common = |word: &&str| !["r", "tm", "cpu", "processor", "core", "with"].contains(word);
        let lower = words.to_ascii_lowercase();
        let mut words: Vec<&str> = lower.split_whitespace().filter(common).take(4).collect();
        let cores = format!("{}c", self.cores);
        words.push(&cores);
        words.join("-")
    }
}

/// The value of `name : value`, or `name: value`, where it first stands.
fn field(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| line.strip_prefix(name)?.trim_start().strip_prefix(':').map(|rest| rest.trim().to_owned());
    text.lines().find_map(value)
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("unknown", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_read() {
        assert_eq!(field("a\t: 1\nmodel name\t: Some CPU\n", "model name").as_deref(), Some("Some CPU"));
        assert_eq!(field("MemTotal:       24 kB\n", "MemTotal").as_deref(), Some("24 kB"));
        assert_eq!((field("x: 1", "y"), chosen("always [madvise] never"), chosen("")), (None, "madvise", "unknown"));
    }

    #[test]
    fn names_of_files_are_short_and_plain() {
        let named = |cpu: &str| Machine { cpu: cpu.to_owned(), cores: 2, ..Machine::this() }.slug();
        assert_eq!(named("AMD EPYC"), "amd-epyc-2c");
        assert_eq!(named("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"), "intel-xeon-platinum-8481c-2c");
    }

    #[test]
    fn this_machine_can_be_described() {
        let this = Machine::this();
        assert!(this.cores > 0 && this.memory_gib > 0.0 && !this.kernel.is_empty(), "{this:?}");
    }
}
