//! What engines write down of transfers by name: one line for each side of each end, with both names, who was there and why.

#[path = "by_name/ends/mod.rs"]
mod ends;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ends::{Both, PATIENCE, UUID, both};
use penstock::config::TransportName;
use penstock::flows::{InputEvent, Receive, RequestId, Send, TransferId};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The fields of a line, with its level.
type Line = (Level, BTreeMap<&'static str, String>);

/// Keeps the lines of transfers that are seen.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<Line>>>,
    takes_debug: Arc<AtomicBool>,
}

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // Asked each time, as what is taken changes.
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
            || *metadata.level() == Level::DEBUG && self.takes_debug.load(Ordering::Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        if fields.0.contains_key("transfer") {
            self.lines.lock().unwrap().push((*event.metadata().level(), fields.0));
        }
    }
}

impl Log {
    /// The lines since the last call, once there are so many.
    fn take(&self, count: usize) -> Vec<Line> {
        let since = Instant::now();
        while self.lines.lock().unwrap().len() < count {
            assert!(since.elapsed() < PATIENCE, "{:?}", self.lines.lock().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        // None comes twice.
        std::thread::sleep(Duration::from_millis(20));
        let mut lines = std::mem::take(&mut *self.lines.lock().unwrap());
        lines.sort_unstable_by(|one, other| one.1["side"].cmp(&other.1["side"]));
        lines
    }
}

#[test]
fn each_end_of_a_transfer_is_a_line_on_each_side() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let both = both(TransportName::Shm);
    let Both { source, sink, there, .. } = &both;
    let begin = |number: u32| {
        let transfer = TransferId::mint(UUID, number, 0).unwrap();
        let [sent, received] = ["sent", "received"].map(|half| RequestId::new(&format!("{half}-{number}")).unwrap());
        let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
        let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, there)).unwrap();
        input.grant(&sink.take(1)).unwrap();
        (transfer, output, input)
    };
    let succeed = |number: u8| {
        let (transfer, output, input) = begin(number.into());
        source.compute(&output, number, 40);
        output.wait(PATIENCE).unwrap().unwrap();
        while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Done { .. }) {}
        transfer
    };

    // A success is no news where only news are wanted.
    succeed(1);
    let (transfer, output, input) = begin(2);
    let since = Instant::now();
    // What its source knows of it comes before its end.
    while sink.engine.control_metrics().transfers.live == 0 || output.status() == penstock::flows::Status::Bootstrapping
    {
        assert!(since.elapsed() < PATIENCE);
    }
    output.fail("the model ran out of memory");
    while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Failed(_)) {}
    let lines = log.take(2);
    for ((level, line), (side, request, peer)) in
        lines.iter().zip([("sink", "received-2", "prefill-0"), ("source", "sent-2", "decode-0")])
    {
        let expected = [
            ("transfer", transfer.to_string()),
            ("request", request.to_owned()),
            ("peers", peer.to_owned()),
            ("side", side.to_owned()),
            ("said_by", "source".to_owned()),
            ("words", "the model ran out of memory".to_owned()),
        ];
        assert_eq!(*level, Level::INFO);
        for (field, value) in expected {
            assert_eq!(line[field], value, "{field} of {line:?}");
        }
        assert!(line["cause"].contains("the source said that it failed"), "{line:?}");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
    drop((output, input));

    log.takes_debug.store(true, Ordering::Relaxed);
    let transfer = succeed(3);
    let lines = log.take(2);
    for ((level, line), (side, request)) in lines.iter().zip([("sink", "received-3"), ("source", "sent-3")]) {
        assert_eq!((*level, &line["transfer"]), (Level::DEBUG, &transfer.to_string()));
        assert_eq!((&line["side"][..], &line["request"][..]), (side, request), "{line:?}");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
}
