//! The list of what has to agree with C is whole and makes sense, on any machine; whether it *does* agree, `lab_layout` asks.

use std::collections::BTreeSet;
use std::path::Path;

use penstock_verbs_sys::{Library, NotHere, layout};

/// Every source of the crate, by its path from `src`.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut waiting, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources can be read") {
            let path = entry.expect("the sources can be read").path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                let name = path.strip_prefix(&root).expect("it is below").display().to_string();
                found.push((name, std::fs::read_to_string(&path).expect("the sources can be read")));
            }
        }
    }
    found
}

#[test]
fn structures_of_c_are_defined_by_the_macro_that_lists_them_and_nowhere_else() {
    let sources = sources();
    let outside: Vec<_> =
        sources.iter().filter(|(_, text)| text.contains("repr(C")).map(|(name, _)| name.as_str()).collect();
    assert_eq!(outside, ["layout.rs"]);
    let exported = sources.iter().filter(|(_, text)| text.contains("extern \"C\" {")).count();
    assert_eq!(exported, 0, "nothing is linked");
}

#[test]
fn every_module_with_a_list_of_its_own_is_in_the_whole_list() {
    let whole = sources().into_iter().find(|(name, _)| name == "layout.rs").expect("the list is there").1;
    for (name, text) in sources() {
        let module = name.trim_end_matches(".rs").replace('/', "::");
        for (invocation, list) in [("c_structs! {", "STRUCTS"), ("c_constants! {", "CONSTANTS")] {
            let defines = text.lines().any(|line| line.starts_with(invocation));
            assert_eq!(defines, whole.contains(&format!("{module}::{list}")), "{module} and its {list}");
        }
    }
}

#[test]
fn names_are_listed_once_and_fields_lie_within_their_structures_without_overlapping() {
    let names = layout::structs()
        .map(|of| of.name)
        .chain(layout::enums().map(|of| of.name))
        .chain(layout::constants().map(|of| of.name))
        .chain(layout::functions().map(|of| of.name));
    let mut seen = BTreeSet::new();
    for name in names {
        assert!(seen.insert(name), "{name} is listed twice");
    }
    for of in layout::structs() {
        assert!(of.align.is_power_of_two() && of.size % of.align == 0, "{of:?}");
        let is_union = of.fields.len() > 1 && of.fields.iter().all(|field| field.offset == 0);
        let mut end = 0;
        for field in of.fields {
            assert!(field.offset >= end || is_union, "{}.{} overlaps what is before it", of.name, field.name);
            end = field.offset + field.size;
            assert!(end <= of.size, "{}.{} reaches out", of.name, field.name);
        }
    }
}

/// Sizes that are part of the interface on 64-bit Linux, as the headers of rdma-core 44 give them with the GNU C library.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn structures_that_cross_the_interface_have_their_sizes() {
    let sizes = [
        ("ibv_gid", 16),
        ("ibv_device", 664),
        ("ibv_device_attr", 232),
        ("ibv_port_attr", 52),
        ("ibv_context_ops", 256),
        ("ibv_context", 328),
        ("ibv_mr", 48),
        ("ibv_cq", 128),
        ("ibv_wc", 48),
        ("ibv_srq", 128),
        ("ibv_qp", 160),
        ("ibv_qp_attr", 144),
        ("ibv_qp_init_attr", 64),
        ("ibv_sge", 16),
        ("ibv_send_wr", 128),
        ("ibv_recv_wr", 32),
        ("ibv_async_event", 16),
        ("rdma_cm_id", 416),
        ("rdma_conn_param", 24),
        ("rdma_cm_event", 80),
    ];
    for (name, size) in sizes {
        let of = layout::structs().find(|of| of.name == name).expect("it is in the list");
        assert_eq!((of.name, of.size), (name, size));
    }
}

#[test]
fn the_libraries_open_or_say_what_is_missing_and_which_package_has_it() {
    match Library::open() {
        Ok(open) => {
            let again = Library::open().expect("what is open stays open");
            assert!(std::ptr::eq(open, again), "they are opened once");
            for missing in open.verbs.missing().chain(open.cm.missing()) {
                assert!(layout::functions().any(|of| of.is_optional && of.name == missing.symbol), "{missing}");
            }
        }
        Err(absence) => {
            let (NotHere::Library { library, .. } | NotHere::Symbol { library, .. }) = &absence;
            let words = absence.to_string();
            assert!(words.contains(library.packages) && words.contains(&library.to_string()), "{words}");
        }
    }
}
