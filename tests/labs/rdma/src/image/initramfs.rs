//! The file system that the kernel begins with: busybox, the modules in the order of loading, and the first script.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::LabError;
use crate::host;
use crate::image::kernel::Unpacked;
use crate::image::sum;

/// What the kernel needs for the labs. Soft RoCE wants checksums and does not say so, thus they come first.
const MODULES: [&str; 15] = [
    "crc32_generic",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "virtio_console",
    "veth",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_cm",
    "rdma_ucm",
    "sch_netem",
    "sch_prio",
    "cls_u32",
    "tun",
];

const INIT: &str = include_str!("init.sh");

/// Folders that the first script mounts things on.
const FOLDERS: [&str; 8] = ["bin", "dev", "host", "layer", "modules", "proc", "sys", "world"];

const LIMIT: Duration = Duration::from_secs(60);

/// Tells one recipe from another.
pub(super) fn recipe() -> u64 {
    sum([&MODULES.join(" "), INIT, &FOLDERS.join(" ")].join("\n").as_bytes())
}

/// Gathers everything below `folder` and packs it into `archive`.
pub(super) fn make(kernel: &Unpacked, folder: &Path, archive: &Path) -> Result<(), LabError> {
    for name in FOLDERS {
        let path = folder.join(name);
        fs::create_dir_all(&path).map_err(LabError::file("make", &path))?;
    }
    let busybox = busybox()?;
    fs::copy(&busybox, folder.join("bin/busybox")).map_err(LabError::file("copy", &busybox))?;
    let init = folder.join("init");
    fs::write(&init, INIT).map_err(LabError::file("write", &init))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(LabError::file("mark", &init))?;
    let mut order = String::new();
    for module in modules(kernel)? {
        order.push_str(&place_module(&module, &folder.join("modules"))?);
        order.push('\n');
    }
    let list = folder.join("modules/order");
    fs::write(&list, order).map_err(LabError::file("write", &list))?;
    pack(folder, archive)
}

/// The program whose every part is in one file: it has no libraries to lean on before the host's files are there.
fn busybox() -> Result<PathBuf, LabError> {
    let places = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from);
    let absent = LabError::NoProgram { program: "busybox", package: "busybox-static" };
    let place = places.into_iter().find(|path| path.is_file()).ok_or(absent)?;
    // Another package has one of the same name that wants a loader and libraries.
    let program = fs::read(&place).map_err(LabError::file("read", &place))?;
    if wants_loader(&program) { Err(LabError::Shared { path: place, package: "busybox-static" }) } else { Ok(place) }
}

/// Whether a program of 64 bits names a loader of shared libraries: one of its headers, a table at the place that byte
/// 32 names, is of kind 3.
fn wants_loader(program: &[u8]) -> bool {
    let bytes = |from: usize, count: usize| program.get(from..from.checked_add(count)?);
    let number =
        |from, count| Some(bytes(from, count)?.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte)));
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let (Some(table), Some(size), Some(count)) = (table, size, count) else { return false };
    (0..count).any(|index| number(table.saturating_add(index * size), 4) == Some(3))
}

/// The files of all modules, each after those it needs, none twice. What is built in has none.
fn modules(kernel: &Unpacked) -> Result<Vec<PathBuf>, LabError> {
    let mut files: Vec<PathBuf> = Vec::new();
    for module in MODULES {
        let mut modprobe = host::program("modprobe");
        modprobe.arg("-d").arg(&kernel.root).args(["-S", &kernel.release, "--show-depends", module]);
        let shown = host::run(&mut modprobe, LIMIT)?;
        let named = shown.lines().filter_map(|line| line.strip_prefix("insmod "));
        for file in named.filter_map(|words| words.split_whitespace().next()).map(PathBuf::from) {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// Puts a module there, unpacked; gives the name it has there.
fn place_module(file: &Path, folder: &Path) -> Result<String, LabError> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(plain) = name.strip_suffix(".xz") else {
        fs::copy(file, folder.join(name)).map_err(LabError::file("copy", file))?;
        return Ok(name.to_owned());
    };
    let place = folder.join(plain);
    let out = File::create(&place).map_err(LabError::file("make", &place))?;
    let mut unpack = host::program("xz");
    unpack.args(["-d", "-c"]).arg(file);
    host::run_into(&mut unpack, Stdio::from(out), LIMIT)?;
    Ok(plain.to_owned())
}

fn pack(folder: &Path, archive: &Path) -> Result<(), LabError> {
    let out = File::create(archive).map_err(LabError::file("make", archive))?;
    let mut pack = host::program("sh");
    pack.args(["-euc", "find . -print0 | sort -z | cpio --null --create --format=newc --owner=0:0 --quiet"]);
    host::run_into(pack.current_dir(folder), Stdio::from(out), LIMIT).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_told_from_one_without() {
        let own = fs::read(std::env::current_exe().expect("this program")).expect("it can be read");
        assert!(wants_loader(&own));
        let mut without = own.clone();
        without[56] = 0;
        assert!(!wants_loader(&without), "no headers at all");
        for length in [0, 40, 57, 64] {
            assert!(!wants_loader(&own[..length]), "cut after {length} bytes");
        }
    }
}
