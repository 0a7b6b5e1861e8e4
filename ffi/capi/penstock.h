/*
 * Penstock from C and C++.
 *
 * Handles are 64-bit numbers. One that is null, was released, is of another kind or never was one is answered by
 * PENSTOCK_BAD_HANDLE, one of a parent process by PENSTOCK_FORKED; nothing that is done with handles crashes.
 * Every call answers a status: below 10 nothing has failed. What failed is told in fields by penstock_last_error, to the
 * thread whose call it was. Structs that begin with a size have it set by the caller; all other zeros are defaults.
 * Texts go into buffers of the caller and end with a zero; a list or a text that does not fit is cut, and answered by
 * PENSTOCK_TRUNCATED with how much there is.
 * Every call may be made by any thread, also at once with others, but those of an inline engine by its own only. A call
 * waits only if it has a timeout, in milliseconds, and never longer. What a call returns is released by penstock_release.
 */

#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

/*
 The number of the ABI: calls and structs of one number stay as they are, and are only added to.
 */
#define PENSTOCK_ABI 0

/*
 Nothing is told.
 */
#define PENSTOCK_LOG_OFF 0

/*
 What keeps a part of the engine from its work.
 */
#define PENSTOCK_LOG_ERROR 1

/*
 The same, and what is slower or less than was asked for.
 */
#define PENSTOCK_LOG_WARN 2

/*
 The same, and what begins and ends: sessions, transports that are chosen.
 */
#define PENSTOCK_LOG_INFO 3

/*
 The same, and why.
 */
#define PENSTOCK_LOG_DEBUG 4

/*
 Everything.
 */
#define PENSTOCK_LOG_TRACE 5

/*
 Peers may do nothing with a region; it is for this engine's own side of plans.
 */
#define PENSTOCK_RIGHTS_NONE 0

/*
 Peers may read a region.
 */
#define PENSTOCK_RIGHTS_READ 1

/*
 Peers may write a region.
 */
#define PENSTOCK_RIGHTS_WRITE 2

/*
 The pages that the configuration says, else what is best.
 */
#define PENSTOCK_PAGES_AUTO 0

/*
 Pages of 4 KiB.
 */
#define PENSTOCK_PAGES_SMALL 1

/*
 Pages of 2 MiB from the system's reserve.
 */
#define PENSTOCK_PAGES_HUGE 2

/*
 From this engine's memory to the peer's.
 */
#define PENSTOCK_WRITE 0

/*
 From the peer's memory to this engine's.
 */
#define PENSTOCK_READ 1

/*
 A deadline that never comes.
 */
#define PENSTOCK_NO_DEADLINE UINT64_MAX

/*
 In turns with its like.
 */
#define PENSTOCK_PRIORITY_BULK 0

/*
 Before everything else.
 */
#define PENSTOCK_PRIORITY_URGENT 1

/*
 What is known of a notification or a counter: none was asked for.
 */
#define PENSTOCK_NOTIFIED_NOT_ASKED 0

/*
 The peer was told.
 */
#define PENSTOCK_NOTIFIED_YES 1

/*
 The peer was not told, and will not be.
 */
#define PENSTOCK_NOTIFIED_NO 2

/*
 The session ended before the peer confirmed it.
 */
#define PENSTOCK_NOTIFIED_UNKNOWN 3

/*
 Nothing of the transfer can touch the memory any more.
 */
#define PENSTOCK_MEMORY_QUIESCED 0

/*
 Something might: do not reuse the memory before `penstock_quarantine_look` says so.
 */
#define PENSTOCK_MEMORY_QUARANTINED 1

/*
 It cannot be known from here: the session ended without a goodbye.
 */
#define PENSTOCK_MEMORY_UNKNOWN 2

/*
 What a call answers.

 Below 10 nothing has failed; from 100 on it is the cause by which a transfer or a session ended.
 */
