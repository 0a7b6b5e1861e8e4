//! Another project's side: what `rdma-sys` 0.3 generated from the same headers.
//!
//! Whether it has a name, or a field, its compiler says: a program with a line for each way that a fact could be asked is compiled,
//! the lines that name what is not there are dropped, and what is left is run. The package stands outside the workspace, in
//! `oracle`: it links libibverbs firmly and needs libclang to build.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use penstock_verbs_sys::layout::Growth;
use serde_json::Value;

use super::facts::{Fact, What};
use super::output;

/// Where a libclang is that its generator works with; it ends with newer ones.
const CLANG: &str = "/usr/lib/llvm-14/lib";

/// Names there of what has none in C, or is held by a union that has none.
const NAMES: &[(&str, &str)] = &[
    ("ibv_gid_global", "ibv_gid_global_t"),
    ("ibv_odp_caps_per_transport", "ibv_odp_caps__bindgen_ty_1"),
    ("ibv_async_event_element", "ibv_async_event_element_t"),
    ("ibv_send_wr_remote", "wr_t"),
    ("ibv_send_wr_rdma", "rdma_t"),
    ("ibv_send_wr_atomic", "atomic_t"),
    ("ibv_send_wr_ud", "ud_t"),
    ("ibv_send_wr_qp_type", "qp_type_t"),
    ("ibv_send_wr_xrc", "xrc_t"),
    ("ibv_send_wr_bind_mw", "bind_mw_t"),
    ("rdma_cm_event_param", "param_t"),
    ("ibv_wc.imm_data", "imm_data_invalidated_rkey_union"),
    ("ibv_send_wr.imm_data", "imm_data_invalidated_rkey_union"),
    ("ibv_send_wr.bind_mw", "bind_mw_tso_union.bind_mw"),
    ("ibv_mw.type_", "type_"),
    ("verbs_context.priv_", "priv_"),
    ("rdma_addr.src_storage", "src_addr_union"),
    ("rdma_addr.dst_storage", "dst_addr_union"),
];

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be built here.
    NotHere(String),
    /// It can, and something is wrong with the lab.
    Wrong(String),
}

/// Whether a fact can be asked there at all: types have names of their own, and functions are those of whoever links it.
pub(crate) fn can_answer(fact: &Fact) -> bool {
    !ways(fact.what).is_empty()
}

/// What `rdma-sys` says of `facts`.
pub(crate) fn ask(facts: &[Fact], folder: &Path) -> Result<BTreeMap<String, i64>, Failure> {
    let mut cargo = cargo(folder, "fetch");
    output(&mut cargo).map_err(|said| Failure::NotHere(format!("rdma-sys cannot be fetched: {}", last_line(&said))))?;
    let mut lines: Vec<String> = facts
        .iter()
        .flat_map(|fact| ways(fact.what).into_iter().map(|way| format!("({:?}, {way} as i64),", fact.key)))
        .collect();
    let list = folder.join("facts.rs");
    // The compiler finds names that are not there first, then fields, then the rest.
    for _ in 0..5 {
        let text = format!("&[\n{}\n]\n", lines.join("\n"));
        std::fs::write(&list, text).map_err(|error| Failure::Wrong(error.to_string()))?;
        let dropped = compile(folder)?;
        if dropped.is_empty() {
            return read(&output(&mut cargo_run(folder)).map_err(Failure::Wrong)?);
        }
        // The list's first line is its bracket, and lines are counted from one.
        lines = lines
            .into_iter()
            .enumerate()
            .filter(|(at, _)| !dropped.contains(&(at + 2)))
            .map(|(_, line)| line)
            .collect();
    }
    Err(Failure::Wrong("lines without a name are found again and again".to_owned()))
}

