/*
 * Two processes exchange blocks: one owns memory, the other writes into it and tells it so.
 *
 *   pair shm        over memory that both map
 *   pair tcp        over the loopback, as between hosts
 *
 * The program starts itself once more as the owner, which says where it is on its standard output.
 */
#define _GNU_SOURCE
#include <penstock.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK (64 * 1024)
#define BLOCKS 64
#define TIMEOUT_MS 10000

/* What failed, in the words of the library, and out. */
static void check(penstock_status status, const char *what)
{
    if (status == PENSTOCK_OK)
        return;
    penstock_error error = {.size = sizeof error};
    penstock_last_error(&error);
    fprintf(stderr, "%s: %d, %s\n  %s\n", what, status, penstock_message(status), error.text);
    exit(1);
}

static void expect(int is_so, const char *what)
{
    if (is_so)
        return;
    fprintf(stderr, "this is not so: %s\n", what);
    exit(1);
}

static penstock_engine start(const char *name, const char *transport, const char *folder)
{
    char yaml[512];
    snprintf(yaml, sizeof yaml, "engine:\n  directory: %s\ntransports:\n  allow: [%s]\n%s", folder, transport,
             strcmp(transport, "tcp") == 0 ? "session:\n  listen: [\"127.0.0.1:0\"]\n" : "");
    penstock_engine_options options = {.size = sizeof options, .name = name, .config_yaml = yaml};
    penstock_engine engine;
    check(penstock_engine_start(&options, &engine), "start");
    return engine;
}

/* Sleeps on the engine's event fd until something may have happened. */
static void sleep_on(penstock_engine engine)
{
    int fd;
    check(penstock_event_fd(engine, &fd), "event fd");
    penstock_status armed = penstock_arm(engine);
    if (armed == PENSTOCK_BUSY)
        return;
    check(armed, "arm");
    struct pollfd waits = {.fd = fd, .events = POLLIN};
    expect(poll(&waits, 1, TIMEOUT_MS) == 1, "something happens in ten seconds");
}

/* Offers a pool, waits for what is written there, looks at it, and goes on until it is killed. */
static int owner(const char *transport, const char *folder)
{
    penstock_engine engine = start("owner", transport, folder);
    penstock_pool_options options = {.size = sizeof options,
                                     .bytes = (uint64_t)BLOCK * BLOCKS,
                                     .block_bytes = BLOCK,
                                     .label = "kv",
                                     .rights = PENSTOCK_RIGHTS_READ | PENSTOCK_RIGHTS_WRITE};
    penstock_pool pool;
    check(penstock_pool_create(engine, &options, &pool), "pool");
    penstock_counter counter;
    check(penstock_counter_create(pool, "layers", &counter), "counter");

    unsigned char descriptor[4096];
    size_t bytes;
    check(penstock_engine_descriptor(engine, descriptor, sizeof descriptor, &bytes), "descriptor");
    expect(fwrite(descriptor, 1, bytes, stdout) == bytes && fclose(stdout) == 0, "the descriptor is written");

    penstock_notification note;
    penstock_batch batch;
    size_t count = 0;
    while (check(penstock_notifications(engine, &note, 1, &count, &batch), "notifications"), count == 0)
        sleep_on(engine);
    expect(note.note == 7 && note.payload_bytes == 5 && memcmp(note.payload, "layer", 5) == 0, "it says layer");
    expect(strcmp(note.peer, "user") == 0, "the user said it");
    check(penstock_release(batch), "release");
    check(penstock_counter_wait(counter, 1, TIMEOUT_MS), "counter");

    penstock_region_info info = {.size = sizeof info};
    check(penstock_region_look(pool, &info), "region");
    const unsigned char *base = (const unsigned char *)(uintptr_t)info.base;
    for (size_t block = 0; block < BLOCKS; block++)
        for (size_t at = 0; at < BLOCK; at++)
            expect(base[block * BLOCK + at] == (unsigned char)(BLOCKS - 1 - block), "the blocks are reversed");

    /* All is well: the user hears it, and ends this process. */
    penstock_peer peer;
    check(penstock_peers(engine, &peer, 1, &count), "peers");
    penstock_submit_options how = {.size = sizeof how, .has_note = 1, .note = 8};
    penstock_transfer transfer;
    check(penstock_notify(peer, &how, &transfer), "notify");
    check(penstock_wait(transfer, TIMEOUT_MS, NULL), "wait");
    pause();
    return 1;
}

