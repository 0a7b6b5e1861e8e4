//! What the workers have done, counted where it happens.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// One worker's counters, on cache lines of their own and written only by that worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct WorkerStatistics { $(pub(crate) $name: Tally),+ }

        /// What an engine's workers have done since it started.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Statistics { $($(#[$doc])* pub $name: u64),+ }

        impl WorkerStatistics {
            pub(crate) fn add_to(&self, sum: &mut Statistics) { $(sum.$name += self.$name.read();)+ }
        }
    };
}

statistics! {
    /// Turns of the polling loop.
    turns,
    /// Commands taken from queues.
    commands,
    /// Transfers that ended well.
    transfers_completed,
    /// Transfers that ended with a fault.
    transfers_failed,
    /// Units of plans moved.
    units,
    /// Batches posted to lanes.
    posts,
    /// Batches that a lane accepted and finished later.
    async_ops,
    /// The most of them that were under way at once, summed over the workers.
    async_ops_most,
    /// Bytes moved by transfers of this engine, reads and writes.
    bytes,
    /// Notifications that this engine's transfers have delivered.
    notes_sent,
    /// Notifications that peers have put into the inbox.
    notes_received,
    /// Times a receiver had no room and a notification had to wait.
    waits_for_room,
    /// Times withdrawn memory made a worker look into a log.
    withdrawals_seen,
    /// Times memory was quarantined.
    quarantines,
    /// Times quarantined memory was renewed.
    renewals,
    /// Times the worker went to sleep.
    sleeps,
}

macro_rules! knocks {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What came of connections, counted by the control loop.
        #[derive(Debug, Default)]
        pub(crate) struct Knocks { $(pub(crate) $name: Tally),+ }

        /// What came of connections from other hosts since an engine started, and of those that made no sense, wherever they came from.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct NetworkStatistics { $($(#[$doc])* pub $name: u64),+ }

        impl Knocks {
            pub(crate) fn read(&self) -> NetworkStatistics { NetworkStatistics { $($name: self.$name.read()),+ } }
        }
    };
}

knocks! {
    /// Connections accepted on the engine's sockets.
    accepted,
    /// Those refused because too many came from one source.
    limited,
    /// Strangers that were ended to make room for later ones.
    crowded,
    /// Strangers that were turned away, or had not shown in time who they are.
    refused,
    /// Callers that do not share the secret.
    wrong_secret,
    /// Streams that no session has asked for.
    stray_streams,
    /// Connections that ended because something came that makes no sense: no frame, or one of a version that is not spoken here. Those of
    /// this host are among them.
    garbled,
    /// Regions that peers of this host have announced and that there was no room for the descriptors of: plans over them are refused.
    regions_without_fds,
    /// Sessions that ended because their peer announced more than it may.
    announced_too_much,
    /// Sessions that ended because their peer did not read what it was sent.
    unread,
}

/// A counter with one writer, cheaper than an atomic increment.
#[derive(Debug, Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// For who counts elsewhere as well.
    #[inline]
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// For a highest mark.
    pub(crate) fn raise_to(&self, mark: u64) {
        self.0.store(self.read().max(mark), Ordering::Relaxed);
    }

    /// For the rare counts that several threads make.
    pub(crate) fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
