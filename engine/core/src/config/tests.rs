//! The configuration as its users meet it: files, code, mistakes, and the pages made from the table.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_yaml::Value;

use super::network::{Ipv4Network, Mac, Neighbour};
use super::*;
use crate::ids::EngineName;

fn workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn refusal(text: &str) -> String {
    Config::parse(text, "a.yaml").expect_err(text).to_string()
}

/// Compares a file with what it is made from, or writes it where `PENSTOCK_UPDATE` is set.
fn assert_file_is(path: &str, made: &str) {
    let file = workspace(path);
    if std::env::var_os("PENSTOCK_UPDATE").is_some() {
        std::fs::write(&file, made).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == made, "{path} is out of date: run PENSTOCK_UPDATE=1 cargo test -p penstock-core config");
}

mod table {
    use super::*;

    fn fields(config: &Config) -> Vec<(String, Value)> {
        let Value::Mapping(sections) = config.values() else { panic!("a configuration is a group of sections") };
        let keys = |(section, keys): (Value, Value)| match keys {
            Value::Mapping(keys) => keys
                .into_iter()
                .map(move |(name, value)| (format!("{}.{}", section.as_str().unwrap(), name.as_str().unwrap()), value)),
            _ => panic!("a section is a group of keys"),
        };
        sections.into_iter().flat_map(keys).collect()
    }

    #[test]
    fn every_field_has_one_entry_in_the_same_order_and_every_entry_a_field() {
        let fields: Vec<_> = fields(&Config::default()).into_iter().map(|(key, _)| key).collect();
        let documented: Vec<_> = KEYS.iter().map(|doc| doc.key).collect();
        assert_eq!(fields, documented);
    }

    #[test]
    fn documented_defaults_are_the_defaults_and_lie_in_their_ranges() {
        for (key, value) in fields(&Config::default()) {
            let doc = KeyDoc::find(&key).unwrap();
            assert_eq!(serde_yaml::from_str::<Value>(doc.default).unwrap(), value, "{key}");
            assert_eq!(doc.range.refused(&value), None, "{key}");
        }
    }

    #[test]
    fn every_entry_says_what_more_and_less_cost_and_counts_in_a_unit() {
        for doc in KEYS {
            for text in [doc.what, doc.more_costs, doc.less_costs] {
                assert!(text.ends_with('.') && !text.contains("  ") && !text.contains('|'), "{}: {text}", doc.key);
            }
            let counts = matches!(doc.range, Range::Number { .. } | Range::PowerOfTwo { .. } | Range::Cores { .. });
            assert_eq!(counts, !doc.unit.is_empty(), "{}", doc.key);
        }
    }

    /// A range that lets a number through must mean a number that the field can hold, and a word
    /// that the type knows.
    #[test]
    fn the_ends_of_every_range_can_be_read() {
        for doc in KEYS {
            let values: Vec<String> = match doc.range {
                Range::Number { min, max } | Range::PowerOfTwo { min, max } => vec![min.to_string(), max.to_string()],
                Range::OneOf(words) => words.iter().map(ToString::to_string).collect(),
                Range::SomeOf(words) => words.iter().map(|word| format!("[{word}]")).collect(),
                Range::Cores { core_max, .. } => vec!["[]".into(), format!("[{core_max}]")],
                Range::Name => vec!["null".into(), "x".into(), "'7'".into()],
                Range::Folder => vec!["null".into(), "/run/x".into()],
                Range::Addresses => vec!["[]".into(), "['127.0.0.1:1', '[::1]:65535']".into()],
                Range::Devices => vec!["[]".into(), "[mlx5_0, mlx5_1:1, 'rxe0:255:255']".into()],
                Range::Device => vec!["null".into(), "'0000:3b:00.0'".into(), "'net_memif0,role=server'".into()],
                Range::Network => vec!["null".into(), "10.0.9.1/24".into()],
                Range::Neighbours => vec!["[]".into(), "['10.0.9.2=02:00:0a:00:09:02']".into()],
                Range::Arguments => vec!["[]".into(), "['--log-level=lib.eal:debug']".into()],
                Range::Flag => vec!["true".into(), "false".into()],
            };
            let (section, name) = doc.parts();
            for value in values {
                // A device must have an address.
                let beside = if doc.range == Range::Device { "\n  address: 10.0.9.1/24" } else { "" };
                let config = Config::parse(&format!("{section}:\n  {name}: {value}{beside}"), "a.yaml");
                assert!(config.is_ok(), "{}: {value}: {config:?}", doc.key);
            }
        }
    }

