//! The headers' side: a C program that prints each fact.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use penstock_verbs_sys::layout::Growth;

use super::c_types::{c_function, c_type};
use super::facts::{Fact, What};
use super::output;

/// The headers have both; for a compiler they are different types of one size.
const WIDE: [&str; 2] = ["uint64_t", "__u64"];

/// What the installed headers say of `facts`.
pub(crate) fn run(facts: &[Fact], folder: &Path) -> Result<BTreeMap<String, i64>, String> {
    let (source, program) = (folder.join("facts.c"), folder.join("facts"));
    std::fs::write(&source, program_of(facts)).map_err(|error| error.to_string())?;
    output(Command::new("cc").args(["-std=gnu11", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source))?;
    let printed = output(&mut Command::new(&program))?;
    let lines = printed.lines().map(|line| {
        let (value, key) = line.split_once(' ').ok_or_else(|| format!("{line:?} is no fact"))?;
        Ok((key.to_owned(), value.parse().map_err(|error| format!("{line:?}: {error}"))?))
    });
    lines.collect()
}

fn program_of(facts: &[Fact]) -> String {
    let mut text = String::from(
        "#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\nint main(void) {\n",
    );
    for fact in facts {
        let key = fact.key.replace('"', "\\\"");
        writeln!(text, "    printf(\"%lld %s\\n\", (long long)({}), \"{key}\");", expression(fact.what))
            .expect("a string takes all");
    }
    text + "    return 0;\n}\n"
}

fn expression(what: What) -> String {
    match what {
        What::Size(of) => format!("sizeof({})", of.c),
        What::Align(of) => format!("_Alignof({})", of.c),
        What::Offset(of, field) if of.growth == Growth::AtFront => {
            format!("sizeof({0}) - offsetof({0}, {1})", of.c, field.c)
        }
        What::Offset(of, field) => format!("offsetof({}, {})", of.c, field.c),
        What::FieldSize(of, field) => format!("sizeof((({} *)0)->{})", of.c, field.c),
        What::FieldType(of, field) => {
            let theirs = format!("__typeof__((({} *)0)->{})", of.c, field.c);
            is_either(&theirs, |wide| c_type(field.of, wide))
        }
        What::EnumSize(of) => format!("sizeof(enum {})", of.name),
        What::EnumSign(of) => format!("(enum {})-1 < (enum {})0", of.name, of.name),
        What::Value(of) => of.name.to_owned(),
        // Some names are macros with arguments; without them they are the functions.
        What::FunctionType(of) => {
            is_either(&format!("__typeof__(&{})", of.name), |wide| c_function(of.arguments, of.returns, wide))
        }
    }
}

fn is_either(theirs: &str, ours: impl Fn(&str) -> String) -> String {
    WIDE.map(|wide| format!("__builtin_types_compatible_p({theirs}, {})", ours(wide))).join(" || ")
}
