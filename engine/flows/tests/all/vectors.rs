//! What stages hand to each other by other means is written as it was: `vectors/<release>/*.hex`.
//!
//! `PENSTOCK_UPDATE_VECTORS=1` writes what differs, and fails to say so.

use std::path::PathBuf;

use penstock_core::{EngineName, Epoch};
use penstock_flows::relay::Metadata;
use penstock_flows::relay::payload::{Dtype, PayloadItem, Schema};
use penstock_session::RequestId;

fn schema() -> Schema {
    let items = [
        PayloadItem { path: "hidden", shape: &[17, 4096], dtype: Dtype::Bf16 },
        PayloadItem { path: "mask", shape: &[17], dtype: Dtype::Bool },
        PayloadItem { path: "step", shape: &[], dtype: Dtype::U64 },
    ];
    Schema::pack(&items).unwrap()
}

fn metadata() -> Metadata {
    Metadata {
        engine: EngineName::new("stage-a").unwrap(),
        epoch: Epoch(0x0123_4567_89ab_cdef),
        op: 300,
        request: RequestId::new("cmpl-1a").unwrap(),
        bytes: 139_350,
        parts: 2,
    }
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("vectors/0.4/{name}.hex"))
}

/// The committed bytes. Lines behind a `#` are words.
fn read(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(path(name)).unwrap_or_default();
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn schemas_and_metadata_are_written_as_they_were() {
    let all = [
        (
            "relay-schema",
            "items of a chunk: hidden 17 x 4096 of bf16, mask 17 of bool, one step of u64",
            schema().encode(),
        ),
        ("relay-metadata", "put 300 of stage-a, of 139,350 bytes in two parts", metadata().encode()),
    ];
    if std::env::var("PENSTOCK_UPDATE_VECTORS").as_deref() == Ok("1") {
        for (name, about, bytes) in &all {
            let hex: Vec<String> =
                bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
            std::fs::write(path(name), format!("# {about}\n{}\n", hex.join("\n"))).unwrap();
        }
        panic!("written anew, which changes the protocol; now run without the variable");
    }
    for (name, _, bytes) in &all {
        assert_eq!(&read(name), bytes, "{name} is written differently now");
    }
    assert_eq!(Schema::parse(&read("relay-schema")), Ok(schema()));
    assert_eq!(Metadata::parse(&read("relay-metadata")), Ok(metadata()));
}
