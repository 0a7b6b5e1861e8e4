//! Host memory that the card may reach.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CString, c_uint, c_void};
use std::fs::{self, File};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::card::{Client, Range, State, client};
use crate::context::{check_current, current_ordinal};
use crate::memory::{release_addresses, wait_for_all};
use crate::plan::plan;
use crate::protocol::{Kind, Mapping, memory_file};
use crate::start::{answer, run};
use crate::status;

/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const READ_ONLY: c_uint = 8;

/// How shared memory is called that has no file in a folder.
const NO_FILES: [&str; 3] = ["/memfd:", "/SYSV", "/anon_hugepage"];

/// A mapping of this process.
struct Line {
    start: u64,
    end: u64,
    rights: String,
    offset: u64,
    inode: u64,
    path: String,
}

impl Line {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (range, rights, offset, _) = (words.next()?, words.next()?.to_owned(), words.next()?, words.next()?);
        let (inode, path) = (words.next()?.parse().ok()?, words.next().unwrap_or_default().to_owned());
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = range.split_once('-')?;
        Some(Self { start: number(start)?, end: number(end)?, rights, offset: number(offset)?, inode, path })
    }

    fn all() -> Vec<Self> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        maps.lines().filter_map(Self::read).collect()
    }

    /// Whether it shares pages with a file on a disk.
    fn is_of_disk(&self) -> bool {
        let is_file = self.rights.ends_with('s') && !NO_FILES.iter().any(|name| self.path.starts_with(name));
        // The file may have no name any more.
        let folder = Path::new(&self.path).parent().and_then(|folder| CString::new(folder.as_os_str().as_bytes()).ok());
        let Some(folder) = folder.filter(|_| is_file) else { return false };
        // SAFETY: all zeros are such a structure, which is written; a C string.
        let kind = unsafe {
            let mut said: libc::statfs = std::mem::zeroed();
            if libc::statfs(folder.as_ptr(), &raw mut said) != 0 {
                return false;
            }
            said.f_type
        };
        ![libc::TMPFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&kind)
    }
}

/// Whether all of a range is mapped with rights that suffice, and of what the card may reach.
fn check_mapped(lines: &[Line], address: u64, bytes: u64, is_read_only: bool) -> Result<(), u32> {
    let wanted = if is_read_only { "r" } else { "rw" };
    let end = address.checked_add(bytes).ok_or(status::INVALID_VALUE)?;
    let mut at = address;
    for line in lines.iter().skip_while(|line| line.end <= address) {
        if line.start > at || !line.rights.starts_with(wanted) || line.is_of_disk() {
            break;
        }
        at = line.end;
        if at >= end {
            return Ok(());
        }
    }
    Err(status::INVALID_VALUE)
}

/// The file that a range of this process is shared from, as this process has it open, and the offset in it; none: it is of no such file, and
/// the card asks this process.
fn file_of(lines: &[Line], address: u64, bytes: u64) -> Option<(OwnedFd, u64)> {
    let has_all = |line: &&Line| line.start <= address && address + bytes <= line.end;
    let line = lines.iter().find(has_all).filter(|line| line.rights.ends_with('s') && line.inode != 0)?;
    let (inode, offset) = (line.inode, line.offset + (address - line.start));
    let numbers =
        fs::read_dir("/proc/self/fd").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |number: &RawFd| fs::metadata(format!("/proc/self/fd/{number}")).is_ok_and(|file| file.ino() == inode);
    let number = numbers.into_iter().find(is_it)?;
    // SAFETY: the copy is owned by nobody else.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: as above.
    (copy >= 0).then(|| (unsafe { OwnedFd::from_raw_fd(copy) }, offset))
}

/// # Safety
/// So many bytes are mapped there, for as long as they are registered.
pub(crate) unsafe extern "C" fn cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint) -> u32 {
    let registered = check_current().and_then(|()| {
        if flags & !0xf != 0 {
            return Err(status::INVALID_VALUE);
        }
        register(address as u64, bytes as u64, 0, flags & READ_ONLY != 0)
    });
    registered.err().unwrap_or(status::SUCCESS)
}

