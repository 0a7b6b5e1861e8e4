//! The log of a program: what the engine has to say, handed to a function of the caller's.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use penstock::memory::fork::PerProcess;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::call::call;
use crate::failure::{Failure, c_text};
use crate::status::penstock_status::{self, *};

/// Nothing is told.
pub const PENSTOCK_LOG_OFF: u32 = 0;
/// What keeps a part of the engine from its work.
pub const PENSTOCK_LOG_ERROR: u32 = 1;
/// The same, and what is slower or less than was asked for.
pub const PENSTOCK_LOG_WARN: u32 = 2;
/// The same, and what begins and ends: sessions, transports that are chosen.
pub const PENSTOCK_LOG_INFO: u32 = 3;
/// The same, and why.
pub const PENSTOCK_LOG_DEBUG: u32 = 4;
/// Everything.
pub const PENSTOCK_LOG_TRACE: u32 = 5;

/// Takes a line of the log: its level, the part of Penstock that says it, and its words, which stay until it returns. Called by any thread, one of the
/// engine's or one that is in a call; several may be in it at once. It must not wait, throw, or call anything of Penstock but `penstock_message`.
pub type penstock_log_hook =
    Option<unsafe extern "C" fn(user: *mut c_void, level: u32, source: *const c_char, text: *const c_char)>;

/// Has the log of this process told to a function, up to a level, in place of the one before; null or `PENSTOCK_LOG_OFF`: to nobody. When this returns, no
/// thread is in the function that was set before. A forked child begins without one. Any thread. Waits only for the function that was set before.
///
/// # Safety
/// `hook` does as its type says, for as long as it is set; `user` is whatever it is to be given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_log(level: u32, hook: penstock_log_hook, user: *mut c_void) -> penstock_status {
    call(|| {
        if level > PENSTOCK_LOG_TRACE {
            return Err(Failure::invalid(format!("{level} is no level: use one of PENSTOCK_LOG_")));
        }
        if IS_INSIDE.get() {
            return Err(Failure::invalid("the log's function is set from inside itself; set it outside"));
        }
        let hook = hook.filter(|_| level != PENSTOCK_LOG_OFF).map(|call| Hook { level, call, user });
        if hook.is_some() && !is_ours() {
            return Err(Failure::invalid("this program has a log of Rust already; take what Penstock says from there"));
        }
        let level = hook.as_ref().map_or(PENSTOCK_LOG_OFF, |hook| hook.level);
        *hooked().write().unwrap_or_else(PoisonError::into_inner) = hook;
        // Relaxed: it only spares the look at the hook, which has a level of its own.
        LEVEL.store(level, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        Ok(PENSTOCK_OK)
    })
}

struct Hook {
    level: u32,
    call: unsafe extern "C" fn(*mut c_void, u32, *const c_char, *const c_char),
    user: *mut c_void,
}

// SAFETY: the caller has promised that any thread may call the function with what it is given.
unsafe impl Send for Hook {}
// SAFETY: the same.
unsafe impl Sync for Hook {}

/// What is set. A child has its own: its parent's may have been locked when it forked.
fn hooked() -> &'static RwLock<Option<Hook>> {
    static HOOKED: PerProcess<RwLock<Option<Hook>>> = PerProcess::new();
    HOOKED.get(RwLock::default)
}

static LEVEL: AtomicU32 = AtomicU32::new(PENSTOCK_LOG_OFF);

thread_local! {
    /// This thread is in the hook: what that causes is not told to it again.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether what is logged in this process comes here, which is tried once.
fn is_ours() -> bool {
    static IS_OURS: OnceLock<bool> = OnceLock::new();
    *IS_OURS.get_or_init(|| tracing::subscriber::set_global_default(Log).is_ok())
}

fn number(level: &Level) -> u32 {
    match *level {
        Level::ERROR => PENSTOCK_LOG_ERROR,
        Level::WARN => PENSTOCK_LOG_WARN,
        Level::INFO => PENSTOCK_LOG_INFO,
        Level::DEBUG => PENSTOCK_LOG_DEBUG,
        Level::TRACE => PENSTOCK_LOG_TRACE,
    }
}

/// Gives events to the hook. Penstock opens no spans, and those of others are nothing to it.
struct Log;

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEVEL.load(Ordering::Relaxed) {
            PENSTOCK_LOG_OFF => LevelFilter::OFF,
            PENSTOCK_LOG_ERROR => LevelFilter::ERROR,
            PENSTOCK_LOG_WARN => LevelFilter::WARN,
            PENSTOCK_LOG_INFO => LevelFilter::INFO,
            PENSTOCK_LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        if IS_INSIDE.get() {
            return;
        }
        let (level, source) = (number(event.metadata().level()), event.metadata().target());
        let hooked = hooked().read().unwrap_or_else(PoisonError::into_inner);
        let Some(hook) = hooked.as_ref().filter(|hook| level <= hook.level) else { return };
        let mut words = Words::default();
        event.record(&mut words);
        let (source, text) = (c_text(source), c_text(&words.text()));
        IS_INSIDE.set(true);
        // SAFETY: the caller's promise; it is set as long as it is locked.
        unsafe { (hook.call)(hook.user, level, source.as_ptr(), text.as_ptr()) };
        IS_INSIDE.set(false);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event as one line: its message, then its fields.
#[derive(Default)]
struct Words {
    message: String,
    fields: String,
}

impl Words {
    fn text(self) -> String {
        self.message + &self.fields
    }
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a text cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
