//! A peer in a process of its own with memory that Penstock did not allocate and that only it may touch,
//! and the means to stop it.

use std::path::Path;

use penstock::config::{ProcessVmChoice, Progress, TransportName};
use penstock::{Engine, HostMemory, LocalRegion, PoolSpec, Rights, SystemEnv};

use crate::child::{Child, from_word, obey, say, to_word};
use crate::pair::{PATIENCE, config};

/// The label of an owner's memory.
pub const OWNED: &str = "owned";
/// Bytes of it: so many that whoever stops its owner behind the first bytes finds it copying, also where sleeps are coarse.
pub const OWNED_BYTES: u64 = 24 << 20;
/// What it is full of at first.
pub const OWNED_BYTE: u8 = 1;

/// The child's side. It says its descriptor, and then answers these orders:
///
/// | order | answers |
/// |---|---|
/// | `count <byte>` | how many bytes of its memory are this one |
/// | `fill <byte>` | `filled` |
///
/// # Panics
/// If it cannot.
pub fn own(folder: &Path, name: &str) {
    let config = config(folder, name, TransportName::Shm, Progress::Adaptive).process_vm(ProcessVmChoice::Off);
    let engine = Engine::start(config).expect("an engine starts in a fresh folder");
    let memory = HostMemory::from_vec(vec![OWNED_BYTE; OWNED_BYTES as usize]).expect("it is not empty");
    let region = engine.register(memory, OWNED, Rights::READ_WRITE).expect("a fresh engine has room");
    say(&to_word(&engine.descriptor()));
    obey(|order| match order.split_once(' ') {
        Some(("count", byte)) => count(&region, byte.parse().expect("a byte")).to_string(),
        Some(("fill", byte)) => {
            region.host().unwrap().fill(0, OWNED_BYTES, byte.parse().expect("a byte")).expect("it is as long as that");
            "filled".to_owned()
        }
        _ => panic!("no such order: {order}"),
    });
}

fn count(region: &LocalRegion<SystemEnv>, byte: u8) -> usize {
    let mut bytes = vec![0; OWNED_BYTES as usize];
    region.host().unwrap().read_into(0, &mut bytes).expect("it is as long as that");
    bytes.iter().filter(|&&found| found == byte).count()
}

/// An owner, as the test sees it.
#[derive(Debug)]
pub struct Owner {
    child: Child,
    /// Its name.
    pub name: String,
    /// Its engine's descriptor.
    pub card: Vec<u8>,
}

impl Owner {
    /// Starts one, as a process of `program`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &str, folder: &Path, name: &str) -> Self {
        let path = folder.to_str().expect("folders for temporary files have plain names");
        let mut child = Child::start(program, &["own", path, name]);
        let card = from_word(&child.answer(PATIENCE)).expect("it says its descriptor first");
        Self { child, name: name.to_owned(), card }
    }

    /// Stops it, and waits until it stands still.
    ///
    /// # Panics
    /// If it does not.
    pub fn freeze(&self) {
        self.child.freeze();
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.child.thaw();
    }

    /// Kills it.
    pub fn kill(&self) {
        self.child.kill();
    }

    /// How many bytes of its memory are this one.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn count(&mut self, byte: u8) -> u64 {
        self.child.order(&format!("count {byte}"));
        self.child.answer(PATIENCE).parse().expect("it answers with a number")
    }

    /// Fills its memory.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn fill(&mut self, byte: u8) {
        self.child.order(&format!("fill {byte}"));
        assert_eq!(self.child.answer(PATIENCE), "filled");
    }

    /// Ends it, which must go well.
    pub fn finish(self) {
        self.child.finish();
    }
}

/// An engine that writes to owners, and its memory.
///
/// # Panics
/// If it does not start.
pub fn writer(folder: &Path, progress: Progress) -> (Engine, LocalRegion<SystemEnv>) {
    let engine = Engine::start(config(folder, "writer", TransportName::Shm, progress)).expect("an engine starts");
    let pool = engine.pool(PoolSpec::host(OWNED_BYTES).label("near")).expect("there is memory for a small pool");
    let near = LocalRegion::clone(&pool);
    (engine, near)
}
