//! An engine on either host.

use std::net::SocketAddr;
use std::time::Duration;

use penstock::config::TransportName;
use penstock::{Plan, PoolSpec, Rights, Span, Submit};
use penstock_conformance::folder::Folder;
use penstock_conformance::setting::{EngineSpec, Tuning};
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_conformance::{Engine, Peer, Place, Pool, Setting, pattern};
use penstock_wire::{Family, Side, TwoHosts};

/// Two hosts, an engine with a pool on each, and the session between them. All in one process: an engine's threads stay
/// on the host where they were started.
pub(crate) struct Hosted {
    pub(crate) peer: Peer,
    pub(crate) near: Pool,
    pub(crate) far: Pool,
    /// Dropped before the one that answers its goodbye.
    pub(crate) engine: Engine,
    /// None once it was taken away.
    pub(crate) there: Option<Engine>,
    pub(crate) hosts: TwoHosts,
    pub(crate) folder: Folder,
    pub(crate) setting: Setting,
    pub(crate) tuning: Tuning,
}

impl Hosted {
    pub(crate) fn new(setting: Setting, scenario: &str, mtu: u32, bytes: u64, heartbeat: Duration) -> Self {
        let hosts = TwoHosts::with_mtu(scenario.parse().expect("a scenario"), mtu).expect("two hosts");
        let folder = Folder::fresh();
        let tuning = Tuning { heartbeat_ms: Some(heartbeat.as_millis() as u64), ..Tuning::default() };
        let spec = |side, name: &str| spec_of(&hosts, &folder, setting, tuning, side, name);
        let (near_spec, far_spec) = (spec(Side::A, "near"), spec(Side::B, "far"));
        let start = |side, spec: &EngineSpec| hosts.inside(side, || Engine::start(spec.config())).unwrap().unwrap();
        let (engine, there) = (start(Side::A, &near_spec), start(Side::B, &far_spec));
        let pool = |engine: &Engine| {
            let spec = PoolSpec::host(bytes).block(4096).label(KV).rights(Rights::READ_WRITE);
            engine.pool(spec).expect("there is memory for a pool")
        };
        let (near, far) = (pool(&engine), pool(&there));
        let peer = engine.connect(&there.descriptor(), PATIENCE).expect("the hosts hear each other");
        Self { peer, near, far, engine, there: Some(there), hosts, folder, setting, tuning }
    }

    /// An engine of this name on a host, as it is configured.
    pub(crate) fn spec(&self, side: Side, name: &str) -> EngineSpec {
        spec_of(&self.hosts, &self.folder, self.setting, self.tuning, side, name)
    }

    /// Where the other engine listens.
    pub(crate) fn there(&self) -> SocketAddr {
        self.there.as_ref().expect("it was not taken away").addresses()[0]
    }

    /// A plan of this span.
    pub(crate) fn plan(&self, is_write: bool, bytes: u64) -> Plan {
        self.plan_with(&self.peer, is_write, bytes)
    }

    /// The same with the memory of another peer.
    pub(crate) fn plan_with(&self, peer: &Peer, is_write: bool, bytes: u64) -> Plan {
        let spans = [Span { local: 0, remote: 0, len: bytes }];
        let far = peer.wait_region(KV, PATIENCE).expect("it was announced");
        let plan = if is_write { Plan::write(&self.near, &far) } else { Plan::read(&self.near, &far) };
        plan.extents(&spans).build().expect("a sound plan")
    }

    /// Writes all, and looks at every byte.
    pub(crate) fn moves_all(&self, seed: u64) {
        pattern::fill(self.near.window(), seed);
        let bytes = self.near.window().len();
        self.peer.submit(&self.plan(true, bytes), Submit::new()).unwrap().wait().expect("the wire is whole");
        self.arrived(seed);
    }

    /// Every byte of the pattern is in the other engine's memory.
    pub(crate) fn arrived(&self, seed: u64) {
        let expected = pattern::digests(&pattern::bytes(seed, 0, self.far.window().len() as usize));
        pattern::assert_same(&pattern::memory_digests(self.far.window()), &expected, "there");
    }
}

fn spec_of(hosts: &TwoHosts, folder: &Folder, setting: Setting, tuning: Tuning, side: Side, name: &str) -> EngineSpec {
    let host = Some(hosts.address(side, Family::V4));
    setting.spec(folder.path(), name).tuned(Tuning { host, ..tuning })
}

/// Engines with one worker, which meet this way.
pub(crate) fn setting(transport: TransportName) -> Setting {
    Setting::adaptive(transport, 1, Place::Here)
}
