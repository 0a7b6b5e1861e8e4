//! A CQ: a completion queue with its channel, a shared receive queue, and a domain of one thread where the driver has such.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_verbs_sys::verbs::*;

use super::adapter::Parts;
use super::open::{Device, complain, do_not_wait};
use super::queue::DeviceQueue;
use super::status::{RECEIVE, check, done, refused};
use crate::adapter::{AdapterError, QpFactory, QueuePair, RecvBuffer, WR_IDS, Wc, WorkCompletion, WorkerCq};

/// Completions that are taken with one call. What a worker does with one costs more than its share of the call long before this.
const COMPLETIONS_AT_ONCE: usize = 64;

/// What a CQ is made of. Its queues keep it.
pub(super) struct CqParts {
    pub(super) device: Arc<Device>,
    completions: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    receives: NonNull<ibv_srq>,
    domain: CqDomain,
    taking: Mutex<Taking>,
    posting: Option<Mutex<()>>,
}

// SAFETY: every function of the library may be called from any thread. What a domain of one thread is used for is behind
// `posting`, and what is in `taking` is behind that.
unsafe impl Send for CqParts {}
// SAFETY: as for Send.
unsafe impl Sync for CqParts {}

/// What stands behind completions that are being taken.
struct Taking {
    /// Completions that were taken for somebody who needed to know that there are no more.
    kept: VecDeque<WorkCompletion>,
    /// Room for one call.
    room: Box<[ibv_wc; COMPLETIONS_AT_ONCE]>,
}

/// In which domain queues are made.
struct CqDomain {
    /// A thread's own, with the protection domain that has it in it.
    own: Option<(NonNull<ibv_td>, NonNull<ibv_pd>)>,
}

impl CqDomain {
    /// One of its own, if the driver has such: its queues have doorbells that no other CQ rings.
    fn make(device: &Device) -> Self {
        let mut of_thread = ibv_td_init_attr::ZERO;
        // SAFETY: the context is open.
        let thread = unsafe { ibv_alloc_td(device.context(), &raw mut of_thread) };
        let Some(thread) = NonNull::new(thread) else { return Self { own: None } };
        let mut of_parent = ibv_parent_domain_init_attr {
            pd: device.domain(),
            td: thread.as_ptr(),
            ..ibv_parent_domain_init_attr::ZERO
        };
        // SAFETY: the context is open, and both domains are of it.
        let parent = unsafe { ibv_alloc_parent_domain(device.context(), &raw mut of_parent) };
        match NonNull::new(parent) {
            Some(parent) => Self { own: Some((thread, parent)) },
            None => {
                // SAFETY: it was just made and nothing uses it.
                unsafe { ibv_dealloc_td(thread.as_ptr()) };
                Self { own: None }
            }
        }
    }
}

