//! Pointers of callers, read and written in one place.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use crate::failure::{Answer, Failure};
use crate::status::penstock_status::*;

type Checked<T> = Result<T, Box<Failure>>;

/// A struct that begins with its size, so that later releases can add fields.
pub(crate) trait Versioned: Copy {
    fn size(&self) -> usize;
}

fn check<T>(pointer: *const T, what: &str) -> Checked<()> {
    match pointer {
        pointer if pointer.is_null() => Err(Failure::invalid(format!("`{what}` is null"))),
        pointer if !pointer.is_aligned() => Err(Failure::invalid(format!("`{what}` is not aligned as its type"))),
        _ => Ok(()),
    }
}

/// Where an answer goes, which is looked at before anything is done.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// The pointer is null or may be written.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Checked<Self> {
        check(pointer, what)?;
        Ok(Self(pointer))
    }

    /// The same; null is none.
    ///
    /// # Safety
    /// As of [`Out::new`].
    pub(crate) unsafe fn or_none(pointer: *mut T, what: &str) -> Checked<Option<Self>> {
        // SAFETY: the caller's promise.
        if pointer.is_null() { Ok(None) } else { unsafe { Self::new(pointer, what) }.map(Some) }
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: it was neither null nor misaligned, and may be written as its maker was promised.
        unsafe { self.0.write(value) };
    }
}

/// Writes as much of an answer as the caller's struct has room for; its `size` stays.
///
/// # Safety
/// `to` is null or points to a struct whose `size` is set and true.
pub(crate) unsafe fn write_sized<T: Versioned>(to: *mut T, value: T) -> Answer {
    check(to, "the struct for the answer")?;
    let first = size_of::<usize>();
    // SAFETY: the caller's struct begins with its size, and has as many bytes.
    unsafe {
        let room = to.cast::<usize>().read();
        if room < first {
            return Err(Failure::invalid("the `size` of the struct for the answer is not set to its sizeof"));
        }
        let (from, to) = ((&raw const value).cast::<u8>(), to.cast::<u8>());
        let len = room.min(size_of::<T>()) - first;
        std::ptr::copy_nonoverlapping(from.add(first), to.add(first), len);
    }
    Ok(PENSTOCK_OK)
}

/// Reads a caller's struct of options into one of this release: what an older caller does not have is zero, and what a newer one has
/// more must be zero. Null is all zeros.
///
/// # Safety
/// `from` is null or points to a struct whose `size` is set and true; all zeros is a value of `T`.
pub(crate) unsafe fn read_sized<T: Versioned>(from: *const T, zeros: T) -> Checked<T> {
    if from.is_null() {
        return Ok(zeros);
    }
    check(from, "the struct of options")?;
    let mut options = zeros;
    // SAFETY: the caller's struct begins with its size, and has as many bytes.
    unsafe {
        let size = from.cast::<usize>().read();
        if size < size_of::<usize>() || size > MOST {
            return Err(Failure::invalid("the `size` of the struct of options is not set to its sizeof"));
        }
        let len = size.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut options).cast::<u8>(), len);
        let more = std::slice::from_raw_parts(from.cast::<u8>().add(len), size - len);
        if more.iter().any(|byte| *byte != 0) {
            return Err(Failure::invalid(
                "the struct of options has fields that this release of the library does not know",
            ));
        }
    }
    debug_assert!(options.size() > 0);
    Ok(options)
}

/// No struct is ever larger.
const MOST: usize = 4096;

/// An array, which may be null if it is empty.
///
/// # Safety
/// The pointer is null or `count` values can be read there for as long as the answer is used.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, count: usize, what: &str) -> Checked<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, what)?;
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        return Err(Failure::invalid(format!("`{what}` cannot have {count} values")));
    }
    // SAFETY: not null, aligned, and of so many values as promised.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Text.
///
/// # Safety
/// The pointer is null or to bytes that end with a zero and stay as long as the answer is used.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Checked<&'a str> {
    check(pointer, what)?;
    // SAFETY: not null, and a C string as promised.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::invalid(format!("`{what}` is not UTF-8")))
}

/// The same; null is none.
///
/// # Safety
/// As of [`text`].
pub(crate) unsafe fn text_or_none<'a>(pointer: *const c_char, what: &str) -> Checked<Option<&'a str>> {
    // SAFETY: the caller's promise.
    if pointer.is_null() { Ok(None) } else { unsafe { text(pointer, what) }.map(Some) }
}

/// Puts a list into a caller's array, as far as it goes, and how many there are into `count`.
///
/// # Safety
/// `to` is null or has room for `capacity` values; `count` is null or may be written.
pub(crate) unsafe fn put_list<T>(values: Vec<T>, to: *mut T, capacity: usize, count: *mut usize) -> Answer {
    // SAFETY: the caller's promise.
    let count = unsafe { Out::new(count, "count") }?;
    if capacity > 0 {
        check(to, "the array for the answer")?;
    }
    let all = values.len();
    count.put(all);
    for (at, value) in values.into_iter().take(capacity).enumerate() {
        // SAFETY: within the capacity.
        unsafe { to.add(at).write(value) };
    }
    Ok(if all > capacity { PENSTOCK_TRUNCATED } else { PENSTOCK_OK })
}

/// Puts a text into a caller's buffer with a zero behind it, cut at a character if it does not fit, and the bytes of the whole, without the zero, into
/// `length`, unless that is null.
///
/// # Safety
/// `to` is null or has room for `capacity` bytes; `length` is null or may be written.
pub(crate) unsafe fn put_text(text: &str, to: *mut c_char, capacity: usize, length: *mut usize) -> Answer {
    // SAFETY: the caller's promise.
    if let Some(length) = unsafe { Out::or_none(length, "length") }? {
        length.put(text.len());
    }
    if capacity == 0 {
        return Ok(PENSTOCK_TRUNCATED);
    }
    check(to, "the buffer for the text")?;
    let mut fits = text.len().min(capacity - 1);
    while !text.is_char_boundary(fits) {
        fits -= 1;
    }
    // SAFETY: with the zero it is within the capacity.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), fits);
        to.add(fits).write(0);
    }
    Ok(if fits < text.len() { PENSTOCK_TRUNCATED } else { PENSTOCK_OK })
}

/// A time as callers give it.
pub(crate) fn millis(timeout_ms: u64) -> Duration {
    // A century: what is longer is for ever, and would overflow a clock.
    Duration::from_millis(timeout_ms.min(100 * 365 * 24 * 3600 * 1000))
}
