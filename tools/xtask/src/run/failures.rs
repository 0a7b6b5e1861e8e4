//! Why tests failed, said again behind everything else: a long output is read, and kept, from its end.

use std::fmt;

/// So many lines of one message are said again.
const LINES: usize = 5;

/// One test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The test's name.
    test: String,
    /// Where and why, as far as it has said so.
    why: Vec<String>,
}

impl Failure {
    /// Of a program, or a step, that did not come to its end: what it has said last.
    pub(crate) fn broken(what: &str, end: &str, output: &[String]) -> Self {
        let said = output[output.len().saturating_sub(LINES)..].iter().cloned();
        Self { test: format!("{what}: {end}"), why: said.collect() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FAILED {}", self.test)?;
        self.why.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// The failures in the output of a harness, each with what its first panic has said.
pub(crate) fn parse(output: &[String]) -> Vec<Failure> {
    let failed = output.iter().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let all = failed.map(|test| Failure { test: test.to_owned(), why: why(test, output) });
    all.collect()
}

/// What a test's own part of the output says first of a panic, or at all.
fn why(test: &str, output: &[String]) -> Vec<String> {
    let heading = format!("---- {} stdout ----", test.trim_end_matches(" - should panic"));
    let own = output.iter().skip_while(|line| **line != heading).skip(1).take_while(|line| !line.starts_with("---- "));
    let own: Vec<&String> = own.collect();
    let from = own.iter().position(|line| line.contains("panicked at ")).unwrap_or(0);
    let is_more =
        |line: &&String| !line.is_empty() && *line != "stack backtrace:" && !line.starts_with("note: run with");
    own[from..].iter().copied().take_while(is_more).take(LINES).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_failure_is_said_with_its_first_panic() {
        let output = lines(
            "test a::one ... ok\ntest a::two ... FAILED\ntest a::three - should panic ... FAILED\n\nfailures:\n\n---- a::two stdout ----\n\
             looking\nthread 'a::two' (7) panicked at src/a.rs:3:5:\nassertion failed\n  left: 1\nstack backtrace:\n   0: main\n\
             thread 'a::two' (7) panicked at later.rs:1:1:\nagain\n\n---- a::three stdout ----\n\
             note: test did not panic as expected\n\nfailures:\n    a::two\n",
        );
        let said: Vec<String> = parse(&output).iter().map(Failure::to_string).collect();
        let two =
            "FAILED a::two\n    thread 'a::two' (7) panicked at src/a.rs:3:5:\n    assertion failed\n      left: 1";
        assert_eq!(said, [two, "FAILED a::three - should panic\n    note: test did not panic as expected"]);
        assert_eq!(parse(&lines("test a::one ... ok\nsomething FAILED")), []);
    }

    #[test]
    fn what_breaks_is_said_with_its_last_words() {
        let output = lines(&format!("{}the last", "before\n".repeat(LINES)));
        let said = Failure::broken("storm (test)", "ended by force after 300 s", &output).to_string();
        assert!(said.starts_with("FAILED storm (test): ended by force after 300 s\n    before\n"), "{said}");
        assert!(said.ends_with("\n    the last") && said.lines().count() == 1 + LINES, "{said}");
        assert_eq!(Failure::broken("a", "b", &[]).to_string(), "FAILED a: b");
    }

    #[test]
    fn a_long_message_is_cut() {
        let panic = "---- a stdout ----\nthread 'a' panicked at a.rs:1:1:";
        let output = lines(&format!("test a ... FAILED\n{panic}\n{}", "more\n".repeat(50)));
        assert_eq!(parse(&output)[0].why.len(), LINES);
    }
}