typedef enum {
    /*
     It is done.
     */
    PENSTOCK_OK = 0,
    /*
     It has not ended yet; look again.
     */
    PENSTOCK_PENDING = 1,
    /*
     `penstock_arm`: something has happened, look before sleeping.
     */
    PENSTOCK_BUSY = 2,
    /*
     The caller's array or buffer had no room for all; the length says how much there is.
     */
    PENSTOCK_TRUNCATED = 3,
    /*
     The wait is over, and what was waited for goes on.
     */
    PENSTOCK_TIMED_OUT = 4,
    /*
     The region was registered more than once, and stands until the others have ended, too.
     */
    PENSTOCK_STILL_REGISTERED = 5,
    /*
     A peer that was stopped or is not reached might still touch the memory: it must not be reused yet.
     */
    PENSTOCK_QUARANTINED = 6,
    /*
     An argument makes no sense: a null pointer, text that is not UTF-8, a size that is not set.
     */
    PENSTOCK_INVALID_ARGUMENT = 10,
    /*
     No object has this handle: it was released, is of another kind, or never was one.
     */
    PENSTOCK_BAD_HANDLE = 11,
    /*
     There are 16 million objects; release some.
     */
    PENSTOCK_TOO_MANY_HANDLES = 12,
    /*
     A mistake in Penstock. The call may have had no effect; please report it with the log.
     */
    PENSTOCK_INTERNAL = 13,
    /*
     The configuration cannot be read, or contradicts itself.
     */
    PENSTOCK_BAD_CONFIG = 20,
    /*
     The engine did not start.
     */
    PENSTOCK_NOT_STARTED = 21,
    /*
     There is no secret to share with other hosts, or it cannot be used.
     */
    PENSTOCK_NO_SECRET = 22,
    /*
     The bytes are no descriptor of an engine.
     */
    PENSTOCK_BAD_DESCRIPTOR = 30,
    /*
     Neither side has a transport that reaches the other.
     */
    PENSTOCK_NO_ROUTE = 31,
    /*
     Nobody answers there.
     */
    PENSTOCK_UNREACHABLE = 32,
    /*
     It did not answer in time.
     */
    PENSTOCK_CONNECT_TIMED_OUT = 33,
    /*
     One side refused the session.
     */
    PENSTOCK_REFUSED = 34,
    /*
     The connection ended before the session stood.
     */
    PENSTOCK_CONNECTION_LOST = 35,
    /*
     What answers there is another program.
     */
    PENSTOCK_NOT_PENSTOCK = 36,
    /*
     The two sides do not share a secret.
     */
    PENSTOCK_WRONG_SECRET = 37,
    /*
     No address was found for the name.
     */
    PENSTOCK_UNRESOLVED = 38,
    /*
     No region of this label, or with these bytes, is known.
     */
    PENSTOCK_NO_REGION = 50,
    /*
     The region was deregistered or renewed.
     */
    PENSTOCK_STALE_REGION = 51,
    /*
     The peer has changed its regions and the news is under way: try again.
     */
    PENSTOCK_NEWS_UNDER_WAY = 52,
    /*
     Bytes lie outside the region. Also of a plan.
     */
    PENSTOCK_OUT_OF_BOUNDS = 53,
    /*
     The region does not give that right, or the memory is mapped read-only. Also of a plan.
     */
    PENSTOCK_NO_RIGHT = 54,
    /*
     Nothing is mapped at that address, or it cannot be read.
     */
    PENSTOCK_NOT_MAPPED = 55,
    /*
     The pool has not so many free blocks.
     */
    PENSTOCK_NO_BLOCKS = 56,
    /*
     Memory could not be made, taken in or renewed.
     */
    PENSTOCK_NO_MEMORY = 57,
    /*
     No counter of this label is known.
     */
    PENSTOCK_NO_COUNTER = 58,
    /*
     There is no CUDA driver that can be used here, or it has no device.
     */
    PENSTOCK_NO_DEVICE = 59,
    /*
     What was asked for does not fit its regions.
     */
    PENSTOCK_BAD_PLAN = 70,
    /*
     The plan was made for another peer or session.
     */
    PENSTOCK_FOREIGN_PLAN = 71,
    /*
     There is no room: release transfers that have ended, then submit again.
     */
    PENSTOCK_FULL = 72,
    /*
     A notification carries less.
     */
    PENSTOCK_NOTE_TOO_LONG = 73,
    /*
     The number is one of those by which the peer hears of transfers by name.
     */
    PENSTOCK_RESERVED_NOTE = 74,
    /*
     The counter is another peer's, or of another life of it.
     */
    PENSTOCK_FOREIGN_COUNTER = 75,
    /*
     The caller cancelled it.
     */
    PENSTOCK_CANCELLED = 101,
    /*
     Its deadline passed.
     */
    PENSTOCK_DEADLINE_EXCEEDED = 102,
    /*
     The peer took back memory that the plan touches.
     */
    PENSTOCK_REVOKED_BY_PEER = 103,
    /*
     This engine took back memory that the plan touches.
     */
    PENSTOCK_REVOKED_HERE = 104,
    /*
     The plan is older than the log of withdrawn memory reaches.
     */
    PENSTOCK_PLAN_TOO_OLD = 105,
    /*
     The session was closed, from here or by the peer.
     */
    PENSTOCK_PEER_CLOSED = 106,
    /*
     The session broke.
     */
    PENSTOCK_PEER_LOST = 107,
    /*
     The peer's shared memory holds nonsense.
     */
    PENSTOCK_PEER_CORRUPT = 108,
    /*
     This engine was closed.
     */
    PENSTOCK_ENGINE_CLOSED = 109,
    /*
     The process is a fork of the one that made the object.
     */
    PENSTOCK_FORKED = 110,
    /*
     An inline engine belongs to the thread that made it.
     */
    PENSTOCK_WRONG_THREAD = 111,
    /*
     No transport can move bytes between these two regions.
     */
    PENSTOCK_NO_PATH = 112,
    /*
     A step of the plan reached outside its region.
     */
    PENSTOCK_PLAN_OUT_OF_BOUNDS = 113,
    /*
     A call from inside another call of the same inline engine.
     */
    PENSTOCK_REENTERED = 114,
    /*
     A wait is over and the transfer is not: its worker has not run.
     */
    PENSTOCK_NOT_ENDED = 115,
    /*
     Registered memory is not there any more.
     */
    PENSTOCK_MEMORY_GONE = 116,
    /*
     This engine drains.
     */
    PENSTOCK_DRAINING = 120,
    /*
     The peer drains.
     */
    PENSTOCK_PEER_DRAINING = 121,
    /*
     A part of the region got fresh memory.
     */
    PENSTOCK_MEMORY_RENEWED = 124,
    /*
     No answer came over a rail.
     */
    PENSTOCK_RAIL_LOST = 130,
    /*
     The peer's card refused the memory.
     */
    PENSTOCK_ACCESS_REFUSED = 131,
    /*
     The peer took no messages.
     */
    PENSTOCK_RECEIVER_NOT_READY = 132,
    /*
     A card of this host failed.
     */
    PENSTOCK_CARD_FAILED = 133,
    /*
     A card cannot do what was asked.
     */
    PENSTOCK_CARD_REFUSED = 134,
    /*
     Bytes came otherwise than they left, again and again.
     */
    PENSTOCK_PAYLOAD_CORRUPT = 135,
    /*
     A device failed, here or at the peer.
     */
    PENSTOCK_DEVICE_FAILED = 136,
} penstock_status;

/*
 How an engine starts. All zeros but the size is an engine with the default configuration.
 */
typedef struct {
    /*
     `sizeof(penstock_engine_options)`.
     */
    size_t size;
    /*
     Its name; null: as the configuration says, else one made of the program and its process, for one engine of it.
     */
    const char *name;
    /*
     A file of the configuration, in YAML; null: none.
     */
    const char *config_file;
    /*
     The configuration itself, in YAML; null: none. Not both.
     */
    const char *config_yaml;
} penstock_engine_options;

/*
 Handle of an engine.
 */
