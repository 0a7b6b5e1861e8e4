//! What is going to happen in a run: who there is, what is to be moved, and a list of deeds, all made from the seed before it begins.
//!
//! Nothing in the list depends on what happens. So a part of it can be left out, and the rest still says what it said.

use std::time::Duration;

use penstock::flows::MemoryPolicy;
use penstock_datagram::credit::{ALLOWED_FRAMES, charge};
use penstock_datagram::wire::FRAME_BYTES_MIN;

use crate::copies::spec::{Copying, DeviceCopy, Step as Copied};
use crate::env::Clock;
use crate::faults::Death;
use crate::links::{Rate, Weather};
use crate::lives::spec::{Devices, Life, Step as Scheduled};
use crate::random::Random;
use crate::streams::spec::{Joining, Reading, Step as Streamed, Streaming};
use crate::turns::{Step, Turn};

/// How long a peer may be silent in a run.
pub const HEARTBEAT: Duration = Duration::from_millis(300);

/// A lease that is over before a silent session is.
pub const LEASE: Duration = Duration::from_millis(60);

/// How long both sides of a transfer that may be resumed wait for the next session: longer than it takes until a session that is silent
/// is over, and both have left it.
pub const RESUME: Duration = Duration::from_millis(1500);

/// Everything about a run.
#[derive(Debug, Clone)]
pub struct Script {
    /// What it was made from; it decides the order of all steps as well.
    pub seed: u64,
    /// What it is about.
    pub family: Family,
    /// The weather after everybody has met.
    pub weather: Weather,
    /// Who there is.
    pub players: Vec<Player>,
    /// What is to be moved.
    pub cases: Vec<Case>,
    /// What stages hand to each other.
    pub chunks: Vec<Chunk>,
    /// Turns that go on from others.
    pub turns: Vec<Turn>,
    /// What they stream to each other.
    pub streams: Vec<Streaming>,
    /// Who takes that in.
    pub readings: Vec<Reading>,
    /// What they wait for from several at once.
    pub joins: Vec<Joining>,
    /// The devices that they have, if any.
    pub devices: Option<Devices>,
    /// Lives of requests on those.
    pub lives: Vec<Life>,
    /// Engines of one process that have devices copy, if that is what it is about.
    pub copying: Option<Copying>,
    /// What is copied.
    pub copies: Vec<DeviceCopy>,
    /// What happens, by time.
    pub deeds: Vec<Deed>,
    /// What an engine's receive buffer takes, if less than usual, in bytes as credit counts them.
    pub receive_bytes: Option<u64>,
    /// Nobody has met anybody before it begins: everything is said at the first instant of a session.
    pub is_hasty: bool,
    /// Whoever was called says something as soon as the session is there, and calls nobody itself.
    pub takes_callers: bool,
}

/// What a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One source, several ranks that need a part of it each.
    FanOut,
    /// Several sources with a part each, one that needs all.
    FanIn,
    /// Blocks of different sizes, destinations that are too small, and policies for it.
    Legs,
    /// Transfers that are given up, or that fail.
    Aborts,
    /// Engines that die and come again, that stand still, links that are cut.
    Faults,
    /// What outlasts a fault: leases that are renewed, or not, and aborts that are not answered in time.
    Patience,
    /// Sessions that break, and transfers that go on in the next one.
    Breaks,
    /// Chunks that stages put and fetch, with few berths for them.
    Relays,
    /// Turns that go on from others, whose blocks are kept.
    Turns,
    /// Chunks behind each other, and of several stages at once.
    Streams,
    /// Requests of which schedulers report, and the swaps of their blocks.
    Lives,
    /// Some of all.
    Everything,
    /// Transfers that devices copy.
    Copies,
}

/// Seeds of one round: twelve of each family but the last, in turn, and then twelve of the last.
const ROUND: u64 = 13 * OTHERS;
/// Families but the last.
const OTHERS: u64 = Family::ALL.len() as u64 - 1;

impl Family {
    /// All of them: a seed is of the one at its remainder, or of the last.
    pub const ALL: [Self; 13] = [
        Self::FanOut,
        Self::FanIn,
        Self::Legs,
        Self::Aborts,
        Self::Faults,
        Self::Patience,
        Self::Breaks,
        Self::Relays,
        Self::Turns,
        Self::Streams,
        Self::Lives,
        Self::Everything,
        Self::Copies,
    ];

