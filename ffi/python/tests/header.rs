//! How the build reads `penstock.h`: whole, or not at all.

#[path = "../build/header.rs"]
#[allow(unreachable_pub, reason = "a module of the build script")]
mod header;

use header::parse;

const HEADER: &str = include_str!("../../capi/penstock.h");

#[test]
fn everything_that_the_header_declares_is_read() {
    let read = parse(HEADER).unwrap();
    // Counted in another way: by how the lines of each kind begin or end.
    let lines = |fits: fn(&str) -> bool| HEADER.lines().filter(|line| fits(line)).count();
    assert_eq!(read.structs.len(), lines(|line| line == "typedef struct {"));
    assert_eq!(read.enums.len(), lines(|line| line == "typedef enum {"));
    assert_eq!(read.handles.len(), lines(|line| line.starts_with("typedef uint64_t")));
    assert_eq!(
        read.constants.len(),
        lines(|line| line.starts_with("#define PENSTOCK_") && line != "#define PENSTOCK_H")
    );
    assert_eq!(read.functions.len(), lines(|line| line.ends_with(");") && !line.starts_with("typedef")));
    assert_eq!(read.hooks.len(), lines(|line| line.starts_with("typedef void (*")));
    let values: usize = read.enums.iter().map(|(_, values)| values.len()).sum();
    assert_eq!(values, lines(|line| line.starts_with("    PENSTOCK_") && line.ends_with(',')));
    let fields: usize = read.structs.iter().map(|(_, fields)| fields.len()).sum();
    let is_field = |line: &str| line.starts_with("    ") && !line.starts_with("     ") && line.ends_with(';');
    assert_eq!(fields, lines(is_field));
}

#[test]
fn a_function_has_the_types_of_rust() {
    let read = parse(HEADER).unwrap();
    let connect = read.functions.iter().find(|function| function.name == "penstock_connect").unwrap();
    let parameters: Vec<_> = connect.parameters.iter().map(|one| format!("{}: {}", one.name, one.kind)).collect();
    let expected = [
        "engine: penstock_engine",
        "descriptor: *const c_void",
        "descriptor_bytes: usize",
        "timeout_ms: u64",
        "peer: *mut penstock_peer",
    ];
    assert_eq!((parameters, connect.answer.as_str()), (expected.map(String::from).to_vec(), "penstock_status"));
    assert!(read.functions.iter().any(|function| function.name == "penstock_abi" && function.parameters.is_empty()));
}

#[test]
fn what_cannot_be_read_fails_with_its_line() {
    for strange in [
        "struct penstock_new;",
        "typedef uint32_t penstock_new;",
        "typedef union {",
        "#define PENSTOCK_NEW \"text\"",
        "#if PENSTOCK_ABI",
        "penstock_status penstock_new(penstock_unknown what);",
        "penstock_status penstock_new(char **texts);",
        "penstock_status penstock_new(uint64_t numbers[4]);",
        "typedef struct {\n    void nothing;\n} penstock_new;",
        "typedef struct {\n    uint64_t a, b;\n} penstock_new;",
        "typedef enum {\n    PENSTOCK_NEW,\n} penstock_new;",
        "typedef struct {\n    uint64_t a;",
        "/* not ended",
    ] {
        let why = parse(&format!("\n#include <stddef.h>\n{strange}")).unwrap_err();
        assert!(why.starts_with("line 3: "), "{strange}: {why}");
    }
}
