//! A queue pair and its states.

mod post;

use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use penstock_verbs_sys::verbs::*;

use self::post::are_any_uneven;
use super::adapter::Parts;
use super::cm::CmConnection;
use super::cq::CqParts;
use super::memory::Registered;
use super::status::{MODIFY_TO_RTR, check, refused};
use crate::adapter::{
    AdapterError, ConnectParams, Connected, NotDestroyed, PostSendError, QueuePair, SendRequest, Sge, Token,
};

/// 4.096 µs times two to this: 67 ms until a packet without an answer is sent again. Adapters wait up to four times that, so seven
/// attempts tell a dead peer after half a second to two; a shorter time takes a switch that is changing its ways for one.
pub(super) const ANSWER_TIMEOUT: u8 = 14;
/// Attempts after the first. Seven would be all that there are, but some drivers (rxe) take it to mean for ever.
pub(super) const RETRIES: u8 = 6;
/// Attempts after the first when the peer has no receive. Seven would be for ever.
pub(super) const RETRIES_WITHOUT_RECEIVE: u8 = 6;
/// The peer waits 10.24 ms between those. Credits keep a receive for every message, so what needs this is a mistake of one of the two sides:
/// it is to be told in 61 ms.
pub(super) const RECEIVE_PAUSE: u8 = 20;
/// Routers on a packet's way.
const HOPS: u8 = 64;
/// The partition that every port is in.
const PARTITION_INDEX: u16 = 0;

/// Bytes that are put into a request itself, at most. The processor writes them into the adapter's queue: beyond this the adapter
/// fetches them as fast.
pub(super) const INLINE_MAX: u32 = 256;

/// What a queue can have: the same for all of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QueueShape {
    pub(super) sges: u32,
    pub(super) inline: u32,
    pub(super) posting: Posting,
}

/// How requests are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posting {
    /// Each request is written straight into the adapter's queue.
    Extended,
    /// Requests are written into a list first, which the driver reads.
    Classic,
}

/// The functions that extended posting needs.
const POSTS: ibv_qp_create_send_ops_flags =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(std::mem::offset_of!(Sge, address) == std::mem::offset_of!(ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, bytes) == std::mem::offset_of!(ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, key) == std::mem::offset_of!(ibv_sge, lkey));
};

/// How far a queue has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    New,
    /// It is to be connected, and perhaps nothing was changed yet.
    Meeting,
    Connected,
    Broken,
}

/// A queue pair of a real adapter.
pub(super) struct DeviceQueue {
    adapter: Arc<Parts>,
    cq: Arc<CqParts>,
    pair: NonNull<ibv_qp>,
    extended: Option<NonNull<ibv_qp_ex>>,
    number: u32,
    requests: usize,
    inline_max: u32,
    life: Life,
    /// The pair is gone: there is nothing left to do but to be dropped.
    is_destroyed: bool,
    /// What it is called by, and how far it has come that is connected by the connection manager.
    token: Option<Token>,
    cm: Option<CmConnection>,
    /// Room for lists, if requests may be posted by them, as long as the queue has requests.
    list: Vec<ibv_send_wr>,
    /// The registration that bytes were last taken from at once, and those that are held while they are.
    last: (u32, Weak<Registered>),
    held: Vec<Arc<Registered>>,
}

// SAFETY: every function of the library may be called from any thread, and the lists hold pointers only while a call uses them.
unsafe impl Send for DeviceQueue {}