    /// The family of a seed's script.
    pub fn of(seed: u64) -> Self {
        match seed % ROUND < ROUND - OTHERS {
            true => Self::ALL[(seed % OTHERS) as usize],
            false => Self::Copies,
        }
    }

    /// The family of this name.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|family| format!("{family:?}") == name);
        found.ok_or(format!("`{name}` is none of {:?}", Self::ALL))
    }
}

/// An engine.
#[derive(Debug, Clone, Copy)]
pub struct Player {
    /// Its host; several may be on one.
    pub host: u64,
    /// Its clock.
    pub clock: Clock,
    /// Tokens of one of its blocks.
    pub block_tokens: u32,
    /// Its second layer lies row after row.
    pub has_planes: bool,
    /// Its rank among those that have or need the same, and of how many.
    pub rank: (u16, u16),
    /// Its layers lie one behind the other, each with a part of every block.
    pub is_layer_major: bool,
    /// Its blocks lie in memory of its application's, and only their numbers are a pool's.
    pub owns_memory: bool,
    /// A block has room for what goes once for a transfer.
    pub has_once: bool,
}

/// Something to be moved by name.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Those that need the bytes give them, and the other way round. Only where there is one of each.
    pub is_reversed: bool,
    /// How many tokens there are.
    pub tokens: u64,
    /// The first one that is needed.
    pub begin: u64,
    /// In how many chunks they are computed.
    pub chunks: u64,
    /// How many blocks a leg has.
    pub leg_blocks: usize,
    /// What is done without memory.
    pub memory: MemoryPolicy,
    /// The source lends, and the sink reads.
    pub is_pull: bool,
    /// How long what is lent is kept for a reader that does not renew, if not as long as the engine says.
    pub lease: Option<Duration>,
    /// Both sides wait for another session when theirs breaks.
    pub is_resumable: bool,
    /// Each layer goes by itself, chunk by chunk, in any order.
    pub is_by_layer: bool,
    /// What was computed of a layer is behind a fence, which opens later.
    pub has_fences: bool,
    /// Where it fails its memory is given to somebody else as soon as that is allowed, and what has landed is not looked at.
    pub gives_at_once: bool,
    /// Its sink asks for it in a way that its source cannot follow.
    pub is_misfit: bool,
    /// So long after the others the last chunk is computed.
    pub late: Duration,
    /// How long it may take.
    pub within: Duration,
}

/// Something that one stage hands to others.
#[derive(Debug, Clone, Copy)]
pub struct Chunk {
    /// Who puts it.
    pub from: usize,
    /// Who fetches it: all others, or the one at this place.
    pub to: Option<usize>,
    /// How many there are.
    pub stages: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// How long its putter and its readers have for it.
    pub within: Duration,
}

impl Chunk {
    /// The places of those who fetch it.
    pub fn readers(&self) -> Vec<usize> {
        let others = (0..self.stages).filter(|&stage| stage != self.from);
        others.filter(|&stage| self.to.is_none_or(|to| to == stage)).collect()
    }
}

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Deed {
    /// So long after everybody has met.
    pub after: Duration,
    /// What.
    pub act: Act,
}

/// One half of a case, as it is named in a deed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// A rank of its source.
    Source(u16),
    /// A rank of its sink.
    Sink(u16),
}

