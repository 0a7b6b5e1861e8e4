//! The border: what every call goes through.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::{Answer, Failure, remember};
use crate::status::penstock_status::{self, *};

/// Runs a call. What fails is remembered as the thread's last error, and a panic is a failure like any other.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Answer) -> penstock_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failed(&failure),
        Err(panicked) => {
            let words = panicked.downcast_ref::<String>().map(String::as_str);
            let words = words.or(panicked.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
            failed(&Failure::new(PENSTOCK_INTERNAL, format!("a mistake in Penstock itself: {words}; please report it")))
        }
    }
}

/// The same without a trace in the last error, for the call that reads it.
pub(crate) fn quietly(body: impl FnOnce() -> Answer) -> penstock_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failure.status,
        Err(_) => PENSTOCK_INTERNAL,
    }
}

#[cold]
fn failed(failure: &Failure) -> penstock_status {
    remember(failure);
    failure.status
}
