/*
 * device here: memory of a device, as PENSTOCK_CUDA_DRIVER has it, is registered, written to and read from, and what is none is refused.
 * device none: the same calls where no driver can be used.
 */
#define _GNU_SOURCE
#include <penstock.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (1 << 20)
#define TIMEOUT_MS 10000

static void expect(int is_so, const char *what, int line)
{
    if (is_so)
        return;
    penstock_error error = {.size = sizeof error};
    penstock_last_error(&error);
    fprintf(stderr, "device, line %d: %s: %s\n", line, what, error.text);
    exit(1);
}
#define EXPECT(what) expect(what, #what, __LINE__)

/* That a call was refused with this status, and in these words. */
static void refused(penstock_status status, penstock_status wanted, const char *words, int line)
{
    penstock_error error = {.size = sizeof error};
    penstock_last_error(&error);
    expect(status == wanted && strstr(error.text, words) != NULL, words, line);
}
#define REFUSED(status, wanted, words) refused(status, wanted, words, __LINE__)

/* A function of the driver, as programs find them. */
static void *driver(const char *name)
{
    static int (*find)(const char *, void **, int, uint64_t, int *);
    if (find == NULL) {
        void *library = dlopen(getenv("PENSTOCK_CUDA_DRIVER"), RTLD_NOW);
        EXPECT(library != NULL);
        *(void **)&find = dlsym(library, "cuGetProcAddress_v2");
    }
    void *place = NULL;
    int became = 0;
    EXPECT(find(name, &place, 12000, 0, &became) == 0 && place != NULL);
    return place;
}

/* Device memory of the program's own. */
static uint64_t allocate(void)
{
    int (*init)(unsigned) = driver("cuInit"), (*retain)(void **, int) = driver("cuDevicePrimaryCtxRetain");
    int (*push)(void *) = driver("cuCtxPushCurrent"), (*alloc)(uint64_t *, size_t) = driver("cuMemAlloc");
    void *context;
    uint64_t address;
    EXPECT(init(0) == 0 && retain(&context, 0) == 0 && push(context) == 0 && alloc(&address, BYTES) == 0);
    return address;
}

static penstock_engine start(const char *name, const char *folder)
{
    char yaml[256];
    snprintf(yaml, sizeof yaml, "engine: {directory: %s}\ntransports: {allow: [local]}\n", folder);
    penstock_engine_options options = {.size = sizeof options, .name = name, .config_yaml = yaml};
    penstock_engine engine;
    EXPECT(penstock_engine_start(&options, &engine) == PENSTOCK_OK);
    return engine;
}

/* Ends an engine, of whose memory nothing is touched any more. */
static void end(penstock_engine engine)
{
    size_t count;
    EXPECT(penstock_engine_close(engine, TIMEOUT_MS, NULL, 0, &count) == PENSTOCK_OK && count == 0);
}

static penstock_peer connect_to(penstock_engine engine, penstock_engine other)
{
    char descriptor[4096];
    size_t length;
    EXPECT(penstock_engine_descriptor(other, descriptor, sizeof descriptor, &length) == PENSTOCK_OK);
    penstock_peer peer;
    EXPECT(penstock_connect(engine, descriptor, length, TIMEOUT_MS, &peer) == PENSTOCK_OK);
    return peer;
}

/* Moves bytes between a region and one of the peer's. */
static void move(penstock_peer peer, uint32_t direction, penstock_region local, penstock_remote_region remote, penstock_extent extent)
{
    penstock_plan_options shape = {.size = sizeof shape, .direction = direction, .extents = &extent, .extent_count = 1};
    penstock_plan plan;
    EXPECT(penstock_plan_create(local, remote, &shape, &plan) == PENSTOCK_OK);
    penstock_transfer transfer;
    EXPECT(penstock_submit(peer, plan, NULL, &transfer) == PENSTOCK_OK);
    EXPECT(penstock_wait(transfer, TIMEOUT_MS, NULL) == PENSTOCK_OK);
    EXPECT(penstock_release(plan) == PENSTOCK_OK && penstock_release(transfer) == PENSTOCK_OK);
}

static unsigned char pattern(size_t at)
{
    return (unsigned char)(at ^ at >> 8 ^ at >> 16);
}

/* A pool of twice as many bytes as the device memory has, the first half filled; its bytes are at the answer. */
static unsigned char *pool_of(penstock_engine engine, penstock_pool *pool)
{
    penstock_pool_options options = {.size = sizeof options, .bytes = 2 * BYTES, .label = "host", .rights = 3};
    penstock_region_info info = {.size = sizeof info};
    EXPECT(penstock_pool_create(engine, &options, pool) == PENSTOCK_OK);
    EXPECT(penstock_region_look(*pool, &info) == PENSTOCK_OK);
    unsigned char *bytes = (unsigned char *)(uintptr_t)info.base;
    for (size_t at = 0; at < BYTES; at++)
        bytes[at] = pattern(at);
    return bytes;
}