/// What happens.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    /// A half of a case begins.
    Begin {
        /// Which case.
        case: usize,
        /// Which half.
        half: Half,
    },
    /// All its sources have computed one chunk more.
    Chunk {
        /// Which case.
        case: usize,
    },
    /// All its sources have computed a layer of one chunk more.
    Layer {
        /// Which case.
        case: usize,
        /// Which layer.
        layer: u32,
    },
    /// An application says that it has failed.
    Fail {
        /// Which case.
        case: usize,
        /// Which half.
        half: Half,
    },
    /// An application wants its blocks back.
    Abort {
        /// Which case.
        case: usize,
        /// Which half.
        half: Half,
    },
    /// An application drops its handle.
    Drop {
        /// Which case.
        case: usize,
        /// Which half.
        half: Half,
    },
    /// An engine dies.
    Crash {
        /// Which.
        player: usize,
        /// What others notice.
        death: Death,
    },
    /// One that has died comes again, under its name.
    Restart {
        /// Which.
        player: usize,
        /// For so long whoever looks for it finds what was known of its former life.
        stale: Duration,
    },
    /// An engine stands still.
    Freeze {
        /// Which.
        player: usize,
        /// How long.
        span: Duration,
    },
    /// Nothing passes between two engines' hosts, or from the first to the other.
    Cut {
        /// From here.
        from: usize,
        /// To there.
        to: usize,
        /// In both directions.
        is_both: bool,
    },
    /// Every link passes again.
    Heal,
    /// A chunk is put.
    Put {
        /// Which.
        chunk: usize,
    },
    /// Somebody asks for a chunk, and fetches it as soon as it is there.
    Fetch {
        /// Which.
        chunk: usize,
        /// The place among its readers.
        reader: usize,
    },
    /// The application of one side of a chunk drops its handle.
    LetGo {
        /// Which.
        chunk: usize,
        /// The place among its readers; nobody is its putter.
        reader: Option<usize>,
    },
    /// An engine gives up the request of a chunk.
    GiveUp {
        /// Which.
        chunk: usize,
        /// Where it is.
        player: usize,
    },
    /// A step of a turn.
    Turn {
        /// Which.
        turn: usize,
        /// What happens to it.
        step: Step,
    },
    /// A scheduler does something with a request.
    Life {
        /// Which life.
        life: usize,
        /// What.
        step: Scheduled,
    },
    /// Something happens to streams of chunks, and to joins.
    Relay(Streamed),
    /// Something happens to what devices copy.
    Copies(Copied),
    /// Every stream between two engines is reset.
    Sever {
        /// One of them.
        one: usize,
        /// The other.
        other: usize,
    },
    /// An engine ends its session with another one.
    HangUp {
        /// Which.
        from: usize,
        /// With whom.
        to: usize,
    },
    /// The weather changes.
    Weather(Weather),
    /// An engine has no blocks to give.
    Starve {
        /// Which.
        player: usize,
        /// How long.
        span: Duration,
    },
}

impl Act {
    /// The case that it concerns, if it is one's.
    pub fn case(&self) -> Option<usize> {
        match *self {
            Self::Begin { case, .. }
            | Self::Chunk { case }
            | Self::Layer { case, .. }
            | Self::Fail { case, .. }
            | Self::Abort { case, .. }
            | Self::Drop { case, .. } => Some(case),
            _ => None,
        }
    }

    /// Whether somebody cannot be heard for a while when it happens, or never again.
    pub fn silences(&self) -> bool {
        matches!(self, Self::Crash { .. } | Self::Freeze { .. } | Self::Cut { .. })
    }

    /// Whether engines may lose each other by it.
    pub fn parts(&self) -> bool {
        self.silences() || matches!(self, Self::Sever { .. } | Self::HangUp { .. } | Self::Restart { .. })
    }

    /// Whether nothing but sessions may break by it, so that what may be resumed still comes to a good end.
    pub fn spares_engines(&self) -> bool {
        let breaks = matches!(self, Self::Sever { .. } | Self::HangUp { .. } | Self::Cut { .. } | Self::Freeze { .. });
        breaks || !self.may_fail_transfers()
    }

    /// Whether a run in which it happens may have transfers that fail.
    pub fn may_fail_transfers(&self) -> bool {
        let is_course = matches!(self, Self::Begin { .. } | Self::Chunk { .. } | Self::Layer { .. });
        let is_handing_over = matches!(self, Self::Put { .. } | Self::Fetch { .. });
        let is_going_on = matches!(self, Self::Turn { step: Step::Begin | Step::Compute | Step::Unpin, .. });
        let is_streaming = matches!(self, Self::Relay(step) if step.is_course());
        let is_handed = is_handing_over || is_going_on || is_streaming || matches!(self, Self::Life { .. });
        !is_course && !is_handed && !matches!(self, Self::Weather(_) | Self::Heal)
    }
}

impl Script {
    /// What this seed says.
    pub fn of(seed: u64) -> Self {
        let family = Family::of(seed);
        let mut random = Random::new(seed ^ 0x5c21_9700_d33d_0000);
        let players = players(family, &mut random);
        let weather = weather(&mut random);
        let is_pair = players.len() == 2;
        let count = 1 + random.below(if is_pair { 4 } else { 2 });
        // Stages, and turns, have nothing to do with each other beside what they hand over.
        let has_cases =
            !matches!(family, Family::Relays | Family::Turns | Family::Streams | Family::Lives | Family::Copies);
        let count = if has_cases { count } else { 0 };
        let cases: Vec<Case> = (0..count).map(|_| case(family, is_pair, &mut random)).collect();
        let mut script = Self {
            seed,
            family,
            weather,
            players,
            cases,
            chunks: Vec::new(),
            turns: Vec::new(),
            streams: Vec::new(),
            readings: Vec::new(),
            joins: Vec::new(),
            devices: None,
            lives: Vec::new(),
            copying: None,
            copies: Vec::new(),
            deeds: Vec::new(),
            receive_bytes: None,
            is_hasty: false,
            takes_callers: false,
        };
        for number in 0..count {
            script.play(number, &mut random);
        }
        script.disturb(&mut random);
        script.vary();
        script.deeds.sort_by_key(|deed| deed.after);
        script
    }

