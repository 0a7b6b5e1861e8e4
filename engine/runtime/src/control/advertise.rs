//! What each peer knows of our regions and counters.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use penstock_core::limits::{FRAME_TOKENS_MAX, WITHDRAWALS_KEPT};
use penstock_core::{Env, Timestamp};
use penstock_memory::registry::Changes;
use penstock_memory::{PassedFd, Region, Registry};
use penstock_ring::Withdrawal;
use penstock_ring::gate::Withdrawals;
use penstock_session::frame::LABEL_BYTES_MAX;
use penstock_session::{
    ControlMessage, CounterNews, Frame, RegionNews, RegionsAdvertised, RegionsGone, WithdrawnRanges,
};
use penstock_transport::host::OwnerState;
use penstock_transport::{Exported, Fds};

use super::connection::{Broken, FrameFds};
use super::introduce::Introduction;
use super::preparing::{PrepareElsewhere, Preparing};
use super::{Control, Phase, Talk};
use crate::peer_state::{PeerState, ReceivedFds, Unlearned};
use crate::statistics::Tally;

/// The longest path of a region, in bytes.
const PATH_BYTES_MAX: usize = 768;
/// Regions in one frame; each may carry a descriptor.
const REGIONS_PER_FRAME: usize = FRAME_TOKENS_MAX;
/// Counters in one frame.
const COUNTERS_PER_FRAME: usize = 512;

/// What one peer was told.
#[derive(Default)]
pub(super) struct Advertised {
    /// The generation of each announced region.
    regions: BTreeMap<u32, u32>,
    /// Of this engine's log, as it was said to the peer last.
    revision: u64,
    /// Regions that are told once they are registered with the peer's cards.
    pub(super) preparing: Box<Preparing>,
    /// The registry's revision that they reflect.
    registry: u64,
    /// The generation of each announced counter.
    counters: BTreeMap<u32, u32>,
    /// The counters' revision that they reflect.
    counted: u64,
    /// How far the log of withdrawn memory was told, to who cannot look into it.
    log: Option<u64>,
    /// The transfer manager knows that the session stands.
    is_joined: bool,
    /// What the peer has said of transfers before that: its own announcement may be quicker.
    early: Option<Box<ControlMessage>>,
    /// Whether the session is complete.
    pub(super) introduction: Introduction,
    /// When it is taken for complete, whatever the peer answers.
    pub(super) introduced_by: Option<Timestamp>,
    /// The number under which the peer has asked, if it is answered when the session is complete.
    pub(super) asked: Option<u64>,
}

impl<E: Env> Control<E> {
    /// Tells every peer what has changed since the last look.
    pub(super) fn advertise_changes(&mut self) {
        let regions = self.shared.registry.revision();
        let counters = self.shared.counters.revision();
        // A deregistration changes the registry first and the log afterwards: both are news.
        let now = (regions, counters, self.shared.segments.owner_state.view().last_region_change());
        // Who shares no memory with this engine sees nothing of the log: every step of it is news.
        let log = self.shared.segments.owner_state.view().revision();
        let all = now != self.announced;
        let told = self.told != log;
        if !all && !told {
            return;
        }
        (self.announced, self.told) = (now, log);
        let hears = |(&token, talk): (&u64, &Talk<E>)| (all || talk.line.is_some()).then_some(token);
        let tokens: Vec<u64> = self.talks.iter().filter_map(hears).collect();
        for token in tokens {
            self.announce_to(token);
        }
    }

    /// Tells one peer what it does not know yet.
    pub(super) fn announce_to(&mut self, token: u64) {
        let Self { shared, talks, .. } = self;
        let Some(Talk { connection, phase: Phase::Open { peer, announced, .. }, line }) = talks.get_mut(&token) else {
            return;
        };
        if line.as_ref().is_some_and(|line| line.missing > 0) {
            return; // Who knows what there is may use it at once, and that needs all streams.
        }
        // Read before the registry: whatever is deregistered later has a higher revision.
        let revision = shared.renewals.announceable(shared.segments.owner_state.view().revision());
        let run = PrepareElsewhere { run: &|job| shared.run_for_ourselves(job), tell: &|| shared.tell_prepared(token) };
        let mut sent = Ok(());
        if !peer.peer_view.has_cpu_access() {
            for frame in announced.next_withdrawals(&shared.segments.owner_state) {
                sent = sent.and_then(|()| connection.send(&frame, Vec::new()));
            }
        }
        for (frame, descriptors) in announced.next_frames(&shared.registry, revision, peer, &run) {
            sent = sent.and_then(|()| connection.send(&frame, descriptors));
        }
        // Read before the counters: what changes meanwhile is looked at once more.
        let counted = shared.counters.revision();
        if announced.counted != counted {
            announced.counted = counted;
            for frame in announced.next_counters(shared.counters.news()) {
                sent = sent.and_then(|()| connection.send(&frame, Vec::new()));
            }
        }
        let joined = (!std::mem::replace(&mut announced.is_joined, true)).then(|| Arc::clone(peer));
        let early = announced.early.take();
        if let Some(peer) = joined {
            self.joined_manager(&peer);
        }
        if let Some(said) = early {
            self.heard_said(token, *said);
        }
        match sent {
            Ok(()) => self.rewatch(token),
            // One region that cannot be said in a frame must not end the session.
            Err(Broken::Wire(error)) => tracing::error!(%error, "an announcement cannot be sent"),
            Err(broken) => self.broke(token, &broken),
        }
    }
}

