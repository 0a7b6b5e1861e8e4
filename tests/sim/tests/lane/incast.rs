//! Many senders share the link to one target: together they fill it, and each has its part.

use std::time::Duration;

use penstock::{Plan, Submit};
use penstock_simulation::{Rate, Weather, World, replay};

use crate::stage::{FAR, SOON, bytes_of, connect, expect_blocks, fill, pool, start};

const SENDERS: u64 = 8;
/// Blocks of one transfer, and transfers that each sender has under way.
const TRANSFER_BLOCKS: u32 = 4;
const TRANSFERS: usize = 4;
/// The link carries 400 Mb/s, and 2 ms of that wait in front of it.
const RATE: Rate = Rate { bytes_per_ms: 50_000, queue_bytes: 100_000 };
const FRAME_BYTES: usize = 1472;
/// So long everybody sends, first without being measured.
const WARMS_UP: Duration = Duration::from_millis(100);
const MEASURED: Duration = Duration::from_millis(200);

/// Bytes that each of so many senders wrote into one target within [`MEASURED`].
fn written(world: &World, senders: u64) -> Vec<u64> {
    world.set_weather(Weather { frame_bytes_max: FRAME_BYTES, ..Weather::default() });
    let target = start(world, FAR, "target");
    let far = pool(&target, "kv");
    let hosts = (0..senders).map(|sender| FAR + 1 + sender);
    let sources: Vec<_> = hosts.clone().map(|host| start(world, host, &format!("source-{host}"))).collect();
    let pools: Vec<_> = sources.iter().map(|source| pool(source, "kv")).collect();
    let peers: Vec<_> = sources.iter().map(|source| connect(world, source, &target)).collect();
    for (host, near) in hosts.zip(&pools) {
        fill(near, host);
        let rated = Weather { rate: Some(RATE), frame_bytes_max: FRAME_BYTES, ..Weather::default() };
        world.set_weather_between(host, FAR, rated);
    }
    let pairs_of = |sender: u32| (0..TRANSFER_BLOCKS).map(move |block| (block, sender * TRANSFER_BLOCKS + block));
    let plans: Vec<Plan> = (0..senders as u32)
        .map(|sender| {
            let pairs: Vec<(u32, u32)> = pairs_of(sender).collect();
            let remote = peers[sender as usize].region("kv").unwrap();
            Plan::write(&pools[sender as usize], &remote).blocks(&pairs).build().unwrap()
        })
        .collect();
    let mut under_way: Vec<Vec<_>> = peers.iter().map(|_| Vec::new()).collect();
    let mut bytes = vec![0; peers.len()];
    for span in [WARMS_UP, MEASURED] {
        bytes.fill(0);
        // It is never done, so it ends by its time.
        let _ = world.wait(span, || {
            for (sender, transfers) in under_way.iter_mut().enumerate() {
                transfers.retain(|transfer: &penstock::Transfer<_>| match transfer.poll() {
                    None => true,
                    Some(ended) => {
                        bytes[sender] += ended.unwrap().bytes;
                        false
                    }
                });
                while transfers.len() < TRANSFERS {
                    transfers.push(peers[sender].submit(&plans[sender], Submit::new().within(SOON)).unwrap());
                }
            }
            false
        });
    }
    world.wait(SOON, || under_way.iter().flatten().all(|transfer| transfer.poll().is_some())).unwrap();
    let found = bytes_of(&far);
    for sender in 0..senders as u32 {
        expect_blocks(&found, FAR + 1 + u64::from(sender), &pairs_of(sender).collect::<Vec<_>>());
    }
    bytes
}

#[test]
fn eight_senders_share_the_link_to_one_target() {
    replay(0..5, |world| {
        let alone = written(&World::new(world.seed()), 1)[0];
        let shares = written(world, SENDERS);
        let sum: u64 = shares.iter().sum();
        let carried = RATE.bytes_per_ms * MEASURED.as_millis() as u64;
        assert!(sum * 10 >= alone * 8, "one alone wrote {alone} of {carried} bytes, all together {sum}: {shares:?}");
        let mean = sum / SENDERS;
        let is_fair = |share: u64| share.abs_diff(mean) * 5 <= mean;
        assert!(shares.iter().all(|&share| is_fair(share)), "of {mean} bytes on average: {shares:?}");
    });
}