static int user(const char *transport, const char *folder, int from_owner, pid_t owner_pid)
{
    unsigned char descriptor[4096];
    size_t bytes = 0;
    for (ssize_t got; (got = read(from_owner, descriptor + bytes, sizeof descriptor - bytes)) > 0;)
        bytes += (size_t)got;

    penstock_engine engine = start("user", transport, folder);
    penstock_peer peer;
    check(penstock_connect(engine, descriptor, bytes, TIMEOUT_MS, &peer), "connect");
    char name[64];
    check(penstock_peer_transport(peer, name, sizeof name, NULL), "transport");
    expect(strcmp(name, transport) == 0, "it is the transport that was asked for");

    /* Memory of malloc, and a plan by addresses: block i goes to where block BLOCKS - 1 - i is. */
    unsigned char *memory = malloc((size_t)BLOCK * BLOCKS);
    expect(memory != NULL, "there is memory");
    for (size_t block = 0; block < BLOCKS; block++)
        memset(memory + block * BLOCK, (int)block, BLOCK);
    penstock_region region;
    check(penstock_register(engine, memory, (size_t)BLOCK * BLOCKS, "mine", PENSTOCK_RIGHTS_NONE, &region), "register");
    penstock_remote_region kv;
    check(penstock_peer_region(peer, "kv", TIMEOUT_MS, &kv), "region kv");
    penstock_region_info info = {.size = sizeof info};
    check(penstock_remote_region_look(kv, &info), "look");
    penstock_entry entries[BLOCKS];
    for (size_t block = 0; block < BLOCKS; block++)
        entries[block] = (penstock_entry){.local = (uintptr_t)(memory + block * BLOCK),
                                          .remote = info.base + (BLOCKS - 1 - block) * BLOCK,
                                          .bytes = BLOCK};
    penstock_plan plan;
    check(penstock_plan_addresses(peer, PENSTOCK_WRITE, entries, BLOCKS, NULL, 0, &plan), "plan");

    penstock_remote_counter counter;
    check(penstock_peer_counter(peer, "layers", TIMEOUT_MS, &counter), "counter");
    penstock_submit_options how = {.size = sizeof how,
                                   .has_note = 1,
                                   .note = 7,
                                   .payload = "layer",
                                   .payload_bytes = 5,
                                   .counter = counter};
    penstock_transfer transfer;
    check(penstock_submit(peer, plan, &how, &transfer), "submit");
    penstock_result result = {.size = sizeof result};
    penstock_status ended;
    while ((ended = penstock_poll(transfer, &result)) == PENSTOCK_PENDING)
        sleep_on(engine);
    check(ended, "write");
    expect(result.bytes == (uint64_t)BLOCK * BLOCKS && result.notified == PENSTOCK_NOTIFIED_YES, "all of it, and told");
    check(penstock_release(transfer), "release");
    expect(penstock_poll(transfer, NULL) == PENSTOCK_BAD_HANDLE, "a released handle is no handle");

    /* The same blocks, read back through a plan by numbers. */
    check(penstock_wait_notification(engine, TIMEOUT_MS), "the owner's word");
    penstock_block_pair pairs[BLOCKS];
    for (uint32_t block = 0; block < BLOCKS; block++)
        pairs[block] = (penstock_block_pair){.local = block, .remote = block};
    penstock_plan_options shape = {.size = sizeof shape,
                                   .direction = PENSTOCK_READ,
                                   .blocks = pairs,
                                   .block_count = BLOCKS,
                                   .block_bytes = BLOCK};
    penstock_plan read_back;
    check(penstock_plan_create(region, kv, &shape, &read_back), "plan to read");
    check(penstock_submit(peer, read_back, NULL, &transfer), "submit");
    check(penstock_wait(transfer, TIMEOUT_MS, &result), "read");
    expect(memory[0] == BLOCKS - 1 && memory[(size_t)BLOCK * BLOCKS - 1] == 0, "they are reversed here, too");

    /* A transfer that is given up says what may still be touched. */
    penstock_transfer another;
    check(penstock_submit(peer, plan, NULL, &another), "submit");
    penstock_cancel_answer answer = {.size = sizeof answer};
    check(penstock_cancel(another, TIMEOUT_MS, &answer), "cancel");
    expect(answer.local == PENSTOCK_MEMORY_QUIESCED && answer.remote == PENSTOCK_MEMORY_QUIESCED, "nothing is touched");
    penstock_transfer both[2] = {transfer, another};
    check(penstock_release_many(both, 2), "release both");

    /* The owner is killed: what goes to it ends in words, and memory comes back. */
    kill(owner_pid, SIGKILL);
    waitpid(owner_pid, NULL, 0);
    penstock_status state;
    while ((state = penstock_peer_state(peer)) == PENSTOCK_OK)
        usleep(1000);
    expect(state == PENSTOCK_PEER_LOST, "the peer is lost");
    expect(penstock_submit(peer, plan, NULL, &transfer) == PENSTOCK_PEER_LOST, "and takes nothing");
    penstock_error error = {.size = sizeof error};
    penstock_last_error(&error);
    expect(strcmp(error.peer, "owner") == 0 && strlen(error.remedy) > 0, "the error says who, and what to do");
    check(penstock_deregister(region, TIMEOUT_MS, NULL), "deregister");
    free(memory);
    size_t quarantined;
    check(penstock_engine_close(engine, TIMEOUT_MS, NULL, 0, &quarantined), "close");
    expect(quarantined == 0, "all memory is free");
    expect(penstock_progress(engine, NULL) == PENSTOCK_BAD_HANDLE, "a closed engine is no engine");
    printf("%s: %u blocks of %u bytes, there and back\n", transport, BLOCKS, BLOCK);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "owner") == 0)
        return owner(argv[2], argv[3]);
    const char *transport = argc > 1 ? argv[1] : "shm";
    char folder[] = "/tmp/penstock-pair-XXXXXX";
    expect(mkdtemp(folder) != NULL && penstock_abi() == PENSTOCK_ABI, "there is a folder, and the library is this header's");
    int ends[2];
    expect(pipe(ends) == 0, "there is a pipe");
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* It does not outlive this process, however that ends. */
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", argv[0], "owner", transport, folder, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    int failed = user(transport, folder, ends[0], child);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return failed || system(command) != 0;
}
