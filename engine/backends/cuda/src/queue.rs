//! Copies of one device in one direction, in a stream of their own.
//!
//! Copies are gathered, and given to the stream in *flushes*. Behind each the stream writes its number into a word of pinned memory, which is
//! polled. While some flushes are under way more is gathered: each costs a few microseconds, however much is in it. What is staged goes on when
//! its flush has passed, so those between a device and the host are small, and there are several.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{mem, ptr};

use penstock_core::Cause;
use penstock_core::limits::SPANS_PER_POST;
use penstock_core::planted::{self, Bug};
use penstock_cuda_sys::Status;
use penstock_cuda_sys::types::{CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream};
use penstock_memory::{Memory, Window};
use penstock_transport::CancelledOp;

use crate::bell::StreamBell;
use crate::context::{Context, CurrentContext};
use crate::error::{CudaError, check};
use crate::order::SeenOrder;

/// Copies in one flush: of three directions none has ever a thousand in its stream, where a call of the driver would wait for the stream.
const FLUSH_COPIES_MAX: usize = 224;
/// Flushes that a stream has at once. It goes from one to the next by itself.
pub(crate) const FLUSHES_MAX: u64 = 4;
/// No operation is added to a flush of so many bytes, unless it stays within the device, which has done it before the next call is made.
const FLUSH_BYTES: u64 = 512 << 10;
/// Flushes behind which a bell rings, once its worker has come to rest while there was one under way: it is woken by each of them. The
/// stream waits for each ring, so a worker that stays awake has none.
const BELLS: u32 = 32;
/// Copies that wait to be given to the stream.
const GATHERED_MAX: usize = 8 * FLUSH_COPIES_MAX;
/// Fewer copies are given one by one.
const BATCH_MIN: usize = 4;
/// It does not wait for work of the default stream, nor that for its.
const NON_BLOCKING: u32 = 1;

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice = 0,
    ToHost = 1,
    /// From device memory to device memory.
    Within = 2,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::ToDevice, Self::ToHost, Self::Within];
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

/// Whose an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneId {
    pub(crate) peer_index: u32,
    /// An index is used again by later peers, a number never.
    pub(crate) number: u64,
}

/// An operation whose copies have not all passed.
pub(crate) struct OpenOp {
    pub(crate) completion_id: u64,
    pub(crate) lane: LaneId,
    pub(crate) bytes: u64,
    /// Those that the stream was not given.
    copies: usize,
    /// The flush that its copies are in, once they were given to the stream.
    flush: u64,
    failure: Option<Cause>,
    /// The place in `orders` of what it begins behind, beside the order of the stream's own device.
    order: usize,
    /// Both memories: they stay until the copies have passed, whoever lets go of them.
    _memory: [Memory; 2],
}

/// How an operation has ended.
pub(crate) type OpResult = Result<u64, Cause>;

pub(crate) struct CopyQueue {
    way: Way,
    stream: CUstream,
    /// Eight bytes of pinned memory.
    word: Window,
    /// Those of operations that were not given to the stream, in their order.
    gathered: VecDeque<Copy>,
    batch: Batch,
    /// What the stream's copies begin behind: the order of its device, and of other devices that it copied to.
    orders: Vec<SeenOrder>,
    /// In the order of their posts: the stream has the first ones, and what is left was gathered.
    ops: VecDeque<OpenOp>,
    /// So many of them were given to the stream.
    given: usize,
    /// So many of these, the last ones, are in a flush that is not whole: the driver had no memory for a call.
    begun: usize,
    /// Numbers of the flush that was given last, that has passed last, and behind which the bell rings.
    flushed: u64,
    passed: u64,
    armed: u64,
    /// So many of the next flushes ring it as well.
    bells: u32,
}

// SAFETY: any thread may use a stream; this one is used through a lock.
unsafe impl Send for CopyQueue {}

