//! What handles stand for, and how one becomes the other.
//!
//! A handle is a number: kind (4 bits), process (8), generation (28), index (24). One that was released, or is of another
//! kind or process, or was made up, finds nothing and says so.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};

use penstock::memory::fork::PerProcess;
use penstock::{
    Blocks, Connecting, Counter, Engine, LocalRegion, Peer, Plan, Pool, Quarantined, RemoteCounter, RemoteRegion,
    SystemEnv, Transfer,
};
use penstock_ring::handles::{HandleTable, Pinned, TAG_SHIFT};

use crate::failure::{Answer, Failure};
use crate::status::penstock_status::*;
use crate::told::Batch;

const KIND_SHIFT: u32 = TAG_SHIFT + 8;

macro_rules! kinds {
    ($($name:ident($type:ty) = $number:literal : $what:literal),+ $(,)?) => {
        /// Something that has a handle.
        pub(crate) enum Object { $($name($type)),+ }

        $(impl Kind for $type {
            const NUMBER: u64 = $number;
            const WHAT: &'static str = $what;

            #[inline(always)]
            fn of(object: &Object) -> &Self {
                let Object::$name(own) = object else { unreachable!("a handle of this kind has another object") };
                own
            }

            fn wrap(self) -> Object {
                Object::$name(self)
            }
        })+
    };
}

/// A kind of object.
pub(crate) trait Kind: Sized {
    const NUMBER: u64;
    const WHAT: &'static str;
    /// The object of a handle of this kind.
    fn of(object: &Object) -> &Self;
    fn wrap(self) -> Object;
}

kinds! {
    Engine(Engine) = 1: "an engine",
    Connecting(Connecting<SystemEnv>) = 2: "a connect that is under way",
    Pool(Pool<SystemEnv>) = 3: "a pool",
    Blocks(Blocks) = 4: "blocks",
    Region(LocalRegion<SystemEnv>) = 5: "a region",
    Peer(Peer<SystemEnv>) = 6: "a peer",
    RemoteRegion(RemoteRegion<SystemEnv>) = 7: "a region of a peer",
    Plan(Plan) = 8: "a plan",
    Transfer(Transfer<SystemEnv>) = 9: "a transfer",
    Counter(Counter<SystemEnv>) = 10: "a counter",
    RemoteCounter(RemoteCounter) = 11: "a counter of a peer",
    Quarantine(Quarantined) = 12: "a quarantine",
    Batch(Batch) = 13: "a batch of notifications",
}

pub(crate) struct Objects {
    table: HandleTable<Object>,
    /// Tells this process from those that it was forked from.
    mark: u8,
}

/// A child sees none of its parent's objects, and never drops them.
#[inline(always)]
pub(crate) fn objects() -> &'static Objects {
    static OBJECTS: PerProcess<Objects> = PerProcess::new();
    /// What a child inherits is its parent's number.
    static LAST: AtomicU8 = AtomicU8::new(0);
    OBJECTS.get(|| {
        // Relaxed: a fork is no other thread. A second thread that comes first as well only skips a number.
        let mark = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Objects { table: HandleTable::default(), mark }
    })
}

/// An object that stays as long as a call has it.
pub(crate) struct Found<T: Kind>(Pinned<'static, Object>, PhantomData<T>);

impl<T: Kind> Deref for Found<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        T::of(&self.0)
    }
}

impl Objects {
    /// Gives an object a handle.
    #[inline(always)]
    pub(crate) fn add<T: Kind>(&self, object: T) -> Result<u64, Box<Failure>> {
        let tag = T::NUMBER << (KIND_SHIFT - TAG_SHIFT) | u64::from(self.mark);
        self.table.insert(tag, object.wrap()).ok_or_else(too_many)
    }

    /// The object of this kind with this handle. Kind and process are a part of the number, by which alone it is found.
    #[inline(always)]
    pub(crate) fn find<T: Kind>(&'static self, handle: u64) -> Result<Found<T>, Box<Failure>> {
        if handle >> KIND_SHIFT == T::NUMBER
            && let Some(found) = self.table.get(handle)
        {
            return Ok(Found(found, PhantomData));
        }
        Err(not_found(handle, T::WHAT))
    }
}

/// [`Objects::add`] in this process.
#[inline]
pub(crate) fn add<T: Kind>(object: T) -> Result<u64, Box<Failure>> {
    objects().add(object)
}

/// [`Objects::find`] in this process.
#[inline]
pub(crate) fn find<T: Kind>(handle: u64) -> Result<Found<T>, Box<Failure>> {
    objects().find(handle)
}

#[cold]
fn too_many() -> Box<Failure> {
    Failure::new(PENSTOCK_TOO_MANY_HANDLES, "there are as many objects as there may be; release some")
}

fn mark_of(handle: u64) -> u8 {
    (handle >> TAG_SHIFT) as u8
}

#[cold]
fn not_found(handle: u64, what: &str) -> Box<Failure> {
    if (1..objects().mark).contains(&mark_of(handle)) {
        return penstock::Cause::Forked.into();
    }
    let why = if handle == 0 { "it is null" } else { "it was released, is of another kind, or never was one" };
    Failure::new(PENSTOCK_BAD_HANDLE, format!("{handle:#x} is no handle of {what}: {why}"))
}

/// Releases one handle of any kind, or none if it is null.
pub(crate) fn release(handle: u64) -> Answer {
    if handle >> KIND_SHIFT == <Engine as Kind>::NUMBER
        && let Ok(engine) = find::<Engine>(handle)
    {
        // Others may be in a call of it, which ends by this; what it quarantines is kept for good.
        let _ = engine.close(engine.config().session.shutdown_timeout());
    }
    if handle == 0 || objects().table.remove(handle) {
        return Ok(PENSTOCK_OK);
    }
    Err(not_found(handle, "anything"))
}

/// Releases a handle. Zero is nothing, and well. The object goes with its last user: a transfer goes on, and nobody hears how it ends; a plan, blocks
/// and regions stay as long as transfers need them; blocks go back to their pool; an engine that was not closed is closed within
/// `session.shutdown_timeout_ms`. Any thread. Waits only for an engine.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_release(handle: u64) -> crate::penstock_status {
    crate::call::call(|| release(handle))
}

/// Releases `count` handles of any kinds. All are, also where one is none; then the answer is `PENSTOCK_BAD_HANDLE`. Any thread.
///
/// # Safety
/// `handles` has room for `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_release_many(handles: *const u64, count: usize) -> crate::penstock_status {
    crate::call::call(|| {
        // SAFETY: the caller's promise.
        let handles = unsafe { crate::arguments::array(handles, count, "handles") }?;
        let mut answer = Ok(PENSTOCK_OK);
        for handle in handles {
            let released = release(*handle);
            answer = answer.and(released);
        }
        answer
    })
}
