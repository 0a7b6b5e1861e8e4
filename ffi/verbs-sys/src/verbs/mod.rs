//! libibverbs, in the words of `infiniband/verbs.h`.

mod calls;
pub(crate) mod completion;
pub(crate) mod constants;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod extended;
pub(crate) mod flags;
mod hot;
mod library;
pub(crate) mod memory;
pub(crate) mod queue;
pub(crate) mod work;

pub use calls::*;
pub use completion::*;
pub use constants::*;
pub use context::{ibv_context, ibv_context_ops, verbs_context};
pub use device::*;
pub use extended::*;
pub use flags::*;
pub use hot::*;
pub use library::Verbs;
pub use memory::*;
pub use queue::*;
pub use work::*;
