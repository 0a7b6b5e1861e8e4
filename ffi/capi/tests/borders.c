/*
 * Every call that writes into memory of the caller's, with arrays and structs of exactly the size that is said, on the heap: an address
 * sanitizer sees a byte beside them.
 */
#define _GNU_SOURCE
#include <penstock.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect(int is_so, const char *what, int line)
{
    if (is_so)
        return;
    penstock_error error = {.size = sizeof error};
    penstock_last_error(&error);
    fprintf(stderr, "borders, line %d: %s: %s\n", line, what, error.text);
    exit(1);
}
#define EXPECT(what) expect(what, #what, __LINE__)

/* A text call with every capacity up to more than it needs. */
#define TEXT(call, ...)                                                                                          \
    do {                                                                                                         \
        size_t length = 0;                                                                                       \
        EXPECT(call(__VA_ARGS__, NULL, 0, &length) == PENSTOCK_TRUNCATED);                                       \
        for (size_t capacity = 1; capacity < length + 3; capacity++) {                                           \
            char *text = malloc(capacity);                                                                       \
            penstock_status status = call(__VA_ARGS__, text, capacity, &length);                                 \
            EXPECT(status == (capacity > length ? PENSTOCK_OK : PENSTOCK_TRUNCATED) && strlen(text) < capacity); \
            free(text);                                                                                          \
        }                                                                                                        \
    } while (0)

/* A list call with too little room, and with what it takes. */
#define LIST(type, call, ...)                                                                       \
    do {                                                                                            \
        size_t count = 0;                                                                           \
        EXPECT(call(__VA_ARGS__, NULL, 0, &count) <= PENSTOCK_TRUNCATED && count > 0);              \
        for (size_t capacity = 1; capacity < count + 2; capacity++) {                               \
            type *list = calloc(capacity, sizeof(type));                                            \
            size_t all = 0;                                                                         \
            penstock_status status = call(__VA_ARGS__, list, capacity, &all);                       \
            EXPECT(status == (capacity < count ? PENSTOCK_TRUNCATED : PENSTOCK_OK) && all == count); \
            free(list);                                                                             \
        }                                                                                           \
    } while (0)

/* A struct call with every size from the size field to the whole, as older releases had them. */
#define STRUCT(type, ok, call, ...)                                        \
    do {                                                                   \
        for (size_t size = sizeof(size_t); size <= sizeof(type); size++) { \
            type *older = calloc(1, size);                                 \
            memcpy(older, &size, sizeof size);                             \
            EXPECT(call(__VA_ARGS__, older) == ok);                        \
            free(older);                                                   \
        }                                                                  \
    } while (0)

static penstock_status last_error(int unused, penstock_error *error)
{
    (void)unused;
    return penstock_last_error(error);
}

static void on_log(void *user, uint32_t level, const char *source, const char *text)
{
    size_t *lines = user;
    __atomic_fetch_add(lines, level >= PENSTOCK_LOG_ERROR && strlen(source) > 0 && strlen(text) > 0, __ATOMIC_RELAXED);
}