impl CopyQueue {
    /// A stream of its own, which writes to this word.
    pub(crate) fn new(
        way: Way,
        word: Window,
        context: &Arc<Context>,
        entered: &CurrentContext<'_>,
    ) -> Result<Self, CudaError> {
        let mut stream = ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe { entered.cuda.driver.cuStreamCreateWithPriority(&raw mut stream, NON_BLOCKING, 0) };
        check("cuStreamCreateWithPriority", status)?;
        let (gathered, ops) = (VecDeque::with_capacity(GATHERED_MAX), VecDeque::with_capacity(GATHERED_MAX));
        let (batch, orders) = (Batch::new(), vec![SeenOrder::new(context)]);
        Ok(Self {
            way,
            stream,
            word,
            gathered,
            batch,
            orders,
            ops,
            given: 0,
            begun: 0,
            flushed: 0,
            passed: 0,
            armed: 0,
            bells: 0,
        })
    }

    /// Whether it takes as many copies as one post has.
    pub(crate) fn has_room(&self) -> bool {
        self.gathered.len() + SPANS_PER_POST <= GATHERED_MAX
    }

    /// Whether the stream has not done all that it was given.
    pub(crate) fn is_busy(&self) -> bool {
        self.given > 0
    }

    /// Whether there is an operation, given to the stream or not.
    pub(crate) fn has_any(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Whether a flush is not whole.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun > 0
    }

    /// `other`: the device that the bytes go to, if it is not the stream's own.
    pub(crate) fn push(
        &mut self,
        (completion_id, lane): (u64, LaneId),
        memory: [Memory; 2],
        copies: impl Iterator<Item = Copy>,
        other: Option<&Arc<Context>>,
    ) {
        let order = other.map_or(0, |other| self.order_of(other));
        let (before, mut bytes) = (self.gathered.len(), 0);
        self.gathered.extend(copies.inspect(|copy| bytes += copy.bytes));
        let copies = self.gathered.len() - before;
        self.ops.push_back(OpenOp {
            completion_id,
            lane,
            bytes,
            copies,
            flush: 0,
            failure: None,
            order,
            _memory: memory,
        });
    }

    fn order_of(&mut self, other: &Arc<Context>) -> usize {
        let known = self.orders.iter().position(|seen| seen.context.device == other.device);
        known.unwrap_or_else(|| {
            self.orders.push(SeenOrder::new(other));
            self.orders.len() - 1
        })
    }

    /// Gives the stream what was gathered, as far as it takes more. Where the driver has no memory for a call, the next flush goes on with it; any other
    /// error is the device's.
    pub(crate) fn flush(&mut self, bell: &Arc<StreamBell>, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        while self.begun > 0 || (self.given < self.ops.len() && self.flushed - self.passed < FLUSHES_MAX) {
            self.flush_once(entered)?;
            if self.bells > 0 {
                self.bells -= 1;
                self.arm_last(bell, entered)?;
            }
        }
        Ok(())
    }

    fn flush_once(&mut self, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        self.orders[0].put_before(self.stream, entered)?;
        if self.begun == 0 {
            self.begin();
        }
        let begun = self.given - self.begun..self.given;
        let mut copies = 0;
        for op in self.ops.range(begun.clone()) {
            self.orders[op.order].put_before(self.stream, entered)?;
            copies += op.copies;
        }
        // One call takes as long as some single copies. Within a device it gains nothing.
        if self.way != Way::Within
            && copies >= BATCH_MIN
            && self.batch.give(&self.gathered, copies, self.stream, entered)?
        {
            self.gathered.drain(..copies);
            self.ops.range_mut(begun).for_each(|op| op.copies = 0);
        } else {
            for op in self.ops.range_mut(begun) {
                while op.copies > 0 {
                    match give(self.way, self.stream, self.gathered[0], entered) {
                        // The stream is well, and the copy is not in it.
                        Err(CudaError::Call { status: Status::INVALID_VALUE, .. }) => {
                            op.failure = Some(Cause::MemoryGone);
                        }
                        answer => answer?,
                    }
                    self.gathered.pop_front();
                    op.copies -= 1;
                }
            }
        }
        // SAFETY: the word is pinned and there for as long as the stream.
        let status =
            unsafe { entered.cuda.driver.cuStreamWriteValue64(self.stream, self.word.base_address(), self.flushed, 0) };
        check("cuStreamWriteValue64", status)?;
        self.begun = 0;
        Ok(())
    }

