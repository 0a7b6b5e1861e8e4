//! `penstock-lab peers`: putting the engines of others into a folder, looking what is there, taking them away.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::catalog::{PEERS, Peer, Source};
use super::{PeerError, Store};

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub enum Chore {
    /// Downloads peers into a folder of their own; the system is not touched and root is not needed.
    Install {
        /// Only these.
        #[arg(long, value_delimiter = ',', value_name = "NAME,NAME...")]
        only: Vec<String>,
        /// What the package indexes have now, instead of the pinned versions.
        #[arg(long)]
        latest: bool,
        /// Another folder than the user's cache.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Says what is there, at which versions, and what is missing and why.
    List {
        /// Another folder than the user's cache.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Takes peers away.
    Remove {
        /// Only these.
        #[arg(long, value_delimiter = ',', value_name = "NAME,NAME...")]
        only: Vec<String>,
        /// Another folder than the user's cache.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
}

/// Does it. Answers whether everything that was asked for could be done; what could not is told, and the others
/// go on.
pub fn run(chore: &Chore) -> Result<bool, Box<dyn Error>> {
    let (mut output, mut progress) = (std::io::stdout(), std::io::stderr());
    match chore {
        Chore::Install { only, latest, folder } => {
            install(&open(folder.as_deref())?, &Peer::choose(only)?, *latest, &mut progress)
        }
        Chore::List { folder } => list(&open(folder.as_deref())?, &mut output),
        Chore::Remove { only, folder } => remove(&open(folder.as_deref())?, &Peer::choose(only)?, &mut output),
    }
}

fn open(folder: Option<&Path>) -> Result<Store, PeerError> {
    Store::open(folder)
}

fn install(
    store: &Store,
    peers: &[&'static Peer],
    latest: bool,
    progress: &mut dyn Write,
) -> Result<bool, Box<dyn Error>> {
    writeln!(progress, "into {}", store.folder().display())?;
    let mut complete = true;
    for (index, peer) in peers.iter().enumerate() {
        write!(progress, "{}/{} {}: {} ... ", index + 1, peers.len(), peer.name, origin(peer, latest))?;
        progress.flush()?;
        match store.install(peer, latest) {
            Ok((installed, true)) => writeln!(progress, "{} is there and starts", installed.version())?,
            Ok((installed, false)) => writeln!(progress, "{} was there already and starts", installed.version())?,
            Err(error) => {
                complete = false;
                writeln!(progress, "no: {error}")?;
            }
        }
    }
    Ok(complete)
}

/// Where it is fetched from, at which version.
fn origin(peer: &Peer, latest: bool) -> String {
    let version = |version: &str| if latest { "latest".to_owned() } else { version.to_owned() };
    match peer.source {
        Source::Wheels { wheels, .. } => format!("wheels, {}", version(wheels[0].version)),
        Source::Debian { package } => format!("Debian package {}, {}", package.package, version(package.version)),
    }
}

fn list(store: &Store, output: &mut dyn Write) -> Result<bool, Box<dyn Error>> {
    writeln!(output, "in {}", store.folder().display())?;
    for peer in PEERS {
        let state = match store.find(peer) {
            Ok(installed) => match installed.probe() {
                Ok(()) => {
                    let packages = installed.record.packages.iter();
                    let packages: Vec<_> = packages.map(|(name, version)| format!("{name} {version}")).collect();
                    let pinned = if installed.record.pinned { "" } else { " (not the pinned versions)" };
                    format!("starts; {}{pinned}", packages.join(", "))
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        writeln!(output, "{:<10} {}\n{:<10} {state}", peer.name, peer.what, "")?;
    }
    Ok(true)
}

fn remove(store: &Store, peers: &[&'static Peer], output: &mut dyn Write) -> Result<bool, Box<dyn Error>> {
    for peer in peers {
        let done = if store.remove(peer)? { "removed" } else { "was not there" };
        writeln!(output, "{}: {done}", peer.name)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::Folder;

    #[test]
    fn an_empty_folder_is_listed_with_what_is_missing_and_how_to_get_it() {
        let folder = Folder::create().unwrap();
        let store = Store::open(Some(folder.path())).unwrap();
        let mut text = Vec::new();
        assert!(list(&store, &mut text).unwrap());
        let text = String::from_utf8(text).unwrap();
        for peer in PEERS {
            let mend = format!("penstock-lab peers install --only {}", peer.name);
            assert!(text.contains(peer.what) && text.contains(&mend), "{text}");
        }
    }

    #[test]
    fn removing_what_is_not_there_is_told_and_no_failure() {
        let folder = Folder::create().unwrap();
        let store = Store::open(Some(folder.path())).unwrap();
        let mut text = Vec::new();
        assert!(remove(&store, &[Peer::find("qperf").unwrap()], &mut text).unwrap());
        assert_eq!(String::from_utf8(text).unwrap(), "qperf: was not there\n");
    }

    #[test]
    fn origins_name_the_pinned_version() {
        let nixl = Peer::find("nixl").unwrap();
        assert_eq!((origin(nixl, false).as_str(), origin(nixl, true).as_str()), ("wheels, 1.5.1", "wheels, latest"));
        assert!(origin(Peer::find("qperf").unwrap(), false).starts_with("Debian package qperf, 0."));
    }
}
