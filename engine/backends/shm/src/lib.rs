//! Transport between two processes of one host over mapped pools.
