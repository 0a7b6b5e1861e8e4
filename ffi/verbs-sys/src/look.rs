//! A look at what is here, for whoever only wants to know: safe, and nothing stays open but the libraries themselves.

use std::ffi::CStr;
use std::io;

use crate::{Cm, Missing, NotHere, Verbs};

/// What a look found.
#[derive(Debug)]
pub struct Seen {
    /// The devices that libibverbs has a driver for, by the kernel's names; or why it could not look for them.
    pub devices: io::Result<Vec<String>>,
    /// The optional functions that these libraries do not have.
    pub missing: Vec<Missing>,
    /// Whether librdmacm is here, which only connections by the connection manager need.
    pub manager: Result<(), NotHere>,
}

/// Opens the libraries and asks for the devices. Without libibverbs there is nothing to be seen.
pub fn look() -> Result<Seen, NotHere> {
    let (verbs, manager) = (Verbs::open()?, Cm::open());
    let of_manager = manager.iter().flat_map(|cm| cm.missing());
    let missing = verbs.missing().chain(of_manager).collect();
    Ok(Seen { devices: devices(verbs), missing, manager: manager.map(drop) })
}

fn devices(verbs: &'static Verbs) -> io::Result<Vec<String>> {
    let mut count = 0;
    // SAFETY: the place of a number; the list is given back below.
    let list = unsafe { verbs.ibv_get_device_list(&raw mut count) };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let names = (0..usize::try_from(count).unwrap_or(0)).map(|at| {
        // SAFETY: the list has that many devices and stands until it is given back; each has a name as long as it does.
        unsafe {
            let name = verbs.ibv_get_device_name(*list.add(at));
            if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        }
    });
    let names = names.collect();
    // SAFETY: the list came from the library and is used no more.
    unsafe { verbs.ibv_free_device_list(list) };
    Ok(names)
}
