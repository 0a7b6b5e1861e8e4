//! The configuration, its YAML form and its documentation.

/// The configuration of one engine.
#[derive(Debug, Clone, Default)]
pub struct Config {}
