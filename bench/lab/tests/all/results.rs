//! What is kept in `bench/results/` can be read, and is what it says it is.

use std::path::{Path, PathBuf};

use penstock_lab::results::Record;

fn kept() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
    paths.sort();
    paths
}

#[test]
fn every_kept_result_is_of_its_form_bears_its_own_name_and_has_its_table_beside_it() {
    let kept = kept();
    assert!(!kept.is_empty(), "bench/results has no result");
    for path in kept {
        let text = std::fs::read_to_string(&path).unwrap();
        let record = Record::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(name.starts_with(&record.name()), "{name} is {}", record.name());
        let table = std::fs::read_to_string(path.with_extension("md")).unwrap();
        assert!(table.contains(&record.date) && table.contains(&record.commit), "{name}");
        assert_eq!(
            table
                .lines()
                .filter(|line| record.rows.iter().any(|row| line.starts_with(&format!("| {} |", row.id))))
                .count(),
            record.rows.len()
        );
    }
}

#[test]
fn no_kept_result_names_a_machine_or_a_folder_of_it() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    for path in kept() {
        let text = std::fs::read_to_string(&path).unwrap();
        let private = ["/tmp/", "/usr/", "/opt/", "/var/", "penstock-lab-"];
        let named = private.iter().find(|word| text.contains(**word));
        assert_eq!(named, None, "{}", path.display());
        assert!(host.trim().len() < 4 || !text.contains(host.trim()), "{} names its host", path.display());
    }
}
