//! Registered memory, and what is refused of it.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;

use std::sync::Arc;

use penstock_memory::{DeviceId, DeviceWindow, HostMemory};
use penstock_verbs::adapter::{AccessFlags, Adapter, AdapterError, DeviceReach, Opcode, Wc, WcStatus};
use penstock_verbs::device::{self, Options};

use crate::ends::{ALL, POSTINGS, Pair, are_soft, near, near_device, open, request, skipped, wire};

#[test]
fn the_end_of_a_registration_is_refused_on_both_sides() {
    let Some(_wire) = wire("the_end_of_a_registration_is_refused_on_both_sides") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let sge = pair.a.sge(0, 64);
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        pair.b.registration = None;
        pair.a.post(&[request(1, write, 1)], &[sge]);
        pair.a.expect(1, Wc::Failed(WcStatus::Refused));
        pair.b.registration =
            Some(pair.b.adapter.register(pair.b.memory.window(), ALL).expect("it is registered again"));
        pair.repair();
        pair.works();

        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        pair.a.registration = None;
        pair.a.post(&[request(2, write, 1)], &[sge]);
        let done = pair.a.next();
        // Soft devices say of what they find wrong themselves that it was flushed.
        let said = [WcStatus::Memory, WcStatus::Flushed].map(Wc::Failed);
        assert!(done.id == 2 && said.contains(&done.result), "{done:?}");
    }
}

#[test]
fn what_is_not_allowed_is_refused() {
    let Some(_wire) = wire("what_is_not_allowed_is_refused") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let sge = pair.a.sge(0, 64);
    let only =
        |access: AccessFlags, pair: &Pair| pair.b.adapter.register(pair.b.memory.window(), access).expect("registered");
    let read_only = only(AccessFlags { read: true, ..AccessFlags::default() }, &pair);
    let write = Opcode::Write { address: pair.b.address(0), key: read_only.remote_key() };
    pair.a.post(&[request(1, write, 1)], &[sge]);
    pair.a.expect(1, Wc::Failed(WcStatus::Refused));
    pair.repair();
    let read = Opcode::Read { address: pair.b.address(0), key: read_only.remote_key() };
    pair.a.post(&[request(2, read, 1)], &[sge]);
    pair.a.expect(2, Wc::Send);
    let write_only = only(AccessFlags { write: true, ..AccessFlags::default() }, &pair);
    let read = Opcode::Read { address: pair.b.address(0), key: write_only.remote_key() };
    pair.a.post(&[request(3, read, 1)], &[sge]);
    pair.a.expect(3, Wc::Failed(WcStatus::Refused));
}

#[test]
fn memory_that_may_not_be_written_is_registered_to_be_read_only() {
    let Some(_wire) = wire("memory_that_may_not_be_written_is_registered_to_be_read_only") else { return };
    let adapter = open(&near(), POSTINGS[0]);
    let memory = HostMemory::from_vec(vec![1; 4096]).expect("memory");
    let window = memory.window().read_only();
    let registration =
        adapter.register(&window, AccessFlags { read: true, ..AccessFlags::default() }).expect("to be read");
    println!("registered: {}", registration.manner());
    let error = adapter.register(&window, ALL).err().expect("not to be written");
    assert!(matches!(&error, AdapterError::Refused { call: "ibv_reg_mr", .. }), "{error}");
}

#[test]
fn paging_on_demand_is_had_where_the_card_offers_it_all() {
    let Some(_wire) = wire("paging_on_demand_is_had_where_the_card_offers_it_all") else { return };
    let options = Options { wanted: vec![near().parse().expect("a name")], is_on_demand: true, ..Options::default() };
    let found = device::adapters(&options).expect("a card");
    let adapter = &found.adapters[0];
    let memory = HostMemory::from_vec(vec![1; 1 << 20]).expect("memory");
    let registration = adapter.register(memory.window(), ALL).expect("it is registered, one way or the other");
    println!("asked to page on demand: {}; {}", registration.manner(), adapter.describe());
    assert_eq!(registration.manner().starts_with("paged in on demand"), adapter.is_on_demand());
}

