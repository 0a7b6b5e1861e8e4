use penstock_core::Epoch;
use penstock_session::control::{Buffer, Form, Rows};

use super::*;

const PEER: PeerKey = PeerKey { peer_index: 1, epoch: Epoch(1) };
const OTHER: PeerKey = PeerKey { peer_index: 2, epoch: Epoch(1) };
const THEIRS: LayoutKey = LayoutKey { number: 3, generation: 5 };

fn news(label: &str, base: u64) -> LayoutNews {
    let rows = Rows { first: 0, count: 1, of: 1, bytes: 8 };
    LayoutNews {
        number: THEIRS.number,
        generation: THEIRS.generation,
        label: label.to_owned(),
        region: 1,
        region_generation: 1,
        block_tokens: 4,
        blocks: 2,
        rank: 0,
        ranks: 1,
        buffers: vec![Buffer { layer: 0, base, stride: 32, form: Form::TokenMajor(rows) }],
    }
}

/// An engine that has a layout, and two peers that have told of one.
fn partners() -> (Partners, LayoutKey) {
    let mut partners = Partners::default();
    let (ours, _) = partners.add(news("kv", 0), 64).unwrap();
    for peer in [PEER, OTHER] {
        partners.joined(peer, EngineName::new("peer").unwrap());
        partners.is_able(peer, &PeerFeatures { version_min: 1, version_max: 1, tag: 9, credits: 1 });
        partners.learn(peer, news("kv", 0));
    }
    (partners, ours)
}

fn pair(partners: &mut Partners, peer: PeerKey, ours: LayoutKey) -> Option<Arc<ShardPair>> {
    let ours = Arc::clone(partners.own(ours).unwrap());
    partners.pair(peer, THEIRS, &ours).map(Result::unwrap)
}

#[test]
fn a_pair_is_looked_at_once_for_each_peer_and_layout() {
    let (mut partners, ours) = partners();
    let first = pair(&mut partners, PEER, ours).unwrap();
    assert!(Arc::ptr_eq(&first, &pair(&mut partners, PEER, ours).unwrap()));
    assert!(!Arc::ptr_eq(&first, &pair(&mut partners, OTHER, ours).unwrap()));
    assert_eq!(partners.pairs.len(), 2);
}

#[test]
fn nothing_is_kept_of_layouts_that_changed_or_went() {
    let (mut partners, ours) = partners();
    let (first, _) = (pair(&mut partners, PEER, ours).unwrap(), pair(&mut partners, OTHER, ours).unwrap());
    // Whoever says something else under the same number and generation is believed, as ever.
    partners.learn(PEER, news("kv", 64));
    assert_ne!(first, pair(&mut partners, PEER, ours).unwrap());
    partners.forget(PEER, LayoutGone { number: THEIRS.number, generation: THEIRS.generation });
    assert_eq!((pair(&mut partners, PEER, ours), partners.pairs.len()), (None, 1));
    partners.left(OTHER);
    assert_eq!((pair(&mut partners, OTHER, ours), partners.pairs.len()), (None, 0));
    partners.learn(PEER, news("kv", 0));
    let layout = Arc::clone(partners.own(ours).unwrap());
    assert!(partners.pair(PEER, THEIRS, &layout).is_some() && partners.pairs.len() == 1);
    partners.remove(ours);
    // A transfer that has begun goes on in a layout that is withdrawn.
    assert!(partners.pair(PEER, THEIRS, &layout).is_some() && partners.pairs.is_empty());
}

#[test]
fn pairs_are_bounded() {
    let (mut partners, _) = partners();
    for number in 0..3 * PAIRS_MAX as u64 {
        let (ours, _) = partners.add(news(&format!("kv-{number}"), 64 * number), u64::MAX).unwrap();
        assert!(pair(&mut partners, PEER, ours).is_some() && partners.pairs.len() <= PAIRS_MAX);
    }
}
