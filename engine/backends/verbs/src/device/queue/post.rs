//! Posting, in two ways: each request by calls, or all in a list.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use penstock_verbs_sys::verbs::*;

use super::{DeviceQueue, INLINE_MAX};
use crate::adapter::{AdapterError, Opcode, PostSendError, SendRequest, Sge, WR_IDS};

impl DeviceQueue {
    /// Looks whether a list is one, and holds the memory whose bytes are taken at once.
    pub(super) fn check_list(&mut self, requests: &[SendRequest], sges: &[Sge]) -> Result<(), AdapterError> {
        let mut at = 0_usize;
        for request in requests {
            debug_assert!(request.id < WR_IDS, "the card has a bit of the name to itself");
            let end = at.saturating_add(request.sges as usize);
            let its = sges.get(at..end).ok_or_else(|| self.refused("post", libc::EINVAL))?;
            if its.len() > self.adapter.shape.sges as usize {
                let (has, wants) = (self.adapter.shape.sges as usize, its.len());
                return Err(self.no_room("the pieces of a request", has, wants));
            }
            if request.inline {
                let bytes: u64 = its.iter().map(|sge| u64::from(sge.bytes)).sum();
                if bytes > u64::from(self.inline_max) {
                    return Err(self.no_room("bytes in a request", self.inline_max as usize, bytes as usize));
                }
                for sge in its {
                    self.hold(sge)?;
                }
            }
            at = end;
        }
        Ok(())
    }

    fn no_room(&self, what: &'static str, has: usize, wants: usize) -> AdapterError {
        AdapterError::NoRoom { adapter: self.cq.device.adapter.clone(), what, has, wants }
    }

    /// A list was not posted whole. Out of memory is what a full queue says, or of space.
    fn not_posted(&self, call: &'static str, number: i32, posted: usize, wants: usize) -> PostSendError {
        let error = match number {
            libc::ENOMEM | libc::ENOSPC => self.no_room("requests of a queue", self.requests, wants),
            _ => self.refused(call, number),
        };
        PostSendError { posted, error }
    }

    /// Keeps the registration of a piece until the post is over, so that its bytes can be read.
    fn hold(&mut self, sge: &Sge) -> Result<(), AdapterError> {
        if self.held.last().is_some_and(|held| held.holds(sge)) {
            return Ok(());
        }
        let known = if self.last.0 == sge.key { self.last.1.upgrade() } else { None };
        let found = known.or_else(|| self.adapter.registrations.find(sge.key)).filter(|found| found.holds(sge));
        let found = found.ok_or_else(|| self.refused("an inline post", libc::EFAULT))?;
        self.last = (sge.key, Arc::downgrade(&found));
        self.held.push(found);
        Ok(())
    }

    /// Posts each request by calls. All of them or none.
    pub(super) fn post_extended(
        &self,
        pair: NonNull<ibv_qp_ex>,
        requests: &[SendRequest],
        sges: &[Sge],
    ) -> Result<(), PostSendError> {
        let pair = pair.as_ptr();
        let mut rest = sges;
        // SAFETY: the queue pair stands and offers these. Nobody else is between start and completion: it is borrowed mutably,
        // and what its domain shares is held by the caller. Pieces of requests that are not inline are names of registered memory,
        // which the adapter looks at; the bytes of inline ones can be read, since their registrations are held.
        unsafe {
            ibv_wr_start(pair);
            for request in requests {
                let (its, others) = rest.split_at(request.sges as usize);
                rest = others;
                (*pair).wr_id = request.id;
                // The call that gives the bytes says that they are inline, but some drivers (rxe) want to read it here.
                (*pair).wr_flags = flags(request, its);
                match request.opcode {
                    Opcode::Write { address, key } => ibv_wr_rdma_write(pair, key, address),
                    Opcode::WriteWithImm { address, key, immediate } => {
                        ibv_wr_rdma_write_imm(pair, key, address, immediate.to_be());
                    }
                    Opcode::Read { address, key } => ibv_wr_rdma_read(pair, key, address),
                    Opcode::Send => ibv_wr_send(pair),
                }
                match its {
                    [] => ibv_wr_set_sge_list(pair, 0, ptr::null()),
                    [sge] if is_inline(request, its) => {
                        ibv_wr_set_inline_data(pair, address_of(sge), sge.bytes as usize);
                    }
                    // Several pieces are put together first: the call that takes a list of them loses the bytes with some drivers
                    // (rxe), and there are few.
                    _ if is_inline(request, its) => {
                        let mut together = [0; INLINE_MAX as usize];
                        let bytes = gather(its, &mut together);
                        ibv_wr_set_inline_data(pair, together.as_mut_ptr().cast::<c_void>(), bytes);
                    }
                    [sge] => ibv_wr_set_sge(pair, sge.key, sge.address, sge.bytes),
                    _ => ibv_wr_set_sge_list(pair, its.len(), its.as_ptr().cast::<ibv_sge>()),
                }
            }
            match ibv_wr_complete(pair) {
                0 => Ok(()),
                number => Err(self.not_posted("ibv_wr_complete", number.abs(), 0, requests.len())),
            }
        }
    }