/// The number is that of a file that was made for it, if one was.
fn register(address: u64, bytes: u64, number: u64, is_read_only: bool) -> Result<(), u32> {
    let client = client()?;
    if bytes == 0 || address == 0 {
        return Err(status::INVALID_VALUE);
    }
    let mut state = client.lock();
    let meets = |(&base, range): (&u64, &Range)| base < address + bytes && address < base + range.bytes;
    if state.device.iter().any(meets) || state.host.iter().any(|range| meets(range) && range.1.number != 0) {
        return Err(status::INVALID_VALUE);
    }
    if state.host.iter().any(meets) {
        return Err(status::HOST_MEMORY_ALREADY_REGISTERED);
    }
    let lines = Line::all();
    check_mapped(&lines, address, bytes, is_read_only)?;
    let pinned: u64 = state.host.values().map(|range| range.bytes).sum();
    if pinned + bytes > plan().pinned {
        return Err(status::OUT_OF_MEMORY);
    }
    let file = file_of(&lines, address, bytes);
    let offset = file.as_ref().map_or(0, |(_, offset)| *offset);
    let numbers = [address, bytes, offset, 0];
    client.tell(Kind::Pin, numbers, file.as_ref().map(|(file, _)| file))?;
    let id = state.fresh_id();
    state.host.insert(
        address,
        Range {
            bytes,
            id,
            number,
            rights: if is_read_only { 1 } else { 3 },
            handle: None,
            ordinal: current_ordinal(),
            file: None,
            sync_memops: false,
        },
    );
    Ok(())
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> u32 {
    let made = check_current().and_then(|()| {
        if bytes == 0 || flags & !0x7 != 0 {
            return Err(status::INVALID_VALUE);
        }
        let file = memory_file(bytes).map_err(|_| status::OUT_OF_MEMORY)?;
        let number = File::from(file.try_clone().map_err(|_| status::UNKNOWN)?).metadata();
        let mapping = Mapping::new(file.as_fd(), 0, bytes).map_err(|_| status::OUT_OF_MEMORY)?;
        register(mapping.as_ptr() as u64, bytes as u64, number.map_err(|_| status::UNKNOWN)?.ino(), false)?;
        // Unmapped when it is freed.
        Ok(std::mem::ManuallyDrop::new(mapping).as_ptr().cast())
    });
    // SAFETY: as above.
    unsafe { answer(place, made) }
}

/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe extern "C" fn cuMemFreeHost(address: *mut c_void) -> u32 {
    run(|| {
        let client = client()?;
        let bytes = match client.lock().host.get(&(address as u64)) {
            Some(range) if range.number != 0 => range.bytes,
            _ => return Err(status::INVALID_VALUE),
        };
        unregister(client, address as u64)?;
        release_addresses(address as u64, bytes);
        Ok(())
    })
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuMemHostGetDevicePointer(place: *mut u64, address: *mut c_void, flags: c_uint) -> u32 {
    let found = check_current().and_then(|()| {
        let state = client()?.lock();
        let is_known = flags == 0 && State::find(&state.host, address as u64, 1).is_some();
        if is_known { Ok(address as u64) } else { Err(status::INVALID_VALUE) }
    });
    // SAFETY: as above.
    unsafe { answer(place, found) }
}

/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> u32 {
    run(|| {
        let (client, address) = (client()?, address as u64);
        let is_inside = {
            let state = client.lock();
            let is_whole = state.host.get(&address).is_some_and(|range| range.number == 0);
            (!is_whole).then(|| State::find(&state.host, address, 1).is_some())
        };
        match is_inside {
            Some(true) => return Err(status::INVALID_VALUE),
            Some(false) => return Err(status::HOST_MEMORY_NOT_REGISTERED),
            None => {}
        }
        unregister(client, address)
    })
}

fn unregister(client: &Client, address: u64) -> Result<(), u32> {
    wait_for_all(client);
    client.lock().host.remove(&address);
    client.tell(Kind::Unpin, [address, 0, 0, 0], None)
}
