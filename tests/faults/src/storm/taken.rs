//! The moment of a stop: wait for the cue, ask, and own the memory from the answer on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock::{LocalRegion, RemoteQuiesce, SystemEnv, Transfer, Window};

use super::board::{Arena, has_come, landed};
use super::case::{ARENA_BYTES, Case, Cue};
use crate::cores::{Cores, Held};
use crate::pair::PATIENCE;

/// The longest wait for a piece that a cue names; the transfer may not have been taken up.
const CUE_MAX: Duration = Duration::from_millis(2);
/// Looks between two yields: whoever copies may need this core.
const LOOKS_PER_YIELD: u32 = 32;

/// What a stop answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// How long the answer took, or came after the deadline.
    pub took: Duration,
    /// Bytes of the transfer that were there at the answer, where all of its destination is known.
    pub landed: Option<u64>,
}

/// Waits for the case's cue.
pub fn wait_for_cue(case: &Case, window: &Window, arena: Arena) {
    let start = Instant::now();
    let come = || match case.cue {
        Cue::Piece(piece) => has_come(window, arena.base, &case.pieces[piece]) || start.elapsed() >= CUE_MAX,
        Cue::After(span) => start.elapsed() >= span,
    };
    wait_for(come);
}

/// Looks until it has come.
pub(super) fn wait_for(mut come: impl FnMut() -> bool) {
    let mut looks = 0u32;
    while !come() {
        looks += 1;
        if looks.is_multiple_of(LOOKS_PER_YIELD) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The owner takes the destination back, and lays the canary the moment it may.
///
/// # Panics
/// If the answer is not that nothing lands any more: everyone here lives.
pub fn take_back(region: &LocalRegion<SystemEnv>, case: &Case, arena: Arena) -> Taken {
    let extents: Vec<(u64, u64)> = case.extents.iter().map(|&(offset, len)| (arena.base + offset, len)).collect();
    let start = Instant::now();
    let hold = region.revoke(&extents, PATIENCE).expect("the region stands, the extents lie inside");
    let took = start.elapsed();
    assert!(hold.is_quiesced(), "revoke: a living peer was quarantined after {took:?}: {hold:?}");
    let landed = case.takes_all().then(|| landed(region.host().unwrap(), arena.base, case));
    arena.lay(region.host().unwrap(), &case.extents);
    Taken { took, landed }
}

/// The initiator cancels; nothing of the transfer lands from the answer on.
///
/// # Panics
/// If the answer is not that nothing lands any more: everyone here lives.
pub fn cancel(transfer: &Transfer<SystemEnv>) -> Duration {
    let start = Instant::now();
    let answer = transfer.cancel(PATIENCE);
    let took = start.elapsed();
    let quiesced = answer.local.is_quiesced() && matches!(answer.remote, RemoteQuiesce::Quiesced);
    assert!(quiesced, "cancel: a living engine was quarantined after {took:?}: {answer:?}");
    took
}

/// As [`cancel`], where nobody here sees the peer's memory.
///
/// # Panics
/// If this engine's own memory is not free.
pub fn cancel_without_a_view(transfer: &Transfer<SystemEnv>) -> Duration {
    let start = Instant::now();
    let answer = transfer.cancel(PATIENCE);
    let took = start.elapsed();
    let is_fine = answer.local.is_quiesced() && !matches!(answer.remote, RemoteQuiesce::Quarantined(_));
    assert!(is_fine, "cancel: a living engine was quarantined after {took:?}: {answer:?}");
    took
}

/// As [`cancel`], and lays the canary over the whole arena the moment it may.
pub fn cancel_and_lay(transfer: &Transfer<SystemEnv>, case: &Case, window: &Window, arena: Arena) -> Taken {
    let took = cancel(transfer);
    let landed = Some(landed(window, arena.base, case));
    arena.lay(window, &[(0, ARENA_BYTES)]);
    Taken { took, landed }
}

/// A revoke that another thread shall make.
struct Order {
    region: LocalRegion<SystemEnv>,
    case: Arc<Case>,
    arena: Arena,
}

/// A thread that revokes while others submit, cancel and copy.
pub struct Revoker {
    orders: Option<Sender<Order>>,
    answers: Receiver<Taken>,
    thread: Option<JoinHandle<()>>,
}

impl Revoker {
    /// Starts the thread where stops are made.
    pub fn start(cores: Cores) -> Self {
        let (orders, queue) = channel::<Order>();
        let (sender, answers) = channel();
        let thread = std::thread::spawn(move || {
            let _held = Held::on(cores.stopping);
            for Order { region, case, arena } in queue {
                wait_for_cue(&case, region.host().unwrap(), arena);
                let taken = take_back(&region, &case, arena);
                if sender.send(taken).is_err() {
                    return;
                }
            }
        });
        Self { orders: Some(orders), answers, thread: Some(thread) }
    }

    /// Asks for a revoke at the case's cue.
    ///
    /// # Panics
    /// If the thread has panicked.
    pub fn order(&self, region: &LocalRegion<SystemEnv>, case: &Arc<Case>, arena: Arena) {
        let order = Order { region: region.clone(), case: Arc::clone(case), arena };
        let orders = self.orders.as_ref().expect("the queue is open until the end");
        orders.send(order).expect("the revoking thread lives unless a revoke failed");
    }

    /// What the revoke answered.
    ///
    /// # Panics
    /// If the thread has panicked, or does not answer.
    pub fn answer(&self) -> Taken {
        self.answers.recv_timeout(2 * PATIENCE).expect("a revoke answers by its deadline, unless it failed above")
    }
}

impl Drop for Revoker {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the revoking thread panicked");
        }
    }
}
