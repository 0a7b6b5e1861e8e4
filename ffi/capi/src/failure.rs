//! Why a call failed: as a status for the caller, and in words for the thread's last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;

use penstock::device::CudaError;
use penstock::memory::{MemoryError, TakeError};
use penstock::transport::ImportError;
use penstock::{
    Cause, ConnectError, EngineName, Fault, PlanError, RegionError, RenewError, ShapeError, StartError, SubmitError,
};

use crate::arguments::{Versioned, write_sized};
use crate::status::penstock_status::{self, *};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: penstock_status,
    peer: String,
    stage: &'static str,
    cause: Option<Cause>,
    text: String,
}

/// What a call answers, as it is written in Rust. `PENSTOCK_PENDING` and its like are no failures.
pub(crate) type Answer = Result<penstock_status, Box<Failure>>;

impl Failure {
    pub(crate) fn new(status: penstock_status, text: impl Display) -> Box<Self> {
        Box::new(Self { status, peer: String::new(), stage: "", cause: None, text: text.to_string() })
    }

    pub(crate) fn invalid(text: impl Display) -> Box<Self> {
        Self::new(PENSTOCK_INVALID_ARGUMENT, text)
    }

    /// The session with this peer is over, and what was seen of it last, if anything was.
    pub(crate) fn ended(cause: Cause, peer: &EngineName, loss: Option<&str>) -> Box<Self> {
        let words = match loss {
            Some(loss) => format!("peer `{peer}`: {loss}; {cause}"),
            None => format!("peer `{peer}`: {cause}"),
        };
        let mut failure = Self::new(cause.into(), words).of_peer(peer);
        failure.cause = Some(cause);
        failure
    }

    pub(crate) fn of_peer(mut self: Box<Self>, peer: &impl Display) -> Box<Self> {
        self.peer = peer.to_string();
        self
    }
}

impl From<Cause> for Box<Failure> {
    fn from(cause: Cause) -> Self {
        let mut failure = Failure::new(cause.into(), cause);
        failure.cause = Some(cause);
        failure
    }
}

impl From<Fault> for Box<Failure> {
    fn from(fault: Fault) -> Self {
        let mut failure = Failure::new(fault.cause.into(), &fault);
        (failure.stage, failure.cause) = (fault.stage.text(), Some(fault.cause));
        match &fault.peer {
            Some(peer) => failure.of_peer(peer),
            None => failure,
        }
    }
}

impl From<StartError> for Box<Failure> {
    fn from(error: StartError) -> Self {
        let status = match error {
            StartError::Config(_) | StartError::Name(_) => PENSTOCK_BAD_CONFIG,
            StartError::Secret(_) => PENSTOCK_NO_SECRET,
            _ => PENSTOCK_NOT_STARTED,
        };
        Failure::new(status, error)
    }
}

impl From<ConnectError> for Box<Failure> {
    fn from(error: ConnectError) -> Self {
        use ConnectError as E;
        let status = match innermost(&error) {
            E::Call(cause) => return (*cause).into(),
            E::Card(_) => PENSTOCK_BAD_DESCRIPTOR,
            E::OtherHost { .. } => PENSTOCK_NO_ROUTE,
            E::TimedOut { .. } => PENSTOCK_CONNECT_TIMED_OUT,
            E::Refused { .. } | E::RefusedHere { .. } | E::RateLimited { .. } | E::TurnedAway { .. } => {
                PENSTOCK_REFUSED
            }
            E::Lost { .. } => PENSTOCK_CONNECTION_LOST,
            E::NotPenstock { .. } => PENSTOCK_NOT_PENSTOCK,
            E::WrongSecret { .. } => PENSTOCK_WRONG_SECRET,
            E::Secret(_) => PENSTOCK_NO_SECRET,
            E::Unresolved { .. } => PENSTOCK_UNRESOLVED,
            E::Directory { .. } => PENSTOCK_BAD_CONFIG,
            E::Name(_) => PENSTOCK_INVALID_ARGUMENT,
            _ => PENSTOCK_UNREACHABLE,
        };
        let failure = Failure::new(status, &error);
        match peer_of(&error) {
            Some(peer) => failure.of_peer(peer),
            None => failure,
        }
    }
}

/// How the last of several attempts ended.
fn innermost(error: &ConnectError) -> &ConnectError {
    match error {
        ConnectError::NotBack { last, .. } => innermost(last),
        error => error,
    }
}

