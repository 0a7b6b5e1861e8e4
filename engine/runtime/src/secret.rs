//! The secret that hosts share: given itself, or in a file; where that is, who may read it, and how the first one is made.

#![expect(missing_docs, reason = "the fields of an error are what its text names")]

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use penstock_core::config::HiddenText;
use penstock_session::secret::SECRET_TEXT_BYTES_MAX;
use penstock_session::{Secret, SecretError};

/// The variable that is the secret itself, where the configuration does not give it. It comes before all files.
pub const SECRET_ITSELF_VARIABLE: &str = "PENSTOCK_SECRET";

/// The variable that names the file where the configuration does not.
pub const SECRET_VARIABLE: &str = "PENSTOCK_SECRET_FILE";

/// Why there is no secret to share with other hosts. None of these repeats what the file says.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SecretFileError {
    /// The named file is not there.
    #[error(
        "there is no secret file {}; copy it from another host of the group, or leave `session.secret_file` and \
         {SECRET_VARIABLE} unset on the host that serves, and one is made there", .0.display()
    )]
    Missing(PathBuf),
    /// Others may read it or write to it.
    #[error("others may use the secret file {} (mode {mode:o}); run `chmod 600 {}`", path.display(), path.display())]
    Exposed {
        path: PathBuf,
        /// The permission bits that were found.
        mode: u32,
    },
    /// It belongs to somebody else.
    #[error(
        "the secret file {} belongs to user {owner} and this engine runs as user {user}; make a copy that belongs to \
         this user", path.display()
    )]
    Foreign {
        path: PathBuf,
        owner: u32,
        /// Who runs this engine.
        user: u32,
    },
    /// What it says is no secret.
    #[error("the secret file {} is not usable: {source}", path.display())]
    Malformed { path: PathBuf, source: SecretError },
    /// What was given as the secret itself is none.
    #[error("what {from} says is not usable as a secret: {source}")]
    Given {
        /// Where it was given.
        from: &'static str,
        source: SecretError,
    },
    /// Nothing says where the user's own files are.
    #[error(
        "there is no place for a secret: set {SECRET_ITSELF_VARIABLE}, `session.secret_file`, {SECRET_VARIABLE}, XDG_CONFIG_HOME or HOME"
    )]
    NoPlace,
    /// The user's own folder is not there.
    #[error(
        "there is no place for a secret: HOME is {}, which is no folder; set `session.secret_file`, {SECRET_VARIABLE}, or HOME",
        .0.display()
    )]
    NoHome(PathBuf),
    /// The file system has no way to make a file whole that is not there yet.
    #[error(
        "the file system of {} can neither rename without replacing nor link, so that no secret is made there; put one line of 64 \
         hexadecimal digits there yourself (`openssl rand -hex 32`, then `chmod 600`), or set `session.secret_file` or {SECRET_VARIABLE} to \
         a file elsewhere", .0.display()
    )]
    NotMade(PathBuf),
    /// The system refused.
    #[error("cannot {what} the secret file {}: {reason}", path.display())]
    System {
        what: &'static str,
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
}

/// Bytes that are cleared when they go.
struct Wiped(Vec<u8>);

impl Wiped {
    fn parse(&self) -> Result<Secret, SecretError> {
        match String::from_utf8_lossy(&self.0) {
            Cow::Borrowed(text) => Secret::parse(text),
            // A copy, which is cleared as well.
            Cow::Owned(text) => Self(text.into_bytes()).parse(),
        }
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.fill(0);
        // The compiler may not leave out a store whose result is looked at.
        std::hint::black_box(&self.0);
    }
}

