//! What the stand-in pretends to be, and what is to go wrong, from the environment.

use std::io::{self, Write};
use std::sync::OnceLock;

/// As in `version=12080 devices=2 lacks=cuMemcpyBatchAsync init=802 launch-fails=3`, in any order. Counts begin at 1; 0 is never.
const VARIABLE: &str = "PENSTOCK_CUDA_STAND_IN";

pub(crate) struct Plan {
    /// The release of CUDA.
    pub(crate) version: i32,
    pub(crate) devices: i32,
    /// Bytes of memory that a device has, and that may be pinned for it.
    pub(crate) bytes: u64,
    pub(crate) pinned: u64,
    /// Of the order in which the card does things, and how late. 0: in the order in which they came, each as soon as it can, for figures.
    pub(crate) seed: u64,
    /// What starting it answers.
    pub(crate) init: u32,
    /// What asking for its release answers.
    pub(crate) mute: u32,
    /// `launch-fails`: which of the calls that give a stream something answers that a launch failed, as everything does from then on.
    pub(crate) launch_fails: u64,
    /// `memory-fails`: for which device memory, of all that is asked for, there is too little. What is asked for next may be had.
    pub(crate) memory_fails: u64,
    /// `lost-after`: behind how many pieces of work the card is lost.
    pub(crate) lost_after: u64,
    /// `events-late`: microseconds that an event comes after what was to be done before it. Its stream is not done before either.
    pub(crate) events_late: u64,
    /// `bus`: copies take as long as they would at so many GB/s, and leave the bytes where they are: for figures of what is around them, on a machine
    /// with no core for a card. 0: they are done.
    pub(crate) bus: u64,
    /// `writes-ordering`: who sees what cards have written without a flush, as the driver numbers it. 100: its owner, as on an H200.
    pub(crate) writes_ordering: i32,
    /// Functions that it does not have.
    pub(crate) lacks: Vec<String>,
    /// What its devices cannot: `vmm`, `descriptors`, `ipc`, `gpudirect`, `dma-buf`, `flush`, or `compute`, where nobody may use them.
    pub(crate) without: Vec<String>,
}

impl Plan {
    /// A word that is not known, or whose value is none, is the error: a test would be about nothing.
    fn read(text: &str) -> Result<Self, &str> {
        let mut plan = Self {
            version: 13_000,
            devices: 1,
            bytes: u64::MAX,
            pinned: u64::MAX,
            seed: 1,
            init: 0,
            mute: 0,
            launch_fails: 0,
            memory_fails: 0,
            lost_after: 0,
            events_late: 0,
            bus: 0,
            writes_ordering: 100,
            lacks: Vec::new(),
            without: Vec::new(),
        };
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or(word)?;
            let list = || value.split(',').map(str::to_owned).collect();
            let number = || value.parse::<u64>().map_err(|_| word);
            let small = || value.parse::<u32>().map_err(|_| word);
            match key {
                "version" => plan.version = small()? as i32,
                "devices" => plan.devices = small()? as i32,
                "bytes" => plan.bytes = number()?,
                "pinned" => plan.pinned = number()?,
                "seed" => plan.seed = number()?,
                "init" => plan.init = small()?,
                "mute" => plan.mute = small()?,
                "launch-fails" => plan.launch_fails = number()?,
                "memory-fails" => plan.memory_fails = number()?,
                "lost-after" => plan.lost_after = number()?,
                "events-late" => plan.events_late = number()?,
                "bus" => plan.bus = number()?,
                "writes-ordering" => plan.writes_ordering = small()? as i32,
                "lacks" => plan.lacks = list(),
                "without" => plan.without = list(),
                _ => return Err(word),
            }
        }
        Ok(plan)
    }

    /// Whether its devices can do this.
    pub(crate) fn can(&self, what: &str) -> bool {
        !self.without.iter().any(|lacking| lacking == what)
    }
}

/// The plan of this process.
pub(crate) fn plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Plan::read(&text).unwrap_or_else(|word| {
            let _ = writeln!(io::stderr(), "{VARIABLE}: the stand-in for a driver does not know what `{word}` means");
            std::process::abort();
        })
    })
}