    #[test]
    fn devices_are_named_once_with_ports_and_places_of_addresses() {
        let read = |list: &str| Config::parse(&format!("transports:\n  verbs_devices: {list}"), "a.yaml");
        for bad in ["''", "rxe0:0", "rxe0:x", "rxe0:1:256", "rxe0:1:2:3", "a/b", "'a b'", "'rxe0:'", "7"] {
            let error = read(&format!("[rxe0, {bad}]")).unwrap_err().to_string();
            assert!(error.starts_with("a.yaml:2:25: `transports.verbs_devices` must be"), "{bad}: {error}");
        }
        assert!(read("[rxe0, rxe0]").is_err(), "named twice");
        assert!(read("rxe0").is_err(), "no list");
        let nine: Vec<String> = (0..9).map(|number| format!("rxe{number}")).collect();
        assert!(read(&format!("[{}]", nine.join(", "))).is_err());
        assert!(Config::default().verbs_devices(["rxe0", "rxe0:1:256"]).validate().is_err());
        assert!(Config::default().verbs_devices(&nine[..8]).verbs_on_demand(true).validate().is_ok());
        assert!(Config::parse("transports:\n  verbs_on_demand: 1", "a.yaml").is_err());
    }

    #[test]
    fn the_words_of_the_types_are_the_words_of_the_table() {
        let words = |key| match KeyDoc::find(key).unwrap().range {
            Range::OneOf(words) | Range::SomeOf(words) => words.iter().copied().collect::<BTreeSet<_>>(),
            _ => panic!("{key} takes words"),
        };
        let progress = [Progress::Busy, Progress::Adaptive, Progress::Inline];
        assert_eq!(words("workers.progress"), progress.into_iter().map(Progress::as_str).collect());
        let pages = [PagesChoice::Auto, PagesChoice::Small, PagesChoice::Huge];
        assert_eq!(words("memory.pages"), pages.into_iter().map(PagesChoice::as_str).collect());
        let io = [TcpIo::Auto, TcpIo::IoUring, TcpIo::Epoll];
        assert_eq!(words("transports.tcp_io"), io.into_iter().map(TcpIo::as_str).collect());
        let connect = [VerbsConnect::Exchange, VerbsConnect::Cm];
        assert_eq!(words("transports.verbs_connect"), connect.into_iter().map(VerbsConnect::as_str).collect());
        assert_eq!(words("transports.allow"), TransportName::ALL.iter().map(|name| name.as_str()).collect());
    }
}

mod files {
    use super::*;

    #[test]
    fn the_reference_page_is_made_from_the_table() {
        assert_file_is("docs/CONFIGURATION.md", &reference_markdown());
    }

    #[test]
    fn the_default_file_is_made_from_the_table_names_every_key_and_changes_nothing() {
        let text = default_yaml();
        assert_file_is("configs/default.yaml", &text);
        assert_eq!(Config::load(workspace("configs/default.yaml")).unwrap(), Config::default());
        for doc in KEYS {
            let (section, name) = doc.parts();
            let below = text.split_once(&format!("\n{section}:\n")).expect(section).1;
            assert!(below.contains(&format!("\n  {name}: {}\n", doc.default)), "{}", doc.key);
        }
    }

    #[test]
    fn every_shipped_file_is_read_says_when_to_use_it_and_is_listed() {
        let page = reference_markdown();
        let mut count = 0;
        for entry in std::fs::read_dir(workspace("configs")).unwrap() {
            let path = entry.unwrap().path();
            // The default file may be being rewritten by its own test, which also reads it.
            if !path.ends_with("default.yaml") {
                Config::load(&path).unwrap_or_else(|error| panic!("{error}"));
                assert!(std::fs::read_to_string(&path).unwrap().starts_with("# "), "{}", path.display());
            }
            let listed = format!("`configs/{}`", path.file_name().unwrap().to_str().unwrap());
            assert!(page.contains(&listed), "{listed} is missing in the reference page");
            count += 1;
        }
        assert!(count >= 4);
    }

