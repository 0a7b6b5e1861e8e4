//! The list of all cases, and how each becomes a test.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;

use crate::{Devices, Setting, skip};

/// Tells this program, started again, that the driver of this process is the stand-in.
const ON_STAND_IN: &str = "PENSTOCK_CONFORMANCE_ON_STAND_IN";

/// What the stand-in's card does is done at once: its delays have tests of their own.
const PROMPT: &str = "seed=0";

/// Runs one case, in a module of this path. A failure names transport, mode and case.
pub fn run(setting: Setting, module: &str, case: &str, body: fn(&Setting)) {
    if let Some(reason) = setting.why_not() {
        skip::report(&case.replace('/', "::"), &reason);
        return;
    }
    if setting.devices != Devices::Nowhere && std::env::var_os(ON_STAND_IN).is_none() {
        return run_on_stand_in(module, case);
    }
    if let Err(failure) = catch_unwind(AssertUnwindSafe(|| body(&setting))) {
        let text = failure.downcast_ref::<String>().cloned();
        let text = text.or_else(|| failure.downcast_ref::<&str>().map(|&text| text.to_owned()));
        match text {
            Some(text) => panic!("{setting}/{case}: {text}"),
            None => resume_unwind(failure),
        }
    }
}

/// Runs one case in a process of its own, since a driver is opened and started once: this program again, told which test.
fn run_on_stand_in(module: &str, case: &str) {
    let (_, module) = module.split_once("::").expect("tests are in modules of their program");
    let test = format!("{module}::{}", case.rsplit('/').next().unwrap_or(case));
    let program = std::env::current_exe().expect("this program has a path");
    let driver = program.with_file_name("libpenstock_cuda_driver.so");
    let card = program.ancestors().nth(2).map(|folder| folder.join("penstock-cuda-card"));
    let is_built = driver.exists() && card.is_some_and(|card| card.exists());
    assert!(is_built, "the stand-in is built by `cargo build -p penstock-cuda-driver`");
    let mut command = Command::new(&program);
    command.args([&test, "--exact", "--nocapture"]).env(ON_STAND_IN, "1").env("PENSTOCK_CUDA_STAND_IN", PROMPT);
    let ran = command.env(penstock::device::PATH_VARIABLE, driver).output().expect("it can be started again");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&ran.stderr));
}

/// Makes every case a test, in a module of this name, under this setting:
///
/// ```
/// use penstock::config::TransportName;
/// use penstock_conformance::{Place, Setting, suite};
///
/// suite!(inline: Setting::inline(TransportName::Local, Place::Here));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! suite {
    ($mode:ident: $setting:expr) => {
        mod $mode {
            #[allow(unused_imports)]
            use super::*;

            fn setting() -> $crate::Setting {
                $setting
            }

            $crate::for_every_case!(setting);
        }
    };
}

/// Makes every case of transfers by name a test, in a module of this name, under this setting.
#[macro_export]
macro_rules! suite_by_name {
    ($mode:ident: $setting:expr) => {
        mod $mode {
            #[allow(unused_imports)]
            use super::*;

            fn setting() -> $crate::Setting {
                $setting
            }

            $crate::cases_as_tests! { setting;
                named: scenario_01_a_completion_before_the_mapping_is_delivered_once,
                    scenario_02_a_live_id_of_a_second_owner_is_refused_and_the_first_is_unaffected,
                    scenario_03_memory_is_held_until_all_distinct_ranks_have_acked,
                    scenario_04_two_thousand_tokens_in_two_legs_match, scenario_05_ten_legs_match,
                    scenario_06_a_cut_at_token_1000_gives_the_same_bytes,
                    scenario_07_no_memory_for_a_leg_is_met_as_configured,
                    scenario_08_an_aborting_sink_gets_its_blocks_when_nothing_can_land_any_more,
                    scenario_09_a_source_that_fails_in_mid_layer_is_known_in_a_second,
                    scenario_11_what_makes_no_sense_is_counted_and_everybody_else_is_served,
                    scenario_12_a_restarted_peer_is_another_one;
                defects: defect_000_a_retry_or_second_sample_reuses_the_id, defect_001_plane_major_data_is_misplaced,
                    defect_001_division_drops_the_remainder, defect_001_cached_data_is_a_view_of_freed_memory,
                    defect_001_entries_leak_on_failure;
            }
        }
    };
}

