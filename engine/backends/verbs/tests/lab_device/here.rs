//! What is here: adapters, names, facts.

use penstock_verbs::adapter::Adapter;
use penstock_verbs::device::{self, ChoiceError, NotHere, Options, Posting};

use crate::ends::{near, open, soft_wire, wire};

#[test]
fn every_soft_device_is_found_and_says_why_it_is_used() {
    let Some(_wire) = soft_wire("every_soft_device_is_found_and_says_why_it_is_used") else { return };
    let found = device::adapters(&Options::default()).expect("cards");
    let names: Vec<&str> = found.adapters.iter().map(|adapter| adapter.attr().name.as_str()).collect();
    assert!(names.contains(&"rxe_a0/1 (a0)") && names.contains(&"rxe_b0/1 (b0)"), "{names:?}");
    for adapter in &found.adapters {
        let attr = adapter.attr();
        println!("{}: {}\n  {attr:?}", attr.name, adapter.describe());
        assert_eq!(attr.gid[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff], "IPv4 before what is link-local");
        assert_eq!(attr.network_bits, 96 + 24);
        assert!(attr.is_routable && attr.mtu >= 1024 && attr.inline_max >= 32 && attr.sges_max >= 30);
    }
    println!("{}", found.device_memory);
    for sentence in &found.sentences {
        println!("{sentence}");
    }
    let of_a = found.sentences.iter().find(|sentence| sentence.about == "rxe_a0:1").expect("a sentence about it");
    assert!(of_a.is_used && of_a.why.contains("10.77.0.1") && of_a.why.contains("link-local"), "{of_a}");
}

#[test]
fn a_name_that_is_not_here_is_told_with_those_that_are() {
    let Some(_wire) = soft_wire("a_name_that_is_not_here_is_told_with_those_that_are") else { return };
    let named = |name: &str| Options { wanted: vec![name.parse().expect("a name")], ..Options::default() };
    let error = device::adapters(&named("mlx5_7")).expect_err("no such card");
    assert!(matches!(error, NotHere::Choice(ChoiceError::Unknown { .. })), "{error:?}");
    assert!(error.to_string().contains("rxe_a0"), "{error}");
    let error = device::adapters(&named("rxe_a0:1:77")).expect_err("no such address").to_string();
    assert!(error.contains("10.77.0.1"), "{error}");
}

#[test]
fn a_desk_that_is_too_large_is_refused_with_what_there_is() {
    let Some(_wire) = wire("a_desk_that_is_too_large_is_refused_with_what_there_is") else { return };
    let adapter = open(&near(), Posting::Extended);
    let receives = adapter.attr().receives_max + 1;
    let error = adapter.worker_cq(16, receives).err().expect("too many").to_string();
    assert!(error.contains(&receives.to_string()) && error.contains("receives"), "{error}");
}
