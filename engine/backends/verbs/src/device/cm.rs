//! One queue's way to a connection by the connection manager.
//!
//! ```text
//! calls:  address -> way -> ready to connect, called -> accepted: ready to receive, to send, confirmed -> stands
//! waits:  called -> ready to receive, to send, accepted -> confirmed: stands
//! ```
//!
//! The queue pair is made on the CQ like every other; the manager says what to change it to ([`CmConnection::change`]), so that both ends and
//! the kernel between them know of the same numbers. Whatever else this side wants of its queues stays as it is with those that are
//! connected by exchange.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, ptr};

use penstock_verbs_sys::cm::*;
use penstock_verbs_sys::verbs::*;

use super::manager::{Happened, Id, Manager, SockaddrStorage};
use super::queue::{ANSWER_TIMEOUT, RECEIVE_PAUSE, RETRIES, RETRIES_WITHOUT_RECEIVE};
use super::status::refused;
use crate::adapter::{AdapterError, CmError, ConnectParams, Connected};

/// How long the kernel may look for the adapter that an address leads to, for a way to it, and for an answer; and how long one waits to be
/// called by who does all that.
const ADDRESS: Duration = Duration::from_secs(2);
const WAY: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(3);
const CALL: Duration = Duration::from_secs(7);

/// A queue on its way.
pub(super) struct CmConnection {
    manager: Arc<Manager>,
    /// The queue's number, and what was agreed on.
    queue: u32,
    connecting: ConnectParams,
    with: String,
    id: Option<Id>,
    step: Step,
    until: Instant,
}

/// What it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Address,
    Way,
    Answer,
    Call,
    Confirmation,
    Nothing,
    Failed(CmError),
}

/// Changes the states of the queue pair.
pub(super) type Modify<'a> = &'a dyn Fn(&mut ibv_qp_attr, ibv_qp_attr_mask) -> Result<(), AdapterError>;

impl CmConnection {
    /// Sets out to meet.
    pub(super) fn begin(manager: &Arc<Manager>, queue: u32, connecting: &ConnectParams) -> Result<Self, AdapterError> {
        let call = connecting.cm.and_then(|cm| cm.call);
        let mut cm = Self {
            manager: Arc::clone(manager),
            queue,
            connecting: *connecting,
            with: call.map_or_else(|| "whoever was to call".to_owned(), |at| at.to_string()),
            id: None,
            step: Step::Call,
            until: Instant::now() + CALL,
        };
        if let Some(at) = call {
            let id = manager.caller(queue)?;
            let mut source = manager.at();
            source.set_port(0);
            let (mut from, mut to) = (SockaddrStorage::of(source), SockaddrStorage::of(at));
            // SAFETY: the identifier stands, and both addresses do during the call.
            let answer = unsafe { manager.cm().rdma_resolve_addr(id.get(), from.get(), to.get(), millis(ADDRESS)) };
            cm.id = Some(id);
            cm.check("rdma_resolve_addr", answer)?;
            cm.waits_for(Step::Address, ADDRESS);
        }
        Ok(cm)
    }

    /// Goes as far as it can.
    pub(super) fn go_on(&mut self, modify: Modify<'_>) -> Result<Connected, AdapterError> {
        loop {
            if let Step::Failed(why) = self.step {
                return Err(self.not_met(why));
            }
            if self.step == Step::Call && !self.is_called(modify)? {
                break;
            }
            let Some(happened) = self.id.as_ref().and_then(Id::next) else { break };
            match (self.step, happened) {
                (_, Happened::Failed(why)) => self.step = Step::Failed(why),
                (Step::Address, Happened::AddressFound) => {
                    let id = self.get();
                    // SAFETY: the identifier stands.
                    self.check("rdma_resolve_route", unsafe { self.manager.cm().rdma_resolve_route(id, millis(WAY)) })?;
                    self.waits_for(Step::Way, WAY);
                }
                (Step::Way, Happened::WayFound) => {
                    self.change(IBV_QPS_INIT, modify)?;
                    self.call()?;
                    self.waits_for(Step::Answer, ANSWER);
                }
                (Step::Answer, Happened::Accepted) => {
                    // Once more, as what is known of the way now was not before.
                    self.change(IBV_QPS_INIT, modify)?;
                    self.change(IBV_QPS_RTR, modify)?;
                    self.change(IBV_QPS_RTS, modify)?;
                    let id = self.get();
                    // SAFETY: the identifier stands, and has no queue pair of its own.
                    self.check("rdma_establish", unsafe { self.manager.cm().rdma_establish(id) })?;
                    self.step = Step::Nothing;
                }
                // Adapters of iWARP need no confirmation.
                (Step::Answer | Step::Confirmation, Happened::Stands) => self.step = Step::Nothing,
                (_, _) => {}
            }
        }
        match self.step {
            Step::Nothing => Ok(Connected::Yes),
            _ if Instant::now() < self.until => Ok(Connected::NotYet),
            Step::Address | Step::Way => Err(self.fails(CmError::NoWay)),
            _ => Err(self.fails(CmError::Silence)),
        }
    }