    /// Takes operations into the next flush. From here on they are the stream's, also if a call fails half-way.
    fn begin(&mut self) {
        self.flushed += 1;
        let (mut copies, mut bytes) = (0, 0);
        let is_full = |copies, bytes| copies > FLUSH_COPIES_MAX || (bytes >= FLUSH_BYTES && self.way != Way::Within);
        while let Some(op) = self.ops.get_mut(self.given).filter(|op| !is_full(copies + op.copies, bytes)) {
            (copies, bytes, op.flush) = (copies + op.copies, bytes + op.bytes, self.flushed);
            self.given += 1;
            self.begun += 1;
        }
    }

    /// Passes on operations whose copies have passed. Returns whether there were any.
    pub(crate) fn collect(&mut self, mut take: impl FnMut(OpenOp, OpResult)) -> bool {
        if self.given == 0 {
            return false;
        }
        let passed = match planted::is(Bug::CompletedBeforeTheStreamPassed) {
            true => self.flushed,
            false => self.word.load_u64(0).unwrap_or(0).min(self.flushed),
        };
        if passed <= self.passed {
            return false;
        }
        self.passed = passed;
        while let Some(op) = self.ops.pop_front_if(|op| op.flush != 0 && op.flush <= passed) {
            self.given -= 1;
            let result = op.failure.map_or(Ok(op.bytes), Err);
            take(op, result);
        }
        true
    }

    /// As [`flush`](Self::flush), for all of them: what one has no memory for keeps nothing from the others.
    pub(crate) fn flush_each(
        queues: &mut [Self],
        bell: &Arc<StreamBell>,
        entered: &CurrentContext<'_>,
    ) -> Result<(), CudaError> {
        let mut done = Ok(());
        for queue in queues {
            match queue.flush(bell, entered) {
                Err(error) if error.is_shortage() => done = Err(error),
                flushed => flushed?,
            }
        }
        done
    }

    /// Has the bell rung when all is done that the stream was given, and behind each of the next flushes.
    pub(crate) fn arm(&mut self, bell: &Arc<StreamBell>, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        if self.is_busy() {
            self.bells = BELLS;
            self.arm_last(bell, entered)?;
        }
        Ok(())
    }

    fn arm_last(&mut self, bell: &Arc<StreamBell>, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        // Half a flush has its other half behind this bell, and one of its own then.
        let whole = self.flushed - u64::from(self.begun > 0);
        if self.armed < whole {
            match bell.ring_behind(self.stream, entered) {
                // Who sleeps looks by itself, and asks for it again.
                Err(error) if error.is_shortage() => return Ok(()),
                answer => answer?,
            }
            self.armed = whole;
        }
        Ok(())
    }

    /// Asks whether the stream goes on: what is lost writes no words.
    pub(crate) fn ask(&self, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        // SAFETY: the stream is there until this is dropped.
        match unsafe { entered.cuda.driver.cuStreamQuery(self.stream) } {
            Status::NOT_READY => Ok(()),
            status => check("cuStreamQuery", status),
        }
    }

    /// Takes an operation of this lane back that was not given to the stream.
    pub(crate) fn cancel_op(&mut self, lane: LaneId, completion_id: u64) -> Option<CancelledOp> {
        let place = self.ops.iter().position(|op| op.lane == lane && op.completion_id == completion_id)?;
        if place < self.given {
            return Some(CancelledOp::LocalPending);
        }
        // Those of half a flush that the stream has lie before them.
        let first: usize = self.ops.range(..place).map(|op| op.copies).sum();
        let op = self.ops.remove(place)?;
        self.gathered.drain(first..first + op.copies);
        Some(CancelledOp::Quiesced)
    }

