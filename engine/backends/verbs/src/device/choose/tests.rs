use proptest::prelude::*;

use super::super::networks::mapped;
use super::super::seen::SeenNetwork;
use super::*;

/// The address that a network device gives itself.
fn local(last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&[0x0e, 0x42, 0xa1, 0xff, 0xfe, 0, 0, last]);
    gid
}

fn global(last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    gid[15] = last;
    gid
}

fn network(name: &str) -> Option<SeenNetwork> {
    Some(SeenNetwork { name: name.to_owned(), is_up: true, node: None })
}

fn gid(index: u8, gid: [u8; 16], kind: GidKind, device: &str) -> SeenGid {
    SeenGid { index, gid, kind, network: network(device), network_bits: 120 }
}

/// A port as mlx5 shows it: every address twice, for both versions of RoCE.
fn roce_port(number: u8, device: &str, last: u8) -> SeenPort {
    SeenPort {
        number,
        state: "4: ACTIVE".to_owned(),
        is_ethernet: true,
        bandwidth: Some(100_000_000_000),
        gids: vec![
            gid(0, local(last), GidKind::RoceV1, device),
            gid(1, local(last), GidKind::RoceV2, device),
            gid(2, mapped([192, 0, 2, last]), GidKind::RoceV1, device),
            gid(3, mapped([192, 0, 2, last]), GidKind::RoceV2, device),
            gid(4, global(last), GidKind::RoceV1, device),
            gid(5, global(last), GidKind::RoceV2, device),
        ],
    }
}

fn infiniband_port(number: u8, last: u8) -> SeenPort {
    let its = SeenGid { network: None, network_bits: 64, ..gid(0, local(last), GidKind::InfiniBand, "") };
    SeenPort { is_ethernet: false, gids: vec![its], ..roce_port(number, "", last) }
}

fn device(name: &str, ports: Vec<SeenPort>) -> SeenDevice {
    SeenDevice { name: name.to_owned(), speaks: Speaks::InfiniBand, node: None, has_driver: true, ports }
}

fn named(names: &[&str]) -> Vec<WantedDevice> {
    names.iter().map(|name| name.parse().expect("a name")).collect()
}

fn chosen(seen: &[SeenDevice]) -> Chosen {
    choose(seen, &[], &[]).expect("something is chosen")
}

fn of<'a>(sentences: &'a [Sentence], about: &str) -> &'a Sentence {
    sentences.iter().find(|sentence| sentence.about == about).unwrap_or_else(|| panic!("{about}: {sentences:?}"))
}

#[test]
fn the_second_version_and_a_global_address_of_ipv4_are_best() {
    let chosen = chosen(&[device("mlx5_0", vec![roce_port(1, "eth0", 1)])]);
    let [pick] = &chosen.picks[..] else { panic!("one rail: {chosen:?}") };
    assert_eq!((pick.gid_index, pick.gid, pick.is_routable), (3, mapped([192, 0, 2, 1]), true));
    assert_eq!((pick.network.as_deref(), pick.network_bits), (Some("eth0"), 120));
    let why = of(&chosen.sentences, "mlx5_0:1").to_string();
    assert!(
        why.starts_with(
            "mlx5_0:1: used, by address 192.0.2.1 (RoCE v2, eth0, index 3); better than address 2001:db8::1"
        )
    );
}

#[test]
fn only_link_local_addresses_are_used_and_not_routable() {
    let mut port = roce_port(1, "eth0", 1);
    port.gids.truncate(2);
    let chosen = chosen(&[device("mlx5_0", vec![port])]);
    assert_eq!((chosen.picks[0].gid_index, chosen.picks[0].is_routable), (1, false));
    assert!(of(&chosen.sentences, "mlx5_0:1").why.contains("link-local"));
}

#[test]
fn the_first_version_is_used_where_there_is_no_other_and_is_not_routable() {
    let mut port = roce_port(1, "eth0", 1);
    port.gids.retain(|gid| gid.kind == GidKind::RoceV1);
    let chosen = chosen(&[device("mlx4_0", vec![port])]);
    assert_eq!((chosen.picks[0].gid_index, chosen.picks[0].is_routable), (2, false));
}