impl CqParts {
    /// Makes one with room for so much. `place` is how many CQs the adapter has had before.
    pub(super) fn make(
        device: &Arc<Device>,
        completions: usize,
        receives: usize,
        place: usize,
    ) -> Result<Self, AdapterError> {
        let last = |call| refused(call, &device.adapter, io::Error::last_os_error());
        // SAFETY: the context is open.
        let channel = unsafe { device.verbs.ibv_create_comp_channel(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(|| last("ibv_create_comp_channel"))?;
        let places = i32::try_from(completions).unwrap_or(i32::MAX);
        let interrupt = i32::try_from(place).unwrap_or(0) % device.interrupts();
        // SAFETY: the context is open, and the channel is of it.
        let queue = unsafe {
            device.verbs.ibv_create_cq(device.context(), places, ptr::null_mut(), channel.as_ptr(), interrupt)
        };
        let Some(queue) = NonNull::new(queue) else {
            let error = last("ibv_create_cq");
            // SAFETY: it was just made and nothing uses it.
            unsafe { device.verbs.ibv_destroy_comp_channel(channel.as_ptr()) };
            return Err(error);
        };
        let mut of_receives = ibv_srq_init_attr::ZERO;
        of_receives.attr.max_wr = u32::try_from(receives).unwrap_or(u32::MAX);
        of_receives.attr.max_sge = 1;
        // SAFETY: the domain stands.
        let shared = unsafe { device.verbs.ibv_create_srq(device.domain(), &raw mut of_receives) };
        let Some(shared) = NonNull::new(shared) else {
            let error = last("ibv_create_srq");
            // SAFETY: both were just made and nothing else uses them.
            unsafe {
                device.verbs.ibv_destroy_cq(queue.as_ptr());
                device.verbs.ibv_destroy_comp_channel(channel.as_ptr());
            }
            return Err(error);
        };
        let domain = CqDomain::make(device);
        let made = Self {
            device: Arc::clone(device),
            completions: queue,
            channel,
            receives: shared,
            posting: domain.own.is_some().then(|| Mutex::new(())),
            domain,
            taking: Mutex::new(Taking { kept: VecDeque::new(), room: Box::new([ibv_wc::ZERO; COMPLETIONS_AT_ONCE]) }),
        };
        // SAFETY: the channel stands.
        let descriptor = unsafe { (*made.channel.as_ptr()).fd };
        do_not_wait(descriptor).map_err(|error| refused("fcntl", &device.adapter, error))?;
        Ok(made)
    }

    /// Whether its queues have a domain of one thread.
    pub(super) fn has_own_domain(&self) -> bool {
        self.domain.own.is_some()
    }

    /// The domain that queues are made in.
    pub(super) fn domain(&self) -> *mut ibv_pd {
        self.domain.own.map_or_else(|| self.device.domain(), |(_, parent)| parent.as_ptr())
    }

    pub(super) fn completions(&self) -> *mut ibv_cq {
        self.completions.as_ptr()
    }

    pub(super) fn receives(&self) -> *mut ibv_srq {
        self.receives.as_ptr()
    }

    /// To be held while something is posted: in a domain of one thread the driver leaves out its own locks. A CQ and its queues
    /// are one worker's, so nobody else holds it.
    pub(super) fn post_alone(&self) -> Option<MutexGuard<'_, ()>> {
        self.posting.as_ref().map(|posting| posting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does something that ends a life of a queue. Completions of before are taken first: what they say of receives would be lost
    /// with some drivers, and come afterwards, for a queue that is not there any more, with others. Requests among them
    /// are forgotten, receives come as unused.
    pub(super) fn end_life<T>(&self, queue: u32, end: impl FnOnce() -> T) -> T {
        let mut taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.take_all(&mut taking);
        let ended = end();
        let after = self.take_all(&mut taking);
        if let Err(error) = before.and(after) {
            tracing::error!("{error}; completions of queue {queue} may be missing");
        }
        forget_life(&mut taking.kept, queue);
        ended
    }

    /// Keeps every completion that is there.
    fn take_all(&self, taking: &mut Taking) -> Result<(), AdapterError> {
        loop {
            let taken = self.take(&mut taking.room[..])?;
            taking.kept.extend(taking.room[..taken].iter().map(done));
            if taken < COMPLETIONS_AT_ONCE {
                return Ok(());
            }
        }
    }

    fn take(&self, room: &mut [ibv_wc]) -> Result<usize, AdapterError> {
        let places = i32::try_from(room.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue stands, and so many completions have room.
        let taken = unsafe { ibv_poll_cq(self.completions(), places, room.as_mut_ptr()) };
        match usize::try_from(taken) {
            Ok(taken) => Ok(taken),
            // It answers what it likes below zero: an adapter that lost its completions is of no use any more.
            Err(_) => Err(refused("ibv_poll_cq", &self.device.adapter, io::Error::from_raw_os_error(libc::EIO))),
        }
    }
}

/// What is kept of a queue says nothing of its requests any more, and of its receives that they are free.
fn forget_life(kept: &mut VecDeque<WorkCompletion>, queue: u32) {
    kept.retain_mut(|done| {
        if done.queue != queue {
            return true;
        }
        let is_receive = matches!(done.result, Wc::Recv { .. } | Wc::Unused);
        done.result = Wc::Unused;
        is_receive
    });
}

impl Drop for CqParts {
    fn drop(&mut self) {
        if self.device.maker.is_ancestor() {
            return;
        }
        let verbs = self.device.verbs;
        // SAFETY: the queues that used them kept this alive, so nothing does; each is destroyed once, users before used. All
        // events of the completion queue were acknowledged when they were taken.
        let answers = unsafe {
            let mut answers = vec![
                verbs.ibv_destroy_srq(self.receives.as_ptr()),
                verbs.ibv_destroy_cq(self.completions.as_ptr()),
                verbs.ibv_destroy_comp_channel(self.channel.as_ptr()),
            ];
            if let Some((thread, parent)) = self.domain.own {
                answers.push(verbs.ibv_dealloc_pd(parent.as_ptr()));
                answers.push(ibv_dealloc_td(thread.as_ptr()));
            }
            answers
        };
        complain("destroying a desk", &self.device.adapter, &answers);
    }
}

/// A CQ of a real adapter.
pub(super) struct DeviceCq {
    adapter: Arc<Parts>,
    cq: Arc<CqParts>,
    /// How many receives it was made for.
    receives: usize,
    list: Vec<ibv_recv_wr>,
    sges: Vec<ibv_sge>,
}

// SAFETY: the lists hold pointers into this CQ's own memory only while a call uses them.
unsafe impl Send for DeviceCq {}

impl DeviceCq {
    pub(super) fn new(adapter: &Arc<Parts>, cq: CqParts, receives: usize) -> Self {
        Self { adapter: Arc::clone(adapter), cq: Arc::new(cq), receives, list: Vec::new(), sges: Vec::new() }
    }
}

impl WorkerCq for DeviceCq {
    fn maker(&self) -> Arc<dyn QpFactory> {
        Arc::new(DeviceMaker { adapter: Arc::clone(&self.adapter), cq: Arc::clone(&self.cq) })
    }

    fn post_recv(&mut self, receives: &[RecvBuffer]) -> Result<(), AdapterError> {
        if receives.is_empty() {
            return Ok(());
        }
        self.list.clear();
        self.sges.clear();
        self.sges.extend(receives.iter().map(|recv| ibv_sge {
            addr: recv.sge.address,
            length: recv.sge.bytes,
            lkey: recv.sge.key,
        }));
        for (recv, sge) in receives.iter().zip(&mut self.sges) {
            debug_assert!(recv.id < WR_IDS, "the card has a bit of the name to itself");
            let wr_id = recv.id | RECEIVE;
            self.list.push(ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: sge, num_sge: 1 });
        }
        for place in 1..self.list.len() {
            let next = &raw mut self.list[place];
            self.list[place - 1].next = next;
        }
        let mut not_posted = ptr::null_mut();
        // SAFETY: the queue stands, and the list and its pieces do during the call. The adapter writes the memory under its key only.
        let answer = unsafe { ibv_post_srq_recv(self.cq.receives(), self.list.as_mut_ptr(), &raw mut not_posted) };
        // Out of memory is what a full queue says.
        if answer == libc::ENOMEM {
            let (adapter, has) = (self.cq.device.adapter.clone(), self.receives);
            return Err(AdapterError::NoRoom { adapter, what: "receives of a desk", has, wants: receives.len() });
        }
        check("ibv_post_srq_recv", &self.cq.device.adapter, answer)
    }

    fn poll(&mut self, done_here: &mut [WorkCompletion]) -> Result<usize, AdapterError> {
        let mut taking = self.cq.taking.lock().unwrap_or_else(PoisonError::into_inner);
        if !taking.kept.is_empty() {
            let count = taking.kept.len().min(done_here.len());
            for (place, kept) in done_here.iter_mut().zip(taking.kept.drain(..count)) {
                *place = kept;
            }
            return Ok(count);
        }
        let room = done_here.len().min(COMPLETIONS_AT_ONCE);
        let taken = self.cq.take(&mut taking.room[..room])?;
        for (place, completion) in done_here.iter_mut().zip(&taking.room[..taken]) {
            *place = done(completion);
        }
        Ok(taken)
    }

    fn arm(&mut self) -> Result<(), AdapterError> {
        let verbs = self.cq.device.verbs;
        let channel = self.cq.channel.as_ptr();
        let (mut queue, mut unused) = (ptr::null_mut(), ptr::null_mut());
        let mut signs = 0;
        // One completion queue makes one sign each time that it is armed.
        // SAFETY: the channel stands and does not wait; both places may be written.
        while unsafe { verbs.ibv_get_cq_event(channel, &raw mut queue, &raw mut unused) } == 0 {
            signs += 1;
        }
        if signs > 0 {
            // SAFETY: the completion queue stands, and so many signs of it were taken.
            unsafe { verbs.ibv_ack_cq_events(self.cq.completions(), signs) };
        }
        // SAFETY: the completion queue stands.
        let answer = unsafe { ibv_req_notify_cq(self.cq.completions(), 0) };
        check("ibv_req_notify_cq", &self.cq.device.adapter, answer)?;
        // What is kept makes no sign of its own: the caller's poll after this finds it.
        Ok(())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel stands as long as the CQ, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.cq.channel.as_ptr()).fd) }
    }
}

