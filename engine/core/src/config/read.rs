//! From text to a configuration. Every refusal names file, line and column.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_yaml::{Mapping, Value};

use super::error::{ConfigError, ConfigOrigin};
use super::keys::{KEYS, KeyDoc, RefusedKey};
use super::nearest::Suggestion;
use super::rules::conflict;
use super::sections::Config;
use super::tree::{self, Node, PathStep, Position, short};

/// The most bytes of a configuration: several times the commented default.
pub const CONFIG_BYTES_MAX: usize = 128 * 1024;

impl Config {
    /// Reads a configuration file. What it leaves out has its default.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let unreadable = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => ConfigError::NotFound { path: path.into() },
            _ => ConfigError::Unreadable { path: path.into(), source: error },
        };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        // One byte more than is allowed tells a file of the limit's size from an endless one.
        file.take(CONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::parse_bytes(&bytes, &path.display().to_string())
    }

    /// Reads a configuration from YAML. `source_name` is what errors call the text.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        Source { name: source_name, text }.read()
    }

    pub(super) fn parse_bytes(bytes: &[u8], source_name: &str) -> Result<Self, ConfigError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(text, source_name),
            Err(_) if bytes.len() > CONFIG_BYTES_MAX => Err(too_large(source_name)),
            Err(error) => {
                let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let column = 1 + good.chars().rev().take_while(|&c| c != '\n').count();
                let origin =
                    ConfigOrigin::Place { source: source_name.into(), line: 1 + good.matches('\n').count(), column };
                Err(ConfigError::NotText { origin })
            }
        }
    }

    /// The configuration as YAML: every key, with its value.
    ///
    /// A folder whose name is not UTF-8 is written with replacement characters; `validate` refuses
    /// such a folder.
    pub fn to_yaml(&self) -> String {
        serde_yaml::to_string(&self.values()).expect("a YAML value can be written as text")
    }
}

fn too_large(source_name: &str) -> ConfigError {
    ConfigError::TooLarge { origin: ConfigOrigin::Source(source_name.into()), limit: CONFIG_BYTES_MAX }
}

/// A text that is being read, for the sake of the positions in errors.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

/// The entries of a group, each with its name and its index.
type Entries<'n> = Vec<(&'n str, usize, &'n Node)>;

