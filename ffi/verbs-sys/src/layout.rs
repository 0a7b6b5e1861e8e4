//! Structures, constants and functions, and the list of them that the layout labs compare with the C headers.
//!
//! Everything that has to agree with C is written inside one of three macros, which define it *and* list it. What is not
//! listed cannot be used, so a new field or constant cannot be forgotten in the comparison. Each module that uses a macro
//! owns a list; [`structs`], [`enums`], [`constants`] and [`functions`] join them.

/// A structure or a union as it is here.
#[derive(Debug)]
pub struct Struct {
    /// Its name here.
    pub name: &'static str,
    /// The C type that it stands for, such as `struct ibv_qp`.
    pub c: &'static str,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Where C may have more than is here.
    pub growth: Growth,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// Where a structure gets new fields when its library gets new abilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Nowhere: its size is part of the interface.
    Never,
    /// Behind its last field: the library makes it, or is told how much of it there is.
    AtEnd,
    /// Before its first field: its fields have their places from its end.
    AtFront,
}

/// A field of a [`Struct`].
#[derive(Debug)]
pub struct Field {
    /// Its name here.
    pub name: &'static str,
    /// How C reaches it from its structure.
    pub c: &'static str,
    /// Bytes from the structure's beginning.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Its type, as written here.
    pub of: &'static str,
}

/// An enumeration of C: a number here, since a library may answer with a value that its header did not know.
#[derive(Debug)]
pub struct Enum {
    /// Its name, in both.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Whether it can be negative.
    pub is_signed: bool,
}

/// A named number.
#[derive(Debug)]
pub struct Constant {
    /// Its name, in both.
    pub name: &'static str,
    /// The enumeration that it belongs to, if it has one with a name.
    pub of: Option<&'static str>,
    /// Its value.
    pub value: i64,
}

/// Defines structures and unions of C and lists them as `STRUCTS` of the module.
///
/// `struct name` stands for the C type `struct name`; `struct name = "…"` for the C type so called. A field that C reaches by
/// another name says so by `field as "name"`. `, AtEnd` after the name says where C may have more ([`Growth`]).
macro_rules! c_structs {
    ($(
        $(#[$meta:meta])*
        $kind:ident $name:ident $(= $c:literal)? $(, $growth:ident)? {
            $( $(#[$about:meta])* $field:ident $(as $path:literal)? : $type:ty ),+ $(,)?
        }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            #[allow(missing_docs, reason = "the fields are those of C, and explained in its manual pages")]
            pub $kind $name {
                $( $(#[$about])* pub $field: $type, )+
            }

            // SAFETY: each field is plain, or this does not compile.
            unsafe impl $crate::plain::Plain for $name where $($type: $crate::plain::Plain),+ {}

            impl $name {
                /// All bits zero.
                // SAFETY: the type is plain.
                pub const ZERO: Self = unsafe { ::std::mem::zeroed() };
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::ZERO
                }
            }
        )*

        pub(crate) const STRUCTS: &[$crate::layout::Struct] = &[ $(
            $crate::layout::Struct {
                name: stringify!($name),
                c: $crate::layout::either!($($c)?; concat!(stringify!($kind), " ", stringify!($name))),
                size: size_of::<$name>(),
                align: align_of::<$name>(),
                growth: $crate::layout::either!($($crate::layout::Growth::$growth)?; $crate::layout::Growth::Never),
                fields: &[ $(
                    $crate::layout::Field {
                        name: stringify!($field),
                        c: $crate::layout::either!($($path)?; stringify!($field)),
                        offset: ::std::mem::offset_of!($name, $field),
                        size: size_of::<$type>(),
                        of: stringify!($type),
                    }
                ),+ ],
            }
        ),* ];
    };
}

/// Defines enumerations (`enum name: type { … }`) and other named numbers (`values type { … }`) and lists them as `ENUMS`
/// and `CONSTANTS` of the module.
macro_rules! c_constants {
    (
        $( $(#[$meta:meta])* enum $name:ident: $of:ty { $($constant:ident = $value:expr),+ $(,)? } )*
        $( values $plain:ty { $( $(#[$about:meta])* $other:ident = $number:expr ),+ $(,)? } )*
    ) => {
        $(
            $(#[$meta])*
            pub type $name = $of;
            $(
                #[allow(missing_docs, reason = "a value of the type above, explained in the manual pages of C")]
                pub const $constant: $name = $value;
            )+
        )*
        $( $(
            $(#[$about])*
            pub const $other: $plain = $number;
        )+ )*

        pub(crate) const ENUMS: &[$crate::layout::Enum] = &[ $(
            $crate::layout::Enum { name: stringify!($name), size: size_of::<$of>(), is_signed: <$of>::MIN != 0 }
        ),* ];

        pub(crate) const CONSTANTS: &[$crate::layout::Constant] = &[
            $( $( $crate::layout::Constant {
                name: stringify!($constant),
                of: Some(stringify!($name)),
                value: $constant as i64,
            }, )+ )*
            $( $( $crate::layout::Constant {
                name: stringify!($other),
                of: None,
                value: $other as i64,
            }, )+ )*
        ];
    };
}

/// The first of two expressions that is there.
macro_rules! either {
    (; $otherwise:expr) => {
        $otherwise
    };
    ($given:expr; $otherwise:expr) => {
        $given
    };
}

pub(crate) use {c_constants, c_structs, either};

pub use penstock_loader::Function;

use crate::{cm, verbs};

/// Every structure and union.
pub fn structs() -> impl Iterator<Item = &'static Struct> {
    [
        verbs::device::STRUCTS,
        verbs::context::STRUCTS,
        verbs::memory::STRUCTS,
        verbs::completion::STRUCTS,
        verbs::queue::STRUCTS,
        verbs::work::STRUCTS,
        verbs::extended::STRUCTS,
        cm::types::STRUCTS,
    ]
    .into_iter()
    .flatten()
}

/// Every enumeration.
pub fn enums() -> impl Iterator<Item = &'static Enum> {
    [verbs::constants::ENUMS, verbs::flags::ENUMS, cm::constants::ENUMS].into_iter().flatten()
}

/// Every named number.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    [verbs::constants::CONSTANTS, verbs::flags::CONSTANTS, cm::constants::CONSTANTS].into_iter().flatten()
}

/// Every function.
pub fn functions() -> impl Iterator<Item = &'static Function> {
    [verbs::Verbs::FUNCTIONS, cm::Cm::FUNCTIONS].into_iter().flatten()
}
