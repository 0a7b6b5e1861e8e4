use super::*;

fn code_of(text: &str) -> String {
    Source::new("a.rs", text).code.join("\n")
}

fn has_word(text: &str, word: &str) -> bool {
    Source::new("a.rs", text).words().any(|(_, _, found)| found == word)
}

#[test]
fn words_in_comments_and_literals_are_not_code() {
    let hidden = [
        "// unsafe",
        "/* unsafe */",
        "/* /* nested */ unsafe */",
        "/// unsafe",
        "let s = \"unsafe\";",
        "let s = \"a \\\" unsafe\";",
        "let s = b\"unsafe\";",
        "let s = c\"unsafe\";",
        "let s = r\"\\\"; let t = \"unsafe\";",
        "let s = r#\"a \" unsafe\"#;",
        "let s = br##\"\"# unsafe\"##;",
        "let s = \"line\nunsafe\";",
        "let c = '\"'; // unsafe\nlet d = '\"';",
    ];
    for text in hidden {
        assert!(!has_word(text, "unsafe"), "{text} gave {}", code_of(text));
    }
}

#[test]
fn code_next_to_literals_and_comments_is_seen() {
    let visible = [
        "/* a */ unsafe {}",
        "let c = '\"'; unsafe {}",
        "let c = '\\''; unsafe {}",
        "let c = '\\\\'; unsafe {}",
        "let c = '\\u{41}'; unsafe {}",
        "let c = b'\"'; unsafe {}",
        "fn f<'a>(x: &'a str) { unsafe {} }",
        "'outer: loop { unsafe {} }",
        "let s = r\"\\\"; unsafe {}",
        "let r#type = 1; unsafe {}",
        "let s = \"// not a comment\"; unsafe {}",
        "let s = \"/*\"; unsafe {}",
        "let s = 'r'; let t = \"x\"; unsafe {}",
    ];
    for text in visible {
        assert!(has_word(text, "unsafe"), "{text} gave {}", code_of(text));
    }
}

#[test]
fn lines_and_columns_stay_where_they_were() {
    let text = "let a = \"x\ny\"; /* z\n */ b";
    let source = Source::new("a.rs", text);
    assert_eq!(source.code.len(), 3);
    assert_eq!(source.words().last(), Some((2, 4, "b")));
    assert_eq!(source.comments[1].trim(), "/* z");
}

#[test]
fn test_modules_and_functions_are_known() {
    let text =
        "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { let s = \"}\"; }\n}\nfn c() {}\n#[test]\nfn d() {\n}\n";
    let source = Source::new("engine/x/src/a.rs", text);
    let tests: Vec<usize> = (0..source.code.len()).filter(|index| source.in_test(*index)).collect();
    assert_eq!(tests, [1, 2, 3, 4, 6, 7, 8]);
}

#[test]
fn code_outside_tests_is_not_taken_for_a_test() {
    for attribute in ["#[cfg(not(test))]", "#[cfg(any(test, feature = \"x\"))]", "#[cfg(feature = \"test\")]"] {
        let source = Source::new("engine/x/src/a.rs", &format!("{attribute}\nfn a() {{\n}}\n"));
        assert!(!source.in_test(1), "{attribute}");
    }
}

#[test]
fn a_module_file_that_only_tests_include_is_a_test() {
    let mut sources = vec![
        Source::new("engine/x/src/lib.rs", "#[cfg(all(test, loom))]\nmod model;\nmod real;\n"),
        Source::new("engine/x/src/model.rs", "fn a() {}\n"),
        Source::new("engine/x/src/model/more.rs", "fn a() {}\n"),
        Source::new("engine/x/src/real.rs", "#[cfg(test)]\nmod tests;\n"),
        Source::new("engine/x/src/real/tests.rs", "fn a() {}\n"),
    ];
    mark_test_files(&mut sources);
    let tests: Vec<bool> = sources.iter().map(Source::is_test).collect();
    assert_eq!(tests, [false, true, true, false, true]);
}

#[test]
fn only_tests_at_the_end_are_counted_out() {
    let trailing = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n\n";
    assert_eq!(Source::new("a.rs", trailing).lines_without_trailing_tests(), 2);
    let leading = "#[cfg(test)]\nmod tests {\n}\nfn a() {}\n";
    assert_eq!(Source::new("a.rs", leading).lines_without_trailing_tests(), 4);
}

#[test]
fn comments_are_found_above_statements_and_attributes() {
    let text = "// why\n#[inline]\nlet x =\n    call(\n        a,\n        b,\n    );\n";
    let source = Source::new("a.rs", text);
    for index in 2..=5 {
        assert!(source.comments_about(index).iter().any(|c| c.contains("why")), "line {index}");
    }
}

#[test]
fn comments_of_another_statement_do_not_count() {
    let text = "// why\nfirst();\nsecond();\nclosure(|| {\n    third();\n});\n";
    let source = Source::new("a.rs", text);
    assert!(!source.comments_about(2).iter().any(|c| c.contains("why")));
    assert!(!source.comments_about(4).iter().any(|c| c.contains("why")));
}

#[test]
fn methods_of_a_trait_are_told_from_others() {
    for (text, expected) in [
        ("impl Lines for Avx {\n    fn f() {}\n}", true),
        ("unsafe impl<T> Lines for Avx<T>\nwhere\n    T: Copy,\n{\n    fn f() {}\n}", true),
        ("impl Avx {\n    fn f() {}\n}", false),
        ("impl<F: for<'a> Fn(&'a u8)> Avx<F> {\n    fn f() {}\n}", false),
        ("trait Lines {\n    fn f() {}\n}", false),
        ("impl A for B {\n}\n\nmod x {\n    fn f() {}\n}", false),
        ("fn f() {}", false),
    ] {
        let source = Source::new("a.rs", text);
        let index = source.code.iter().position(|line| line.contains("fn f")).expect("in every text");
        assert_eq!(source.is_in_trait_impl(index), expected, "{text}");
    }
}
