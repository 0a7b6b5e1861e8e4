//! Labs: the suite between two processes in datagrams over DPDK, through memory that they share and through interfaces on a bridge,
//! and between a socket of the kernel and DPDK.
//! What needs several targets, or kills one, runs on the bridge: memif joins two ends, and one that is killed may take the other with it.

use penstock::config::TransportName;
use penstock_conformance::{Carrier, Place, Setting, Stage, cases_as_tests, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

fn carried(carrier: Carrier) -> Setting {
    Setting::adaptive(TransportName::Datagram, 1, THERE).carried(carrier)
}

suite!(bridge: carried(Carrier::Bridge));
suite_by_name!(bridge_by_name: carried(Carrier::Bridge));
suite!(from_udp: carried(Carrier::FromUdp));
suite_by_name!(from_udp_by_name: carried(Carrier::FromUdp));

/// The cases in which there is one target, which nobody kills.
macro_rules! suite_of_two {
    ($name:ident: $setting:expr) => {
        mod $name {
            use super::*;

            fn setting() -> Setting {
                $setting
            }

            cases_as_tests! { setting;
                bytes: one_byte_is_written, one_byte_is_read, any_alignment_will_do, one_extent_of_64_mib,
                    ten_thousand_scattered_blocks;
                shapes: layers_times_blocks, blocks_with_strides, strided_runs, several_region_pairs_in_one_plan,
                    a_plan_is_used_a_thousand_times;
                notes: payloads_arrive_in_full, a_notification_comes_after_all_its_bytes, counters_count_arrivals;
                pressure: a_tiny_queue_loses_nothing, both_sides_write_at_once,
                    reads_and_writes_go_on_at_once, urgent_transfers_overtake_bulk;
                ends: a_deadline_ends_a_transfer_that_moves, cancel_while_it_moves, cancel_while_bytes_land_here;
                withdrawal: revoke_while_a_transfer_moves, revoke_while_it_is_read, deregister_while_a_transfer_moves;
                waiting: no_end_is_slept_through, no_arrival_is_slept_through, statistics_add_up;
                sessions: the_other_side_disconnects;
                draining: both_sides_finish_what_runs;
            }
        }
    };
}

suite_of_two!(memif: carried(Carrier::Memif));
suite_of_two!(memif_two_workers: Setting { workers: 2, ..carried(Carrier::Memif) });
suite_of_two!(ring: Setting { place: Place::Here, ..carried(Carrier::Ring) });

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    let ways = [
        (Carrier::Memif, "over dpdk net_memif", "frame 8972"),
        (Carrier::Bridge, "over dpdk net_af_packet", "frame 1472"),
        // Over loopback, the only way past the other engine's device, frames are longer.
        (Carrier::FromUdp, "over udp", "frame 1472"),
    ];
    for (carrier, way, frame) in ways {
        let setting = carried(carrier);
        if let Some(reason) = setting.why_not() {
            penstock_conformance::skip::report("the_suites_take_the_way_that_they_are_named_for", &reason);
            return;
        }
        let stage = Stage::open(&setting);
        let path = stage.peer().path();
        assert!(path.contains(way) && path.contains(frame), "{path}");
    }
}
