//! Two turns of a conversation. What decode has of the first one is kept there when that has ended; of the second one only what is
//! behind it comes.

use std::time::Duration;

use penstock::flows::{
    Group, Input, InputEvent, Isolation, Parent, ParentBlocks, PinKey, PinSettings, Pins, Receive, RequestId, Send,
};
use penstock::{Blocks, SystemEnv};
use serde_json::json;

use super::content;
use super::flaw::Flaw;
use super::node::{Ending, KV_TOKENS, LAYERS, Node, PATIENCE, short};
use super::push::{ROW, at, compute, expected, free_again};
use super::words::Part;

/// Tokens that decode answers in the first turn. Of the last of them it has no data: nothing came behind it.
const ANSWER: u64 = 200;
/// How long a turn is kept for the next one.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// A turn that has ended, as decode knows it.
pub(crate) struct Kept {
    pins: Pins<SystemEnv>,
    request: RequestId,
    pin: PinKey,
}

/// The side that has computed all tokens of a turn, those of turns before among them. It sends what it is asked for.
pub(crate) fn send(node: &Node, part: &Part) -> Result<Ending, Flaw> {
    let Node { engine, kv, voice, .. } = node;
    let (act, tokens) = (part.act, part.tokens);
    let request = node.request(part)?;
    let output = engine.produce(part.transfer, &request, Send::from(&kv.layout).within(PATIENCE))?;
    let says = format!("{}: {tokens} tokens", short(&request));
    let figures = json!({ "request": request.as_str(), "transfer": part.transfer.to_string(), "tokens": tokens });
    voice.event(act, "produce", &says, figures);
    let blocks = kv.take(tokens.div_ceil(KV_TOKENS))?;
    (0..LAYERS).try_for_each(|layer| compute(kv, part, blocks.indices(), layer, 0..tokens))?;
    let before = engine.statistics().bytes;
    output.chunk(&blocks, tokens, true)?;
    drop(blocks);
    output.wait(PATIENCE)?.map_err(Flaw::Sent)?;
    node.see_finished(&request, part.transfer, |finished| finished.sent)?;
    // The sink may have everything before this side has seen the last byte go: what was moved is counted when the blocks are free.
    drop(output);
    free_again(node, act, "every block is free again")?;
    let (bytes, whole) = (engine.statistics().bytes - before, tokens * u64::from(LAYERS) * ROW);
    let says = format!("{} was sent: {} of {} KiB", short(&request), bytes >> 10, whole >> 10);
    voice.event(act, "finished", &says, json!({ "request": request.as_str(), "bytes": bytes, "of": whole }));
    Ok(Ending::Done(expected(part)))
}

/// The side that answers: it has the first turn sent, computes its answer behind it, and keeps both when the request has ended.
pub(crate) fn receive_first(node: &mut Node, part: &Part) -> Result<Ending, Flaw> {
    let act = part.act;
    let request = node.request(part)?;
    let all = part.tokens + ANSWER;
    let blocks = node.kv.take(all.div_ceil(KV_TOKENS))?;
    let how = Receive::into(&node.kv.layout).from(0, node.there()?).within(PATIENCE);
    let came = received(node, part, &request, how, &blocks)?;
    same(part.tokens, came)?;
    let digest = digest(node, blocks.indices(), part.tokens)?;
    let computed = all - 1;
    (0..LAYERS).try_for_each(|layer| compute(&node.kv, part, blocks.indices(), layer, came..computed))?;
    let pins = node.engine.pins(0, PinSettings::default())?;
    let block_bytes = node.kv.pool.memory().block_bytes();
    let group = Group { block_tokens: KV_TOKENS as u32, computed, block_bytes, ..Group::of(&blocks) };
    let parent = Parent {
        request: request.clone(),
        isolation: Isolation::default(),
        groups: vec![group],
        blob: part.uuid.clone().into_bytes(),
    };
    let pin = pins.pin(parent, &[&blocks], KEPT_FOR)?;
    let says = format!("{ANSWER} tokens are answered; {} blocks are kept", blocks.len());
    let figures = json!({ "request": request.as_str(), "tokens": all, "blocks": blocks.len() });
    node.voice.event(act, "pinned", &says, figures);
    node.kept = Some(Kept { pins, request, pin });
    Ok(Ending::Done(digest))
}

