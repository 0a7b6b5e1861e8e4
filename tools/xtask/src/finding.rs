//! What a rule says when it is broken: where, what, and how to mend it.

use std::fmt;

/// One breach of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path from the repository's root.
    pub(crate) path: String,
    /// Line, counted from one; zero when the file as a whole is meant.
    pub(crate) line: usize,
    /// What is wrong.
    pub(crate) wrong: String,
    /// What to do about it.
    pub(crate) mend: String,
}

impl Finding {
    /// A finding in `path` at the zero-based line `index`.
    pub(crate) fn at(path: &str, index: usize, wrong: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { path: path.into(), line: index + 1, wrong: wrong.into(), mend: mend.into() }
    }

    /// A finding about `path` as a whole.
    pub(crate) fn of(path: &str, wrong: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { path: path.into(), line: 0, wrong: wrong.into(), mend: mend.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}\n    mend: {}", self.wrong, self.mend)
    }
}