impl DeviceQueue {
    pub(super) fn make(
        adapter: &Arc<Parts>,
        cq: &Arc<CqParts>,
        shape: QueueShape,
        requests: usize,
    ) -> Result<Self, AdapterError> {
        let mut attributes = ibv_qp_init_attr_ex {
            send_cq: cq.completions(),
            recv_cq: cq.completions(),
            srq: cq.receives(),
            qp_type: IBV_QPT_RC,
            pd: cq.domain(),
            comp_mask: IBV_QP_INIT_ATTR_PD,
            ..ibv_qp_init_attr_ex::ZERO
        };
        attributes.cap.max_send_wr = u32::try_from(requests).unwrap_or(u32::MAX);
        attributes.cap.max_send_sge = shape.sges;
        attributes.cap.max_inline_data = shape.inline;
        if shape.posting == Posting::Extended {
            attributes.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attributes.send_ops_flags = u64::from(POSTS);
        }
        let verbs = cq.device.verbs;
        // SAFETY: the context is open, and domain, completion queue and receive queue are of it.
        let pair = unsafe { verbs.ibv_create_qp_ex(cq.device.context(), &raw mut attributes) };
        let pair = NonNull::new(pair)
            .ok_or_else(|| refused("ibv_create_qp", &cq.device.adapter, io::Error::last_os_error()))?;
        // SAFETY: it was just made, and its number does not change.
        let number = unsafe { (*pair.as_ptr()).qp_num };
        let mut made = Self {
            adapter: Arc::clone(adapter),
            cq: Arc::clone(cq),
            pair,
            extended: None,
            number,
            requests,
            inline_max: attributes.cap.max_inline_data.min(INLINE_MAX),
            life: Life::New,
            is_destroyed: false,
            token: None,
            cm: None,
            list: Vec::new(),
            last: (0, Weak::new()),
            held: Vec::new(),
        };
        match shape.posting {
            Posting::Extended => made.extended = Some(made.extension()?),
            Posting::Classic => {}
        }
        if made.extended.is_none() || made.adapter.miscounts_pieces {
            made.list.reserve_exact(requests);
        }
        Ok(made)
    }

