//! Sans-IO conversation between two engines: frames and rendezvous.