    #[test]
    fn files_that_cannot_be_read_say_so() {
        let missing = Config::load("/no/such/penstock.yaml").unwrap_err();
        assert!(matches!(&missing, ConfigError::NotFound { path } if path.ends_with("penstock.yaml")));
        assert!(missing.to_string().contains("`/no/such/penstock.yaml`: check the path"), "{missing}");
        assert!(matches!(Config::load("/"), Err(ConfigError::Unreadable { .. })));
        assert!(matches!(Config::load("/dev/zero"), Err(ConfigError::TooLarge { .. })));
    }
}

mod mistakes {
    use super::*;

    #[test]
    fn an_unknown_key_names_its_place_and_the_nearest_key() {
        assert_eq!(
            refusal("workers:\n  count: 2\n  spinus: 5\n"),
            "a.yaml:3:3: there is no key `workers.spinus`: did you mean `workers.spin_us`?"
        );
        assert_eq!(
            refusal("# c\nworker:\n  count: 2\n"),
            "a.yaml:2:1: there is no key `worker`: did you mean the section `workers`?"
        );
        assert_eq!(
            refusal("session: { spin_us: 5 }"),
            "a.yaml:1:12: there is no key `session.spin_us`: did you mean `workers.spin_us`?"
        );
        assert_eq!(
            refusal("workers.spin_us: 5"),
            "a.yaml:1:1: there is no key `workers.spin_us` at the top: write `workers:` and, indented below it, `spin_us:`"
        );
        assert_eq!(
            refusal("memory:\n  colour: red"),
            "a.yaml:2:3: there is no key `memory.colour`: the keys of `memory` are `pages`"
        );
    }

    #[test]
    fn a_bad_value_names_its_place_what_was_expected_and_what_was_found() {
        assert_eq!(
            refusal("workers:\n  count: 17"),
            "a.yaml:2:10: `workers.count` must be a whole number from 1 to 16; found the number 17"
        );
        assert_eq!(
            refusal("transfers:\n  queue: 1000"),
            "a.yaml:2:10: `transfers.queue` must be a power of two from 2 to 65536; found the number 1000"
        );
        assert_eq!(
            refusal("workers: { progress: lazy }"),
            "a.yaml:1:22: `workers.progress` must be one of `busy`, `adaptive`, `inline`; found the text `lazy`"
        );
        for (value, found) in [
            ("", "nothing"),
            ("-1", "the number -1"),
            ("1.5", "the number 1.5"),
            ("'2'", "the text `2`"),
            ("99999999999999999999999", "the number 99999999999999999999999"),
            ("[1]", "a list"),
            ("{ a: 1 }", "a group of keys"),
            ("!big 3", "the tag `!big`"),
        ] {
            let message = refusal(&format!("workers:\n  count: {value}"));
            assert!(message.starts_with("a.yaml:2:") && message.ends_with(&format!("found {found}")), "{message}");
        }
    }

    #[test]
    fn a_bad_list_element_is_pointed_at() {
        let message = refusal("transports:\n  allow:\n    - shm\n    - rdma\n");
        assert!(message.starts_with("a.yaml:4:7: `transports.allow` must be a list"), "{message}");
        assert!(message.ends_with("found the text `rdma`"), "{message}");
        for (list, column) in [("[0, 0]", 14), ("[0, 1024]", 14), ("[0, [1]]", 14), ("[-1]", 11), ("7", 10)] {
            let message = refusal(&format!("workers:\n  cores: {list}"));
            assert!(message.starts_with(&format!("a.yaml:2:{column}: `workers.cores`")), "{list}: {message}");
        }
        assert!(refusal("transports: { allow: [] }").ends_with("found an empty list"));
        assert!(refusal("transports: { allow: [shm, shm] }").starts_with("a.yaml:1:28:"));
    }

