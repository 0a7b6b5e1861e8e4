//! Shared libraries, opened when they are asked for: nothing is linked, and a program with this in it runs where they are not.
//!
//! [`c_library`] defines a library as a structure of its functions. It opens once for the whole process, or says what is missing and
//! which package has it.

use std::error::Error;
use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::NonNull;

/// A shared library, and the package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Its name with the version of its interface, as the loader knows it.
    pub soname: &'static CStr,
    /// The Debian packages that hold it and what it needs.
    pub packages: &'static str,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.soname.to_string_lossy())
    }
}

/// Why a library cannot be used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotHere {
    /// The loader does not find it, or not what it needs itself.
    Library {
        library: Named,
        /// What the loader said.
        said: String,
    },
    /// It is too old, or not the library that it says it is.
    Symbol {
        /// The library.
        library: Named,
        /// The function that it lacks.
        missing: Missing,
    },
}

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { library, said } => {
                write!(f, "{library} cannot be opened ({said}): install {} (Debian's names)", library.packages)
            }
            Self::Symbol { library, missing } => {
                write!(f, "{missing}: it is too old, install a newer {} (Debian's names)", library.packages)
            }
        }
    }
}

impl Error for NotHere {}

/// A function that a library does not have, in the version that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The library.
    pub library: &'static str,
    /// The function.
    pub symbol: &'static str,
    /// The version of its interface.
    pub version: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { library, symbol, version } = self;
        write!(f, "{library} has no {symbol} of version {version}")
    }
}

impl Error for Missing {}

/// A function of a shared library.
#[derive(Debug)]
pub struct Function {
    /// The symbol that is looked for.
    pub name: &'static str,
    /// The version of it that is asked for.
    pub version: &'static str,
    /// The library that has it.
    pub library: &'static str,
    /// Whether a library without it is used all the same.
    pub is_optional: bool,
    /// The types of its arguments, as written here.
    pub arguments: &'static [&'static str],
    /// The type that it returns, as written here; empty if it returns nothing.
    pub returns: &'static str,
}

/// An open library. It stays open until the process ends: drivers register themselves with it and cannot be taken back.
#[derive(Debug)]
pub struct Shared {
    handle: NonNull<c_void>,
}

impl Shared {
    /// Opens `library`.
    pub fn open(library: Named) -> Result<Self, NotHere> {
        // SAFETY: a C string, and flags of the manual page. What the library does as it is loaded is what a program linked with
        // it lets it do too.
        let handle = unsafe { libc::dlopen(library.soname.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle }),
            None => Err(NotHere::Library { library, said: last_words() }),
        }
    }

    /// The function `symbol` of exactly `version`, as a program gets it that was linked with the library: an interface of
    /// the same name with other structures has another version.
    pub fn find(&self, symbol: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
        let handle = self.handle.as_ptr();
        // SAFETY: the handle is open, and both are C strings.
        #[cfg(target_env = "gnu")]
        let place = unsafe { libc::dlvsym(handle, symbol.as_ptr(), version.as_ptr()) };
        // SAFETY: the handle is open, and it is a C string. This C library's loader knows of no versions.
        #[cfg(not(target_env = "gnu"))]
        let place = unsafe {
            let _ = version;
            libc::dlsym(handle, symbol.as_ptr())
        };
        NonNull::new(place)
    }

    /// The function `symbol` of a library that has no versions of its functions.
    pub fn find_unversioned(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, and it is a C string.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }
}

