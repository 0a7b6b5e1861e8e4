//! Transport between two engines of one process.
