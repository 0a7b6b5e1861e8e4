//! Setters for a configuration made in code: each takes the configuration and gives it back.
//!
//! None of them checks anything, so that they can be chained: `validate` checks the whole.

use std::path::PathBuf;
use std::time::Duration;

use super::sections::{Config, HiddenText, PagesChoice, ProcessVmChoice, Progress, TcpIo, TransportName, VerbsConnect};

impl Config {
    /// Gives the engine a name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.engine.name = Some(name.into());
        self
    }

    /// Sets the folder of the rendezvous sockets. Engines that shall find each other share it.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.engine.directory = Some(directory.into());
        self
    }

    /// Sets the number of worker threads.
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.workers.count = count;
        self
    }

    /// Sets the core of each worker, and with it the number of workers. No cores: nothing is
    /// pinned, and the number stays.
    #[must_use]
    pub fn pinned_to(mut self, cores: impl IntoIterator<Item = usize>) -> Self {
        self.workers.cores = cores.into_iter().collect();
        if !self.workers.cores.is_empty() {
            self.workers.count = self.workers.cores.len();
        }
        self
    }

    /// Sets what moves bytes, and what it does while there is nothing to do.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.workers.progress = progress;
        self
    }

    /// Sets how long an adaptive worker looks for work before it sleeps (whole microseconds).
    #[must_use]
    pub fn spin(mut self, time: Duration) -> Self {
        self.workers.spin_us = whole(time, Duration::from_micros(1));
        self
    }

    /// Sets the most transfers between submission and the drop of their handle.
    #[must_use]
    pub fn transfers_in_flight(mut self, count: usize) -> Self {
        self.transfers.in_flight = count;
        self
    }

    /// Sets the deadline of a transfer that names none (whole milliseconds).
    #[must_use]
    pub fn transfer_timeout(mut self, time: Duration) -> Self {
        self.transfers.timeout_ms = millis(time);
        self
    }

    /// Sets how many commands one worker's queue holds.
    #[must_use]
    pub fn transfer_queue(mut self, commands: usize) -> Self {
        self.transfers.queue = commands;
        self
    }

    /// Sets how many undelivered notifications one peer may have in the inbox.
    #[must_use]
    pub fn notifications_per_peer(mut self, count: usize) -> Self {
        self.credits.notifications_per_peer = count;
        self
    }

    /// Sets the transports that may be used, the preferred one first.
    #[must_use]
    pub fn transports(mut self, allow: impl IntoIterator<Item = TransportName>) -> Self {
        self.transports.allow = allow.into_iter().collect();
        self
    }

    /// Sets whether the kernel may copy into and out of other processes' memory for this engine.
    #[must_use]
    pub fn process_vm(mut self, choice: ProcessVmChoice) -> Self {
        self.transports.process_vm = choice;
        self
    }

    /// Sets where other hosts can connect: addresses with ports.
    #[must_use]
    pub fn listen(mut self, addresses: impl IntoIterator<Item = impl ToString>) -> Self {
        self.session.listen = addresses.into_iter().map(|address| address.to_string()).collect();
        self
    }

    /// Sets the secret that hosts share, itself: 64 hexadecimal digits. No file is looked for then, and the secret is never printed,
    /// logged or written as YAML.
    #[must_use]
    pub fn secret(mut self, digits: impl Into<String>) -> Self {
        self.session.secret = Some(HiddenText::new(digits));
        self
    }

    /// Sets the file with the secret that hosts share.
    #[must_use]
    pub fn secret_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.session.secret_file = Some(path.into());
        self
    }

    /// Sets the file that says where engines are.
    #[must_use]
    pub fn directory_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.session.directory_file = Some(path.into());
        self
    }

    /// Sets how long a peer on another host may be silent (whole milliseconds).
    #[must_use]
    pub fn heartbeat(mut self, time: Duration) -> Self {
        self.session.heartbeat_ms = millis(time);
        self
    }

    /// Sets how many connections from one address are heard in a second.
    #[must_use]
    pub fn accepts_per_second(mut self, count: u64) -> Self {
        self.session.accepts_per_second = count;
        self
    }

    /// Sets how many descriptors of peers' memory may wait to be mapped.
    #[must_use]
    pub fn descriptors(mut self, count: usize) -> Self {
        self.session.descriptors = count;
        self
    }

    /// Sets the bytes that what one peer has announced may take.
    #[must_use]
    pub fn announced_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.session.announced_bytes_per_peer = bytes;
        self
    }

    /// Sets the bytes of peers' pools that may be mapped.
    #[must_use]
    pub fn mapped_bytes(mut self, bytes: u64) -> Self {
        self.session.mapped_bytes = bytes;
        self
    }

    /// Sets the bytes that may wait for one peer that does not read.
    #[must_use]
    pub fn unsent_bytes(mut self, bytes: usize) -> Self {
        self.session.unsent_bytes = bytes;
        self
    }

    /// Sets what moves bytes between sockets and memory.
    #[must_use]
    pub fn tcp_io(mut self, io: TcpIo) -> Self {
        self.transports.tcp_io = io;
        self
    }

    /// Sets the TCP streams to one peer for each worker.
    #[must_use]
    pub fn tcp_streams(mut self, count: usize) -> Self {
        self.transports.tcp_streams = count;
        self
    }

    /// Sets the RDMA devices that are used, best first: `device[:port[:gid index]]`.
    #[must_use]
    pub fn verbs_devices(mut self, devices: impl IntoIterator<Item = impl ToString>) -> Self {
        self.transports.verbs_devices = devices.into_iter().map(|device| device.to_string()).collect();
        self
    }

    /// Sets whether RDMA cards page memory in when it is first touched, where they can.
    #[must_use]
    pub fn verbs_on_demand(mut self, is_on_demand: bool) -> Self {
        self.transports.verbs_on_demand = is_on_demand;
        self
    }

    /// Sets how queues of RDMA cards are connected.
    #[must_use]
    pub fn verbs_connect(mut self, connect: VerbsConnect) -> Self {
        self.transports.verbs_connect = connect;
        self
    }

    /// Sets the UDP port of the first worker, for the transport `datagram`; 0: any.
    #[must_use]
    pub fn datagram_port(mut self, port: u16) -> Self {
        self.datagram.port = port;
        self
    }

    /// Sets the longest packet of the transport `datagram`, in bytes of UDP payload.
    #[must_use]
    pub fn datagram_frame(mut self, bytes: usize) -> Self {
        self.datagram.frame_bytes = bytes;
        self
    }

    /// Sets each worker's receive and send buffer in the kernel for the transport `datagram`, in bytes; 0: as the host allows.
    #[must_use]
    pub fn datagram_buffers(mut self, receive_bytes: usize, send_bytes: usize) -> Self {
        (self.datagram.receive_bytes, self.datagram.send_bytes) = (receive_bytes, send_bytes);
        self
    }

    /// Sets the pages of pools that do not choose for themselves.
    #[must_use]
    pub fn pages(mut self, pages: PagesChoice) -> Self {
        self.memory.pages = pages;
        self
    }

    /// Sets how long a connect that names no deadline may take (whole milliseconds).
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.session.connect_timeout_ms = millis(time);
        self
    }

    /// Sets how long a stranger on the socket may take to say hello (whole milliseconds).
    #[must_use]
    pub fn greeting_timeout(mut self, time: Duration) -> Self {
        self.session.greeting_timeout_ms = millis(time);
        self
    }

    /// Sets how long a shutdown waits for transfers and peers (whole milliseconds).
    #[must_use]
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.session.shutdown_timeout_ms = millis(time);
        self
    }
}

fn millis(time: Duration) -> u64 {
    whole(time, Duration::from_millis(1))
}

/// Rounded up: a short time that was asked for must not become none at all.
fn whole(time: Duration, unit: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(unit.as_nanos())).unwrap_or(u64::MAX)
}