impl Advertised {
    /// What a peer says of transfers, if the transfer manager may hear it by now. Before that a peer that keeps to its words says one thing.
    pub(super) fn heard(&mut self, said: ControlMessage) -> Option<ControlMessage> {
        if self.is_joined {
            return Some(said);
        }
        self.early.get_or_insert_with(|| Box::new(said));
        None
    }

    fn next_frames(
        &mut self,
        registry: &Registry,
        revision: u64,
        peer: &PeerState,
        run: &PrepareElsewhere<'_>,
    ) -> Vec<(Frame, Fds)> {
        let mut frames = Vec::new();
        let Changes { revision: seen, is_all, list } = registry.changes_since(self.registry);
        self.registry = seen;
        let mut gone = Vec::new();
        if is_all {
            let live: HashSet<u32> = list.iter().map(|(id, _)| id.0).collect();
            gone.extend(self.regions.extract_if(.., |id, _| !live.contains(id)));
            self.preparing.forget(|id| !live.contains(&id));
        }
        // An id with a new generation is no loss: the news takes the place of the old, without a gap between.
        let mut fresh = Vec::new();
        for (id, region) in list {
            match region {
                None => {
                    gone.extend(self.regions.remove_entry(&id.0));
                    self.preparing.forget(|one| one == id.0);
                }
                Some(region) if region.is_internal() => {}
                Some(region) if self.regions.get(&id.0) == Some(&region.generation().0) => {}
                Some(region) => fresh.push(region),
            }
        }
        // Tried once for each generation, whatever came of it.
        let done = self.preparing.take_done();
        let is_told = |region: &Arc<Region>| fresh.iter().any(|other: &Arc<Region>| other.id() == region.id());
        let due: Vec<_> = done.iter().map(|(region, _)| region).filter(|region| !is_told(region)).cloned().collect();
        fresh.extend(due);
        let mut ready = Vec::with_capacity(fresh.len());
        for region in fresh {
            let is_it = |one: &(Arc<Region>, u32)| Arc::ptr_eq(&one.0, &region) && one.1 == region.generation().0;
            let is_prepared = done.iter().any(is_it);
            let replaces = self.regions.contains_key(&region.id().0);
            if is_prepared || !self.preparing.begin(&region, &*peer.registrar, replaces, run) {
                ready.push(region);
            }
        }
        // With a newer one the peer would take an earlier generation for the last.
        let revision = if self.preparing.replaces_any() { self.revision } else { revision };
        self.revision = revision;
        if !gone.is_empty() {
            frames.push((Frame::RegionsGone(RegionsGone { revision, gone }), Vec::new()));
        }
        let (mut news, mut tokens) = (Vec::new(), Fds::new());
        for region in ready {
            let (described, own) = describe(&region, peer);
            self.regions.insert(described.id, described.generation);
            if news.len() == REGIONS_PER_FRAME || tokens.len() + own.len() > FRAME_TOKENS_MAX {
                let news = std::mem::take(&mut news);
                frames.push((Frame::Regions(RegionsAdvertised { revision, news }), std::mem::take(&mut tokens)));
            }
            let token = (!own.is_empty()).then_some(tokens.len() as u8);
            tokens.extend(own);
            news.push(RegionNews { token, ..described });
        }
        if !news.is_empty() {
            frames.push((Frame::Regions(RegionsAdvertised { revision, news }), tokens));
        }
        if frames.is_empty() {
            // Even nothing is news: it says how recent the picture is.
            frames.push((Frame::Regions(RegionsAdvertised { revision, news: Vec::new() }), Vec::new()));
        }
        frames
    }

