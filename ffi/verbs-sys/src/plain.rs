//! Types whose every bit may be zero: what makes `ZERO` of each structure sound.

use std::ffi::c_void;

/// A type of C whose value with all bits zero is a value: a number, a pointer, an optional function, or made of those.
///
/// # Safety
///
/// All bits zero is a valid value of the type.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: numbers, and structures of the C library made of numbers and pointers.
        unsafe impl Plain for $type {}
    )* };
}

plain!(i8, u8, u16, i32, u32, i64, u64, usize);
plain!(libc::pthread_mutex_t, libc::pthread_cond_t, libc::sockaddr_storage);

// SAFETY: a null pointer is a pointer.
unsafe impl<T> Plain for *mut T {}

// SAFETY: a null pointer is a pointer.
unsafe impl<T> Plain for *const T {}

// SAFETY: each element is plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

macro_rules! plain_functions {
    ($($($argument:ident)*;)*) => { $(
        // SAFETY: the language promises that all bits zero is `None` for an optional function.
        unsafe impl<R, $($argument),*> Plain for Option<unsafe extern "C" fn($($argument),*) -> R> {}
    )* };
}

plain_functions! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
}

/// A pointer that nobody here follows, to a function or to anything else: only its place counts.
pub type Unused = *mut c_void;
