//! The proxy: it starts both processes, tells them what to play, and looks at what came of it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use penstock::flows::TransferId;
use serde_json::json;

use super::FOLDER_PREFIX;
use super::child::{Heard, Player};
use super::content::{mixed, uuid};
use super::flaw::Flaw;
use super::story::{Story, now_ns};
use super::words::{Order, Part, Role, Said, Scene};
use crate::arguments::Transport;
use crate::folder::Folder;
use crate::network::Over;

/// How long anything that the others do may take, their own patience included.
const LIMIT: Duration = Duration::from_secs(20);
/// How often it is looked whether to end.
const GLANCE: Duration = Duration::from_millis(50);
/// A failure that one side knows is known to the other one by then.
const NOTICE: Duration = Duration::from_secs(1);
/// The layer behind which somebody is killed.
const KILL_AFTER: u32 = 3;

/// How it is run.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) interrupted: &'a Over,
    pub(crate) seed: u64,
    pub(crate) verbose: u8,
    /// The bytes are spoiled on purpose.
    pub(crate) sabotage: bool,
}

/// Both processes, and what is heard of them. Fields end in this order: the folder is there until both have ended.
pub(crate) struct Show<'a> {
    players: [Option<Player>; 2],
    lives: [u32; 2],
    story: &'a mut Story,
    sender: Sender<Heard>,
    heard: Receiver<Heard>,
    run: Run<'a>,
    transport: Transport,
    /// Prefill's, by which decode finds it.
    card: Vec<u8>,
    folder: Folder,
}

impl<'a> Show<'a> {
    /// Starts both and lets them meet.
    pub(crate) fn open(story: &'a mut Story, transport: Transport, run: Run<'a>) -> Result<Self, Flaw> {
        let folder = Folder::make(FOLDER_PREFIX).map_err(Flaw::Folder)?;
        let (sender, heard) = channel();
        let (players, lives) = ([None, None], [0, 0]);
        let card = Vec::new();
        let mut show = Self { players, lives, story, sender, heard, run, transport, card, folder };
        show.start(Role::Decode)?;
        show.card = show.start(Role::Prefill)?;
        show.meet()?;
        Ok(show)
    }

    /// Starts one, and answers its engine's card.
    fn start(&mut self, role: Role) -> Result<Vec<u8>, Flaw> {
        let life = self.lives[role as usize] + 1;
        self.lives[role as usize] = life;
        let with = (self.folder.path(), self.transport, self.run.verbose);
        self.players[role as usize] = Some(Player::start(role, life, with, self.sender.clone())?);
        let card = self.wait(role, "its start", |who, said| match said {
            Said::Ready { card } if who == role => Some(card.clone()),
            _ => None,
        })?;
        let says =
            if life == 1 { format!("{} is there", role.engine()) } else { format!("a new {} is there", role.engine()) };
        self.story.proxy("started", &says, json!({ "engine": role.engine(), "life": life }));
        Ok(card)
    }

    /// Decode connects to prefill.
    fn meet(&mut self) -> Result<(), Flaw> {
        self.tell(Role::Decode, &Order::Meet { card: self.card.clone() })?;
        let path = self.wait(Role::Decode, "its connection", |_, said| match said {
            Said::Met { path } => Some(path.clone()),
            _ => None,
        })?;
        self.story.proxy("met", &format!("they have met: {path}"), json!({ "path": path }));
        Ok(())
    }

    fn tell(&mut self, role: Role, order: &Order) -> Result<(), Flaw> {
        self.players[role as usize].as_mut().ok_or(Flaw::Gone { role })?.tell(order)
    }

