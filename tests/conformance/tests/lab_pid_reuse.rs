//! A lab: whoever connects, leaves its socket to a child and ends, so that another process gets its id.
#![allow(unsafe_code, reason = "a process that connects and ends while its child has the socket is made by hand")]

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};

use penstock::memory::ProcessWatch;
use penstock::memory::process::{socket_credentials, socket_process};
use penstock_conformance::folder::Folder;
use penstock_conformance::skip;

/// How often somebody else may be quicker to take the id.
const TRIES: u32 = 200;

/// A process of this id, if it can be had before anybody else has it.
fn with_id(pid: u32) -> Option<Child> {
    std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).expect("root may choose the next id");
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep is everywhere");
    if child.id() == pid {
        return Some(child);
    }
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    None
}

/// A process that has connected, has ended, and whose child has its end of the connection until the pipe is closed here.
fn connect_and_leave(path: &std::path::Path, (leave, left): (&std::io::PipeReader, &std::io::PipeWriter)) -> u32 {
    // SAFETY: the child connects, forks, and ends by _exit; it uses no lock that another thread of this process may have.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let stream = UnixStream::connect(path);
        // SAFETY: as above; the grandchild waits for the pipe and ends.
        if stream.is_ok() && unsafe { libc::fork() } == 0 {
            let mut leave = leave;
            // SAFETY: the grandchild's own copy, which would keep the pipe open for ever.
            unsafe { libc::close(left.as_raw_fd()) };
            let _ = leave.read(&mut [0]);
        }
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(0) };
    }
    assert!(pid > 0);
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    pid as u32
}

#[test]
fn a_process_that_got_the_id_of_one_that_connected_is_not_watched_in_its_place() {
    if let Some(reason) = skip::lab_reason() {
        return skip::report("a_process_that_got_the_id_of_one_that_connected_is_not_watched_in_its_place", reason);
    }
    let folder = Folder::fresh();
    let path = folder.path().join("listener.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let (leave, left) = std::io::pipe().unwrap();
    let (pid, mut other) = (0..TRIES)
        .find_map(|_| {
            let pid = connect_and_leave(&path, (&leave, &left));
            let other = with_id(pid);
            if other.is_none() {
                drop(listener.accept().unwrap());
            }
            Some((pid, other?))
        })
        .expect("the id of a process that has ended can be had again");
    let (stream, _) = listener.accept().unwrap();
    let told = socket_credentials(stream.as_fd()).unwrap().1;
    let watched = socket_process(stream.as_fd());
    let by_id = ProcessWatch::of(told);
    let is_misled = !by_id.is_dead();
    let is_dead = match watched {
        Ok(Some(descriptor)) => ProcessWatch::by(told, descriptor).is_dead(),
        Ok(None) => panic!("this kernel does not say who is at the other end of a socket"),
        Err(_) => true,
    };
    other.kill().unwrap();
    other.wait().unwrap();
    drop((left, leave));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(told, pid);
    assert!(is_misled, "by its id alone the other process would be watched");
    assert!(is_dead, "who connected is dead, and is said to live");
}
