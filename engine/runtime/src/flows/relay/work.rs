//! The copies into berths and out of them, made by whoever waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::Env;
use penstock_flows::TransferManager;
use penstock_flows::relay::{GetKey, PutKey};
use penstock_memory::Window;

use super::{FlowError, Inner};

/// The longest sleep until it is looked again what other handles have to copy.
const LOOK: Duration = Duration::from_millis(10);
/// How long one that waits steps back while another thread copies.
const BACK: Duration = Duration::from_micros(50);

/// What is still to be copied, by operation.
///
/// Whoever copies holds the lock of the operation, so a handle that is dropped meanwhile waits until nobody is at its berths.
#[derive(Default)]
pub(super) struct Work {
    puts: Mutex<BTreeMap<PutKey, Arc<Mutex<Rest>>>>,
    gets: Mutex<BTreeMap<GetKey, Arc<Mutex<Vec<u8>>>>>,
}

/// What is still to be written of a put, among what was.
type Rest = Content<'static>;

/// Bytes of a put.
pub(super) enum Content<'a> {
    Flat(&'a [u8]),
    Owned(Vec<u8>),
    /// Pieces with the places where they begin, in their order; between them there are zeros.
    Pieces {
        pieces: Vec<(u64, &'a [u8])>,
        bytes: u64,
    },
}

impl Content<'_> {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Flat(bytes) => bytes.len() as u64,
            Self::Owned(bytes) => bytes.len() as u64,
            Self::Pieces { bytes, .. } => *bytes,
        }
    }

    /// Writes the bytes from `from` on, `len` of them, to a place of a window.
    fn write(&self, from: u64, window: &Window, offset: u64, len: u64) {
        let fits = "a berth lies in its pool, and a part in its content";
        match self {
            Self::Flat(bytes) => window.write_from(offset, &bytes[from as usize..(from + len) as usize]).expect(fits),
            Self::Owned(bytes) => window.write_from(offset, &bytes[from as usize..(from + len) as usize]).expect(fits),
            Self::Pieces { pieces, .. } => {
                let (mut at, end) = (from, from + len);
                for (begin, piece) in pieces {
                    let piece_end = begin + piece.len() as u64;
                    if piece_end <= at || *begin >= end {
                        continue;
                    }
                    if *begin > at {
                        window.fill(offset + (at - from), begin - at, 0).expect(fits);
                        at = *begin;
                    }
                    let until = piece_end.min(end);
                    let bytes = &piece[(at - begin) as usize..(until - begin) as usize];
                    window.write_from(offset + (at - from), bytes).expect(fits);
                    at = until;
                }
                if at < end {
                    window.fill(offset + (at - from), end - at, 0).expect(fits);
                }
            }
        }
    }

    /// The same, to be kept.
    fn into_owned(self) -> Content<'static> {
        match self {
            Self::Flat(bytes) => Content::Owned(bytes.to_vec()),
            Self::Owned(bytes) => Content::Owned(bytes),
            Self::Pieces { pieces, bytes } => {
                let mut flat = vec![0; bytes as usize];
                for (begin, piece) in pieces {
                    flat[begin as usize..begin as usize + piece.len()].copy_from_slice(piece);
                }
                Content::Owned(flat)
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Env> Inner<E> {
    /// Writes what can be written now, and keeps the rest for later.
    pub(super) fn begin_put(&self, put: PutKey, content: Content<'_>) {
        self.write_now(put, &content);
        if !self.engine.shared.look_at_manager(|manager| manager.relays().is_written(put)) {
            lock(&self.work.puts).insert(put, Arc::new(Mutex::new(content.into_owned())));
        }
    }

    /// What a get brings goes into memory of its own.
    pub(super) fn begin_get(&self, get: GetKey, room: Vec<u8>) {
        lock(&self.work.gets).insert(get, Arc::new(Mutex::new(room)));
    }

    /// Whether anything was to be written.
    fn write_now(&self, put: PutKey, content: &Content<'_>) -> bool {
        let shared = &self.engine.shared;
        let mut has_written = false;
        loop {
            let parts = shared.change_manager(|manager| manager.relays_mut().unwritten(put));
            if parts.is_empty() {
                return has_written;
            }
            for part in parts {
                // Nothing of an application's own memory is written here.
                let Some(place) = part.place else { return has_written };
                content.write(part.from, self.puts.window(), place.offset, place.len);
                // It may have ended meanwhile: its berth is free by that.
                let _ = shared.call_manager(|manager, now| manager.relays_mut().filled(put, part.part, now));
                has_written = true;
            }
        }
    }

    fn copy_out(&self, get: GetKey, room: &mut Vec<u8>) -> bool {
        let shared = &self.engine.shared;
        let pieces = shared.change_manager(|manager| manager.relays_mut().pieces(get));
        for piece in &pieces {
            let end = piece.from + piece.place.len;
            if (room.len() as u64) < end {
                room.resize(end as usize, 0); // As many are reserved as there are in all.
            }
            let to = &mut room[piece.from as usize..end as usize];
            self.gets.window().read_into(piece.place.offset, to).expect("a berth lies in its pool");
            let _ = shared.call_manager(|manager, now| manager.relays_mut().taken(get, piece.number, now));
        }
        !pieces.is_empty()
    }

    /// Copies whatever can be copied now and nobody else is copying. Answers whether anything could.
    pub(super) fn bring_forward(&self) -> bool {
        let mut has_copied = false;
        let puts: Vec<_> = lock(&self.work.puts).iter().map(|(key, of)| (*key, Arc::clone(of))).collect();
        for (put, content) in puts {
            let Ok(content) = content.try_lock() else { continue };
            has_copied |= self.write_now(put, &content);
            if self.engine.shared.look_at_manager(|manager| manager.relays().is_written(put)) {
                lock(&self.work.puts).remove(&put);
            }
        }
        let gets: Vec<_> = lock(&self.work.gets).iter().map(|(key, of)| (*key, Arc::clone(of))).collect();
        for (get, room) in gets {
            let Ok(mut room) = room.try_lock() else { continue };
            has_copied |= self.copy_out(get, &mut room);
        }
        has_copied
    }

    /// Waits until the transfer manager has what is looked for, and copies meanwhile.
    pub(super) fn wait<R>(
        &self,
        within: Duration,
        look: impl Fn(&TransferManager) -> Option<R>,
    ) -> Result<R, FlowError> {
        let shared = &self.engine.shared;
        let until = shared.env.now() + within;
        loop {
            let has_copied = self.bring_forward();
            if let Some(found) = shared.look_at_manager(&look) {
                return Ok(found);
            }
            let left = until.since(shared.env.now());
            if left.is_zero() {
                return Err(FlowError::Nothing(within));
            }
            let puts: Vec<PutKey> = lock(&self.work.puts).keys().copied().collect();
            let gets: Vec<GetKey> = lock(&self.work.gets).keys().copied().collect();
            let has_work = |manager: &TransferManager| {
                let relays = manager.relays();
                puts.iter().any(|put| relays.is_to_fill(*put)) || gets.iter().any(|get| relays.has_pieces(*get))
            };
            if !has_copied && shared.look_at_manager(has_work) {
                shared.env.pause(BACK); // Another thread is at it.
            }
            self.engine.wait_for_manager(left.min(LOOK), |manager| {
                (look(manager).is_some() || has_work(manager)).then_some(())
            });
        }
    }

    /// Nobody asks for a put any more.
    pub(super) fn let_go_put(&self, put: PutKey) {
        let content = lock(&self.work.puts).remove(&put);
        let copying = content.as_ref().map(|content| lock(content));
        self.engine.shared.call_manager(|manager, now| manager.relays_mut().let_go_put(put, now));
        drop(copying);
    }

    /// Nobody asks for a get any more.
    pub(super) fn let_go_get(&self, get: GetKey) {
        let room = lock(&self.work.gets).remove(&get);
        let copying = room.as_ref().map(|room| lock(room));
        self.engine.shared.call_manager(|manager, now| manager.relays_mut().let_go_get(get, now));
        drop(copying);
    }

    /// The bytes of a get that has ended well.
    pub(super) fn take_room(&self, get: GetKey) -> Option<Vec<u8>> {
        let room = lock(&self.work.gets).remove(&get)?;
        let bytes = std::mem::take(&mut *lock(&room));
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use penstock_memory::{Pool, PoolSpec};

    use super::*;

    #[test]
    fn any_part_of_pieces_is_written_with_zeros_between_them() {
        let pieces = vec![(0, &b"abc"[..]), (8, b""), (8, b"defg"), (16, b"h")];
        let whole = b"abc\0\0\0\0\0defg\0\0\0\0h\0\0\0";
        let content = Content::Pieces { pieces: pieces.clone(), bytes: 20 };
        let pool = Pool::create(PoolSpec::host(4096)).unwrap();
        for from in 0..20_u64 {
            for len in 0..=20 - from {
                pool.window().fill(0, 64, 0xee).unwrap();
                content.write(from, pool.window(), 5, len);
                let mut found = vec![0; 64];
                pool.window().read_into(0, &mut found).unwrap();
                let expected = [&[0xee; 5][..], &whole[from as usize..(from + len) as usize]].concat();
                assert_eq!(found[..expected.len()], expected, "{len} bytes from {from} on");
                assert!(found[expected.len()..].iter().all(|byte| *byte == 0xee));
            }
        }
        let Content::Owned(flat) = content.into_owned() else { panic!("it is owned") };
        assert_eq!(flat, whole);
    }
}
