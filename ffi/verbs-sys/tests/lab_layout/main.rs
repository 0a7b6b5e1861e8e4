//! Whether structures, numbers and functions here are those of C: compared with the headers that are installed, by a C compiler, and
//! with what another project's generator made of the same headers.

#![allow(clippy::print_stdout, reason = "what agrees, and what could not be compared, is worth reading")]

mod c_program;
mod c_types;
mod facts;
mod rdma_sys;
mod symbols;

use std::path::PathBuf;
use std::process::Command;

use facts::{Comparison, Fact};

/// A header that the package of headers has.
const HEADERS: [(&str, &str); 2] =
    [("/usr/include/infiniband/verbs.h", "libibverbs-dev"), ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev")];

/// Why nothing can be compared here, if so.
fn why_not() -> Option<String> {
    if std::env::var_os("PENSTOCK_LABS").is_none_or(|value| value != "1") {
        return Some("labs run when PENSTOCK_LABS=1 is set".to_owned());
    }
    let missing = HEADERS.iter().find(|(header, _)| !PathBuf::from(header).exists());
    missing.map(|(header, package)| format!("needs path:{header}, of the package {package}"))
}

/// Says in the run's notes that `test` did not run, and why.
fn skip(test: &str, reason: &str) {
    use std::io::Write;
    let Some(path) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let mut notes = opened.expect("the file that PENSTOCK_SKIPS names can be written");
    writeln!(notes, "{test}: {reason}").expect("the file that PENSTOCK_SKIPS names can be written");
}

/// A folder for what is built, beside this program: `name` under the folder of all builds.
fn folder(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a program knows where it is");
    let builds = program.ancestors().nth(3).expect("Cargo puts tests into deps of a profile");
    let folder = builds.join("verbs-layout").join(name);
    std::fs::create_dir_all(&folder).expect("the folder of builds can be written");
    folder
}

/// Runs `command` to its end: what it wrote, or with what words it failed.
fn output(command: &mut Command) -> Result<String, String> {
    let run = command.output().map_err(|error| format!("{command:?} cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&run.stderr);
    if !run.status.success() {
        return Err(format!("{command:?} failed: {said}"));
    }
    Ok(String::from_utf8_lossy(&run.stdout).into_owned())
}

#[test]
fn every_structure_number_and_function_is_that_of_the_c_headers() {
    if let Some(reason) = why_not() {
        return skip("every_structure_number_and_function_is_that_of_the_c_headers", &reason);
    }
    let facts = facts::all();
    let theirs = c_program::run(&facts, &folder("c")).expect("the C headers can be asked");
    let comparison = Comparison::of(&facts, &theirs);
    println!("C headers: {comparison}");
    assert!(comparison.absent.is_empty(), "C does not answer {:#?}", comparison.absent);
    assert!(comparison.wrong.is_empty(), "not as in C: {:#?}", comparison.wrong);
    assert_eq!(comparison.equal, facts.len(), "each fact is compared once");
}

#[test]
fn a_wrong_offset_size_number_or_type_is_found_by_the_c_headers() {
    if let Some(reason) = why_not() {
        return skip("a_wrong_offset_size_number_or_type_is_found_by_the_c_headers", &reason);
    }
    let broken = c_program::run(&facts::broken(), &folder("c-broken")).expect("the C headers can be asked");
    for fact in facts::broken() {
        let comparison = Comparison::of(&[fact], &broken);
        assert_eq!((comparison.wrong.len(), comparison.equal), (1, 0), "{comparison:?}");
    }
}

#[test]
fn what_rdma_sys_made_of_the_headers_agrees() {
    let test = "what_rdma_sys_made_of_the_headers_agrees";
    if let Some(reason) = why_not() {
        return skip(test, &reason);
    }
    let facts: Vec<Fact> = facts::all().into_iter().filter(rdma_sys::can_answer).collect();
    let theirs = match rdma_sys::ask(&facts, &folder("rdma-sys")) {
        Ok(theirs) => theirs,
        Err(rdma_sys::Failure::NotHere(reason)) => return skip(test, &reason),
        Err(rdma_sys::Failure::Wrong(what)) => panic!("{what}"),
    };
    let comparison = Comparison::of(&facts, &theirs);
    println!("rdma-sys: {comparison}");
    println!("not in rdma-sys: {}", comparison.absent.join(", "));
    assert!(comparison.wrong.is_empty(), "not as in rdma-sys: {:#?}", comparison.wrong);
    assert!(comparison.equal * 10 >= facts.len() * 9, "rdma-sys answers too little to say anything: {comparison}");
}

#[test]
fn the_installed_libraries_have_every_function_in_the_version_that_a_linked_program_gets() {
    if let Some(reason) = why_not() {
        let test = "the_installed_libraries_have_every_function_in_the_version_that_a_linked_program_gets";
        return skip(test, &reason);
    }
    let library = penstock_verbs_sys::Library::open().expect("the packages of headers bring the libraries along");
    let absent: Vec<_> = library.verbs.missing().chain(library.cm.missing()).collect();
    println!("optional functions that are not here: {absent:?}");
    for function in penstock_verbs_sys::layout::functions() {
        let (named, newest) = symbols::places(function.library, function.name, function.version);
        assert_eq!(named, newest, "a linked program gets another {} than that of {}", function.name, function.version);
        assert!(named.is_some() || function.is_optional, "{} has no {}", function.library, function.name);
    }
}