/// Makes queues on a CQ of a real adapter.
struct DeviceMaker {
    adapter: Arc<Parts>,
    cq: Arc<CqParts>,
}

impl QpFactory for DeviceMaker {
    fn queue(&self, requests: usize) -> Result<Box<dyn QueuePair>, AdapterError> {
        Ok(Box::new(DeviceQueue::make(&self.adapter, &self.cq, self.adapter.shape, requests)?))
    }
}

/// Counts an adapter's CQs, so that each has another interrupt.
#[derive(Default)]
pub(super) struct CqLimit(AtomicI32);

impl CqLimit {
    pub(super) fn next(&self) -> usize {
        usize::try_from(self.0.fetch_add(1, Ordering::Relaxed)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::WcStatus;

    #[test]
    fn of_an_ended_life_only_free_receives_are_kept() {
        let done = |queue, id, what| WorkCompletion { queue, id, result: what };
        let came = Wc::Recv { bytes: 8, immediate: None };
        let mut kept = VecDeque::from([
            done(1, 1, Wc::Send),
            done(2, 2, Wc::Send),
            done(1, 3, came),
            done(1, 4, Wc::Failed(WcStatus::Flushed)),
            done(1, 5, Wc::Unused),
            done(2, 6, came),
        ]);
        forget_life(&mut kept, 1);
        let expected = [done(2, 2, Wc::Send), done(1, 3, Wc::Unused), done(1, 5, Wc::Unused), done(2, 6, came)];
        assert_eq!(kept, expected);
    }
}
