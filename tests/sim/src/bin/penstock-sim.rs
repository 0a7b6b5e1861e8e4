//! Runs many seeds of the simulation, and says of one that fails what its shortest list of deeds is.

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what it says is its result, and how far it is")]

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_core::planted::{self, Bug};
use penstock_simulation::deed::{Family, Script};
use penstock_simulation::oracle::{Invariant, Violated};
use penstock_simulation::run::perform;
use penstock_simulation::shrink::shrink;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const USAGE: &str = "penstock-sim: whole engines, ordered by seeds

  --seeds N            how many seeds to run (10000)
  --from K             the first one (0)
  --family NAME        only those of this family, as `Streams`, or `all`; another word says which there are
  --seed S             only this one, and what happens in it
  --keep A,B,...       of that one only the deeds at these places, `none` for none
  --expect INVARIANT   it has to fail, and by this invariant
  --planted            list the bugs that this build has hooks for, each with the invariant that has to catch it
  --plant BUG          plant this one; seeds of its family have to fail by that invariant, unless one seed is run";
/// Failing seeds that are shortened and shown; others are counted.
const SHOWN_MAX: usize = 3;
/// How often it is said how far it is.
const SAY_EVERY: Duration = Duration::from_secs(10);

struct Options {
    seeds: u64,
    from: u64,
    family: Option<Family>,
    seed: Option<u64>,
    keep: Option<Vec<usize>>,
    expect: Option<Invariant>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seeds: 10_000, from: 0, family: None, seed: None, keep: None, expect: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("`{text}` is not a number"));
        match word.as_str() {
            "--seeds" => options.seeds = number(value()?)?,
            "--from" => options.from = number(value()?)?,
            "--family" => {
                let name = value()?;
                options.family = if name == "all" { None } else { Some(Family::named(&name)?) };
            }
            "--seed" => options.seed = Some(number(value()?)?),
            "--keep" => {
                let text = value()?;
                let places = text.split(',').filter(|word| *word != "none").map(|word| number(word.to_owned()));
                options.keep = Some(places.map(|place| place.map(|place| place as usize)).collect::<Result<_, _>>()?);
            }
            "--expect" => {
                let name = value()?;
                let names: Vec<&str> = Invariant::ALL.iter().map(|invariant| invariant.name()).collect();
                let found = Invariant::named(&name);
                options.expect = Some(found.ok_or(format!("`{name}` is none of {}", names.join(", ")))?);
            }
            "--plant" => {
                let name = value()?;
                let bug = Bug::named(&name).ok_or(format!("`{name}` is no planted bug; --planted lists them"))?;
                if !planted::HAS_HOOKS {
                    return Err("this build has no hooks: build it with RUSTFLAGS=\"--cfg planted\"".to_owned());
                }
                planted::plant(bug);
                let invariant = Invariant::named(bug.caught_by());
                options.expect = Some(invariant.ok_or(format!("{name} names no invariant: {}", bug.caught_by()))?);
                options.family = Some(Family::named(bug.found_in())?);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

thread_local! {
    /// Where the last panic of this thread was.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Engines that end under copies of a lost device keep their descriptors for as long as this process is there.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be raised, a run of many seeds says so when there are none left.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn main() -> ExitCode {
    allow_descriptors();
    if std::env::args().skip(1).eq(["--planted".to_owned()]) {
        let hooked = Bug::ALL.iter().filter(|_| planted::HAS_HOOKS);
        hooked.for_each(|bug| println!("{} {}", bug.name(), bug.caught_by()));
        return ExitCode::SUCCESS;
    }
    let options = match options() {
        Ok(options) => options,
        Err(words) => {
            eprintln!("{words}");
            return ExitCode::from(2);
        }
    };
    // A run that panics is told of like any other that fails; shortening it would say it a hundred times.
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PANICKED_AT.with_borrow_mut(|at| *at = place);
    }));
    match options.seed {
        Some(seed) => one(seed, options.keep.as_deref()),
        None => many(&options),
    }
}

/// One seed, in full.
fn one(seed: u64, keep: Option<&[usize]>) -> ExitCode {
    let script = Script::of(seed);
    let all: Vec<usize> = (0..script.deeds.len()).collect();
    let keep: Vec<usize> = keep.unwrap_or(&all).iter().copied().filter(|place| all.contains(place)).collect();
    print(&script, &keep);
    match perform(&script, &keep) {
        Ok(account) => {
            println!("{account:?}");
            ExitCode::SUCCESS
        }
        Err(violated) => {
            println!("{violated}{}", place_of(&violated));
            ExitCode::FAILURE
        }
    }
}

fn place_of(violated: &Violated) -> String {
    match violated.invariant {
        Invariant::NothingPanics => format!(", at {}", PANICKED_AT.with_borrow(Clone::clone)),
        _ => String::new(),
    }
}

