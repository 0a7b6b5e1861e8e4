//! Who puts the chunks of a stream.

use std::collections::VecDeque;

use penstock::flows::relay::{Dtype, Extents, PayloadItem, Put, RelayError, RelayOp, Stream};
use penstock::flows::{FlowError, RequestId};
use penstock::{Peer, Timestamp};

use super::content::{Log, Logs, Name, items, lie, made};
use super::spec::{Form, Step, Streaming, streamed};
use super::wait::{End, Wait};
use crate::deed::Script;
use crate::env::SimEnv;
use crate::oracle::{Invariant, UNREADY, Violated};
use crate::stage::Stage;

/// How a stream fails of which a reader has not heard the end.
const UNHEARD: &str = "not every reader heard of its end";

/// A chunk that was put.
pub(super) struct PutOut {
    /// Which.
    pub(super) name: Name,
    op: RelayOp<SimEnv>,
    /// How it ends.
    pub(super) wait: Wait,
}

/// The application of a stream, where its chunks come from.
pub(super) struct Putter {
    /// Which stream.
    pub(super) stream: usize,
    /// Where its engine sits.
    pub(super) seat: usize,
    spec: Streaming,
    request: RequestId,
    begun: Timestamp,
    /// When something was last asked of it.
    fed: Timestamp,
    todo: VecDeque<Step>,
    outgoing: Option<Stream<SimEnv>>,
    /// Since when there is one.
    pub(super) opened: Option<Timestamp>,
    /// How the stream ends, as soon as there is one.
    pub(super) wait: Option<Wait>,
    /// What it has put.
    pub(super) puts: Vec<PutOut>,
    epoch: u64,
    /// Its readers, and their epochs.
    pub(super) readers: Vec<(usize, u64)>,
    /// Its application is done with it.
    pub(super) is_gone: bool,
}

impl Putter {
    /// One that begins now.
    pub(super) fn new(script: &Script, stream: usize, stage: &Stage<'_>) -> Self {
        let spec = script.streams[stream].clone();
        let now = stage.world.now();
        Self {
            stream,
            seat: spec.from,
            request: streamed(spec.request),
            begun: now,
            fed: now,
            todo: VecDeque::new(),
            outgoing: None,
            opened: None,
            wait: None,
            puts: Vec::new(),
            epoch: 0,
            readers: Vec::new(),
            is_gone: stage.seats[spec.from].node().is_none(),
            spec,
        }
    }

    /// This is to be done next.
    pub(super) fn feed(&mut self, step: Step, now: Timestamp) {
        if !self.is_gone {
            self.todo.push_back(step);
            self.fed = now;
        }
    }

    /// Its engine is dead, or its application has dropped all of it.
    pub(super) fn forget(&mut self, logs: &mut Logs, now: Timestamp) {
        // One that was not finished has failed by that.
        if let Some(log) = logs.get_mut(&(self.stream, self.epoch)).filter(|_| !self.is_gone)
            && self.wait.as_ref().is_some_and(|wait| !wait.is_well())
        {
            log.failed_at.get_or_insert(now);
        }
        self.outgoing = None;
        self.puts.clear();
        self.is_gone = true;
    }

    fn violated(&self, words: String) -> Violated {
        Violated::new(Invariant::OneEndEach, format!("stream {}: {words}", self.stream))
    }

    /// The application does what there is to do, and looks. Its engine is awake.
    pub(super) fn turn(&mut self, logs: &mut Logs, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        if self.is_gone {
            return Ok(());
        }
        if self.outgoing.is_none() {
            if now >= self.begun + self.spec.within {
                self.is_gone = true;
                return Ok(());
            }
            self.open(logs, stage)?;
        }
        while self.outgoing.is_some()
            && let Some(step) = self.todo.pop_front()
        {
            self.go_on(step, logs, stage)?;
        }
        let Some(outgoing) = &self.outgoing else { return Ok(()) };
        let said = outgoing.poll();
        if let Some(wait) = &mut self.wait {
            wait.look(said, now, stage.disturbed)?;
            // A reader that has left has not heard the end: those that have wait for chunks, and hear of each by its deadline.
            let is_told = |(_, failure): &&End| failure.as_ref().is_some_and(|words| !words.contains(UNHEARD));
            let told = wait.end.as_ref().filter(is_told);
            if let (Some((at, _)), Some(log)) = (told, logs.get_mut(&(self.stream, self.epoch))) {
                log.failed_at.get_or_insert(*at);
            }
        }
        for put in &mut self.puts {
            put.wait.look(put.op.poll(), now, stage.disturbed)?;
        }
        let is_settled = self.wait.iter().chain(self.puts.iter().map(|put| &put.wait)).all(|wait| wait.is_settled(now));
        if is_settled || now > self.fed + self.spec.within * 2 {
            self.forget(logs, now);
        }
        Ok(())
    }

