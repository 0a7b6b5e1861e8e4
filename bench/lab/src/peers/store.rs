//! The folder that holds the engines of others, and what is written down about each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::catalog::{Peer, Source};
use super::child;
use super::debian::{self, library_folders};
use super::error::{PeerError, last_words};
use super::wheels;

/// Importing the largest of them from a cold disk takes seconds.
const PROBE: Duration = Duration::from_secs(60);
const RECORD: &str = "installed.json";

/// The folder.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// What is written down about a peer that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its packages with their versions; the first is the one that gives the peer its version.
    pub packages: Vec<(String, String)>,
    /// Whether they are the pinned ones.
    pub pinned: bool,
}

/// A peer that is there.
#[derive(Debug, Clone)]
pub struct Installed {
    /// Which.
    pub peer: &'static Peer,
    /// What is written down about it.
    pub record: Record,
    folder: PathBuf,
}

impl Store {
    /// The store in this folder, or in the user's cache: `$XDG_CACHE_HOME/penstock/peers`.
    pub fn open(folder: Option<&Path>) -> Result<Self, PeerError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = place(folder, variable("XDG_CACHE_HOME"), variable("HOME")).ok_or(PeerError::NoFolder)?;
        // Its paths are handed to programs that run elsewhere.
        let folder = std::path::absolute(&folder).map_err(PeerError::file("find", &folder))?;
        Ok(Self { folder })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn place_of(&self, peer: &Peer) -> PathBuf {
        self.folder.join(peer.name)
    }

    /// A peer that is there.
    pub fn find(&self, peer: &'static Peer) -> Result<Installed, PeerError> {
        let folder = self.place_of(peer);
        let path = folder.join(RECORD);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(PeerError::NotInstalled { peer: peer.name });
            }
            Err(error) => return Err(PeerError::file("read", &path)(error)),
        };
        let record = serde_json::from_slice(&text).map_err(|source| PeerError::Record { path, source })?;
        Ok(Installed { peer, record, folder })
    }

    /// Puts a peer there, if it is not there and starting already; answers whether anything was done. What
    /// was there stays until the new one has started.
    pub fn install(&self, peer: &'static Peer, latest: bool) -> Result<(Installed, bool), PeerError> {
        if !latest
            && let Ok(there) = self.find(peer)
            && there.record.pinned
            && there.probe().is_ok()
        {
            return Ok((there, false));
        }
        let staged = self.folder.join(format!(".new-{}-{}", peer.name, std::process::id()));
        let result = self.stage(peer, latest, &staged).and_then(|()| {
            let place = self.place_of(peer);
            remove_folder(&place)?;
            fs::rename(&staged, &place).map_err(PeerError::file("move to its place", &staged))
        });
        remove_folder(&staged)?;
        result.and_then(|()| self.find(peer)).map(|installed| (installed, true))
    }

    fn stage(&self, peer: &'static Peer, latest: bool, folder: &Path) -> Result<(), PeerError> {
        remove_folder(folder)?;
        fs::create_dir_all(folder).map_err(PeerError::file("make the folder", folder))?;
        let root = folder.join("root");
        let packages = match peer.source {
            Source::Wheels { wheels, libraries } => {
                let environment = folder.join("venv");
                wheels::fetch(peer, wheels, latest, &environment)?;
                let mut packages = wheels::versions(&environment, wheels)?;
                packages.extend(self.fetch_missing(peer, libraries, &root)?);
                packages
            }
            Source::Debian { package } => {
                let version = (!latest).then_some(package.version);
                let wish =
                    version.map_or(package.package.to_owned(), |version| format!("{}={version}", package.package));
                let planned = debian::with_wanted(debian::plan(peer, &[wish])?, package.package, version);
                debian::fetch(peer, &planned, &root)?;
                let (own, needed): (Vec<_>, _) = planned.into_iter().partition(|one| one.name == package.package);
                own.into_iter().chain::<Vec<_>>(needed).map(|one| (one.name, one.version)).collect()
            }
        };
        let record = Record { packages, pinned: !latest };
        let installed = Installed { peer, record, folder: folder.to_owned() };
        installed.probe()?;
        let text = serde_json::to_vec_pretty(&installed.record).expect("a record of strings can be written down");
        let path = folder.join(RECORD);
        fs::write(&path, text).map_err(PeerError::file("write", &path))
    }

    /// Libraries that wheels name without bringing them, where the system lacks some. Where there is no apt
    /// the system may have them all the same: the probe tells.
    fn fetch_missing(&self, peer: &Peer, wanted: &[&str], root: &Path) -> Result<Vec<(String, String)>, PeerError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let wishes: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        let planned = match debian::plan(peer, &wishes) {
            Err(PeerError::NoProgram { .. }) => return Ok(Vec::new()),
            other => other?,
        };
        if !planned.is_empty() {
            debian::fetch(peer, &planned, root)?;
        }
        Ok(planned.into_iter().map(|package| (package.name, package.version)).collect())
    }

    /// Takes a peer away; answers whether it was there.
    pub fn remove(&self, peer: &Peer) -> Result<bool, PeerError> {
        let place = self.place_of(peer);
        let there = place.exists();
        remove_folder(&place)?;
        Ok(there)
    }
}