/// The secret itself, if it is given: by the configuration, else by the environment.
pub(crate) fn given(configured: Option<&HiddenText>) -> Result<Option<Secret>, SecretFileError> {
    let (parsed, from) = match configured {
        Some(hidden) => (Some(Secret::parse(hidden.reveal())), "the configuration"),
        None => {
            // Empty is an error: a secret that failed to be put there must not become another one.
            let text = std::env::var_os(SECRET_ITSELF_VARIABLE);
            (text.map(|text| Wiped(text.into_encoded_bytes()).parse()), SECRET_ITSELF_VARIABLE)
        }
    };
    parsed.transpose().map_err(|source| SecretFileError::Given { from, source })
}

/// Where a secret is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecretPath {
    /// Somebody named this file: it must be there.
    Named(PathBuf),
    /// The user's own: made at first use.
    Own(PathBuf),
}

impl SecretPath {
    /// By the configuration, else by the environment's variables.
    pub(crate) fn find(configured: Option<&Path>) -> Result<Self, SecretFileError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(named) = configured.map(Path::to_owned).or_else(|| variable(SECRET_VARIABLE)) {
            return Ok(Self::Named(named));
        }
        let absolute = |path: &PathBuf| path.is_absolute();
        let own = variable("XDG_CONFIG_HOME").filter(absolute);
        let own = match own {
            Some(own) => own,
            None => {
                let home = variable("HOME").filter(absolute).ok_or(SecretFileError::NoPlace)?;
                if !home.is_dir() {
                    // Nobody lives there: what is made there is not found again.
                    return Err(SecretFileError::NoHome(home));
                }
                home.join(".config")
            }
        };
        Ok(Self::Own(own.join("penstock").join("secret")))
    }

    /// The secret there. `random` fills what it is given with unpredictable bytes.
    pub(crate) fn secret(&self, random: &mut dyn FnMut(&mut [u8])) -> Result<Secret, SecretFileError> {
        match self {
            Self::Named(path) => read(path)?.ok_or_else(|| SecretFileError::Missing(path.clone())),
            Self::Own(path) => {
                if let Some(secret) = read(path)? {
                    return Ok(secret);
                }
                make(path, random)?;
                // Whoever was first: all read what is there now.
                read(path)?.ok_or_else(|| SecretFileError::Missing(path.clone()))
            }
        }
    }
}

fn system<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, SecretFileError> {
    result.map_err(|error| SecretFileError::System { what, path: path.to_owned(), reason: error.to_string() })
}

/// The secret in this file, if there is one. What is looked at and what is read are the same open file.
fn read(path: &Path) -> Result<Option<Secret>, SecretFileError> {
    // Not blocking: somebody may have named a pipe.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => system("open", path, other)?,
    };
    let seen = system("look at", path, file.metadata())?;
    if !seen.is_file() {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "it is not a file");
        return system("read", path, Err(error));
    }
    let user = rustix::process::geteuid().as_raw();
    if seen.uid() != user {
        return Err(SecretFileError::Foreign { path: path.to_owned(), owner: seen.uid(), user });
    }
    let mode = seen.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(SecretFileError::Exposed { path: path.to_owned(), mode });
    }
    // With room for all of it, so that it is not copied as it grows.
    let most = SECRET_TEXT_BYTES_MAX + 1;
    let mut text = Wiped(Vec::with_capacity(most + 64));
    system("read", path, file.take(most as u64).read_to_end(&mut text.0))?;
    text.parse().map(Some).map_err(|source| SecretFileError::Malformed { path: path.to_owned(), source })
}

/// Makes the user's own secret. It appears whole or not at all, and never in the place of another one.
fn make(path: &Path, random: &mut dyn FnMut(&mut [u8])) -> Result<(), SecretFileError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    system("make the folder of", path, DirBuilder::new().recursive(true).mode(0o700).create(folder))?;
    let mut mark = [0; 8];
    random(&mut mark);
    let fresh = folder.join(format!(".secret-{:016x}", u64::from_ne_bytes(mark)));
    let written = write(&fresh, &Secret::generate(random));
    let made = written.and_then(|()| publish(|| rename_new(&fresh, path), || fs::hard_link(&fresh, path)));
    let _ = fs::remove_file(&fresh);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()), // Somebody was quicker.
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(SecretFileError::NotMade(path.to_owned())),
        other => {
            system("make", path, other)?;
            tracing::info!(path = %path.display(), "a secret was made; copy it to the other hosts of the group");
            Ok(())
        }
    }
}

