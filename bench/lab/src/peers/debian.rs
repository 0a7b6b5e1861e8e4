//! Debian packages in a folder: downloaded and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::catalog::Peer;
use super::child::{self, is_absent};
use super::error::PeerError;

/// Working out what is needed, without the network.
const PLAN: Duration = Duration::from_secs(60);
/// Downloads.
const DOWNLOAD: Duration = Duration::from_secs(300);
const UNPACK: Duration = Duration::from_secs(60);

const NO_APT: &str = "install its programs by hand, or run where Debian's apt is";
const STALE: &str = "let root run apt-get update, or take what apt has with --latest";

/// A package that is going to be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
}

/// What apt would install for these wishes (`name` or `name=version`), in alphabetical order: what the system
/// has already is not among it.
fn plan_command(wishes: &[String]) -> Command {
    let mut command = child::command(Path::new("apt-get"), "");
    command.args(["--simulate", "--no-install-recommends", "-o", "Debug::NoLocking=1", "install"]).args(wishes);
    command
}

/// Asks apt what these wishes come to. Where they are there already, they alone are fetched once more.
pub(super) fn plan(peer: &Peer, wishes: &[String]) -> Result<Vec<Package>, PeerError> {
    let said = child::run(&mut plan_command(wishes), PLAN).map_err(|error| explain(peer, wishes, error))?;
    Ok(parse_plan(&said.out))
}

fn explain(peer: &Peer, wishes: &[String], error: PeerError) -> PeerError {
    match error {
        absent if is_absent(&absent) => {
            PeerError::NoProgram { peer: peer.name, program: "apt-get".to_owned(), mend: NO_APT }
        }
        PeerError::Failed { words, .. } if words.contains("not found") || words.contains("Unable to locate") => {
            PeerError::NotOffered { peer: peer.name, wanted: wishes.join(" "), mend: STALE, words }
        }
        other => other,
    }
}

/// Reads lines such as `Inst libucx0 (1.13.1-1 Debian:12 [amd64])` and `Inst iperf3 [3.12-1] (3.12-1+deb12u2 …)`.
fn parse_plan(text: &str) -> Vec<Package> {
    let package = |line: &str| {
        let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
        let version = rest.split_once('(')?.1.split([' ', ')']).next()?;
        Some(Package { name: name.to_owned(), version: version.to_owned() })
    };
    let mut packages: Vec<Package> = text.lines().filter_map(package).collect();
    packages.sort();
    packages.dedup();
    packages
}

/// The wish for a package that apt did not plan, as the system has it: it is fetched all the same, so that
/// the folder does not change when the system does.
pub(super) fn with_wanted(mut packages: Vec<Package>, wanted: &str, version: Option<&str>) -> Vec<Package> {
    if !packages.iter().any(|package| package.name == wanted) {
        packages.push(Package { name: wanted.to_owned(), version: version.unwrap_or_default().to_owned() });
    }
    packages
}

fn download_command(packages: &[Package], into: &Path) -> Command {
    let mut command = child::command(Path::new("apt-get"), "");
    // Root would otherwise fetch as a user who may not write here.
    command.current_dir(into).args(["-o", "APT::Sandbox::User=root", "download"]);
    command.args(packages.iter().map(|Package { name, version }| match version.as_str() {
        "" => name.clone(),
        version => format!("{name}={version}"),
    }));
    command
}

/// Fetches packages and unpacks them below `root`.
pub(super) fn fetch(peer: &Peer, packages: &[Package], root: &Path) -> Result<(), PeerError> {
    let files = root.with_extension("deb");
    fs::create_dir_all(&files).map_err(PeerError::file("make the folder", &files))?;
    fs::create_dir_all(root).map_err(PeerError::file("make the folder", root))?;
    let wishes: Vec<String> = packages.iter().map(|package| package.name.clone()).collect();
    child::run(&mut download_command(packages, &files), DOWNLOAD).map_err(|error| explain(peer, &wishes, error))?;
    for file in entries(&files)?.into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "deb")) {
        let mut unpack = child::command(Path::new("dpkg"), "");
        child::run(unpack.arg("--extract").arg(&file).arg(root), UNPACK)?;
    }
    fs::remove_dir_all(&files).map_err(PeerError::file("remove", &files))?;
    link_hidden(root)
}