    #[test]
    fn names_and_folders_are_checked() {
        assert!(refusal("engine: { name: ../x }").contains("not starting with a dot"));
        assert!(refusal("engine: { name: 7 }").contains("in quotes if they read as a number"));
        assert!(refusal("engine: { directory: run }").contains("an absolute path"));
        assert!(refusal("engine: { directory: \"/a\\0b\" }").contains("an absolute path"));
    }

    #[test]
    fn repeated_keys_and_sections_are_refused() {
        assert_eq!(
            refusal("workers:\n  count: 1\n  count: 2"),
            "a.yaml:3:3: `workers.count` is given twice: remove one of the two"
        );
        assert_eq!(
            refusal("workers:\n  count: 1\nworkers:\n  spin_us: 2"),
            "a.yaml:3:1: `workers` is given twice: remove one of the two"
        );
    }

    #[test]
    fn shapes_that_are_no_sections_of_keys_are_refused() {
        assert_eq!(refusal("- 1"), "a.yaml:1:1: expected sections such as `workers:`, found a list");
        assert_eq!(
            refusal("workers: 3"),
            "a.yaml:1:10: expected keys, each indented on a line of its own, found the number 3"
        );
        assert_eq!(
            refusal("workers:\n  1: 3"),
            "a.yaml:2:3: expected the name of a key or section, found the number 1"
        );
        assert!(refusal("? [a]\n: 1").contains("found a list"));
    }

    #[test]
    fn what_is_not_yaml_says_where() {
        let message = refusal("workers:\n  count: [1, 2\n");
        assert!(message.starts_with("a.yaml:3:1: this is not valid YAML: "), "{message}");
        let message = refusal("a: *x");
        assert!(message.starts_with("a.yaml:1:4: this is not valid YAML: unknown anchor"), "{message}");
        let message = refusal("workers:\n---\nworkers:\n");
        assert!(message.starts_with("a.yaml: this is not valid YAML: "), "{message}");
    }

    #[test]
    fn values_that_do_not_go_together_are_refused_with_the_line_of_one() {
        let message = refusal("workers:\n  progress: inline\n  count: 2");
        assert!(
            message.starts_with("a.yaml:3:10: `workers.count` is 2 but `workers.progress` is `inline`"),
            "{message}"
        );
        let message = refusal("workers:\n  progress: inline\n  cores: [1]");
        assert!(message.starts_with("a.yaml:3:10: `workers.cores` pins threads"), "{message}");
        let message = refusal("workers:\n  cores: [1, 2]");
        assert!(
            message.starts_with("a.yaml:2:10: `workers.cores` names 2 and `workers.count` is 1: name one core"),
            "{message}"
        );
    }

    #[test]
    fn nothing_means_the_defaults() {
        for text in ["", "# only a comment\n", "---\n", "workers:\n", "engine:\n  name:\n", "{}", "workers: {}"] {
            assert_eq!(Config::parse(text, "a.yaml").unwrap(), Config::default(), "{text:?}");
        }
    }

    #[test]
    fn aliases_work_within_reason() {
        let text = "transfers: { timeout_ms: &t 500 }\nsession: { connect_timeout_ms: *t }";
        assert_eq!(Config::parse(text, "a.yaml").unwrap().session.connect_timeout_ms, 500);
    }
}

mod hostile {
    use super::*;

    fn bounded(text: &str) {
        let started = Instant::now();
        let error = Config::parse(text, "a.yaml").expect_err("hostile text is refused");
        let message = error.to_string();
        assert!(message.len() < 600, "{} bytes of message", message.len());
        assert!(!message.contains(char::is_control), "{message:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?} for {message}", started.elapsed());
    }