fn write(fresh: &Path, secret: &Secret) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(fresh)?;
    file.write_all(&Wiped(secret.to_text().into_bytes()).0)?;
    file.sync_all()
}

/// Renames it, unless there is something of that name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Gives what was written its name, in the first way that the file system has; [`io::ErrorKind::Unsupported`] if it has none.
fn publish(rename: impl FnOnce() -> io::Result<()>, link: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    use rustix::io::Errno;
    let is_missing = |error: &io::Error, numbers: &[Errno]| {
        Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
    };
    match rename() {
        Err(error) if is_missing(&error, &[Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP]) => {}
        other => return other,
    }
    // A file system without links refuses them as not permitted.
    match link() {
        Err(error) if is_missing(&error, &[Errno::PERM, Errno::NOSYS, Errno::OPNOTSUPP, Errno::MLINK]) => {
            Err(io::ErrorKind::Unsupported.into())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(label: &str) -> Self {
            let path = std::env::temp_dir().join(format!("penstock-secret-{}-{label}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, text: &str, mode: u32) -> SecretPath {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            SecretPath::Named(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn counting() -> impl FnMut(&mut [u8]) {
        let mut next = 0u8;
        move |bytes: &mut [u8]| {
            bytes.iter_mut().for_each(|byte| {
                next = next.wrapping_add(1);
                *byte = next;
            });
        }
    }

    #[test]
    fn a_named_file_is_there_readable_by_its_owner_only_and_a_secret() {
        let folder = Folder::new("named");
        let line = "ab".repeat(32);
        let read = |place: &SecretPath| place.secret(&mut counting());
        assert_eq!(read(&folder.file("good", &line, 0o600)).unwrap().to_text().trim(), line);
        assert!(matches!(read(&folder.file("open", &line, 0o640)), Err(SecretFileError::Exposed { mode: 0o640, .. })));
        assert!(matches!(read(&folder.file("short", "ab", 0o600)), Err(SecretFileError::Malformed { .. })));
        assert!(matches!(read(&folder.file("long", &"#".repeat(9999), 0o600)), Err(SecretFileError::Malformed { .. })));
        assert!(matches!(read(&SecretPath::Named(folder.0.join("none"))), Err(SecretFileError::Missing(_))));
        assert!(matches!(read(&SecretPath::Named(folder.0.clone())), Err(SecretFileError::System { .. })));
        let advice = read(&folder.file("open", &line, 0o644)).unwrap_err().to_string();
        assert!(advice.contains("chmod 600"), "{advice}");
    }

    /// Whether these bytes are in memory of this process that can be written. They are given inverted, so that the question is no answer.
    fn is_in_memory(inverted: &[u8]) -> bool {
        use std::os::unix::fs::FileExt;
        let memory = File::open("/proc/self/mem").unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut part = vec![0; 1 << 20];
        let mut is_found = false;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (range, rights) = (words.next().unwrap(), words.next().unwrap());
            let is_private = rights.starts_with("rw") && rights.ends_with('p');
            if !is_private || words.nth(3).is_some_and(|name| name != "[heap]") {
                continue;
            }
            let (mut from, end) = range.split_once('-').map(|(from, end)| (address(from), address(end))).unwrap();
            while from < end && !is_found {
                let wanted = part.len().min((end - from) as usize);
                let Ok(read) = memory.read_at(&mut part[..wanted], from) else { break };
                let is_it = |found: &[u8]| found.iter().zip(inverted).all(|(found, inverted)| *found == !*inverted);
                is_found = part[..read].windows(inverted.len()).any(is_it);
                part.fill(0);
                // What begins in this part may end in the next one.
                from += if read > inverted.len() { (read - inverted.len()) as u64 } else { end - from };
            }
        }
        is_found
    }

    fn address(hexadecimal: &str) -> u64 {
        u64::from_str_radix(hexadecimal, 16).unwrap()
    }

    #[test]
    fn what_a_file_said_is_in_no_memory_when_it_was_read() {
        let folder = Folder::new("wiped");
        let path = folder.0.join("secret");
        // Digits that no other test has, and never behind each other here.
        let digit = |place: usize| b"0123456789abcdef"[(place * 7 + place / 16 * 5 + 3) % 16];
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        (0..64).for_each(|place| file.write_all(&[digit(place)]).unwrap());
        drop(file);
        // The allocator may write over the beginning of what is given back.
        let tail: Vec<u8> = (32..64).map(|place| !digit(place)).collect();
        assert!(!is_in_memory(&tail));
        let shown = black_box((32..64).map(digit).collect::<Vec<u8>>());
        assert!(is_in_memory(&tail), "it would be found");
        drop(Wiped(shown));
        assert!(!is_in_memory(&tail));
        let secret = SecretPath::Named(path).secret(&mut counting()).unwrap();
        assert!(!is_in_memory(&tail));
        drop(secret);
    }

    #[test]
    fn a_secret_is_made_in_the_first_way_that_the_file_system_has() {
        use rustix::io::Errno;
        let no = |number: Errno| Err(io::Error::from(number));
        let never = || -> io::Result<()> { panic!("there was a better way") };
        assert!(publish(|| Ok(()), never).is_ok());
        let there = publish(|| no(Errno::EXIST), never).unwrap_err();
        assert_eq!(there.kind(), io::ErrorKind::AlreadyExists);
        assert!(publish(|| no(Errno::INVAL), || Ok(())).is_ok());
        let there = publish(|| no(Errno::NOSYS), || no(Errno::EXIST)).unwrap_err();
        assert_eq!(there.kind(), io::ErrorKind::AlreadyExists);
        let full = publish(|| no(Errno::NOSPC), never).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let none = publish(|| no(Errno::INVAL), || no(Errno::PERM)).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::Unsupported);
        let words = SecretFileError::NotMade("/mnt/secret".into()).to_string();
        assert!(words.contains("openssl rand -hex 32") && words.contains("session.secret_file"), "{words}");
    }

    #[test]
    fn another_users_file_is_refused() {
        let folder = Folder::new("foreign");
        let place = folder.file("theirs", &"ab".repeat(32), 0o600);
        let SecretPath::Named(path) = &place else { unreachable!() };
        if std::os::unix::fs::chown(path, Some(4242), None).is_err() {
            return; // Only root can give a file away.
        }
        assert!(matches!(place.secret(&mut counting()), Err(SecretFileError::Foreign { owner: 4242, .. })));
    }

    #[test]
    fn the_users_own_is_made_once_by_whoever_is_first() {
        let folder = Folder::new("own");
        let place = SecretPath::Own(folder.0.join("config").join("penstock").join("secret"));
        let barrier = std::sync::Barrier::new(8);
        let texts: Vec<String> = std::thread::scope(|scope| {
            let one = |seed: u8| {
                let (place, barrier) = (&place, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let mut next = seed;
                    let mut random = |bytes: &mut [u8]| {
                        bytes.iter_mut().for_each(|byte| {
                            next = next.wrapping_mul(5).wrapping_add(seed);
                            *byte = next;
                        });
                    };
                    place.secret(&mut random).unwrap().to_text()
                })
            };
            let all: Vec<_> = (0..8).map(|seed| one(2 * seed + 1)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(texts.iter().all(|text| *text == texts[0]));
        let SecretPath::Own(path) = &place else { unreachable!() };
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }
}
