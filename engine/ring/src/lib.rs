//! Lock-free rings, slabs, gates and doorbells over generic storage.
