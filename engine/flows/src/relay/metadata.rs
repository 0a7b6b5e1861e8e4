//! What an application hands over by its own means, so that somebody can fetch a put.
//!
//! It names the operation in one life of one engine, and no memory: where the bytes are is said by the engine itself, so that a blob
//! that was kept across a restart cannot lead into memory that is somebody else's by now.

use penstock_core::{EngineName, Epoch};
use penstock_session::RequestId;

use super::payload::{next, put};

#[cfg(test)]
mod tests;

/// The longest blob, in bytes.
pub const METADATA_BYTES_MAX: usize = 512;
/// What every blob begins with, before its version.
const MAGIC: [u8; 4] = *b"PSRM";
/// The version that is written, and the only one that is read.
const VERSION: u8 = 1;

/// Which put of whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The engine that has the bytes.
    pub engine: EngineName,
    /// Which life of it.
    pub epoch: Epoch,
    /// Its own number of the operation.
    pub op: u64,
    /// The request.
    pub request: RequestId,
    /// How many bytes.
    pub bytes: u64,
    /// How many parts.
    pub parts: u32,
}

/// Why bytes are no metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// It does not begin as it should.
    #[error("these bytes are no metadata of a put: give what `metadata` of the put has given, unchanged")]
    Magic,
    /// It is of another version.
    #[error("the metadata is of version {0} and only {VERSION} is known here: upgrade the older of both engines")]
    Version(u8),
    /// It ends too early.
    #[error("the metadata ends too early: hand over all of it")]
    Cut,
    /// Something follows.
    #[error("{0} bytes follow behind the metadata: hand it over alone")]
    Trailing(usize),
    /// It is too long.
    #[error("metadata has at most {METADATA_BYTES_MAX} bytes and this has {0}")]
    TooLong(usize),
    /// What it says cannot be.
    #[error("the metadata has an impossible {0}: it was changed on its way")]
    Impossible(&'static str),
}

impl Metadata {
    /// As it is handed over.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, &VERSION);
        put(&mut bytes, &(self.engine.as_str(), self.epoch.0, self.op));
        put(&mut bytes, &(self.request.as_str(), self.bytes, self.parts));
        bytes
    }

    /// Reads what [`Metadata::encode`] has written. Any bytes give metadata or a reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetadataError> {
        if bytes.len() > METADATA_BYTES_MAX {
            return Err(MetadataError::TooLong(bytes.len()));
        }
        let mut rest = bytes.strip_prefix(&MAGIC).ok_or(MetadataError::Magic)?;
        let version: u8 = next(&mut rest).ok_or(MetadataError::Cut)?;
        if version != VERSION {
            return Err(MetadataError::Version(version));
        }
        let (engine, epoch, op): (&str, u64, u64) = next(&mut rest).ok_or(MetadataError::Cut)?;
        let (request, bytes, parts): (&str, u64, u32) = next(&mut rest).ok_or(MetadataError::Cut)?;
        if !rest.is_empty() {
            return Err(MetadataError::Trailing(rest.len()));
        }
        if parts == 0 {
            return Err(MetadataError::Impossible("number of parts"));
        }
        Ok(Self {
            engine: EngineName::new(engine).map_err(|_| MetadataError::Impossible("name of an engine"))?,
            epoch: Epoch(epoch),
            op,
            request: RequestId::new(request).map_err(|_| MetadataError::Impossible("name of a request"))?,
            bytes,
            parts,
        })
    }
}