    #[test]
    fn large_and_deep_texts_are_refused_in_bounded_time() {
        let room = CONFIG_BYTES_MAX - 64;
        bounded(&"[".repeat(room));
        bounded(&"{".repeat(room));
        bounded(&"[".repeat(1000));
        bounded(&"[a, ".repeat(1000));
        bounded(&"- ".repeat(room / 2));
        bounded(&"? ".repeat(room / 2));
        bounded(&format!("workers: {}", "[".repeat(100) + &"]".repeat(100)));
        bounded(&format!("workers: {{ cores: [{}] }}", "1,".repeat(room / 2 - 20)));
        bounded(&format!("workers: {{ cores: [[{}]] }}", "1,".repeat(room / 2 - 20)));
        bounded(&"x".repeat(room));
        bounded(&format!("{}: 1", "x".repeat(900)));
        bounded(&format!("workers: {{ count: '{}' }}", "x".repeat(room)));
        bounded(&(0..3_000).map(|n| format!("key{n}: {n}\n")).collect::<String>());
        bounded(&"workers:\n".repeat(room / 9));
        bounded(&"x".repeat(CONFIG_BYTES_MAX + 1));
        assert!(default_yaml().len() * 4 < CONFIG_BYTES_MAX);
    }

    #[test]
    fn aliases_that_multiply_are_cut_short() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let below = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![below; 9].join(", ")));
        }
        bounded(&bomb);
        bounded("workers: &w [*w, *w]");
        bounded("&w { workers: *w }");
        bounded("workers: { <<: { count: 1 } }");
    }

    #[test]
    fn control_characters_do_not_reach_messages() {
        bounded("workers: { \"\\e[31m\\n\": 1 }");
        bounded("workers: { progress: \"\\a\\r\\n\" }");
        bounded("workers: { progress: !\u{1}x y }");
    }

    #[test]
    fn bytes_that_are_not_text_say_where() {
        let error = Config::parse_bytes(b"workers:\n  \xff: 1", "a.yaml").unwrap_err();
        assert!(error.to_string().starts_with("a.yaml:2:3: this is not UTF-8 text"), "{error}");
    }
}

mod code {
    use super::*;

    #[test]
    fn setters_can_be_chained_and_the_whole_is_checked_once() {
        let config = Config::default()
            .named("decode-0")
            .directory("/run/x")
            .pinned_to([2, 3])
            .progress(Progress::Busy)
            .spin(Duration::from_nanos(1))
            .transfers_in_flight(8)
            .transfer_timeout(Duration::from_micros(1500))
            .transfer_queue(16)
            .notifications_per_peer(4)
            .transports([TransportName::Shm])
            .pages(PagesChoice::Small)
            .connect_timeout(Duration::from_secs(1))
            .greeting_timeout(Duration::from_secs(2))
            .shutdown_timeout(Duration::from_secs(3));
        config.validate().unwrap();
        assert_eq!((config.workers.count, config.workers.spin()), (2, Duration::from_micros(1)));
        assert_eq!(config.transfers.timeout(), Duration::from_millis(2));
        assert_eq!(config.session.shutdown_timeout(), Duration::from_secs(3));
        assert_eq!(Config::parse(&config.to_yaml(), "written").unwrap(), config);
    }

    #[test]
    fn a_secret_is_no_part_of_what_is_shown_or_written() {
        let digits = "5ec4e7".repeat(11)[..64].to_owned();
        let config = Config::default().secret(&digits);
        let shown = [format!("{config:?}"), format!("{config:#?}"), config.to_yaml()];
        assert!(shown.iter().all(|text| !text.contains("5ec4e7")), "{shown:?}");
        assert_eq!(config.session.secret.as_ref().map(HiddenText::reveal), Some(digits.as_str()));
        config.validate().unwrap();
        assert!(Config::parse("session: { secret: ab }", "written").is_err(), "a file is no place for it");
    }

    #[test]
    fn what_a_file_may_not_say_code_may_not_either() {
        let refused = |config: Config| config.validate().unwrap_err().to_string();
        assert_eq!(
            refused(Config::default().workers(0)),
            "configuration made in code: `workers.count` must be a whole number from 1 to 16; found the number 0"
        );
        assert!(refused(Config::default().named("a/b")).contains("found the text `a/b`"));
        assert!(refused(Config::default().directory("run")).contains("an absolute path"));
        assert!(refused(Config::default().transfer_timeout(Duration::MAX)).contains("`transfers.timeout_ms`"));
        assert!(refused(Config::default().pinned_to([0, 5000])).ends_with("found the number 5000"));
        let inline = Config::default().progress(Progress::Inline).workers(2).validate();
        assert!(matches!(inline, Err(ConfigError::Conflict { conflict: Conflict::InlineCount { count: 2 }, .. })));
    }

