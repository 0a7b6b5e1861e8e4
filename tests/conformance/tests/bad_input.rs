//! Bad input of every kind: a typed refusal that says what to do, nothing lost, everyone else served.
//!
//! Each case is run against a threaded and an inline engine that have a healthy peer, which transfers
//! verified bytes all the time.

mod bad_input {
    mod bells;
    mod costs;
    mod offers;
    mod plans;
    mod rings;
    mod slots;
    mod socket;
}
