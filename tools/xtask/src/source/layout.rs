//! Where statements begin and which items only tests see, by counting brackets.

use std::ops::RangeInclusive;

/// For every line, the innermost bracket that is open where the line begins.
#[derive(Debug)]
pub(super) struct Layout {
    open_at_start: Vec<Option<(char, usize)>>,
}

impl Layout {
    /// The layout of these lines of code.
    pub(super) fn of(code: &[String]) -> Self {
        let mut open: Vec<(char, usize)> = Vec::new();
        let mut open_at_start = Vec::with_capacity(code.len());
        for (index, line) in code.iter().enumerate() {
            open_at_start.push(open.last().copied());
            for c in line.chars() {
                match c {
                    '(' | '[' | '{' => open.push((c, index)),
                    ')' | ']' | '}' => {
                        open.pop();
                    }
                    _ => {}
                }
            }
        }
        Self { open_at_start }
    }

    /// The line of the bracket in which line `index` begins.
    pub(super) fn enclosing_line(&self, index: usize) -> Option<usize> {
        self.open_at_start[index].map(|(_, line)| line)
    }

    /// The line on which the statement around line `index` begins.
    pub(super) fn statement_start(&self, code: &[String], index: usize) -> usize {
        let mut start = index;
        loop {
            let enclosing = self.open_at_start[start].filter(|(bracket, _)| *bracket != '{');
            if let Some((_, line)) = enclosing {
                start = line;
            } else if start > 0 && is_unfinished(&code[start - 1]) {
                start -= 1;
            } else {
                return start;
            }
        }
    }
}

/// Whether a statement goes on after this line.
fn is_unfinished(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.ends_with([';', '{', '}', ',']) && !is_attribute(line)
}

fn is_attribute(line: &str) -> bool {
    line.starts_with("#[") || line.starts_with("#![")
}

/// Items that only tests see, and the names of those that are modules in files of their own.
pub(super) fn test_items(code: &[String]) -> (Vec<RangeInclusive<usize>>, Vec<String>) {
    let mut items: Vec<RangeInclusive<usize>> = Vec::new();
    let mut modules = Vec::new();
    for (index, line) in code.iter().enumerate() {
        if items.last().is_some_and(|last| last.contains(&index)) || !is_test_attribute(line) {
            continue;
        }
        let (end, head) = item_end(code, index);
        items.push(index..=end);
        if head.ends_with(';') {
            let names = head.trim_end_matches(';').split_once("mod ").map(|(_, name)| name.trim().to_string());
            modules.extend(names);
        }
    }
    (items, modules)
}

/// Whether the line carries `#[test]` or a `#[cfg(…)]` that holds in tests only.
fn is_test_attribute(line: &str) -> bool {
    let line = line.trim_start();
    if line.starts_with("#[test]") {
        return true;
    }
    let Some(condition) = line.strip_prefix("#[cfg(").and_then(|rest| rest.split_once(']')).map(|(inside, _)| inside)
    else {
        return false;
    };
    let outside_tests = condition.contains("not(test") || condition.contains("any(");
    !outside_tests && super::words(condition).any(|(_, word)| word == "test")
}

/// The last line of the item that the attribute on line `start` stands before, and its code up to
/// the first brace or semicolon.
fn item_end(code: &[String], start: usize) -> (usize, String) {
    let mut depth = 0_usize;
    let mut head = String::new();
    let mut in_body = false;
    for (index, line) in code.iter().enumerate().skip(start) {
        for c in line.chars() {
            if !in_body {
                head.push(c);
            }
            match c {
                '(' | '[' => depth += 1,
                '{' => {
                    in_body |= depth == 0;
                    depth += 1;
                }
                ')' | ']' | '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && c == '}' {
                        return (index, head);
                    }
                }
                ';' if depth == 0 => return (index, head),
                _ => {}
            }
        }
        head.push(' ');
    }
    (code.len().saturating_sub(1), head)
}
