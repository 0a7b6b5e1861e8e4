//! libibverbs and librdmacm, opened at run time: nothing is linked, and a program with this in it runs where they are not.
//!
//! [`Library::open`] opens both, or says what is missing and which package has it. Functions of the libraries are methods
//! of [`Verbs`] and [`Cm`]; what the headers of C define inline, the hot verbs among them, are functions here that call
//! through the tables of the device's driver as C does. All of it is as unsafe as C: names, structures and numbers are those of
//! `infiniband/verbs.h` and `rdma/rdma_cma.h`, for reliable connections between two processes, and no more of them.
//!
//! Read in this order:
//!
//! - [`verbs`], [`cm`]: the two libraries
//! - [`words`]: what their numbers mean; [`look`](mod@look): what of all this is here
//! - [`layout`]: the list of everything that has to agree with C (with [`plain`] below it)

#![allow(non_camel_case_types, reason = "the names are those of C")]

pub mod cm;
pub mod layout;
pub mod look;
pub mod plain;
pub mod verbs;
pub mod words;

pub use cm::Cm;
pub use look::{Seen, look};
pub use penstock_loader::{Missing, Named, NotHere};
pub use verbs::Verbs;

/// Both libraries.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// libibverbs.
    pub verbs: &'static Verbs,
    /// librdmacm.
    pub cm: &'static Cm,
}

impl Library {
    /// Opens both libraries, once for the whole process. What is not here is looked for again at the next call.
    pub fn open() -> Result<&'static Self, NotHere> {
        static OPEN: std::sync::OnceLock<Library> = std::sync::OnceLock::new();
        if let Some(open) = OPEN.get() {
            return Ok(open);
        }
        let opened = Self { verbs: Verbs::open()?, cm: Cm::open()? };
        Ok(OPEN.get_or_init(|| opened))
    }
}