    fn open(&mut self, logs: &mut Logs, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let peers = self.spec.to.iter().map(|&to| stage.meet(self.seat, to)).collect::<Result<Vec<_>, _>>()?;
        let Some(peers) = peers.into_iter().collect::<Option<Vec<Peer<SimEnv>>>>() else { return Ok(()) };
        let seat = &stage.seats[self.seat];
        let (Some(node), Some(relay)) = (seat.node(), seat.relay()) else { return Ok(()) };
        match relay.stream(&self.request, &peers.iter().collect::<Vec<_>>()) {
            Ok(outgoing) => {
                self.outgoing = Some(outgoing);
                self.opened = Some(stage.world.now());
                self.epoch = node.epoch().0;
                self.readers = self.spec.to.iter().copied().zip(peers.iter().map(|peer| peer.epoch().0)).collect();
                self.wait = Some(Wait::unbounded(format!("stream {}", self.stream)));
                logs.insert((self.stream, self.epoch), Log::default());
                Ok(())
            }
            // Its request was given up.
            Err(FlowError::Relay(RelayError::Ended { .. })) => {
                self.is_gone = true;
                Ok(())
            }
            // A session was over, and nobody had told.
            Err(FlowError::Relay(_)) => Ok(()),
            Err(error) => Err(self.violated(format!("is not opened: {error}"))),
        }
    }

    fn go_on(&mut self, step: Step, logs: &mut Logs, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let now = stage.world.now();
        let (Some(outgoing), Some(log)) = (&self.outgoing, logs.get_mut(&(self.stream, self.epoch))) else {
            return Ok(());
        };
        let told = match step {
            Step::Next { bytes, form, .. } => {
                let name =
                    Name { is_of_join: false, of: self.stream, number: log.chunks.len() as u64, epoch: self.epoch };
                match self.put(name, bytes, form, stage)? {
                    Ok((op, form)) => {
                        log.chunks.push(made(name, bytes, form, op.metadata()));
                        let wait = Wait::new(format!("{name:?}"), now, self.spec.within);
                        self.puts.push(PutOut { name, op, wait });
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
            Step::Finish { .. } => {
                let told = outgoing.finish(self.spec.within);
                log.is_finished |= told.is_ok();
                self.wait.iter_mut().for_each(|wait| wait.ends_within(self.spec.within, now));
                told
            }
            Step::Fail { .. } => {
                let told = outgoing.fail("simulated");
                self.wait.iter_mut().for_each(|wait| wait.ends_within(self.spec.within, now));
                told
            }
            Step::Leave { .. } => {
                self.forget(logs, now);
                Ok(())
            }
            _ => Ok(()),
        };
        match told {
            // It had failed, or its request was given up.
            Ok(()) | Err(FlowError::Relay(_)) => Ok(()),
            Err(error) => Err(self.violated(format!("{step:?} is refused: {error}"))),
        }
    }

    /// Puts the next chunk, and says what it is made of.
    fn put(
        &self,
        name: Name,
        bytes: usize,
        form: Form,
        stage: &mut Stage<'_>,
    ) -> Result<Result<(RelayOp<SimEnv>, Form), FlowError>, Violated> {
        let now = stage.world.now();
        let Some(outgoing) = &self.outgoing else { return Err(self.violated("is not open".to_owned())) };
        let (content, header) = (name.content(bytes), name.header());
        let put = |what: Put<'_, SimEnv>| outgoing.put(what.header(&header).within(self.spec.within));
        if form == Form::Blocks {
            let seat = &mut stage.seats[self.seat];
            // Its blocks are the engine's as soon as they are put.
            if let (Some((blocks, extents)), Some(pool)) = (lie(seat, bytes, UNREADY, now)?, seat.pool()) {
                let mut from = 0;
                for &(offset, len) in &extents {
                    let part = &content[from..from + len as usize];
                    pool.window().write_from(offset, part).expect("a block is in its pool");
                    from += part.len();
                }
                let layout = seat.layout().expect("it has a pool");
                return Ok(put(Put::extents(Extents::of_layout(layout, &[&blocks], &extents))).map(|op| (op, form)));
            }
            return Ok(put(Put::bytes(&content)).map(|op| (op, Form::Flat)));
        }
        if form == Form::Items {
            let items = items(&content);
            let each: Vec<(PayloadItem<'_>, &[u8])> = items
                .iter()
                .map(|(path, shape, bytes)| (PayloadItem { path, shape, dtype: Dtype::U8 }, *bytes))
                .collect();
            let packed = Put::items(&each).expect("two short items can be packed");
            return Ok(put(packed).map(|op| (op, form)));
        }
        Ok(put(Put::bytes(&content)).map(|op| (op, form)))
    }
}
