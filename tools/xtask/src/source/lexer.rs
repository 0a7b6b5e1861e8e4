//! Tells code, comments and literals apart.
//!
//! Not a parser: just enough of Rust's lexical grammar that a word in a comment or a string is
//! never taken for code, and a quote in a comment never opens a string.

/// A text in two copies of the same shape: each keeps its own part and blanks the other's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Separated {
    /// Code; comments and the insides of literals are spaces.
    pub(super) code: String,
    /// Comments with their markers; everything else is spaces.
    pub(super) comments: String,
}

/// Separates the code of `text` from its comments.
pub(super) fn separate(text: &str) -> Separated {
    let mut lexer =
        Lexer { text: text.chars().collect(), at: 0, out: Separated { code: String::new(), comments: String::new() } };
    while lexer.at < lexer.text.len() {
        lexer.step();
    }
    lexer.out
}

struct Lexer {
    text: Vec<char>,
    at: usize,
    out: Separated,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => self.line_comment(),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.quote(),
            (Some(c), _) if is_word(c) => self.word(),
            _ => self.code(),
        }
    }

    /// Passes one character on as code.
    fn code(&mut self) {
        let Some(c) = self.peek(0) else { return };
        self.out.code.push(c);
        self.out.comments.push(blank(c));
        self.at += 1;
    }

    /// Passes one character on as comment.
    fn comment(&mut self) {
        let Some(c) = self.peek(0) else { return };
        self.out.code.push(blank(c));
        self.out.comments.push(c);
        self.at += 1;
    }

    /// Blanks one character in both: the inside of a literal.
    fn inside(&mut self) {
        let Some(c) = self.peek(0) else { return };
        self.out.code.push(blank(c));
        self.out.comments.push(blank(c));
        self.at += 1;
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.comment();
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                (None, _) => return,
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.comment();
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.comment();
                }
                _ => {}
            }
            self.comment();
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.code();
        while let Some(c) = self.peek(0) {
            match c {
                '"' => return self.code(),
                '\\' => {
                    self.inside();
                    self.inside();
                }
                _ => self.inside(),
            }
        }
    }

    /// A raw string, standing at its first `#` or quote.
    fn raw_string(&mut self, hashes: usize) {
        for _ in 0..=hashes {
            self.code();
        }
        while self.at < self.text.len() {
            let closes = self.peek(0) == Some('"') && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if closes {
                for _ in 0..=hashes {
                    self.code();
                }
                return;
            }
            self.inside();
        }
    }

    /// A character literal, or the tick of a lifetime or a label.
    fn quote(&mut self) {
        let is_literal = self.peek(1) == Some('\\') || (self.peek(1) != Some('\'') && self.peek(2) == Some('\''));
        self.code();
        if !is_literal {
            return;
        }
        if self.peek(0) == Some('\\') {
            self.inside();
        }
        self.inside();
        while self.peek(0).is_some_and(|c| c != '\'' && c != '\n') {
            self.inside();
        }
        self.code();
    }

    /// An identifier or a number; if it is the prefix of a raw string, that string too.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.code();
        }
        let word: String = self.text[start..self.at].iter().collect();
        if matches!(word.as_str(), "r" | "br" | "cr") {
            let hashes = self.text[self.at..].iter().take_while(|c| **c == '#').count();
            if self.peek(hashes) == Some('"') {
                self.raw_string(hashes);
            }
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A space that keeps lines and columns where they were.
fn blank(c: char) -> char {
    if c == '\n' { '\n' } else { ' ' }
}
