//! What the guest's kernel does to frames that leave by a link: loses, delays, reorders them.

use std::fmt;

use crate::rails::Side;
use crate::{Guest, Job, LabError};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// How many of a hundred frames are lost.
    pub loss_percent: f64,
    /// How much later all frames come, in microseconds.
    pub delay_us: u32,
    /// How many of a hundred frames are not delayed, and so come before those sent earlier. Nothing without a delay.
    pub reorder_percent: f64,
    /// How many of a hundred frames come twice.
    pub duplicate_percent: f64,
    /// Which frames.
    pub victims: Victims,
}

/// Which frames suffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Victims {
    /// Those of RDMA only: what is said over TCP goes unharmed.
    #[default]
    Rdma,
    /// All.
    All,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit 100000")?;
        if self.delay_us > 0 {
            write!(f, " delay {}us", self.delay_us)?;
        }
        if self.reorder_percent > 0.0 {
            write!(f, " reorder {}%", self.reorder_percent)?;
        }
        if self.loss_percent > 0.0 {
            write!(f, " loss {}%", self.loss_percent)?;
        }
        if self.duplicate_percent > 0.0 {
            write!(f, " duplicate {}%", self.duplicate_percent)?;
        }
        Ok(())
    }
}

/// What has happened to the frames that left by a link since its faults were set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toll {
    /// Frames that met the faults and passed.
    pub passed: u64,
    /// Frames that were lost.
    pub lost: u64,
}

const SET: &str = r#"
tc qdisc del dev "$LINK" root 2>/dev/null || true
if [ "$VICTIMS" = all ]; then
    tc qdisc add dev "$LINK" root handle 30: netem $FAULTS
else
    # Three classes of which everything takes the first, except for datagrams to the port of RoCE.
    tc qdisc add dev "$LINK" root handle 1: prio bands 3 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    tc qdisc add dev "$LINK" parent 1:3 handle 30: netem $FAULTS
    tc filter add dev "$LINK" parent 1: protocol ip prio 1 u32 \
        match ip protocol 17 0xff match ip dport 4791 0xffff flowid 1:3
fi
"#;

/// Sets the faults of what leaves one side by a rail, in place of those that there were.
pub fn set(guest: &Guest, side: Side, rail: u8, faults: Faults) -> Result<(), LabError> {
    let victims = if faults.victims == Victims::All { "all" } else { "rdma" };
    let job = Job::shell(SET)
        .variable("LINK", side.link(rail))
        .variable("FAULTS", faults.to_string())
        .variable("VICTIMS", victims);
    guest.check(&job).map(drop)
}

/// Ends all faults of a side's link.
pub fn clear(guest: &Guest, side: Side, rail: u8) -> Result<(), LabError> {
    guest.check(&Job::shell(clear_words(side, rail))).map(drop)
}

/// The shell's part of that. A link without faults has nothing to remove, which is not said to differ from a failure.
pub(crate) fn clear_words(side: Side, rail: u8) -> String {
    format!("tc qdisc del dev {} root 2>/dev/null || true\n", side.link(rail))
}

/// What the faults have done so far.
pub fn toll(guest: &Guest, side: Side, rail: u8) -> Result<Toll, LabError> {
    let text =
        guest.check(&Job::new("tc").arguments(["-s", "-j", "qdisc", "show", "dev"]).argument(side.link(rail)))?;
    parse(&text).ok_or_else(|| LabError::Unreadable { what: "the faults of a link".to_owned(), text })
}

fn parse(text: &str) -> Option<Toll> {
    let kinds: serde_json::Value = serde_json::from_str(text).ok()?;
    let netem = kinds.as_array()?.iter().find(|kind| kind["kind"] == "netem")?;
    Some(Toll { passed: netem["packets"].as_u64()?, lost: netem["drops"].as_u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_said() {
        assert_eq!(Faults::default().to_string(), "limit 100000");
        let faults = Faults { loss_percent: 1.0, delay_us: 500, reorder_percent: 25.0, ..Faults::default() };
        assert_eq!(faults.to_string(), "limit 100000 delay 500us reorder 25% loss 1%");
    }

    #[test]
    fn the_toll_is_that_of_the_faults_and_of_nothing_else() {
        let text = r#"[{"kind":"prio","drops":50,"packets":60},{"kind":"netem","drops":49,"packets":4784}]"#;
        assert_eq!(parse(text), Some(Toll { passed: 4784, lost: 49 }));
        assert_eq!(parse(r#"[{"kind":"noqueue","drops":0,"packets":0}]"#), None);
    }
}
