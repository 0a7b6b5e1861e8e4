use super::*;
use crate::ends::Folder;
use crate::scoreboard::row::Goal;

fn example() -> Record {
    let compared = Row::compared("shm", (&[2e3], "us", 1e3), ("the floor", &[1e3]), Goal::RatioAtMost(1.05));
    let absent = Row::compared("shm", (&[2e3], "us", 1e3), ("NIXL, tuned", &[]), Goal::QuickerBy(4.5));
    let rows = [
        Row { id: "M3".to_owned(), ..compared },
        Row { id: "M3".to_owned(), ..absent.without_comparator() }.noted("not measured: nixl is not installed"),
        Row { id: "M7".to_owned(), ..Row::alone("local", 10.5, "us", Goal::AtMost(100.0)) }.noted("a | in a note"),
    ];
    Record::of_this_run(&rows, None, 0.25, false)
}

#[test]
fn what_is_kept_is_read_again_as_it_was() {
    let folder = Folder::create().unwrap();
    let record = example();
    let [json, table] = record.save(folder.path(), "-part").unwrap();
    assert_eq!(Record::parse(&std::fs::read_to_string(json).unwrap()).unwrap(), record);
    let table = std::fs::read_to_string(table).unwrap();
    for expected in
        [&record.date, &record.commit, &record.machine.cpu, "NIXL, tuned", "4.5 x quicker", "a \\| in a note"]
    {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    assert!(matches!(record.save(&folder.path().join("no"), "").unwrap_err(), ResultError::NoFolder(_)));
}

#[test]
fn a_result_that_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut Record)| {
        let mut record = example();
        change(&mut record);
        Record::parse(&serde_json::to_string(&record).unwrap()).unwrap_err().to_string()
    };
    assert!(refused(&|record| record.format = 2).contains("format"));
    assert!(refused(&|record| record.date = "yesterday".to_owned()).contains("date"));
    assert!(refused(&|record| record.machine.cpu.clear()).contains("machine"));
    assert!(refused(&|record| record.rows.clear()).contains("rows"));
    assert!(refused(&|record| record.rows[0].id = "M99".to_owned()).contains("no such metric"));
    assert!(refused(&|record| record.rows[0].figure = None).contains("verdict"));
    assert!(refused(&|record| record.rows[0].ratio = Some(-1.0)).contains("finite"));
    assert!(refused(&|record| record.rows[1].met = Some(true)).contains("absent"));
    assert!(refused(&|record| record.rows[1].note.clear()).contains("says why"));
    assert!(refused(&|record| record.rows[1].ratio = Some(1.0)).contains("two figures"));
    assert!(matches!(Record::parse("{}").unwrap_err(), ResultError::Form(_)));
}

#[test]
fn days_are_reckoned_as_calendars_do() {
    let day = |days: u64| date(UNIX_EPOCH + Duration::from_secs(days * 86_400 + 86_399));
    assert_eq!((day(0), day(59)), ("1970-01-01".to_owned(), "1970-03-01".to_owned()));
    assert_eq!((day(11_016), day(19_782)), ("2000-02-29".to_owned(), "2024-02-29".to_owned()));
    assert_eq!((day(20_453), day(20_454)), ("2025-12-31".to_owned(), "2026-01-01".to_owned()));
}

#[test]
fn peers_are_noted_with_their_settings_and_versions_only_where_they_are_there() {
    let notes = peer_notes(None);
    assert!(notes.iter().all(|note| note.version.is_none()));
    let tuned = notes.iter().find(|note| note.title == "NIXL, tuned").unwrap();
    assert_eq!(tuned.settings, "UCX_POSIX_ERROR_HANDLING=y");
    assert!(notes.iter().any(|note| note.settings == "UCX_TLS=shm,self"));
}
