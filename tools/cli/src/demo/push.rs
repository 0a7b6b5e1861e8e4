//! Layers go as they are computed, each behind a fence of its own: written there, or lent and read from there.

use std::ops::Range;
use std::time::Duration;

use penstock::flows::{Failed, InputEvent, Receive, Send, Side};
use serde_json::json;

use super::content;
use super::flaw::Flaw;
use super::node::{Ending, KV_ROWS, KV_TOKENS, Kind, LAYERS, Node, PATIENCE, short};
use super::words::Part;

/// How long a layer takes to compute.
const LAYER: Duration = Duration::from_millis(2);
/// Bytes of a token in a layer.
pub(crate) const ROW: u64 = KV_ROWS.count as u64 * KV_ROWS.bytes as u64;

/// The side that computes, and writes or lends. After a layer it may pause so long that the other side is gone before the next one.
pub(crate) fn send(node: &Node, part: &Part, (lends, pause_after): (bool, Option<u32>)) -> Result<Ending, Flaw> {
    let Node { engine, kv, voice, .. } = node;
    let (act, tokens) = (part.act, part.tokens);
    let request = node.request(part)?;
    let how = Send::from(&kv.layout).by_layer().within(PATIENCE);
    let output = engine.produce(part.transfer, &request, if lends { how.lend() } else { how })?;
    let mut is_lease_told = !lends;
    let says = format!("{}: {tokens} tokens", short(&request));
    voice.event(
        act,
        "produce",
        &says,
        json!({ "request": request.as_str(), "transfer": part.transfer.to_string(), "tokens": tokens }),
    );
    let blocks = kv.take(tokens.div_ceil(KV_TOKENS))?;
    output.chunk(&blocks, tokens, true)?;
    for layer in 0..LAYERS {
        compute(kv, part, blocks.indices(), layer, 0..tokens)?;
        std::thread::sleep(LAYER);
        voice.event(
            act,
            "ready",
            &format!("layer {layer} is computed{}", if lends { "" } else { ", and goes" }),
            json!({ "layer": layer }),
        );
        output.layer(layer, tokens)?;
        if !is_lease_told && engine.control_metrics().lent > 0 {
            voice.event(act, "lent", "lent under a lease", json!({}));
            is_lease_told = true;
        }
        if pause_after == Some(layer) {
            break;
        }
    }
    drop(blocks);
    match (output.wait(PATIENCE)?, pause_after) {
        (Ok(()), None) => {}
        (Ok(()), Some(_)) => return Err(Flaw::NotKilled),
        (Err(failed), None) => return Err(Flaw::Sent(failed)),
        (Err(failed), Some(_)) => {
            let figures = json!({ "cause": format!("{:?}", failed.cause), "request": request.as_str(), "blocks": [] });
            voice.event(act, "failed", &format!("it has failed: {:?}", failed.cause), figures);
            output.abort(PATIENCE).then_some(()).ok_or(Flaw::NotQuiet)?;
            node.see_finished(&request, part.transfer, |finished| finished.failed)?;
            drop(output);
            free_again(node, act, "every block is free again")?;
            return Ok(Ending::Survived);
        }
    }
    node.see_finished(&request, part.transfer, |finished| finished.sent)?;
    voice.event(act, "finished", &format!("{} was sent", short(&request)), json!({ "request": request.as_str() }));
    drop(output);
    free_again(node, act, "every block is free again")?;
    Ok(Ending::Done(expected(part)))
}

/// Computes a layer of these tokens into blocks, of which the first begins with token 0.
pub(crate) fn compute(kv: &Kind, part: &Part, blocks: &[u32], layer: u32, tokens: Range<u64>) -> Result<(), Flaw> {
    for token in tokens {
        let block = blocks[(token / KV_TOKENS) as usize];
        let mut bytes = [0; ROW as usize];
        content::fill(part.stamp, layer as usize, token, &mut bytes);
        bytes[0] ^= u8::from(part.spoil && layer == LAYERS - 1 && token == part.tokens - 1);
        kv.pool.window().write_from(at(kv, block, layer, token % KV_TOKENS), &bytes)?;
    }
    Ok(())
}

