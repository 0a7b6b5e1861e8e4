//! A listening Unix socket with one owner.
//!
//! Beside the socket lies a lock file. The kernel drops the lock with its owner, however that ends, so a
//! socket left behind by a killed engine is told from a live one's without asking anybody.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use penstock_core::env::{Address, Listener};
use rustix::fs::{FlockOperation, flock};

use super::{SystemStream, tcp};

/// How often the lock file may vanish under us (its last owner is just leaving) before we give up.
const LOCK_TRIES: u32 = 100;

/// A listening Unix socket, removed when dropped.
#[derive(Debug)]
pub(super) struct LocalListener {
    socket: UnixListener,
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl LocalListener {
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            prepare_folder(folder)?;
        }
        let lock_path = path.with_extension("lock");
        let lock = take_lock(&lock_path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        let listener = Self { socket, path: path.to_owned(), lock_path, _lock: lock };
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.socket.set_nonblocking(true)?;
        Ok(listener)
    }
}

/// Makes the folder for this user alone, and refuses one that belongs to another user.
fn prepare_folder(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let owner = fs::metadata(folder)?.uid();
    let ours = rustix::process::geteuid().as_raw();
    if owner == ours || ours == 0 {
        return Ok(());
    }
    let text = format!("{} belongs to user {owner}; set `engine.directory` to a folder of your own", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

fn take_lock(path: &Path) -> io::Result<File> {
    for _ in 0..LOCK_TRIES {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = "another live engine has this name; give this one another name or stop the other";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            other => other?,
        }
        // The last owner may have unlinked the file between our open and our lock: then we hold a
        // lock that nobody else can see.
        match fs::metadata(path) {
            Ok(seen) if seen.ino() == file.metadata()?.ino() => return Ok(file),
            _ => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("cannot take the lock {}", path.display())))
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if penstock_memory::fork::in_child() {
            return; // They are the parent's.
        }
        // Both are ours while we hold the lock; a failure leaves files that the next owner takes over.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A listening socket: of this host, or for others.
#[derive(Debug)]
pub struct SystemListener(Kind);

#[derive(Debug)]
enum Kind {
    Local(LocalListener),
    Network(TcpListener),
}

impl SystemListener {
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        Ok(Self(match address {
            Address::Unix(path) => Kind::Local(LocalListener::bind(path)?),
            Address::Tcp(address) => Kind::Network(tcp::listen(*address)?),
        }))
    }
}

impl AsFd for SystemListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Local(local) => local.as_fd(),
            Kind::Network(network) => network.as_fd(),
        }
    }
}

impl Listener for SystemListener {
    type Stream = SystemStream;

    fn accept(&mut self) -> io::Result<SystemStream> {
        match &self.0 {
            Kind::Local(local) => SystemStream::local(local.socket.accept()?.0),
            Kind::Network(network) => {
                let (stream, remote) = network.accept()?;
                SystemStream::network(stream, remote)
            }
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Kind::Local(_) => None,
            Kind::Network(network) => network.local_addr().ok(),
        }
    }
}
