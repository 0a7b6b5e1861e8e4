//! Both sides, connected, as the initiator sees them.

use std::path::Path;

use penstock::config::TransportName;
use penstock::memory::copy::kernels;
use penstock::{Engine, Peer, Plan, PlanBuilder, Pool, PoolSpec, RemoteCounter, RemoteRegion, Submit, SystemEnv};

use super::companion::Companion;
use super::errand::{Answer, Errand};
use super::flaw::Flaw;
use super::layout::{BLOCK_BYTES, BLOCKS_PER_SET, Layout};
use super::target::{COUNTER, PATIENCE, POOL, SOURCE, Target, engine_config};
use crate::arguments::Transport;

/// Where the target lives.
pub(crate) enum Far {
    /// In this process.
    Here(Box<Target>),
    /// In another one.
    There(Companion),
}

/// The initiator, and its way to the target.
pub(crate) struct Pair {
    pub(crate) near: Pool<SystemEnv>,
    pub(crate) remote: RemoteRegion<SystemEnv>,
    pub(crate) arrivals: RemoteCounter,
    pub(crate) peer: Peer<SystemEnv>,
    pub(crate) engine: Engine,
    pub(crate) layout: Layout,
    /// Pairs (near, far) of block numbers, set after set.
    pub(crate) pairs: Vec<(u32, u32)>,
    far: Far,
}

impl Pair {
    pub(crate) fn connect(directory: &Path, transport: Transport, layout: Layout, mut far: Far) -> Result<Self, Flaw> {
        let Answer::Card(card) = ask(&mut far, Errand::Card)? else { return Err(no_answer("no descriptor")) };
        let engine = Engine::start(engine_config(directory, SOURCE, transport))?;
        let near = engine.pool(PoolSpec::host(layout.bytes()).block(BLOCK_BYTES).label("near"))?;
        let peer = engine.connect(&card, PATIENCE)?;
        if peer.transport() != transport.name().as_str() {
            return Err(Flaw::OtherTransport { expected: transport.name().as_str(), found: peer.transport() });
        }
        let remote = peer.wait_region(POOL, PATIENCE)?;
        let arrivals = peer.wait_counter(COUNTER, PATIENCE).ok_or(Flaw::NoCounter)?;
        Ok(Self { near, remote, arrivals, peer, engine, layout, pairs: layout.pairs(), far })
    }

    /// The way the bytes take, in words.
    pub(crate) fn path(&self) -> String {
        let kernel = match kernels().name() {
            name if name.starts_with("avx512") => "AVX-512",
            name if name.starts_with("avx2") => "AVX2",
            other => other,
        };
        if self.is_between_hosts() {
            return self.peer.path().to_owned(); // The system or a card copies, not a kernel of ours.
        }
        format!("{}, {kernel}", self.peer.path())
    }

    /// Whether the two meet as engines of different hosts do.
    pub(crate) fn is_between_hosts(&self) -> bool {
        let between = TransportName::ALL.iter().filter(|name| name.is_between_hosts());
        between.map(|name| name.as_str()).any(|name| name == self.peer.transport())
    }

    /// Sends the target on an errand that has an answer.
    pub(crate) fn ask(&mut self, errand: Errand) -> Result<Answer, Flaw> {
        ask(&mut self.far, errand)
    }

    /// Sends the target on an errand that is done or not.
    pub(crate) fn tell(&mut self, errand: Errand) -> Result<(), Flaw> {
        match self.ask(errand)? {
            Answer::Done => Ok(()),
            Answer::Wrong(wrong) => Err(Flaw::Bytes { whose: "the target's", wrong }),
            other => Err(no_answer(&format!("{other:?}"))),
        }
    }

    /// Arrivals that the target has counted, once there are as many as this.
    pub(crate) fn counted(&mut self, least: u64) -> Result<u64, Flaw> {
        match self.ask(Errand::Count(least))? {
            Answer::Count(count) => Ok(count),
            other => Err(no_answer(&format!("{other:?}"))),
        }
    }

    /// A plan for each set.
    pub(crate) fn writes(&self) -> Result<Vec<Plan>, Flaw> {
        self.sets(|| Plan::write(&self.near, &self.remote))
    }

    /// A plan for each set.
    pub(crate) fn reads(&self) -> Result<Vec<Plan>, Flaw> {
        self.sets(|| Plan::read(&self.near, &self.remote))
    }

    fn sets<'a>(&'a self, begin: impl Fn() -> PlanBuilder<'a>) -> Result<Vec<Plan>, Flaw> {
        self.pairs.chunks(BLOCKS_PER_SET).map(|set| Ok(begin().blocks(set).build()?)).collect()
    }

    /// One plan for everything.
    pub(crate) fn write_all(&self) -> Result<Plan, Flaw> {
        Ok(Plan::write(&self.near, &self.remote).blocks(&self.pairs).build()?)
    }

    /// Moves one plan and sees that it ended as it should.
    pub(crate) fn move_one(&self, plan: &Plan, how: Submit<'_>) -> Result<(), Flaw> {
        let done = self.peer.submit(plan, how)?.wait()?;
        if done.bytes != plan.bytes() || matches!(done.notified, penstock::Notified::No | penstock::Notified::Unknown) {
            return Err(Flaw::Ending { expected: plan.bytes(), found: done.bytes, notified: done.notified.text() });
        }
        Ok(())
    }

    /// Leaves in good order: the target notices, has nothing quarantined, and ends well itself.
    pub(crate) fn leave(self) -> Result<(), Flaw> {
        let Self { near, remote, peer, engine, mut far, .. } = self;
        drop((near, remote, peer));
        drop(engine);
        match ask(&mut far, Errand::SeeOff)? {
            Answer::Done => {}
            other => return Err(no_answer(&format!("{other:?}"))),
        }
        match far {
            Far::Here(_) => Ok(()),
            Far::There(companion) => companion.end(),
        }
    }
}

fn ask(far: &mut Far, errand: Errand) -> Result<Answer, Flaw> {
    let answer = match far {
        Far::Here(target) => target.run(errand)?,
        Far::There(companion) => companion.run(&errand)?,
    };
    match answer {
        Answer::Failed(text) => Err(Flaw::Target(text)),
        answer => Ok(answer),
    }
}

fn no_answer(said: &str) -> Flaw {
    Flaw::CompanionGarbled { said: said.to_owned() }
}
