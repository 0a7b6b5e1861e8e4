//! A lab: a process of another user at the socket of an engine.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;

use penstock_conformance::bystander::{Arena, attack};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::folder::Folder;
use penstock_conformance::remote::Remote;
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Place, Setting, skip};

/// Who has no rights anywhere, by convention.
const NOBODY: u32 = 65_534;

#[test]
fn another_user_is_turned_away_in_words() {
    if let Some(reason) = skip::lab_reason() {
        return skip::report("another_user_is_turned_away_in_words", reason);
    }
    attack("another user", |arena| {
        // Somebody has opened the socket to everyone; the engine itself must still tell users apart.
        allow(arena.folder().path(), 0o755);
        allow(&arena.socket(), 0o666);
        let home = Folder::fresh();
        chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        let program = home.path().join("peer");
        std::fs::copy(env!("CARGO_BIN_EXE_penstock-conformance-peer"), &program).unwrap();
        allow(&program, 0o755);
        let mut stranger = std::process::Command::new(&program);
        stranger.uid(NOBODY).gid(NOBODY).current_dir("/");
        let mut stranger = Remote::process(stranger);
        knock(arena, &mut stranger);
        connect(arena, &mut stranger, home.path());
        drop(stranger);
        std::fs::remove_file(&program).unwrap();
    });
}

#[test]
fn an_engine_of_root_does_not_take_another_users_folder() {
    if let Some(reason) = skip::lab_reason() {
        return skip::report("an_engine_of_root_does_not_take_another_users_folder", reason);
    }
    let folder = Folder::fresh();
    let target = Folder::fresh();
    std::os::unix::fs::symlink(target.path().join("made"), folder.path().join("loader.lock")).unwrap();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let config = penstock::Config::default().named("loader").directory(folder.path());
    let refused = penstock::Engine::start(config).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("belongs to user {NOBODY}")) && refused.contains("engine.directory"),
        "{refused}"
    );
    std::fs::remove_file(folder.path().join("loader.lock")).unwrap();
    let made: Vec<_> = std::fs::read_dir(target.path()).unwrap().collect();
    assert!(made.is_empty(), "root made a file where the other user's link leads: {made:?}");
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// By hand: the engine refuses before it has listened to a word.
fn knock(arena: &mut Arena, stranger: &mut Remote) {
    for _ in 0..10 {
        stranger.tell(Command::Knock { descriptor: arena.descriptor.clone() });
        match stranger.hear(PATIENCE) {
            Reply::Refusal { code, text } => {
                assert_eq!(code, "ForeignUser");
                assert!(text.contains(&format!("user {NOBODY}")) && text.contains("user 0"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// By an engine of its own: it hears a typed refusal that says what to do.
fn connect(arena: &mut Arena, stranger: &mut Remote, home: &Path) {
    let setting = Setting::adaptive(arena.setting.transport, 1, Place::Here);
    stranger.tell(Command::Start(setting.spec(home, "stranger").into()));
    assert!(matches!(stranger.hear(PATIENCE), Reply::Started { .. }));
    stranger.tell(Command::Connect { descriptor: arena.descriptor.clone() });
    match stranger.hear(PATIENCE) {
        Reply::Refused(text) => assert!(text.contains("user"), "{text}"),
        other => panic!("{other:?}"),
    }
    let Reply::Names(peers) = arena.ask(Command::Peers) else { panic!("no names") };
    assert!(!peers.contains(&"stranger".to_owned()), "{peers:?}");
    stranger.tell(Command::Stop);
    assert_eq!(stranger.hear(PATIENCE), Reply::Done);
}
