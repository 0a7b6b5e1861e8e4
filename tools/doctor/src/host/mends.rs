//! Commands as they are written on this host: with or without `sudo`, for a shell, a service or a container.

use super::{Host, Rights};
use crate::finding::{By, Mend};

/// A limit of processes, by the names it goes by.
pub(crate) struct LimitNames {
    /// The letter of `ulimit`.
    pub(crate) ulimit: &'static str,
    /// The option of `prlimit`.
    pub(crate) prlimit: &'static str,
    /// The key of a service file.
    pub(crate) service: &'static str,
    /// The name of docker's `--ulimit`; none if it has none.
    pub(crate) container: Option<&'static str>,
}

impl Host {
    /// A command that only root may run.
    pub(crate) fn as_root(&self, command: &str) -> Mend {
        match (self.is_confined(), self.system().user()) {
            (true, _) => Mend::outside(format!("sudo {command}")),
            (false, 0) => Mend::you(command),
            (false, _) => Mend { by: By::Root, ..Mend::you(format!("sudo {command}")) },
        }
    }

    /// Writes a value into a file of the kernel's.
    pub(crate) fn setting(&self, path: &str, value: &str) -> Mend {
        if self.system().may(&self.at(path), Rights::Write).is_ok() {
            return Mend::you(format!("echo {value} > {path}"));
        }
        let tee = self.as_root(&format!("tee {path}"));
        Mend { by: tee.by, ..Mend::you(format!("echo {value} | {}", tee.text())) }
    }

    /// Sets a kernel setting until the next boot.
    pub(crate) fn sysctl(&self, name: &str, value: &str) -> Mend {
        let command = format!("sysctl -w {name}={value}");
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        // In a container the file is usually read-only, even for root; in a user namespace it may not be.
        if self.system().may(&self.at(path), Rights::Write).is_ok() {
            Mend::you(command)
        } else {
            self.as_root(&command)
        }
    }

    /// Installs packages, under the names that Debian's and Red Hat's families give them.
    pub(crate) fn install(&self, debian: &str, red_hat: &str) -> Mend {
        let family = self.text("/etc/os-release").unwrap_or_default();
        let family: String =
            family.lines().filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE=")).collect();
        let command = if family.contains("debian") || family.contains("ubuntu") {
            format!("apt-get install -y {debian}")
        } else if ["rhel", "fedora", "centos"].iter().any(|name| family.contains(name)) {
            format!("dnf install -y {red_hat}")
        } else {
            let words =
                format!("install {red_hat} (on Debian and Ubuntu: {debian}) with this system's package manager");
            return Mend::advice(By::Root, words);
        };
        // Packages go into the container itself.
        match self.system().user() {
            0 => Mend::you(command),
            _ => Mend { by: By::Root, ..Mend::you(format!("sudo {command}")) },
        }
    }

    /// Raises a limit of this shell, of the service or of the container, whichever this runs in.
    pub(crate) fn raise(&self, names: &LimitNames, value: &str, hard_allows: bool) -> Vec<Mend> {
        let mut mends = Vec::new();
        if let Some(service) = self.service() {
            let unit = format!("systemctl edit {service}");
            let edit = self.as_root(&unit);
            let words = format!("{}   # add: [Service] {}={}", edit.text(), names.service, infinite(value));
            mends.push(Mend { by: edit.by, ..Mend::you(words) });
        }
        if hard_allows {
            mends.push(Mend::you(format!("ulimit -{} {value}", names.ulimit)));
        } else if self.in_container() {
            match names.container {
                Some(name) => {
                    let value = if value == "unlimited" { "-1" } else { value };
                    mends.push(Mend::outside(format!("docker run --ulimit {name}={value} …")));
                }
                None => mends.push(Mend::advice(By::Outside, "whoever starts the container must raise this limit")),
            }
        } else if mends.is_empty() {
            mends.push(self.as_root(&format!("prlimit --pid $$ --{}={value}:{value}", names.prlimit)));
        }
        mends
    }
}

fn infinite(value: &str) -> &str {
    if value == "unlimited" { "infinity" } else { value }
}
