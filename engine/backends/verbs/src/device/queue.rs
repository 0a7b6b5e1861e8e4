//! A queue pair: its states, and posting in two ways.

use std::ffi::c_void;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use penstock_memory::fork;
use penstock_verbs_sys::verbs::*;

use super::card::Parts;
use super::desk::DeskParts;
use super::memory::Registered;
use super::open::complain;
use super::status::{check, refused};
use crate::card::{CardError, Connecting, IDS, Kind, Piece, PostFailed, Queue, Request};

/// 4.096 µs times two to this: 67 ms until a packet without an answer is sent again. Cards wait up to four times that, so seven
/// attempts tell a dead peer after half a second to two; a shorter time takes a switch that is changing its ways for one.
const ANSWER_TIMEOUT: u8 = 14;
/// Attempts after the first. Seven would be all that there are, but some drivers (rxe) take it to mean for ever.
const RETRIES: u8 = 6;
/// Attempts after the first when the peer has no receive. Seven would be for ever.
const RETRIES_WITHOUT_RECEIVE: u8 = 6;
/// The peer waits 10.24 ms between those. Credits keep a receive for every message, so what needs this is a mistake of one of the two sides:
/// it is to be told in 61 ms.
const RECEIVE_PAUSE: u8 = 20;
/// Routers on a packet's way.
const HOPS: u8 = 64;
/// The partition that every port is in.
const PARTITION_INDEX: u16 = 0;

/// Bytes that are put into a request itself, at most. The processor writes them into the card's queue: beyond this the card
/// fetches them as fast.
pub(super) const INLINE_MAX: u32 = 256;

/// What a queue can have: the same for all of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) pieces: u32,
    pub(super) inline: u32,
    pub(super) posting: Posting,
}

/// How requests are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posting {
    /// Each request is written straight into the card's queue.
    Extended,
    /// Requests are written into a list first, which the driver reads.
    Classic,
}

/// The functions that extended posting needs.
const POSTS: ibv_qp_create_send_ops_flags =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;

const _: () = {
    assert!(size_of::<Piece>() == size_of::<ibv_sge>() && align_of::<Piece>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Piece, address) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Piece, bytes) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Piece, key) == std::mem::offset_of!(ibv_sge, lkey));
};

/// How far a queue has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    New,
    Connected,
    Broken,
}

/// A queue pair of a real card.
pub(super) struct DeviceQueue {
    card: Arc<Parts>,
    desk: Arc<DeskParts>,
    pair: NonNull<ibv_qp>,
    extended: Option<NonNull<ibv_qp_ex>>,
    number: u32,
    inline_max: u32,
    life: Life,
    /// Room for lists, if requests are posted by them, as long as the queue has requests.
    list: Vec<ibv_send_wr>,
    /// The registration that bytes were last taken from at once, and those that are held while they are.
    last: (u32, Weak<Registered>),
    held: Vec<Arc<Registered>>,
}

// SAFETY: every function of the library may be called from any thread, and the lists hold pointers only while a call uses them.
unsafe impl Send for DeviceQueue {}