#[test]
fn infiniband_needs_no_network_device() {
    let chosen = chosen(&[device("mlx5_0", vec![infiniband_port(1, 7)])]);
    assert_eq!((chosen.picks[0].gid_index, chosen.picks[0].network.as_deref()), (0, None));
    assert!(of(&chosen.sentences, "mlx5_0:1").why.contains("InfiniBand"));
}

#[test]
fn a_port_that_is_down_says_what_to_do() {
    let mut down = roce_port(2, "eth1", 2);
    down.state = "1: DOWN".to_owned();
    let seen = [device("mlx5_0", vec![roce_port(1, "eth0", 1), down])];
    let chosen = chosen(&seen);
    assert_eq!(chosen.picks.len(), 1);
    let told = of(&chosen.sentences, "mlx5_0:2");
    assert!(!told.is_used && told.why.contains("1: DOWN") && told.why.contains("cable"), "{told}");
    // By its own name it is an error; of a whole device one port is enough.
    let error = choose(&seen, &named(&["mlx5_0:2"]), &[]).expect_err("it is down");
    assert!(matches!(&error, ChoiceError::Unfit { name, .. } if name == "mlx5_0:2"), "{error}");
    assert_eq!(choose(&seen, &named(&["mlx5_0"]), &[]).expect("the other port").picks.len(), 1);
}

#[test]
fn each_port_is_one_rail() {
    let chosen = chosen(&[device("mlx5_0", vec![roce_port(1, "eth0", 1), roce_port(2, "eth1", 2)])]);
    let ports: Vec<u8> = chosen.picks.iter().map(|pick| pick.port).collect();
    assert_eq!(ports, [1, 2]);
}

#[test]
fn a_function_without_a_network_device_here_is_passed_over() {
    let mut elsewhere = roce_port(1, "", 3);
    for gid in &mut elsewhere.gids {
        gid.network = None;
    }
    let seen = [device("mlx5_2", vec![elsewhere]), device("mlx5_0", vec![roce_port(1, "eth0", 1)])];
    let chosen = chosen(&seen);
    assert_eq!(chosen.picks[0].device, "mlx5_0");
    assert!(of(&chosen.sentences, "mlx5_2:1").why.contains("another namespace"));
    let error = choose(&seen, &named(&["mlx5_2:1:3"]), &[]).expect_err("no network device").to_string();
    assert!(error.contains("another namespace"), "{error}");
}

#[test]
fn an_address_of_a_network_device_that_is_down_gives_way() {
    let mut port = roce_port(1, "eth0", 1);
    let vlan = Some(SeenNetwork { name: "eth0.5".to_owned(), is_up: false, node: None });
    port.gids[3].network = vlan;
    let chosen = chosen(&[device("mlx5_0", vec![port])]);
    assert_eq!(chosen.picks[0].gid_index, 5);
    assert!(of(&chosen.sentences, "mlx5_0:1").why.contains("its network device eth0.5 is down"));
}

#[test]
fn a_device_that_speaks_something_else_or_has_no_driver_says_so() {
    let mut iwarp = device("irdma0", vec![roce_port(1, "eth0", 1)]);
    iwarp.speaks = Speaks::Other("4: RNIC".to_owned());
    let mut alone = device("mlx5_0", vec![roce_port(1, "eth1", 2)]);
    alone.has_driver = false;
    let error = choose(&[iwarp, alone], &[], &[]).expect_err("neither can be used");
    let ChoiceError::Nothing { sentences } = &error else { panic!("{error}") };
    assert!(of(sentences, "irdma0").why.contains("4: RNIC"));
    assert!(of(sentences, "mlx5_0").why.contains("ibverbs-providers"));
    assert!(error.to_string().contains("irdma0: not used"), "{error}");
}

