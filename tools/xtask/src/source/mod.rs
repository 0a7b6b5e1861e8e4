//! One Rust source, line by line: its code, its comments, and which lines are tests.

mod layout;
mod lexer;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use layout::Layout;

/// A source taken apart. Lines are counted from zero.
#[derive(Debug)]
pub(crate) struct Source {
    /// Path from the repository's root.
    pub(crate) path: String,
    /// Code of each line, with comments and the insides of literals blanked.
    pub(crate) code: Vec<String>,
    /// Comments of each line, with everything else blanked.
    pub(crate) comments: Vec<String>,
    /// Items that only tests see.
    test_items: Vec<RangeInclusive<usize>>,
    /// Names of modules in files of their own that only tests see.
    test_modules: Vec<String>,
    /// Whether the whole file is a test.
    is_test: bool,
    /// Which bracket each line starts in.
    layout: Layout,
}

impl Source {
    /// Takes `text` apart.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let separated = lexer::separate(text);
        let code: Vec<String> = separated.code.lines().map(String::from).collect();
        let comments = separated.comments.lines().map(String::from).collect();
        let (test_items, test_modules) = layout::test_items(&code);
        let layout = Layout::of(&code);
        let is_test = path.ends_with("/tests.rs") || path.starts_with("tests/") || path.contains("/tests/");
        Self { path: path.into(), code, comments, test_items, test_modules, is_test, layout }
    }

    /// Whether line `index` is compiled for tests only.
    pub(crate) fn in_test(&self, index: usize) -> bool {
        self.is_test || self.test_items.iter().any(|lines| lines.contains(&index))
    }

    /// Whether the whole file is a test.
    pub(crate) fn is_test(&self) -> bool {
        self.is_test
    }

    /// Lines of the file without the test modules at its end.
    pub(crate) fn lines_without_trailing_tests(&self) -> usize {
        let mut length = self.code.len();
        for lines in self.test_items.iter().rev() {
            let rest = lines.end() + 1..length;
            if !rest.clone().all(|index| self.is_blank(index)) {
                break;
            }
            length = *lines.start();
        }
        length
    }

    /// Every word of code outside literals: line, column in bytes, word.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, usize, &str)> {
        self.code
            .iter()
            .enumerate()
            .flat_map(|(index, line)| words(line).map(move |(column, word)| (index, column, word)))
    }

    /// The code that follows column `column` of line `index`, to the end of the next line.
    pub(crate) fn code_after(&self, index: usize, column: usize) -> String {
        let next = self.code.get(index + 1).map_or("", String::as_str);
        format!("{} {}", &self.code[index][column..], next)
    }

    /// Comments that speak about line `index`: on it, directly above it, or on or directly above
    /// the beginning of the statement it is part of. Attributes may stand in between.
    pub(crate) fn comments_about(&self, index: usize) -> Vec<&str> {
        let mut found = self.comments_at(index);
        let start = self.layout.statement_start(&self.code, index);
        if start != index {
            found.extend(self.comments_at(start));
        }
        found
    }

    /// Whether line `index` stands directly in the implementation of a trait.
    pub(crate) fn is_in_trait_impl(&self, index: usize) -> bool {
        let start = self.layout.statement_start(&self.code, index);
        let Some(open) = self.layout.enclosing_line(start) else { return false };
        let mut head: Vec<&str> = Vec::new();
        for line in self.code[..=open].iter().rev().map(|line| line.trim()) {
            head.insert(0, line);
            let begins = words(line).any(|(_, word)| word == "impl") && !line.starts_with("where");
            if begins || line.is_empty() || line.ends_with('}') {
                break;
            }
        }
        let head = head.join(" ");
        let is_impl = words(&head).find(|(_, word)| *word != "unsafe").is_some_and(|(_, word)| word == "impl");
        is_impl && head.replace("for<", "").contains(" for ")
    }

    /// Comments on line `index` and in the block of comments directly above it.
    fn comments_at(&self, index: usize) -> Vec<&str> {
        let mut found = vec![self.comments[index].as_str()];
        for above in (0..index).rev() {
            if self.is_comment_only(above) {
                found.push(&self.comments[above]);
            } else if !self.code[above].trim_start().starts_with("#[") {
                break;
            }
        }
        found
    }

    /// The block of comments that ends at most `reach` lines above line `index`.
    pub(crate) fn comments_near(&self, index: usize, reach: usize) -> Vec<&str> {
        let nearest = index.saturating_sub(reach);
        let mut found: Vec<&str> = (nearest..index).map(|above| self.comments[above].as_str()).collect();
        if self.is_comment_only(nearest) {
            let block = (0..nearest).rev().take_while(|above| self.is_comment_only(*above));
            found.extend(block.map(|above| self.comments[above].as_str()));
        }
        found
    }

    fn is_comment_only(&self, index: usize) -> bool {
        self.code[index].trim().is_empty() && !self.comments[index].trim().is_empty()
    }

    fn is_blank(&self, index: usize) -> bool {
        self.code[index].trim().is_empty() && self.comments[index].trim().is_empty()
    }
}

/// The words of one line of code and their columns in bytes.
pub(crate) fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = line;
    std::iter::from_fn(move || {
        let start = rest.find(is_word)?;
        let end = rest[start..].find(|c| !is_word(c)).map_or(rest.len(), |length| start + length);
        let column = line.len() - rest.len() + start;
        let word = &rest[start..end];
        rest = &rest[end..];
        Some((column, word))
    })
}

/// Marks files that another one includes as `#[cfg(test)] mod name;`.
pub(crate) fn mark_test_files(sources: &mut [Source]) {
    let mut tests = Vec::new();
    for source in sources.iter() {
        let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
        let folder = match file {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_string(),
            _ => source.path.trim_end_matches(".rs").to_string(),
        };
        tests.extend(source.test_modules.iter().map(|name| format!("{folder}/{name}")));
    }
    for source in sources {
        let belongs = |module: &String| {
            source.path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        source.is_test |= tests.iter().any(belongs);
    }
}