    /// The places of those that have the bytes of a case, or that need them, by rank.
    pub fn sides(&self, case: usize) -> (Vec<usize>, Vec<usize>) {
        let sources = usize::from(self.players[0].rank.1).max(1);
        let all: Vec<usize> = (0..self.players.len()).collect();
        let (first, second) = all.split_at(sources);
        match self.cases[case].is_reversed {
            true => (second.to_vec(), first.to_vec()),
            false => (first.to_vec(), second.to_vec()),
        }
    }

    pub(crate) fn halves(&self, case: usize) -> Vec<Half> {
        let (sources, sinks) = self.sides(case);
        let sources = (0..sources.len() as u16).map(Half::Source);
        sources.chain((0..sinks.len() as u16).map(Half::Sink)).collect()
    }

    pub(crate) fn add(&mut self, after: Duration, act: Act) {
        self.deeds.push(Deed { after, act });
    }

    /// The deeds of one case.
    pub(crate) fn play(&mut self, number: usize, random: &mut Random) {
        let start = micros(random.below(3000));
        let mut whim = self.whim(1 + number as u64);
        for half in self.halves(number) {
            // Now and then one comes late, or with all others at once.
            let late = micros(if random.once_in(6) { random.below(40_000) } else { random.below(400) });
            self.add(start + late, Act::Begin { case: number, half });
        }
        let mut after = start;
        for chunk in 1..=self.cases[number].chunks {
            after += micros(random.below(600));
            if chunk == self.cases[number].chunks {
                after += self.cases[number].late;
            }
            self.add(after, Act::Chunk { case: number });
        }
        if self.cases[number].is_by_layer {
            // Whatever the order of both layers, and of chunks: a layer may be computed long after its chunk was given.
            for layer in 0..2 {
                let mut after = start + micros(random.below(2000));
                self.add(after, Act::Layer { case: number, layer });
                for _ in 1..self.cases[number].chunks {
                    after += micros(whim.below(1500));
                    self.add(after, Act::Layer { case: number, layer });
                }
            }
        }
    }

    /// A generator of its own for one thing: it changes nothing of what others give.
    pub(crate) fn whim(&self, of: u64) -> Random {
        Random::new(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of << 32 ^ 0x51de)
    }

    /// How memory lies, whose it is, and what else an application may do or leave.
    fn vary(&mut self) {
        let mut whim = self.whim(0);
        let has_lives = !self.lives.is_empty();
        let moves_only = !has_lives && !self.has_stages() && self.turns.is_empty();
        let has_once = moves_only && self.players.len() == 2 && whim.once_in(4);
        for player in &mut self.players {
            player.is_layer_major = !has_lives && whim.once_in(3);
            player.owns_memory = moves_only && whim.once_in(4);
            player.has_once = has_once;
        }
        for case in &mut self.cases {
            case.has_fences = whim.once_in(3);
            case.gives_at_once = whim.once_in(2);
            case.is_misfit = moves_only && whim.once_in(24);
        }
        // Whoever gives up a request tells those it has met.
        let gives_up = self.deeds.iter().any(|deed| matches!(deed.act, Act::GiveUp { .. }));
        let meets_by_itself = !has_lives && !gives_up && self.streams.is_empty() && self.joins.is_empty();
        self.is_hasty = meets_by_itself && whim.once_in(4);
        self.takes_callers = whim.once_in(3);
        self.vary_network();
    }

    /// How old a packet may be that comes, how many rot, and for how many there is room.
    fn vary_network(&mut self) {
        let mut whim = self.whim(0xda7a);
        if whim.once_in(3) {
            self.weather.late_copies = 50;
        }
        if whim.once_in(4) {
            self.weather.rotten = 100;
        }
        if whim.once_in(3) {
            // What is moved is little, so it has to be many packets.
            self.weather.frame_bytes_max = FRAME_BYTES_MIN;
            let kept = (self.players.len() as u64 - 1) * ALLOWED_FRAMES;
            self.receive_bytes = Some((kept + 1 + whim.below(4) as u64) * charge(FRAME_BYTES_MIN));
        }
    }