/// The expressions that may say it: which of them there are depends on how the generator was told to write an enumeration.
fn ways(what: What) -> Vec<String> {
    let structure = |name: &'static str| format!("rdma_sys::{}", renamed(name, name));
    let offset = |of: &str, field: &str| format!("core::mem::offset_of!({of}, {field})");
    match what {
        What::Size(of) => vec![format!("size_of::<{}>()", structure(of.name))],
        What::Align(of) => vec![format!("align_of::<{}>()", structure(of.name))],
        What::Offset(of, field) => {
            let name = structure(of.name);
            let place = offset(&name, renamed(&format!("{}.{}", of.name, field.name), field.c));
            let from_end = of.growth == Growth::AtFront;
            vec![if from_end { format!("(size_of::<{name}>() - {place})") } else { place }]
        }
        What::FieldSize(of, field) => {
            let (name, field) = (structure(of.name), renamed(&format!("{}.{}", of.name, field.name), field.c));
            vec![format!("field_size(|of: &{name}| &raw const of.{field})")]
        }
        What::EnumSize(of) => {
            vec![format!("size_of::<rdma_sys::{}::Type>()", of.name), format!("size_of::<rdma_sys::{}>()", of.name)]
        }
        What::Value(of) => {
            let within = of.of.map(|name| format!("rdma_sys::{name}::{}", of.name));
            let numbers = within.iter().flat_map(|path| [path.clone(), format!("{path}.0")]);
            numbers.chain([format!("rdma_sys::{}", of.name)]).collect()
        }
        What::FieldType(..) | What::EnumSign(_) | What::FunctionType(_) => Vec::new(),
    }
}

/// The name there of `key`, which is called `otherwise` unless it is in the list.
fn renamed<'a>(key: &str, otherwise: &'a str) -> &'a str {
    NAMES.iter().find(|(ours, _)| *ours == key).map_or(otherwise, |(_, theirs)| theirs)
}

/// Compiles the list; the lines of it that name what is not there.
fn compile(folder: &Path) -> Result<BTreeSet<usize>, Failure> {
    let mut command = cargo(folder, "build");
    command.arg("--message-format=json").stderr(Stdio::piped());
    let run = command.output().map_err(|error| Failure::NotHere(format!("cargo cannot be run: {error}")))?;
    let mut missing = BTreeSet::new();
    for line in String::from_utf8_lossy(&run.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        if message["reason"] != "compiler-message" || message["message"]["level"] != "error" {
            continue;
        }
        let error = &message["message"];
        let at = error["spans"].as_array().into_iter().flatten().find(|span| span["is_primary"] == true);
        let place = at.and_then(outermost);
        match (error["code"]["code"].as_str(), place) {
            // No such item, type, module, associated item, field.
            (Some("E0412" | "E0425" | "E0433" | "E0573" | "E0599" | "E0609" | "E0610" | "E0223"), Some(line)) => {
                missing.insert(line);
            }
            // Not the way that this enumeration is written: not a number.
            (Some("E0605" | "E0606" | "E0604"), Some(line)) => {
                missing.insert(line);
            }
            (None, _) => {}
            _ => return Err(Failure::Wrong(error["rendered"].to_string())),
        }
    }
    if !run.status.success() && missing.is_empty() {
        let said = String::from_utf8_lossy(&run.stderr);
        return Err(Failure::NotHere(format!("rdma-sys does not build here: {}", last_line(&said))));
    }
    Ok(missing)
}

/// The line of the list that a place in the sources belongs to: that of the macro's call, if it is in a macro.
fn outermost(span: &Value) -> Option<usize> {
    let mut span = span;
    while !span["file_name"].as_str()?.ends_with("facts.rs") {
        span = span["expansion"].get("span")?;
    }
    usize::try_from(span["line_start"].as_u64()?).ok()
}

fn read(printed: &str) -> Result<BTreeMap<String, i64>, Failure> {
    let mut found = BTreeMap::new();
    for line in printed.lines() {
        let parts = line.split_once(' ').and_then(|(value, key)| Some((key.to_owned(), value.parse::<i64>().ok()?)));
        let (key, value) = parts.ok_or_else(|| Failure::Wrong(format!("{line:?} is no fact")))?;
        if let Some(other) = found.insert(key, value)
            && other != value
        {
            return Err(Failure::Wrong(format!("{line:?}: another way says {other}")));
        }
    }
    Ok(found)
}

fn cargo_run(folder: &Path) -> Command {
    cargo(folder, "run")
}

fn cargo(folder: &Path, what: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    command.args([what, "--quiet", "--locked"]).current_dir(oracle);
    command.env("CARGO_TARGET_DIR", folder.join("build")).env("PENSTOCK_FACTS", folder.join("facts.rs"));
    if Path::new(CLANG).exists() {
        command.env("LIBCLANG_PATH", CLANG);
    }
    command
}

fn last_line(said: &str) -> &str {
    said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it does not say why")
}