typedef uint64_t penstock_engine;

/*
 Handle of memory that must not be reused yet.
 */
typedef uint64_t penstock_quarantine;

/*
 Handle of a peer: a session with another engine.
 */
typedef uint64_t penstock_peer;

/*
 Handle of a connect that is under way.
 */
typedef uint64_t penstock_connecting;

/*
 What the workers of an engine have done since it started.
 */
typedef struct {
    /*
     Set by the caller: `sizeof(penstock_statistics)`.
     */
    size_t size;
    /*
     Transfers that ended well.
     */
    uint64_t transfers_completed;
    /*
     Transfers that ended with a fault.
     */
    uint64_t transfers_failed;
    /*
     Bytes moved.
     */
    uint64_t bytes;
    /*
     Notifications sent.
     */
    uint64_t notes_sent;
    /*
     Notifications received.
     */
    uint64_t notes_received;
    /*
     Times a receiver had no room and a notification had to wait.
     */
    uint64_t waits_for_room;
    /*
     Times memory was quarantined.
     */
    uint64_t quarantines;
    /*
     Turns of the polling loop.
     */
    uint64_t turns;
    /*
     Times a worker went to sleep.
     */
    uint64_t sleeps;
} penstock_statistics;

/*
 The last call of this thread that failed. The texts are never null; those that are not known are empty. They stay until another call of this
 thread fails.
 */
typedef struct {
    /*
     Set by the caller: `sizeof(penstock_error)`.
     */
    size_t size;
    /*
     What the call answered.
     */
    penstock_status status;
    /*
     The other engine, if one was involved.
     */
    const char *peer;
    /*
     Where a transfer ended: "moving bytes".
     */
    const char *stage;
    /*
     Why a transfer or a session ended, of a status from 100 on.
     */
    const char *cause;
    /*
     What to do about it.
     */
    const char *remedy;
    /*
     The whole in words.
     */
    const char *text;
} penstock_error;

/*
 Takes a line of the log: its level, the part of Penstock that says it, and its words, which stay until it returns. Called by any thread, one of the
 engine's or one that is in a call; several may be in it at once. It must not wait, throw, or call anything of Penstock but `penstock_message`.
 */
typedef void (*penstock_log_hook)(void *user, uint32_t level, const char *source, const char *text);

/*
 What a pool is.
 */
typedef struct {
    /*
     `sizeof(penstock_pool_options)`.
     */
    size_t size;
    /*
     Bytes of the pool.
     */
    uint64_t bytes;
    /*
     Bytes of a block; 0: the default.
     */
    uint64_t block_bytes;
    /*
     The name peers find it by; null: none.
     */
    const char *label;
    /*
     What peers may do, a sum of `PENSTOCK_RIGHTS_`.
     */
    uint32_t rights;
    /*
     One of `PENSTOCK_PAGES_`.
     */
    uint32_t pages;
} penstock_pool_options;

/*
 Handle of a pool, which is a region, too.
 */
typedef uint64_t penstock_pool;

/*
 Handle of blocks of a pool. They go back to it when it is released, and nothing else has them.
 */
typedef uint64_t penstock_blocks;

/*
 Handle of registered memory of this engine.
 */
typedef uint64_t penstock_region;

/*
 Where a region is.
 */
typedef struct {
    /*
     Set by the caller: `sizeof(penstock_region_info)`.
     */
    size_t size;
    /*
     Its first address in the memory of its own engine.
     */
    uint64_t base;
    /*
     Bytes it has.
     */
    uint64_t bytes;
    /*
     Bytes of a block, of a pool; else 0.
     */
    uint64_t block_bytes;
    /*
     What peers may do.
     */
    uint32_t rights;
} penstock_region_info;

/*
 Bytes of a region.
 */
typedef struct {
    /*
     The first, from the beginning of the region; an address where a call says so.
     */
    uint64_t offset;
    /*
     How many.
     */
    uint64_t bytes;
} penstock_range;

/*
 What became of packets, of transports that have some of their own (`datagram`); the kernel counts those of `tcp`, and cards those of `verbs`.
 */
typedef struct {
    /*
     Set by the caller: `sizeof(penstock_packet_statistics)`.
     */
    size_t size;
    /*
     Packets that were written to be sent.
     */
    uint64_t sent;
    /*
     Packets that were given up as lost.
     */
    uint64_t lost;
    /*
     Those of `lost` that had arrived after all: what they carried was sent twice for nothing.
     */
    uint64_t spurious;
    /*
     Messages that were sent again, in other packets.
     */
    uint64_t repeated;
    /*
     How often all that was under way was given up, because nothing was heard.
     */
    uint64_t timeouts;
    /*
     Packets that came and were taken.
     */
    uint64_t received;
    /*
     Messages of those packets that were dropped: their bytes were here already, or their operation had ended.
     */
    uint64_t late;
    /*
     Packets that were dropped: they are too short, or for no connection. Of an engine only.
     */
    uint64_t strangers;
    /*
     Packets that were dropped: their tag is wrong.
     */
    uint64_t forged;
    /*
     Packets that were dropped: their number has come before, or is too old to tell.
     */
    uint64_t replayed;
    /*
     Packets that were dropped: their payload does not have its checksum, or not its length.
     */
    uint64_t corrupt;
    /*
     Packets that the port dropped as they came, as a rule for want of room. Of an engine only.
     */
    uint64_t dropped_by_port;
    /*
     Packets that the port did not send, although they were given to it. Of an engine only.
     */
    uint64_t refused_by_port;
    /*
     How often the port had no room for more to send. Of an engine only.
     */
    uint64_t blocked;
    /*
     The smoothed round trip to a peer in nanoseconds; 0 before its first answer, and of an engine.
     */
    uint64_t round_trip_ns;
    /*
     Bytes that may be under way to a peer at once; 0 of an engine.
     */
    uint64_t window_bytes;
} penstock_packet_statistics;

/*
 Handle of a region of a peer.
 */