impl Source<'_> {
    fn read(&self) -> Result<Config, ConfigError> {
        if self.text.len() > CONFIG_BYTES_MAX {
            return Err(too_large(self.name));
        }
        let root = tree::read(self.text)
            .map_err(|error| ConfigError::Syntax { origin: self.place(error.position), reason: error.reason })?;
        let mut values = Mapping::new();
        let mut paths = Vec::new();
        for (name, index, node) in self.entries(&root, &[], "")? {
            let Some(section) = KeyDoc::sections().into_iter().find(|section| *section == name) else {
                let suggestion = Suggestion::for_section(name);
                return Err(self.unknown(&[PathStep::Key(index)], name, suggestion));
            };
            let keys = self.section(section, index, node, &mut paths)?;
            values.insert(section.into(), keys.into());
        }
        let config: Config = serde_yaml::from_value(values.into()).map_err(|error| ConfigError::Syntax {
            // Impossible, as a test over every key shows; but what comes from outside never panics.
            origin: self.place(None),
            reason: error.to_string(),
        })?;
        self.check_conflicts(&config, &paths)?;
        Ok(config)
    }

    /// Checks the keys of one section and adds where each stands to `paths`.
    fn section(
        &self,
        section: &'static str,
        at: usize,
        node: &Node,
        paths: &mut Vec<(&'static str, [PathStep; 2])>,
    ) -> Result<Mapping, ConfigError> {
        let mut values = Mapping::new();
        for (name, index, node) in self.entries(node, &[PathStep::Value(at)], section)? {
            let Some(doc) = KEYS.iter().find(|doc| doc.parts() == (section, name)) else {
                let (key, suggestion) = (format!("{section}.{name}"), Suggestion::for_key(section, name));
                return Err(self.unknown(&[PathStep::Value(at), PathStep::Key(index)], &key, suggestion));
            };
            let path = [PathStep::Value(at), PathStep::Value(index)];
            values.insert(name.into(), self.value(doc, node, path)?);
            paths.push((doc.key, path));
        }
        Ok(values)
    }

    /// The value of one key, if its range accepts it.
    fn value(&self, doc: &KeyDoc, node: &Node, path: [PathStep; 2]) -> Result<Value, ConfigError> {
        let bad = |path: &[PathStep], node: &Node| ConfigError::BadValue {
            origin: self.place(tree::locate(self.text, path)),
            key: doc.key,
            expected: doc.range,
            found: node.describe(),
        };
        let bad_item = |index: usize, item: &Node| bad(&[path[0], path[1], PathStep::Item(index)], item);
        let value = match node {
            Node::Scalar(value) => value.clone(),
            Node::List(items) => {
                let scalar = |(index, item): (usize, &Node)| match item {
                    Node::Scalar(value) => Ok(value.clone()),
                    _ => Err(bad_item(index, item)),
                };
                Value::Sequence(items.iter().enumerate().map(scalar).collect::<Result<_, _>>()?)
            }
            Node::Map(_) | Node::Strange(_) => return Err(bad(&path, node)),
        };
        match (doc.range.refused(&value), node) {
            (None, _) => Ok(value),
            (Some(RefusedKey::Item(index)), Node::List(items)) => Err(bad_item(index, &items[index])),
            (Some(_), _) => Err(bad(&path, node)),
        }
    }

    /// The entries of a group of keys: words, none of them twice. Nothing at all is an empty group,
    /// so that every key below a section can be commented out.
    fn entries<'n>(&self, node: &'n Node, path: &[PathStep], section: &str) -> Result<Entries<'n>, ConfigError> {
        let shape = |path: &[PathStep], expected, node: &Node| ConfigError::Shape {
            origin: self.place(tree::locate(self.text, path)),
            expected,
            found: node.describe(),
        };
        let entries = match node {
            Node::Map(entries) => entries,
            Node::Scalar(Value::Null) => return Ok(Vec::new()),
            _ if path.is_empty() => return Err(shape(path, "sections such as `workers:`", node)),
            _ => return Err(shape(path, "keys, each indented on a line of its own", node)),
        };
        let mut found: Entries<'n> = Vec::new();
        for (index, (key, value)) in entries.iter().enumerate() {
            let here = [path, &[PathStep::Key(index)]].concat();
            let Node::Scalar(Value::String(name)) = key else {
                return Err(shape(&here, "the name of a key or section", key));
            };
            // Quadratic, over no more nodes than a tree may have.
            if found.iter().any(|(earlier, ..)| earlier == name) {
                let key = if section.is_empty() { name.clone() } else { format!("{section}.{name}") };
                let origin = self.place(tree::locate(self.text, &here));
                return Err(ConfigError::Duplicate { origin, key: short(&key) });
            }
            found.push((name, index, value));
        }
        Ok(found)
    }

    fn check_conflicts(&self, config: &Config, paths: &[(&'static str, [PathStep; 2])]) -> Result<(), ConfigError> {
        let Some(conflict) = conflict(config) else {
            return Ok(());
        };
        let of_key = |key: &str| paths.iter().find(|(given, _)| *given == key);
        let path = conflict.keys().into_iter().find_map(of_key);
        let position = path.and_then(|(_, path)| tree::locate(self.text, path));
        Err(ConfigError::Conflict { origin: self.place(position), conflict })
    }

    fn unknown(&self, path: &[PathStep], key: &str, suggestion: Suggestion) -> ConfigError {
        ConfigError::UnknownKey { origin: self.place(tree::locate(self.text, path)), key: short(key), suggestion }
    }

    fn place(&self, position: Option<Position>) -> ConfigOrigin {
        let source = self.name.to_owned();
        match position {
            Some((line, column)) => ConfigOrigin::Place { source, line, column },
            None => ConfigOrigin::Source(source),
        }
    }
}