fn peer_of(error: &ConnectError) -> Option<&String> {
    use ConnectError as E;
    match error {
        E::OtherHost { name, .. }
        | E::Unreachable { name, .. }
        | E::TimedOut { name, .. }
        | E::Refused { name, .. }
        | E::RefusedHere { name, .. }
        | E::Lost { name, .. }
        | E::WrongSecret { name, .. }
        | E::RateLimited { name, .. }
        | E::TurnedAway { name, .. }
        | E::NotBack { name, .. } => Some(name),
        _ => None,
    }
}

impl From<RegionError> for Box<Failure> {
    fn from(error: RegionError) -> Self {
        use RegionError as E;
        let status = match &error {
            E::Call(cause) => return (*cause).into(),
            E::Unknown { .. } => PENSTOCK_NO_REGION,
            E::Stale { .. } | E::Renewed { .. } => PENSTOCK_STALE_REGION,
            E::NewsUnderWay { .. } => PENSTOCK_NEWS_UNDER_WAY,
            E::OutOfBounds { .. } => PENSTOCK_OUT_OF_BOUNDS,
            E::ReadOnly { .. } => PENSTOCK_NO_RIGHT,
            E::LabelTooLong { .. } => PENSTOCK_INVALID_ARGUMENT,
            E::Registry(error) => of_registry(error),
            E::Memory(error) => of_memory(error),
            E::Import { source: ImportError::NoPath(_), .. } => PENSTOCK_NO_PATH,
            E::Device(error) => of_device(error),
            _ => PENSTOCK_NO_MEMORY,
        };
        let failure = Failure::new(status, &error);
        match &error {
            E::Unknown { peer, .. } | E::NewsUnderWay { peer } => failure.of_peer(peer),
            _ => failure,
        }
    }
}

fn of_registry(error: &penstock::memory::RegionError) -> penstock_status {
    match error {
        penstock::memory::RegionError::ReadOnly => PENSTOCK_NO_RIGHT,
        penstock::memory::RegionError::NoIdLeft => PENSTOCK_NO_MEMORY,
        _ => PENSTOCK_STALE_REGION,
    }
}

fn of_memory(error: &MemoryError) -> penstock_status {
    match error {
        MemoryError::NotMapped { .. } => PENSTOCK_NOT_MAPPED,
        MemoryError::NullBase
        | MemoryError::Empty { .. }
        | MemoryError::AddressOverflow { .. }
        | MemoryError::BlockSize { .. }
        | MemoryError::Node { .. } => PENSTOCK_INVALID_ARGUMENT,
        _ => PENSTOCK_NO_MEMORY,
    }
}

impl From<MemoryError> for Box<Failure> {
    fn from(error: MemoryError) -> Self {
        Failure::new(of_memory(&error), error)
    }
}

fn of_device(error: &CudaError) -> penstock_status {
    use CudaError as E;
    match error {
        E::NotHere(_) | E::Start { .. } | E::Lacks(_) => PENSTOCK_NO_DEVICE,
        E::NoDevice | E::NoSuchDevice { .. } | E::NoVmm { .. } => PENSTOCK_NO_DEVICE,
        E::Forked => PENSTOCK_FORKED,
        E::Unknown { .. } | E::Beyond { .. } => PENSTOCK_NOT_MAPPED,
        E::HostMemory { .. } | E::Managed { .. } | E::NotOurs { .. } | E::Size { .. } => PENSTOCK_INVALID_ARGUMENT,
        E::NoSuchStream { .. } | E::Captured { .. } => PENSTOCK_INVALID_ARGUMENT,
        E::NoAccess { .. } => PENSTOCK_NO_RIGHT,
        E::Words { .. } | E::OutOfMemory { .. } | E::DeviceFull { .. } => PENSTOCK_NO_MEMORY,
        E::NoGpuDirect { .. } | E::NoFlush { .. } => PENSTOCK_NO_PATH,
        E::Call { .. } => PENSTOCK_DEVICE_FAILED,
    }
}

impl From<CudaError> for Box<Failure> {
    fn from(error: CudaError) -> Self {
        Failure::new(of_device(&error), error)
    }
}

impl From<TakeError> for Box<Failure> {
    fn from(error: TakeError) -> Self {
        Failure::new(PENSTOCK_NO_BLOCKS, error)
    }
}