    /// Accepts a call, if there is one. Returns whether there was.
    fn is_called(&mut self, modify: Modify<'_>) -> Result<bool, AdapterError> {
        let Some(token) = self.connecting.cm.map(|cm| cm.token) else { return Ok(false) };
        let Some(id) = self.manager.take_call(&token) else { return Ok(false) };
        self.id = Some(id);
        self.change(IBV_QPS_INIT, modify)?;
        self.change(IBV_QPS_RTR, modify)?;
        self.change(IBV_QPS_RTS, modify)?;
        let mut wishes = self.wishes();
        // SAFETY: the identifier stands and has been called; the wishes stand during the call.
        let answer = unsafe { self.manager.cm().rdma_accept(self.get(), &raw mut wishes) };
        self.check("rdma_accept", answer)?;
        self.waits_for(Step::Confirmation, ANSWER);
        Ok(true)
    }

    fn call(&mut self) -> Result<(), AdapterError> {
        let said = self.connecting.cm.map(|cm| cm.token.asking()).unwrap_or_default();
        let mut wishes = self.wishes();
        (wishes.private_data, wishes.private_data_len) = (said.as_ptr().cast(), said.len() as u8);
        // SAFETY: the identifier stands and has a way; the wishes and what is said stand during the call.
        let answer = unsafe { self.manager.cm().rdma_connect(self.get(), &raw mut wishes) };
        self.check("rdma_connect", answer)
    }

    fn wishes(&self) -> rdma_conn_param {
        rdma_conn_param {
            responder_resources: self.connecting.reads_here,
            initiator_depth: self.connecting.reads_there,
            retry_count: RETRIES,
            rnr_retry_count: RETRIES_WITHOUT_RECEIVE,
            srq: 1,
            qp_num: self.queue,
            ..rdma_conn_param::ZERO
        }
    }

    /// Brings the queue pair into a state as the manager says, with this side's own wishes where it knows no better.
    fn change(&mut self, state: ibv_qp_state, modify: Modify<'_>) -> Result<(), AdapterError> {
        let (mut attributes, mut mask) = (ibv_qp_attr { qp_state: state, ..ibv_qp_attr::ZERO }, 0);
        let id = self.get();
        // SAFETY: the identifier stands; attributes and mask may be written.
        let answer = unsafe { self.manager.cm().rdma_init_qp_attr(id, &raw mut attributes, &raw mut mask) };
        self.check("rdma_init_qp_attr", answer)?;
        let mask = mask as ibv_qp_attr_mask;
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        }
        attributes.min_rnr_timer = RECEIVE_PAUSE;
        attributes.timeout = ANSWER_TIMEOUT;
        attributes.retry_cnt = RETRIES;
        attributes.rnr_retry = RETRIES_WITHOUT_RECEIVE;
        // Where the adapter itself changes states, nothing is left to be changed.
        if mask == 0 { Ok(()) } else { modify(&mut attributes, mask) }
    }

    fn waits_for(&mut self, step: Step, within: Duration) {
        (self.step, self.until) = (step, Instant::now() + within);
    }

    fn get(&self) -> *mut rdma_cm_id {
        self.id.as_ref().map_or(ptr::null_mut(), Id::get)
    }

    fn check(&mut self, call: &'static str, answer: i32) -> Result<(), AdapterError> {
        if answer == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        self.step = Step::Failed(CmError::Other(error.raw_os_error().unwrap_or(0)));
        Err(refused(call, self.manager.adapter(), error))
    }

    fn fails(&mut self, why: CmError) -> AdapterError {
        self.step = Step::Failed(why);
        self.not_met(why)
    }

    fn not_met(&self, why: CmError) -> AdapterError {
        AdapterError::Cm { adapter: self.manager.adapter().to_owned(), with: self.with.clone(), why }
    }
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
