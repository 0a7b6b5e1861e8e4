//! The other process of the cases of [`processes`](penstock_conformance::processes). Its argument names the case.

#![forbid(unsafe_code)]

fn main() {
    let order = std::env::args().nth(1).expect("the tests of this crate start this program");
    penstock_conformance::processes::child(&order);
}
