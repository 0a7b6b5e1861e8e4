//! The folder in which engines find each other.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::finding::{By, Finding, Mend};
use crate::host::{Host, Rights};
use crate::parse::{count, listed};
use crate::topic::Topic;

const TOPIC: Topic = Topic::Folder;

/// The most bytes of a socket's path, its closing zero not counted.
const PATH_BYTES_MAX: usize = 107;
/// What an engine puts behind its name.
const SUFFIX: &str = ".sock";
/// Names shorter than this make people wonder.
const NAME_BYTES_WANTED: usize = 32;
/// Sockets that are knocked at, at most.
const SOCKETS_MAX: usize = 256;
/// Stale sockets that are named.
const STALE_NAMED: usize = 3;

const OTHER_FOLDER: &str = "set `engine.directory` to a folder of your own, or XDG_RUNTIME_DIR to a folder that only \
                            you can write";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let folder = &host.asked().folder;
    let mut findings = vec![place(host, folder), length(folder)];
    findings.extend(room(host, folder));
    findings.extend(sockets(host, folder));
    findings
}

/// Whether an engine could make its socket there.
fn place(host: &Host, folder: &Path) -> Finding {
    const NAME: &str = "place";
    let shown = folder.display();
    let broken =
        |found: String| Finding::broken(TOPIC, NAME, found).means("no engine starts: it cannot make its socket");
    let there = match fs::symlink_metadata(host.at(folder)) {
        Ok(there) if there.is_symlink() => {
            return broken(format!("{shown} is a symbolic link")).mend(Mend::advice(By::You, OTHER_FOLDER));
        }
        Ok(there) if !there.is_dir() => {
            return broken(format!("{shown} is no folder")).mend(Mend::advice(By::You, OTHER_FOLDER));
        }
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return not_yet(host, folder),
        Err(error) => return broken(format!("{shown}: {error}")).mend(Mend::advice(By::You, OTHER_FOLDER)),
    };
    let user = host.system().user();
    if there.uid() != user {
        return broken(format!("{shown} belongs to user {}, and this is user {user}", there.uid()))
            .mend(Mend::advice(By::You, OTHER_FOLDER))
            .mend(host.as_root(&format!("chown {user} {shown}")));
    }
    if let Err(error) = host.system().may(&host.at(folder), Rights::Fill) {
        return refused(host, folder, &error);
    }
    let mode = there.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return broken(format!("{shown} can be written by others (mode {mode:04o})"))
            .mend(Mend::you(format!("chmod go-w {shown}")))
            .mend(Mend::advice(By::You, OTHER_FOLDER));
    }
    Finding::ok(TOPIC, NAME, format!("{shown} (mode {mode:04o})"))
}

/// The folder is not there: could an engine make it?
fn not_yet(host: &Host, folder: &Path) -> Finding {
    let above = folder.ancestors().skip(1).find(|above| host.exists(above)).unwrap_or(Path::new("/"));
    match host.system().may(&host.at(above), Rights::Fill) {
        Ok(()) => Finding::ok(TOPIC, "place", format!("{}, made by the first engine", folder.display())),
        Err(error) => refused(host, above, &error),
    }
}

fn refused(host: &Host, folder: &Path, error: &io::Error) -> Finding {
    let shown = folder.display();
    let is_read_only = error.raw_os_error() == Some(Errno::ROFS.raw_os_error());
    let (why, mend) = if is_read_only {
        let mount = Mend::advice(By::Outside, format!("a container's: mount a writable volume or tmpfs at {shown}"));
        ("is on a read-only file system".to_owned(), mount)
    } else {
        let user = host.system().user();
        (format!("cannot be written by this user ({error})"), host.as_root(&format!("chown {user} {shown}")))
    };
    Finding::broken(TOPIC, "place", format!("{shown} {why}"))
        .means("no engine starts: it cannot make its socket")
        .mend(Mend::advice(By::You, OTHER_FOLDER))
        .mend(mend)
}

/// A socket's path is short by the kernel's rule.
fn length(folder: &Path) -> Finding {
    const NAME: &str = "path length";
    let used = folder.as_os_str().len() + 1 + SUFFIX.len();
    let left = PATH_BYTES_MAX.saturating_sub(used);
    let shorter = Mend::advice(By::You, "set `engine.directory` or XDG_RUNTIME_DIR to a folder with a shorter path");
    match left {
        0 => Finding::broken(TOPIC, NAME, format!("{} bytes, and a socket's path may have {PATH_BYTES_MAX}", used + 1))
            .means("no engine starts: its socket's path would be too long")
            .mend(shorter),
        1..NAME_BYTES_WANTED => Finding::limited(TOPIC, NAME, format!("leaves {left} bytes for an engine's name"))
            .means("engines with longer names do not start")
            .mend(shorter),
        _ => Finding::ok(TOPIC, NAME, format!("leaves {left} bytes for an engine's name")),
    }
}

fn room(host: &Host, folder: &Path) -> Option<Finding> {
    let there = folder.ancestors().find(|above| host.exists(above))?;
    let space = host.system().space(&host.at(there)).ok()?;
    (!space.has_files_free).then(|| {
        Finding::broken(TOPIC, "room", format!("the file system of {} has no room for another file", there.display()))
            .means("no engine starts: a socket and a lock take a file each")
            .mend(Mend::you(format!("df -i {0}   # then remove files there, or {OTHER_FOLDER}", there.display())))
    })
}

/// Who answers at the sockets there.
fn sockets(host: &Host, folder: &Path) -> Option<Finding> {
    const NAME: &str = "sockets";
    let names = host.names(folder);
    let sockets = names.iter().filter(|name| name.ends_with(SUFFIX)).map(|name| folder.join(name));
    let sockets: Vec<PathBuf> = sockets.filter(|path| is_socket(&host.at(path))).take(SOCKETS_MAX).collect();
    if sockets.is_empty() {
        return None;
    }
    let is_stale = |path: &&PathBuf| {
        let answer = host.system().knock(&host.at(path));
        answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    let stale: Vec<String> = sockets.iter().filter(is_stale).map(|path| path.display().to_string()).collect();
    let live = sockets.len() - stale.len();
    if stale.is_empty() {
        return Some(Finding::ok(TOPIC, NAME, format!("{} here", count(live, "engine"))));
    }
    let named: Vec<&str> = stale.iter().take(STALE_NAMED).map(String::as_str).collect();
    let more = if stale.len() > STALE_NAMED { " and more" } else { "" };
    let found = format!("{} here; nobody answers at {}{more}", count(live, "engine"), listed(&named));
    Some(
        Finding::limited(TOPIC, NAME, found)
            .means("their engines were killed; nothing is lost: the next engine of such a name takes its socket over")
            .mend(Mend::you(format!("rm {}", stale.join(" ")))),
    )
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket())
}