typedef uint64_t penstock_remote_region;

/*
 Two offsets that belong together.
 */
typedef struct {
    /*
     Into the local region.
     */
    uint64_t local;
    /*
     Into the remote region.
     */
    uint64_t remote;
} penstock_layer;

/*
 Two numbers of blocks that belong together.
 */
typedef struct {
    /*
     In the local region.
     */
    uint32_t local;
    /*
     In the remote region.
     */
    uint32_t remote;
} penstock_block_pair;

/*
 Pieces at regular distances.
 */
typedef struct {
    /*
     Offset of the first piece in the local region.
     */
    uint64_t local;
    /*
     The same in the remote region.
     */
    uint64_t remote;
    /*
     Bytes of a piece.
     */
    uint64_t bytes;
    /*
     From one piece to the next in the local region.
     */
    uint64_t local_stride;
    /*
     The same in the remote region.
     */
    uint64_t remote_stride;
    /*
     How many pieces.
     */
    uint64_t count;
} penstock_strided;

/*
 Bytes that move together, by offsets into two regions.
 */
typedef struct {
    /*
     Into the local region.
     */
    uint64_t local;
    /*
     Into the remote region.
     */
    uint64_t remote;
    /*
     How many, not none.
     */
    uint64_t bytes;
} penstock_extent;

/*
 What a plan over two regions moves: blocks (of each layer, if there are any), strided pieces, extents, or more than one of the three. Numbers of
 blocks are those of `penstock_blocks_indices`, and every offset is from the beginning of its region.
 */
typedef struct {
    /*
     `sizeof(penstock_plan_options)`.
     */
    size_t size;
    /*
     `PENSTOCK_WRITE` or `PENSTOCK_READ`.
     */
    uint32_t direction;
    /*
     0.
     */
    uint32_t reserved;
    /*
     Where layers begin in the two regions; none: one layer at their beginnings.
     */
    const penstock_layer *layers;
    /*
     How many.
     */
    size_t layer_count;
    /*
     Which block goes where, in each layer.
     */
    const penstock_block_pair *blocks;
    /*
     How many.
     */
    size_t block_count;
    /*
     Bytes of a block; 0: as the pool has them.
     */
    uint64_t block_bytes;
    /*
     From one block to the next in the local region; 0: the bytes of a block.
     */
    uint64_t local_stride;
    /*
     The same in the remote region.
     */
    uint64_t remote_stride;
    /*
     Pieces at regular distances.
     */
    const penstock_strided *strided;
    /*
     How many of them.
     */
    size_t strided_count;
    /*
     Bytes by offsets.
     */
    const penstock_extent *extents;
    /*
     How many of them.
     */
    size_t extent_count;
    /*
     Blocks that stay allocated as long as the plan or a transfer of it lives.
     */
    const penstock_blocks *keep;
    /*
     How many handles.
     */
    size_t keep_count;
} penstock_plan_options;

/*
 Handle of a plan.
 */
typedef uint64_t penstock_plan;

/*
 Bytes that move together, by addresses.
 */
typedef struct {
    /*
     An address of this process.
     */
    uint64_t local;
    /*
     An address of the peer's.
     */
    uint64_t remote;
    /*
     How many; none is nothing.
     */
    uint64_t bytes;
} penstock_entry;

/*
 A notification that has arrived, once, after the bytes of its transfer. Its texts and bytes are the batch's.
 */
typedef struct {
    /*
     The name of the engine that sent it.
     */
    const char *peer;
    /*
     Its number.
     */
    uint64_t note;
    /*
     The upper half of its number.
     */
    uint64_t note_high;
    /*
     What it carries.
     */
    const void *payload;
    /*
     How many bytes.
     */
    size_t payload_bytes;
} penstock_notification;

/*
 Handle of the payloads of notifications that were taken together.
 */
typedef uint64_t penstock_batch;

/*
 Handle of a counter of this engine.
 */
typedef uint64_t penstock_counter;

/*
 Handle of a counter of a peer.
 */
typedef uint64_t penstock_remote_counter;

/*
 How a transfer is submitted. All zeros but the size: nothing but the bytes, by the configured deadline (`transfers.timeout_ms`, 30 s).
 */
typedef struct {
    /*
     `sizeof(penstock_submit_options)`.
     */
    size_t size;
    /*
     The time it may take; 0: as configured; `PENSTOCK_NO_DEADLINE`: for ever.
     */
    uint64_t timeout_ms;
    /*
     One of `PENSTOCK_PRIORITY_`.
     */
    uint32_t priority;
    /*
     Not 0: the peer is notified, once, after all bytes. Where it is 0 the fields of the notification are not looked at.
     */
    uint32_t has_note;
    /*
     The number of the notification, which means what the two sides agree on.
     */
    uint64_t note;
    /*
     Its upper half. Leave it 0: some of the others are by which a peer hears of transfers by name (`PENSTOCK_RESERVED_NOTE`).
     */
    uint64_t note_high;
    /*
     What the notification carries; copied.
     */
    const void *payload;
    /*
     How many bytes, at most 4096 (`PENSTOCK_NOTE_TOO_LONG`).
     */
    size_t payload_bytes;
    /*
     A counter of the peer that goes up by one after all bytes; 0: none.
     */
    penstock_remote_counter counter;
} penstock_submit_options;

/*
 Handle of a transfer.
 */
typedef uint64_t penstock_transfer;

/*
 How a transfer ended.
 */
typedef struct {
    /*
     Set by the caller: `sizeof(penstock_result)`.
     */
    size_t size;
    /*
     Bytes moved. Which ones is not defined for one that has failed.
     */
    uint64_t bytes;
    /*
     `PENSTOCK_OK`, or why it failed.
     */
    penstock_status status;
    /*
     One of `PENSTOCK_NOTIFIED_`.
     */
    uint32_t notified;
} penstock_result;

/*
 One of many transfers that has ended.
 */
