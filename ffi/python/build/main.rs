//! Writes the Rust side of `penstock.h`, so that the header is the only place where a call is declared.

#![allow(clippy::print_stdout, reason = "a build script speaks to Cargo by it")]

mod header;

use std::fmt::Write;
use std::path::Path;

use header::{Function, Header, Variable};

const HEADER: &str = "../capi/penstock.h";

fn main() {
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed={HEADER}");
    if let Err(why) = generate() {
        println!("cargo::error={HEADER}: {why}");
    }
}

fn generate() -> Result<(), String> {
    let text = std::fs::read_to_string(HEADER).map_err(|error| error.to_string())?;
    let header = header::parse(&text)?;
    let folder = std::env::var_os("OUT_DIR").ok_or("Cargo does not say where to write")?;
    std::fs::write(Path::new(&folder).join("raw.rs"), write(&header)).map_err(|error| error.to_string())
}

/// The module in Rust. Each field and constant is named as in C.
fn write(header: &Header) -> String {
    let mut out = String::from("use std::ffi::{CStr, c_char, c_int, c_void};\n\n");
    for (name, value) in &header.constants {
        let kind = if u32::try_from(*value).is_ok() { "u32" } else { "u64" };
        out += &format!("pub const {name}: {kind} = {value};\n");
    }
    for (name, values) in &header.enums {
        out += &format!("\npub type {name} = c_int;\n");
        for (value, number) in values {
            out += &format!("pub const {value}: {name} = {number};\n");
        }
        let names = values.iter().map(|(value, _)| format!("    (\"{value}\", {value}),\n"));
        out += &format!(
            "/// All of them.\npub static ALL_{}: &[(&str, {name})] = &[\n{}];\n",
            name.to_uppercase(),
            names.collect::<String>()
        );
    }
    for name in &header.handles {
        out += &format!("pub type {name} = u64;\n");
    }
    for hook in &header.hooks {
        let parameters = parameters(hook);
        out += &format!("pub type {} = Option<unsafe extern \"C\" fn({parameters})>;\n", hook.name);
    }
    for (name, fields) in &header.structs {
        write_struct(&mut out, name, fields);
    }
    write_library(&mut out, &header.functions);
    out
}

/// A struct whose default is what the header calls one: zeros, and its own size where it has one.
fn write_struct(out: &mut String, name: &str, fields: &[Variable]) {
    let declared = fields.iter().map(|field| format!("    pub {}: {},\n", field.name, field.kind));
    let zeros = fields.iter().map(|Variable { name, kind }| {
        let zero = match kind.as_str() {
            "usize" if name == "size" => "size_of::<Self>()",
            kind if kind.starts_with("*const ") => "std::ptr::null()",
            kind if kind.starts_with("*mut ") => "std::ptr::null_mut()",
            _ => "Default::default()",
        };
        format!("{name}: {zero}, ")
    });
    let (declared, zeros) = (declared.collect::<String>(), zeros.collect::<String>());
    let _ = write!(
        out,
        "\n#[derive(Debug, Clone, Copy)]\n#[repr(C)]\npub struct {name} {{\n{declared}}}\n\n\
         impl Default for {name} {{\n    fn default() -> Self {{\n        Self {{ {zeros} }}\n    }}\n}}\n"
    );
}

/// The functions as one struct of pointers.
fn write_library(out: &mut String, functions: &[Function]) {
    let kind = |function: &Function| format!("unsafe extern \"C\" fn({}) -> {}", parameters(function), function.answer);
    let fields = functions.iter().map(|function| format!("    pub {}: {},\n", function.name, kind(function)));
    let found = functions.iter().map(|function| {
        format!(
            "                {0}: std::mem::transmute::<*mut c_void, {1}>(look(c\"{0}\")?),\n",
            function.name,
            kind(function)
        )
    });
    let (fields, found) = (fields.collect::<String>(), found.collect::<String>());
    let _ = write!(
        out,
        "\n/// Every call of the header.\n#[derive(Debug)]\npub struct Library {{\n{fields}}}\n\n\
         impl Library {{\n    /// Finds every call, or says which is missing.\n    ///\n    /// # Safety\n    \
         /// `find` answers null, or the function of that name as the header declares it, for good.\n    \
         pub unsafe fn find(find: impl Fn(&CStr) -> *mut c_void) -> Result<Self, &'static CStr> {{\n        \
         let look = |name: &'static CStr| Some(find(name)).filter(|found| !found.is_null()).ok_or(name);\n        \
         // SAFETY: the caller's promise; a pointer to a function is as large as one to data.\n        \
         unsafe {{\n            Ok(Self {{\n{found}            }})\n        }}\n    }}\n}}\n"
    );
}

fn parameters(function: &Function) -> String {
    let list = function.parameters.iter().map(|Variable { name, kind }| format!("{name}: {kind}"));
    list.collect::<Vec<_>>().join(", ")
}
