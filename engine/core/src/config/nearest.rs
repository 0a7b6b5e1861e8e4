//! What somebody who wrote a key that does not exist may have meant.

use std::fmt;

use super::keys::{KEYS, KeyDoc, quoted};

/// What may have been meant by a key that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suggestion {
    /// A key that is spelled alike.
    Key(&'static str),
    /// A section that is spelled alike.
    Section(&'static str),
    /// The right path, written as one word where YAML wants it nested.
    Nest(&'static str),
    /// Nothing is spelled alike; this section has these keys.
    KeysOf(&'static str),
    /// Nothing is spelled alike; these are the sections.
    Sections,
}

/// Longer words are cut before they are compared: no key has this many letters, and comparing
/// takes time in proportion to the product of both lengths.
const LETTERS_COMPARED_MAX: usize = 48;

impl Suggestion {
    /// For a name that is not in this section.
    pub(super) fn for_key(section: &'static str, name: &str) -> Self {
        let here = KEYS.iter().filter(|doc| doc.parts().0 == section);
        let elsewhere = KEYS.iter().filter(|doc| doc.parts().0 != section);
        nearest_key(here, name).or_else(|| nearest_key(elsewhere, name)).map_or(Self::KeysOf(section), Self::Key)
    }

    /// For a name that is no section.
    pub(super) fn for_section(name: &str) -> Self {
        if let Some(doc) = KeyDoc::find(name) {
            return Self::Nest(doc.key);
        }
        let sections = KeyDoc::sections();
        if let Some(section) = nearest(sections.iter().map(|&section| (section, section)), name) {
            return Self::Section(section);
        }
        let by_path = || nearest(KEYS.iter().map(|doc| (doc.key, doc.key)), name);
        nearest_key(KEYS.iter(), name).or_else(by_path).map_or(Self::Sections, Self::Key)
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => write!(f, ": did you mean `{key}`?"),
            Self::Section(section) => write!(f, ": did you mean the section `{section}`?"),
            Self::Nest(key) => {
                let (section, name) = key.split_once('.').unwrap_or(("", key));
                write!(f, " at the top: write `{section}:` and, indented below it, `{name}:`")
            }
            Self::KeysOf(section) => write!(f, ": the keys of `{section}` are {}", quoted(&KeyDoc::names_in(section))),
            Self::Sections => write!(f, ": the sections are {}", quoted(&KeyDoc::sections())),
        }
    }
}

fn nearest_key(docs: impl Iterator<Item = &'static KeyDoc>, name: &str) -> Option<&'static str> {
    nearest(docs.map(|doc| (doc.parts().1, doc.key)), name)
}

/// The second half of the pair whose first half is spelled most like the word, if any is.
fn nearest(candidates: impl Iterator<Item = (&'static str, &'static str)>, word: &str) -> Option<&'static str> {
    candidates
        .map(|(spelling, answer)| (distance(spelling, word), spelling, answer))
        .filter(|(distance, spelling, _)| *distance <= tolerance(spelling))
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., answer)| answer)
}

/// A third of the letters may be wrong: more, and the question would be sillier than none.
fn tolerance(spelling: &str) -> usize {
    (spelling.len() / 3).max(1)
}

/// Letters to insert, remove, replace or swap with their neighbour to make one word the other.
fn distance(a: &str, b: &str) -> usize {
    let letters = |word: &str| -> Vec<char> {
        word.chars()
            .take(LETTERS_COMPARED_MAX)
            .flat_map(char::to_lowercase)
            .map(|c| if c == '-' { '_' } else { c })
            .collect()
    };
    let (a, b) = (letters(a), letters(b));
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replace = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replace.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_slips_of_the_finger() {
        assert_eq!(distance("spin_us", "spin_us"), 0);
        assert_eq!(distance("spin_us", "Spin-US"), 0);
        assert_eq!(distance("spin_us", "spinus"), 1);
        assert_eq!(distance("count", "cuont"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance(&"x".repeat(1_000_000), ""), LETTERS_COMPARED_MAX);
    }

    #[test]
    fn the_own_section_comes_first_then_the_others() {
        assert_eq!(Suggestion::for_key("workers", "spinus"), Suggestion::Key("workers.spin_us"));
        assert_eq!(Suggestion::for_key("session", "spin_us"), Suggestion::Key("workers.spin_us"));
        assert_eq!(Suggestion::for_key("session", "timeout_ms"), Suggestion::Key("transfers.timeout_ms"));
        assert_eq!(Suggestion::for_key("memory", "colour"), Suggestion::KeysOf("memory"));
    }

    #[test]
    fn sections_nested_paths_and_lone_keys_are_told_apart() {
        assert_eq!(Suggestion::for_section("worker"), Suggestion::Section("workers"));
        assert_eq!(Suggestion::for_section("workers.spin_us"), Suggestion::Nest("workers.spin_us"));
        assert_eq!(Suggestion::for_section("spin_us"), Suggestion::Key("workers.spin_us"));
        assert_eq!(Suggestion::for_section("worker.spin_us"), Suggestion::Key("workers.spin_us"));
        assert_eq!(Suggestion::for_section("zzz"), Suggestion::Sections);
    }
}
