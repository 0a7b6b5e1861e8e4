//! What is remembered of parents: a blob of their caller's, and why their blocks are gone.

use std::collections::BTreeMap;

use penstock_session::RequestId;

use super::inherit::{Isolation, Miss};

/// What is remembered of one parent.
pub(super) struct BlobMemory {
    pub(super) isolation: Isolation,
    pub(super) blob: Vec<u8>,
    /// Why there is nothing to be inherited, once that is so.
    pub(super) gone: Option<Miss>,
    age: u64,
}

/// Memories of so many parents and so many bytes: the oldest ones are forgotten first.
pub(super) struct Blobs {
    most: usize,
    bytes_most: usize,
    bytes: usize,
    next: u64,
    by_parent: BTreeMap<RequestId, BlobMemory>,
    by_age: BTreeMap<u64, RequestId>,
}

impl Blobs {
    pub(super) fn new(most: usize, bytes_most: usize) -> Self {
        let (by_parent, by_age) = (BTreeMap::new(), BTreeMap::new());
        Self { most, bytes_most, bytes: 0, next: 0, by_parent, by_age }
    }

    /// The most bytes of one blob.
    pub(super) fn bytes_most(&self) -> usize {
        self.bytes_most
    }

    pub(super) fn keep(&mut self, parent: RequestId, isolation: Isolation, blob: Vec<u8>) {
        self.forget(&parent);
        self.bytes += blob.len();
        let age = self.next;
        self.next += 1;
        self.by_age.insert(age, parent.clone());
        self.by_parent.insert(parent, BlobMemory { isolation, blob, gone: None, age });
        while self.by_parent.len() > self.most || self.bytes > self.bytes_most {
            let Some(oldest) = self.by_age.values().next().cloned() else { break };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, parent: &RequestId) {
        if let Some(memory) = self.by_parent.remove(parent) {
            self.bytes -= memory.blob.len();
            self.by_age.remove(&memory.age);
        }
    }

    pub(super) fn get(&self, parent: &RequestId) -> Option<&BlobMemory> {
        self.by_parent.get(parent)
    }

    pub(super) fn set_gone(&mut self, parent: &RequestId, why: Miss) {
        if let Some(memory) = self.by_parent.get_mut(parent) {
            memory.gone = Some(why);
        }
    }

    /// How many there are, and of how many bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.by_parent.len(), self.bytes)
    }

    /// Whether its own counts agree.
    pub(super) fn agrees(&self) -> bool {
        let bytes: usize = self.by_parent.values().map(|memory| memory.blob.len()).sum();
        let is_by_age = |(parent, memory): (&RequestId, &BlobMemory)| self.by_age.get(&memory.age) == Some(parent);
        let is_bounded = self.by_parent.len() <= self.most && self.bytes <= self.bytes_most;
        bytes == self.bytes
            && is_bounded
            && self.by_age.len() == self.by_parent.len()
            && self.by_parent.iter().all(is_by_age)
    }
}
