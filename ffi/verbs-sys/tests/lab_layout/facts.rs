//! What is compared: every line of the list in `layout`, as a fact with a name and a number.

use std::collections::BTreeMap;
use std::fmt;

use penstock_verbs_sys::layout::{self, Constant, Enum, Field, Function, Growth, Struct};

/// What a fact is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// How many bytes a structure has.
    Size(&'static Struct),
    /// On what addresses a structure may stand.
    Align(&'static Struct),
    /// How many bytes lie before a field; behind its beginning, for structures that grow at the front.
    Offset(&'static Struct, &'static Field),
    /// How many bytes a field has.
    FieldSize(&'static Struct, &'static Field),
    /// 1: a field's type is the one here.
    FieldType(&'static Struct, &'static Field),
    /// How many bytes an enumeration has.
    EnumSize(&'static Enum),
    /// 1 if an enumeration can be negative, 0 if not.
    EnumSign(&'static Enum),
    /// A number's value.
    Value(&'static Constant),
    /// 1: a function's type is the one here.
    FunctionType(&'static Function),
}

/// One line of the comparison.
#[derive(Debug, Clone)]
pub(crate) struct Fact {
    /// What it is about.
    pub(crate) what: What,
    /// Its name.
    pub(crate) key: String,
    /// What it is here.
    pub(crate) value: i64,
    /// Whether the others may have more.
    pub(crate) may_be_more: bool,
}

impl Fact {
    fn of(what: What, value: usize) -> Self {
        let key = match what {
            What::Size(of) => format!("size of {}", of.name),
            What::Align(of) => format!("alignment of {}", of.name),
            What::Offset(of, field) => format!("offset of {}.{}", of.name, field.name),
            What::FieldSize(of, field) => format!("size of {}.{}", of.name, field.name),
            What::FieldType(of, field) => format!("type of {}.{}: {}", of.name, field.name, field.of),
            What::EnumSize(of) => format!("size of {}", of.name),
            What::EnumSign(of) => format!("sign of {}", of.name),
            What::Value(of) => format!("value of {}", of.name),
            What::FunctionType(of) => format!("type of {}({}) {}", of.name, of.arguments.join(", "), of.returns),
        };
        // Long types are written over several lines.
        let key = key.split_whitespace().collect::<Vec<_>>().join(" ");
        let may_be_more = matches!(what, What::Size(of) if of.growth != Growth::Never);
        Self { what, key, value: i64::try_from(value).expect("sizes are small"), may_be_more }
    }
}

/// Everything that is in the list.
pub(crate) fn all() -> Vec<Fact> {
    let structs = layout::structs().flat_map(|of| {
        let fields = of.fields.iter().flat_map(move |field| {
            let place = if of.growth == Growth::AtFront { of.size - field.offset } else { field.offset };
            let typed = (field.of != "Unused").then(|| Fact::of(What::FieldType(of, field), 1));
            [Fact::of(What::Offset(of, field), place), Fact::of(What::FieldSize(of, field), field.size)]
                .into_iter()
                .chain(typed)
        });
        [Fact::of(What::Size(of), of.size), Fact::of(What::Align(of), of.align)].into_iter().chain(fields)
    });
    let enums = layout::enums().flat_map(|of| {
        [Fact::of(What::EnumSize(of), of.size), Fact::of(What::EnumSign(of), usize::from(of.is_signed))]
    });
    let values = layout::constants().map(|of| Fact { value: of.value, ..Fact::of(What::Value(of), 0) });
    let functions = layout::functions().map(|of| Fact::of(What::FunctionType(of), 1));
    structs.chain(enums).chain(values).chain(functions).collect()
}

/// One fact of each kind, and each of them wrong.
pub(crate) fn broken() -> Vec<Fact> {
    static FIELD: Field = Field { name: "qp_num", c: "qp_num", offset: 0, size: 4, of: "i32" };
    static FUNCTION: Function = Function {
        name: "ibv_modify_qp",
        version: "",
        library: "",
        is_optional: false,
        arguments: &["*mut ibv_qp", "*mut ibv_qp_init_attr", "c_int"],
        returns: "c_int",
    };
    let queue = layout::structs().find(|of| of.name == "ibv_qp").expect("queue pairs are in the list");
    let state = layout::enums().find(|of| of.name == "ibv_qp_state").expect("their states are in the list");
    let ready = layout::constants().find(|of| of.name == "IBV_QPS_RTS").expect("this state is in the list");
    vec![
        Fact::of(What::Size(queue), queue.size + 8),
        Fact::of(What::Align(queue), queue.align * 2),
        Fact::of(What::Offset(queue, &FIELD), queue.fields[7].offset + 4),
        Fact::of(What::FieldSize(queue, &FIELD), 8),
        Fact::of(What::FieldType(queue, &FIELD), 1),
        Fact::of(What::EnumSize(state), 8),
        Fact::of(What::EnumSign(state), 1),
        Fact::of(What::Value(ready), 4),
        Fact::of(What::FunctionType(&FUNCTION), 1),
    ]
}

/// How the facts compare with what somebody else says of them.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// How many are the same.
    pub(crate) equal: usize,
    /// Those that are not, and how.
    pub(crate) wrong: Vec<String>,
    /// Those that the other says nothing of.
    pub(crate) absent: Vec<String>,
}

impl Comparison {
    /// Compares `facts` with `theirs`.
    pub(crate) fn of(facts: &[Fact], theirs: &BTreeMap<String, i64>) -> Self {
        let mut comparison = Self::default();
        for fact in facts {
            match theirs.get(&fact.key) {
                None => comparison.absent.push(fact.key.clone()),
                Some(value) if *value == fact.value || (fact.may_be_more && *value > fact.value) => {
                    comparison.equal += 1;
                }
                Some(value) => comparison.wrong.push(format!("{}: {} here, {value} there", fact.key, fact.value)),
            }
        }
        comparison
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { equal, wrong, absent } = self;
        write!(f, "{equal} facts agree, {} do not, {} are not known there", wrong.len(), absent.len())
    }
}
