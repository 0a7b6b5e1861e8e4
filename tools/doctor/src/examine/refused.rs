//! Why a call did not go well, and what mends it.

use rustix::io::Errno;

use crate::finding::{By, Mend};
use crate::host::{Call, Host, Refusal};

/// `SIGSYS`, by which a filter of system calls kills.
const SIGSYS: i32 = 31;
/// `SIGXFSZ`, by which the limit of file sizes kills.
const SIGXFSZ: i32 = 25;

/// Why, in words, and the mends.
pub(super) fn why(host: &Host, call: Call, refusal: &Refusal) -> (String, Vec<Mend>) {
    let is_filtered = host.filters().is_some_and(|filters| filters > 0);
    let see =
        |topic: &str| vec![Mend::advice(By::You, format!("`penstock doctor {topic}` says which and what raises it"))];
    match refusal {
        Refusal::Killed(SIGSYS) => ("a seccomp filter kills whoever tries".to_owned(), let_through(host, call)),
        Refusal::Killed(SIGXFSZ) => ("the file size limit kills whoever tries".to_owned(), see("limits")),
        Refusal::Killed(_) | Refusal::Untried(_) => (refusal.to_string(), Vec::new()),
        Refusal::Errno(number) => match Errno::from_raw_os_error(*number) {
            Errno::NOSYS if is_filtered => {
                let words = format!("a seccomp filter hides it, or the kernel lacks it (it needs {})", call.since());
                (words, let_through(host, call))
            }
            Errno::NOSYS => (format!("this kernel does not have it (it needs {})", call.since()), newer(call)),
            Errno::PERM | Errno::ACCESS if is_filtered => {
                (format!("a seccomp filter forbids it ({refusal})"), let_through(host, call))
            }
            Errno::PERM | Errno::ACCESS => (
                format!("the kernel forbids it ({refusal})"),
                vec![Mend::advice(
                    By::You,
                    "`penstock doctor seccomp` says whether a security module confines this process",
                )],
            ),
            Errno::MFILE | Errno::NFILE => ("no file descriptor is left".to_owned(), see("limits")),
            Errno::AGAIN => (format!("a limit is reached ({refusal})"), see("limits cgroup")),
            Errno::NOMEM | Errno::NOSPC => ("there is no memory for it".to_owned(), see("memory limits cgroup")),
            _ => (refusal.to_string(), Vec::new()),
        },
    }
}

/// How the filter that this process runs under is made to let a call through.
pub(super) fn let_through(host: &Host, call: Call) -> Vec<Mend> {
    let calls = call.system_calls();
    let mut mends = Vec::new();
    if let Some(service) = host.service() {
        let edit = host.as_root(&format!("systemctl edit {service}"));
        let words = format!("{}   # add: [Service] SystemCallFilter={calls}", edit.text());
        mends.push(Mend { by: edit.by, ..Mend::you(words) });
    }
    if host.in_container() {
        mends.push(Mend::outside("docker run --security-opt seccomp=unconfined …"));
    }
    let who = "whoever set the seccomp filter of this process (container runtime, service, launcher) must let it make";
    mends.push(Mend::advice(By::Outside, format!("{who}: {}", calls.replace(' ', ", "))));
    mends
}

fn newer(call: Call) -> Vec<Mend> {
    vec![Mend::advice(By::Root, format!("boot {} or later", call.since()))]
}
