//! What moves bytes between sockets and memory.
