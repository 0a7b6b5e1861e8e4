//! Types of Rust, as the list writes them, in C.

use penstock_verbs_sys::layout;

/// The C type that `written` stands for, as an expression of types that can be used wherever a name can. `wide` is what a `u64` is.
pub(crate) fn c_type(written: &str, wide: &str) -> String {
    // Long types are written over several lines.
    let written = written.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parser = Parser { rest: &written, wide };
    let found = parser.any();
    assert!(parser.rest.trim().is_empty(), "{written:?} is not understood from {:?}", parser.rest);
    found
}

/// The C type of a pointer to a function.
pub(crate) fn c_function(arguments: &[&str], returns: &str, wide: &str) -> String {
    let arguments: Vec<String> = arguments.iter().map(|written| c_type(written, wide)).collect();
    let returns = if returns.is_empty() { "void".to_owned() } else { c_type(returns, wide) };
    function(&arguments, &returns)
}

fn function(arguments: &[String], returns: &str) -> String {
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    format!("__typeof__({returns} (*)({arguments}))")
}

struct Parser<'a> {
    rest: &'a str,
    wide: &'a str,
}

impl Parser<'_> {
    /// Takes `word` if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let rest = self.rest.trim_start();
        let is_next = rest.strip_prefix(word);
        self.rest = is_next.unwrap_or(rest);
        is_next.is_some()
    }

    fn must(&mut self, word: &str) {
        assert!(self.take(word), "{word:?} is missing before {:?}", self.rest);
    }

    /// A name, without the modules before it.
    fn name(&mut self) -> String {
        let rest = self.rest.trim_start();
        let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'));
        let (name, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.rest = rest;
        name.rsplit(':').next().unwrap_or(name).to_owned()
    }

    fn any(&mut self) -> String {
        if self.take("*") {
            let constant = if self.take("const ") { "const " } else { "" };
            self.take("mut ");
            let target = self.any();
            return format!("__typeof__({constant}{target} *)");
        }
        if self.take("[") {
            let element = self.any();
            self.must(";");
            let count = self.name();
            self.must("]");
            return format!("__typeof__({element}[{count}])");
        }
        if self.take("Option") {
            self.must("<");
            let function = self.any();
            self.take(",");
            self.must(">");
            return function;
        }
        if self.take("unsafe") {
            ["extern", "\"C\"", "fn", "("].into_iter().for_each(|word| self.must(word));
            let mut arguments = Vec::new();
            while !self.take(")") {
                arguments.push(self.any());
                self.take(",");
            }
            let returns = if self.take("->") { self.any() } else { "void".to_owned() };
            return function(&arguments, &returns);
        }
        let name = self.name();
        self.named(&name)
    }

    fn named(&self, name: &str) -> String {
        let c = match name {
            "c_void" => "void",
            "c_char" => "char",
            "c_int" | "i32" => "int",
            "c_uint" => "unsigned int",
            "u8" => "uint8_t",
            "u16" => "uint16_t",
            "u32" => "uint32_t",
            "u64" => self.wide,
            "usize" => "size_t",
            "isize" => "ssize_t",
            "pthread_mutex_t" | "pthread_cond_t" | "socklen_t" => name,
            _ if layout::enums().any(|of| of.name == name) => return format!("enum {name}"),
            _ => match layout::structs().find(|of| of.name == name) {
                Some(known) => known.c,
                None => return format!("struct {name}"),
            },
        };
        c.to_owned()
    }
}

#[test]
fn types_are_written_as_c_writes_them() {
    let wide = "uint64_t";
    assert_eq!(c_type("*mut *mut ibv_qp", wide), "__typeof__(__typeof__(struct ibv_qp *) *)");
    assert_eq!(c_type("* const c_void", wide), "__typeof__(const void *)");
    assert_eq!(c_type("[c_char; 64]", wide), "__typeof__(char[64])");
    assert_eq!(c_type("super::constants::ibv_mtu", wide), "enum ibv_mtu");
    assert_eq!(c_type("ibv_gid", "__u64"), "union ibv_gid");
    let written = "Option< unsafe extern \"C\"\nfn(*mut ibv_cq, u64,) -> c_int, >";
    assert_eq!(c_type(written, wide), "__typeof__(int (*)(__typeof__(struct ibv_cq *), uint64_t))");
    assert_eq!(c_function(&[], "", wide), "__typeof__(void (*)(void))");
}
