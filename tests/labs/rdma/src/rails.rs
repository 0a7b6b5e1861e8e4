//! Soft RoCE devices in one guest, and real traffic between them.
//!
//! A rail is a pair of virtual Ethernet ends with a device on each: `rxe_a0` on `a0` and `rxe_b0` on `b0` are rail 0.
//! Both ends are in the same network namespace, as these devices know no other, so the kernel would deliver what is
//! meant for an address of its own without a wire. The rules made here let each end believe that the other is far away.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{Guest, Job, LabError, netem};

const LIMIT: Duration = Duration::from_secs(60);

/// How long devices may take to become active.
const ACTIVE_LIMIT: Duration = Duration::from_secs(20);

/// One of the two sides of all rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one with address 1.
    A,
    /// The one with address 2.
    B,
}

impl Side {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(crate) fn letter(self) -> char {
        match self {
            Self::A => 'a',
            Self::B => 'b',
        }
    }

    /// Its network device on a rail.
    pub fn link(self, rail: u8) -> String {
        format!("{}{rail}", self.letter())
    }

    /// Its RDMA device on a rail.
    pub fn device(self, rail: u8) -> String {
        format!("rxe_{}{rail}", self.letter())
    }

    /// Its address on a rail.
    pub fn address(self, rail: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, rail, if self == Self::A { 1 } else { 2 })
    }
}

const MAKE: &str = r#"
for name in all default; do
    echo 1 >/proc/sys/net/ipv4/conf/$name/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$name/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$name/arp_ignore
    echo 1 >/proc/sys/net/ipv6/conf/$name/disable_ipv6
done
# The table of this machine's own addresses is asked first of all, unless it is told otherwise: move it behind.
ip rule add pref 100 lookup local
ip rule del pref 0
rail=0
while [ $rail -lt $RAILS ]; do
    a=a$rail b=b$rail
    to_a=10.77.$rail.1 to_b=10.77.$rail.2
    ip link add $a mtu 9000 address 02:77:00:$rail:00:0a type veth peer name $b mtu 9000 address 02:77:00:$rail:00:0b
    ip addr add $to_a/24 dev $a noprefixroute
    ip addr add $to_b/24 dev $b noprefixroute
    ip link set $a up
    ip link set $b up
    # What came in by a wire is for this machine; what one end sends to the other goes out by its wire.
    ip rule add pref 10 iif $a lookup local
    ip rule add pref 10 iif $b lookup local
    table=$((200 + 2 * rail))
    ip rule add pref 20 from $to_a to $to_b lookup $table
    ip rule add pref 20 from $to_b to $to_a lookup $((table + 1))
    # Who has not chosen an address yet is taken for the other end.
    ip rule add pref 30 iif lo to $to_b lookup $table
    ip rule add pref 30 iif lo to $to_a lookup $((table + 1))
    ip route add $to_b dev $a src $to_a table $table
    ip route add $to_a dev $b src $to_b table $((table + 1))
    rdma link add rxe_$a type rxe netdev $a
    rdma link add rxe_$b type rxe netdev $b
    rail=$((rail + 1))
done
"#;

/// Makes rails and waits until all of their devices are active.
pub fn make(guest: &Guest, rails: u8) -> Result<(), LabError> {
    guest.check(&Job::shell(MAKE).variable("RAILS", rails.to_string()).within(LIMIT))?;
    let sides = (0..rails).flat_map(|rail| Side::BOTH.map(|side| side.device(rail)));
    let wait: String = sides.map(|device| active_words(&device)).collect();
    guest.check(&Job::shell(wait).within(ACTIVE_LIMIT)).map(drop)
}

/// Waits until a device can be used.
pub fn wait_until_active(guest: &Guest, device: &str) -> Result<(), LabError> {
    guest.check(&Job::shell(active_words(device)).within(ACTIVE_LIMIT)).map(drop)
}

/// Takes a link down on one side, as when a port is switched off there.
pub fn down(guest: &Guest, side: Side, rail: u8) -> Result<(), LabError> {
    guest.check(&Job::shell(r#"ip link set "$LINK" down"#).variable("LINK", side.link(rail))).map(drop)
}

/// The shell's part of bringing a side of a rail up. Its route was forgotten when it went down.
fn up_words(side: Side, rail: u8) -> String {
    let (link, from, to) = (side.link(rail), side.address(rail), side.other().address(rail));
    let table = 200 + 2 * u32::from(rail) + u32::from(side == Side::B);
    format!("ip link set {link} up; ip route replace {to} dev {link} src {from} table {table}\n")
}

/// The shell's part of waiting for a device.
fn active_words(device: &str) -> String {
    let state = format!("/sys/class/infiniband/{device}/ports/1/state");
    format!("until read -r state <{state} && [ \"${{state#*ACTIVE}}\" != \"$state\" ]; do sleep 0.1; done\n")
}

/// Brings a link up again, and waits until its device can be used.
pub fn up(guest: &Guest, side: Side, rail: u8) -> Result<(), LabError> {
    let script = up_words(side, rail) + &active_words(&side.device(rail));
    guest.check(&Job::shell(script).within(ACTIVE_LIMIT)).map(drop)
}

/// The script that makes all rails as they were made: nothing is down and no frame suffers. A device that somebody has
/// removed stays away.
pub(crate) fn mending(rails: u8) -> String {
    let sides = || (0..rails).flat_map(|rail| Side::BOTH.map(|side| (side, rail)));
    let clear = sides().map(|(side, rail)| netem::clear_words(side, rail));
    let up = sides().map(|(side, rail)| up_words(side, rail));
    let wait = sides().map(|(side, rail)| active_words(&side.device(rail)));
    clear.chain(up).chain(wait).collect()
}