/// Where the linker has to look below an unpacked root.
pub(super) fn library_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.join("links")];
    for base in [root.join("usr/lib"), root.join("lib")] {
        let below = entries(&base).unwrap_or_default();
        let is_of_machine = |path: &PathBuf| path.is_dir() && path.to_string_lossy().ends_with("-linux-gnu");
        folders.extend(below.into_iter().filter(is_of_machine));
        folders.push(base);
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// A package may keep a library in a folder of its own and have a script link it where the linker looks. No
/// script is run here, so those links are made here.
fn link_hidden(root: &Path) -> Result<(), PeerError> {
    let links = root.join("links");
    fs::create_dir_all(&links).map_err(PeerError::file("make the folder", &links))?;
    let base = root.join("usr/lib");
    for folder in entries(&base).unwrap_or_default().into_iter().filter(|path| path.is_dir()) {
        if folder.to_string_lossy().ends_with("-linux-gnu") {
            continue;
        }
        for library in entries(&folder).unwrap_or_default() {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(short) = short_name(&name) else { continue };
            let relative = Path::new("../usr/lib").join(folder.file_name().unwrap_or_default()).join(&name);
            let link = links.join(short);
            std::os::unix::fs::symlink(&relative, &link).map_err(PeerError::file("link", &link))?;
        }
    }
    Ok(())
}

/// `libx.so.1` of `libx.so.1.16`: the name by which programs ask for a library.
fn short_name(name: &str) -> Option<&str> {
    let (_, versions) = name.split_once(".so.")?;
    let minor = versions.split_once('.')?.1;
    versions.chars().all(|c| c.is_ascii_digit() || c == '.').then(|| &name[..name.len() - minor.len() - 1])
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, PeerError> {
    let read = fs::read_dir(folder).map_err(PeerError::file("read the folder", folder))?;
    let mut paths: Vec<PathBuf> = read.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANNED: &str = "\
Reading package lists...
The following NEW packages will be installed:
  libucx0 ucx-utils
Inst libucx0 (1.13.1-1 Debian:12.14/oldstable [amd64])
Inst iperf3 [3.12-1] (3.12-1+deb12u2 Debian:12.14/oldstable [amd64])
Inst ucx-utils (1.13.1-1 Debian:12.14/oldstable [amd64])
Conf libucx0 (1.13.1-1 Debian:12.14/oldstable [amd64])
";

    fn package(name: &str, version: &str) -> Package {
        Package { name: name.to_owned(), version: version.to_owned() }
    }

    fn arguments(command: &Command) -> String {
        command.get_args().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_apt_plans_is_read_with_new_and_changed_packages() {
        let planned = parse_plan(PLANNED);
        let expected =
            [package("iperf3", "3.12-1+deb12u2"), package("libucx0", "1.13.1-1"), package("ucx-utils", "1.13.1-1")];
        assert_eq!(planned, expected);
        assert_eq!(parse_plan("nothing to do\nInst broken"), []);
    }

    #[test]
    fn apt_is_asked_to_simulate_and_to_download_and_never_to_install() {
        let plan = arguments(&plan_command(&["ucx-utils=1.13.1-1".to_owned()]));
        assert!(plan.starts_with("--simulate ") && plan.ends_with("install ucx-utils=1.13.1-1"), "{plan}");
        let into = Path::new("/tmp");
        let download = arguments(&download_command(&[package("a", "1"), package("b", "")], into));
        assert!(download.ends_with("download a=1 b"), "{download}");
    }

    #[test]
    fn what_the_system_has_already_is_fetched_all_the_same() {
        let packages = with_wanted(vec![package("libx", "1")], "tool", Some("2"));
        assert_eq!(packages, [package("libx", "1"), package("tool", "2")]);
        assert_eq!(with_wanted(packages.clone(), "tool", None), packages);
    }

    #[test]
    fn refusals_of_apt_have_a_type_and_a_mend() {
        let peer = Peer::find("ucx").unwrap();
        let wishes = ["ucx-utils=9".to_owned()];
        let failed = |words: &str| PeerError::Failed {
            program: "apt-get".to_owned(),
            status: "exit status: 100".to_owned(),
            words: words.to_owned(),
        };
        let error = explain(peer, &wishes, failed("E: Version '9' for 'ucx-utils' was not found"));
        assert!(matches!(&error, PeerError::NotOffered { .. }) && error.to_string().contains("--latest"), "{error}");
        let error = explain(peer, &wishes, failed("E: Unable to locate package ucx-utils"));
        assert!(error.to_string().contains("apt-get update"), "{error}");
        let error = explain(peer, &wishes, failed("E: disk full"));
        assert!(matches!(error, PeerError::Failed { .. }), "{error}");
        let absent = child::run(&mut child::command(Path::new("/nowhere/apt-get"), ""), PLAN).unwrap_err();
        let error = explain(peer, &wishes, absent);
        assert!(matches!(&error, PeerError::NoProgram { .. }) && error.to_string().contains("no apt-get"), "{error}");
    }

    #[test]
    fn a_library_in_a_folder_of_its_own_is_linked_where_the_linker_looks() {
        let folder = crate::ends::Folder::create().unwrap();
        let root = folder.path().join("root");
        let hidden = root.join("usr/lib/libpsm1");
        fs::create_dir_all(&hidden).unwrap();
        fs::create_dir_all(root.join("usr/lib/x86_64-linux-gnu")).unwrap();
        fs::write(hidden.join("libpsm_infinipath.so.1.16"), "a library").unwrap();
        fs::write(hidden.join("README"), "no library").unwrap();
        link_hidden(&root).unwrap();
        assert_eq!(fs::read_to_string(root.join("links/libpsm_infinipath.so.1")).unwrap(), "a library");
        assert_eq!(entries(&root.join("links")).unwrap().len(), 1);
        let folders = library_folders(&root);
        assert_eq!(folders.len(), 3, "{folders:?}");
    }

    #[test]
    fn short_names_of_libraries_end_after_the_first_number() {
        assert_eq!(short_name("libx.so.1.16"), Some("libx.so.1"));
        assert_eq!(short_name("libx-y.so.12.0.3"), Some("libx-y.so.12"));
        assert_eq!((short_name("libx.so"), short_name("libx.so.1"), short_name("libx.so.1.a")), (None, None, None));
    }
}
