//! Structs and numbers are in the header as they are here, as the C compiler sees it.

use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use crate::engine::*;
use crate::failure::*;
use crate::memory::*;
use crate::packets::*;
use crate::plan::*;
use crate::status::TEXTS;
use crate::told::*;
use crate::transfer::*;

macro_rules! layouts {
    ($($name:ident { $($field:ident),+ })+) => {{
        let mut text = String::new();
        $(
            let _ = writeln!(text, "_Static_assert(sizeof({0}) == {1}, \"{0}\");", stringify!($name), size_of::<$name>());
            $(
                let (name, field) = (stringify!($name), stringify!($field));
                let offset = offset_of!($name, $field);
                let _ = writeln!(text, "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");");
            )+
        )+
        text
    }};
}

#[test]
fn the_c_compiler_lays_structs_out_as_this_one() {
    let mut text = String::from("#include <penstock.h>\n");
    text += &layouts! {
        penstock_engine_options { size, name, config_file, config_yaml }
        penstock_statistics { size, transfers_completed, transfers_failed, bytes, notes_sent, notes_received, waits_for_room, quarantines, turns, sleeps }
        penstock_packet_statistics { size, sent, lost, spurious, repeated, timeouts, received, late, strangers, forged, replayed, corrupt, dropped_by_port, refused_by_port, blocked, round_trip_ns, window_bytes }
        penstock_error { size, status, peer, stage, cause, remedy, text }
        penstock_pool_options { size, bytes, block_bytes, label, rights, pages }
        penstock_region_info { size, base, bytes, block_bytes, rights }
        penstock_range { offset, bytes }
        penstock_layer { local, remote }
        penstock_block_pair { local, remote }
        penstock_extent { local, remote, bytes }
        penstock_strided { local, remote, bytes, local_stride, remote_stride, count }
        penstock_entry { local, remote, bytes }
        penstock_plan_options { size, direction, reserved, layers, layer_count, blocks, block_count, block_bytes, local_stride, remote_stride, strided, strided_count, extents, extent_count, keep, keep_count }
        penstock_notification { peer, note, note_high, payload, payload_bytes }
        penstock_submit_options { size, timeout_ms, priority, has_note, note, note_high, payload, payload_bytes, counter }
        penstock_result { size, bytes, status, notified }
        penstock_completion { place, bytes, status, notified }
        penstock_cancel_answer { size, local, remote, local_quarantine, remote_quarantine }
    };
    for (status, _) in TEXTS {
        let _ = writeln!(text, "_Static_assert({status:?} == {}, \"{status:?}\");", *status as i32);
    }
    let here = env!("CARGO_MANIFEST_DIR");
    let header = std::fs::read_to_string(format!("{here}/penstock.h")).unwrap();
    let structs = header.matches("typedef struct {").count();
    assert_eq!(structs, text.matches("_Static_assert(sizeof").count(), "a struct of the header is not looked at");
    let path = std::env::temp_dir().join(format!("penstock-layout-{}.c", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let ran =
        Command::new("cc").args(["-std=c11", "-fsyntax-only", "-Werror", "-I", here]).arg(&path).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
