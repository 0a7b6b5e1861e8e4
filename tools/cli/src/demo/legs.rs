//! What one stage has embedded goes to another one in legs of what that has room for: embeddings token by token, positions plane by
//! plane, and once what is about all of them.

use penstock::flows::{InputEvent, Receive, Send};
use serde_json::json;

use super::content;
use super::flaw::Flaw;
use super::node::{EMBED_ROWS, EMBED_TOKENS, Ending, Node, ONCE_BYTES, PATIENCE, PLACE_ROWS, short};
use super::words::Part;

/// Tokens for which the sink has room at a time.
const LEG: u64 = 1024;
const EMBEDDING: u64 = EMBED_ROWS.count as u64 * EMBED_ROWS.bytes as u64;
const PLANES: u64 = PLACE_ROWS.count as u64;
const PLACE: u64 = PLACE_ROWS.bytes as u64;

/// All buffers in one piece each, as they should be at the other end.
fn expected(part: &Part) -> [Vec<u8>; 3] {
    let mut embeddings = vec![0; (part.tokens * EMBEDDING) as usize];
    let mut places = vec![0; (part.tokens * PLANES * PLACE) as usize];
    for (token, row) in (0..).zip(embeddings.chunks_mut(EMBEDDING as usize)) {
        content::fill(part.stamp, 0, token, row);
        for plane in 0..PLANES {
            let at = ((plane * part.tokens + token) * PLACE) as usize;
            content::fill(part.stamp, 1 + plane as usize, token, &mut places[at..at + PLACE as usize]);
        }
    }
    let mut once = vec![0; ONCE_BYTES as usize];
    content::fill(part.stamp, 9, 0, &mut once);
    [embeddings, places, once]
}

/// The stage that embeds.
pub(crate) fn send(node: &Node, part: &Part) -> Result<Ending, Flaw> {
    let Node { engine, embed, voice, .. } = node;
    let (act, tokens) = (part.act, part.tokens);
    let request = node.request(part)?;
    let whole = expected(part);
    let blocks = embed.take(tokens.div_ceil(EMBED_TOKENS))?;
    let record = embed.pool.memory().block_bytes();
    let window = embed.pool.window();
    let once = embed.take(1)?;
    let behind = EMBED_TOKENS * (EMBEDDING + PLANES * PLACE);
    window.write_from(u64::from(once.indices()[0]) * record + behind, &whole[2])?;
    let how = Send::from(&embed.layout).once(&once).within(PATIENCE);
    let output = engine.produce(part.transfer, &request, how)?;
    let says = format!("{}: {tokens} embeddings", short(&request));
    voice.event(
        act,
        "produce",
        &says,
        json!({ "request": request.as_str(), "transfer": part.transfer.to_string(), "tokens": tokens }),
    );
    for token in 0..tokens {
        let base = u64::from(blocks.indices()[(token / EMBED_TOKENS) as usize]) * record;
        let within = token % EMBED_TOKENS;
        let piece = |bytes: &[u8], at: u64, len: u64| bytes[at as usize..(at + len) as usize].to_vec();
        window.write_from(base + within * EMBEDDING, &piece(&whole[0], token * EMBEDDING, EMBEDDING))?;
        for plane in 0..PLANES {
            let at = base + EMBED_TOKENS * EMBEDDING + (plane * EMBED_TOKENS + within) * PLACE;
            window.write_from(at, &piece(&whole[1], (plane * tokens + token) * PLACE, PLACE))?;
        }
    }
    output.chunk(&blocks, tokens, true)?;
    drop((blocks, once));
    output.wait(PATIENCE)?.map_err(Flaw::Sent)?;
    node.see_finished(&request, part.transfer, |finished| finished.sent)?;
    voice.event(act, "finished", &format!("{} was sent", short(&request)), json!({ "request": request.as_str() }));
    drop(output);
    let free = embed.all_free()?;
    voice.event(act, "free", "every block is free again", json!({ "blocks": free }));
    Ok(Ending::Done(content::digest(&whole)))
}

/// The stage that goes on with it, and has room for a part of it at a time.
pub(crate) fn receive(node: &Node, part: &Part) -> Result<Ending, Flaw> {
    let Node { engine, embed, voice, .. } = node;
    let act = part.act;
    let request = node.request(part)?;
    let how = Receive::into(&embed.layout).from(0, node.there()?).within(PATIENCE);
    let input = engine.consume(part.transfer, &request, how)?;
    let figures = json!({ "request": request.as_str(), "transfer": part.transfer.to_string() });
    voice.event(act, "consume", &format!("{}: room for {LEG} a leg", short(&request)), figures);
    let mut whole: Vec<Vec<u8>> = Vec::new();
    let assemble = |whole: &mut Vec<Vec<u8>>, total: u64| -> Result<(), Flaw> {
        if whole.is_empty() {
            for buffer in 0..3 {
                whole.push(vec![0; input.assembled_bytes(buffer, total).ok_or(Flaw::NoTotal)? as usize]);
            }
        }
        let mut rooms: Vec<&mut [u8]> = whole.iter_mut().map(Vec::as_mut_slice).collect();
        input.assemble(&mut rooms, total)?;
        Ok(())
    };
    let grant = |is_first: bool| -> Result<(), Flaw> {
        let blocks = embed.take(LEG / EMBED_TOKENS)?;
        let once = if is_first { Some(embed.take(1)?) } else { None };
        let leg = input.grant_with(&blocks, 0, once.as_ref())?;
        let says = format!("leg {leg}: {} blocks are granted", blocks.len());
        voice.event(act, "grant", &says, json!({ "leg": leg, "blocks": blocks.len() }));
        Ok(())
    };
    grant(true)?;
    let came = loop {
        match input.next(PATIENCE)? {
            InputEvent::Leg { leg, tokens, total, .. } => {
                assemble(&mut whole, total.ok_or(Flaw::NoTotal)?)?;
                let says = format!("leg {leg}: {tokens} tokens are here");
                voice.event(act, "leg", &says, json!({ "leg": leg, "tokens": tokens, "total": total }));
            }
            InputEvent::NeedsMemory { .. } => grant(false)?,
            // Neither side has asked for it to outlive its session.
            InputEvent::Layer { .. } | InputEvent::Lost { .. } => {}
            InputEvent::Done { tokens } => break tokens,
            InputEvent::Failed(failed) => return Err(Flaw::Received(failed)),
        }
    };
    assemble(&mut whole, came)?;
    node.see_finished(&request, part.transfer, |finished| finished.received)?;
    let figures = json!({ "request": request.as_str(), "tokens": came });
    voice.event(act, "finished", &format!("{} has {came} tokens in one piece", short(&request)), figures);
    drop(input);
    embed.all_free()?;
    Ok(Ending::Done(content::digest(&whole)))
}