/* Bytes go when the stream that makes them has made them, and not before. */
static void behind_a_stream(uint64_t memory, penstock_peer peer, penstock_pool pool, unsigned char *bytes, penstock_remote_region remote)
{
    int (*make)(void **, unsigned) = driver("cuStreamCreate"), (*destroy)(void *) = driver("cuStreamDestroy");
    int (*pin)(void *, size_t, unsigned) = driver("cuMemHostRegister"), (*copy)(uint64_t, const void *, size_t, void *) = driver("cuMemcpyHtoDAsync");
    int (*hold)(void *, uint64_t, uint64_t, unsigned) = driver("cuStreamWaitValue64");
    void *stream, *gone;
    EXPECT(make(&stream, 1) == 0);
    unsigned char *made = mmap(NULL, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(made != MAP_FAILED && pin(made, BYTES + 4096, 0) == 0);
    memset(made, 7, BYTES);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(made + BYTES);
    EXPECT(hold(stream, (uintptr_t)word, 1, 0) == 0 && copy(memory, made, BYTES, stream) == 0);
    EXPECT(penstock_order_behind(memory, stream) == PENSTOCK_OK);

    penstock_extent back = {.local = BYTES, .remote = 0, .bytes = BYTES};
    penstock_plan_options shape = {.size = sizeof shape, .direction = PENSTOCK_READ, .extents = &back, .extent_count = 1};
    penstock_plan plan;
    penstock_transfer transfer;
    memset(bytes + BYTES, 0, BYTES);
    EXPECT(penstock_plan_create(pool, remote, &shape, &plan) == PENSTOCK_OK);
    EXPECT(penstock_submit(peer, plan, NULL, &transfer) == PENSTOCK_OK);
    EXPECT(penstock_wait(transfer, 50, NULL) == PENSTOCK_TIMED_OUT && bytes[BYTES] == 0 && bytes[2 * BYTES - 1] == 0);
    *word = 1;
    EXPECT(penstock_wait(transfer, TIMEOUT_MS, NULL) == PENSTOCK_OK && memcmp(bytes + BYTES, made, BYTES) == 0);
    EXPECT(penstock_release(plan) == PENSTOCK_OK && penstock_release(transfer) == PENSTOCK_OK);

    EXPECT(make(&gone, 1) == 0 && destroy(gone) == 0);
    REFUSED(penstock_order_behind(memory, gone), PENSTOCK_INVALID_ARGUMENT, "has no stream");
    REFUSED(penstock_order_behind((uintptr_t)&stream, stream), PENSTOCK_NOT_MAPPED, "knows no memory");
    EXPECT(penstock_order_behind(memory, NULL) == PENSTOCK_OK);
}

/* A child of a process that has started the driver cannot use it, and says what to do. */
static void in_a_child(uint64_t address, const char *folder)
{
    pid_t child = fork();
    if (child != 0) {
        int status;
        EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        return;
    }
    penstock_engine engine = start("child", folder);
    penstock_region region;
    penstock_status status = penstock_register_device(engine, address, BYTES, NULL, 3, &region);
    REFUSED(status, PENSTOCK_FORKED, "run a program anew");
    end(engine);
    _exit(0);
}

static void with_a_driver(const char *folder)
{
    uint64_t memory = allocate();
    penstock_engine here = start("here", folder), there = start("there", folder);
    penstock_pool pool;
    unsigned char *bytes = pool_of(here, &pool);
    penstock_region region, again;
    EXPECT(penstock_register_device(there, memory, BYTES, "device", 3, &region) == PENSTOCK_OK);
    EXPECT(penstock_register_device(there, memory, BYTES, "device", 3, &again) == PENSTOCK_OK);
    penstock_region_info info = {.size = sizeof info};
    EXPECT(penstock_region_look(region, &info) == PENSTOCK_OK && info.base == memory && info.bytes == BYTES && info.rights == 3);

    penstock_peer peer = connect_to(here, there);
    penstock_remote_region remote;
    EXPECT(penstock_peer_region(peer, "device", TIMEOUT_MS, &remote) == PENSTOCK_OK);
    penstock_extent out = {.local = 0, .remote = 0, .bytes = BYTES}, back = {.local = BYTES, .remote = 0, .bytes = BYTES};
    move(peer, PENSTOCK_WRITE, pool, remote, out);
    unsigned char *copy = malloc(BYTES);
    int (*copy_out)(void *, uint64_t, size_t) = driver("cuMemcpyDtoH");
    EXPECT(copy_out(copy, memory, BYTES) == 0 && memcmp(copy, bytes, BYTES) == 0);
    move(peer, PENSTOCK_READ, pool, remote, back);
    EXPECT(memcmp(bytes + BYTES, bytes, BYTES) == 0);
    behind_a_stream(memory, peer, pool, bytes, remote);

    /* Host memory that is no pool's goes through staging memory. */
    penstock_region own;
    EXPECT(penstock_register(here, copy, BYTES, NULL, 0, &own) == PENSTOCK_OK);
    memset(copy, 0x5a, BYTES);
    move(peer, PENSTOCK_WRITE, own, remote, out);
    memset(copy, 0, BYTES);
    EXPECT(copy_out(bytes + BYTES, memory, BYTES) == 0);
    for (size_t at = 0; at < BYTES; at++)
        EXPECT(bytes[BYTES + at] == 0x5a);

    penstock_region none;
    REFUSED(penstock_register_device(there, memory, 3 * BYTES, NULL, 3, &none), PENSTOCK_NOT_MAPPED, "leave their allocation");
    REFUSED(penstock_register_device(there, memory, UINT64_MAX, NULL, 3, &none), PENSTOCK_NOT_MAPPED, "leave their allocation");
    REFUSED(penstock_register_device(there, memory, 0, NULL, 3, &none), PENSTOCK_INVALID_ARGUMENT, "has no bytes");
    REFUSED(penstock_register_device(there, memory, 8, NULL, 4, &none), PENSTOCK_INVALID_ARGUMENT, "are no rights");
    REFUSED(penstock_register_device(there, memory, 8, NULL, 3, NULL), PENSTOCK_INVALID_ARGUMENT, "`region` is null");
    REFUSED(penstock_register_device(there, (uintptr_t)copy, 8, NULL, 3, &none), PENSTOCK_NOT_MAPPED, "or is host memory");
    /* The driver knows the pool since it has copied to it. */
    REFUSED(penstock_register_device(there, (uintptr_t)bytes, 8, NULL, 3, &none), PENSTOCK_INVALID_ARGUMENT, "is host memory");
    in_a_child(memory, folder);

    EXPECT(penstock_deregister(own, TIMEOUT_MS, NULL) == PENSTOCK_OK);
    EXPECT(penstock_deregister(region, TIMEOUT_MS, NULL) == PENSTOCK_STILL_REGISTERED);
    EXPECT(penstock_deregister(again, TIMEOUT_MS, NULL) == PENSTOCK_OK);
    int (*release)(uint64_t) = driver("cuMemFree");
    EXPECT(release(memory) == 0);
    REFUSED(penstock_register_device(there, memory, BYTES, NULL, 3, &none), PENSTOCK_NOT_MAPPED, "it was freed");
    uint64_t handles[] = {pool, region, again, own, remote, peer};
    EXPECT(penstock_release_many(handles, sizeof handles / sizeof *handles) == PENSTOCK_OK);
    end(here);
    end(there);
    free(copy);
}

/* Everything else works. */
static void without_a_driver(const char *folder)
{
    penstock_engine engine = start("alone", folder);
    penstock_pool pool;
    unsigned char *bytes = pool_of(engine, &pool);
    penstock_region region;
    for (int times = 0; times < 2; times++) {
        penstock_status status = penstock_register_device(engine, (uintptr_t)bytes, BYTES, NULL, 3, &region);
        REFUSED(status, PENSTOCK_NO_DEVICE, getenv("WORDS"));
        REFUSED(penstock_order_behind((uintptr_t)bytes, NULL), PENSTOCK_NO_DEVICE, getenv("WORDS"));
    }
    penstock_peer peer = connect_to(engine, engine);
    penstock_remote_region remote;
    EXPECT(penstock_peer_region(peer, "host", TIMEOUT_MS, &remote) == PENSTOCK_OK);
    move(peer, PENSTOCK_WRITE, pool, remote, (penstock_extent){.local = 0, .remote = BYTES, .bytes = BYTES});
    EXPECT(memcmp(bytes + BYTES, bytes, BYTES) == 0);
    uint64_t handles[] = {pool, remote, peer};
    EXPECT(penstock_release_many(handles, sizeof handles / sizeof *handles) == PENSTOCK_OK);
    end(engine);
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/penstock-device-XXXXXX";
    EXPECT(argc == 2 && mkdtemp(folder) != NULL);
    if (strcmp(argv[1], "here") == 0)
        with_a_driver(folder);
    else
        without_a_driver(folder);
    rmdir(folder);
    printf("device memory, %s\n", argv[1]);
    return 0;
}
