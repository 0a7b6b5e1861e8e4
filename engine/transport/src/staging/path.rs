//! How a peer is told of a device's memory that is reached through slots.
//!
//! ```text
//! "staged" version u8 | bytes u16 | why nothing else reaches it | for each direction that peers have a right to:
//!     direction u8 | has a descriptor u8 | path bytes u16 | region u32 | generation u32 | base u64 | bytes u64 | the slots' own path
//! ```

use penstock_core::plan::RegionKey;
use penstock_core::{Direction, Generation, RegionId, Rights};
use penstock_memory::Region;

use crate::link::{AdvertisedRegion, Exported, ImportError};

const MARK: &[u8] = b"staged\x01";
const HEAD_BYTES: usize = 28;
const WHY_BYTES_MAX: usize = 300;

/// What a path says of slots.
pub(super) struct ToldSlots<'a> {
    pub(super) direction: Direction,
    pub(super) id: RegionId,
    pub(super) generation: Generation,
    base: u64,
    bytes: u64,
    path: &'a [u8],
}

impl<'a> ToldSlots<'a> {
    /// As a region; its epoch and rights are for who asks to say.
    pub(super) fn advertised(&self) -> AdvertisedRegion<'a> {
        let Self { id, generation, base, bytes, path, .. } = *self;
        AdvertisedRegion { epoch: 0, id, generation, base, bytes, rights: Rights::NONE, access_blob: path }
    }
}

pub(super) struct StagedPath<'a> {
    /// Why the transport does not reach it itself, in words.
    pub(super) not_reached: std::borrow::Cow<'a, str>,
    slots: &'a [u8],
}

pub(super) fn parse(path: &[u8]) -> Option<StagedPath<'_>> {
    let (bytes, rest) = path.strip_prefix(MARK)?.split_first_chunk()?;
    let (not_reached, slots) = rest.split_at_checked(u16::from_le_bytes(*bytes).into())?;
    Some(StagedPath { not_reached: String::from_utf8_lossy(not_reached), slots })
}

impl<'a> StagedPath<'a> {
    /// The slots, and whether a descriptor came for each.
    pub(super) fn slots(self) -> impl Iterator<Item = Result<(ToldSlots<'a>, bool), ImportError>> {
        let mut rest = self.slots;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let told = take(&mut rest).ok_or(ImportError::Malformed("its path to slots ends early, or is none"));
            if told.is_err() {
                rest = &[];
            }
            Some(told)
        })
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<(ToldSlots<'a>, bool)> {
    let (head, behind) = rest.split_first_chunk::<HEAD_BYTES>()?;
    let number =
        |at: usize, len: usize| (0..len).rev().fold(0, |number, byte| number << 8 | u64::from(head[at + byte]));
    let direction = match head[0] {
        0 => Direction::Write,
        1 => Direction::Read,
        _ => return None,
    };
    let has_fd = match head[1] {
        0 => false,
        1 => true,
        _ => return None,
    };
    let (path, behind) = behind.split_at_checked(number(2, 2) as usize)?;
    *rest = behind;
    let (id, generation) = (RegionId(number(4, 4) as u32), Generation(number(8, 4) as u32));
    Some((ToldSlots { direction, id, generation, base: number(12, 8), bytes: number(20, 8), path }, has_fd))
}

/// The path over these slots.
pub(super) fn encode(
    not_reached: &str,
    slots: Vec<(Direction, RegionKey, &std::sync::Arc<Region>, Exported)>,
) -> Exported {
    let not_reached = &not_reached[..not_reached.floor_char_boundary(WHY_BYTES_MAX)];
    let (mut path, mut fds) = (MARK.to_vec(), Vec::new());
    path.extend((not_reached.len() as u16).to_le_bytes());
    path.extend(not_reached.as_bytes());
    for (direction, key, region, exported) in slots {
        path.extend([direction as u8, u8::from(exported.fd.is_some())]);
        path.extend((exported.access_blob.len() as u16).to_le_bytes());
        path.extend(key.region.0.to_le_bytes());
        path.extend(key.generation.0.to_le_bytes());
        path.extend(region.base_address().to_le_bytes());
        path.extend(region.bytes().to_le_bytes());
        path.extend(exported.access_blob);
        fds.extend(exported.fd);
    }
    let mut fds = fds.into_iter();
    Exported { access_blob: path, fd: fds.next(), extra_fds: fds.collect() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_slots_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let path = [MARK, &[0, 0], &bytes].concat();
            let told: Vec<_> = parse(&path).unwrap().slots().collect();
            prop_assert!(told.len() <= bytes.len());
            let _ = parse(&[MARK, &bytes].concat());
            prop_assert!(told.iter().rev().skip(1).all(Result::is_ok), "nothing follows an error");
        }
    }
}
