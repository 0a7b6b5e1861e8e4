//! What is handed out.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Env, Timestamp};
use penstock_flows::BlocksRef;
use penstock_flows::manager::{BlockAccess, User};
use penstock_flows::relay::payload::PayloadItem;
use penstock_flows::relay::{PutKey, PutSource, Relays, ToPut};
use penstock_session::RequestId;

use super::extents::{Extents, KeptExtents};
use super::work::Content;
use super::{FlowError, Inner, PayloadError, Relay, RelayError, RelayFailed, Schema, WITHIN};
use crate::peer::Peer;

/// What is to be put.
pub struct Put<'a, E: Env> {
    pub(super) data: Data<'a, E>,
    pub(super) schema: Vec<u8>,
    pub(super) header: Vec<u8>,
    pub(super) within: Duration,
}

pub(super) enum Data<'a, E: Env> {
    Content(Content<'a>),
    Extents { extents: Extents<'a, E>, is_ready: bool },
}

impl<'a, E: Env> Put<'a, E> {
    fn of(data: Data<'a, E>) -> Self {
        Self { data, schema: Vec::new(), header: Vec::new(), within: WITHIN }
    }

    /// These bytes. They are copied into berths in the call; what does not fit there yet is kept for later.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self::of(Data::Content(Content::Flat(bytes)))
    }

    /// The same, where what does not fit yet is kept without another copy.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Self::of(Data::Content(Content::Owned(bytes)))
    }

    /// Items with their names, shapes and types, packed behind each other. Their bytes have to be as many as their shapes say.
    pub fn items(items: &[(PayloadItem<'_>, &'a [u8])]) -> Result<Self, PayloadError> {
        let schema = Schema::pack(&items.iter().map(|(item, _)| *item).collect::<Vec<_>>())?;
        let mut pieces = Vec::with_capacity(items.len());
        for (item, (field, (_, bytes))) in schema.fields().iter().zip(items).enumerate() {
            if field.bytes != bytes.len() as u64 {
                return Err(PayloadError::Bytes { item, needed: field.bytes, found: bytes.len() as u64 });
            }
            pieces.push((field.offset, *bytes));
        }
        let bytes = schema.bytes();
        let put = Self::of(Data::Content(Content::Pieces { pieces, bytes }));
        Ok(Self { schema: schema.encode(), ..put })
    }

    /// These parts of a region of this engine, that peers may read. Nothing is copied: readers read them where they are. The blocks that
    /// they lie in are kept until the last one has; registered memory is to be left as it is until the put has [rested](RelayOp::rest).
    /// Until then nothing of this engine writes to those blocks: what is being written is refused, and so is who wants to write there
    /// ([`CallError::Held`](crate::flows::CallError::Held)).
    pub fn extents(extents: Extents<'a, E>) -> Self {
        Self::of(Data::Extents { extents, is_ready: true })
    }

    /// The bytes of these extents are not there yet: nobody is told of them before [`RelayOp::ready`], such as behind a device's fence.
    /// Until then anything may write to them, and it is for the caller to know when all of that is there.
    #[must_use]
    pub fn not_ready(mut self) -> Self {
        if let Data::Extents { is_ready, .. } = &mut self.data {
            *is_ready = false;
        }
        self
    }

    /// What the bytes are, for bytes and extents that are packed as this schema says.
    #[must_use]
    pub fn schema(mut self, schema: &Schema) -> Self {
        self.schema = schema.encode();
        self
    }

    /// Words for the readers, which nobody here reads. They come with the announcement, before any byte is fetched.
    #[must_use]
    pub fn header(mut self, header: &[u8]) -> Self {
        self.header = header.to_vec();
        self
    }

    /// How long it may take in all, until its readers have it.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }
}

/// What the transfer manager is asked to put.
pub(super) struct Prepared {
    pub(super) source: PutSource,
    pub(super) schema: Vec<u8>,
    pub(super) header: Vec<u8>,
    pub(super) within: Duration,
}

/// A put on its way. Dropped before all was written it is given up; after that it goes on by itself.
pub struct RelayOp<E: Env> {
    inner: Arc<Inner<E>>,
    pub(super) key: PutKey,
    metadata: Vec<u8>,
    /// What keeps the extents, if it has some.
    keep: Option<BlocksRef>,
}

