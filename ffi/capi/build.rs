//! Gives the shared library the name by which programs find it, whose number is that of the ABI.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpenstock.so.0");
}