impl From<RenewError> for Box<Failure> {
    fn from(error: RenewError) -> Self {
        let status = match &error {
            RenewError::Call(cause) => return (*cause).into(),
            RenewError::NotOfThisPool { .. } => PENSTOCK_INVALID_ARGUMENT,
            RenewError::Inside { .. } => PENSTOCK_QUARANTINED,
            RenewError::Registry(error) => of_registry(error),
            RenewError::Memory(error) => of_memory(error),
            _ => PENSTOCK_NO_MEMORY,
        };
        Failure::new(status, error)
    }
}

impl From<PlanError> for Box<Failure> {
    fn from(error: PlanError) -> Self {
        let status = match error {
            PlanError::Region(error) => return error.into(),
            PlanError::NoRegion { .. } => PENSTOCK_NO_REGION,
            PlanError::NoRight { .. } | PlanError::Shape(ShapeError::NotAllowed { .. }) => PENSTOCK_NO_RIGHT,
            PlanError::Shape(ShapeError::OutOfBounds { .. }) => PENSTOCK_OUT_OF_BOUNDS,
            _ => PENSTOCK_BAD_PLAN,
        };
        let failure = Failure::new(status, &error);
        match &error {
            PlanError::NoRegion { peer: Some(peer), .. } | PlanError::NoRight { peer: Some(peer), .. } => {
                failure.of_peer(peer)
            }
            _ => failure,
        }
    }
}

impl From<SubmitError> for Box<Failure> {
    fn from(error: SubmitError) -> Self {
        use SubmitError as E;
        let (status, cause) = match &error {
            E::Call(cause) => return (*cause).into(),
            E::Full { .. } => (PENSTOCK_FULL, None),
            E::ForeignPlan => (PENSTOCK_FOREIGN_PLAN, None),
            E::ForeignCounter { .. } => (PENSTOCK_FOREIGN_COUNTER, None),
            E::NoteTooLong { .. } => (PENSTOCK_NOTE_TOO_LONG, None),
            E::ReservedNote { .. } => (PENSTOCK_RESERVED_NOTE, None),
            E::Draining { cause, .. } | E::PeerGone { cause, .. } => ((*cause).into(), Some(*cause)),
            _ => (PENSTOCK_INTERNAL, None),
        };
        let mut failure = Failure::new(status, &error);
        failure.cause = cause;
        match &error {
            E::ReservedNote { peer }
            | E::ForeignCounter { peer }
            | E::Draining { peer, .. }
            | E::PeerGone { peer, .. } => failure.of_peer(peer),
            _ => failure,
        }
    }
}

/// The last call of this thread that failed. The texts are never null; those that are not known are empty. They stay until another call of this
/// thread fails.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_error {
    /// Set by the caller: `sizeof(penstock_error)`.
    pub size: usize,
    /// What the call answered.
    pub status: penstock_status,
    /// The other engine, if one was involved.
    pub peer: *const c_char,
    /// Where a transfer ended: "moving bytes".
    pub stage: *const c_char,
    /// Why a transfer or a session ended, of a status from 100 on.
    pub cause: *const c_char,
    /// What to do about it.
    pub remedy: *const c_char,
    /// The whole in words.
    pub text: *const c_char,
}

impl Versioned for penstock_error {
    fn size(&self) -> usize {
        self.size
    }
}

struct Last {
    status: penstock_status,
    /// Peer, stage, cause, remedy, text.
    texts: [CString; 5],
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// A text up to its first zero byte, which C takes for its end.
pub(crate) fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

pub(crate) fn remember(failure: &Failure) {
    let words = failure.cause.map_or("", Cause::text);
    let (cause, remedy) = words.split_once("; ").unwrap_or((words, failure.status.remedy()));
    let texts = [&failure.peer, failure.stage, cause, remedy, &failure.text].map(c_text);
    LAST.with_borrow_mut(|last| *last = Some(Last { status: failure.status, texts }));
}

/// The last call of this thread that failed, in fields; `PENSTOCK_OK` and empty texts if none has. Any thread, also after a fork; each sees its
/// own. Never waits.
///
/// # Safety
/// `error` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_last_error(error: *mut penstock_error) -> penstock_status {
    crate::call::quietly(|| {
        LAST.with_borrow(|last| {
            let empty = c"".as_ptr();
            let [peer, stage, cause, remedy, text] =
                last.as_ref().map_or([empty; 5], |last| std::array::from_fn(|at| last.texts[at].as_ptr()));
            let status = last.as_ref().map_or(PENSTOCK_OK, |last| last.status);
            // SAFETY: the caller's promise.
            unsafe { write_sized(error, penstock_error { size: 0, status, peer, stage, cause, remedy, text }) }
        })
    })
}