fn print(script: &Script, keep: &[usize]) {
    println!("  {:?}, {:?}, {:?}", script.family, script.weather, script.receive_bytes);
    for (number, player) in script.players.iter().enumerate() {
        println!("  player {number}: {player:?}");
    }
    for (number, case) in script.cases.iter().enumerate() {
        println!("  case {number}: {case:?}");
    }
    for (number, chunk) in script.chunks.iter().enumerate() {
        println!("  chunk {number}: {chunk:?}");
    }
    for (number, turn) in script.turns.iter().enumerate() {
        println!("  turn {number}: {turn:?}");
    }
    for (number, stream) in script.streams.iter().enumerate() {
        println!("  stream {number}: {stream:?}");
    }
    for (number, reading) in script.readings.iter().enumerate() {
        println!("  reading {number}: {reading:?}");
    }
    for (number, join) in script.joins.iter().enumerate() {
        println!("  join {number}: {join:?}");
    }
    script.devices.iter().for_each(|devices| println!("  devices: {devices:?}"));
    for (number, life) in script.lives.iter().enumerate() {
        println!("  life {number}: {life:?}");
    }
    script.copying.iter().for_each(|copying| println!("  copying: {copying:?}"));
    for (number, copy) in script.copies.iter().enumerate() {
        println!("  copy {number}: {copy:?}");
    }
    for &place in keep {
        let deed = &script.deeds[place];
        println!("  {place:3} after {:>9} us  {:?}", deed.after.as_micros(), deed.act);
    }
}

#[derive(Default)]
struct Tally {
    ran: u64,
    well: u64,
    failed: u64,
    events: u64,
    broken: Vec<(u64, Violated, String)>,
}

fn many(options: &Options) -> ExitCode {
    let began = Instant::now();
    let (next, stop) = (AtomicU64::new(options.from), AtomicBool::new(false));
    let end = options.from.saturating_add(options.seeds);
    let tally = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (next, stop, tally) = (&next, &stop, &tally);
            scope.spawn(move || {
                let mut said = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    if options.family.is_some_and(|family| family != Family::of(seed)) {
                        continue;
                    }
                    let script = Script::of(seed);
                    let keep: Vec<usize> = (0..script.deeds.len()).collect();
                    let came = perform(&script, &keep);
                    let mut tally = tally.lock().expect("no thread panics while it counts");
                    tally.ran += 1;
                    match came {
                        Ok(account) => {
                            tally.well += u64::from(account.well);
                            tally.failed += u64::from(account.failed);
                            tally.events += account.events;
                        }
                        Err(violated) => {
                            if options.expect == Some(violated.invariant) {
                                stop.store(true, Ordering::Relaxed);
                            }
                            let place = place_of(&violated);
                            if options.expect.is_none() {
                                eprintln!("seed {seed} breaks {violated}{place}");
                            }
                            tally.broken.push((seed, violated, place));
                        }
                    }
                    if thread == 0 && said.elapsed() > SAY_EVERY {
                        said = Instant::now();
                        let (seeds, broken) = (seed - options.from, tally.broken.len());
                        eprintln!(
                            "{seeds} of {} seeds in {} s, {broken} failed",
                            options.seeds,
                            began.elapsed().as_secs()
                        );
                    }
                }
            });
        }
    });
    let mut tally = tally.into_inner().expect("no thread panics while it counts");
    tally.broken.sort_by_key(|(seed, ..)| *seed);
    match options.expect {
        Some(expected) => judge(expected, &tally),
        None => report(&tally, began.elapsed()),
    }
}

/// It was to fail by this.
fn judge(expected: Invariant, tally: &Tally) -> ExitCode {
    if let Some((seed, violated, _)) = tally.broken.iter().find(|(_, violated, _)| violated.invariant == expected) {
        println!("caught at seed {seed} by {violated}");
        return ExitCode::SUCCESS;
    }
    match tally.broken.first() {
        None => println!("{} seeds do not break {expected}, nor anything else", tally.ran),
        Some((seed, violated, place)) => {
            println!("{} seeds do not break {expected}; seed {seed} breaks {violated}{place}", tally.ran);
        }
    }
    ExitCode::FAILURE
}

fn report(tally: &Tally, took: Duration) -> ExitCode {
    for (seed, violated, place) in tally.broken.iter().take(SHOWN_MAX) {
        println!("seed {seed} breaks {violated}{place}");
        let script = Script::of(*seed);
        let short = shrink(&script, violated.clone());
        println!("  shortest of {} runs: {}", short.runs, short.violated);
        print(&script, &short.keep);
        let places: Vec<String> = short.keep.iter().map(ToString::to_string).collect();
        let places = if places.is_empty() { "none".to_owned() } else { places.join(",") };
        println!(
            "  again: cargo run --release -p penstock-simulation --bin penstock-sim -- --seed {seed} --keep {places}"
        );
    }
    if tally.broken.len() > SHOWN_MAX {
        let others: Vec<String> = tally.broken[SHOWN_MAX..]
            .iter()
            .take(40)
            .map(|(seed, violated, _)| format!("{seed} {}", violated.invariant))
            .collect();
        println!("others: {}", others.join(", "));
    }
    let (seeds, broken) = (tally.ran, tally.broken.len() as u64);
    println!(
        "{seeds} seeds in {:.1} s: {} halves of transfers ended well, {} failed; {} events",
        took.as_secs_f64(),
        tally.well,
        tally.failed,
        tally.events
    );
    println!("{} passed, {broken} failed, 0 skipped", seeds - broken);
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
