//! The contract between the runtime and its transports.
