//! Memory that the application of one end allocated itself, and registered.

use penstock::region::LocalRegion;
use penstock::{Engine, Rights, SystemEnv, Window};

use crate::error::LabError;
use crate::pattern;
use crate::raw::Untouched;

/// What both ends call it.
pub const OWN: &str = "own";

/// An array of the application's.
#[derive(Debug)]
pub struct Own {
    region: LocalRegion<SystemEnv>,
    window: Window,
}

impl Own {
    /// Allocates so many bytes, touches each page, and registers them.
    pub fn allocate(engine: &Engine, bytes: u64) -> Result<Self, LabError> {
        let no_memory = || LabError::NoMemory { bytes };
        let len = usize::try_from(bytes).map_err(|_| no_memory())?;
        let memory = Untouched::new(len).and_then(|memory| memory.view(0, len)).ok_or_else(no_memory)?;
        let window = memory.window().clone();
        pattern::wipe(&window);
        let region = engine.register(memory, OWN, Rights::READ_WRITE).map_err(LabError::refused("register memory"))?;
        Ok(Self { region, window })
    }

    /// As plans name it.
    pub fn region(&self) -> &LocalRegion<SystemEnv> {
        &self.region
    }

    /// Its bytes.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Where it begins in this process.
    pub fn address(&self) -> u64 {
        self.window.as_ptr() as u64
    }
}
