/*
 * lives ENGINES: starts and closes so many engines, each with memory, a peer and a transfer, one after another.
 * Memory and descriptors of this process are the same after a tenth of them and after all.
 */
#define _GNU_SOURCE
#include <penstock.h>

#include <dirent.h>
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
    fprintf(stderr, "lives: %s: %d, %s\n", what, status, error.text);
    exit(1);
}

static long descriptors_now(void)
{
    long count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* As few as there are within a fifth of a second: what a peer has passed is closed in a thread of its own, a moment later. */
static long descriptors(void)
{
    long fewest = descriptors_now();
    for (int look = 0; look < 100; look++) {
        usleep(2000);
        long count = descriptors_now();
        fewest = count < fewest ? count : fewest;
    }
    return fewest;
}

/* Kilobytes that are this process's alone. */
static long memory(void)
{
    char line[256];
    long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file) != NULL)
        sscanf(line, "RssAnon: %ld", &kilobytes);
    fclose(file);
    return kilobytes;
}

static void live(const char *yaml)
{
    penstock_engine_options options = {.size = sizeof options, .name = "lives", .config_yaml = yaml};
    penstock_engine engine;
    check(penstock_engine_start(&options, &engine), "start");
    penstock_pool_options kv = {.size = sizeof kv, .bytes = 1 << 16, .label = "kv", .rights = PENSTOCK_RIGHTS_WRITE};
    penstock_pool pool;
    check(penstock_pool_create(engine, &kv, &pool), "pool");
    char bytes[4096];
    size_t length;
    check(penstock_engine_descriptor(engine, bytes, sizeof bytes, &length), "descriptor");
    penstock_peer self;
    penstock_connecting connecting;
    check(penstock_connect_begin(engine, bytes, length, &connecting), "connect");
    penstock_status status;
    while ((status = penstock_connect_poll(connecting, &self)) == PENSTOCK_PENDING)
        check(penstock_progress(engine, NULL), "progress");
    check(status, "connect");
    penstock_remote_region remote;
    check(penstock_peer_region(self, "kv", 1000, &remote), "region");
    penstock_extent extent = {.local = 0, .remote = 4096, .bytes = 64};
    penstock_plan_options shape = {.size = sizeof shape, .extents = &extent, .extent_count = 1};
    penstock_plan plan;
    check(penstock_plan_create(pool, remote, &shape, &plan), "plan");
    penstock_transfer transfer;
    check(penstock_submit(self, plan, NULL, &transfer), "submit");
    check(penstock_wait(transfer, 1000, NULL), "wait");
    size_t quarantined;
    check(penstock_engine_close(engine, 1000, NULL, 0, &quarantined), "close");
    uint64_t handles[] = {pool, self, connecting, remote, plan, transfer};
    check(penstock_release_many(handles, sizeof handles / sizeof *handles), "release");
}

int main(int argc, char **argv)
{
    long engines = argc > 1 ? atol(argv[1]) : 10000;
    char folder[] = "/tmp/penstock-lives-XXXXXX", yaml[256];
    if (mkdtemp(folder) == NULL)
        return perror(folder), 1;
    snprintf(yaml, sizeof yaml, "engine: {directory: %s}\nworkers: {progress: inline}\ntransports: {allow: [local]}\n",
             folder);
    long descriptors_before = 0, memory_before = 0;
    for (long done = 0; done < engines; done++) {
        if (done == engines / 10)
            descriptors_before = descriptors();
        /* The heap takes its shape in the first half, by a megabyte or two. */
        if (done == engines / 2)
            memory_before = memory();
        live(yaml);
    }
    long more = memory() - memory_before, descriptors_after = descriptors();
    printf("%ld engines: %ld descriptors before and %ld after, %ld KiB more memory\n", engines, descriptors_before,
           descriptors_after, more);
    rmdir(folder);
    return descriptors_after != descriptors_before || more > 400;
}
