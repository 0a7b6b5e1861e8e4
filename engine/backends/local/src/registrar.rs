//! Regions of another engine of the same process, reached by their own windows.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_memory::{Region, Window};
use penstock_transport::{Exported, ImportError, Registrar, RemoteRegion};

use crate::directory::{self, Deposit};

/// Exports regions to, and imports them from, engines of the same process.
pub struct LocalRegistrar {
    pub(crate) epoch: u64,
    /// Our side of the session, for as long as it lasts: the peer may collect it after we joined.
    pub(crate) _deposit: Deposit,
}

impl Registrar for LocalRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        directory::publish(self.epoch, region);
        Exported::default()
    }

    fn import(&self, region: &RemoteRegion<'_>, _token: Option<OwnedFd>) -> Result<Window, ImportError> {
        let found = directory::find(region.epoch, region.id.0, region.generation.0).ok_or(ImportError::Gone)?;
        if found.window().len() != region.bytes {
            return Err(ImportError::Garbled("its length is not the one announced"));
        }
        Ok(found.window().clone())
    }
}
