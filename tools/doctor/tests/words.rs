//! Wherever the repository sends somebody to the doctor, the topic exists.

use std::path::{Path, PathBuf};

use penstock_doctor::Topic;

const COMMAND: &str = "penstock doctor ";

fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            texts(&path, found);
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The words behind the command up to the end of the code it stands in.
fn topics(text: &str) -> impl Iterator<Item = &str> {
    text.split(COMMAND).skip(1).flat_map(|rest| {
        let code = rest.split(['`', '"', '\n', '#', '|', ')']).next().unwrap_or_default();
        // An explanation stands at some distance.
        let code = code.split("  ").next().unwrap_or_default();
        code.split_whitespace()
            .take_while(|word| !word.starts_with(['-', '{', '\\', '[']))
            // A word with one of these is a host, as the command reads it.
            .filter(|word| !word.contains(|c: char| c.is_ascii_digit() || matches!(c, '.' | ':' | '-')))
            .filter(|word| !["TOPIC", "HOST"].contains(word))
    })
}

#[test]
fn whoever_points_to_the_doctor_names_a_topic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    texts(&root, &mut paths);
    let mut pointers = 0;
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in topics(&text) {
            assert!(Topic::find(word).is_some(), "{}: `{COMMAND}{word}`", path.display());
            pointers += 1;
        }
    }
    assert!(pointers > 5, "only {pointers} pointers found");
}

#[test]
fn wrong_words_are_noticed() {
    let text =
        format!("`{COMMAND}limits cgroup` and \"{COMMAND}nowhere\", not `{COMMAND}--json` or {COMMAND}   explained");
    assert_eq!(topics(&text).collect::<Vec<_>>(), ["limits", "cgroup", "nowhere"]);
}
