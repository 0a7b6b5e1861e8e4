//! The folder in which engines find each other, and libraries.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use penstock::{Config, Engine};

use crate::broken::{Found, Place, own_mend};

const ELSEWHERE: &str = "set `engine.directory` to a folder of your own";

#[test]
fn a_runtime_folder_with_a_long_path_is_broken() {
    let place = Place::new();
    let long = place.folder.path().join("x".repeat(100));
    let found = Found::of(place.command(&["folder"]).env("XDG_RUNTIME_DIR", &long));
    found.assert("folder", "path length", "broken", "a socket's path may have 107", "a folder with a shorter path");
    assert_eq!(found.status, 1);
    let refused = Engine::start(Config::default().directory(long.join("penstock"))).err();
    assert!(refused.is_some(), "an engine does not start there");
}

#[test]
fn a_folder_of_another_user_is_broken() {
    let place = Place::ordinary();
    let config = place.folder.write("mine.yaml", "engine: { directory: /usr }\n");
    let found = Found::of(&mut place.command(&["folder", "--config", &config]));
    found.assert("folder", "place", "broken", "/usr belongs to user 0", ELSEWHERE);
    found.assert("folder", "place", "broken", "/usr belongs to user 0", "chown");
    assert_eq!(found.status, 1);
}

#[test]
fn a_folder_that_cannot_be_made_is_broken() {
    let place = Place::ordinary();
    let config = place.folder.write("mine.yaml", "engine: { directory: /usr/no-such-folder/penstock }\n");
    let found = Found::of(&mut place.command(&["folder", "--config", &config]));
    found.assert("folder", "place", "broken", "/usr cannot be written by this user", ELSEWHERE);
}

#[test]
fn a_folder_that_is_a_file_is_broken() {
    let place = Place::new();
    place.folder.write("penstock", "a file");
    let found = Found::of(&mut place.command(&["folder"]));
    found.assert("folder", "place", "broken", "is no folder", ELSEWHERE);
}

#[test]
fn a_folder_that_everybody_can_write_is_named() {
    let place = Place::new();
    let folder = place.folder.path().join("penstock");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let found = Found::of(&mut place.command(&["folder"]));
    let mend = format!("chmod go-w {}", folder.display());
    found.assert("folder", "place", "broken", "can be written by others (mode 0777)", &mend);
    assert_eq!(found.status, 1);
    let mended = Found::of(&mut place.mended(&own_mend(found.find("folder", "place")), "folder"));
    assert_eq!(mended.find("folder", "place")["status"], "ok");
}

#[test]
fn the_socket_of_a_killed_engine_is_told_from_that_of_a_live_one() {
    let place = Place::new();
    let folder = place.folder.path().join("penstock");
    let engine = Engine::start(Config::default().named("live").directory(&folder)).unwrap();
    let found = Found::of(&mut place.command(&["folder"]));
    assert_eq!(found.find("folder", "sockets")["found"], "1 engine here");
    let stale = folder.join("dead.sock");
    // A socket outlives its listener, as it outlives a killed engine.
    drop(UnixListener::bind(&stale).unwrap());
    let found = Found::of(&mut place.command(&["folder"]));
    let mend = format!("rm {}", stale.display());
    found.assert("folder", "sockets", "limited", "1 engine here; nobody answers at", &mend);
    assert_eq!(found.status, 0);
    let mended = Found::of(&mut place.mended(&own_mend(found.find("folder", "sockets")), "folder"));
    assert_eq!(mended.find("folder", "sockets")["found"], "1 engine here");
    drop(engine);
}

#[test]
fn libraries_are_found_where_the_loader_is_told_to_look() {
    let place = Place::new();
    let whole = Found::of(&mut place.command(&["rdma"]));
    if whole.find("rdma", "libraries")["status"] != "ok" {
        whole.assert("rdma", "libraries", "missing", "no lib", "ibverbs");
    }
    place.folder.write("libibverbs.so.1", "");
    let found = Found::of(place.command(&["rdma"]).env("LD_LIBRARY_PATH", place.folder.path()));
    // They are found, and they are opened: an empty file is no library.
    found.assert("rdma", "libraries", "missing", "libibverbs.so.1 cannot be opened", "ibverbs");
}