impl DeviceQueue {
    pub(super) fn make(
        card: &Arc<Parts>,
        desk: &Arc<DeskParts>,
        shape: Shape,
        requests: usize,
    ) -> Result<Self, CardError> {
        let mut attributes = ibv_qp_init_attr_ex {
            send_cq: desk.completions(),
            recv_cq: desk.completions(),
            srq: desk.receives(),
            qp_type: IBV_QPT_RC,
            pd: desk.domain(),
            comp_mask: IBV_QP_INIT_ATTR_PD,
            ..ibv_qp_init_attr_ex::ZERO
        };
        attributes.cap.max_send_wr = u32::try_from(requests).unwrap_or(u32::MAX);
        attributes.cap.max_send_sge = shape.pieces;
        attributes.cap.max_inline_data = shape.inline;
        if shape.posting == Posting::Extended {
            attributes.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attributes.send_ops_flags = u64::from(POSTS);
        }
        let verbs = desk.device.verbs;
        // SAFETY: the context is open, and domain, completion queue and receive queue are of it.
        let pair = unsafe { verbs.ibv_create_qp_ex(desk.device.context(), &raw mut attributes) };
        let pair = NonNull::new(pair)
            .ok_or_else(|| refused("ibv_create_qp", &desk.device.card, io::Error::last_os_error()))?;
        // SAFETY: it was just made, and its number does not change.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        let mut made = Self {
            card: Arc::clone(card),
            desk: Arc::clone(desk),
            pair,
            extended: None,
            number,
            inline_max: attributes.cap.max_inline_data.min(INLINE_MAX),
            life: Life::New,
            list: Vec::new(),
            last: (0, Weak::new()),
            held: Vec::new(),
        };
        match shape.posting {
            Posting::Extended => made.extended = Some(made.extension()?),
            Posting::Classic => made.list.reserve_exact(requests),
        }
        Ok(made)
    }

    /// Its functions for extended posting.
    fn extension(&self) -> Result<NonNull<ibv_qp_ex>, CardError> {
        // SAFETY: the queue pair stands.
        let extended = unsafe { self.desk.device.verbs.ibv_qp_to_qp_ex(self.pair.as_ptr()) };
        let extended = NonNull::new(extended.unwrap_or(ptr::null_mut()));
        extended
            // SAFETY: it came from the call above, for a queue pair that stands.
            .filter(|extended| unsafe { ibv_qp_ex_offers(extended.as_ptr(), POSTS) })
            .ok_or_else(|| self.refused("ibv_qp_to_qp_ex", libc::EOPNOTSUPP))
    }

    /// Bytes that a request can carry without registered memory.
    pub(super) fn inline_max(&self) -> u32 {
        self.inline_max
    }

    fn refused(&self, call: &'static str, number: i32) -> CardError {
        refused(call, &self.desk.device.card, io::Error::from_raw_os_error(number))
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), CardError> {
        // SAFETY: the queue pair stands and the attributes do during the call.
        let answer = unsafe { self.desk.device.verbs.ibv_modify_qp(self.pair.as_ptr(), attributes, mask as i32) };
        check("ibv_modify_qp", &self.desk.device.card, answer)
    }

    fn change_to(&self, state: ibv_qp_state) -> Result<(), CardError> {
        self.modify(&mut ibv_qp_attr { qp_state: state, ..ibv_qp_attr::ZERO }, IBV_QP_STATE)
    }

    /// From new to ready to send.
    fn walk(&self, connecting: &Connecting) -> Result<(), CardError> {
        let mut ready_to_connect = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: PARTITION_INDEX,
            port_num: self.card.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
            ..ibv_qp_attr::ZERO
        };
        self.modify(&mut ready_to_connect, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        let mut ready_to_receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: packet_size(connecting.mtu).ok_or_else(|| self.refused("ibv_modify_qp", libc::EINVAL))?,
            dest_qp_num: connecting.there.queue,
            rq_psn: connecting.there.first_packet & PACKET_NUMBERS,
            max_dest_rd_atomic: connecting.reads_here,
            min_rnr_timer: RECEIVE_PAUSE,
            ah_attr: self.way_to(connecting),
            ..ibv_qp_attr::ZERO
        };
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut ready_to_receive, mask)?;
        let mut ready_to_send = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: ANSWER_TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES_WITHOUT_RECEIVE,
            sq_psn: connecting.first_packet & PACKET_NUMBERS,
            max_rd_atomic: connecting.reads_there,
            ..ibv_qp_attr::ZERO
        };
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut ready_to_send, mask)
    }

    /// The way of packets to the peer's card.
    fn way_to(&self, connecting: &Connecting) -> ibv_ah_attr {
        let there = &connecting.there;
        // On Ethernet every packet has a global route; on InfiniBand those that leave their subnet, or whose port asks for it.
        let leaves = self.card.facts.gid[..8] != there.gid[..8];
        let is_global = self.card.needs_route || leaves;
        let mut way = ibv_ah_attr { dlid: there.lid, port_num: self.card.port, ..ibv_ah_attr::ZERO };
        if is_global {
            way.is_global = 1;
            way.grh.dgid = ibv_gid { raw: there.gid };
            way.grh.sgid_index = self.card.gid_index;
            way.grh.hop_limit = HOPS;
            way.grh.traffic_class = self.card.traffic_class;
        }
        way
    }

    /// Looks whether a list is one, and holds the memory whose bytes are taken at once.
    fn check_list(&mut self, requests: &[Request], pieces: &[Piece]) -> Result<(), CardError> {
        let mut at = 0_usize;
        for request in requests {
            debug_assert!(request.id < IDS, "the card has a bit of the name to itself");
            let end = at.saturating_add(request.pieces as usize);
            let its = pieces.get(at..end).ok_or_else(|| self.refused("post", libc::EINVAL))?;
            if its.len() > self.card.shape.pieces as usize {
                let (has, wants) = (self.card.shape.pieces as usize, its.len());
                return Err(self.no_room("the pieces of a request", has, wants));
            }
            if request.inline {
                let bytes: u64 = its.iter().map(|piece| u64::from(piece.bytes)).sum();
                if bytes > u64::from(self.inline_max) {
                    return Err(self.no_room("bytes in a request", self.inline_max as usize, bytes as usize));
                }
                for piece in its {
                    self.hold(piece)?;
                }
            }
            at = end;
        }
        Ok(())
    }

    fn no_room(&self, what: &'static str, has: usize, wants: usize) -> CardError {
        CardError::NoRoom { card: self.desk.device.card.clone(), what, has, wants }
    }

    /// Keeps the registration of a piece until the post is over, so that its bytes can be read.
    fn hold(&mut self, piece: &Piece) -> Result<(), CardError> {
        if self.held.last().is_some_and(|held| held.holds(piece)) {
            return Ok(());
        }
        let known = if self.last.0 == piece.key { self.last.1.upgrade() } else { None };
        let found = known.or_else(|| self.card.registrations.find(piece.key)).filter(|found| found.holds(piece));
        let found = found.ok_or_else(|| self.refused("an inline post", libc::EFAULT))?;
        self.last = (piece.key, Arc::downgrade(&found));
        self.held.push(found);
        Ok(())
    }

    /// Posts each request by calls. All of them or none.
    fn post_extended(
        &self,
        pair: NonNull<ibv_qp_ex>,
        requests: &[Request],
        pieces: &[Piece],
    ) -> Result<(), PostFailed> {
        let pair = pair.as_ptr();
        let mut rest = pieces;
        // SAFETY: the queue pair stands and offers these. Nobody else is between start and completion: it is borrowed mutably,
        // and what its domain shares is held by the caller. Pieces of requests that are not inline are names of registered memory,
        // which the card looks at; the bytes of inline ones can be read, since their registrations are held.
        unsafe {
            ibv_wr_start(pair);
            for request in requests {
                let (its, others) = rest.split_at(request.pieces as usize);
                rest = others;
                (*pair).wr_id = request.id;
                // The call that gives the bytes says that they are inline, but some drivers (rxe) want to read it here.
                (*pair).wr_flags = flags(request, its);
                match request.kind {
                    Kind::Write { address, key } => ibv_wr_rdma_write(pair, key, address),
                    Kind::WriteAndTell { address, key, immediate } => {
                        ibv_wr_rdma_write_imm(pair, key, address, immediate.to_be());
                    }
                    Kind::Read { address, key } => ibv_wr_rdma_read(pair, key, address),
                    Kind::Send => ibv_wr_send(pair),
                }
                match its {
                    [] => ibv_wr_set_sge_list(pair, 0, ptr::null()),
                    [piece] if is_inline(request, its) => {
                        ibv_wr_set_inline_data(pair, address_of(piece), piece.bytes as usize);
                    }
                    // Several pieces are put together first: the call that takes a list of them loses the bytes with some drivers
                    // (rxe), and there are few.
                    _ if is_inline(request, its) => {
                        let mut together = [0; INLINE_MAX as usize];
                        let bytes = gather(its, &mut together);
                        ibv_wr_set_inline_data(pair, together.as_mut_ptr().cast::<c_void>(), bytes);
                    }
                    [piece] => ibv_wr_set_sge(pair, piece.key, piece.address, piece.bytes),
                    _ => ibv_wr_set_sge_list(pair, its.len(), its.as_ptr().cast::<ibv_sge>()),
                }
            }
            match ibv_wr_complete(pair) {
                0 => Ok(()),
                number => Err(PostFailed { posted: 0, error: self.refused("ibv_wr_complete", number.abs()) }),
            }
        }
    }

    /// Posts a list of requests.
    fn post_classic(&mut self, requests: &[Request], pieces: &[Piece]) -> Result<(), PostFailed> {
        self.list.clear();
        let mut rest = pieces;
        for request in requests {
            let (its, others) = rest.split_at(request.pieces as usize);
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
            match request.kind {
                Kind::Write { address, key } => {
                    wr.opcode = IBV_WR_RDMA_WRITE;
                    wr.wr = there(address, key);
                }
                Kind::WriteAndTell { address, key, immediate } => {
                    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                    wr.imm_data = immediate.to_be();
                    wr.wr = there(address, key);
                }
                Kind::Read { address, key } => {
                    wr.opcode = IBV_WR_RDMA_READ;
                    wr.wr = there(address, key);
                }
                Kind::Send => wr.opcode = IBV_WR_SEND,
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
        // of inline pieces can be read, since their registrations are held; what others name the card looks at.
        let answer = unsafe { ibv_post_send(self.pair.as_ptr(), first, &raw mut not_posted) };
        if answer == 0 {
            return Ok(());
        }
        let posted = (0..=last).find(|place| ptr::eq(not_posted, first.wrapping_add(*place))).unwrap_or(0);
        Err(PostFailed { posted, error: self.refused("ibv_post_send", answer.abs()) })
    }
}

/// Packet numbers have 24 bits.
const PACKET_NUMBERS: u32 = 0xff_ffff;

/// The largest size of packets that is no larger.
fn packet_size(bytes: u32) -> Option<ibv_mtu> {
    let sizes =
        [(4096, IBV_MTU_4096), (2048, IBV_MTU_2048), (1024, IBV_MTU_1024), (512, IBV_MTU_512), (256, IBV_MTU_256)];
    sizes.iter().find(|(size, _)| *size <= bytes).map(|(_, name)| *name)
}

fn flags(request: &Request, its: &[Piece]) -> ibv_send_flags {
    let signalled = if request.signalled { IBV_SEND_SIGNALED } else { 0 };
    let inline = if is_inline(request, its) { IBV_SEND_INLINE } else { 0 };
    signalled | inline
}

/// Whether bytes are taken at once: a request without any has nothing to take.
fn is_inline(request: &Request, its: &[Piece]) -> bool {
    request.inline && its.iter().any(|piece| piece.bytes > 0)
}

/// Puts the bytes of pieces one after the other. Answers how many there are.
///
/// # Safety
///
/// The bytes of all pieces can be read; they may change meanwhile.
unsafe fn gather(pieces: &[Piece], together: &mut [u8]) -> usize {
    let mut at = 0;
    for piece in pieces {
        let room = &mut together[at..at + piece.bytes as usize];
        // SAFETY: so many bytes can be read, as the caller promises, and so many have room. The room is nobody else's.
        unsafe { ptr::copy_nonoverlapping(address_of(piece).cast::<u8>(), room.as_mut_ptr(), room.len()) };
        at += room.len();
    }
    at
}

fn address_of(piece: &Piece) -> *mut c_void {
    ptr::with_exposed_provenance_mut(piece.address as usize)
}

impl Queue for DeviceQueue {
    fn number(&self) -> u32 {
        self.number
    }

    fn connect(&mut self, connecting: &Connecting) -> Result<(), CardError> {
        if self.life != Life::New {
            return Err(self.refused("ibv_modify_qp", libc::EISCONN));
        }
        self.life = Life::Connected;
        self.walk(connecting).inspect_err(|_| {
            // So that it can be tried again. If that fails too, the next attempt says so.
            if self.change_to(IBV_QPS_RESET).is_ok() {
                self.life = Life::New;
            }
        })
    }

    fn post(&mut self, requests: &[Request], pieces: &[Piece]) -> Result<(), PostFailed> {
        let checked = self.check_list(requests, pieces);
        let posted = checked.map_err(|error| PostFailed { posted: 0, error }).and_then(|()| {
            let desk = Arc::clone(&self.desk);
            let _alone = desk.post_alone();
            match self.extended {
                Some(pair) => self.post_extended(pair, requests, pieces),
                None => self.post_classic(requests, pieces),
            }
        });
        self.held.clear();
        posted
    }

    fn break_off(&mut self) -> Result<(), CardError> {
        if self.life != Life::Connected {
            return Ok(());
        }
        self.change_to(IBV_QPS_ERR)?;
        self.life = Life::Broken;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), CardError> {
        // Broken first: what the card gives back then is worth having, and a driver's reset may forget it.
        self.break_off()?;
        self.desk.end_life(self.number, || self.change_to(IBV_QPS_RESET))?;
        self.life = Life::New;
        Ok(())
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        if fork::in_child() {
            return;
        }
        // If it fails the destruction does the same, without what the card gives back.
        let _ = self.break_off();
        let answer = self.desk.end_life(self.number, || {
            // SAFETY: it stands, this is the last that knows it, and all its events were acknowledged when they were taken.
            unsafe { self.desk.device.verbs.ibv_destroy_qp(self.pair.as_ptr()) }
        });
        complain("destroying a queue", &self.desk.device.card, &[answer]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_never_larger_than_both_sides_take() {
        assert_eq!(packet_size(4096), Some(IBV_MTU_4096));
        assert_eq!(packet_size(4095), Some(IBV_MTU_2048));
        assert_eq!(packet_size(256), Some(IBV_MTU_256));
        assert_eq!(packet_size(255), None);
    }
}