/// The next turn: whole blocks of the one before are inherited, and what is behind them comes.
pub(crate) fn receive_next(node: &mut Node, part: &Part) -> Result<Ending, Flaw> {
    let Kept { pins, request: parent, pin } = node.kept.take().ok_or(Flaw::NoTurn)?;
    let (act, tokens) = (part.act, part.tokens);
    let request = node.request(part)?;
    let inherited = pins.inherit(&parent, &Isolation::default(), &request, tokens)?.map_err(Flaw::Missed)?;
    let shared = &inherited.groups()[0];
    let says = format!("{} of {tokens} tokens are here, in {} blocks", inherited.tokens(), shared.len());
    let figures = json!({ "parent": parent.as_str(), "tokens": inherited.tokens(), "blocks": shared.len() });
    node.voice.event(act, "inherited", &says, figures);
    let missing = tokens - inherited.begin();
    let own = node.kv.take(missing.div_ceil(KV_TOKENS))?;
    let how = Receive::into(&node.kv.layout).from(0, node.there()?).within(PATIENCE).continuation_of(&inherited);
    same(missing, received(node, part, &request, how, &own)?)?;
    // Every byte is looked at, also of what did not come.
    let digest = digest(node, &[shared, own.indices()].concat(), tokens)?;
    drop((inherited, own));
    pins.unpin(pin)?;
    free_again(node, act, "nothing is kept; every block is free again")?;
    Ok(Ending::Done(digest))
}

/// Has a transfer come into these blocks, and sees that both sides have forgotten it. Answers how many tokens came.
fn received(
    node: &Node,
    part: &Part,
    request: &RequestId,
    how: Receive<'_, SystemEnv>,
    blocks: &Blocks,
) -> Result<u64, Flaw> {
    let Node { engine, voice, .. } = node;
    let act = part.act;
    let input: Input<SystemEnv> = engine.consume(part.transfer, request, how)?;
    let figures = json!({ "request": request.as_str(), "transfer": part.transfer.to_string() });
    voice.event(act, "consume", &format!("{}: the same by its name", short(request)), figures);
    input.grant(blocks)?;
    voice.event(act, "grant", &format!("{} blocks are granted", blocks.len()), json!({ "blocks": blocks.len() }));
    let came = loop {
        match input.next(PATIENCE)? {
            InputEvent::Done { tokens } => break tokens,
            InputEvent::Failed(failed) => return Err(Flaw::Received(failed)),
            // Neither side has asked for it to outlive its session.
            InputEvent::Layer { .. }
            | InputEvent::Leg { .. }
            | InputEvent::NeedsMemory { .. }
            | InputEvent::Lost { .. } => {}
        }
    };
    node.see_finished(request, part.transfer, |finished| finished.received)?;
    let says = format!("{}: {came} tokens have come", short(request));
    voice.event(act, "finished", &says, json!({ "request": request.as_str(), "tokens": came }));
    Ok(came)
}

fn same(expected: u64, found: u64) -> Result<(), Flaw> {
    if found == expected { Ok(()) } else { Err(Flaw::Tokens { expected, found }) }
}

/// The digest of so many tokens as they are in these blocks, layer by layer.
fn digest(node: &Node, blocks: &[u32], tokens: u64) -> Result<String, Flaw> {
    let mut layers = vec![vec![0; (tokens * ROW) as usize]; LAYERS as usize];
    for (layer, bytes) in (0..).zip(&mut layers) {
        for (token, row) in (0..).zip(bytes.chunks_mut(ROW as usize)) {
            let block = blocks[(token / KV_TOKENS) as usize];
            node.kv.pool.window().read_into(at(&node.kv, block, layer, token % KV_TOKENS), row)?;
        }
    }
    Ok(content::digest(&layers))
}