    /// What goes wrong.
    fn disturb(&mut self, random: &mut Random) {
        let (aborts, faults, starving) = match self.family {
            Family::FanOut | Family::FanIn => match random.below(4) {
                0 => (1, 0, 0),
                1 => (0, 1, 0),
                _ => (0, 0, 0),
            },
            Family::Legs => (0, 0, random.below(3)),
            Family::Aborts => (1 + random.below(2), 0, 0),
            Family::Faults => (0, 1 + random.below(3), 0),
            Family::Patience => {
                self.be_patient(random);
                (0, 0, 0)
            }
            Family::Breaks => {
                self.break_sessions(random);
                (0, 0, 0)
            }
            Family::Relays => {
                self.hand_over(random);
                (0, 0, 0)
            }
            Family::Turns => {
                self.go_on(random);
                (0, 0, 0)
            }
            Family::Streams => {
                self.stream(random);
                (0, 0, 0)
            }
            Family::Lives => {
                self.live(random);
                (0, 0, 0)
            }
            Family::Copies => {
                self.copy_on_devices(random);
                (0, 0, 0)
            }
            Family::Everything => {
                if random.once_in(3) {
                    self.live(random);
                }
                if random.once_in(3) {
                    self.go_on(random);
                }
                if random.once_in(3) {
                    self.stream(random);
                }
                (random.below(2), random.below(3), random.below(2))
            }
        };
        for _ in 0..aborts {
            let case = random.below(self.cases.len());
            let halves = self.halves(case);
            let half = halves[random.below(halves.len())];
            let act = match random.below(3) {
                0 => Act::Fail { case, half },
                1 => Act::Abort { case, half },
                _ => Act::Drop { case, half },
            };
            self.add(micros(random.below(5000)), act);
        }
        for _ in 0..faults {
            self.fault(random);
        }
        for _ in 0..starving {
            let (player, span) = (random.below(self.players.len()), micros(random.below(60_000)));
            self.add(micros(random.below(4000)), Act::Starve { player, span });
        }
    }

    pub(crate) fn fault(&mut self, random: &mut Random) {
        let count = self.players.len();
        let (player, at) = (random.below(count), micros(random.below(5000)));
        // Most pass before anybody gives up waiting, some do not.
        let span = micros(if random.once_in(3) { random.below(900_000) } else { random.below(60_000) });
        match random.below(5) {
            0 => {
                // A host that loses power has nobody on it who lives.
                let host = self.players[player].host;
                let is_alone = self.players.iter().filter(|player| player.host == host).count() == 1;
                let death = if is_alone && random.once_in(2) { Death::Silent } else { Death::Killed };
                self.add(at, Act::Crash { player, death });
                if !random.once_in(4) {
                    let stale = micros(if random.once_in(2) { random.below(40_000) } else { 0 });
                    self.add(at + span, Act::Restart { player, stale });
                    // Somebody has something to move afterwards.
                    let Some(&first) = self.cases.first() else { return };
                    let again = Case { within: micros(3_000_000), ..first };
                    self.cases.push(again);
                    let case = self.cases.len() - 1;
                    for half in self.halves(case) {
                        self.add(at + span + micros(random.below(2000)), Act::Begin { case, half });
                    }
                    for _ in 0..again.chunks {
                        self.add(at + span + micros(random.below(3000)), Act::Chunk { case });
                    }
                    for layer in (0..2).flat_map(|layer| (0..again.chunks).map(move |_| layer)) {
                        self.add(at + span, Act::Layer { case, layer });
                    }
                }
            }
            1 => self.add(at, Act::Freeze { player, span }),
            2 | 3 => {
                let other = (player + 1 + random.below(count - 1)) % count;
                self.add(at, Act::Cut { from: player, to: other, is_both: random.once_in(2) });
                self.add(at + span, Act::Heal);
            }
            _ => {
                let weather = weather(random);
                self.add(at, Act::Weather(weather));
            }
        }
    }
}

pub(crate) fn micros(count: usize) -> Duration {
    Duration::from_micros(count as u64)
}

fn weather(random: &mut Random) -> Weather {
    let storm = Weather { delay_min: micros(5), delay_max: micros(900), rotten: 10, ..Weather::default() };
    match random.below(5) {
        0 => Weather::default(),
        1 => Weather { delay_max: micros(400), ..Weather::default() },
        2 => Weather { lost: 40, doubled: 40, ..storm },
        3 => Weather { lost: 50 + random.below(151) as u32, ..storm },
        _ => {
            let (bytes_per_ms, queue_bytes) =
                (5_000 + random.below(20_000) as u64, 20_000 + random.below(40_000) as u64);
            Weather { rate: Some(Rate { bytes_per_ms, queue_bytes }), ..Weather::default() }
        }
    }
}