typedef struct {
    /*
     Its place in the list.
     */
    size_t place;
    /*
     Bytes moved.
     */
    uint64_t bytes;
    /*
     `PENSTOCK_OK`, or why it failed.
     */
    penstock_status status;
    /*
     One of `PENSTOCK_NOTIFIED_`.
     */
    uint32_t notified;
} penstock_completion;

/*
 What a cancel answers, once for each owner of memory.
 */
typedef struct {
    /*
     Set by the caller: `sizeof(penstock_cancel_answer)`.
     */
    size_t size;
    /*
     This engine's memory, one of `PENSTOCK_MEMORY_`.
     */
    uint32_t local;
    /*
     The peer's memory.
     */
    uint32_t remote;
    /*
     To be released; 0 if the memory is not quarantined.
     */
    penstock_quarantine local_quarantine;
    /*
     The same of the peer's.
     */
    penstock_quarantine remote_quarantine;
} penstock_cancel_answer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The number of the ABI of the library that is loaded: to be compared with `PENSTOCK_ABI`. Any thread, also after a fork.
 */
uint32_t penstock_abi(void);

/*
 The release of the library, as "0.1.0". Lives as long as the program. Any thread, also after a fork.
 */
const char *penstock_version(void);

/*
 Starts an engine. `options` may be null. An inline engine (`workers.progress: inline`) belongs to the calling thread.
 Release it by `penstock_engine_close`.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_engine_start(const penstock_engine_options *options,
                                      penstock_engine *engine);

/*
 Ends an engine by the timeout, and releases its handle: lets transfers end for half of the time, says goodbye, takes its memory back. Calls
 that other threads wait in end. Memory that a stopped peer might still touch is put into `list`, a quarantine each, as far as
 `capacity` goes, and how many there are into `count`: do not reuse such memory before `penstock_quarantine_look` says so. Of those that did not fit
 (`PENSTOCK_TRUNCATED`) the memory is never known to be free. An argument that makes no sense ends nothing. Any thread.

 The caller sees to it:
 Pointers as their types say; `list` has room for `capacity` handles.
 */
penstock_status penstock_engine_close(penstock_engine engine,
                                      uint64_t timeout_ms,
                                      penstock_quarantine *list,
                                      size_t capacity,
                                      size_t *count);

/*
 Its name, as text. Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes; `length` may be null.
 */
penstock_status penstock_engine_name(penstock_engine engine, char *buffer, size_t capacity, size_t *length);

/*
 Whether it is inline (`workers.progress: inline`): the thread that started it turns it, in calls that wait and by `penstock_progress`. `is_inline` is 1
 or 0. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_engine_is_inline(penstock_engine engine,
                                          int *is_inline);

/*
 Its descriptor: bytes that any means may carry to whoever wants to connect. `length` says how many there are. Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes.
 */
penstock_status penstock_engine_descriptor(penstock_engine engine,
                                           void *buffer,
                                           size_t capacity,
                                           size_t *length);

/*
 The addresses at which other hosts reach it, `host:port`, a line each. Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes; `length` may be null.
 */
penstock_status penstock_engine_addresses(penstock_engine engine,
                                          char *buffer,
                                          size_t capacity,
                                          size_t *length);

/*
 Connects to the engine of this descriptor. One that is connected already is found. Any thread; waits at most so long.

 The caller sees to it:
 `descriptor` has so many bytes.
 */
penstock_status penstock_connect(penstock_engine engine,
                                 const void *descriptor,
                                 size_t descriptor_bytes,
                                 uint64_t timeout_ms,
                                 penstock_peer *peer);

/*
 Connects to whichever engine listens at this address, `host:port`. Any thread; waits at most so long.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_connect_address(penstock_engine engine,
                                         const char *address,
                                         uint64_t timeout_ms,
                                         penstock_peer *peer);

/*
 Connects to whichever engine has this name, and tries again until there is one. Any thread; waits at most so long.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_connect_name(penstock_engine engine,
                                      const char *name,
                                      uint64_t timeout_ms,
                                      penstock_peer *peer);

/*
 Begins to connect to the engine of this descriptor. Any thread. Never waits.

 The caller sees to it:
 `descriptor` has so many bytes.
 */
penstock_status penstock_connect_begin(penstock_engine engine,
                                       const void *descriptor,
                                       size_t descriptor_bytes,
                                       penstock_connecting *connecting);

/*
 The peer, once it is there; `PENSTOCK_PENDING` before. Release the connect afterwards. Any thread. Never waits.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_connect_poll(penstock_connecting connecting,
                                      penstock_peer *peer);

/*
 Connects again to the engine behind a session that has ended, most likely in its next life. If a session with it stands, or does so as far as is known
 here, that is the answer: see `penstock_peer_state` first. Any thread; waits at most so long.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_reconnect(penstock_engine engine,
                                   penstock_peer ended,
                                   uint64_t timeout_ms,
                                   penstock_peer *peer);

/*
 All peers with a standing session, whoever connected, each as a fresh handle. Any thread.

 The caller sees to it:
 `list` has room for `capacity` handles.
 */
penstock_status penstock_peers(penstock_engine engine, penstock_peer *list, size_t capacity, size_t *count);

/*
 One turn of an inline engine; others work by themselves. `worked`, which may be null, is 1 if anything happened. The engine's own thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_progress(penstock_engine engine,
                                  int *worked);

/*
 A descriptor for `poll` or `epoll`, the engine's own: readable when something has happened after `penstock_arm`, which also resets it, so there is
 nothing to read. A close does not ring it, and it is closed with the last handle of anything of the engine: have nobody sleep on it then. Any
 thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_event_fd(penstock_engine engine,
                                  int *fd);

/*
 Asks for the event fd to be rung, right before sleeping on it. `PENSTOCK_BUSY`: transfers ended, notifications arrived or counters went
 up since the last call: look at them first. One thread at a time.
 */
penstock_status penstock_arm(penstock_engine engine);

/*
 Takes nothing new from now on, for good, and waits at most so long until what goes on has ended and every session is closed: `PENSTOCK_TIMED_OUT`
 if something goes on or a session stands. Any thread.
 */