fn place(named: Option<&Path>, cache: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let in_cache = |cache: PathBuf| cache.join("penstock/peers");
    let of_home = || home.map(|home| in_cache(home.join(".cache")));
    named.map(Path::to_owned).or_else(|| cache.map(in_cache)).or_else(of_home)
}

fn remove_folder(folder: &Path) -> Result<(), PeerError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(PeerError::file("remove", folder)(error)),
        _ => Ok(()),
    }
}

impl Installed {
    /// Its version: that of its first package.
    pub fn version(&self) -> &str {
        self.record.packages.first().map_or("unknown", |(_, version)| version)
    }

    /// Its own interpreter, for what comes as wheels.
    pub(super) fn python(&self) -> Command {
        let mut python = child::command(&wheels::python(&self.folder.join("venv")), &self.libraries());
        // NIXL's copy of UCX and Debian's libibverbs crash together when the process ends. What is measured here goes over
        // shared memory and TCP.
        python.env("UCX_MODULES", "^ib");
        python
    }

    /// One of its programs, for what comes as Debian packages.
    pub(super) fn program(&self, name: &str) -> Command {
        child::command(&self.folder.join("root/usr/bin").join(name), &self.libraries())
    }

    fn libraries(&self) -> String {
        let folders = library_folders(&self.folder.join("root"));
        folders.iter().map(|folder| folder.to_string_lossy()).collect::<Vec<_>>().join(":")
    }

    /// Has it start, and end.
    pub fn probe(&self) -> Result<(), PeerError> {
        let mut command = match self.peer.source {
            Source::Wheels { .. } => {
                let mut python = self.python();
                python.arg("-c").args(self.peer.probe);
                python
            }
            Source::Debian { .. } => {
                let mut program = self.program(self.peer.probe[0]);
                program.args(&self.peer.probe[1..]);
                program
            }
        };
        let does_not = |words| PeerError::DoesNotStart { peer: self.peer.name, words };
        match child::run(&mut command, PROBE) {
            Ok(_) => Ok(()),
            Err(PeerError::Failed { words, .. }) => Err(does_not(words)),
            Err(other) => Err(does_not(last_words(&other.to_string()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Folder;

    fn put(store: &Store, name: &str, record: &str, script: Option<&str>) -> &'static Peer {
        let peer = Peer::find(name).unwrap();
        let bin = store.place_of(peer).join("root/usr/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::write(store.place_of(peer).join(RECORD), record).unwrap();
        if let Some(script) = script {
            let program = bin.join(peer.probe[0]);
            // Another process writes the program: a child that another test's thread is starting would
            // hold it open for writing if this one did, and it could not be executed.
            let text = program.with_extension("text");
            fs::write(&text, script).unwrap();
            assert!(Command::new("install").args(["-m", "755"]).args([&text, &program]).status().unwrap().success());
        }
        peer
    }

    #[test]
    fn the_folder_is_the_named_one_or_in_the_users_cache() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(place(Some(Path::new("here")), path("/c"), path("/h")), path("here"));
        assert_eq!(place(None, path("/c"), path("/h")), path("/c/penstock/peers"));
        assert_eq!(place(None, None, path("/h")), path("/h/.cache/penstock/peers"));
        assert_eq!(place(None, None, None), None);
    }

    #[test]
    fn what_is_not_there_is_named_with_the_command_that_installs_it() {
        let folder = Folder::create().unwrap();
        let store = Store::open(Some(folder.path())).unwrap();
        let error = store.find(Peer::find("ucx").unwrap()).unwrap_err();
        assert!(matches!(error, PeerError::NotInstalled { peer: "ucx" }));
        assert!(error.to_string().contains("penstock-lab peers install --only ucx"), "{error}");
        let peer = put(&store, "qperf", "no record", None);
        assert!(matches!(store.find(peer).unwrap_err(), PeerError::Record { .. }));
    }

    #[test]
    fn a_peer_that_is_there_and_starts_is_not_fetched_again() {
        let folder = Folder::create().unwrap();
        let store = Store::open(Some(folder.path())).unwrap();
        let record = r#"{"packages": [["qperf", "7"], ["libx", "1"]], "pinned": true}"#;
        let peer = put(&store, "qperf", record, Some("#!/bin/sh\nexit 0\n"));
        let (installed, done) = store.install(peer, false).unwrap();
        assert_eq!((installed.version(), done), ("7", false));
        assert!(store.remove(peer).unwrap() && !store.remove(peer).unwrap());
        assert!(matches!(store.find(peer).unwrap_err(), PeerError::NotInstalled { .. }));
    }

    #[test]
    fn a_peer_that_does_not_start_says_why() {
        let folder = Folder::create().unwrap();
        let store = Store::open(Some(folder.path())).unwrap();
        let record = r#"{"packages": [["ucx-utils", "1"]], "pinned": true}"#;
        let peer = put(&store, "ucx", record, Some("#!/bin/sh\necho libucp.so.0: not found >&2\nexit 127\n"));
        let error = store.find(peer).unwrap().probe().unwrap_err();
        assert!(matches!(error, PeerError::DoesNotStart { .. }));
        assert!(error.to_string().contains("libucp.so.0: not found"), "{error}");
    }
}
