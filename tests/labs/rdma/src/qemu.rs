//! The machine: QEMU's command line.

use std::path::Path;
use std::process::Command;

use crate::agent::PORT;
use crate::host::{self, plain};
use crate::image::Image;
use crate::{LabError, Machine};

/// What the guest's kernel is told. A kernel that has gone wrong ends the machine at once, so that nobody waits for it.
/// An emulator on a loaded machine ticks unevenly: without `no_timer_check` the kernel may take its timer for broken.
const KERNEL: &str = "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off nokaslr tsc=reliable no_timer_check";

/// The command that runs the machine under the eyes of `supervise`: its console is standard error, its agent is at
/// standard input and output.
pub(crate) fn command(program: &Path, machine: &Machine, image: &Image) -> Result<Command, LabError> {
    let agent = plain("the agent's program", program)?;
    let mut command = Command::new(program);
    command.args(["supervise", &std::process::id().to_string(), "--", "qemu-system-x86_64"]);
    command.args(["-name", &machine.name, "-nodefaults", "-display", "none", "-no-reboot"]);
    // Emulated throughout: slow, and the same wherever it runs.
    command.args(["-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "max"]);
    command.args(["-smp", &machine.processors.to_string(), "-m", &format!("{}M", machine.memory_mib)]);
    command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
    let host_name = &machine.name;
    command.args(["-append", &format!("{KERNEL} penstock.agent={agent} penstock.host={host_name}")]);
    command.args(["-chardev", "file,id=console,path=/dev/stderr", "-serial", "chardev:console"]);
    command.args(["-chardev", "stdio,id=agent,signal=off", "-device", "virtio-serial-pci"]);
    command.args(["-device", &format!("virtserialport,chardev=agent,name={PORT}")]);
    command.args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
    command.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
    if let Some(wire) = &machine.wire {
        let path = plain("the socket of the wire", &wire.socket)?;
        let server = if wire.listens { "on" } else { "off" };
        command.args(["-netdev", &format!("stream,id=wire,server={server},addr.type=unix,addr.path={path}")]);
        command.args(["-device", &format!("virtio-net-pci,netdev=wire,mac=02:77:00:00:00:{:02x}", wire.number)]);
    }
    command.env("PATH", host::search_path());
    Ok(command)
}