/// Memory of this process as a dma-buf, as another device would share its own.
fn shared(len: usize) -> Option<OwnedFd> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    // _IOW('u', 0x42, struct udmabuf_create)
    const CREATE: libc::Ioctl = 0x4018_7542;
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/udmabuf").ok()?;
    // SAFETY: a C string and flags; what comes back is owned below.
    let memory = unsafe { libc::memfd_create(c"shared".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(memory >= 0, "a memfd");
    // SAFETY: just made and nobody else's.
    let memory = unsafe { OwnedFd::from_raw_fd(memory) };
    // SAFETY: a descriptor of ours.
    let sealed = unsafe {
        libc::ftruncate(memory.as_raw_fd(), len as i64) == 0
            && libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
    };
    assert!(sealed, "it is sealed");
    let create = Create { memfd: memory.as_raw_fd() as u32, flags: 0, offset: 0, size: len as u64 };
    // SAFETY: the structure that this request takes.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, &raw const create) };
    assert!(made >= 0, "a dma-buf: {}", std::io::Error::last_os_error());
    // SAFETY: just made and nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(made) })
}

#[test]
fn a_dma_buf_is_registered_or_refused_with_what_to_do_instead() {
    let test = "a_dma_buf_is_registered_or_refused_with_what_to_do_instead";
    let Some(_wire) = wire(test) else { return };
    let adapter = open(&near(), POSTINGS[0]);
    let Some(shared) = shared(1 << 20) else {
        assert!(!are_soft(), "the guest's kernel makes dma-bufs");
        // Nobody can make one to try it with: told as skipped, as everything is that could not be tried.
        drop(skipped(test, "needs path:/dev/udmabuf (`modprobe udmabuf`, as root)"));
        return;
    };
    // SAFETY: nobody but the adapter touches it, which has the descriptor.
    let memory = unsafe { DeviceWindow::new(DeviceId([7; 16]), (1 << 32, 1 << 20), true, Arc::new(())) };
    let by = DeviceReach::DmaBuf { descriptor: shared.as_fd(), offset: 0 };
    match adapter.register_device(&memory, by, ALL) {
        Ok(registration) => assert_eq!(registration.manner(), "a dma-buf"),
        Err(error) => {
            println!("{error}");
            assert!(matches!(error, AdapterError::NotHere { .. }), "{error:?}");
            assert!(error.to_string().contains("its bytes go through host memory"), "{error}");
        }
    }
}

/// Tells the test below that it is the user without rights, in a process of its own.
const AS_A_USER: &str = "PENSTOCK_LAB_AS_A_USER";

#[test]
fn a_user_who_may_not_lock_memory_is_told_what_to_raise() {
    let test = "a_user_who_may_not_lock_memory_is_told_what_to_raise";
    let Some(_wire) = wire(test) else { return };
    if std::env::var_os(AS_A_USER).is_some() {
        let adapter = open(&near(), POSTINGS[0]);
        let memory = HostMemory::from_vec(vec![1; 8 << 20]).expect("memory");
        let error = adapter.register(memory.window(), ALL).err().expect("more than may be locked").to_string();
        let call = format!("ibv_reg_mr on {}/", near_device());
        assert!(error.contains(&call) && error.contains("ulimit -l"), "{error}");
        println!("{error}");
        return;
    }
    const NOBODY: u32 = 65534;
    let this = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(this);
    command.args(["--exact", &format!("memory::{test}"), "--nocapture"]).env(AS_A_USER, "1").uid(NOBODY).gid(NOBODY);
    // SAFETY: only a system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            // Enough for the queues of an adapter, not for eight megabytes.
            let limit = libc::rlimit { rlim_cur: 4 << 20, rlim_max: 4 << 20 };
            match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let ran = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("ulimit -l"), "{said}{}", String::from_utf8_lossy(&ran.stderr));
}
