//! `penstock demo pd`: how a proxy, a prefill and a decode hand over requests by name, each in a process of its own.
//!
//! Read in this order:
//!
//! - `words`: what the processes say to each other; `child`: starting, telling and ending one
//! - `node`: one of the two; `push`, `legs`, `turns` and `relay`: the parts it plays
//! - `show`: the proxy, which starts both, tells them what to play and looks at what came of it
//! - `story`: the timeline; `content`: what is in the bytes
//! - `flaw`: what can go wrong

mod child;
mod content;
mod flaw;
mod legs;
mod node;
mod push;
mod relay;
mod show;
mod story;
mod turns;
mod words;

use penstock::{Env, SystemEnv};
use serde_json::json;

pub(crate) use self::flaw::Flaw;
use self::show::{Run, Show};
use self::story::Story;
pub(crate) use self::words::Role;
use crate::arguments::{self, DemoCommand, NodeOptions, PdOptions};
use crate::failure::{Ended, Failure};
use crate::network::Over;

/// What the names of folders begin with.
const FOLDER_PREFIX: &str = "penstock-demo-";

/// Shows what was asked for.
pub(crate) fn run(command: &DemoCommand, verbose: u8) -> Result<Ended, Failure> {
    let DemoCommand::Pd(options) = command;
    let interrupted = Over::watch()?;
    // Short enough to be typed again.
    let seed = options.seed.unwrap_or_else(|| SystemEnv.random() >> 40);
    let mut story = Story::new(options.json);
    story.print_text(&format!("penstock demo pd, seed {seed}; times in ms\n"));
    let chosen = arguments::Over::ALL.into_iter().filter(|over| options.transport.is_none_or(|only| only == *over));
    let mut is_well = true;
    for over in chosen {
        let run = Run { interrupted: &interrupted, seed, verbose, sabotage: options.sabotage };
        is_well &= over_transport(&mut story, options, over, run);
        if interrupted.is_set() {
            break;
        }
    }
    let says = if is_well { "everything was verified" } else { "NOT everything was verified" };
    story.proxy("ended", says, json!({ "ok": is_well, "seed": seed }));
    story.end()?;
    Ok(if is_well { Ended::Well } else { Ended::Badly })
}

fn over_transport(story: &mut Story, options: &PdOptions, over: arguments::Over, run: Run<'_>) -> bool {
    let transport = arguments::Transport::from(over);
    story.over(transport.as_str());
    let played = Show::open(story, transport, run).and_then(|mut show| {
        match options.kill {
            None => show.all_acts()?,
            Some(role) => show.kill(role)?,
        }
        show.close()
    });
    if let Err(flaw) = &played {
        story.proxy("wrong", &flaw.to_string(), json!({ "ok": false }));
    }
    story.tell();
    played.is_ok()
}

/// The hidden processes: obey orders until standard input ends.
pub(crate) fn serve(options: &NodeOptions) -> Result<Ended, Failure> {
    node::serve(options).map_err(Failure::Node)?;
    Ok(Ended::Well)
}
