//! What streams have to do, and how it is done.

use std::collections::VecDeque;
use std::ffi::c_void;

use super::{Done, State};

pub(super) type HostFunction = unsafe extern "C" fn(*mut c_void);

pub(super) struct Stream {
    pub(super) device: u32,
    pub(super) work: VecDeque<Work>,
    /// It is gone when it has nothing to do.
    pub(super) is_destroyed: bool,
}

pub(super) enum Work {
    /// One flush of them: the device takes whichever it likes next.
    Copies(Vec<Copy>),
    Word {
        to: u64,
        value: u64,
    },
    Call {
        function: HostFunction,
        argument: usize,
    },
}

/// What of a copy is left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: usize,
}

impl State {
    /// Does a piece, and says which function is to be called, outside of this.
    pub(super) fn work(
        &mut self,
        number: u32,
        choice: usize,
        bytes_max: usize,
    ) -> Option<(Done, Option<(HostFunction, usize)>)> {
        let stream = self.streams.get_mut(&number)?;
        let done = match stream.work.front_mut()? {
            Work::Copies(copies) => {
                let place = choice % copies.len();
                let copy = &mut copies[place];
                let piece = Copy { bytes: copy.bytes.min(bytes_max.max(1)), ..*copy };
                let len = piece.bytes as u64;
                (copy.to, copy.from, copy.bytes) = (copy.to + len, copy.from + len, copy.bytes - piece.bytes);
                if copy.bytes == 0 {
                    copies.swap_remove(place);
                }
                if copies.is_empty() {
                    stream.work.pop_front();
                }
                self.copy(number, piece);
                (Done::Bytes(piece.bytes), None)
            }
            &mut Work::Word { to, value } => {
                stream.work.pop_front();
                self.write_word(number, to, value);
                (Done::Word(value), None)
            }
            &mut Work::Call { function, argument } => {
                stream.work.pop_front();
                (Done::Call, Some((function, argument)))
            }
        };
        self.streams.retain(|_, stream| !stream.is_destroyed || !stream.work.is_empty());
        Some(done)
    }

    fn copy(&mut self, stream: u32, Copy { to, from, bytes }: Copy) {
        let sides = (self.is_device(from, bytes), self.is_device(to, bytes));
        let (Some(from_device), Some(to_device)) = sides else {
            let words = format!("stream {stream} copies {bytes} B between memories of which one is gone");
            self.wrong.get_or_insert(words);
            return;
        };
        let mut passing = vec![0; bytes];
        let has_read = if from_device {
            self.device_memory(from, bytes).map(|memory| passing.copy_from_slice(memory)).is_some()
        } else {
            // SAFETY: host memory that is registered is mapped, and its registration ends before the mapping does.
            unsafe { (from as *const u8).copy_to_nonoverlapping(passing.as_mut_ptr(), bytes) };
            true
        };
        let has_written = if to_device {
            self.device_memory(to, bytes).map(|memory| memory.copy_from_slice(&passing)).is_some()
        } else {
            // SAFETY: as above.
            unsafe { (to as *mut u8).copy_from_nonoverlapping(passing.as_ptr(), bytes) };
            true
        };
        debug_assert!(has_read && has_written, "both sides were looked for");
        let moved = match (from_device, to_device) {
            (false, _) => &mut self.bytes.to_device,
            (true, false) => &mut self.bytes.to_host,
            (true, true) => &mut self.bytes.within,
        };
        *moved += bytes as u64;
    }

    fn write_word(&mut self, stream: u32, to: u64, value: u64) {
        if self.is_device(to, 8) != Some(false) {
            let words = format!("stream {stream} writes a word to memory that is gone");
            self.wrong.get_or_insert(words);
            return;
        }
        // SAFETY: as of copies; whoever gave the address gave eight bytes on a boundary of eight.
        unsafe { (to as *mut u64).write_volatile(value) };
    }
}
