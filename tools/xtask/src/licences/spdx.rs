//! Licence expressions: `MIT OR (Apache-2.0 WITH LLVM-exception AND BSD-3-Clause)`.
//!
//! ```text
//! either := both  ((OR | "/") both)*
//! both   := one   (AND one)*
//! one    := "(" either ")" | licence [WITH exception]
//! ```

/// Whether somebody who accepts only `allowed` may use what is licensed under `expression`.
pub(super) fn allows(expression: &str, allowed: &[&str]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut parser = Parser { words: spaced.split_whitespace().collect(), at: 0, allowed };
    let answer = parser.either()?;
    match parser.peek() {
        None => Ok(answer),
        Some(word) => Err(format!("`{word}` was not expected")),
    }
}

struct Parser<'a> {
    words: Vec<&'a str>,
    at: usize,
    allowed: &'a [&'a str],
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    /// Steps over `word` if it is next.
    fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.at += usize::from(is_next);
        is_next
    }

    fn either(&mut self) -> Result<bool, String> {
        let mut answer = self.both()?;
        while self.take("OR") {
            answer |= self.both()?;
        }
        Ok(answer)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut answer = self.one()?;
        while self.take("AND") {
            answer &= self.one()?;
        }
        Ok(answer)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.take("(") {
            let answer = self.either()?;
            return if self.take(")") { Ok(answer) } else { Err("a parenthesis is not closed".into()) };
        }
        let mut name = self.name()?.to_string();
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.name()?);
        }
        Ok(self.allowed.contains(&name.as_str()))
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            Some(word) if !matches!(word, "(" | ")" | "AND" | "OR" | "WITH") => {
                self.at += 1;
                Ok(word)
            }
            Some(word) => Err(format!("`{word}` stands where a licence should")),
            None => Err("it ends where a licence should follow".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[&str] = &["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];

    #[test]
    fn one_side_of_or_is_enough_and_both_of_and_are_needed() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0 OR MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 / LGPL-3.0", false),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND NCSA", false),
            ("MIT OR GPL-3.0 AND NCSA", true),
            ("(MIT OR GPL-3.0) AND NCSA", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH Other-exception", false),
            ("Unlicense OR MIT", true),
            ("Unlicense", false),
        ] {
            assert_eq!(allows(expression, ALLOWED), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn nonsense_is_an_error_and_not_a_pass() {
        for expression in ["", "MIT OR", "AND MIT", "(MIT", "MIT)", "MIT MIT", "MIT WITH", "()"] {
            assert!(allows(expression, ALLOWED).is_err(), "{expression}");
        }
    }
}
