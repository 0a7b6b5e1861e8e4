//! Writes the corpus anew: every file that can be made. Files put there by hand stay.

#![forbid(unsafe_code)]

use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut changed = 0;
    for entry in penstock_fuzz::corpus::made() {
        let path = entry.path();
        if std::fs::read(&path).is_ok_and(|found| found == entry.bytes) {
            continue;
        }
        std::fs::create_dir_all(penstock_fuzz::corpus::folder(entry.target))?;
        std::fs::write(&path, &entry.bytes)?;
        changed += 1;
    }
    writeln!(std::io::stdout(), "{changed} files of the corpus were written")
}
