//! What each peer knows of our regions and counters.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::Env;
use penstock_core::limits::FRAME_TOKENS_MAX;
use penstock_memory::Region;
use penstock_session::frame::LABEL_BYTES_MAX;
use penstock_session::{CounterNews, Frame, RegionNews, Regions, RegionsGone};
use penstock_transport::{Exported, Tokens};

use super::connection::Broken;
use super::{Control, Phase, Talk};
use crate::peer_state::PeerState;

/// The longest path of a region, in bytes.
const PATH_BYTES_MAX: usize = 256;
/// Regions in one frame; each may carry a descriptor.
const REGIONS_PER_FRAME: usize = FRAME_TOKENS_MAX;
/// Counters in one frame.
const COUNTERS_PER_FRAME: usize = 512;

/// What one peer was told.
#[derive(Default)]
pub(super) struct Announced {
    /// The generation of each announced region.
    regions: BTreeMap<u32, u32>,
    /// The generation of each announced counter.
    counters: BTreeMap<u32, u32>,
}

impl<E: Env> Control<E> {
    /// Tells every peer what has changed since the last look.
    pub(super) fn announce_changes(&mut self) {
        let regions = self.shared.registry.revision();
        let counters = self.shared.counters.revision();
        // A deregistration changes the registry first and the log afterwards: both are news.
        let now = (regions, counters, self.shared.commons.posts.view().deregistered());
        if now == self.announced {
            return;
        }
        self.announced = now;
        let tokens: Vec<u64> = self.talks.keys().copied().collect();
        for token in tokens {
            self.announce_to(token);
        }
    }

    /// Tells one peer what it does not know yet.
    pub(super) fn announce_to(&mut self, token: u64) {
        let Self { shared, talks, .. } = self;
        let Some(Talk { connection, phase: Phase::Open { peer, announced, .. } }) = talks.get_mut(&token) else {
            return;
        };
        // Read before the registry: whatever is deregistered later has a higher revision.
        let revision = shared.commons.posts.view().revision();
        let mut sent = Ok(());
        for (frame, descriptors) in announced.next_frames(&shared.registry, revision, peer) {
            sent = sent.and_then(|()| connection.send(&frame, descriptors));
        }
        for frame in announced.next_counters(shared.counters.news()) {
            sent = sent.and_then(|()| connection.send(&frame, Vec::new()));
        }
        match sent {
            Ok(()) => self.rewatch(token),
            // One region that cannot be said in a frame must not end the session.
            Err(Broken::Wire(error)) => tracing::error!(%error, "an announcement cannot be sent"),
            Err(broken) => self.broke(token, &broken),
        }
    }
}

impl Announced {
    fn next_frames(
        &mut self,
        registry: &penstock_memory::Registry,
        revision: u64,
        peer: &PeerState,
    ) -> Vec<(Frame, Tokens)> {
        let mut frames = Vec::new();
        let live: BTreeMap<u32, Arc<Region>> = registry.iter().map(|region| (region.id().0, region)).collect();
        let is_gone =
            |id: &u32, generation: &u32| live.get(id).is_none_or(|region| region.generation().0 != *generation);
        let gone: Vec<(u32, u32)> = self
            .regions
            .iter()
            .filter(|(id, generation)| is_gone(id, generation))
            .map(|(&id, &generation)| (id, generation))
            .collect();
        for &(id, _) in &gone {
            self.regions.remove(&id);
        }
        let fresh: Vec<&Arc<Region>> =
            live.values().filter(|region| !self.regions.contains_key(&region.id().0)).collect();
        if !gone.is_empty() {
            frames.push((Frame::RegionsGone(RegionsGone { revision, gone }), Vec::new()));
        }
        for part in fresh.chunks(REGIONS_PER_FRAME) {
            let mut tokens = Tokens::new();
            let news = part.iter().map(|region| describe(region, peer, &mut tokens)).collect();
            self.regions.extend(part.iter().map(|region| (region.id().0, region.generation().0)));
            frames.push((Frame::Regions(Regions { revision, news }), tokens));
        }
        if frames.is_empty() {
            // Even nothing is news: it says how recent the picture is.
            frames.push((Frame::Regions(Regions { revision, news: Vec::new() }), Vec::new()));
        }
        frames
    }

    fn next_counters(&mut self, news: Vec<CounterNews>) -> Vec<Frame> {
        let is_new = |counter: &CounterNews| self.counters.get(&counter.id) != Some(&counter.generation);
        let fresh: Vec<CounterNews> = news.into_iter().filter(is_new).collect();
        self.counters.extend(fresh.iter().map(|counter| (counter.id, counter.generation)));
        fresh.chunks(COUNTERS_PER_FRAME).map(|part| Frame::Counters(part.to_vec())).collect()
    }
}

fn describe(region: &Arc<Region>, peer: &PeerState, tokens: &mut Tokens) -> RegionNews {
    let Exported { path, token } = peer.registrar.export(region);
    let token = token.map(|token| {
        tokens.push(token);
        (tokens.len() - 1) as u8
    });
    let mut label = region.label().to_owned();
    label.truncate(label.floor_char_boundary(LABEL_BYTES_MAX));
    RegionNews {
        id: region.id().0,
        generation: region.generation().0,
        label,
        bytes: region.bytes(),
        base: region.window().base_address(),
        rights: region.rights().into(),
        block_bytes: region.pool().map_or(0, |pool| pool.block_bytes()),
        path,
        token,
    }
}

/// Takes a peer's announcement. Answers whether it makes sense.
pub(super) fn learn(peer: &PeerState, regions: Regions, tokens: Vec<OwnedFd>) -> bool {
    let mut tokens: Vec<Option<OwnedFd>> = tokens.into_iter().map(Some).collect();
    let mut news = Vec::with_capacity(regions.news.len());
    for region in regions.news {
        let token = match region.token {
            None => None,
            Some(place) => match tokens.get_mut(usize::from(place)).and_then(Option::take) {
                Some(token) => Some(token),
                None => return false, // It names a descriptor that did not come, or one twice.
            },
        };
        if region.bytes == 0 || region.label.len() > LABEL_BYTES_MAX || region.path.len() > PATH_BYTES_MAX {
            return false;
        }
        news.push((region, token));
    }
    peer.learn_regions(regions.revision, news)
}