    /// Its functions for extended posting.
    fn extension(&self) -> Result<NonNull<ibv_qp_ex>, AdapterError> {
        // SAFETY: the queue pair stands.
        let extended = unsafe { self.cq.device.verbs.ibv_qp_to_qp_ex(self.pair.as_ptr()) };
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

    fn refused(&self, call: &'static str, number: i32) -> AdapterError {
        refused(call, &self.cq.device.adapter, io::Error::from_raw_os_error(number))
    }

    fn modify(&self, attributes: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Result<(), AdapterError> {
        // SAFETY: the queue pair stands and the attributes do during the call.
        let answer = unsafe { self.cq.device.verbs.ibv_modify_qp(self.pair.as_ptr(), attributes, mask as i32) };
        let call = match attributes.qp_state {
            IBV_QPS_RTR => MODIFY_TO_RTR,
            IBV_QPS_INIT => "ibv_modify_qp to INIT",
            IBV_QPS_RTS => "ibv_modify_qp to RTS",
            IBV_QPS_ERR => "ibv_modify_qp to ERR",
            _ => "ibv_modify_qp to RESET",
        };
        check(call, &self.cq.device.adapter, answer)
    }

    fn change_to(&self, state: ibv_qp_state) -> Result<(), AdapterError> {
        self.modify(&mut ibv_qp_attr { qp_state: state, ..ibv_qp_attr::ZERO }, IBV_QP_STATE)
    }

    /// From new to ready to send.
    fn walk(&self, connecting: &ConnectParams) -> Result<(), AdapterError> {
        let mut ready_to_connect = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index: PARTITION_INDEX,
            port_num: self.adapter.port,
            qp_access_flags: IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
            ..ibv_qp_attr::ZERO
        };
        self.modify(&mut ready_to_connect, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)?;
        let mut ready_to_receive = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: packet_size(connecting.mtu).ok_or_else(|| self.refused(MODIFY_TO_RTR, libc::EINVAL))?,
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

    /// Destroys the pair, and with it all that it still had to do.
    fn destroy_qp(&mut self) -> Result<(), AdapterError> {
        if let (Some(manager), Some(token)) = (&self.adapter.manager, self.token.take()) {
            manager.expect_no_more(&token);
        }
        // If it fails the destruction does the same, without what the adapter gives back.
        let _ = self.set_error();
        let answer = self.cq.end_life(self.number, || {
            // SAFETY: it stands, this is the last that knows it, and all its events were acknowledged when they were taken.
            unsafe { self.cq.device.verbs.ibv_destroy_qp(self.pair.as_ptr()) }
        });
        check("ibv_destroy_qp", &self.cq.device.adapter, answer)?;
        self.is_destroyed = true;
        Ok(())
    }

    /// The way of packets to the peer's adapter.
    fn way_to(&self, connecting: &ConnectParams) -> ibv_ah_attr {
        let there = &connecting.there;
        // On Ethernet every packet has a global route; on InfiniBand those that leave their subnet, or whose port asks for it.
        let leaves = self.adapter.attr.gid[..8] != there.gid[..8];
        let is_global = self.adapter.needs_route || leaves;
        let mut way = ibv_ah_attr { dlid: there.lid, port_num: self.adapter.port, ..ibv_ah_attr::ZERO };
        if is_global {
            way.is_global = 1;
            way.grh.dgid = ibv_gid { raw: there.gid };
            way.grh.sgid_index = self.adapter.gid_index;
            way.grh.hop_limit = HOPS;
            way.grh.traffic_class = self.adapter.traffic_class;
        }
        way
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

impl QueuePair for DeviceQueue {
    fn number(&self) -> u32 {
        self.number
    }

    fn connect(&mut self, connecting: &ConnectParams) -> Result<Connected, AdapterError> {
        if self.life != Life::New {
            return Err(self.refused("ibv_modify_qp to INIT", libc::EISCONN));
        }
        if let Some(cm) = connecting.cm {
            let Some(manager) = &self.adapter.manager else {
                return Err(self.refused("rdma_connect", libc::EOPNOTSUPP));
            };
            if cm.call.is_some()
                && let Some(token) = self.token.take()
            {
                manager.expect_no_more(&token);
            }
            self.cm = Some(CmConnection::begin(manager, self.number, connecting)?);
            self.life = Life::Meeting;
            return self.cm_state();
        }
        self.life = Life::Connected;
        self.walk(connecting).inspect_err(|_| {
            // So that it can be tried again. If that fails too, the next attempt says so.
            if self.change_to(IBV_QPS_RESET).is_ok() {
                self.life = Life::New;
            }
        })?;
        Ok(Connected::Yes)
    }

    fn expect(&mut self, token: Token) {
        let Some(manager) = &self.adapter.manager else { return };
        if let Some(before) = self.token.replace(token) {
            manager.expect_no_more(&before);
        }
        manager.expect(token, self.number);
    }

    fn cm_state(&mut self) -> Result<Connected, AdapterError> {
        let Some(mut cm) = self.cm.take() else {
            // By exchange it has not met anybody, and is connected all the same.
            let is_connected = self.life == Life::Connected;
            return if is_connected { Ok(Connected::Yes) } else { Err(self.refused("rdma_connect", libc::ENOTCONN)) };
        };
        let met = cm.go_on(&|attributes, mask| self.modify(attributes, mask));
        self.cm = Some(cm);
        if matches!(met, Ok(Connected::Yes)) && self.life == Life::Meeting {
            self.life = Life::Connected;
        }
        met
    }

    fn post(&mut self, requests: &[SendRequest], sges: &[Sge]) -> Result<(), PostSendError> {
        let checked = self.check_list(requests, sges);
        let posted = checked.map_err(|error| PostSendError { posted: 0, error }).and_then(|()| {
            let cq = Arc::clone(&self.cq);
            let _alone = cq.post_alone();
            match self.extended {
                // Both ways may follow one another on a queue.
                Some(pair) if !(self.adapter.miscounts_pieces && are_any_uneven(requests, sges)) => {
                    self.post_extended(pair, requests, sges)
                }
                _ => self.post_classic(requests, sges),
            }
        });
        self.held.clear();
        posted
    }

    fn set_error(&mut self) -> Result<(), AdapterError> {
        // The other side hears of it.
        self.cm = None;
        match self.life {
            Life::New | Life::Broken => return Ok(()),
            Life::Connected => self.change_to(IBV_QPS_ERR)?,
            Life::Meeting => {
                // Only if nothing was changed yet it is refused, and then there is nothing to break.
                let _ = self.change_to(IBV_QPS_ERR);
            }
        }
        self.life = Life::Broken;
        Ok(())
    }

    fn reset(&mut self) -> Result<(), AdapterError> {
        // Broken first: what the adapter gives back then is worth having, and a driver's reset may forget it.
        self.set_error()?;
        self.cq.end_life(self.number, || self.change_to(IBV_QPS_RESET))?;
        self.life = Life::New;
        Ok(())
    }

    fn destroy(mut self: Box<Self>) -> Result<(), NotDestroyed> {
        self.destroy_qp().map_err(|error| NotDestroyed { queue: self, error })
    }
}

impl Drop for DeviceQueue {
    fn drop(&mut self) {
        if self.cq.device.maker.is_ancestor() || self.is_destroyed {
            return;
        }
        if let Err(error) = self.destroy_qp() {
            tracing::error!(%error, "a queue is left to the end of the process");
        }
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
