//! Kernel-bypass data-plane engine: moves scattered memory blocks between processes.