#[test]
fn names_are_kept_in_their_order_and_say_which_address() {
    let seen = [device("mlx5_0", vec![roce_port(1, "eth0", 1)]), device("mlx5_1", vec![roce_port(1, "eth1", 2)])];
    let chosen = choose(&seen, &named(&["mlx5_1:1:1", "mlx5_0"]), &[]).expect("both are here");
    let picked: Vec<(&str, u8)> = chosen.picks.iter().map(|pick| (pick.device.as_str(), pick.gid_index)).collect();
    assert_eq!(picked, [("mlx5_1", 1), ("mlx5_0", 3)]);
    let one = choose(&seen, &named(&["mlx5_1"]), &[]).expect("it is here");
    assert!(of(&one.sentences, "mlx5_0").why.contains("other devices were named"));
}

#[test]
fn a_name_of_nothing_lists_what_there_is() {
    let seen = [device("mlx5_0", vec![roce_port(1, "eth0", 1)]), device("mlx5_1", vec![roce_port(1, "eth1", 2)])];
    let why = |name: &str| choose(&seen, &named(&[name]), &[]).expect_err("no such thing").to_string();
    assert_eq!(why("rxe0"), "there is no `rxe0` here; there is mlx5_0, mlx5_1");
    assert_eq!(why("mlx5_0:2"), "there is no `mlx5_0:2` here; there is mlx5_0:1");
    assert!(why("mlx5_0:1:9").contains("mlx5_0:1:3 (address 192.0.2.1 (RoCE v2, eth0, index 3))"));
    assert!(choose(&[], &named(&["rxe0"]), &[]).expect_err("nothing").to_string().contains("no device"));
}

#[test]
fn a_port_is_named_once() {
    let seen = [device("mlx5_0", vec![roce_port(1, "eth0", 1)])];
    let error = choose(&seen, &named(&["mlx5_0", "mlx5_0:1:1"]), &[]).expect_err("twice");
    assert_eq!(error, ChoiceError::Twice { name: "mlx5_0:1:1".to_owned() });
}

#[test]
fn what_is_near_the_workers_comes_first() {
    let on = |node, name: &str, last| SeenDevice { node, ..device(name, vec![roce_port(1, name, last)]) };
    let seen = [on(Some(0), "far", 1), on(None, "unknown", 2), on(Some(1), "near", 3)];
    let chosen = choose(&seen, &[], &[1]).expect("all can be used");
    let names: Vec<&str> = chosen.picks.iter().map(|pick| pick.device.as_str()).collect();
    assert_eq!(names, ["near", "unknown", "far"]);
    assert!(of(&chosen.sentences, "far:1").why.ends_with("on a NUMA node without workers"));
}

#[test]
fn more_ports_than_rails_are_passed_over_aloud() {
    let seen: Vec<SeenDevice> =
        (0..10).map(|number| device(&format!("mlx5_{number}"), vec![roce_port(1, "eth", number)])).collect();
    let chosen = chosen(&seen);
    assert_eq!(chosen.picks.len(), RAILS_MAX);
    let told = of(&chosen.sentences, "mlx5_9:1");
    assert!(!told.is_used && told.why.contains("name the ones"), "{told}");
}

prop_compose! {
    fn any_gid()(
        index in 0..16_u8,
        form in 0..4,
        last in 1..9_u8,
        kind in prop_oneof![Just(GidKind::RoceV1), Just(GidKind::RoceV2)],
        state in 0..3,
    ) -> SeenGid {
        let address = match form {
            0 => local(last),
            1 => global(last),
            _ => mapped([192, 0, 2, last]),
        };
        let seen = gid(index, address, kind, "eth");
        match state {
            0 => SeenGid { network: None, ..seen },
            1 => SeenGid { network: Some(SeenNetwork { is_up: false, name: "eth".to_owned(), node: None }), ..seen },
            _ => seen,
        }
    }
}

