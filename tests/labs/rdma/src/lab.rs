//! A lab: steps that share one guest, because booting takes longer than most of them.
//!
//! A lab's test program has no harness of Rust's own (`harness = false`); its `main` is [`run`]. It prints what a harness
//! prints, so whatever counts tests counts these: a line for each step, and one for each test of the project that a step
//! has run inside the guest.

use std::cell::RefCell;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::suite::{Suite, Verdict};
use crate::{Guest, Job, LabError, Machine, host, rails};

/// What a step comes to.
pub type Outcome = Result<(), Box<dyn Error>>;

/// A step's name, which is true when it passes, and what it does.
pub struct Step {
    name: &'static str,
    body: fn(&Lab) -> Outcome,
}

impl Step {
    /// A step.
    pub const fn new(name: &'static str, body: fn(&Lab) -> Outcome) -> Self {
        Self { name, body }
    }
}

/// What steps have at hand.
pub struct Lab {
    program: PathBuf,
    rails: u8,
    guest: RefCell<Option<Rc<Guest>>>,
    /// Results of tests inside the guest, of the current step.
    inner: RefCell<Vec<(String, Verdict)>>,
}

/// Ends what earlier steps may have left: processes, faults, links that are down. The kernel's own threads have no
/// program, and stay; so do the first process and the agent.
const TIDY_UP: &str = r#"
for folder in /proc/[0-9]*; do
    number=${folder#/proc/}
    if [ "$number" != 1 ] && [ "$number" != "$$" ] && [ "$number" != "$PPID" ] && [ -e "$folder/exe" ]; then
        kill -9 "$number" 2>/dev/null || true
    fi
done
"#;

impl Lab {
    /// The guest, with its rails; booted if there is none.
    pub fn guest(&self) -> Result<Rc<Guest>, LabError> {
        if let Some(guest) = self.alive() {
            return Ok(guest);
        }
        // What is left of a dead one is removed first.
        self.guest.replace(None);
        let guest = Rc::new(Guest::boot_with(&Machine::new("guest", &self.program), &note)?);
        rails::make(&guest, self.rails)?;
        self.guest.replace(Some(Rc::clone(&guest)));
        Ok(guest)
    }

    fn alive(&self) -> Option<Rc<Guest>> {
        self.guest.borrow().clone().filter(|guest| guest.death().is_none())
    }

    /// The program that guests are made with.
    pub fn program(&self) -> &PathBuf {
        &self.program
    }

    /// Writes down something that was measured.
    pub fn note(&self, text: &str) {
        note(text);
    }

    /// Runs a test program in the guest. Each of its tests counts as one of this lab's: one that failed fails the step,
    /// and so does one that did not run, unless the beginning of its reason is among `excuses`.
    pub fn suite(&self, suite: &Suite, excuses: &[&str]) -> Outcome {
        let guest = self.guest()?;
        let report = suite.run(&guest, &note)?;
        let is_excused = |reason: &str| excuses.iter().any(|excuse| reason.starts_with(excuse));
        let idle: Vec<String> = report
            .tests
            .iter()
            .filter_map(|(name, verdict)| match verdict {
                Verdict::Skipped(reason) if !is_excused(reason) => Some(format!("{name}: {reason}")),
                _ => None,
            })
            .collect();
        let failed = report.tests.iter().filter(|(_, verdict)| *verdict == Verdict::Failed).count();
        note(&format!("{} tests in the guest took {:.1} s", report.tests.len(), report.took.as_secs_f64()));
        let verdicts = report.tests.iter().map(|(name, verdict)| {
            let is_idle = matches!(verdict, Verdict::Skipped(reason) if !is_excused(reason));
            (name.clone(), if is_idle { Verdict::Failed } else { verdict.clone() })
        });
        self.inner.borrow_mut().extend(verdicts);
        if let Some(broken) = &report.broken {
            return Err(format!("the test program cannot be believed: {broken}\n{}", report.output).into());
        }
        if failed > 0 {
            return Err(format!("{failed} of its tests failed\n{}", report.failures()).into());
        }
        if !idle.is_empty() {
            return Err(format!("tests did not run: {}", idle.join("; ")).into());
        }
        Ok(())
    }

    /// Makes the guest as it was after boot, as far as a step can have changed it.
    fn tidy_up(&self) -> Result<(), LabError> {
        let Some(guest) = self.alive() else { return Ok(()) };
        guest.check(&Job::shell(TIDY_UP.to_owned() + &rails::mending(self.rails))).map(drop)
    }
}

/// Writes down something that was measured, or what takes so long.
#[allow(clippy::print_stdout, reason = "figures are what a reader of the output looks for")]
pub fn note(text: &str) {
    println!("    {text}");
}

/// What the steps came to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed => self.failed += 1,
            Verdict::Skipped(_) => self.skipped += 1,
        }
    }
}

