//! Where functions of a library lie, by version and without.

use std::ffi::CString;

/// The places of `symbol`: of exactly `version`, and of the one that programs get that are linked today.
pub(crate) fn places(library: &str, symbol: &str, version: &str) -> (Option<usize>, Option<usize>) {
    let [library, symbol, version] = [library, symbol, version].map(|name| CString::new(name).expect("no zero in it"));
    // SAFETY: a C string, and flags of the manual page; the library is open already and stays so.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{library:?} is open already");
    // SAFETY: an open library and C strings.
    let (named, newest) =
        unsafe { (libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()), libc::dlsym(handle, symbol.as_ptr())) };
    let place = |at: *mut libc::c_void| (!at.is_null()).then(|| at.addr());
    (place(named), place(newest))
}
