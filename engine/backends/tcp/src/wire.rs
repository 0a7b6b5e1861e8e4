//! What goes over a stream, and how it is read as the untrusted bytes it is.
