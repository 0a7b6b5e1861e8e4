//! The `penstock` command inside guests: a server on side B, measurements from side A.

use std::path::PathBuf;
use std::time::Duration;

use crate::rails::Side;
use crate::{Guest, Job, LabError, Running, programs};

/// The port of the server.
const PORT: u16 = 7400;

/// How long a server may take to serve.
const SERVING_WITHIN: Duration = Duration::from_secs(30);

/// How long one of them may run.
const LIMIT: Duration = Duration::from_secs(180);

/// What every script begins with: a secret for both sides.
const FURNISH: &str = r#"
umask 077
mkdir -p /run/penstock
cd /run/penstock
[ -e secret ] || printf '%064d\n' 5 >secret
"#;

/// The server: an emulated machine gets more time for a greeting.
const SERVE: &str = r#"
printf '%s\n' "transports: { allow: [verbs, tcp], verbs_devices: [$DEVICES] }" \
    'session: { greeting_timeout_ms: 10000 }' >serve.yaml
exec "$PENSTOCK" serve --config /run/penstock/serve.yaml --listen "$ADDRESS" --secret-file /run/penstock/secret \
    --memory-mib 512 --json
"#;

const PERF: &str = r#"
printf '%s\n' 'name: blocks' 'what: blocks of one size' "block_bytes: $BLOCK" "blocks: $BLOCKS" 'layers: 1' >blocks.yaml
exec "$PENSTOCK" perf "$ADDRESS" --transport verbs --devices "$DEVICES" --secret-file /run/penstock/secret \
    --workload /run/penstock/blocks.yaml --pool-mib 32 --json "$@"
"#;

/// The `penstock` command, as tests build it: guests find it by its path on the host.
#[derive(Debug, Clone)]
pub struct Command(PathBuf);

impl Command {
    /// Builds it.
    pub fn build() -> Result<Self, LabError> {
        programs::binary_of("penstock").map(Self)
    }

    /// Measures writes of so many blocks of so many bytes, so many transfers at a time, from side A to the server over this many
    /// rails. More arguments may follow.
    pub fn perf(&self, rails: u8, block: u64, blocks: u64, transfers: usize) -> Job {
        let job = self.job(PERF, Side::A, rails).argument("perf").argument("-P").argument(transfers.to_string());
        job.variable("BLOCK", block.to_string()).variable("BLOCKS", blocks.to_string())
    }

    fn job(&self, script: &str, side: Side, rails: u8) -> Job {
        let devices: Vec<String> = (0..rails).map(|rail| side.device(rail)).collect();
        Job::shell(FURNISH.to_owned() + script)
            .variable("PENSTOCK", self.0.to_string_lossy())
            .variable("DEVICES", devices.join(","))
            .variable("ADDRESS", format!("{}:{PORT}", Side::B.address(0)))
            .within(LIMIT)
    }
}

/// A server on side B. Dropping it ends it.
#[derive(Debug)]
pub struct Server<'g>(Running<'g>);

impl<'g> Server<'g> {
    /// Starts it over so many rails, and waits until it serves.
    pub fn start(command: &Command, guest: &'g Guest, rails: u8) -> Result<Self, LabError> {
        let server = guest.spawn(&command.job(SERVE, Side::B, rails))?;
        server.wait_for("serving", SERVING_WITHIN)?;
        Ok(Self(server))
    }

    /// Whether somebody came by verbs.
    pub fn has_met_verbs(&self) -> Result<(), LabError> {
        self.0.wait_for(r#""transport":"verbs""#, Duration::from_secs(1)).map(drop)
    }
}

/// What a measurement says.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Bytes a second, in millions.
    pub mb_per_s: f64,
    /// Median time of a round, in microseconds.
    pub p50_us: f64,
    /// The way that was taken.
    pub path: String,
}

impl Measured {
    /// Reads what `perf` printed. Bytes that are not verified are an error.
    pub fn parse(text: &str) -> Result<Self, LabError> {
        let read = || {
            let value: serde_json::Value =
                serde_json::from_str(text.lines().find(|line| line.starts_with('{'))?).ok()?;
            let is_sound = value["verified"] == true && value["transport"] == "verbs";
            is_sound.then_some(())?;
            let (gbps, p50_us) = (value["gbps"].as_f64()?, value["p50_us"].as_f64()?);
            Some(Self { mb_per_s: gbps * 1e3, p50_us, path: value["path"].as_str()?.to_owned() })
        };
        let unreadable =
            || LabError::Unreadable { what: "verified bytes over verbs".to_owned(), text: text.to_owned() };
        read().ok_or_else(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_verified_bytes_over_verbs_are_a_measurement() {
        let text = r#"{"transport":"verbs","p50_us":5.0,"gbps":0.04,"verified":true,"path":"rxe_a0"}"#;
        let expected = Measured { mb_per_s: 40.0, p50_us: 5.0, path: "rxe_a0".to_owned() };
        assert_eq!(Measured::parse(&format!("a warning\n{text}\n")).expect("a measurement"), expected);
        for (what, other) in [("verbs", "tcp"), ("true", "false"), ("gbps", "gps")] {
            assert!(Measured::parse(&text.replace(what, other)).is_err(), "{what}");
        }
        assert!(Measured::parse("").is_err());
    }
}
