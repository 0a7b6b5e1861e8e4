//! The CUDA driver's functions, opened at run time: a program with this in it runs where there is no driver, and [`Driver::open`] says
//! what is missing. All functions are as unsafe as C.
//!
//! - [`driver`]: the library, its functions, and what may be wrong with it
//! - [`status`]: what a function answers
//! - [`types`]: the types of its arguments, which are those of the crate `cudarc`
//!
//! Functions are our own pointers and not those of `cudarc`: they answer numbers, where its `CUresult` is an enumeration in which a code of
//! a newer driver is undefined behaviour, they are looked for before the first is called, where its loader panics at the call, and
//! each is asked for in one version of its interface, where its loader takes the oldest of that name.

pub mod driver;
pub mod status;
pub mod types;

pub use driver::{Driver, GetProcAddress, Lacking, NotHere, PATH_VARIABLE, Version};
pub use status::Status;