    /// Hears both until what is waited for has come.
    fn wait<R>(
        &mut self,
        role: Role,
        of: &'static str,
        mut until: impl FnMut(Role, &Said) -> Option<R>,
    ) -> Result<R, Flaw> {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if self.run.interrupted.is_set() {
                return Err(Flaw::Interrupted);
            }
            let heard = match self.heard.recv_timeout(GLANCE) {
                Ok(heard) => heard,
                // This side has a sender itself.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => continue,
            };
            let who = heard.role;
            let is_here = self.players[who as usize].as_ref().is_some_and(|player| player.life == heard.life);
            match heard.said {
                // The last words of one that was killed still belong to the story.
                Some(Ok(Said::Event(event))) => {
                    let found = until(who, &Said::Event(event.clone()));
                    self.story.player(who, event);
                    if let Some(found) = found {
                        return Ok(found);
                    }
                }
                _ if !is_here => {}
                Some(Ok(Said::Failed { why })) => return Err(Flaw::Player { role: who, why }),
                Some(Ok(said)) => {
                    if let Some(found) = until(who, &said) {
                        return Ok(found);
                    }
                }
                Some(Err(said)) => return Err(Flaw::Malformed { role: who, said }),
                None => return Err(Flaw::Gone { role: who }),
            }
        }
        Err(Flaw::Silent { role, of, within: LIMIT })
    }

    /// Plays everything.
    pub(crate) fn all_acts(&mut self) -> Result<(), Flaw> {
        self.story.act(1, "layers are pushed as they are computed");
        self.play(1, Scene::Push { pause_after: None }, 1000, 0)?;
        self.story.act(2, "the same is lent, and decode reads it");
        self.play(2, Scene::Pull, 1000, 0)?;
        self.story.act(3, "2,000 embeddings in legs of 1,024");
        self.play(3, Scene::Legs, 2000, 0)?;
        self.story.act(4, "the next turn of a conversation: what decode has kept of the last one does not come again");
        self.play(4, Scene::Parent, 500, 0)?;
        self.play(4, Scene::Child, 705, 0)?;
        self.story.act(5, "two stages stream to each other, with two berths each");
        self.play(5, Scene::Relay, 0, 0)
    }

    /// Names a request, tells both of it, in an order that the seed decides.
    fn dispatch(&mut self, act: u32, scene: Scene, tokens: u64, attempt: u32) -> Result<(), Flaw> {
        let of_act = mixed(self.run.seed ^ u64::from(act));
        // Turns of a conversation are requests of their own, and the bytes of the same tokens are the same.
        let (uuid, stamp) = match scene {
            Scene::Child => (uuid(mixed(of_act)), of_act),
            Scene::Parent => (uuid(of_act), of_act),
            _ => (uuid(of_act), mixed(of_act ^ u64::from(attempt) << 32)),
        };
        let transfer = TransferId::mint(&uuid, attempt, 0)?;
        let first = Role::BOTH[(mixed(of_act ^ u64::from(attempt)) & 1) as usize];
        let name = transfer.to_string();
        let says = format!("minted {}…", &name[..13]);
        self.story.proxy("mint", &says, json!({ "transfer": name, "uuid": uuid, "attempt": attempt }));
        let order = Order::Play(Part { act, scene, transfer, uuid, tokens, stamp, spoil: self.run.sabotage });
        let says = format!("tells {first}, then {}", first.other());
        self.story.proxy("dispatch", &says, json!({ "transfer": name, "first": first.as_str() }));
        self.tell(first, &order)?;
        self.tell(first.other(), &order)
    }

    /// An act that both play to its end, with the same bytes.
    fn play(&mut self, act: u32, scene: Scene, tokens: u64, attempt: u32) -> Result<(), Flaw> {
        self.dispatch(act, scene, tokens, attempt)?;
        let mut digests: [Option<String>; 2] = [None, None];
        let digests = self.wait(Role::Decode, "the end of its part", |who, said| {
            if let Said::Done { act: of, digest } = said
                && *of == act
            {
                digests[who as usize] = Some(digest.clone());
            }
            match &digests {
                [Some(prefill), Some(decode)] => Some([prefill.clone(), decode.clone()]),
                _ => None,
            }
        })?;
        let [prefill, decode] = digests;
        if prefill != decode {
            return Err(Flaw::Digests { prefill, decode });
        }
        self.story.proxy("verified", &format!("verified: {}…", &decode[..16]), json!({ "digest": decode }));
        self.story.tell();
        Ok(())
    }

    /// Act 1, in which one of them is killed; and again with a new one.
    pub(crate) fn kill(&mut self, role: Role) -> Result<(), Flaw> {
        let survivor = role.other();
        self.story.act(1, &format!("layers are pushed, and {role} is killed behind layer {KILL_AFTER}"));
        self.dispatch(1, Scene::Push { pause_after: Some(KILL_AFTER) }, 1000, 0)?;
        // That it has landed tells that both are in the middle: who has only computed may be alone yet.
        self.wait(Role::Decode, "its layers", |who, said| match said {
            Said::Event(event) if who == Role::Decode && event.event == "landed" => {
                (event.figures.get("layer")?.as_u64()? == u64::from(KILL_AFTER)).then_some(())
            }
            _ => None,
        })?;
        let mut player = self.players[role as usize].take().ok_or(Flaw::Gone { role })?;
        let killed_ns = self.story.proxy("killed", &format!("{role} is killed"), json!({ "killed": role.as_str() }));
        player.kill()?;
        let failed_ns = self.wait(survivor, "the failure", |who, said| match said {
            Said::Event(event) if who == survivor && event.event == "failed" => Some(event.t_ns),
            _ => None,
        })?;
        self.wait(survivor, "the end of its part", |who, said| {
            (who == survivor && matches!(said, Said::Survived { act: 1 })).then_some(())
        })?;
        let took = Duration::from_nanos(failed_ns.saturating_sub(killed_ns));
        if took >= NOTICE {
            return Err(Flaw::Late { role: survivor, took });
        }
        let took_ms = took.as_secs_f64() * 1e3;
        let says = format!("{survivor} knew after {took_ms:.1} ms");
        self.story.proxy("noticed", &says, json!({ "by": survivor.as_str(), "took_ms": took_ms }));
        self.story.act(1, &format!("the same with a new {role}, under the same name"));
        let card = self.start(role)?;
        if role == Role::Prefill {
            self.card = card;
        }
        self.meet()?;
        self.play(1, Scene::Push { pause_after: None }, 1000, 1)
    }

    /// Lets both end, and sees that they end well.
    pub(crate) fn close(mut self) -> Result<(), Flaw> {
        let begun = now_ns();
        for role in Role::BOTH {
            if let Some(player) = self.players[role as usize].take() {
                player.end()?;
            }
        }
        let took_ms = (now_ns() - begun) as f64 / 1e6;
        self.story.proxy("left", "both have ended", json!({ "took_ms": took_ms }));
        Ok(())
    }
}
