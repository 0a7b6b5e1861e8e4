//! Reads `penstock.h` in the regular form in which cbindgen writes it. What is not of that form is an error with its
//! line: a declaration that was passed over would be a call or a field that is silently missing.

use std::collections::BTreeSet;

/// Lines that hold the header together and declare nothing.
const FRAME: &[&str] = &[
    "#ifndef PENSTOCK_H",
    "#define PENSTOCK_H",
    "#include <stddef.h>",
    "#include <stdint.h>",
    "#ifdef __cplusplus",
    "extern \"C\" {",
    "}  // extern \"C\"",
    "#endif // __cplusplus",
    "#endif  // __cplusplus",
    "#endif  /* PENSTOCK_H */",
];

/// Types of C that the header uses, as Rust has them.
const PLAIN: &[(&str, &str)] = &[
    ("char", "c_char"),
    ("int", "c_int"),
    ("size_t", "usize"),
    ("uint32_t", "u32"),
    ("uint64_t", "u64"),
    ("void", "c_void"),
];

/// Everything that the header declares, in its order.
#[derive(Debug, Default)]
pub(crate) struct Header {
    /// Name and value of each `#define`.
    pub(crate) constants: Vec<(String, u64)>,
    /// Name and values of each enum.
    pub(crate) enums: Vec<(String, Vec<(String, i32)>)>,
    /// Names of 64-bit handles.
    pub(crate) handles: Vec<String>,
    /// Name and fields of each struct.
    pub(crate) structs: Vec<(String, Vec<Variable>)>,
    /// Types of functions of the caller's.
    pub(crate) hooks: Vec<Function>,
    /// Functions.
    pub(crate) functions: Vec<Function>,
    types: BTreeSet<String>,
}

/// A field or a parameter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Its type in Rust.
    pub(crate) kind: String,
}

/// A function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Variable>,
    /// Its answer's type in Rust.
    pub(crate) answer: String,
}

/// Reads a header, or says which line cannot be read.
pub(crate) fn parse(text: &str) -> Result<Header, String> {
    let mut header = Header::default();
    let mut lines = Lines { rest: text.lines().enumerate() };
    while let Some((number, line)) = lines.next()? {
        header.item(line, &mut lines).map_err(|why| format!("line {number}: {why}: `{line}`"))?;
    }
    Ok(header)
}

/// Lines with their numbers, without comments and blank ones.
struct Lines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<Option<(usize, &'a str)>, String> {
        while let Some((index, line)) = self.rest.next() {
            let line = line.trim();
            if line.starts_with("/*") {
                let mut last = line;
                while !last.ends_with("*/") {
                    let unended = || format!("line {}: a comment does not end", index + 1);
                    last = self.rest.next().ok_or_else(unended)?.1.trim();
                }
            } else if !line.is_empty() {
                return Ok(Some((index + 1, line)));
            }
        }
        Ok(None)
    }

    /// The next line of something that began before.
    fn more(&mut self) -> Result<&'a str, String> {
        self.next()?.map(|(_, line)| line).ok_or_else(|| "it does not end".into())
    }
}

impl Header {
    fn item(&mut self, line: &str, lines: &mut Lines) -> Result<(), String> {
        if FRAME.contains(&line) {
            return Ok(());
        }
        if let Some(constant) = line.strip_prefix("#define ") {
            let (name, value) = constant.split_once(' ').ok_or("a constant without a value")?;
            let value = if value == "UINT64_MAX" { Some(u64::MAX) } else { value.parse().ok() };
            self.constants.push((word(name)?, value.ok_or("not a number")?));
        } else if line == "typedef enum {" {
            let (name, body) = block(lines)?;
            let values = body.iter().map(|line| status(line)).collect::<Result<_, _>>()?;
            self.types.insert(name.clone());
            self.enums.push((name, values));
        } else if line == "typedef struct {" {
            let (name, body) = block(lines)?;
            let field = |line: &&str| self.variable(line.strip_suffix(';').ok_or("a field without its end")?);
            let fields = body.iter().map(field).collect::<Result<_, String>>()?;
            self.types.insert(name.clone());
            self.structs.push((name, fields));
        } else if let Some(handle) = line.strip_prefix("typedef uint64_t ") {
            let name = word(handle.strip_suffix(';').ok_or("a type without its end")?)?;
            self.types.insert(name.clone());
            self.handles.push(name);
        } else if let Some(hook) = line.strip_prefix("typedef void (*") {
            let (name, parameters) = hook.split_once(")(").ok_or("a type without parameters")?;
            let hook = self.function(&format!("int {name}({parameters}"))?;
            self.types.insert(hook.name.clone());
            self.hooks.push(hook);
        } else {
            let mut whole = line.to_owned();
            if !line.contains('(') {
                return Err("no declaration that is known here".into());
            }
            while !whole.ends_with(';') {
                whole = format!("{whole} {}", lines.more()?);
            }
            self.functions.push(self.function(&whole)?);
        }
        Ok(())
    }

    fn function(&self, whole: &str) -> Result<Function, String> {
        let inside = whole.strip_suffix(");").ok_or("a function without its end")?;
        let (head, parameters) = inside.split_once('(').ok_or("a function without parameters")?;
        let Variable { name, kind: answer } = self.variable(head)?;
        let parameters = match parameters {
            "void" => Vec::new(),
            some => some.split(',').map(|one| self.variable(one)).collect::<Result<_, _>>()?,
        };
        Ok(Function { name, parameters, answer })
    }

    /// `const char *name` and its like.
    fn variable(&self, text: &str) -> Result<Variable, String> {
        let apart = text.replace('*', " * ");
        let mut words: Vec<&str> = apart.split_whitespace().collect();
        let name = word(words.pop().ok_or("a name is missing")?)?;
        let is_const = words.first() == Some(&"const");
        let (kind, is_pointer) = match &words[usize::from(is_const)..] {
            [kind] if !is_const => (*kind, false),
            [kind, "*"] => (*kind, true),
            _ => return Err(format!("`{text}` is of a form that is not known here")),
        };
        let plain = PLAIN.iter().find(|(c, _)| *c == kind).map(|(_, rust)| *rust);
        let kind = plain.or_else(|| self.types.get(kind).map(String::as_str));
        let kind = kind.filter(|kind| is_pointer || *kind != "c_void");
        let kind = kind.ok_or_else(|| format!("the type of `{text}` is not known here"))?;
        let pointer = match (is_pointer, is_const) {
            (false, _) => "",
            (true, false) => "*mut ",
            (true, true) => "*const ",
        };
        Ok(Variable { name, kind: format!("{pointer}{kind}") })
    }
}

/// The lines between `typedef … {` and `} name;`, and the name.
fn block<'a>(lines: &mut Lines<'a>) -> Result<(String, Vec<&'a str>), String> {
    let mut body = Vec::new();
    loop {
        let line = lines.more()?;
        match line.strip_prefix("} ") {
            Some(end) => return Ok((word(end.strip_suffix(';').ok_or("a type without its end")?)?, body)),
            None => body.push(line),
        }
    }
}

/// `PENSTOCK_OK = 0,`.
fn status(line: &str) -> Result<(String, i32), String> {
    let entry = line.strip_suffix(',').and_then(|entry| entry.split_once(" = "));
    let (name, value) = entry.ok_or_else(|| format!("`{line}` is no value of an enum"))?;
    Ok((word(name)?, value.parse().map_err(|_| format!("`{value}` is not a number"))?))
}

fn word(text: &str) -> Result<String, String> {
    let is_word = !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if is_word { Ok(text.to_owned()) } else { Err(format!("`{text}` is not a name")) }
}