    /// The completion id of an operation of this lane that was not given to the stream.
    pub(crate) fn waiting_of(&self, lane: LaneId) -> Option<u64> {
        let mut waiting = self.ops.range(self.given..);
        waiting.find(|op| op.lane == lane).map(|op| op.completion_id)
    }

    /// Whether there is anything of this lane, given to the stream or not.
    pub(crate) fn has_any_of(&self, lane: LaneId) -> bool {
        self.ops.iter().any(|op| op.lane == lane)
    }

    /// All operations, since nothing will be done any more: with each whether the stream had it.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = (OpenOp, bool)> + use<> {
        self.gathered.clear();
        let given = mem::take(&mut self.given);
        self.begun = 0;
        mem::take(&mut self.ops).into_iter().enumerate().map(move |(place, op)| (op, place < given))
    }

    /// Ends the stream, which has nothing to do.
    pub(crate) fn end(&mut self, entered: &CurrentContext<'_>) {
        // SAFETY: nobody uses it after this; what was given to it has passed.
        if let Err(error) = check("cuStreamDestroy", unsafe { entered.cuda.driver.cuStreamDestroy(self.stream) }) {
            tracing::warn!(%error, "a stream stays");
        }
    }
}

/// What one call is given for many copies: a list for each argument, with room for as many as a flush has, used again and again.
struct Batch {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

impl Batch {
    fn new() -> Self {
        let (to, from) = (Vec::with_capacity(FLUSH_COPIES_MAX), Vec::with_capacity(FLUSH_COPIES_MAX));
        Self { to, from, bytes: Vec::with_capacity(FLUSH_COPIES_MAX) }
    }

    /// Gives the stream the first so many copies with one call. Returns whether it has: a driver before 12.8 has no such call, one copy that is not to
    /// be done keeps all of them out, and so does a driver that has no memory for it. A copy that is given once more does the same.
    fn give(
        &mut self,
        copies: &VecDeque<Copy>,
        count: usize,
        stream: CUstream,
        entered: &CurrentContext<'_>,
    ) -> Result<bool, CudaError> {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
        for copy in copies.iter().take(count) {
            self.to.push(copy.to);
            self.from.push(copy.from);
            self.bytes.push(copy.bytes as usize);
        }
        // SAFETY: a structure of numbers and enumerations that all have a zero.
        let mut attributes: CUmemcpyAttributes = unsafe { mem::zeroed() };
        attributes.srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let (mut starts, mut failed) = (0_usize, 0_usize);
        // SAFETY: lists of one length and attributes for the first and all behind it; as for single copies, and adopted memory was found where it
        // was, since this call takes what it does not know for host memory.
        let answer = unsafe {
            entered.cuda.driver.cuMemcpyBatchAsync(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.bytes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut starts,
                1,
                &raw mut failed,
                stream,
            )
        };
        match answer {
            Err(_) | Ok(Status::INVALID_VALUE | Status::OUT_OF_MEMORY) => Ok(false),
            Ok(status) => check("cuMemcpyBatchAsync", status).map(|()| true),
        }
    }
}

fn give(way: Way, stream: CUstream, copy: Copy, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
    let (driver, Copy { to, from, bytes }) = (entered.cuda.driver, copy);
    // SAFETY: both ranges lie in windows whose memory is kept until the copy has passed; host memory among them is pinned.
    unsafe {
        match way {
            Way::ToDevice => {
                check("cuMemcpyHtoDAsync", driver.cuMemcpyHtoDAsync(to, from as *const _, bytes as usize, stream))
            }
            Way::ToHost => {
                check("cuMemcpyDtoHAsync", driver.cuMemcpyDtoHAsync(to as *mut _, from, bytes as usize, stream))
            }
            Way::Within => check("cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(to, from, bytes as usize, stream)),
        }
    }
}