penstock_status penstock_drain(penstock_engine engine,
                               uint64_t timeout_ms);

/*
 What the workers have done. Any thread.

 The caller sees to it:
 `statistics` points to a struct whose `size` is set.
 */
penstock_status penstock_engine_statistics(penstock_engine engine, penstock_statistics *statistics);

/*
 The last call of this thread that failed, in fields; `PENSTOCK_OK` and empty texts if none has. Any thread, also after a fork; each sees its
 own. Never waits.

 The caller sees to it:
 `error` points to a struct whose `size` is set.
 */
penstock_status penstock_last_error(penstock_error *error);

/*
 Has the log of this process told to a function, up to a level, in place of the one before; null or `PENSTOCK_LOG_OFF`: to nobody. When this returns, no
 thread is in the function that was set before. A forked child begins without one. Any thread. Waits only for the function that was set before.

 The caller sees to it:
 `hook` does as its type says, for as long as it is set; `user` is whatever it is to be given.
 */
penstock_status penstock_log(uint32_t level,
                             penstock_log_hook hook,
                             void *user);

/*
 Makes a pool of memory that Penstock owns, which peers on one host map, and announces it to peers. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_pool_create(penstock_engine engine,
                                     const penstock_pool_options *options,
                                     penstock_pool *pool);

/*
 Takes `count` blocks out of a pool, waiting at most so long for them (0: not at all). Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_pool_take(penstock_pool pool,
                                   size_t count,
                                   uint64_t timeout_ms,
                                   penstock_blocks *blocks);

/*
 The numbers of blocks in their pool: block `i` begins `i * block_bytes` bytes into it. Any thread.

 The caller sees to it:
 `list` has room for `capacity` numbers.
 */
penstock_status penstock_blocks_indices(penstock_blocks blocks,
                                        uint32_t *list,
                                        size_t capacity,
                                        size_t *count);

/*
 Registers memory of the caller's and announces it to peers. The kernel is asked whether it is there: what is not mapped is
 `PENSTOCK_NOT_MAPPED`, what is mapped read-only can be sent from and no more. It stays as it is until its deregistration, or the
 end of the engine, has answered that nothing touches it any more. The same memory, label and rights again is the same region, counted: so many
 deregistrations end it. Any thread.

 The caller sees to it:
 The memory stays mapped as it is until then; meanwhile peers and devices may read and write it as the rights say.
 */
penstock_status penstock_register(penstock_engine engine,
                                  void *base,
                                  size_t bytes,
                                  const char *label,
                                  uint32_t rights,
                                  penstock_region *region);

/*
 As `penstock_register`, and believes the caller: memory that is not there, or may not be written, ends the process when it is used. It saves a
 microsecond, and pages that were never touched stay so. Any thread.

 The caller sees to it:
 As of `penstock_register`, and the memory is mapped to be read and written.
 */
penstock_status penstock_register_believed(penstock_engine engine,
                                           void *base,
                                           size_t bytes,
                                           const char *label,
                                           uint32_t rights,
                                           penstock_region *region);

/*
 As `penstock_register`, of memory of a CUDA device: an address that `cuMemAlloc` or `cudaMalloc` gave, or one behind it. The driver is started, which takes a
 tenth of a second and more the first time, and asked what is there: `PENSTOCK_NO_DEVICE` where there is none that can be used, and all else works without;
 `PENSTOCK_NOT_MAPPED` where no device memory of this process is, or less than that; `PENSTOCK_INVALID_ARGUMENT` for managed memory, and for host memory that the
 driver knows. Nothing is read or written, and no stream is waited for: copies are ordered behind kernels that write the memory by `penstock_order_behind`, before
 a transfer that reads it is submitted. What a transfer writes is there once it has ended. Any thread.

 The caller sees to it:
 The memory is not freed until then; meanwhile peers and devices may read and write it as the rights say.
 */
penstock_status penstock_register_device(penstock_engine engine,
                                         uint64_t address,
                                         uint64_t bytes,
                                         const char *label,
                                         uint32_t rights,
                                         penstock_region *region);

/*
 Orders copies behind work of a CUDA stream: every copy that an engine of this process gives the device of `address` from now on begins when all is done that
 the stream has at this moment. `address` is of memory of that device. Nothing waits for the stream but the device itself, and the call returns at once; orders add
 up, and one that is asked for before a region is registered holds from its first transfer on. `stream` is a `CUstream` or `cudaStream_t` in the device's primary
 context, as the runtime makes them: null and `CU_STREAM_LEGACY` (1) are the legacy default stream, also in a program with default streams for each thread,
 `CU_STREAM_PER_THREAD` (2) is that of the calling thread. An event is recorded in it, and nothing else is done with it. A program that has queued
 `kernel<<<blocks, threads, 0, stream>>>(tensor)` calls `penstock_order_behind((uintptr_t)tensor, stream)` and then `penstock_submit`.

 A stream that does not go on holds up all later copies of its device: their transfers end by their deadlines, and their memory stays quarantined until it does.
 `PENSTOCK_INVALID_ARGUMENT` for a stream of another device or context, and for one that is being captured, whose capture goes on; of the address as
 `penstock_register_device`. Any thread.

 The caller sees to it:
 The stream is not destroyed, and no capture of it begins, before the call returns.
 */
penstock_status penstock_order_behind(uint64_t address,
                                      void *stream);

/*
 The region of this engine that has these bytes at this address; of several the newest. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_region_at(penstock_engine engine,
                                   uint64_t address,
                                   uint64_t bytes,
                                   penstock_region *region);

/*
 Where a region or a pool of this engine is. Any thread.

 The caller sees to it:
 `info` points to a struct whose `size` is set.
 */
penstock_status penstock_region_look(penstock_region region, penstock_region_info *info);

