//! Two guests with a wire between them: two hosts, of which one can die.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::rails::{Side, wait_until_active};
use crate::{Guest, Job, LabError, Machine, Wire};

/// Longest wait for the first machine's end of the wire.
const SOCKET_LIMIT: Duration = Duration::from_secs(60);

/// How long the two may take to hear each other.
const HEAR_LIMIT: Duration = Duration::from_secs(30);

const MEMORY_MIB: u32 = 2048;

static MADE: AtomicU32 = AtomicU32::new(0);

/// Two guests of one processor each. The devices have the names and addresses of rail 0: `rxe_a0` is in the one,
/// `rxe_b0` in the other.
#[derive(Debug)]
pub struct Pair {
    /// The side with address 1.
    pub a: Guest,
    /// The side with address 2.
    pub b: Guest,
    _folder: Folder,
}

/// Where the wire's socket is; removed at the end.
#[derive(Debug)]
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // At the end there is nobody to tell, and the system's own folder for such things is cleared now and then.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MAKE: &str = r#"
set -- /sys/bus/virtio/drivers/virtio_net/virtio*/net/*
ip link set "${1##*/}" name "$LINK" mtu 9000 || ip link set "${1##*/}" name "$LINK"
ip addr add "$ADDRESS/24" dev "$LINK"
ip link set "$LINK" up
rdma link add "$DEVICE" type rxe netdev "$LINK"
"#;

impl Pair {
    /// Boots both and waits until they hear each other.
    pub fn boot(program: impl Into<PathBuf>, progress: &(dyn Fn(&str) + Sync)) -> Result<Self, LabError> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("penstock-lab-rdma-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).map_err(LabError::file("make", &folder))?;
        let folder = Folder(folder);
        let socket = folder.0.join("wire");
        let program = program.into();
        let machine = |side: Side| {
            let wire = Wire { socket: socket.clone(), listens: side == Side::A, number: u8::from(side == Side::B) };
            let name = format!("guest-{}", side.letter());
            Machine::new(name, &program).processors(1).memory_mib(MEMORY_MIB).wire(wire)
        };
        let (a, b) = std::thread::scope(|scope| {
            let a = scope.spawn(|| Guest::boot_with(&machine(Side::A), progress));
            let b = wait_for(&socket).and_then(|()| Guest::boot_with(&machine(Side::B), progress));
            let a = a.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            Ok::<_, LabError>((a?, b?))
        })?;
        let pair = Self { a, b, _folder: folder };
        for side in Side::BOTH {
            let job = Job::shell(MAKE)
                .variable("LINK", side.link(0))
                .variable("ADDRESS", side.address(0).to_string())
                .variable("DEVICE", side.device(0));
            pair.guest(side).check(&job)?;
            wait_until_active(pair.guest(side), &side.device(0))?;
        }
        let script = format!("until busybox ping -c 1 -W 1 {} >/dev/null; do sleep 0.1; done", Side::B.address(0));
        pair.a.check(&Job::shell(script).within(HEAR_LIMIT))?;
        Ok(pair)
    }

    /// The guest on a side.
    pub fn guest(&self, side: Side) -> &Guest {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

fn wait_for(socket: &std::path::Path) -> Result<(), LabError> {
    let until = Instant::now() + SOCKET_LIMIT;
    while !socket.exists() {
        if Instant::now() > until {
            let what = format!("waiting for the wire {}", socket.display());
            return Err(LabError::TooLate { what, limit: SOCKET_LIMIT, so_far: String::new() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
