/*
 * hot_path CASE ROUNDS: the case "one-local" of the hot path, through the C library.
 *
 * Two inline engines of one process: a plan of eight bytes is submitted, looked at and released, again and again. Whoever
 * counts instructions counts inside counted_rounds, and loads the library before: calls are bound at the start.
 */
#include <penstock.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(penstock_status status, const char *what)
{
    if (status == PENSTOCK_OK)
        return;
    penstock_error error = {.size = sizeof error};
    penstock_last_error(&error);
    fprintf(stderr, "hot_path: %s: %s\n", what, error.text);
    exit(1);
}

static penstock_engine start(const char *name, const char *folder)
{
    char yaml[256];
    snprintf(yaml, sizeof yaml, "engine: {directory: %s}\nworkers: {progress: inline}\ntransports: {allow: [local]}\n",
             folder);
    penstock_engine_options options = {.size = sizeof options, .name = name, .config_yaml = yaml};
    penstock_engine engine;
    check(penstock_engine_start(&options, &engine), "start");
    return engine;
}

__attribute__((noinline)) static void counted_rounds(penstock_peer peer, penstock_plan plan, long rounds)
{
    for (long round = 0; round < rounds; round++) {
        penstock_transfer transfer;
        if (penstock_submit(peer, plan, NULL, &transfer) != PENSTOCK_OK || penstock_poll(transfer, NULL) != PENSTOCK_OK)
            check(PENSTOCK_PENDING, "a transfer of eight bytes ends at once");
        penstock_release(transfer);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], "one-local") != 0)
        return fprintf(stderr, "usage: hot_path one-local ROUNDS\n"), 2;
    char folder[] = "/tmp/penstock-hot-path-XXXXXX";
    if (mkdtemp(folder) == NULL)
        return perror(folder), 1;
    penstock_engine here = start("here", folder), there = start("there", folder);
    penstock_pool_options options = {.size = sizeof options, .bytes = 1 << 20, .label = "kv", .rights = PENSTOCK_RIGHTS_WRITE};
    penstock_pool from, to;
    check(penstock_pool_create(here, &options, &from), "pool");
    check(penstock_pool_create(there, &options, &to), "pool");
    char descriptor[4096];
    size_t bytes;
    check(penstock_engine_descriptor(there, descriptor, sizeof descriptor, &bytes), "descriptor");

    /* Both are turned by this thread, so neither may be waited for. */
    penstock_connecting connecting;
    check(penstock_connect_begin(here, descriptor, bytes, &connecting), "connect");
    penstock_peer peer;
    penstock_status status;
    while ((status = penstock_connect_poll(connecting, &peer)) == PENSTOCK_PENDING) {
        check(penstock_progress(here, NULL), "progress");
        check(penstock_progress(there, NULL), "progress");
    }
    check(status, "connect");
    penstock_remote_region remote;
    while ((status = penstock_peer_region(peer, "kv", 0, &remote)) != PENSTOCK_OK) {
        check(penstock_progress(here, NULL), "progress");
        check(penstock_progress(there, NULL), "progress");
    }
    penstock_extent eight = {.local = 0, .remote = 64, .bytes = 8};
    penstock_plan_options shape = {.size = sizeof shape, .extents = &eight, .extent_count = 1};
    penstock_plan plan;
    check(penstock_plan_create(from, remote, &shape, &plan), "plan");

    for (int round = 0; round < 2; round++) {
        penstock_transfer transfer;
        check(penstock_submit(peer, plan, NULL, &transfer), "submit");
        check(penstock_wait(transfer, 1000, NULL), "wait");
        check(penstock_release(transfer), "release");
    }
    counted_rounds(peer, plan, atol(argv[2]));
    printf("c 1\n"); /* What the other measured program says: its kernels, and blocks of a round. */
    check(penstock_release(here), "release");
    check(penstock_release(there), "release");
    return rmdir(folder);
}