/// What the loader has to say about this thread's last mistake.
fn last_words() -> String {
    // SAFETY: takes nothing; answers a C string that stays until this thread's next call of the loader, or null.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: a C string, as above.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

/// Defines a library as a structure of its functions, and lists them as its `FUNCTIONS`.
///
/// Those under `required` have to be there, or the library is not; those under `optional` answer [`Missing`] where they are not.
/// Those under `wrapped` are required too, but called by methods that are written by hand: C has them under names that its
/// headers call otherwise.
#[macro_export]
macro_rules! c_library {
    (
        $(#[$meta:meta])*
        struct $library:ident = $soname:literal in $packages:literal;
        wrapped { $( $wversion:literal fn $wrapped:ident($($warg:ident: $wtype:ty),* $(,)?) $(-> $wreturns:ty)?; )* }
        required { $(
            $(#[$rmeta:meta])*
            $rversion:literal fn $required:ident($($rarg:ident: $rtype:ty),* $(,)?) $(-> $rreturns:ty)?;
        )* }
        optional { $(
            $(#[$ometa:meta])*
            $oversion:literal fn $optional:ident($($oarg:ident: $otype:ty),* $(,)?) $(-> $oreturns:ty)?;
        )* }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $library {
            $( pub(super) $wrapped: unsafe extern "C" fn($($wtype),*) $(-> $wreturns)?, )*
            $( $required: unsafe extern "C" fn($($rtype),*) $(-> $rreturns)?, )*
            $( $optional: Option<unsafe extern "C" fn($($otype),*) $(-> $oreturns)?>, )*
        }

        impl $library {
            /// The library's name and package.
            pub const NAMED: $crate::Named =
                $crate::Named { soname: $crate::c_string(concat!($soname, "\0")), packages: $packages };

            /// Every function that is looked for.
            pub const FUNCTIONS: &[$crate::Function] = &[
                $( $crate::Function {
                    name: stringify!($wrapped),
                    version: $wversion,
                    library: $soname,
                    is_optional: false,
                    arguments: &[$(stringify!($wtype)),*],
                    returns: concat!($(stringify!($wreturns))?),
                }, )*
                $( $crate::Function {
                    name: stringify!($required),
                    version: $rversion,
                    library: $soname,
                    is_optional: false,
                    arguments: &[$(stringify!($rtype)),*],
                    returns: concat!($(stringify!($rreturns))?),
                }, )*
                $( $crate::Function {
                    name: stringify!($optional),
                    version: $oversion,
                    library: $soname,
                    is_optional: true,
                    arguments: &[$(stringify!($otype)),*],
                    returns: concat!($(stringify!($oreturns))?),
                }, )*
            ];

            /// Opens the library, once for the whole process. A library that is not here is looked for again at the next call.
            pub fn open() -> Result<&'static Self, $crate::NotHere> {
                static OPEN: ::std::sync::OnceLock<$library> = ::std::sync::OnceLock::new();
                if let Some(open) = OPEN.get() {
                    return Ok(open);
                }
                let opened = Self::load(Self::NAMED)?;
                Ok(OPEN.get_or_init(|| opened))
            }

            /// Opens `named` and looks for every function in it.
            fn load(named: $crate::Named) -> Result<Self, $crate::NotHere> {
                let shared = $crate::Shared::open(named)?;
                Ok(Self {
                    $( $wrapped: {
                        let place = $crate::required!(shared, named, $soname, $wrapped, $wversion);
                        // SAFETY: the symbol of this name and version is a function of this type.
                        unsafe {
                            ::std::mem::transmute::<
                                ::std::ptr::NonNull<::std::ffi::c_void>,
                                unsafe extern "C" fn($($wtype),*) $(-> $wreturns)?,
                            >(place)
                        }
                    }, )*
                    $( $required: {
                        let place = $crate::required!(shared, named, $soname, $required, $rversion);
                        // SAFETY: the symbol of this name and version is a function of this type.
                        unsafe {
                            ::std::mem::transmute::<
                                ::std::ptr::NonNull<::std::ffi::c_void>,
                                unsafe extern "C" fn($($rtype),*) $(-> $rreturns)?,
                            >(place)
                        }
                    }, )*
                    $( $optional: $crate::find!(shared, $optional, $oversion).map(|place| {
                        // SAFETY: the symbol of this name and version is a function of this type.
                        unsafe {
                            ::std::mem::transmute::<
                                ::std::ptr::NonNull<::std::ffi::c_void>,
                                unsafe extern "C" fn($($otype),*) $(-> $oreturns)?,
                            >(place)
                        }
                    }), )*
                })
            }

            /// The optional functions that this library does not have.
            pub fn missing(&self) -> impl Iterator<Item = $crate::Missing> {
                [$(
                    (self.$optional.is_none(), $crate::missing!($soname, $optional, $oversion)),
                )*].into_iter().filter_map(|(is_missing, missing): (bool, _)| is_missing.then_some(missing))
            }

            $(
                $(#[$rmeta])*
                ///
                /// # Safety
                ///
                /// What the manual page of the C function asks for: arguments that point to what their types say, objects that
                /// this library made and that are not destroyed yet.
                #[inline]
                pub unsafe fn $required(&self, $($rarg: $rtype),*) $(-> $rreturns)? {
                    // SAFETY: the caller promises what the function asks for.
                    unsafe { (self.$required)($($rarg),*) }
                }
            )*

            $(
                $(#[$ometa])*
                ///
                /// # Safety
                ///
                /// What the manual page of the C function asks for: arguments that point to what their types say, objects that
                /// this library made and that are not destroyed yet.
                #[inline]
                pub unsafe fn $optional(
                    &self,
                    $($oarg: $otype),*
                ) -> Result<$crate::returned!($($oreturns)?), $crate::Missing> {
                    match self.$optional {
                        // SAFETY: the caller promises what the function asks for.
                        Some(function) => Ok(unsafe { function($($oarg),*) }),
                        None => Err($crate::missing!($soname, $optional, $oversion)),
                    }
                }
            )*
        }
    };
}

/// The place of a symbol, if there is one.
#[doc(hidden)]
#[macro_export]
macro_rules! find {
    ($shared:ident, $symbol:ident, $version:literal) => {{
        const SYMBOL: &::std::ffi::CStr = $crate::c_string(concat!(stringify!($symbol), "\0"));
        const VERSION: &::std::ffi::CStr = $crate::c_string(concat!($version, "\0"));
        $shared.find(SYMBOL, VERSION)
    }};
}

/// The place of a symbol; where there is none, the function it stands in ends with that.
#[doc(hidden)]
#[macro_export]
macro_rules! required {
    ($shared:ident, $named:ident, $soname:literal, $symbol:ident, $version:literal) => {
        match $crate::find!($shared, $symbol, $version) {
            Some(place) => place,
            None => {
                let missing = $crate::missing!($soname, $symbol, $version);
                return Err($crate::NotHere::Symbol { library: $named, missing });
            }
        }
    };
}

/// The typed absence of a symbol.
#[doc(hidden)]
#[macro_export]
macro_rules! missing {
    ($soname:literal, $symbol:ident, $version:literal) => {
        $crate::Missing { library: $soname, symbol: stringify!($symbol), version: $version }
    };
}

/// What a function returns, written out.
#[doc(hidden)]
#[macro_export]
macro_rules! returned {
    () => {
        ()
    };
    ($returns:ty) => {
        $returns
    };
}

/// A name of ours as C wants it.
pub const fn c_string(with_zero: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(with_zero.as_bytes()) {
        Ok(string) => string,
        Err(_) => panic!("a name has a zero in it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Named = Named { soname: c"libpenstock-no-such.so.1", packages: "nothing" };

    #[test]
    fn a_library_that_is_not_here_is_named_with_what_the_loader_said_and_its_package() {
        let absence = Shared::open(NOWHERE).expect_err("there is no such library");
        let NotHere::Library { library, said } = &absence else { panic!("{absence:?}") };
        assert_eq!(*library, NOWHERE);
        assert!(said.contains("libpenstock-no-such.so.1"), "{said}");
        let words = absence.to_string();
        assert!(words.contains(said.as_str()) && words.contains("install nothing"), "{words}");
    }

    /// A library that is here.
    const C_LIBRARY: Named = Named { soname: c"libc.so.6", packages: "libc6" };

    #[expect(dead_code, unreachable_pub, reason = "the macro defines what other libraries use")]
    mod fixture {
        use std::ffi::{c_char, c_int};

        crate::c_library! {
            /// A part of the C library, with an optional function that is not there.
            struct Whole = "libc.so.6" in "libc6";
            wrapped { "GLIBC_2.2.5" fn abs(of: c_int) -> c_int; }
            required {
                /// Bytes up to the zero.
                "GLIBC_2.2.5" fn strlen(of: *const c_char) -> usize;
            }
            optional {
                /// There, but not in this version.
                "GLIBC_1.0" fn labs(of: i64) -> i64;
                /// There.
                "GLIBC_2.2.5" fn toupper(of: c_int) -> c_int;
            }
        }

        crate::c_library! {
            /// A library that lacks what it has to have.
            struct Lacking = "libc.so.6" in "libc6";
            wrapped {}
            required {
                /// Not there.
                "GLIBC_2.2.5" fn penstock_no_such_function();
            }
            optional {}
        }
    }

    #[test]
    #[cfg(all(target_env = "gnu", target_arch = "x86_64"))]
    fn functions_are_found_by_name_and_version_and_absences_are_typed() {
        let whole = fixture::Whole::open().expect("the C library is here");
        // SAFETY: a C string.
        assert_eq!(unsafe { whole.strlen(c"penstock".as_ptr()) }, 8);
        // SAFETY: asks for nothing.
        assert_eq!(unsafe { (whole.abs)(-3) }, 3);
        // SAFETY: asks for nothing.
        assert_eq!(unsafe { whole.toupper(i32::from(b'p')) }, Ok(i32::from(b'P')));
        let absent = Missing { library: "libc.so.6", symbol: "labs", version: "GLIBC_1.0" };
        // SAFETY: asks for nothing.
        assert_eq!(unsafe { whole.labs(-3) }, Err(absent));
        assert_eq!(whole.missing().collect::<Vec<_>>(), [absent]);

        let lacking = fixture::Lacking::open().expect_err("the C library has no such function");
        let missing = Missing { library: "libc.so.6", symbol: "penstock_no_such_function", version: "GLIBC_2.2.5" };
        assert_eq!(lacking, NotHere::Symbol { library: C_LIBRARY, missing });
        assert!(lacking.to_string().contains("install a newer libc6"), "{lacking}");
    }
}