impl<E: Env> Relay<E> {
    /// Hands something out to these readers, for a request. What can be written at once is, and its readers are told, before this returns;
    /// what waits for berths, or goes in parts, goes on while any handle of this relay is waited for or polled.
    pub fn put(&self, what: Put<'_, E>, request: &RequestId, to: &[&Peer<E>]) -> Result<RelayOp<E>, FlowError> {
        let readers = self.inner.readers(to)?;
        self.inner.put(what, |relays, Prepared { source, schema, header, within }, now| {
            relays.put(ToPut { request: request.clone(), source, readers, schema, header, within }, now)
        })
    }
}

impl<E: Env> Inner<E> {
    /// Begins a put; `begin` asks the transfer manager for it.
    pub(super) fn put(
        self: &Arc<Self>,
        what: Put<'_, E>,
        begin: impl FnOnce(&mut Relays, Prepared, Timestamp) -> Result<PutKey, RelayError>,
    ) -> Result<RelayOp<E>, FlowError> {
        let Put { data, schema, header, within } = what;
        let (source, content, keep) = match data {
            Data::Content(content) => (PutSource::Berths { bytes: content.bytes() }, Some(content), None),
            Data::Extents { extents, is_ready } => {
                self.engine.shared.check_usable().map_err(FlowError::Engine)?;
                let KeptExtents { region, places: extents, keep } =
                    self.keep(extents, (BlockAccess::Read, is_ready), User::Put)?;
                if !region.rights().allows_read() {
                    self.keep_no_more(keep);
                    return Err(FlowError::NotReadable { label: region.label().to_owned() });
                }
                (PutSource::Extents { extents, keep, is_ready }, None, Some(keep))
            }
        };
        let begun = self.call(|relays, now| {
            let key = begin(relays, Prepared { source, schema, header, within }, now)?;
            Ok((key, relays.metadata(key).expect("it has begun just now")))
        });
        let let_go = |_: &_| keep.into_iter().for_each(|keep| self.keep_no_more(keep));
        let (key, metadata) = begun.inspect_err(let_go)?;
        let op = RelayOp { inner: Arc::clone(self), key, metadata, keep };
        if let Some(content) = content {
            self.begin_put(key, content);
        }
        Ok(op)
    }
}

impl<E: Env> RelayOp<E> {
    /// What names it elsewhere, good from the beginning: any means may carry it to a reader, who gives it to [`Relay::get`].
    pub fn metadata(&self) -> &[u8] {
        &self.metadata
    }

    /// The bytes of extents that were [not ready](Put::not_ready) are there: readers are told. A put that has ended meanwhile stays as it is.
    pub fn ready(&self) {
        // Whatever it answers, nobody waits for it any more.
        let _ = self.inner.engine.shared.call_manager(|manager, now| {
            self.keep.into_iter().for_each(|keep| manager.use_is_ready(keep));
            manager.relays_mut().filled(self.key, 0, now)
        });
    }

    /// How it ended, if it has: every reader has everything, or why not. Brings what is to be copied forward.
    pub fn poll(&self) -> Option<Result<(), RelayFailed>> {
        self.inner.bring_forward();
        self.inner.engine.shared.look_at_manager(|manager| manager.relays().put_result(self.key).cloned())
    }

    /// Waits until it has ended. That it has not in this time ends the wait, and not the put.
    pub fn wait(&self, timeout: Duration) -> Result<Result<(), RelayFailed>, FlowError> {
        self.inner.wait(timeout, |manager| manager.relays().put_result(self.key).cloned())
    }

    /// Waits until nobody is at its memory any more, which after a failure may take longer than its end. Answers whether that is so.
    pub fn rest(&self, timeout: Duration) -> bool {
        let has_ended = |manager: &penstock_flows::TransferManager| {
            manager.relays().put_state(self.key).is_none_or(|state| state.is_end()).then_some(())
        };
        self.inner.wait(timeout, has_ended).is_ok()
    }
}

impl<E: Env> Drop for RelayOp<E> {
    fn drop(&mut self) {
        if !self.inner.engine.shared.is_inherited() {
            self.inner.let_go_put(self.key);
        }
    }
}

impl<E: Env> std::fmt::Debug for RelayOp<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayOp").field("key", &self.key).finish_non_exhaustive()
    }
}
