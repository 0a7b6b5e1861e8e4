//! What a request has on the host goes to another player by name, whatever becomes of the request meanwhile.

use std::time::Duration;

use penstock::flows::{Input, InputEvent, Output, Receive, RequestId, Send, TransferId};
use penstock::{Blocks, Timestamp};

use super::content::{Content, broken};
use super::request::Parcel;
use super::spec::Life;
use crate::calls;
use crate::deed::Script;
use crate::env::SimEnv;
use crate::oracle::{GRANTED, Invariant, Violated};
use crate::run::KNOWN_WITHIN;
use crate::stage::Stage;

/// Cases, turns and streams have other numbers.
const LIVES: u32 = 1 << 15;
const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// How long a transfer may take.
const WITHIN: Duration = Duration::from_millis(800);

fn transfer(life: usize) -> TransferId {
    TransferId::mint(UUID, LIVES + life as u32, 0).expect("the text is a UUID")
}

/// What is, or was, on its way from one request.
pub(super) struct Sending {
    pub(super) life: usize,
    spec: Life,
    /// In which lives of their engines both sides are.
    lives: (u32, u32),
    content: Content,
    begun: Timestamp,
    source: Side<Output<SimEnv>>,
    sink: Side<(Input<SimEnv>, Blocks)>,
}

/// One side.
enum Side<H> {
    /// It is not taken in yet.
    Waiting,
    Running(H),
    /// It has ended so, if it was taken in.
    Over(Option<bool>),
}

impl<H> Side<H> {
    fn is_over(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    fn outcome(&self) -> Option<bool> {
        if let Self::Over(end) = self { *end } else { None }
    }
}

impl Sending {
    /// Bytes leave, and are asked for. The blocks are the transfer's from now on.
    pub(super) fn begin(life: usize, script: &Script, parcel: Parcel, stage: &Stage<'_>) -> Result<Self, Violated> {
        let (spec, Parcel { blocks, content }) = (script.lives[life], parcel);
        let seat = &stage.seats[spec.at];
        let (node, layout) = (seat.node().expect("it lives"), seat.layout().expect("it lives"));
        let how = Send::from(layout).within(WITHIN);
        let output = node.produce(transfer(life), &request(life, "sent"), how);
        let output = output.map_err(|error| broken(Invariant::OneEndEach, &who(life), error.to_string()))?;
        // It may have ended since.
        let _ = output.chunk(&blocks, content.tokens(seat.player()), true);
        let lives = (seat.life, stage.seats[spec.to].life);
        let source = Side::Running(output);
        // Who is dead asks for nothing.
        let sink = if stage.seats[spec.to].node().is_none() { Side::Over(None) } else { Side::Waiting };
        Ok(Self { life, spec, lives, content, begun: stage.world.now(), source, sink })
    }

    /// An engine has died, with its side.
    pub(super) fn crashed(&mut self, player: usize) {
        if self.spec.at == player {
            self.source = Side::Over(self.source.outcome());
        }
        if self.spec.to == player {
            self.sink = Side::Over(self.sink.outcome());
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.source.is_over() && self.sink.is_over()
    }

    pub(super) fn outcomes(&self) -> impl Iterator<Item = bool> {
        self.source.outcome().into_iter().chain(self.sink.outcome())
    }

    /// Both sides have ended well.
    pub(super) fn check_well(&self) -> Result<(), Violated> {
        match (self.source.outcome(), self.sink.outcome()) {
            (Some(true), Some(true)) => Ok(()),
            ends => Err(broken(Invariant::AnswersComeInTime, &who(self.life), format!("nothing hinders it: {ends:?}"))),
        }
    }

    /// The requests of its sides that an engine was given in this life, and how they ended.
    pub(super) fn ended_at(&self, player: usize, life: u32) -> Vec<(RequestId, Option<bool>)> {
        let source = self.source.outcome().filter(|_| (self.spec.at, self.lives.0) == (player, life));
        let sink = self.sink.outcome().filter(|_| (self.spec.to, self.lives.1) == (player, life));
        let source = source.map(|end| (request(self.life, "sent"), Some(end)));
        source.into_iter().chain(sink.map(|end| (request(self.life, "received"), Some(end)))).collect()
    }

    /// The source looks.
    pub(super) fn turn_source(&mut self, stage: &Stage<'_>) -> Result<(), Violated> {
        let Side::Running(output) = &self.source else { return Ok(()) };
        if let Some(result) = output.poll() {
            self.source = Side::Over(Some(result.is_ok()));
        } else {
            self.is_in_time("what is sent", stage)?;
        }
        Ok(())
    }

    /// Who has to take it looks.
    pub(super) fn turn_sink(&mut self, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let name = who(self.life);
        match &self.sink {
            Side::Over(_) => {}
            Side::Waiting => self.ask(stage)?,
            Side::Running((input, blocks)) => {
                let seat = &stage.seats[self.spec.to];
                while let Some(event) = input.try_next() {
                    let is_well = match event {
                        InputEvent::Done { tokens } => {
                            let from = stage.seats[self.spec.at].player();
                            if tokens != self.content.tokens(from) {
                                return Err(broken(
                                    Invariant::ToldOnceAfterBytes,
                                    &name,
                                    format!("{tokens} tokens came"),
                                ));
                            }
                            let to = (seat.player(), seat.pool().expect("it lives"));
                            self.content.check_sent(from, to, blocks.indices(), &name)?;
                            true
                        }
                        InputEvent::Failed(_) => false,
                        _ => continue,
                    };
                    self.sink = Side::Over(Some(is_well));
                    return Ok(());
                }
                self.is_in_time("what is received", stage)?;
            }
        }
        Ok(())
    }

    fn is_in_time(&self, what: &str, stage: &Stage<'_>) -> Result<(), Violated> {
        if stage.world.now() <= (self.begun + 2 * WITHIN).max(stage.disturbed) + KNOWN_WITHIN {
            return Ok(());
        }
        Err(broken(Invariant::AnswersComeInTime, &who(self.life), format!("{what} does not end")))
    }

    fn ask(&mut self, stage: &mut Stage<'_>) -> Result<(), Violated> {
        let (Life { at, to, .. }, now) = (self.spec, stage.world.now());
        if now >= self.begun + WITHIN || self.source.is_over() {
            self.sink = Side::Over(None);
            return Ok(());
        }
        let tokens = self.content.tokens(stage.seats[at].player());
        let Some(peer) = stage.meet(to, at)? else { return Ok(()) };
        if peer.epoch().0 != self.content.epoch {
            return Ok(());
        }
        let seat = &mut stage.seats[to];
        let size = u64::from(seat.player().block_tokens);
        let Some(blocks) = seat.take(tokens.div_ceil(size) as usize, GRANTED, now)? else { return Ok(()) };
        let how = Receive::into(seat.layout().expect("it lives")).from(0, &peer).within(WITHIN);
        let node = seat.node().expect("it lives");
        match node.consume(transfer(self.life), &request(self.life, "received"), how) {
            Ok(input) => {
                // It may have ended since.
                let _ = input.grant(&blocks);
                self.sink = Side::Running((input, blocks));
                Ok(())
            }
            Err(error) => calls::check_session(&error, &peer, &who(self.life)),
        }
    }
}

fn request(life: usize, side: &str) -> RequestId {
    RequestId::new(&format!("life {life} {side}")).expect("the text is short")
}

fn who(life: usize) -> String {
    format!("what life {life} sends")
}
