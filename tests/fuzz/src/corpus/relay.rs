//! What a chunk between stages says of itself.

use penstock_core::{EngineName, Epoch};
use penstock_flows::relay::Metadata;
use penstock_flows::relay::payload::{Dtype, ITEMS_MAX, PayloadItem, Schema};
use penstock_session::RequestId;

/// Schemas.
pub(super) fn schemas() -> Vec<(&'static str, Vec<u8>)> {
    let usual = [
        PayloadItem { path: "hidden", shape: &[17, 4096], dtype: Dtype::Bf16 },
        PayloadItem { path: "mask", shape: &[17], dtype: Dtype::Bool },
        PayloadItem { path: "step", shape: &[], dtype: Dtype::U64 },
        PayloadItem { path: "none", shape: &[0, u64::MAX], dtype: Dtype::F32 },
    ];
    let pack = |items: &[PayloadItem<'_>]| Schema::pack(items).expect("these items can be packed").encode();
    let names: Vec<String> = (0..ITEMS_MAX).map(|number| number.to_string()).collect();
    let crowded: Vec<PayloadItem<'_>> =
        names.iter().map(|path| PayloadItem { path, shape: &[], dtype: Dtype::Bytes }).collect();
    // Says that it has as many items as there may be, and has none.
    let mut boastful = vec![1];
    boastful.extend([0x80, 0x08]);
    vec![
        ("usual", pack(&usual)),
        ("empty", pack(&[])),
        ("flat", pack(&[PayloadItem { path: "", shape: &[2; 16], dtype: Dtype::F8E5m2 }])),
        ("crowded", pack(&crowded)),
        ("boastful", boastful),
    ]
}

/// Metadata.
pub(super) fn metadata() -> Vec<(&'static str, Vec<u8>)> {
    let of = |engine: &str, request: &str, bytes, parts| {
        let engine = EngineName::new(engine).expect("it is a name");
        let request = RequestId::new(request).expect("it is a name");
        Metadata { engine, epoch: Epoch(u64::MAX), op: 300, request, bytes, parts }.encode()
    };
    vec![
        ("usual", of("stage-a", "cmpl-1a", 3 << 20, 2)),
        ("long", of(&"n".repeat(64), &"r".repeat(256), u64::MAX, u32::MAX)),
        ("nothing", of("a", "r", 0, 1)),
    ]
}