    #[test]
    fn ports_of_all_workers_and_the_address_of_a_device_are_looked_at() {
        let refused = |text: &str| refusal(text);
        let error = refused("workers: { count: 2 }\ndatagram: { port: 65535 }");
        assert!(error.starts_with("a.yaml:2:19: `datagram.port` is 65535 and `workers.count` is 2"), "{error}");
        assert!(Config::parse("workers: { count: 2 }\ndatagram: { port: 65534 }", "a.yaml").is_ok());
        let error = refused("dpdk:\n  device: net_memif0");
        assert!(error.starts_with("a.yaml:2:11: `dpdk.device` is set and `dpdk.address` is not"), "{error}");
        for bad in ["10.0.8.2", "10.0.9.1", "10.0.9.3"] {
            let known = "10.0.9.3=02:00:00:00:00:03";
            let error = refused(&format!(
                "dpdk:\n  address: 10.0.9.1/24\n  neighbours: ['{known}', '{bad}=02:00:00:00:00:02']"
            ));
            assert!(
                error.starts_with(&format!("a.yaml:3:15: `{bad}=02:00:00:00:00:02` under `dpdk.neighbours`")),
                "{error}"
            );
        }
        for (key, bad) in [
            ("address", "10.0.9.1"),
            ("address", "10.0.9.1/32"),
            ("device", "'net_memif0, role=server'"),
            ("neighbours", "['10.0.9.2=01:00:00:00:00:00']"),
            ("arguments", "['--vdev a']"),
            ("queue_packets", "1000"),
        ] {
            let error = refused(&format!("dpdk: {{ {key}: {bad} }}"));
            assert!(error.contains(&format!("`dpdk.{key}` must be")), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_cannot_be_written_down_is_refused_and_breaks_nothing() {
        use std::os::unix::ffi::OsStrExt;
        let config = Config::default().directory(OsStr::from_bytes(b"/run/\xff"));
        assert!(config.validate().unwrap_err().to_string().contains("UTF-8"));
        assert!(config.to_yaml().contains("/run/"));
    }

    #[test]
    fn a_missing_name_is_made_from_the_program() {
        let engine = EngineConfig::default();
        assert_eq!(engine.name_or("loader", 4711).unwrap().as_str(), "loader-4711");
        assert_eq!(engine.name_or(".héllo wörld", 1).unwrap().as_str(), "-h-llo-w-rld-1");
        assert_eq!(engine.name_or("", 1).unwrap().as_str(), "engine-1");
        assert_eq!(engine.name_or(&"x".repeat(500), u32::MAX).unwrap().as_str().len(), 64);
        assert_eq!(Config::default().named("a").engine.name_or("b", 1), EngineName::new("a"));
        assert!(Config::default().named("a/b").engine.name_or("b", 1).is_err());
    }

    #[test]
    fn a_missing_folder_is_the_users_own() {
        let engine = EngineConfig::default();
        let runtime = Some(OsStr::new("/run/user/7"));
        assert_eq!(engine.directory_or(runtime, 7), Path::new("/run/user/7/penstock"));
        assert_eq!(engine.directory_or(None, 7), Path::new("/tmp/penstock-7"));
        assert_eq!(engine.directory_or(None, 0), Path::new("/run/penstock"));
        assert_eq!(engine.directory_or(runtime, 0), Path::new("/run/user/7/penstock"));
        assert_eq!(engine.directory_or(Some(OsStr::new("relative")), 7), Path::new("/tmp/penstock-7"));
        assert_eq!(Config::default().directory("/a").engine.directory_or(runtime, 7), Path::new("/a"));
    }
}

mod properties {
    use super::*;

    fn names() -> impl Strategy<Value = Option<String>> {
        let tricky = ["null", "7", "true", "1e3", "no", "-", "0x1f", "~x"].map(String::from);
        let word = || prop::string::string_regex("[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}").unwrap();
        prop::option::of(prop_oneof![prop::sample::select(tricky.to_vec()), word()])
            .prop_filter("a name", |name| name.as_deref().is_none_or(|name| EngineName::new(name).is_ok()))
    }

    fn addresses() -> impl Strategy<Value = Vec<String>> {
        let address = any::<([u8; 4], u16)>().prop_map(|address| SocketAddr::from(address).to_string());
        let six = any::<([u16; 8], u16)>().prop_map(|address| SocketAddr::from(address).to_string());
        prop::collection::hash_set(prop_oneof![address, six], 0..4).prop_map(|set| set.into_iter().collect())
    }

    fn workers() -> impl Strategy<Value = WorkersConfig> {
        let threaded = (any::<bool>(), 1usize..=16, any::<bool>(), 0usize..1000, 0u64..=100_000).prop_map(
            |(busy, count, pinned, first, spin_us)| WorkersConfig {
                count,
                cores: if pinned { (first..first + count).rev().collect() } else { Vec::new() },
                progress: if busy { Progress::Busy } else { Progress::Adaptive },
                spin_us,
            },
        );
        prop_oneof![3 => threaded, 1 => Just(WorkersConfig { progress: Progress::Inline, ..WorkersConfig::default() })]
    }

    prop_compose! {
        fn control()(
            (transfers_max, tombstones) in (1usize..=1 << 22, 1usize..=1 << 22),
            (early_messages, early_bytes) in (1usize..=1 << 20, 1024usize..=1 << 30),
            (early_ms, tombstone_ms) in (1u64..=86_400_000, 1u64..=86_400_000),
            (abort_ms, resume_ms) in (1u64..=86_400_000, 1u64..=86_400_000),
        ) -> ControlConfig {
            ControlConfig {
                transfers_max, early_messages, early_bytes, early_ms, tombstones, tombstone_ms, abort_ms, resume_ms,
            }
        }
    }

    prop_compose! {
        fn dpdk()(
            device in prop::option::of("[a-z0-9_:.,=/]{1,40}"),
            (address, prefix) in ((0x0a00_0000u32..0x0b00_0000).prop_map(|ip| ip & !3 | 1), 1u8..=30),
            stations in prop::collection::btree_map(1u32..4, any::<[u8; 5]>(), 0..4),
            (mtu, queue_packets) in (any::<u16>(), 6u32..=15),
            (memory_mib, huge_pages) in (64u32..=65_536, any::<bool>()),
            arguments in prop::collection::hash_set("--[a-z]{1,9}", 0..4),
        ) -> DpdkConfig {
            let station = |(other, [a, b, c, d, e]): (u32, [u8; 5])| Neighbour {
                address: (address ^ other).into(), station: Mac([2, a, b, c, d, e]),
            };
            DpdkConfig {
                device,
                address: Some(Ipv4Network { address: address.into(), prefix }),
                neighbours: stations.into_iter().map(station).collect(),
                mtu, queue_packets: 1 << queue_packets, memory_mib, huge_pages,
                arguments: arguments.into_iter().collect(),
            }
        }
    }

    prop_compose! {
        fn device()(
            staging in prop::sample::select(vec![StagingChoice::Auto, StagingChoice::Off]),
            staging_bytes in 1u64 << 20..=1 << 30,
        ) -> DeviceConfig {
            DeviceConfig { staging, staging_bytes }
        }
    }

    prop_compose! {
        fn legs()(
            (default_tokens, quantile_percent) in (1u64..=1 << 40, 0u8..=100),
            memory in prop::sample::select(vec![LegMemory::Wait, LegMemory::Shrink, LegMemory::Fail]),
            (part_bytes, parts_ahead, ahead) in (65_536u64..=1 << 30, 1usize..=1024, 1u32..=256),
        ) -> LegsConfig {
            LegsConfig { default_tokens, quantile_percent, memory, part_bytes, parts_ahead, ahead }
        }
    }

    prop_compose! {
        fn configs()(
            name in names(),
            directory in prop::option::of("/[^\0\u{fffd}]{0,40}"),
            workers in workers(),
            (in_flight, timeout_ms, queue) in (1usize..=65_536, 1u64..=86_400_000, 1u32..=16),
            notifications_per_peer in 1usize..=65_536,
            allow in prop::sample::subsequence(TransportName::ALL.to_vec(), 1..=5).prop_shuffle(),
            process_vm in prop::sample::select(vec![ProcessVmChoice::Auto, ProcessVmChoice::Off]),
            pages in prop::sample::select(vec![PagesChoice::Auto, PagesChoice::Small, PagesChoice::Huge]),
            tcp_io in prop::sample::select(vec![TcpIo::Auto, TcpIo::IoUring, TcpIo::Epoll]),
            tcp_streams in 1usize..=16,
            (port, frame_bytes, receive_bytes, send_bytes) in (0u16..=65_000, 1_188usize..=65_507, 0usize..=1 << 30, 0usize..=1 << 30),
            verbs_devices in prop::collection::hash_set("[a-z][a-z0-9_]{0,9}(:[1-9](:[0-9])?)?", 0..8),
            verbs_on_demand in any::<bool>(),
            verbs_connect in prop::sample::select(vec![VerbsConnect::Exchange, VerbsConnect::Cm]),
            session in (1u64..=86_400_000, 1u64..=86_400_000, 1u64..=86_400_000),
            (listen, advertise) in (addresses(), addresses()),
            (secret_file, directory_file) in (prop::option::of("/[^\0\u{fffd}]{0,40}"), prop::option::of("/[a-z]{0,9}")),
            (heartbeat_ms, accepts_per_second) in (50u64..=86_400_000, 1u64..=1_000_000),
            (descriptors, mapped_bytes, announced_bytes_per_peer, unsent_bytes) in (0usize..=1 << 20, 0u64..=1 << 60, 64usize << 10..=1 << 40, 1usize << 20..=1 << 30),
            (dpdk, device, control, legs) in (dpdk(), device(), control(), legs()),
        ) -> Config {
            Config {
                engine: EngineConfig { name, directory: directory.map(PathBuf::from) },
                workers,
                transfers: TransfersConfig { in_flight, timeout_ms, queue: 1 << queue },
                credits: CreditsConfig { notifications_per_peer },
                transports: TransportsConfig {
                    allow,
                    process_vm,
                    tcp_io,
                    tcp_streams,
                    verbs_devices: verbs_devices.into_iter().collect(),
                    verbs_on_demand,
                    verbs_connect,
                },
                datagram: DatagramConfig { port, frame_bytes, receive_bytes, send_bytes },
                dpdk,
                device,
                memory: MemoryConfig { pages },
                session: SessionConfig {
                    connect_timeout_ms: session.0,
                    greeting_timeout_ms: session.1,
                    shutdown_timeout_ms: session.2,
                    listen,
                    advertise,
                    secret: None,
                    secret_file: secret_file.map(PathBuf::from),
                    heartbeat_ms,
                    accepts_per_second,
                    descriptors,
                    mapped_bytes,
                    announced_bytes_per_peer,
                    unsent_bytes,
                    directory_file: directory_file.map(PathBuf::from),
                },
                control,
                legs,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(config in configs()) {
            config.validate().unwrap();
            prop_assert_eq!(Config::parse(&config.to_yaml(), "written").unwrap(), config);
        }

        #[test]
        fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Config::parse_bytes(&bytes, "a.yaml").map_err(|error| error.to_string());
        }

        #[test]
        fn any_yaml_like_text_gives_an_answer(text in "([a-z]{1,4}|workers|count|cores|[\\[\\]{}:,&*!|>#'\"?%@ \t\n~0-9.-]){0,60}") {
            let _ = Config::parse(&text, "a.yaml").map_err(|error| error.to_string());
        }

        /// Whatever happens to the default file, the answer is a valid configuration or a refusal
        /// that says where.
        #[test]
        fn a_damaged_default_file_gives_an_answer(
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, prop::collection::vec(any::<u8>(), 0..6)), 1..8),
        ) {
            let mut bytes = default_yaml().into_bytes();
            for (at, length, instead) in cuts {
                let at = at.index(bytes.len());
                let end = (at + length).min(bytes.len());
                bytes.splice(at..end, instead);
            }
            match Config::parse_bytes(&bytes, "a.yaml") {
                Ok(config) => prop_assert!(config.validate().is_ok()),
                Err(error) => prop_assert!(error.to_string().starts_with("a.yaml:")),
            }
        }
    }
}
