//! The text of a shared secret.

use penstock_session::Secret;

/// Any text is a secret or a typed error, which repeats no digits; a secret is written as it is read.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Secret::parse(&text) {
        Ok(secret) => {
            let again = secret.to_text();
            let line = text.lines().map(str::trim).find(|line| line.eq_ignore_ascii_case(again.trim_end()));
            assert!(line.is_some(), "a secret is another than its line says");
            assert_eq!(Secret::parse(&again).map(|secret| secret.to_text()), Ok(again));
        }
        Err(error) => {
            let words = error.to_string();
            let hexadecimal = |word: &str| word.len() > 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(!words.split_whitespace().any(hexadecimal), "an error tells a secret: {words}");
        }
    }
}

/// Reads one text.
pub fn parse(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        drop(Secret::parse(text));
    }
}