/// Makes a test of every case that there is but those of transfers by name.
#[doc(hidden)]
#[macro_export]
macro_rules! for_every_case {
    ($setting:ident) => {
        $crate::cases_as_tests! { $setting;
            bytes: one_byte_is_written, one_byte_is_read, any_alignment_will_do, one_extent_of_64_mib,
                ten_thousand_scattered_blocks;
            shapes: layers_times_blocks, blocks_with_strides, strided_runs, plain_extents,
                several_region_pairs_in_one_plan, pools_and_caller_memory_in_one_plan, a_plan_is_used_a_thousand_times,
                a_plan_is_submitted_again_while_it_moves;
            addresses: entries_lie_in_any_regions, repeated_destinations_and_plans_of_nothing,
                what_lies_in_no_region_is_named, regions_are_found_by_address_after_a_refresh;
            notes: an_empty_notification_arrives, payloads_arrive_in_full, a_notification_that_is_too_long_is_refused,
                a_notification_comes_after_all_its_bytes, counters_count_arrivals,
                a_counter_and_a_notification_go_together, a_counter_of_another_peer_is_refused, many_counters_come_and_go, a_transfer_without_a_notification_tells_nobody;
            pressure: full_is_an_answer_while_handles_are_held, a_tiny_queue_loses_nothing,
                a_flood_waits_and_disturbs_nobody, small_notifications_do_not_starve_a_large_one,
                a_burst_is_served_in_turn, three_peers_are_served_at_once, both_sides_write_at_once,
                reads_and_writes_go_on_at_once, urgent_transfers_overtake_bulk;
            ends: a_deadline_ends_a_transfer_that_moves, a_deadline_ends_a_notification_that_waits,
                cancel_before_it_moves, cancel_while_it_moves, cancel_while_bytes_land_here,
                cancel_while_its_notification_waits,
                cancel_after_its_end, a_dropped_handle_detaches;
            withdrawal: revoke_while_a_transfer_moves, revoke_spares_plans_that_do_not_touch_it, a_plan_outlives_regions_that_come_and_go,
                revoke_while_it_is_read,
                revoke_of_the_own_side, the_own_side_is_taken_back_while_bytes_land_there,
                deregister_while_a_transfer_moves, a_stale_generation_is_refused,
                an_answer_comes_by_its_deadline;
            rights: rights_are_checked_when_a_plan_is_built, caller_memory_works_on_this_side,
                caller_memory_on_the_other_side_is_as_caps_say, a_handle_changes_hands_as_caps_say,
                a_plan_for_one_peer_is_refused_by_another;
            waiting: one_call_looks_at_many_transfers, no_end_is_slept_through, no_arrival_is_slept_through, arming_is_truthful,
                blocking_waits_keep_their_time, a_target_that_rests_receives_bytes, statistics_add_up;
            sessions: disconnect_and_connect_again, leaving_is_quick, the_other_side_disconnects, a_restarted_engine_is_another_one,
                a_killed_process_ends_its_session_only, a_second_engine_of_the_same_name_is_refused,
                several_engines_live_in_one_process, connecting_twice_finds_the_same_session,
                a_descriptor_of_nobody_is_refused, a_restarted_engine_is_found_by_its_name,
                nobody_of_a_name_is_an_answer_in_time;
            draining: both_sides_finish_what_runs, what_is_new_is_refused_and_what_waits_goes_on,
                a_peer_may_drain_at_the_same_time,
                a_drain_without_time_takes_nothing_new;
            shards: two_ranks_send_to_four, four_ranks_send_to_two;
        }
    };
}

/// A module for each group and a test for each case in it.
#[doc(hidden)]
#[macro_export]
macro_rules! cases_as_tests {
    ($setting:ident; $($group:ident: $($case:ident),+;)+) => {
        $(mod $group {
            $(#[test]
            fn $case() {
                let case = concat!(stringify!($group), "/", stringify!($case));
                $crate::suite::run(super::$setting(), module_path!(), case, $crate::cases::$group::$case);
            })+
        })+
    };
}