/// The `main` of a lab: runs the steps that its arguments name, or all. `program` is `penstock-guest`.
#[allow(clippy::print_stdout, reason = "it speaks as a test harness does")]
pub fn run(program: &str, rails: u8, steps: &[Step]) -> ExitCode {
    let arguments = Arguments::of(std::env::args().skip(1));
    let chosen: Vec<&Step> = steps.iter().filter(|step| arguments.chooses(step.name)).collect();
    if arguments.lists {
        chosen.iter().for_each(|step| println!("{}: test", step.name));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} {}", chosen.len(), if chosen.len() == 1 { "test" } else { "tests" });
    let (started, mut tally) = (Instant::now(), Tally::default());
    let (guest, inner) = (RefCell::default(), RefCell::default());
    let lab = Lab { program: PathBuf::from(program), rails, guest, inner };
    let idle = why_idle();
    for step in &chosen {
        let before = Instant::now();
        note(&format!("step {}", step.name));
        let verdict = idle.clone().map_or_else(|| attempt(&lab, step), Verdict::Skipped);
        for (name, verdict) in lab.inner.take() {
            show(&format!("{}::{name}", step.name), &verdict, None);
            tally.add(&verdict);
        }
        show(step.name, &verdict, Some(before.elapsed()));
        tally.add(&verdict);
    }
    drop(lab);
    let word = if tally.failed == 0 { "ok" } else { "FAILED" };
    let Tally { passed, failed, skipped } = tally;
    let (filtered, seconds) = (steps.len() - chosen.len(), started.elapsed().as_secs_f64());
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {skipped} ignored; 0 measured; {filtered} filtered out; \
         finished in {seconds:.2}s\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// Why no lab runs here, if none does.
fn why_idle() -> Option<String> {
    let are_on = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    if are_on { host::why_not() } else { Some("labs run when PENSTOCK_LABS=1 is set".to_owned()) }
}

#[allow(clippy::print_stdout, reason = "it speaks as a test harness does")]
fn attempt(lab: &Lab, step: &Step) -> Verdict {
    let result = catch_unwind(AssertUnwindSafe(|| {
        lab.tidy_up()?;
        (step.body)(lab)
    }));
    match result {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(error)) => {
            println!("---- {} ----\n{error}\n----", step.name);
            Verdict::Failed
        }
        // The panic has shown itself.
        Err(_) => Verdict::Failed,
    }
}

#[allow(clippy::print_stdout, reason = "it speaks as a test harness does")]
fn show(name: &str, verdict: &Verdict, took: Option<Duration>) {
    if let Some(took) = took {
        note(&format!("{name}: {:.1} s", took.as_secs_f64()));
    }
    match verdict {
        Verdict::Passed => println!("test {name} ... ok"),
        Verdict::Failed => println!("test {name} ... FAILED"),
        Verdict::Skipped(reason) => println!("test {name} ... ignored, {reason}"),
    }
}

/// What a harness is told, as far as it matters here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    filters: Vec<String>,
    skips: Vec<String>,
    is_exact: bool,
    lists: bool,
}

impl Arguments {
    fn of(mut words: impl Iterator<Item = String>) -> Self {
        let mut arguments = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--exact" => arguments.is_exact = true,
                "--list" => arguments.lists = true,
                "--skip" => arguments.skips.extend(words.next()),
                "--test-threads" | "--format" | "--color" | "-Z" | "--logfile" => drop(words.next()),
                option if option.starts_with('-') => {}
                _ => arguments.filters.push(word),
            }
        }
        arguments
    }

    fn chooses(&self, name: &str) -> bool {
        let is_meant = |words: &String| if self.is_exact { name == words } else { name.contains(words.as_str()) };
        (self.filters.is_empty() || self.filters.iter().any(is_meant)) && !self.skips.iter().any(is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(line: &str) -> Arguments {
        Arguments::of(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn steps_are_chosen_as_tests_are() {
        assert!(arguments("--nocapture --test-threads 1").chooses("anything"));
        assert!(arguments("bandwidth").chooses("the_bandwidth_is_measured"));
        assert!(!arguments("bandwidth --skip measured").chooses("the_bandwidth_is_measured"));
        assert!(!arguments("--exact bandwidth").chooses("the_bandwidth_is_measured"));
        assert!(arguments("--list").lists);
    }
}