int main(void)
{
    size_t *lines = calloc(1, sizeof *lines);
    EXPECT(penstock_log(PENSTOCK_LOG_TRACE, on_log, lines) == PENSTOCK_OK);
    EXPECT(penstock_log(PENSTOCK_LOG_TRACE + 1, on_log, lines) == PENSTOCK_INVALID_ARGUMENT);
    char folder[] = "/tmp/penstock-borders-XXXXXX", yaml[256];
    EXPECT(mkdtemp(folder) != NULL);
    snprintf(yaml, sizeof yaml, "engine: {directory: %s}\ntransports: {allow: [local, tcp]}\nsession: {listen: [\"127.0.0.1:0\"]}\n",
             folder);
    penstock_engine_options options = {.size = sizeof options, .name = "borders", .config_yaml = yaml};
    penstock_engine engine;
    EXPECT(penstock_engine_start(&options, &engine) == PENSTOCK_OK);
    penstock_pool_options kv = {.size = sizeof kv, .bytes = 1 << 20, .block_bytes = 4096, .label = "kv", .rights = 3};
    penstock_pool pool;
    EXPECT(penstock_pool_create(engine, &kv, &pool) == PENSTOCK_OK);
    size_t length = 0;
    EXPECT(penstock_engine_descriptor(engine, NULL, 0, &length) == PENSTOCK_TRUNCATED);
    char *descriptor = malloc(length);
    EXPECT(penstock_engine_descriptor(engine, descriptor, length, &length) == PENSTOCK_OK);
    penstock_peer peer;
    EXPECT(penstock_connect(engine, descriptor, length, 10000, &peer) == PENSTOCK_OK);
    free(descriptor);
    penstock_remote_region remote;
    EXPECT(penstock_peer_region(peer, "kv", 10000, &remote) == PENSTOCK_OK);

    TEXT(penstock_engine_name, engine);
    TEXT(penstock_engine_addresses, engine);
    TEXT(penstock_peer_name, peer);
    TEXT(penstock_peer_transport, peer);
    TEXT(penstock_peer_path, peer);
    LIST(unsigned char, penstock_engine_descriptor, engine);
    LIST(penstock_peer, penstock_peers, engine);
    LIST(penstock_remote_region, penstock_peer_regions, peer);
    penstock_blocks blocks;
    EXPECT(penstock_pool_take(pool, 5, 0, &blocks) == PENSTOCK_OK);
    LIST(uint32_t, penstock_blocks_indices, blocks);
    STRUCT(penstock_statistics, PENSTOCK_OK, penstock_engine_statistics, engine);
    STRUCT(penstock_packet_statistics, PENSTOCK_OK, penstock_engine_packet_statistics, engine);
    STRUCT(penstock_packet_statistics, PENSTOCK_OK, penstock_peer_packet_statistics, peer);
    STRUCT(penstock_region_info, PENSTOCK_OK, penstock_region_look, pool);
    STRUCT(penstock_region_info, PENSTOCK_OK, penstock_remote_region_look, remote);
    EXPECT(penstock_arm(0) == PENSTOCK_BAD_HANDLE);
    STRUCT(penstock_error, PENSTOCK_OK, last_error, 0);

    /* Bytes of the caller's heap go to the pool and come back, by plans that end with its last byte. */
    size_t const many = 4096 + 24;
    unsigned char *memory = malloc(many);
    memset(memory, 0x5a, many);
    penstock_region mine;
    EXPECT(penstock_register(engine, memory, many, NULL, PENSTOCK_RIGHTS_NONE, &mine) == PENSTOCK_OK);
    penstock_entry *entries = malloc(2 * sizeof *entries);
    penstock_region_info info = {.size = sizeof info};
    EXPECT(penstock_region_look(pool, &info) == PENSTOCK_OK);
    entries[0] = (penstock_entry){(uintptr_t)memory, info.base, many - 1};
    entries[1] = (penstock_entry){(uintptr_t)memory + many - 1, info.base + many - 1, 1};
    penstock_transfer *transfers = malloc(2 * sizeof *transfers);
    for (uint32_t direction = PENSTOCK_WRITE; direction <= PENSTOCK_READ; direction++) {
        penstock_plan plan;
        EXPECT(penstock_plan_addresses(peer, direction, entries, 2, NULL, 0, &plan) == PENSTOCK_OK);
        char *payload = malloc(3);
        memcpy(payload, "abc", 3);
        penstock_submit_options how = {.size = sizeof how, .has_note = 1, .note = direction, .payload = payload, .payload_bytes = 3};
        EXPECT(penstock_submit(peer, plan, &how, &transfers[direction]) == PENSTOCK_OK);
        free(payload);
        EXPECT(penstock_wait(transfers[direction], 10000, NULL) == PENSTOCK_OK);
        STRUCT(penstock_result, PENSTOCK_OK, penstock_poll, transfers[direction]);
        EXPECT(penstock_release(plan) == PENSTOCK_OK);
    }
    size_t count = 0;
    penstock_completion *ended = malloc(2 * sizeof *ended);
    EXPECT(penstock_poll_many(engine, transfers, 2, ended, &count) == PENSTOCK_OK && count == 2 && ended[1].bytes == many);
    penstock_notification *note = malloc(sizeof *note);
    for (uint64_t which = 0; which < 2; which++) {
        penstock_batch batch;
        EXPECT(penstock_wait_notification(engine, 10000) == PENSTOCK_OK);
        EXPECT(penstock_notifications(engine, note, 1, &count, &batch) == PENSTOCK_OK && count == 1 && note->note == which);
        EXPECT(note->payload_bytes == 3 && memcmp(note->payload, "abc", 3) == 0 && penstock_release(batch) == PENSTOCK_OK);
    }
    EXPECT(penstock_deregister(mine, 10000, NULL) == PENSTOCK_OK);
    free(memory), free(entries), free(ended), free(note);
    uint64_t handles[] = {transfers[0], transfers[1], mine, blocks, remote, peer, pool};
    free(transfers);
    EXPECT(penstock_release_many(handles, sizeof handles / sizeof *handles) == PENSTOCK_OK);
    EXPECT(penstock_engine_close(engine, 10000, NULL, 0, &count) == PENSTOCK_OK && count == 0);

    /* Nobody is in the hook any more when it is taken away, so that what it uses can go. */
    EXPECT(*lines > 0);
    EXPECT(penstock_log(PENSTOCK_LOG_OFF, NULL, NULL) == PENSTOCK_OK);
    free(lines);
    rmdir(folder);
    printf("nothing beside\n");
    return 0;
}
