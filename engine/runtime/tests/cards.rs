//! Sessions whose memory is reached by cards: what the runtime does with fences, rails and words aside.

#[path = "network/common.rs"]
mod common;
#[path = "cards/double.rs"]
mod double;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{E, Folder, P, SOON, call, config, until};
use double::{Cards, Seen};
use penstock::config::Progress;
use penstock::{Engine, Plan, Pool, PoolSpec, Rights, Span, Submit, SystemEnv};

/// Nobody marks these lanes as ready, so their workers look for themselves.
fn start(config: penstock::Config, splits: bool) -> (E, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let cards = Cards { splits, seen: Arc::clone(&seen) };
    (Engine::start_with(SystemEnv, config.progress(Progress::Busy), vec![Arc::new(cards)]).unwrap(), seen)
}

struct Pair {
    near: (E, Arc<Seen>),
    far: (E, Arc<Seen>),
    peer: P,
    _folder: Folder,
}

fn pair(label: &str, workers: usize, splits: bool) -> Pair {
    let folder = Folder::new(label);
    let far = start(config(&folder, "far").listen(["127.0.0.1:0"]), splits);
    let near = start(config(&folder, "near").workers(workers), splits);
    let peer = call(&near.0, &far.0);
    until("the other side has the session, too", || far.0.peers().len() == 1);
    Pair { near, far, peer, _folder: folder }
}

fn pool(engine: &E, bytes: u64) -> Pool<SystemEnv> {
    engine.pool(PoolSpec::host(bytes).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap()
}

#[test]
fn one_worker_posts_a_large_transfer_where_its_transport_says_that_one_is_enough() {
    const BYTES: u64 = 32 << 20;
    for splits in [false, true] {
        let pair = pair(&format!("splits-{splits}"), 3, splits);
        let (here, _there) = (pool(&pair.near.0, BYTES), pool(&pair.far.0, BYTES));
        let remote = pair.peer.wait_region("kv", SOON).unwrap();
        let whole = [Span { local: 0, remote: 0, len: BYTES }];
        let plan = Plan::write(&here, &remote).extents(&whole).build().unwrap();
        for _ in 0..6 {
            pair.near.1.posts.lock().unwrap().clear();
            let done = pair.peer.submit(&plan, Submit::new().within(SOON)).unwrap().wait().unwrap();
            assert_eq!(done.bytes, BYTES);
            let workers: BTreeSet<usize> = pair.near.1.posts.lock().unwrap().iter().copied().collect();
            assert!(splits || workers.len() == 1, "a transfer was posted by workers {workers:?}");
        }
        if splits {
            until("each of six transfers went to three workers", || pair.near.0.statistics().commands == 18);
        }
    }
}
