//! A listening Unix socket with one owner.
//!
//! Beside the socket lies a lock file. The kernel drops the lock with its owner, however that ends, so a
//! socket left behind by a killed engine is told from a live one's without asking anybody.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use penstock_core::env::{Address, Listener};
use penstock_memory::fork::Maker;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::{SystemStream, tcp};

/// How often the lock file may vanish under us (its last owner is just leaving) before we give up.
const LOCK_TRIES: u32 = 100;
/// The system's own bound of connections that wait.
const BACKLOG: i32 = -1;

/// A listening Unix socket, removed when dropped.
#[derive(Debug)]
pub(super) struct LocalListener {
    socket: UnixListener,
    folder: Folder,
    path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
    maker: Maker,
}

impl LocalListener {
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let lock_path = path.with_extension("lock");
        let folder = Folder::open(path.parent().filter(|parent| !parent.as_os_str().is_empty()))?;
        let lock = folder.take_lock(&lock_path)?;
        folder.remove(path)?;
        let socket = bind_for_one_user(path)?;
        let maker = Maker::this_process();
        let listener = Self { socket: socket.into(), folder, path: path.to_owned(), lock_path, _lock: lock, maker };
        listener.folder.check_has(path)?;
        Ok(listener)
    }
}

/// The folder of the sockets, which nobody else can write to: held open, so that what is checked is what is used.
#[derive(Debug)]
struct Folder(OwnedFd);

impl Folder {
    /// Makes the folder for this user alone, if there is none. One that is a link, belongs to another user or can be written by others
    /// is refused: whoever can write to it could lead every file that is made there elsewhere, also one of root's.
    fn open(path: Option<&Path>) -> io::Result<Self> {
        let path = path.unwrap_or(Path::new("."));
        let refused = |why: &str| {
            let text = format!("{} {why}", path.display());
            io::Error::new(io::ErrorKind::PermissionDenied, text)
        };
        match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let folder = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) if path.is_symlink() => {
                return Err(refused("is a symbolic link; set `engine.directory` to the folder itself"));
            }
            other => other?,
        };
        let found = fstat(&folder)?;
        let ours = rustix::process::geteuid().as_raw();
        if found.st_uid != ours {
            let why = format!(
                "belongs to user {}, and this engine runs as user {ours}; set `engine.directory` to a folder of your own",
                found.st_uid
            );
            return Err(refused(&why));
        }
        if found.st_mode & 0o022 != 0 {
            let why = format!(
                "can be written by other users (mode {:04o}); take that away (`chmod go-w`), or set `engine.directory` to another folder",
                found.st_mode & 0o7777
            );
            return Err(refused(&why));
        }
        Ok(Self(folder))
    }

    fn take_lock(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::WRONLY;
        for _ in 0..LOCK_TRIES {
            let file = match openat(&self.0, name_of(path), flags, Mode::from_raw_mode(0o600)) {
                Err(Errno::LOOP) => {
                    let text = format!("{} is a symbolic link; remove it", path.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
                }
                other => File::from(other?),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let text = "another live engine has this name; give this one another name or stop the other";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
                }
                other => other?,
            }
            // The last owner may have unlinked the file between our open and our lock: then we hold a
            // lock that nobody else can see.
            match self.look_at(path) {
                Ok(seen) if seen.st_ino == file.metadata()?.ino() => return Ok(file),
                _ => {}
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, format!("cannot take the lock {}", path.display())))
    }

    fn look_at(&self, path: &Path) -> io::Result<Stat> {
        Ok(statat(&self.0, name_of(path), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match unlinkat(&self.0, name_of(path), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    /// A socket is bound by its path: whether that still leads into this folder.
    fn check_has(&self, path: &Path) -> io::Result<()> {
        let by_path = fs::symlink_metadata(path)?;
        match self.look_at(path) {
            Ok(found) if (found.st_dev, found.st_ino) == (by_path.dev(), by_path.ino()) => Ok(()),
            _ => {
                let text = format!("the folder of {} was replaced while the engine started", path.display());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
        }
    }
}

/// The last part of a path whose folder was opened.
fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}

/// A socket that only this user can connect to from its first moment on: its file gets its mode from the socket, not by its path
/// afterwards.
fn bind_for_one_user(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        if self.maker.is_ancestor() {
            return; // They are the parent's.
        }
        // Both are ours while we hold the lock; a failure leaves files that the next owner takes over.
        let _ = self.folder.remove(&self.path);
        let _ = self.folder.remove(&self.lock_path);
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A folder of this test, removed when dropped.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("penstock-listen-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Self(path)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn refusal(&self) -> String {
            let refused = LocalListener::bind(&self.at("engine.sock")).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
            refused.to_string()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_socket_is_for_its_user_alone_and_goes_with_its_engine() {
        let place = Place::new("alone");
        let path = place.at("folder/engine.sock");
        let listener = LocalListener::bind(&path).unwrap();
        assert_eq!((mode(&place.at("folder")), mode(&path)), (0o700, 0o600));
        let twice = LocalListener::bind(&path).unwrap_err();
        assert!(twice.to_string().contains("another live engine has this name"), "{twice}");
        drop(listener);
        assert_eq!(fs::read_dir(place.at("folder")).unwrap().count(), 0);
        // What a killed engine has left behind is taken over.
        let left = UnixListener::bind(&path).unwrap();
        drop(left);
        LocalListener::bind(&path).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let place = Place::new("lock");
        let target = place.at("somewhere-else");
        symlink(&target, place.at("engine.lock")).unwrap();
        assert!(place.refusal().contains("engine.lock is a symbolic link"));
        assert!(!target.exists(), "a file was made where the link leads");
    }

    #[test]
    fn a_link_in_place_of_the_socket_is_removed_and_what_it_leads_to_is_left_alone() {
        let place = Place::new("socket");
        let target = place.at("somewhere-else");
        fs::write(&target, "theirs").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&target, place.at("engine.sock")).unwrap();
        let _listener = LocalListener::bind(&place.at("engine.sock")).unwrap();
        assert_eq!((fs::read_to_string(&target).unwrap().as_str(), mode(&target)), ("theirs", 0o644));
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        for mode in [0o777, 0o1777, 0o770, 0o702] {
            let place = Place::new("writable");
            fs::set_permissions(&place.0, fs::Permissions::from_mode(mode)).unwrap();
            let refusal = place.refusal();
            assert!(refusal.contains(&format!("mode {mode:04o}")) && refusal.contains("chmod go-w"), "{refusal}");
            assert_eq!(fs::read_dir(&place.0).unwrap().count(), 0, "mode {mode:o}");
        }
    }

    #[test]
    fn a_folder_that_is_a_link_is_refused() {
        let place = Place::new("link");
        DirBuilder::new().mode(0o700).create(place.at("real")).unwrap();
        symlink(place.at("real"), place.at("folder")).unwrap();
        let refused = LocalListener::bind(&place.at("folder/engine.sock")).unwrap_err();
        assert!(refused.to_string().contains("folder is a symbolic link"), "{refused}");
        assert_eq!(fs::read_dir(place.at("real")).unwrap().count(), 0);
    }
}
