//! Every key: what it accepts, means and costs.

use super::{KeyDoc, Range};
use crate::limits::{TRANSFERS_MAX, WORKERS_MAX};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Linux counts at most this many cores in an ordinary affinity mask.
const CORES_MAX: u64 = 1024;

/// Every key, in the order of the file.
pub const KEYS: &[KeyDoc] = &[
    KeyDoc {
        key: "engine.name",
        default: "null",
        unit: "",
        range: Range::Name,
        what: "The name peers know this engine by, and the name of its socket. `null`: the program's name and its process id.",
        more_costs: "A fixed name can be held by one live engine at a time; the second is refused.",
        less_costs: "A generated name is another one at every start, so peers must be told it.",
    },
    KeyDoc {
        key: "engine.directory",
        default: "null",
        unit: "",
        range: Range::Folder,
        what: "The folder of the rendezvous sockets. Only engines that share it find each other. \
               It belongs to the user that the engines run as, and only that user can write to it; a symbolic link is not followed. \
               `null`: `$XDG_RUNTIME_DIR/penstock`, or where that is not set `/tmp/penstock-<uid>`, and for root `/run/penstock`.",
        more_costs: "A folder of your own must be given to every engine, and only one user may be able to write to it.",
        less_costs: "With the default, engines in containers that have a runtime folder each do not meet.",
    },
    KeyDoc {
        key: "workers.count",
        default: "1",
        unit: "threads",
        range: Range::Number { min: 1, max: WORKERS_MAX as u64 },
        what: "How many threads move bytes. A large transfer is shared among them.",
        more_costs: "A core each while they copy (with `busy`: always), and a notification ring each at every peer; \
                     beyond what the memory bus carries they gain nothing.",
        less_costs: "One core's copy rate is the ceiling of every transfer.",
    },
    KeyDoc {
        key: "workers.cores",
        default: "[]",
        unit: "core numbers",
        range: Range::Cores { count_max: WORKERS_MAX, core_max: CORES_MAX - 1 },
        what: "The core each worker is pinned to, one for each of `workers.count`. `[]`: the scheduler chooses.",
        more_costs: "A pinned worker cannot move away from other load on its core.",
        less_costs: "A worker that is moved loses its caches: some microseconds, at moments nobody chose.",
    },
    KeyDoc {
        key: "workers.progress",
        default: "adaptive",
        unit: "",
        range: Range::OneOf(&["busy", "adaptive", "inline"]),
        what: "What moves bytes, and what it does while there is nothing to do. `busy`: threads that never sleep. \
               `adaptive`: threads that look for work for `workers.spin_us`, then sleep until they are woken. \
               `inline`: no threads; the caller's own `progress()` is the loop, and the engine is bound to the thread \
               that made it.",
        more_costs: "One whole core per worker, also while idle.",
        less_costs: "Nothing moves while the caller does not call; one copy at a time.",
    },
    KeyDoc {
        key: "workers.spin_us",
        default: "20",
        unit: "µs",
        range: Range::Number { min: 0, max: 100_000 },
        what: "How long an `adaptive` worker looks for work before it sleeps. 0: it sleeps at once. \
               Read by `adaptive` only.",
        more_costs: "CPU time after every burst of work, taken from the other threads of a small host.",
        less_costs: "Work that arrives later than this waits for a wake-up, about 5 to 7 µs.",
    },
    KeyDoc {
        key: "transfers.in_flight",
        default: "4096",
        unit: "transfers",
        range: Range::Number { min: 1, max: TRANSFERS_MAX as u64 },
        what: "The most transfers between submission and the drop of their handle, and over cards until the peer has \
               confirmed that nothing of them lands any more; the next one is answered `Full`.",
        more_costs: "Memory for a slot each, taken at start.",
        less_costs: "Callers that keep many handles are answered `Full` and must try again.",
    },
    KeyDoc {
        key: "transfers.timeout_ms",
        default: "30000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "The time a transfer gets that names no deadline of its own.",
        more_costs: "Memory under a transfer to a stopped peer stays taken for longer.",
        less_costs: "Large transfers to a slow or busy peer end with `DeadlineExceeded`.",
    },
    KeyDoc {
        key: "transfers.queue",
        default: "1024",
        unit: "commands",
        range: Range::PowerOfTwo { min: 2, max: TRANSFERS_MAX as u64 },
        what: "Commands that one worker's queue holds before `submit` answers `Full`.",
        more_costs: "Memory for each command of each worker, and a longer wait for what is queued last.",
        less_costs: "Bursts of submissions are answered `Full` sooner.",
    },
    KeyDoc {
        key: "credits.notifications_per_peer",
        default: "1024",
        unit: "notifications",
        range: Range::Number { min: 1, max: 65_536 },
        what: "Notifications of one peer that may wait in the inbox. A peer that reaches it keeps its next ones until \
               some were taken; none is dropped.",
        more_costs: "Memory: up to 4 KiB for each one that waits.",
        less_costs: "A peer's transfers complete later when this side takes its notifications rarely.",
    },
    KeyDoc {
        key: "transports.allow",
        default: "[local, shm, verbs, tcp, datagram]",
        unit: "",
        range: Range::SomeOf(&["local", "shm", "verbs", "tcp", "datagram"]),
        what: "The transports that may be used, the preferred one first. `local`: within one process. `shm`: between \
               processes of one host, through mapped pools. `verbs`: between hosts, by RDMA cards; a host without any goes \
               without it. `tcp`: between hosts. `datagram`: between hosts, in packets of the engine's own over UDP; behind `tcp` \
               it is used where it is asked for. What is not listed is not used, even if nothing else works.",
        more_costs: "Each one is prepared at start.",
        less_costs: "Pairs of regions that only a missing transport joins are refused with `NoPath`.",
    },
    KeyDoc {
        key: "transports.process_vm",
        default: "auto",
        unit: "",
        range: Range::OneOf(&["auto", "off"]),
        what: "How memory is reached that another process of this host has not got from Penstock. `auto`: by the \
               kernel's own copy between two processes (`process_vm_readv`, `process_vm_writev`) where a trial at the \
               session's start shows that it is allowed. `off`: this engine neither makes these calls nor tells peers \
               where to make them.",
        more_costs: "Peers of the same user copy straight into memory that this engine has registered for them.",
        less_costs: "Such memory is reached in a slower way, or not at all; `Peer::path` says which.",
    },
    KeyDoc {
        key: "transports.tcp_io",
        default: "auto",
        unit: "",
        range: Range::OneOf(&["auto", "io_uring", "epoll"]),
        what: "What moves bytes between sockets and memory. `auto`: io_uring, or epoll where the kernel or a container \
               forbids that. `io_uring`: an engine that may not use it does not start. `epoll`: readiness and plain \
               calls. Both behave alike; `Peer::path` says which it is.",
        more_costs: "io_uring: a ring for each worker, and it must be allowed.",
        less_costs: "epoll: a system call more for each look at the sockets, and no sending without a copy.",
    },
    KeyDoc {
        key: "transports.tcp_streams",
        default: "1",
        unit: "streams",
        range: Range::Number { min: 1, max: 16 },
        what: "TCP streams to one peer for each of the engine's workers; of two engines the smaller number counts.",
        more_costs: "Descriptors and socket buffers for each peer; on one host it only costs.",
        less_costs: "One stream's congestion window and one queue of the network card bound what a worker can send.",
    },
    KeyDoc {
        key: "transports.verbs_devices",
        default: "[]",
        unit: "",
        range: Range::Devices,
        what: "The RDMA devices that `verbs` uses, each as `device`, `device:port` or `device:port:gid index`, best first. \
               `[]`: every port that is active, with its best address, those near the workers first; `penstock doctor` says \
               which and why. A name that cannot be used keeps the engine from having `verbs` at all.",
        more_costs: "Each port is one more queue pair for each pair of workers of every session, and pins every region once more.",
        less_costs: "The bandwidth of the other ports, and a way around a port that fails.",
    },
    KeyDoc {
        key: "transports.verbs_on_demand",
        default: "false",
        unit: "",
        range: Range::Flag,
        what: "Whether cards page registered memory in when they first touch it, where they can; else it is pinned when it is \
               registered.",
        more_costs: "The first touch of each page stalls the queue pair it came over, and all transfers on it.",
        less_costs: "Registered memory is pinned whole, within `ulimit -l`.",
    },
    KeyDoc {
        key: "transports.verbs_connect",
        default: "exchange",
        unit: "",
        range: Range::OneOf(&["exchange", "cm"]),
        what: "How queue pairs of two RDMA cards are connected; both engines must have it alike. `exchange`: by their numbers, which \
               the engines tell each other as their session begins. `cm`: by the connection manager (rdma_cm), for networks that let \
               no other queue pair pass; each port needs an IP address, and an engine without librdmacm does not start.",
        more_costs: "cm: a few packets there and back for each queue pair, at the start and at each repair, and one more port of each \
                     card that listens.",
        less_costs: "exchange: networks that let no queue pair pass but those of the connection manager are not crossed.",
    },
    KeyDoc {
        key: "datagram.port",
        default: "0",
        unit: "UDP port",
        range: Range::Number { min: 0, max: 65_535 },
        what: "The UDP port at which the first worker receives, once a peer is to be reached in datagrams; the next workers have the \
               next ones. 0: any that are free.",
        more_costs: "A fixed port is one that no other engine of this host can have; a firewall can name it.",
        less_costs: "A firewall has to let UDP pass to every port, and back.",
    },
    KeyDoc {
        key: "datagram.frame_bytes",
        default: "65507",
        unit: "B",
        range: Range::Number { min: 1_188, max: 65_507 },
        what: "The longest packet, as UDP payload. The route's MTU and the peer's value bound it as well: 1,472 B by IPv4 on \
               ordinary Ethernet, 8,972 B with jumbo frames; and either side's receive buffer, of which it takes at most an \
               eighth. Packets are never fragmented.",
        more_costs: "A network on the way that carries less than this host's routes say loses every packet.",
        less_costs: "More packets for the same bytes, and each costs about as much as a long one.",
    },
    KeyDoc {
        key: "datagram.receive_bytes",
        default: "0",
        unit: "B",
        range: Range::Number { min: 0, max: 1 << 30 },
        what: "Each worker's receive buffer in the kernel, as the socket option SO_RCVBUF says it. It is what peers may have on their \
               way here together, so that nothing is lost for want of room. 0: as many as the host allows (`net.core.rmem_max`).",
        more_costs: "Kernel memory, while packets wait in it.",
        less_costs: "Shorter packets, of which eight fit, and peers wait for each other: each has four packets of its own, and with little \
                     more they wait for every answer.",
    },
    KeyDoc {
        key: "datagram.send_bytes",
        default: "0",
        unit: "B",
        range: Range::Number { min: 0, max: 1 << 30 },
        what: "Each worker's send buffer in the kernel, as the socket option SO_SNDBUF says it. 0: as many as the host allows \
               (`net.core.wmem_max`).",
        more_costs: "A longer queue in this host, which is measured as delay and slows its own transfers.",
        less_costs: "Bursts wait in the engine, which looks again every 60 µs.",
    },
    KeyDoc {
        key: "dpdk.device",
        default: "null",
        unit: "",
        range: Range::Device,
        what: "The device whose queues carry the packets of the transport `datagram` instead of UDP sockets, as DPDK's `--vdev` or \
               `--allow` names it: `0000:3b:00.0`, `net_memif0,role=server,socket=/run/x.sock`; or `ring:NAME/0` and `ring:NAME/1` for two engines of one process. It is opened when the engine starts. \
               `null`: sockets.",
        more_costs: "The device is the engine's alone; where no packet wakes anybody, an idle worker looks every millisecond (`busy`: always).",
        less_costs: "The kernel's part of every packet.",
    },
    KeyDoc {
        key: "dpdk.address",
        default: "null",
        unit: "",
        range: Range::Network,
        what: "This engine's IPv4 address on the device, and how many of its bits its network has: peers must have one of the same \
               network. No interface of the kernel may have it. The worker's UDP ports are those of `datagram.port`, or 7401 and the next ones.",
        more_costs: "One more address in the network.",
        less_costs: "Nothing; with a device it must be set.",
    },
    KeyDoc {
        key: "dpdk.neighbours",
        default: "[]",
        unit: "",
        range: Range::Neighbours,
        what: "Stations that are not asked for (ARP), each as its address and its Ethernet address: `10.0.9.2=02:00:0a:00:09:02`.",
        more_costs: "A peer that gets another card is not found until this is changed.",
        less_costs: "Who is on the network may say that it has a peer's address.",
    },
    KeyDoc {
        key: "dpdk.mtu",
        default: "0",
        unit: "B",
        range: Range::Number { min: 0, max: 65_535 },
        what: "The longest IP packet, 28 B more than a frame. 0: as the device has it.",
        more_costs: "Memory: each buffer has room for one. A network on the way that carries less loses every packet.",
        less_costs: "More packets for the same bytes.",
    },
    KeyDoc {
        key: "dpdk.queue_packets",
        default: "512",
        unit: "packets",
        range: Range::PowerOfTwo { min: 64, max: 32_768 },
        what: "Packets that wait in each of a worker's two queues. It is what peers may have on their way here together. memif and af_packet \
               have their own numbers (1,024, and `framecnt`, 512): choose no more.",
        more_costs: "Memory for as many buffers, and caches that hold less of them.",
        less_costs: "Peers wait for each other, and for every answer.",
    },
    KeyDoc {
        key: "dpdk.memory_mib",
        default: "256",
        unit: "MiB",
        range: Range::Number { min: 64, max: 65_536 },
        what: "Memory of DPDK where it has no huge pages; all engines of a process share it, and say the same.",
        more_costs: "Memory, taken at start.",
        less_costs: "Buffers for fewer or shorter packets: an engine that has no room for its own does not start.",
    },
    KeyDoc {
        key: "dpdk.huge_pages",
        default: "false",
        unit: "",
        range: Range::Flag,
        what: "Whether DPDK takes huge pages, as cards need them. They must be set aside and mounted: `mkdir -p /dev/hugepages; mount -t \
               hugetlbfs none /dev/hugepages`.",
        more_costs: "true: root, or huge pages that this user may take.",
        less_costs: "false: virtual devices only, and more misses when addresses are looked up.",
    },
    KeyDoc {
        key: "dpdk.arguments",
        default: "[]",
        unit: "",
        range: Range::Arguments,
        what: "More arguments with which DPDK starts: `--log-level=lib.eal:debug`. It starts once in a process, so all its engines have \
               the same ones.",
        more_costs: "What DPDK refuses keeps the engine from starting.",
        less_costs: "Nothing.",
    },
    KeyDoc {
        key: "device.staging",
        default: "auto",
        unit: "",
        range: Range::OneOf(&["auto", "off"]),
        what: "How memory of a GPU meets memory of a peer that the transport does not let the GPU reach. `auto`: through pinned host memory of \
               each worker. `off`: such plans are refused, with words.",
        more_costs: "Each byte is copied once more, and pinned memory is taken when the first such plan is built, or a peer is told of such memory.",
        less_costs: "GPU memory moves only within a process, and by cards that reach it.",
    },
    KeyDoc {
        key: "device.staging_bytes",
        default: "16777216",
        unit: "B",
        range: Range::Number { min: 1 << 20, max: 1 << 30 },
        what: "Pinned host memory through which each worker moves memory of GPUs, for each direction: two of them for each worker are pinned by \
               the thread that builds the first plan over such memory, and two for all peers when the first is told of such memory. One peer has a fifth of it at most, and of what others leave.",
        more_costs: "Memory that the kernel cannot take back, and 33 ms a gigabyte once.",
        less_costs: "Less is under way at once, so that a fast network or GPU waits for the other; and fewer peers that are stopped, nine at the \
                     least and 21 at the default, have all of it until their transfers' deadlines.",
    },
    KeyDoc {
        key: "memory.pages",
        default: "auto",
        unit: "",
        range: Range::OneOf(&["huge", "auto", "small"]),
        what: "The pages of a pool that does not choose for itself. `huge`: huge pages that the host has set aside; where \
               they do not suffice, as `auto`. `auto`: huge pages where the kernel gives them to shared memory that \
               asks, small ones otherwise. `small`: ordinary pages. A pool reports what it got, and why not more.",
        more_costs: "Memory set aside for huge pages is lost to everybody else, and pools grow to whole ones.",
        less_costs: "More address translation misses when scattered blocks are copied.",
    },
    KeyDoc {
        key: "session.connect_timeout_ms",
        default: "2000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "The time a connect gets that names no deadline of its own.",
        more_costs: "A peer that does not answer is reported later.",
        less_costs: "A peer on a loaded host is given up although it would have answered.",
    },
    KeyDoc {
        key: "session.greeting_timeout_ms",
        default: "1000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "The time a stranger on the socket gets to say hello; then its connection is closed.",
        more_costs: "Silent connections hold a descriptor each for longer.",
        less_costs: "A peer on a loaded host is turned away and must connect again.",
    },
    KeyDoc {
        key: "session.shutdown_timeout_ms",
        default: "1000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "The time a shutdown gives running transfers and peers to end.",
        more_costs: "A stopped peer delays the end of the program by this much.",
        less_costs: "Transfers that would have finished are ended with `EngineClosed`.",
    },
    KeyDoc {
        key: "session.listen",
        default: "[]",
        unit: "",
        range: Range::Addresses,
        what: "Where engines of other hosts can connect: addresses with ports, as `0.0.0.0:7400` or `[::]:7400`. Port 0 \
               takes a free one; the engine's descriptor says which. Everything between two hosts uses this one port.",
        more_costs: "Strangers can knock; who does not know the secret is refused before it costs anything.",
        less_costs: "Without any, other hosts cannot connect to this engine; it can still connect to them.",
    },
    KeyDoc {
        key: "session.advertise",
        default: "[]",
        unit: "",
        range: Range::Addresses,
        what: "The addresses that the engine's descriptor names, where others must use other ones than those it listens \
               at. Empty: those it listens at; for a wildcard, all addresses of this host.",
        more_costs: "Addresses that do not lead here cost whoever connects a try each.",
        less_costs: "Behind a translation of addresses nobody finds the engine.",
    },
    KeyDoc {
        key: "session.secret_file",
        default: "null",
        unit: "",
        range: Range::Folder,
        what: "The file with the secret that hosts share, readable by this user only. `null`: the file that the variable \
               `PENSTOCK_SECRET_FILE` names, or else the user's own, made at first use. None is looked for where the secret itself \
               is given: by `Config::secret` in a program, or else by the variable `PENSTOCK_SECRET`, as 64 hexadecimal digits.",
        more_costs: "Every host of a group needs the same one.",
        less_costs: "The user's own is known on one host, unless it is copied.",
    },
    KeyDoc {
        key: "session.heartbeat_ms",
        default: "5000",
        unit: "ms",
        range: Range::Number { min: 50, max: DAY_MS },
        what: "How long a peer on another host may be silent before its session ends with `PeerLost`. Asked after a \
               sixth of it, and only if nothing else was heard; an answer has five sixths. A session over `verbs` stands as long without any rail, but \
               at least 5 s.",
        more_costs: "A peer that has vanished without a word is noticed later; transfers end by their deadlines all the same.",
        less_costs: "A peer that is stopped, or inline and makes no progress for so long, is taken for lost.",
    },
    KeyDoc {
        key: "session.accepts_per_second",
        default: "512",
        unit: "connections",
        range: Range::Number { min: 1, max: 1_000_000 },
        what: "Connections from one address of another host that are heard in a second, on average; as many may come at once.",
        more_costs: "One host that knocks without end takes more of the control thread's time.",
        less_costs: "Many engines of one host that start together wait for their turn.",
    },
    KeyDoc {
        key: "session.descriptors",
        default: "0",
        unit: "descriptors",
        range: Range::Number { min: 0, max: 1 << 20 },
        what: "File descriptors of peers' pools on this host that are kept until a plan needs the pool: of all peers together; one peer gets no more than it \
               leaves. 0: half of those that the process may have. Plans over a pool whose descriptor found no room are refused; its session stands.",
        more_costs: "Peers may leave the program itself without descriptors.",
        less_costs: "A peer with many pools that are not used at once cannot have them all used.",
    },
    KeyDoc {
        key: "session.mapped_bytes",
        default: "0",
        unit: "B",
        range: Range::Number { min: 0, max: 1 << 60 },
        what: "Bytes of peers' pools on this host that are mapped here: of all peers together; one peer gets no more than it leaves. 0: four times the machine's \
               memory, which leaves room for pools that are renewed. Plans over a pool that finds no room are refused; its session stands.",
        more_costs: "A peer may punch holes into its pools once they are mapped: touching them has this process pay for so much memory at most.",
        less_costs: "Large pools of honest peers are refused. A peer needs twice what it has, and as much again while a pool of it is renewed.",
    },
    KeyDoc {
        key: "session.announced_bytes_per_peer",
        default: "67108864",
        unit: "B",
        range: Range::Number { min: 64 << 10, max: 1 << 40 },
        what: "Memory that the regions of one peer may take here, as 512 B and label and access path for each. A peer that announces more ends its session.",
        more_costs: "A peer that goes wrong takes as much.",
        less_costs: "A peer with many regions is refused: the default is enough for some 120,000.",
    },
    KeyDoc {
        key: "session.unsent_bytes",
        default: "16777216",
        unit: "B",
        range: Range::Number { min: 1 << 20, max: 1 << 30 },
        what: "Control frames that may wait for one peer that does not read. At more the session ends with `PeerLost`.",
        more_costs: "A peer that asks without end and does not read takes as much.",
        less_costs: "An inline peer that makes no progress for long is given up sooner.",
    },
    KeyDoc {
        key: "session.directory_file",
        default: "null",
        unit: "",
        range: Range::Folder,
        what: "A file that says where engines are: a name and its addresses on each line. `null`: engines are found by \
               what peers tell, by descriptors, and in this host's own folder.",
        more_costs: "The file must be kept up to date; it is read again when a name is looked up.",
        less_costs: "An engine on another host is only found if somebody who is connected knows it.",
    },
    KeyDoc {
        key: "control.transfers_max",
        default: "65536",
        unit: "transfers",
        range: Range::Number { min: 1, max: 1 << 22 },
        what: "The most transfers by name that stand at a time. One more is refused with how many there are.",
        more_costs: "About 1 KiB for each that stands.",
        less_costs: "A scheduler that admits more than these gets refusals.",
    },
    KeyDoc {
        key: "control.early_messages",
        default: "4096",
        unit: "messages",
        range: Range::Number { min: 1, max: 1 << 20 },
        what: "Words for transfers that this side has not admitted yet, kept until it does.",
        more_costs: "Memory that peers can fill, up to `control.early_bytes`.",
        less_costs: "Whoever dispatches to both sides at once finds its words refused where one side is slow.",
    },
    KeyDoc {
        key: "control.early_bytes",
        default: "4194304",
        unit: "bytes",
        range: Range::Number { min: 1024, max: 1 << 30 },
        what: "How many bytes such words may have in all.",
        more_costs: "Memory that peers can fill.",
        less_costs: "As with fewer `control.early_messages`.",
    },
    KeyDoc {
        key: "control.early_ms",
        default: "30000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "How long such a word waits for its transfer.",
        more_costs: "Words for transfers that never come occupy their room for longer.",
        less_costs: "A side that admits later than this never hears them, and its transfer ends by its deadline.",
    },
    KeyDoc {
        key: "control.tombstones",
        default: "65536",
        unit: "transfers",
        range: Range::Number { min: 1, max: 1 << 22 },
        what: "Ended transfers that are remembered, so that what comes late for them is swallowed and who asks hears how they ended.",
        more_costs: "About 100 bytes each.",
        less_costs: "A late word for a forgotten one is kept as if it came early.",
    },
    KeyDoc {
        key: "control.tombstone_ms",
        default: "60000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "How long an ended transfer is remembered.",
        more_costs: "Its id cannot be used again for as long.",
        less_costs: "As with fewer `control.tombstones`.",
    },
    KeyDoc {
        key: "control.abort_ms",
        default: "500",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "How long the other side may take to say that nothing can land any more; then the blocks are quarantined until it does, \
               or until it is gone, and the failed request is named together with them.",
        more_costs: "An abort whose source is frozen answers later, and so is a request of it named.",
        less_costs: "Blocks are quarantined that would have come back a moment later.",
    },
    KeyDoc {
        key: "control.resume_ms",
        default: "10000",
        unit: "ms",
        range: Range::Number { min: 1, max: DAY_MS },
        what: "How long a transfer that may be resumed waits for the next session when its own breaks; never longer than its deadline.",
        more_costs: "Blocks of both sides are kept for longer for an engine that does not come back.",
        less_costs: "A session that is back later than this finds its transfers failed.",
    },
    KeyDoc {
        key: "legs.default_tokens",
        default: "8192",
        unit: "tokens",
        range: Range::Number { min: 1, max: 1 << 40 },
        what: "For how many tokens a sink asks memory while nobody knows how many come.",
        more_costs: "Blocks that are granted and not used.",
        less_costs: "More legs, each a round trip of the control channel.",
    },
    KeyDoc {
        key: "legs.quantile_percent",
        default: "0",
        unit: "percent",
        range: Range::Number { min: 0, max: 100 },
        what: "Asks memory for as many tokens as would have been enough for so many percent of the last 256 transfers, instead of \
               `legs.default_tokens`. 0: always the default.",
        more_costs: "As `legs.default_tokens`: blocks that are granted and not used.",
        less_costs: "More transfers need a second leg.",
    },
    KeyDoc {
        key: "legs.memory",
        default: "wait",
        unit: "",
        range: Range::OneOf(&["wait", "shrink", "fail"]),
        what: "What a sink does without memory for the next leg, where it does not choose for itself. `wait`: asks again until the \
               deadline. `shrink`: takes what there is, and more legs follow. `fail`: the transfer ends, and both sides hear why.",
        more_costs: "wait: the transfer occupies what it has until memory comes or its deadline.",
        less_costs: "fail: transfers end that a moment later had room.",
    },
    KeyDoc {
        key: "legs.part_bytes",
        default: "16777216",
        unit: "bytes",
        range: Range::Number { min: 65_536, max: 1 << 30 },
        what: "The most bytes that go under one landing. What is resumed begins behind the last part that has landed.",
        more_costs: "More is sent again after a session that broke.",
        less_costs: "More landings: a note, and a wake-up of the receiver, for each part.",
    },
    KeyDoc {
        key: "legs.parts_ahead",
        default: "16",
        unit: "parts",
        range: Range::Number { min: 1, max: 1024 },
        what: "Parts of one transfer that are under way to one rank at a time.",
        more_costs: "One transfer can occupy more of the queues that others wait in.",
        less_costs: "One transfer alone does not fill a fast link.",
    },
    KeyDoc {
        key: "legs.ahead",
        default: "16",
        unit: "legs",
        range: Range::Number { min: 1, max: 256 },
        what: "Legs that a sink may have granted and not taken.",
        more_costs: "Blocks that stand by.",
        less_costs: "The source waits for grants between legs.",
    },
];