prop_compose! {
    fn any_device()(
        ports in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any_gid(), 0..6)), 0..4),
        node in proptest::option::of(0..3_u32),
        has_driver in proptest::bool::weighted(0.8),
        is_iwarp in proptest::bool::weighted(0.2),
    ) -> SeenDevice {
        let port = |(place, (is_active, gids)): (usize, (bool, Vec<SeenGid>))| SeenPort {
            number: place as u8 + 1,
            state: if is_active { "4: ACTIVE" } else { "1: DOWN" }.to_owned(),
            is_ethernet: true,
            bandwidth: None,
            gids,
        };
        let speaks = if is_iwarp { Speaks::Other("4: RNIC".to_owned()) } else { Speaks::InfiniBand };
        let ports = ports.into_iter().enumerate().map(port).collect();
        SeenDevice { name: String::new(), speaks, node, has_driver, ports }
    }
}

proptest! {
    /// Whatever is here: every port or its device has one sentence, what is used can be used, and nothing better was left.
    #[test]
    fn every_port_is_answered_for(mut seen in proptest::collection::vec(any_device(), 0..5), nodes in proptest::collection::vec(0..3_u32, 0..2)) {
        for (place, device) in seen.iter_mut().enumerate() {
            device.name = format!("mlx5_{place}");
        }
        let (picks, sentences) = match choose(&seen, &[], &nodes) {
            Ok(chosen) => (chosen.picks, chosen.sentences),
            Err(ChoiceError::Nothing { sentences }) => (Vec::new(), sentences),
            Err(other) => panic!("nothing was named: {other}"),
        };
        prop_assert_eq!(sentences.iter().filter(|sentence| sentence.is_used).count(), picks.len());
        for device in &seen {
            let of_device = sentences.iter().any(|sentence| sentence.about == device.name);
            for port in &device.ports {
                let about = format!("{}:{}", device.name, port.number);
                let told = sentences.iter().filter(|sentence| sentence.about == about).count();
                prop_assert_eq!(told, usize::from(!of_device), "{}", about);
            }
        }
        for pick in &picks {
            let device = seen.iter().find(|device| device.name == pick.device).expect("a device that was seen");
            prop_assert!(device.has_driver && device.speaks == Speaks::InfiniBand);
            let port = device.ports.iter().find(|port| port.number == pick.port).expect("a port that was seen");
            prop_assert!(port.is_active());
            let usable = |gid: &&SeenGid| gid.network.as_ref().is_some_and(|network| network.is_up);
            let best = port.gids.iter().filter(usable).map(rank).min().expect("an address");
            // Drawn places in the table need not differ, as those of a port do.
            let is_its = |gid: &&SeenGid| gid.index == pick.gid_index && gid.gid == pick.gid;
            let its = port.gids.iter().filter(usable).filter(is_its).map(rank).min();
            prop_assert_eq!(its.expect("an address that can be used"), best);
        }
        let distances: Vec<Distance> = picks.iter().map(|pick| distance(pick.node, &nodes)).collect();
        prop_assert!(distances.is_sorted());
    }

    /// Any names: an answer or a typed error, and never the same port twice.
    #[test]
    fn names_never_pick_a_port_twice(mut seen in proptest::collection::vec(any_device(), 0..4), names in proptest::collection::vec((0..4_u8, proptest::option::of(1..4_u8), proptest::option::of(0..16_u8)), 1..4)) {
        for (place, device) in seen.iter_mut().enumerate() {
            device.name = format!("mlx5_{place}");
        }
        let wanted: Vec<WantedDevice> = names
            .into_iter()
            .map(|(device, port, gid)| WantedDevice { device: format!("mlx5_{device}"), port, gid_index: port.and(gid) })
            .collect();
        if let Ok(chosen) = choose(&seen, &wanted, &[]) {
            let mut ports: Vec<(&str, u8)> = chosen.picks.iter().map(|pick| (pick.device.as_str(), pick.port)).collect();
            ports.sort_unstable();
            ports.dedup();
            prop_assert_eq!(ports.len(), chosen.picks.len());
            prop_assert!(!ports.is_empty());
        }
    }
}