/*
 Takes back one registration of a region or a pool, and the memory if it was the last, waiting at most so long for whoever is touching it.
 `PENSTOCK_OK`: nothing touches it any more. `PENSTOCK_STILL_REGISTERED`: it was registered more than once.
 `PENSTOCK_QUARANTINED`: a stopped peer might still touch it: `quarantine`, which may be null, can be asked until it does not; it is 0 otherwise. Release the region's
 handle afterwards, in any case. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_deregister(penstock_region region,
                                    uint64_t timeout_ms,
                                    penstock_quarantine *quarantine);

/*
 Takes ranges of a region back from all transfers that are under way and all plans that there are, of peers and of this engine, while the region
 stands: who makes a plan afterwards may use them again. Answers as `penstock_deregister`. Any thread.

 The caller sees to it:
 `ranges` has `count` values.
 */
penstock_status penstock_revoke(penstock_region region,
                                const penstock_range *ranges,
                                size_t count,
                                uint64_t timeout_ms,
                                penstock_quarantine *quarantine);

/*
 All memory of an engine that is quarantined now, a fresh handle each. Any thread.

 The caller sees to it:
 `list` has room for `capacity` handles.
 */
penstock_status penstock_quarantined(penstock_engine engine,
                                     penstock_quarantine *list,
                                     size_t capacity,
                                     size_t *count);

/*
 `PENSTOCK_OK` if nothing can touch the memory any more, for good; `PENSTOCK_QUARANTINED` before. Of a peer's memory `PENSTOCK_PEER_LOST` if the session has
 ended without a goodbye: nothing more comes from here, and what had left may still land there as long as the peer lives. Any thread, also after the
 engine has ended.
 */
penstock_status penstock_quarantine_look(penstock_quarantine quarantine);

/*
 The quarantined memory of this process, by addresses; none for a transfer that was cancelled: that is all memory of its plan. Any thread, also after the engine has ended.

 The caller sees to it:
 `list` has room for `capacity` values.
 */
penstock_status penstock_quarantine_ranges(penstock_quarantine quarantine,
                                           penstock_range *list,
                                           size_t capacity,
                                           size_t *count);

/*
 Who might still touch it, a line each: names of engines, or "this engine" for a worker of its own. Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes; `length` may be null.
 */
penstock_status penstock_quarantine_suspects(penstock_quarantine quarantine,
                                             char *buffer,
                                             size_t capacity,
                                             size_t *length);

/*
 Gives quarantined blocks of a pool fresh memory, so that they can be used again while a stopped peer has the old. Any thread; waits at most so
 long.
 */
penstock_status penstock_renew(penstock_pool pool,
                               penstock_quarantine quarantine,
                               uint64_t timeout_ms);

/*
 Releases a handle. Zero is nothing, and well. The object goes with its last user: a transfer goes on, and nobody hears how it ends; a plan, blocks
 and regions stay as long as transfers need them; blocks go back to their pool; an engine that was not closed is closed within
 `session.shutdown_timeout_ms`. Any thread. Waits only for an engine.
 */
penstock_status penstock_release(uint64_t handle);

/*
 Releases `count` handles of any kinds. All are, also where one is none; then the answer is `PENSTOCK_BAD_HANDLE`. Any thread.

 The caller sees to it:
 `handles` has room for `count` numbers.
 */
penstock_status penstock_release_many(const uint64_t *handles,
                                      size_t count);

/*
 What has become of the packets of all peers since the engine started. Any thread.

 The caller sees to it:
 `statistics` points to a struct whose `size` is set.
 */
penstock_status penstock_engine_packet_statistics(penstock_engine engine,
                                                  penstock_packet_statistics *statistics);

/*
 What has become of the packets to a peer and from it since its session began; all 0 where its transport has none of its own, and as `penstock_peer_state`
 where the session has ended. Any thread.

 The caller sees to it:
 `statistics` points to a struct whose `size` is set.
 */
penstock_status penstock_peer_packet_statistics(penstock_peer peer,
                                                penstock_packet_statistics *statistics);

/*
 The name of its engine. Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes; `length` may be null.
 */
penstock_status penstock_peer_name(penstock_peer peer, char *buffer, size_t capacity, size_t *length);

/*
 The transport that reaches it: "local", "shm", "tcp", "datagram" or "verbs". Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes; `length` may be null.
 */
penstock_status penstock_peer_transport(penstock_peer peer, char *buffer, size_t capacity, size_t *length);

/*
 The path to it, and why that one, in words. Any thread.

 The caller sees to it:
 `buffer` has room for `capacity` bytes; `length` may be null.
 */
penstock_status penstock_peer_path(penstock_peer peer, char *buffer, size_t capacity, size_t *length);

/*
 `PENSTOCK_OK` while the session stands, else why it ended: `PENSTOCK_PEER_LOST` and its like, with words in the last error. It says
 nothing of memory. Any thread.
 */
penstock_status penstock_peer_state(penstock_peer peer);

/*
 Asks it for a sign of life, and waits for it at most so long: `PENSTOCK_TIMED_OUT` if none came. `nanoseconds`, which may be null, is the time
 there and back. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_peer_ping(penstock_peer peer,
                                   uint64_t timeout_ms,
                                   uint64_t *nanoseconds);

/*
 Waits until everything that the peer had registered before this call is known here, at most so long: `PENSTOCK_TIMED_OUT` if the peer has not
 answered by then. Any thread.
 */
penstock_status penstock_peer_refresh(penstock_peer peer,
                                      uint64_t timeout_ms);

/*
 The region of this label, waiting at most so long for it to be announced (0: not at all). Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_peer_region(penstock_peer peer,
                                     const char *label,
                                     uint64_t timeout_ms,
                                     penstock_remote_region *region);

/*
 The region of the peer that has these bytes at this address of the peer's; of several the newest. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_peer_region_at(penstock_peer peer,
                                        uint64_t address,
                                        uint64_t bytes,
                                        penstock_remote_region *region);

/*
 All regions that the peer has announced, a fresh handle each. Any thread.

 The caller sees to it:
 `list` has room for `capacity` handles.
 */
