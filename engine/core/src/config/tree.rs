//! A YAML text as a small tree, bounded, and the way back from a node to its line and column.
//!
//! The tree keeps what a map of values would lose: the order of keys, repeated keys, and keys that
//! are no words. It keeps no positions, because the parser tells a position only with an error; so
//! [`locate`] reads the text again and raises one at the node in question. Only refusals pay for it.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_yaml::Value;

/// Sections, keys, lists, their items: nothing lies deeper.
const DEPTH_MAX: usize = 3;
/// Nodes of one text: many times what all keys together need. Aliases multiply nodes, so the length
/// of the text does not bound them.
const NODES_MAX: usize = 1024;

/// A node of the tree.
#[derive(Debug)]
pub(super) enum Node {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
    /// Something no key accepts, in words.
    Strange(String),
}

/// One step from a node to a node below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathStep {
    /// The key of the entry with this index.
    Key(usize),
    /// The value of the entry with this index.
    Value(usize),
    /// The list element with this index.
    Item(usize),
}

/// A place in a text: line and column, counted from 1.
pub(super) type Position = (usize, usize);

/// Why a text has no tree.
#[derive(Debug)]
pub(super) struct NotYaml {
    pub(super) reason: String,
    pub(super) position: Option<Position>,
}

pub(super) fn read(text: &str) -> Result<Node, NotYaml> {
    // The parser spends microseconds on a bracket for every thousand that are open around it.
    if text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() > NODES_MAX {
        return Err(NotYaml { reason: format!("more than {NODES_MAX} opening brackets"), position: None });
    }
    let mut nodes_left = NODES_MAX;
    let seed = Reader { depth_left: DEPTH_MAX, nodes_left: &mut nodes_left };
    seed.deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|error| NotYaml::from(&error))
}

/// The position of a node of a text that [`read`] accepted.
pub(super) fn locate(text: &str, path: &[PathStep]) -> Option<Position> {
    let found = Locator { path }.deserialize(serde_yaml::Deserializer::from_str(text));
    found.err().and_then(|error| position(&error))
}

fn position(error: &serde_yaml::Error) -> Option<Position> {
    error.location().map(|place| (place.line(), place.column()))
}

impl From<&serde_yaml::Error> for NotYaml {
    fn from(error: &serde_yaml::Error) -> Self {
        // The place is told apart from the reason, so it must not be in it a second time.
        let position = position(error);
        let mut reason = error.to_string();
        if let Some((line, column)) = position {
            reason = reason.replacen(&format!(" at line {line} column {column}"), "", 1);
        }
        Self { reason, position }
    }
}

struct Reader<'a> {
    depth_left: usize,
    nodes_left: &'a mut usize,
}

impl Reader<'_> {
    fn below(&mut self) -> Reader<'_> {
        Reader { depth_left: self.depth_left - 1, nodes_left: self.nodes_left }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        *self.nodes_left = self
            .nodes_left
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom(format_args!("more than {NODES_MAX} values")))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Strange(format!("the number {value}")))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Strange(format!("the number {value}")))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        if self.depth_left == 0 {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(Node::Strange("a list".into()));
        }
        while let Some(item) = list.next_element_seed(self.below())? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        if self.depth_left == 0 {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Node::Strange("a group of keys".into()));
        }
        while let Some(key) = map.next_key_seed(self.below())? {
            entries.push((key, map.next_value_seed(self.below())?));
        }
        Ok(Node::Map(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Node, A::Error> {
        let (tag, value) = tagged.variant::<String>()?;
        value.newtype_variant::<IgnoredAny>()?;
        Ok(Node::Strange(format!("the tag {}", shown(&format!("!{tag}")))))
    }
}

/// Walks a path and fails at its end, so that the parser tells where that is.
struct Locator<'a> {
    path: &'a [PathStep],
}

impl<'de> DeserializeSeed<'de> for Locator<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Locator<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every visit that is not written out below ends here, which is as good: it is an error.
        f.write_str("the end of the path")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((&PathStep::Item(index), path)) = self.path.split_first() else {
            return Err(A::Error::custom("here"));
        };
        for _ in 0..index {
            list.next_element::<IgnoredAny>()?;
        }
        list.next_element_seed(Locator { path }).map(drop)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((&step, path)) = self.path.split_first() else {
            return Err(A::Error::custom("here"));
        };
        let (PathStep::Key(index) | PathStep::Value(index) | PathStep::Item(index)) = step;
        for _ in 0..index {
            map.next_entry::<IgnoredAny, IgnoredAny>()?;
        }
        if matches!(step, PathStep::Key(_)) {
            return map.next_key_seed(Locator { path }).map(drop);
        }
        map.next_key::<IgnoredAny>()?;
        map.next_value_seed(Locator { path })
    }
}

impl Node {
    /// What was found, in words, short whatever it is.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Scalar(value) => describe(value),
            Self::List(items) if items.is_empty() => "an empty list".into(),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a group of keys".into(),
            Self::Strange(what) => what.clone(),
        }
    }
}

/// A value in words, short whatever it is.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(value) => format!("`{value}`"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {}", shown(text)),
        Value::Sequence(items) => {
            let items: Vec<_> = items.iter().take(20).map(describe).collect();
            format!("a list of {}", items.join(", "))
        }
        Value::Mapping(_) | Value::Tagged(_) => "a group of keys".into(),
    }
}

/// Somebody else's text in a message: short, in quotes, without control characters.
fn shown(text: &str) -> String {
    format!("`{}`", short(text))
}

/// Somebody else's text: short, without control characters.
pub(super) fn short(text: &str) -> String {
    const CHARS_MAX: usize = 64;
    let mut short: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}
