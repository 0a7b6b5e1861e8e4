//! Two stages that stream to each other: each has put all that it has before it fetches anything, in one thread, with two berths.

use std::time::{Duration, Instant};

use penstock::SystemEnv;
use penstock::flows::RequestId;
use penstock::flows::relay::{Arrival, Destination, Dtype, Fetch, Payload, PayloadItem, Put, RelaySpec};
use serde_json::json;

use super::content;
use super::flaw::Flaw;
use super::node::{Ending, Node, PATIENCE};
use super::words::{Part, Role};

/// Chunks of each stage.
const CHUNKS: u64 = 8;
const BERTH: u64 = 64 << 10;
const BERTHS: u32 = 2;
/// What a chunk has: token ids, hidden states and a mask. Together they are larger than both berths.
const ITEMS: [(&str, Dtype, [u64; 2]); 3] =
    [("ids", Dtype::U32, [1, 256]), ("hidden", Dtype::U16, [256, 256]), ("mask", Dtype::U8, [256, 64])];
/// How long this thread sleeps when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(200);

/// One chunk of a stage, as it should be.
fn chunk(part: &Part, of: Role, number: u64) -> [Vec<u8>; 3] {
    let item = |at: usize| {
        let (_, dtype, [rows, columns]) = ITEMS[at];
        let mut bytes = vec![0; (rows * columns * dtype.bytes()) as usize];
        content::fill(part.stamp ^ of as u64, at, number, &mut bytes);
        bytes
    };
    [item(0), item(1), item(2)]
}

/// Either stage. Its digest is of what both have sent: its own from what it was made of, the other's as it came.
pub(crate) fn play(node: &Node, part: &Part, role: Role) -> Result<Ending, Flaw> {
    let act = part.act;
    let request = RequestId::new(&format!("stages-{}", part.uuid))?;
    let relay = node.engine.relay(RelaySpec::new().berths(BERTH, BERTHS, BERTHS))?;
    let stream = relay.stream(&request, &[&node.other()?])?;
    let (mut puts, mut own) = (Vec::new(), Vec::new());
    for number in 0..CHUNKS {
        let mut bytes = chunk(part, role, number);
        own.extend(bytes.clone());
        bytes[1][0] ^= u8::from(part.spoil);
        let items: Vec<(PayloadItem<'_>, &[u8])> = ITEMS
            .iter()
            .zip(&bytes)
            .map(|((path, dtype, shape), bytes)| (PayloadItem { path, shape, dtype: *dtype }, bytes.as_slice()))
            .collect();
        puts.push(stream.put(Put::items(&items)?.within(PATIENCE))?);
    }
    stream.finish(PATIENCE)?;
    let says = format!("{CHUNKS} chunks are put, with {BERTHS} berths");
    node.voice.event(act, "put", &says, json!({ "chunks": CHUNKS, "berths": BERTHS, "request": request.as_str() }));

    let mut fetches: Vec<(u64, Fetch<SystemEnv>)> = Vec::new();
    let (mut announced, mut is_done, mut came): (u64, bool, Vec<Vec<Vec<u8>>>) = (0, false, Vec::new());
    came.resize(CHUNKS as usize, Vec::new());
    let until = Instant::now() + PATIENCE;
    let mut got = 0;
    while !(is_done && got == CHUNKS && stream.poll().is_some()) {
        if Instant::now() > until {
            return Err(Flaw::Order { expected: got, found: None });
        }
        match relay.try_arrival(&request)? {
            Some(Arrival::Chunk(arrived)) => {
                let number = arrived.stream.map(|(_, number)| number);
                if number != Some(announced) {
                    return Err(Flaw::Order { expected: announced, found: number });
                }
                fetches.push((announced, relay.get(&arrived.metadata, Destination::memory())?));
                announced += 1;
            }
            Some(Arrival::Done { .. }) if announced < CHUNKS => {
                return Err(Flaw::Order { expected: announced, found: None });
            }
            Some(Arrival::Done { .. }) => is_done = true,
            Some(Arrival::Failed { failed, .. }) => return Err(Flaw::Relayed(failed)),
            None => std::thread::sleep(PAUSE),
        }
        let mut waiting = Vec::new();
        for (number, fetch) in fetches {
            match fetch.poll() {
                None => waiting.push((number, fetch)),
                Some(result) => {
                    result?;
                    came[number as usize] = unpacked(&fetch.wait(PATIENCE)??)?;
                    got += 1;
                    let says = format!("chunk {number} is here, {} items", ITEMS.len());
                    node.voice.event(act, "chunk", &says, json!({ "chunk": number, "items": ITEMS.len() }));
                }
            }
        }
        fetches = waiting;
    }
    stream.wait(PATIENCE)??;
    for put in puts {
        put.wait(PATIENCE)??;
    }
    drop(stream);
    if !relay.close(PATIENCE) {
        return Err(Flaw::NotQuiet);
    }
    node.voice.event(act, "closed", "every berth is given back", json!({}));
    let came = came.concat();
    let both = match role {
        Role::Prefill => [own, came],
        Role::Decode => [came, own],
    };
    Ok(Ending::Done(content::digest(&both.concat())))
}

/// The items of a chunk by their names, whatever their order.
fn unpacked(payload: &Payload) -> Result<Vec<Vec<u8>>, Flaw> {
    ITEMS.iter().map(|(path, ..)| Ok(payload.item(path)?.1.to_vec())).collect()
}