    /// Posts a list of requests.
    pub(super) fn post_classic(&mut self, requests: &[SendRequest], sges: &[Sge]) -> Result<(), PostSendError> {
        self.list.clear();
        let mut rest = sges;
        for request in requests {
            let (its, others) = rest.split_at(request.sges as usize);
            rest = others;
            let mut wr = ibv_send_wr {
                wr_id: request.id,
                sg_list: its.as_ptr().cast::<ibv_sge>().cast_mut(),
                num_sge: its.len() as i32,
                send_flags: flags(request, its),
                ..ibv_send_wr::ZERO
            };
            let there =
                |address, key| ibv_send_wr_remote { rdma: ibv_send_wr_rdma { remote_addr: address, rkey: key } };
            match request.opcode {
                Opcode::Write { address, key } => {
                    wr.opcode = IBV_WR_RDMA_WRITE;
                    wr.wr = there(address, key);
                }
                Opcode::WriteWithImm { address, key, immediate } => {
                    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                    wr.imm_data = immediate.to_be();
                    wr.wr = there(address, key);
                }
                Opcode::Read { address, key } => {
                    wr.opcode = IBV_WR_RDMA_READ;
                    wr.wr = there(address, key);
                }
                Opcode::Send => wr.opcode = IBV_WR_SEND,
            }
            self.list.push(wr);
        }
        let Some(last) = self.list.len().checked_sub(1) else { return Ok(()) };
        let first = self.list.as_mut_ptr();
        for place in 0..last {
            // SAFETY: both places are in the list.
            unsafe { (*first.add(place)).next = first.add(place + 1) };
        }
        let mut not_posted = ptr::null_mut();
        // SAFETY: the queue pair stands, and the list and the pieces do during the call. The driver reads pieces only. The memory
        // of inline pieces can be read, since their registrations are held; what others name the adapter looks at.
        let answer = unsafe { ibv_post_send(self.pair.as_ptr(), first, &raw mut not_posted) };
        if answer == 0 {
            return Ok(());
        }
        let posted = (0..=last).find(|place| ptr::eq(not_posted, first.wrapping_add(*place))).unwrap_or(0);
        Err(self.not_posted("ibv_post_send", answer.abs(), posted, requests.len()))
    }
}

/// Whether the pieces of any request that the adapter fetches are of different lengths.
pub(super) fn are_any_uneven(requests: &[SendRequest], mut sges: &[Sge]) -> bool {
    requests.iter().any(|request| {
        let (its, others) = sges.split_at(request.sges as usize);
        sges = others;
        !request.inline && its.windows(2).any(|pair| pair[0].bytes != pair[1].bytes)
    })
}

fn flags(request: &SendRequest, its: &[Sge]) -> ibv_send_flags {
    let signalled = if request.signalled { IBV_SEND_SIGNALED } else { 0 };
    let inline = if is_inline(request, its) { IBV_SEND_INLINE } else { 0 };
    signalled | inline
}

/// Whether bytes are taken at once: a request without any has nothing to take.
fn is_inline(request: &SendRequest, its: &[Sge]) -> bool {
    request.inline && its.iter().any(|sge| sge.bytes > 0)
}

/// Puts the bytes of pieces one after the other. Returns how many there are.
///
/// # Safety
///
/// The bytes of all pieces can be read; they may change meanwhile.
unsafe fn gather(sges: &[Sge], together: &mut [u8]) -> usize {
    let mut at = 0;
    for sge in sges {
        let room = &mut together[at..at + sge.bytes as usize];
        // SAFETY: so many bytes can be read, as the caller promises, and so many have room. The room is nobody else's.
        unsafe { ptr::copy_nonoverlapping(address_of(sge).cast::<u8>(), room.as_mut_ptr(), room.len()) };
        at += room.len();
    }
    at
}

fn address_of(sge: &Sge) -> *mut c_void {
    ptr::with_exposed_provenance_mut(sge.address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_of_unequal_pieces_are_uneven() {
        let sge = |bytes| Sge { address: 4096, bytes, key: 1 };
        let request = |sges, inline| SendRequest { id: 1, opcode: Opcode::Send, sges, signalled: true, inline };
        let sges = [sge(8), sge(16), sge(16), sge(16), sge(8)];
        let are_uneven = |cut: &[u32]| {
            let requests: Vec<SendRequest> = cut.iter().map(|&count| request(count, false)).collect();
            are_any_uneven(&requests, &sges)
        };
        assert!(!are_uneven(&[]) && !are_uneven(&[1]) && !are_uneven(&[1, 3]) && !are_uneven(&[1, 0, 3, 1]));
        assert!(are_uneven(&[2]) && are_uneven(&[1, 4]) && are_uneven(&[5]));
        assert!(!are_any_uneven(&[request(5, true)], &sges), "inline ones are put together here");
    }
}