/// What the source has, from what it was made of and not from its memory.
pub(crate) fn expected(part: &Part) -> String {
    let layer = |layer: u32| {
        let mut bytes = vec![0; (part.tokens * ROW) as usize];
        for (token, row) in (0..).zip(bytes.chunks_mut(ROW as usize)) {
            content::fill(part.stamp, layer as usize, token, row);
        }
        bytes
    };
    content::digest(&(0..LAYERS).map(layer).collect::<Vec<_>>())
}

pub(crate) fn at(kv: &Kind, block: u32, layer: u32, token: u64) -> u64 {
    kv.layout.offset(layer as usize, block, token as u32).expect("the block is of this layout")
}

pub(crate) fn free_again(node: &Node, act: u32, says: &str) -> Result<(), Flaw> {
    let free = node.kv.all_free()?;
    node.voice.event(act, "free", says, json!({ "blocks": free }));
    Ok(())
}

/// The side that needs the bytes.
pub(crate) fn receive(node: &Node, part: &Part, (reads, will_be_killed): (bool, bool)) -> Result<Ending, Flaw> {
    let Node { engine, kv, voice, .. } = node;
    let act = part.act;
    let request = node.request(part)?;
    let how = Receive::into(&kv.layout).from(0, node.there()?).within(PATIENCE);
    let input = engine.consume(part.transfer, &request, if reads { how.pull() } else { how })?;
    let figures = json!({ "request": request.as_str(), "transfer": part.transfer.to_string() });
    voice.event(act, "consume", &format!("{}: the same by its name", short(&request)), figures);
    let is_known = engine.transfer_of(Side::Sink, &request) == Some(part.transfer);
    is_known.then_some(()).ok_or_else(|| Flaw::Finished { expected: request.clone(), found: "none".to_owned() })?;
    let blocks = kv.take(part.tokens.div_ceil(KV_TOKENS))?;
    input.grant(&blocks)?;
    voice.event(act, "grant", &format!("{} blocks are granted", blocks.len()), json!({ "blocks": blocks.len() }));
    drop(blocks);
    let came = loop {
        match input.next(PATIENCE)? {
            InputEvent::Layer { layer, .. } => {
                voice.event(act, "landed", &format!("layer {layer} has landed"), json!({ "layer": layer }));
            }
            InputEvent::Done { tokens } => break tokens,
            InputEvent::Failed(failed) if will_be_killed => {
                tell_failed(node, act, &failed, request.as_str());
                input.abort(PATIENCE).then_some(()).ok_or(Flaw::NotQuiet)?;
                node.see_finished(&request, part.transfer, |finished| finished.failed)?;
                drop(input);
                free_again(node, act, "nothing lands any more; all blocks free")?;
                return Ok(Ending::Survived);
            }
            InputEvent::Failed(failed) => return Err(Flaw::Received(failed)),
            // Neither side has asked for it to outlive its session.
            InputEvent::Leg { .. } | InputEvent::NeedsMemory { .. } | InputEvent::Lost { .. } => {}
        }
    };
    if will_be_killed {
        return Err(Flaw::NotKilled);
    }
    let digest = assembled(&input, came)?;
    node.see_finished(&request, part.transfer, |finished| finished.received)?;
    let figures = json!({ "request": request.as_str(), "tokens": came });
    voice.event(act, "finished", &format!("{} has {came} tokens", short(&request)), figures);
    drop(input);
    free_again(node, act, "every block is free again")?;
    Ok(Ending::Done(digest))
}

fn assembled(input: &penstock::flows::Input<penstock::SystemEnv>, tokens: u64) -> Result<String, Flaw> {
    let mut layers = Vec::new();
    for layer in 0..LAYERS {
        layers.push(vec![0; input.assembled_bytes(layer as usize, tokens).ok_or(Flaw::NoTotal)? as usize]);
    }
    let mut rooms: Vec<&mut [u8]> = layers.iter_mut().map(Vec::as_mut_slice).collect();
    input.assemble(&mut rooms, tokens)?;
    Ok(content::digest(&layers))
}

fn tell_failed(node: &Node, act: u32, failed: &Failed, request: &str) {
    let says = format!("it has failed: {:?}; {} blocks not whole", failed.cause, failed.blocks.len());
    let missing: Vec<_> = failed.missing.iter().map(|run| json!([run.layer, run.first, run.count])).collect();
    let figures = json!({
        "cause": format!("{:?}", failed.cause), "words": failed.words, "request": request, "blocks": failed.blocks, "missing": missing,
    });
    node.voice.event(act, "failed", &says, figures);
}
