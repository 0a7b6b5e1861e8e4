//! The command in a place from which one thing was taken.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::run::{Folder, Ran, finish};

/// Who has no rights anywhere, by convention.
const NOBODY: u32 = 65_534;

/// A place to run the command in.
pub(crate) struct Place {
    pub(crate) folder: Folder,
    /// The command, where every user can run it.
    program: PathBuf,
    is_ordinary: bool,
}

/// What the doctor found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) status: i32,
    findings: Vec<Value>,
}

impl Place {
    /// As whoever runs the tests.
    pub(crate) fn new() -> Self {
        Self { folder: Folder::new(), program: PathBuf::from(env!("CARGO_BIN_EXE_penstock")), is_ordinary: false }
    }

    /// As a user without rights: whoever runs the tests, or nobody if that is root.
    pub(crate) fn ordinary() -> Self {
        let folder = Folder::new();
        let program = folder.path().join("program");
        // Not copied in this process: another test's child might hold the file open for writing when it is started.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_penstock")).arg(&program).status().unwrap();
        assert!(copied.success());
        let place = Self { folder, program, is_ordinary: true };
        if place.becomes_nobody() {
            std::os::unix::fs::chown(place.folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        place
    }

    fn becomes_nobody(&self) -> bool {
        self.is_ordinary && is_root()
    }

    pub(crate) fn program(&self) -> &PathBuf {
        &self.program
    }

    /// `penstock doctor --json`, not started yet.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.around(Command::new(&self.program), &[&["doctor", "--json"], arguments].concat())
    }

    /// The doctor after a shell has run its mend.
    pub(crate) fn mended(&self, mend: &str, topic: &str) -> Command {
        let line = format!("{{ {mend}\n}} >/dev/null 2>&1 && exec {} doctor --json {topic}", self.program.display());
        self.around(Command::new("sh"), &["-c", &line])
    }

    /// Some command in this place.
    pub(crate) fn around(&self, mut command: Command, arguments: &[&str]) -> Command {
        // The arguments' own environment: no folder or log of whoever runs the tests.
        let pattern = self.folder.command(arguments);
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("PENSTOCK_LOG")
            .env_remove("LD_LIBRARY_PATH");
        for (name, value) in pattern.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        if self.becomes_nobody() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// What is found with nothing taken away.
    pub(crate) fn whole(&self) -> Found {
        Found::of(&mut self.command(&[]))
    }
}

impl Found {
    /// Runs a command that prints a report.
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::in_output(&finish(command))
    }

    pub(crate) fn in_output(ran: &Ran) -> Self {
        assert_eq!(ran.err, "", "{ran:?}");
        let report = ran.json();
        assert_eq!(report["ok"].as_bool(), Some(ran.status == 0), "the status says what the report says: {ran:?}");
        Self { status: ran.status, findings: report["findings"].as_array().unwrap().clone() }
    }

    pub(crate) fn find(&self, topic: &str, name: &str) -> &Value {
        let found = self.findings.iter().find(|finding| finding["topic"] == topic && finding["name"] == name);
        found.unwrap_or_else(|| panic!("{topic}: {name} is not in {:#?}", self.findings))
    }

    /// The findings whose status is another than in `whole`, as `topic: name`.
    pub(crate) fn changed(&self, whole: &Self) -> Vec<String> {
        let is_new = |finding: &&Value| {
            let was =
                whole.findings.iter().find(|was| was["topic"] == finding["topic"] && was["name"] == finding["name"]);
            was.is_none_or(|was| was["status"] != finding["status"])
        };
        let named =
            |finding: &Value| format!("{}: {}", finding["topic"].as_str().unwrap(), finding["name"].as_str().unwrap());
        self.findings.iter().filter(is_new).map(named).collect()
    }

    /// Asserts how a thing stands, what was found, and that something mends it.
    #[track_caller]
    pub(crate) fn assert(&self, topic: &str, name: &str, status: &str, found: &str, mend: &str) {
        let finding = self.find(topic, name);
        assert_eq!(finding["status"], status, "{finding:#}");
        assert!(finding["found"].as_str().unwrap().contains(found), "{finding:#}");
        assert!(!finding["means"].as_str().unwrap().is_empty(), "{finding:#}");
        let mends = finding["mends"].as_array().unwrap();
        let texts = mends.iter().filter_map(|mend| mend["command"].as_str().or(mend["advice"].as_str()));
        assert!(texts.into_iter().any(|text| text.contains(mend)), "{finding:#}");
    }
}

/// The command among a finding's mends that whoever runs the doctor can give without more rights.
pub(crate) fn own_mend(finding: &Value) -> String {
    let mends = finding["mends"].as_array().unwrap();
    let own = mends.iter().filter(|mend| mend["by"] == "you").find_map(|mend| mend["command"].as_str());
    own.unwrap_or_else(|| panic!("nothing to do oneself: {finding:#}")).to_owned()
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Reports that a test did not run.
pub(crate) fn skip(test: &str, reason: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

/// Lowers a limit of the command's process for good.
pub(crate) fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, value: u64) -> &mut Command {
    limited_to(command, resource, value, value)
}

/// Sets a limit of the command's process, soft and hard.
#[allow(unsafe_code)] // There is no safe way to act between fork and exec.
pub(crate) fn limited_to(
    command: &mut Command,
    resource: libc::__rlimit_resource_t,
    soft: u64,
    hard: u64,
) -> &mut Command {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the closure makes one system call and touches no memory but its own copy of `limit`.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

/// What a filter does with whoever makes a call.
#[derive(Clone, Copy)]
pub(crate) enum Filter {
    Refuse(i32),
    Kill,
}

/// Puts a filter on the command's process that lets all system calls through but one.
#[allow(unsafe_code)] // There is no safe way to act between fork and exec.
pub(crate) fn filtered(command: &mut Command, call: libc::c_long, filter: Filter) -> &mut Command {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let answer = match filter {
        Filter::Refuse(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
        Filter::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_WORD, 0, 0, 0), // the call's number is the first word
        step(JUMP_IF_EQUAL, 0, 1, u32::try_from(call).unwrap()),
        step(RETURN, 0, 0, answer),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: the closure makes two system calls; the program they are given lives in the closure itself.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
            let nothing: libc::c_ulong = 0;
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as libc::c_ulong, nothing, nothing, nothing) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
            {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    }
}

/// Takes the right to gain rights from the command's process.
#[allow(unsafe_code)] // There is no safe way to act between fork and exec.
pub(crate) fn without_new_privileges(command: &mut Command) -> &mut Command {
    let nothing: libc::c_ulong = 0;
    // SAFETY: the closure makes one system call that touches no memory.
    unsafe {
        command.pre_exec(move || {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as libc::c_ulong, nothing, nothing, nothing) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    }
}

/// Leaves the command's process one core.
#[allow(unsafe_code)] // There is no safe way to act between fork and exec.
pub(crate) fn pinned(command: &mut Command, core: usize) -> &mut Command {
    // SAFETY: a set of cores is plain words, of which none is a valid value, and CPU_SET stays within them.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        set
    };
    // SAFETY: the closure makes one system call that reads its own copy of `set`.
    unsafe {
        command.pre_exec(move || match libc::sched_setaffinity(0, size_of_val(&set), &raw const set) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}