fn players(family: Family, random: &mut Random) -> Vec<Player> {
    let ranks = 2 + random.below(2) as u16 * 2;
    let (sources, sinks) = match family {
        Family::FanOut => (1, ranks),
        Family::FanIn => (ranks, 1),
        Family::Relays | Family::Turns | Family::Streams | Family::Lives => (1, 1 + random.below(2) as u16),
        Family::Breaks => [(1, 1), (1, 1), (1, 2), (2, 1)][random.below(4)],
        _ => (1, 1),
    };
    // All engines of a side have the same block; some are all on one host.
    let sizes = [[4, 16][random.below(2)], [4, 8, 16][random.below(3)]];
    let is_one_host = random.once_in(5);
    let mut player = |number: u64, rank, side: usize| Player {
        host: if is_one_host { 1 } else { 1 + number },
        clock: Clock { ahead: micros(random.below(5_000_000)), drift_ppm: random.below(401) as i32 - 200 },
        block_tokens: sizes[side],
        has_planes: random.once_in(3),
        rank,
        is_layer_major: false,
        owns_memory: false,
        has_once: false,
    };
    let mut all: Vec<Player> = (0..sources).map(|rank| player(u64::from(rank), (rank, sources), 0)).collect();
    all.extend((0..sinks).map(|rank| player(u64::from(sources + rank), (rank, sinks), 1)));
    if matches!(family, Family::Turns | Family::Lives) {
        // Each has whole blocks.
        all.iter_mut().for_each(|player| player.rank = (0, 1));
    }
    all
}

fn case(family: Family, is_pair: bool, random: &mut Random) -> Case {
    let tokens = match random.below(8) {
        0 => 1 + random.below(4),
        1 => 64,
        _ => 1 + random.below(100),
    } as u64;
    let is_strict = matches!(family, Family::Legs | Family::Everything);
    let is_by_layer = random.once_in(3);
    Case {
        is_reversed: is_pair && random.once_in(3),
        tokens,
        begin: if random.once_in(4) { random.below(tokens as usize) as u64 } else { 0 },
        chunks: 1 + random.below(3) as u64,
        leg_blocks: 1 + random.below(6),
        memory: match random.below(3) {
            0 if is_strict => MemoryPolicy::Fail,
            1 => MemoryPolicy::Shrink,
            _ => MemoryPolicy::Wait,
        },
        is_pull: random.once_in(3),
        lease: random.once_in(3).then_some(LEASE),
        is_resumable: false,
        is_by_layer,
        has_fences: false,
        gives_at_once: false,
        is_misfit: false,
        late: micros(if random.once_in(6) { random.below(150_000) } else { 0 }),
        within: Duration::from_millis(if random.once_in(8) { 30 } else { 2000 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_the_same_every_time_and_deeds_are_in_order() {
        for seed in 0..200 {
            let (one, again) = (Script::of(seed), Script::of(seed));
            assert_eq!(format!("{one:?}"), format!("{again:?}"));
            assert!(one.deeds.is_sorted_by_key(|deed| deed.after));
            let has_others =
                one.has_stages() || !one.turns.is_empty() || !one.lives.is_empty() || one.copying.is_some();
            assert!(!one.cases.is_empty() || has_others);
            if !one.cases.is_empty() {
                let (sources, sinks) = one.sides(0);
                assert_eq!(sources.len() + sinks.len(), one.players.len());
            }
        }
    }

    #[test]
    fn every_kind_of_deed_is_in_some_seed() {
        let kind = |deed: &Deed| format!("{:?}", deed.act).split([' ', '(', '{']).next().unwrap_or("").to_owned();
        let mut kinds: Vec<String> =
            (0..500).flat_map(|seed| Script::of(seed).deeds.iter().map(kind).collect::<Vec<_>>()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let all = [
            "Abort", "Begin", "Chunk", "Copies", "Crash", "Cut", "Drop", "Fail", "Fetch", "Freeze", "GiveUp", "HangUp",
            "Heal", "Layer", "LetGo", "Life", "Put", "Relay", "Restart", "Sever", "Starve", "Turn", "Weather",
        ];
        assert_eq!(kinds, all);
    }
}