    /// What was withdrawn since the last time; at the first time, how far it has come.
    fn next_withdrawals(&mut self, owner_state: &OwnerState) -> Vec<Frame> {
        let now = owner_state.view().revision();
        let since = self.log.unwrap_or(now);
        // Who is too far behind begins anew, and finds its older plans too old.
        let (since, new) = match owner_state.withdrawals_since(since) {
            Ok(new) => (since, new),
            Err(_) => (now, Withdrawals { revision: now, list: Vec::new() }),
        };
        self.log = Some(new.revision);
        let told = |step: &Withdrawal| (step.region, step.generation, step.offset, step.len);
        let frame = |(part, steps): (usize, &[Withdrawal])| {
            let since = since + (part * WITHDRAWALS_KEPT) as u64;
            Frame::Withdrawn(WithdrawnRanges { since, list: steps.iter().map(told).collect() })
        };
        if new.list.is_empty() {
            return vec![frame((0, &[]))];
        }
        new.list.chunks(WITHDRAWALS_KEPT).enumerate().map(frame).collect()
    }

    fn next_counters(&mut self, news: Vec<CounterNews>) -> Vec<Frame> {
        let used: BTreeSet<u32> = news.iter().map(|counter| counter.id).collect();
        // No use of a place has the generation 0.
        let gone = |&id: &u32| CounterNews { id, generation: 0, region: 0, label: String::new() };
        let gone: Vec<CounterNews> = self.counters.keys().filter(|id| !used.contains(id)).map(gone).collect();
        let is_new = |counter: &CounterNews| self.counters.get(&counter.id) != Some(&counter.generation);
        let fresh: Vec<CounterNews> = news.into_iter().chain(gone).filter(is_new).collect();
        self.counters.extend(fresh.iter().map(|counter| (counter.id, counter.generation)));
        fresh.chunks(COUNTERS_PER_FRAME).map(|part| Frame::Counters(part.to_vec())).collect()
    }
}

/// A region in words, and its descriptors: its own first.
fn describe(region: &Arc<Region>, peer: &PeerState) -> (RegionNews, Fds) {
    // Read first: memory that is renewed meanwhile is announced once more, under its next generation.
    let generation = region.generation().0;
    let Exported { access_blob: path, fd: token, extra_fds: more } = peer.registrar.export(region);
    let tokens = token.into_iter().chain(more).collect();
    let mut label = region.label().to_owned();
    label.truncate(label.floor_char_boundary(LABEL_BYTES_MAX));
    let news = RegionNews {
        id: region.id().0,
        generation,
        label,
        bytes: region.bytes(),
        base: region.base_address(),
        rights: region.rights().into(),
        block_bytes: region.blocks().map_or(0, |blocks| blocks.block_bytes()),
        path,
        token: None,
    };
    (news, tokens)
}

/// Takes what a peer says that it has withdrawn. Answers whether it makes sense.
pub(super) fn learn_withdrawn(peer: &PeerState, withdrawn: WithdrawnRanges) -> bool {
    let step = |(region, generation, offset, len): (u32, u32, u64, u64)| Withdrawal { region, generation, offset, len };
    let makes_sense = withdrawn.list.len() <= WITHDRAWALS_KEPT;
    if makes_sense {
        peer.peer_view.on_withdrawals(withdrawn.since, withdrawn.list.into_iter().map(step));
    }
    makes_sense
}

/// Takes a peer's announcement, and counts the regions whose descriptors there was no room for.
pub(super) fn learn(
    peer: &PeerState,
    regions: RegionsAdvertised,
    received: FrameFds,
    without_fds: &Tally,
) -> Result<(), Unlearned> {
    let FrameFds { fds, expected } = received;
    // Behind those that this process could take are the places of the others.
    let mut places: Vec<Place> = fds.into_iter().map(Place::Received).collect();
    places.resize_with(expected, || Place::Lost);
    // A region's descriptors are its own and those that follow, up to the next region's.
    let firsts: Vec<usize> = regions.news.iter().filter_map(|news| news.token).map(usize::from).collect();
    let mut news = Vec::with_capacity(regions.news.len());
    for region in regions.news {
        let mut own = ReceivedFds::All(Vec::new());
        if let Some(first) = region.token.map(usize::from) {
            let more = (first + 1..expected).take_while(|place| !firsts.contains(place));
            for place in std::iter::once(first).chain(more) {
                match std::mem::replace(places.get_mut(place).ok_or(Unlearned::Nonsense)?, Place::Taken) {
                    Place::Received(fd) => own.push(fd),
                    Place::Lost => own = ReceivedFds::Short,
                    // It names one that another region has.
                    Place::Taken => return Err(Unlearned::Nonsense),
                }
            }
        }
        if region.bytes == 0 || region.label.len() > LABEL_BYTES_MAX || region.path.len() > PATH_BYTES_MAX {
            return Err(Unlearned::Nonsense);
        }
        news.push((region, own));
    }
    peer.learn_regions(regions.revision, news, without_fds)
}

/// What is at a place of a frame's descriptors.
enum Place {
    Received(PassedFd),
    /// One that this process could not take.
    Lost,
    Taken,
}