penstock_status penstock_peer_regions(penstock_peer peer,
                                      penstock_remote_region *list,
                                      size_t capacity,
                                      size_t *count);

/*
 Where a region of a peer is. Any thread.

 The caller sees to it:
 `info` points to a struct whose `size` is set.
 */
penstock_status penstock_remote_region_look(penstock_remote_region region, penstock_region_info *info);

/*
 Ends the session, and waits at most so long until both sides have left it: `PENSTOCK_TIMED_OUT` if the other has not. A session that has ended is
 left already. Any thread.
 */
penstock_status penstock_disconnect(penstock_peer peer,
                                    uint64_t timeout_ms);

/*
 Makes a plan between a region (or a pool) of this engine and one of a peer. Everything is checked now. Nothing of the arrays is kept. Any thread.

 The caller sees to it:
 The arrays of the options have as many values as they say.
 */
penstock_status penstock_plan_create(penstock_region local,
                                     penstock_remote_region remote,
                                     const penstock_plan_options *options,
                                     penstock_plan *plan);

/*
 Makes a plan by addresses, over any regions of either side. Of several that cover an entry the newest is used; an entry may run over
 regions that adjoin; destinations may overlap, and then it is not defined whose bytes stay. A plan of no bytes only tells. `keep` are
 blocks that stay allocated with it. Any thread.

 The caller sees to it:
 The arrays have as many values as they say.
 */
penstock_status penstock_plan_addresses(penstock_peer peer,
                                        uint32_t direction,
                                        const penstock_entry *entries,
                                        size_t count,
                                        const penstock_blocks *keep,
                                        size_t keep_count,
                                        penstock_plan *plan);

/*
 Bytes that a transfer of the plan moves. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_plan_bytes(penstock_plan plan, uint64_t *bytes);

/*
 A status in words, in English; the same for every number that is none. Lives as long as the program. Any thread, also after a fork.
 */
const char *penstock_message(int status);

/*
 Takes notifications, at most `capacity`, in the order in which they came; `count` says how many. What they point to stays until the batch is
 released; with none there is no batch, and its handle is 0. Any thread; an inline engine's own. Never waits.

 The caller sees to it:
 `list` has room for `capacity` notifications.
 */
penstock_status penstock_notifications(penstock_engine engine,
                                       penstock_notification *list,
                                       size_t capacity,
                                       size_t *count,
                                       penstock_batch *batch);

/*
 Waits until there is a notification to take, at most so long: `PENSTOCK_TIMED_OUT` if none came. Any thread; an inline engine's own.
 */
penstock_status penstock_wait_notification(penstock_engine engine,
                                           uint64_t timeout_ms);

/*
 Makes an arrival counter of a region and announces it to peers by its label. Release it when it is not needed. Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_counter_create(penstock_region region,
                                        const char *label,
                                        penstock_counter *counter);

/*
 How many transfers have counted it up. Any thread. Never waits.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_counter_value(penstock_counter counter, uint64_t *value);

/*
 Waits until a counter has come to this value, at most so long: `PENSTOCK_TIMED_OUT` if it has not. Any thread; an inline engine's own.
 */
penstock_status penstock_counter_wait(penstock_counter counter,
                                      uint64_t value,
                                      uint64_t timeout_ms);

/*
 The counter of this label, waiting at most so long for it to be announced (0: not at all). Any thread.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_peer_counter(penstock_peer peer,
                                      const char *label,
                                      uint64_t timeout_ms,
                                      penstock_remote_counter *counter);

/*
 Submits a transfer of a plan. `options` may be null. `PENSTOCK_FULL` is no failure: take the ends of some and release them, or wait until workers have taken up what is queued, then submit again. Any thread; an inline
 engine's own. Never waits.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_submit(penstock_peer peer,
                                penstock_plan plan,
                                const penstock_submit_options *options,
                                penstock_transfer *transfer);

/*
 Notifies a peer, and moves nothing. Otherwise as `penstock_submit`; `has_note` has to be set.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_notify(penstock_peer peer,
                                const penstock_submit_options *options,
                                penstock_transfer *transfer);

/*
 How a transfer ended, `PENSTOCK_OK` or the cause; `PENSTOCK_PENDING` if it has not. `result` may be null. Makes no progress of an inline engine.
 Any thread. Never waits.

 The caller sees to it:
 `result` points to a struct whose `size` is set.
 */
penstock_status penstock_poll(penstock_transfer transfer,
                              penstock_result *result);

/*
 Waits for the end, at most so long: `PENSTOCK_TIMED_OUT` if the time is over first, and the transfer goes on. Any thread.

 The caller sees to it:
 `result` points to a struct whose `size` is set, or is null.
 */
penstock_status penstock_wait(penstock_transfer transfer,
                              uint64_t timeout_ms,
                              penstock_result *result);

/*
 Which of these transfers have ended, and how: at most `count` completions are put into `ended`. A number that is no transfer's has ended
 with `PENSTOCK_BAD_HANDLE`. An inline engine makes one turn before. Any thread; an inline engine's own. Never waits.

 The caller sees to it:
 `transfers` has `count` handles, and `ended` room for as many completions.
 */
penstock_status penstock_poll_many(penstock_engine engine,
                                   const penstock_transfer *transfers,
                                   size_t count,
                                   penstock_completion *ended,
                                   size_t *ended_count);

/*
 Ends a transfer now, and answers by the timeout whether anything of it can still touch memory; `penstock_poll` may find it pending for a moment more. Any thread; an inline engine's own.

 The caller sees to it:
 `answer` points to a struct whose `size` is set.
 */
penstock_status penstock_cancel(penstock_transfer transfer,
                                uint64_t timeout_ms,
                                penstock_cancel_answer *answer);

/*
 Bytes that a transfer has moved so far. Any thread. Never waits.

 The caller sees to it:
 Pointers as their types say.
 */
penstock_status penstock_bytes_moved(penstock_transfer transfer, uint64_t *bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PENSTOCK_H */
