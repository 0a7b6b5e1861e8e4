//! What is put, byte for byte, and what is known of it outside of all engines.

use std::collections::BTreeMap;

use penstock::flows::relay::{Announced, Dtype, PayloadItem, Schema};
use penstock::{Blocks, Timestamp};

use super::spec::Form;
use crate::oracle::{Invariant, Violated, byte};
use crate::stage::Seat;

/// Cases and single chunks have other numbers.
const STREAMS: usize = 1 << 14;
const JOINS: usize = 1 << 13;

/// Which chunk it is: of a stream, or of a join's source; and of which life of its putter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    /// A join, and not a stream.
    pub(super) is_of_join: bool,
    /// Which stream, or which join.
    pub(super) of: usize,
    /// Its number, or the place of its source.
    pub(super) number: u64,
    /// The epoch of its putter.
    pub(super) epoch: u64,
}

/// A chunk as it was put.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// Its bytes, as they lie in its buffer.
    pub(super) bytes: Vec<u8>,
    /// What is said of them.
    pub(super) schema: Vec<u8>,
    /// What names it elsewhere.
    pub(super) metadata: Vec<u8>,
}

/// What a stream's putter has done, in one of its lives.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Its chunks so far.
    pub(super) chunks: Vec<Made>,
    /// It has said that these were all.
    pub(super) is_finished: bool,
    /// Since when it is known to have failed.
    pub(super) failed_at: Option<Timestamp>,
}

/// By stream, and by epoch of its putter.
pub(super) type Logs = BTreeMap<(usize, u64), Log>;

impl Name {
    /// What is said of it beside its bytes.
    pub(super) fn header(&self) -> Vec<u8> {
        let what = if self.is_of_join { "join" } else { "stream" };
        format!("{what} {} {}", self.of, self.number).into_bytes()
    }

    /// What was announced under this header by a peer in that epoch.
    pub(super) fn of(announced: &Announced) -> Option<Self> {
        let text = std::str::from_utf8(&announced.header).ok()?;
        let mut words = text.split(' ');
        let is_of_join = words.next()? == "join";
        let (of, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { is_of_join, of, number, epoch: announced.peer.epoch.0 })
    }

    /// So many bytes of it.
    pub(super) fn content(&self, bytes: usize) -> Vec<u8> {
        let case = if self.is_of_join { JOINS } else { STREAMS } + self.of;
        (0..bytes).map(|at| byte(case, self.epoch, 0, at as u64, self.number as u32, 0)).collect()
    }
}

/// Two items of these bytes together.
pub(super) fn items(content: &[u8]) -> [(&'static str, [u64; 1], &[u8]); 2] {
    let (head, tail) = content.split_at(content.len() / 3);
    [("head", [head.len() as u64], head), ("deep.tail", [tail.len() as u64], tail)]
}

/// How such a chunk lies in its buffer, and what is said of it.
pub(super) fn made(name: Name, bytes: usize, form: Form, metadata: &[u8]) -> Made {
    let content = name.content(bytes);
    let metadata = metadata.to_vec();
    if form != Form::Items {
        return Made { bytes: content, schema: Vec::new(), metadata };
    }
    let items = items(&content);
    let each: Vec<PayloadItem<'_>> =
        items.iter().map(|(path, shape, _)| PayloadItem { path, shape, dtype: Dtype::U8 }).collect();
    let schema = Schema::pack(&each).expect("two short items can be packed");
    let mut whole = vec![0; schema.bytes() as usize];
    for (field, (_, _, bytes)) in schema.fields().iter().zip(&items) {
        whole[field.offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    Made { bytes: whole, schema: schema.encode(), metadata }
}

/// Blocks for so many bytes, and where in their pool those lie.
pub(super) type Lying = (Blocks, Vec<(u64, u64)>);

/// Takes as many blocks as these bytes need, full of `full_of`, if there are as many.
pub(super) fn lie(seat: &mut Seat, bytes: usize, full_of: u8, now: Timestamp) -> Result<Option<Lying>, Violated> {
    let (shape, mut left) = (seat.player().shape(), bytes as u64);
    if left == 0 {
        return Ok(None);
    }
    let Some(blocks) = seat.take(left.div_ceil(shape.bytes()) as usize, full_of, now)? else { return Ok(None) };
    let parts = blocks.indices().iter().flat_map(|&index| shape.parts(index));
    let extents = parts.map_while(|(at, len)| {
        let len = len.min(left);
        left -= len;
        (len > 0).then_some((at, len))
    });
    let extents = extents.collect();
    Ok(Some((blocks, extents)))
}

/// What came is what was put, and whole.
pub(super) fn compare(name: Name, came: &[u8], whole: &[u8]) -> Result<(), Violated> {
    match came.iter().zip(whole).position(|(found, right)| found != right) {
        None if came.len() == whole.len() => Ok(()),
        at => {
            let invariant = crate::oracle::blame(&came[at.unwrap_or(0).min(came.len())..]);
            let words = format!("{name:?}: {} bytes came of {}, and byte {at:?} is another's", came.len(), whole.len());
            // What is missing altogether is nobody else's.
            Err(Violated::new(if came.is_empty() { Invariant::BytesAreTheirOwn } else { invariant }, words))
        }
    }
}
