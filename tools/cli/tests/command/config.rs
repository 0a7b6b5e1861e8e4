//! `penstock config`.

use crate::run::{Folder, finish, penstock};

#[test]
fn the_files_of_the_repository_are_right() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().display().to_string());
    let paths: Vec<String> = paths.collect();
    let arguments: Vec<&str> = ["config", "check"].into_iter().chain(paths.iter().map(String::as_str)).collect();
    let ran = penstock(&arguments);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out.lines().filter(|line| line.ends_with(": ok")).count(), paths.len());
}

#[test]
fn a_bad_file_is_refused_with_its_place_and_a_suggestion() {
    let folder = Folder::new();
    let good = folder.write("good.yaml", "workers:\n  count: 2\n");
    for (text, place, expected) in [
        ("workers:\n  cuont: 2\n", ":2:3: ", "did you mean `workers.count`"),
        ("workers:\n  count: 99\n", ":2:10: ", "`workers.count` must be"),
        ("workers: { progress: inline, count: 2 }\n", ":1:", "set the count to 1"),
        ("workers: [\n", ":", "not valid YAML"),
    ] {
        let bad = folder.write("bad.yaml", text);
        let ran = finish(&mut folder.command(&["config", "check", &bad, &good]));
        assert_eq!((ran.status, ran.out), (2, format!("{good}: ok\n")), "the next file is looked at all the same");
        assert!(ran.err.starts_with(&format!("penstock: {bad}{place}")) && ran.err.contains(expected), "{}", ran.err);
    }
    let ran = finish(&mut folder.command(&["config", "check", "absent.yaml"]));
    assert_eq!(ran.status, 2);
    assert!(ran.err.contains("there is no configuration file `absent.yaml`"), "{ran:?}");
}

#[test]
fn what_is_shown_can_be_checked_again() {
    let folder = Folder::new();
    let file = folder.write("mine.yaml", "workers: { count: 2, progress: busy }\n");
    let shown = finish(&mut folder.command(&["config", "check", "--show", &file])).out;
    assert!(shown.contains("  count: 2  # default: 1\n") && shown.contains("  spin_us: 20\n"), "{shown}");
    let again = folder.write("again.yaml", &shown);
    assert_eq!(finish(&mut folder.command(&["config", "check", &again])).status, 0);
}

#[test]
fn defaults_and_reference_are_those_of_the_repository() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for (arguments, file) in [
        (&["config", "default"][..], "configs/default.yaml"),
        (&["config", "keys", "--markdown"], "docs/CONFIGURATION.md"),
    ] {
        assert_eq!(penstock(arguments).out, std::fs::read_to_string(format!("{root}/{file}")).unwrap());
    }
}

#[test]
fn keys_are_listed_and_explained() {
    let all = penstock(&["config", "keys"]).out;
    assert!(all.contains("\nworkers.spin_us ") && all.contains("\ntransports.allow "), "{all}");
    let section = penstock(&["config", "keys", "session"]).out;
    assert_eq!(section.matches("  more costs ").count(), 13, "{section}");
}
