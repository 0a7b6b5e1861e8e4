//! Two engines of one process: one offers memory, the other writes into it and says so.

// Two engines and one transfer. Here both live in one process; between processes the descriptor has to travel.
use std::time::Duration;

use penstock::{Config, Engine, NoteId, Plan, PoolSpec, Submit};

const BLOCK: u64 = 16 << 10;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let soon = Duration::from_secs(2);

    // The side that offers memory. Its descriptor is a handful of bytes: send it by any means you have.
    let decode = Engine::start(Config::default().named("decode-0"))?;
    let theirs = decode.pool(PoolSpec::host(64 << 20).block(BLOCK).label("kv"))?;
    let descriptor = decode.descriptor();

    // The side that moves bytes.
    let prefill = Engine::start(Config::default().named("prefill-0"))?;
    let ours = prefill.pool(PoolSpec::host(64 << 20).block(BLOCK).label("kv"))?;
    ours.window().write_from(5 * BLOCK, b"keys and values")?;

    // A plan is checked once and can be submitted as often as you like.
    let peer = prefill.connect(&descriptor, soon)?;
    let plan = Plan::write(&ours, &peer.region("kv")?).blocks(&[(5, 3), (0, 7), (1, 40)]).build()?;
    let transfer = peer.submit(&plan, Submit::new().notify(NoteId(1), b"layer 3").within(soon))?;
    println!("{} moved {} bytes over {}", prefill.name(), transfer.wait()?.bytes, peer.transport());

    // The other side is told once, after all bytes have landed.
    let mut arrived = Vec::new();
    decode.wait_notification(soon);
    decode.notifications(&mut arrived);
    let mut found = [0; 15];
    theirs.window().read_into(3 * BLOCK, &mut found)?;
    let (note, found) = (String::from_utf8_lossy(&arrived[0].payload), String::from_utf8_lossy(&found));
    println!("{} was told \"{note}\" by {} and finds \"{found}\" in block 3", decode.name(), arrived[0].peer);
    Ok(())
}
