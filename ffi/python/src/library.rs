//! The C library: opened once, from the folder of this extension.
//!
//! Not as a needed library of the extension: the loader would look into `LD_LIBRARY_PATH` first, and take another copy.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[allow(dead_code, missing_docs, non_camel_case_types, unreachable_pub, reason = "written from the header, whole")]
#[allow(clippy::derivable_impls, reason = "those with pointers cannot be derived")]
mod raw {
    include!(concat!(env!("OUT_DIR"), "/raw.rs"));
}

pub(crate) use raw::*;

/// Its name beside the extension, which is the name that programs in C know it by.
const FILE: &str = "libpenstock.so.0";

/// What mends a package of which the parts do not fit.
const REMEDY: &str = "install the wheel again: pip install --force-reinstall penstock";

struct Opened {
    calls: Library,
    path: PathBuf,
}

static OPENED: OnceLock<Opened> = OnceLock::new();

/// The calls of the library.
pub(crate) fn library() -> &'static Library {
    &opened().calls
}

/// The file that is open.
pub(crate) fn path() -> &'static Path {
    &opened().path
}

fn opened() -> &'static Opened {
    OPENED.get().expect("the module opens it before anything else")
}

/// Opens the library, or says in words why not. Nothing is kept of an attempt that failed.
pub(crate) fn open() -> Result<(), String> {
    if OPENED.get().is_some() {
        return Ok(());
    }
    let path = own_folder()?.join(FILE);
    let name = CString::new(path.as_os_str().as_bytes()).expect("no path of a file holds a zero");
    // SAFETY: a text that ends with a zero. What the file does when it is loaded is its own affair; it is of this package.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(format!("penstock cannot load its library: {}; {REMEDY}", last_words()));
    }
    match find(handle) {
        Ok(calls) => {
            // Of two that come here at once both have the same library, which the loader counts.
            let _ = OPENED.set(Opened { calls, path });
            Ok(())
        }
        Err(why) => {
            // SAFETY: it was opened above, and nothing of it is used.
            unsafe { libc::dlclose(handle) };
            Err(format!("{} {why}; {REMEDY}", path.display()))
        }
    }
}

/// The calls of an open library, if it is the one that the header describes.
fn find(handle: *mut c_void) -> Result<Library, String> {
    // SAFETY: an open library, and a text that ends with a zero.
    let symbol = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    let missing = |name: &CStr| format!("is not the library of this package: it has no `{}`", name.to_string_lossy());
    let abi = Some(symbol(c"penstock_abi")).filter(|abi| !abi.is_null()).ok_or_else(|| missing(c"penstock_abi"))?;
    // SAFETY: the one call that is the same for every ABI: no arguments, and a number.
    let abi = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(abi)() };
    if abi != PENSTOCK_ABI {
        return Err(format!("has ABI {abi}, and this package needs {PENSTOCK_ABI}"));
    }
    // SAFETY: the library says that it has the header's ABI, and it is not closed once this has succeeded.
    unsafe { Library::find(symbol) }.map_err(missing)
}

/// The folder of this extension, behind all symbolic links.
fn own_folder() -> Result<PathBuf, String> {
    let own: fn() -> Result<PathBuf, String> = own_folder;
    // SAFETY: the struct is plain numbers and pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this extension, and the place for the answer.
    let found = unsafe { libc::dladdr(own as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return Err("penstock cannot find the file of its own extension".into());
    }
    // SAFETY: the loader's own text, which stands as long as the extension is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    let real = name.canonicalize().map_err(|error| format!("penstock cannot find {}: {error}", name.display()))?;
    Ok(real.parent().expect("a file is in a folder").to_owned())
}

/// Why the loader refused, which names the file.
fn last_words() -> String {
    // SAFETY: the text is this thread's until its next call of the loader.
    unsafe {
        let words = libc::dlerror();
        if words.is_null() { "no reason given".into() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
    }
}
