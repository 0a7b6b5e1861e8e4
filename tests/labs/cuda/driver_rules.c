/* driver_rules: what does a real CUDA driver do?
 *
 * One program, no CUDA headers: the few types and functions are declared here
 * and the driver is opened at run time. Each rule is an experiment and prints
 * one or more JSON objects, one on a line:
 *   {"rule": "short-name", "asked": "plain sentence", "got": {...}}
 *
 * Each rule runs in a child of its own, forked before anything has touched the
 * driver (this process never does), under a deadline. A rule that dies or hangs
 * says so, with the step it was at, and the rest goes on.
 * Roles in rules of several processes ("workers") are forked before init too
 * and take commands over socket pairs.
 *
 * Figures: {"median": m, "min": m, "max": m, "n": count}; the unit is the end of
 * the key (_ns, _us, _ms, _gbps; 1 gb = 1e9 bytes).
 *
 *   cc -O2 -std=c11 -Wall -Wextra -pthread driver_rules.c -o driver_rules -ldl
 *   ./driver_rules              all rules
 *   ./driver_rules NAME...      rules whose name begins with NAME
 *   ./driver_rules --list
 * DRIVER_RULES_LIB: another library than libcuda.so.1.
 * DRIVER_RULES_SECONDS: no rule starts after this many seconds (150).
 * Exit: 0 done, 3 no driver library, 4 no device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
#define KIB 1024ul
#define MIB (1024ul * 1024ul)
#define GIB (1024ul * MIB)
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* ---- the driver's types, as far as needed ---- */

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUstream, *CUevent, *CUpool, *CUgraph, *CUmodule, *CUfunction, *CUarray;
typedef unsigned long long CUallochandle;
typedef struct { char bytes[16]; } CUuuid;
typedef struct { char bytes[64]; } CUipc; /* memory and event handles, pool export data, fabric handle */
typedef void (*CUhostfn)(void *);

typedef struct { int type; int id; } Location;
typedef struct { Location location; int flags; } AccessDesc;
typedef struct {
    int type;
    int handle_types;
    Location location;
    void *win32;
    struct {
        unsigned char compression, gpu_direct_rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} AllocProp;
typedef struct {
    int alloc_type;
    int handle_types;
    Location location;
    void *win32;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} PoolProps;
typedef struct {
    int src_access_order;
    Location src_hint, dst_hint;
    unsigned int flags;
} CopyAttr;
typedef struct {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    CUarray src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    CUarray dst_array;
    size_t dst_pitch;
    size_t width, height;
} Copy2D;
typedef struct {
    size_t src_x, src_y, src_z, src_lod;
    int src_type;
    const void *src_host;
    CUdeviceptr src_device;
    CUarray src_array;
    void *reserved0;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    CUarray dst_array;
    void *reserved1;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
} Copy3D;

_Static_assert(sizeof(AccessDesc) == 12, "AccessDesc");
_Static_assert(sizeof(AllocProp) == 32, "AllocProp");
_Static_assert(sizeof(PoolProps) == 88, "PoolProps");
_Static_assert(sizeof(CopyAttr) == 24, "CopyAttr");
_Static_assert(sizeof(Copy2D) == 128, "Copy2D");
_Static_assert(sizeof(Copy3D) == 200, "Copy3D");

enum { LOC_DEVICE = 1, LOC_HOST = 2 };
enum { HANDLE_NONE = 0, HANDLE_FD = 1, HANDLE_FABRIC = 8 };
enum { PROT_R = 1, PROT_RW = 3 };
enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };
enum { HOST_PORTABLE = 1, HOST_DEVICEMAP = 2, HOST_READ_ONLY = 8 };
enum { WAIT_GEQ = 0 };
enum { EVENT_NO_TIMING = 2, EVENT_IPC = 4 };
enum { STREAM_NON_BLOCKING = 1 };
enum { A_CONTEXT = 1, A_MEMORY_TYPE = 2, A_SYNC_MEMOPS = 6, A_BUFFER_ID = 7, A_RANGE_START = 11, A_RANGE_SIZE = 12 };
enum { NOT_READY = 600 };
/* Codes of this program, not of the driver. */
enum { RC_MISSING = -1, RC_NO_ANSWER = -1000, RC_DIED = -2000 };

/* ---- its functions: field, base name, version asked of cuGetProcAddress, exported name ---- */

#define FUNCS(X) \
    X(Init, "cuInit", 2000, "cuInit", (unsigned)) \
    X(DriverGetVersion, "cuDriverGetVersion", 2020, "cuDriverGetVersion", (int *)) \
    X(DeviceGet, "cuDeviceGet", 2000, "cuDeviceGet", (CUdevice *, int)) \
    X(DeviceGetCount, "cuDeviceGetCount", 2000, "cuDeviceGetCount", (int *)) \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute", (int *, int, CUdevice)) \
    X(DeviceGetUuid, "cuDeviceGetUuid", 11040, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice)) \
    X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, "cuDeviceGetPCIBusId", (char *, int, CUdevice)) \
    X(DeviceGetName, "cuDeviceGetName", 2000, "cuDeviceGetName", (char *, int, CUdevice)) \
    X(DeviceTotalMem, "cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2", (size_t *, CUdevice)) \
    X(PrimaryRetain, "cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
    X(PrimaryRelease, "cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2", (CUdevice)) \
    X(PrimaryGetState, "cuDevicePrimaryCtxGetState", 7000, "cuDevicePrimaryCtxGetState", (CUdevice, unsigned *, int *)) \
    X(CtxPush, "cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2", (CUcontext)) \
    X(CtxPop, "cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2", (CUcontext *)) \
    X(CtxSetCurrent, "cuCtxSetCurrent", 4000, "cuCtxSetCurrent", (CUcontext)) \
    X(CtxGetCurrent, "cuCtxGetCurrent", 4000, "cuCtxGetCurrent", (CUcontext *)) \
    X(CtxGetDevice, "cuCtxGetDevice", 2000, "cuCtxGetDevice", (CUdevice *)) \
    X(CtxCreate, "cuCtxCreate", 3020, "cuCtxCreate_v2", (CUcontext *, unsigned, CUdevice)) \
    X(CtxDestroy, "cuCtxDestroy", 4000, "cuCtxDestroy_v2", (CUcontext)) \
    X(CtxSynchronize, "cuCtxSynchronize", 2000, "cuCtxSynchronize", (void)) \
    X(MemGetInfo, "cuMemGetInfo", 3020, "cuMemGetInfo_v2", (size_t *, size_t *)) \
    X(MemAlloc, "cuMemAlloc", 3020, "cuMemAlloc_v2", (CUdeviceptr *, size_t)) \
    X(MemFree, "cuMemFree", 3020, "cuMemFree_v2", (CUdeviceptr)) \
    X(MemGetAddressRange, "cuMemGetAddressRange", 3020, "cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr)) \
    X(MemAllocManaged, "cuMemAllocManaged", 6000, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned)) \
    X(MemHostAlloc, "cuMemHostAlloc", 2020, "cuMemHostAlloc", (void **, size_t, unsigned)) \
    X(MemFreeHost, "cuMemFreeHost", 2000, "cuMemFreeHost", (void *)) \
    X(HostRegister, "cuMemHostRegister", 6050, "cuMemHostRegister_v2", (void *, size_t, unsigned)) \
    X(HostUnregister, "cuMemHostUnregister", 4000, "cuMemHostUnregister", (void *)) \
    X(HostGetDevicePointer, "cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2", (CUdeviceptr *, void *, unsigned)) \
    X(HostGetFlags, "cuMemHostGetFlags", 2030, "cuMemHostGetFlags", (unsigned *, void *)) \
    X(PointerGetAttribute, "cuPointerGetAttribute", 4000, "cuPointerGetAttribute", (void *, int, CUdeviceptr)) \
    X(PointerGetAttributes, "cuPointerGetAttributes", 7000, "cuPointerGetAttributes", (unsigned, int *, void **, CUdeviceptr)) \
    X(PointerSetAttribute, "cuPointerSetAttribute", 6000, "cuPointerSetAttribute", (const void *, int, CUdeviceptr)) \
    X(HtoDAsync, "cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream)) \
    X(DtoHAsync, "cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream)) \
    X(DtoDAsync, "cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(CopyAsync, "cuMemcpyAsync", 4000, "cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(CopyBatch, "cuMemcpyBatchAsync", 12080, "cuMemcpyBatchAsync", (CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CopyAttr *, size_t *, size_t, size_t *, CUstream)) \
    X(Copy2DAsync, "cuMemcpy2DAsync", 3020, "cuMemcpy2DAsync_v2", (const Copy2D *, CUstream)) \
    X(Copy3DAsync, "cuMemcpy3DAsync", 3020, "cuMemcpy3DAsync_v2", (const Copy3D *, CUstream)) \
    X(HtoD, "cuMemcpyHtoD", 3020, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t)) \
    X(DtoH, "cuMemcpyDtoH", 3020, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t)) \
    X(MemsetAsync, "cuMemsetD8Async", 3020, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(StreamCreate, "cuStreamCreate", 2000, "cuStreamCreate", (CUstream *, unsigned)) \
    X(StreamDestroy, "cuStreamDestroy", 4000, "cuStreamDestroy_v2", (CUstream)) \
    X(StreamQuery, "cuStreamQuery", 2000, "cuStreamQuery", (CUstream)) \
    X(StreamSync, "cuStreamSynchronize", 2000, "cuStreamSynchronize", (CUstream)) \
    X(StreamWaitEvent, "cuStreamWaitEvent", 3020, "cuStreamWaitEvent", (CUstream, CUevent, unsigned)) \
    X(WriteValue64, "cuStreamWriteValue64", 11070, "cuStreamWriteValue64_v2", (CUstream, CUdeviceptr, u64, unsigned)) \
    X(WaitValue64, "cuStreamWaitValue64", 11070, "cuStreamWaitValue64_v2", (CUstream, CUdeviceptr, u64, unsigned)) \
    X(EventCreate, "cuEventCreate", 2000, "cuEventCreate", (CUevent *, unsigned)) \
    X(EventDestroy, "cuEventDestroy", 4000, "cuEventDestroy_v2", (CUevent)) \
    X(EventRecord, "cuEventRecord", 2000, "cuEventRecord", (CUevent, CUstream)) \
    X(EventQuery, "cuEventQuery", 2000, "cuEventQuery", (CUevent)) \
    X(HostFunc, "cuLaunchHostFunc", 10000, "cuLaunchHostFunc", (CUstream, CUhostfn, void *)) \
    X(IpcGetMem, "cuIpcGetMemHandle", 4010, "cuIpcGetMemHandle", (CUipc *, CUdeviceptr)) \
    X(IpcOpenMem, "cuIpcOpenMemHandle", 11000, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipc, unsigned)) \
    X(IpcCloseMem, "cuIpcCloseMemHandle", 4010, "cuIpcCloseMemHandle", (CUdeviceptr)) \
    X(IpcGetEvent, "cuIpcGetEventHandle", 4010, "cuIpcGetEventHandle", (CUipc *, CUevent)) \
    X(IpcOpenEvent, "cuIpcOpenEventHandle", 4010, "cuIpcOpenEventHandle", (CUevent *, CUipc)) \
    X(AddressReserve, "cuMemAddressReserve", 10020, "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
    X(AddressFree, "cuMemAddressFree", 10020, "cuMemAddressFree", (CUdeviceptr, size_t)) \
    X(MemCreate, "cuMemCreate", 10020, "cuMemCreate", (CUallochandle *, size_t, const AllocProp *, unsigned long long)) \
    X(MemRelease, "cuMemRelease", 10020, "cuMemRelease", (CUallochandle)) \
    X(MemMap, "cuMemMap", 10020, "cuMemMap", (CUdeviceptr, size_t, size_t, CUallochandle, unsigned long long)) \
    X(MemUnmap, "cuMemUnmap", 10020, "cuMemUnmap", (CUdeviceptr, size_t)) \
    X(MemSetAccess, "cuMemSetAccess", 10020, "cuMemSetAccess", (CUdeviceptr, size_t, const AccessDesc *, size_t)) \
    X(ExportHandle, "cuMemExportToShareableHandle", 10020, "cuMemExportToShareableHandle", (void *, CUallochandle, int, unsigned long long)) \
    X(ImportHandle, "cuMemImportFromShareableHandle", 10020, "cuMemImportFromShareableHandle", (CUallochandle *, void *, int)) \
    X(Granularity, "cuMemGetAllocationGranularity", 10020, "cuMemGetAllocationGranularity", (size_t *, const AllocProp *, int)) \
    X(HandleProps, "cuMemGetAllocationPropertiesFromHandle", 10020, "cuMemGetAllocationPropertiesFromHandle", (AllocProp *, CUallochandle)) \
    X(RetainHandle, "cuMemRetainAllocationHandle", 11000, "cuMemRetainAllocationHandle", (CUallochandle *, void *)) \
    X(AllocAsync, "cuMemAllocAsync", 11020, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream)) \
    X(FreeAsync, "cuMemFreeAsync", 11020, "cuMemFreeAsync", (CUdeviceptr, CUstream)) \
    X(PoolCreate, "cuMemPoolCreate", 11020, "cuMemPoolCreate", (CUpool *, const PoolProps *)) \
    X(PoolDestroy, "cuMemPoolDestroy", 11020, "cuMemPoolDestroy", (CUpool)) \
    X(AllocFromPool, "cuMemAllocFromPoolAsync", 11020, "cuMemAllocFromPoolAsync", (CUdeviceptr *, size_t, CUpool, CUstream)) \
    X(PoolExport, "cuMemPoolExportToShareableHandle", 11020, "cuMemPoolExportToShareableHandle", (void *, CUpool, int, unsigned long long)) \
    X(PoolExportPtr, "cuMemPoolExportPointer", 11020, "cuMemPoolExportPointer", (CUipc *, CUdeviceptr)) \
    X(PoolImport, "cuMemPoolImportFromShareableHandle", 11020, "cuMemPoolImportFromShareableHandle", (CUpool *, void *, int, unsigned long long)) \
    X(PoolImportPtr, "cuMemPoolImportPointer", 11020, "cuMemPoolImportPointer", (CUdeviceptr *, CUpool, CUipc *)) \
    X(PoolSetAccess, "cuMemPoolSetAccess", 11020, "cuMemPoolSetAccess", (CUpool, const AccessDesc *, size_t)) \
    X(RangeHandle, "cuMemGetHandleForAddressRange", 11070, "cuMemGetHandleForAddressRange", (void *, CUdeviceptr, size_t, int, unsigned long long)) \
    X(FlushRdma, "cuFlushGPUDirectRDMAWrites", 11030, "cuFlushGPUDirectRDMAWrites", (int, int)) \
    X(GetErrorName, "cuGetErrorName", 6000, "cuGetErrorName", (int, const char **)) \
    X(CaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode", (int *)) \
    X(BeginCapture, "cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2", (CUstream, int)) \
    X(EndCapture, "cuStreamEndCapture", 10000, "cuStreamEndCapture", (CUstream, CUgraph *)) \
    X(GraphDestroy, "cuGraphDestroy", 10000, "cuGraphDestroy", (CUgraph)) \
    X(ModuleLoadData, "cuModuleLoadData", 2000, "cuModuleLoadData", (CUmodule *, const void *)) \
    X(ModuleGetFunction, "cuModuleGetFunction", 2000, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *)) \
    X(LaunchKernel, "cuLaunchKernel", 4000, "cuLaunchKernel", (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

#define FIELD(f, base, ver, sym, args) int (*f) args;
static struct { FUNCS(FIELD) } cu;
#undef FIELD

static struct { const char *base; int version; const char *sym; size_t at; int by_proc, by_dlsym, status; } table[] = {
#define ROW(f, base, ver, sym, args) {base, ver, sym, offsetof(__typeof__(cu), f), -99, 0, -1},
    FUNCS(ROW)
#undef ROW
};

/* Stands in for a symbol that the library lacks. Called with any arguments,
 * which the System V calling convention allows. */
static int missing(void) { return RC_MISSING; }

static const char *library(void)
{
    const char *p = getenv("DRIVER_RULES_LIB");
    return p && *p ? p : "libcuda.so.1";
}

static int load(void)
{
    static int loaded;
    if (loaded) return 0;
    void *lib = dlopen(library(), RTLD_NOW | RTLD_LOCAL);
    if (!lib) return -1;
    int (*get_proc)(const char *, void **, int, u64, int *) = NULL;
    *(void **)&get_proc = dlsym(lib, "cuGetProcAddress_v2");
    for (int i = 0; i < COUNT(table); i++) {
        void *p = NULL;
        if (get_proc) {
            int status = -1;
            table[i].by_proc = get_proc(table[i].base, &p, table[i].version, 0, &status);
            table[i].status = status;
            if (table[i].by_proc != 0) p = NULL;
        }
        void *q = dlsym(lib, table[i].sym);
        table[i].by_dlsym = q != NULL;
        if (!p) p = q;
        if (!p) *(int (**)(void))&p = missing;
        memcpy((char *)&cu + table[i].at, &p, sizeof p);
    }
    loaded = 1;
    return 0;
}

/* ---- small things ---- */

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static void sleep_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), 0};
    t.tv_nsec = (long)((ms - (double)t.tv_sec * 1e3) * 1e6);
    while (nanosleep(&t, &t) && errno == EINTR) {}
}
static void *anon(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}
static int memfd(size_t n)
{
    int fd = (int)syscall(SYS_memfd_create, "driver_rules", 1u);
    if (fd < 0 || ftruncate(fd, (off_t)n)) abort();
    return fd;
}
static void *map_fd(int fd, size_t n, int prot)
{
    void *p = mmap(NULL, n, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

/* ---- JSON: one line is built in `J`, which the watching process shares, so
 * that an unfinished line is not lost ---- */

#define LINE_MAX_BYTES (256 * 1024)
struct shared { char line[LINE_MAX_BYTES]; char step[256]; };
static struct shared *shared;
static char *J;
static size_t Jn, Jcap;

static void j_raw(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(J + Jn, Jcap - Jn, fmt, ap);
    va_end(ap);
    if (n > 0) Jn += (size_t)n < Jcap - Jn ? (size_t)n : Jcap - Jn - 1;
}
static void j_comma(void)
{
    if (Jn && J[Jn - 1] != '{' && J[Jn - 1] != '[' && J[Jn - 1] != ':') j_raw(",");
}
static void j_str(const char *s)
{
    j_raw("\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') j_raw("\\%c", c);
        else if (c < 0x20 || c > 0x7e) j_raw("\\u%04x", c);
        else j_raw("%c", c);
    }
    j_raw("\"");
}
static void step(const char *s)
{
    if (shared) snprintf(shared->step, sizeof shared->step, "%s", s);
}
static void j_key(const char *k)
{
    j_comma();
    if (k) { j_str(k); j_raw(":"); }
}
static void j_obj(const char *k) { j_key(k); j_raw("{"); }
static void j_end(void) { j_raw("}"); }
static void j_arr(const char *k) { j_key(k); j_raw("["); }
static void j_arr_end(void) { j_raw("]"); }
static void j_i(const char *k, long long v) { j_key(k); j_raw("%lld", v); }
static void j_u(const char *k, u64 v) { j_key(k); j_raw("%llu", (unsigned long long)v); }
static void j_x(const char *k, u64 v) { j_key(k); j_raw("\"0x%llx\"", (unsigned long long)v); }
static void j_f(const char *k, double v)
{
    j_key(k);
    if (v - v == 0) j_raw("%.6g", v);
    else j_raw("null"); /* JSON has no infinity */
}
static void j_s(const char *k, const char *v) { j_key(k); j_str(v); }
static void j_b(const char *k, int v) { j_key(k); j_raw(v ? "true" : "false"); }

static const char *rule_now = "", *asked_now = "";
static void rule_open(const char *rule, const char *asked)
{
    rule_now = rule;
    asked_now = asked;
    Jn = 0;
    J[0] = 0;
    j_raw("{");
    j_s("rule", rule);
    j_s("asked", asked);
    j_obj("got");
}
static void rule_close(void)
{
    j_raw("}}\n");
    size_t at = 0;
    while (at < Jn) {
        ssize_t n = write(1, J + at, Jn - at);
        if (n <= 0) break;
        at += (size_t)n;
    }
    Jn = 0;
    J[0] = 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}
static void j_stat(const char *k, double *v, int n)
{
    if (n <= 0) { j_s(k, "none"); return; }
    double m = median(v, n);
    j_obj(k);
    j_f("median", m);
    j_f("min", v[0]);
    j_f("max", v[n - 1]);
    j_i("n", n);
    j_end();
}

/* Own table, so that names are there before init and when the driver is gone.
 * The rule error-names compares it with the driver's. */
static const struct { int code; const char *name; } codes[] = {
    {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"}, {4, "CUDA_ERROR_DEINITIALIZED"}, {34, "CUDA_ERROR_STUB_LIBRARY"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"},
    {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"}, {205, "CUDA_ERROR_MAP_FAILED"},
    {206, "CUDA_ERROR_UNMAP_FAILED"}, {208, "CUDA_ERROR_ALREADY_MAPPED"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {211, "CUDA_ERROR_NOT_MAPPED"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {215, "CUDA_ERROR_UNSUPPORTED_LIMIT"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}, {218, "CUDA_ERROR_INVALID_PTX"}, {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {226, "CUDA_ERROR_CONTAINED"}, {301, "CUDA_ERROR_FILE_NOT_FOUND"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"}, {400, "CUDA_ERROR_INVALID_HANDLE"}, {401, "CUDA_ERROR_ILLEGAL_STATE"},
    {500, "CUDA_ERROR_NOT_FOUND"}, {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"}, {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"}, {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"}, {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR"}, {716, "CUDA_ERROR_MISALIGNED_ADDRESS"}, {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"}, {800, "CUDA_ERROR_NOT_PERMITTED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY"}, {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}, {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}, {907, "CUDA_ERROR_CAPTURED_EVENT"}, {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {909, "CUDA_ERROR_TIMEOUT"}, {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE"}, {914, "CUDA_ERROR_INVALID_RESOURCE_TYPE"},
    {999, "CUDA_ERROR_UNKNOWN"},
};
static void j_rc(const char *k, int rc)
{
    char s[96];
    const char *name = NULL;
    for (int i = 0; i < COUNT(codes); i++)
        if (codes[i].code == rc) name = codes[i].name;
    if (rc == RC_MISSING) snprintf(s, sizeof s, "symbol missing");
    else if (rc == RC_NO_ANSWER) snprintf(s, sizeof s, "no answer");
    else if (rc <= RC_DIED) snprintf(s, sizeof s, "died by signal %d", RC_DIED - rc);
    else snprintf(s, sizeof s, "%d %s", rc, name ? name : "?");
    j_s(k, s);
}
/* A call with its name as the step, so that a crash can be placed. */
#define RC(k, expr) do { step(k); int rc_ = (expr); j_rc(k, rc_); } while (0)

/* ---- a context, streams, a gate ---- */

static CUdevice dev;
static CUcontext ctx;
static CUstream st, st2;

static void give_up(const char *what, int rc)
{
    char *so_far = Jn ? strndup(J, Jn) : NULL;
    rule_open(rule_now, asked_now);
    j_rc(what, rc);
    if (so_far) j_s("so_far", so_far);
    rule_close();
    _exit(0);
}
/* Init, primary context made current, two non-blocking streams. */
static void up_without_context(void)
{
    step("setup");
    if (load()) { give_up("load", RC_MISSING); }
    int rc = cu.Init(0);
    if (rc) give_up("cuInit", rc);
    rc = cu.DeviceGet(&dev, 0);
    if (rc) give_up("cuDeviceGet", rc);
}
static void up(void)
{
    up_without_context();
    int rc = cu.PrimaryRetain(&ctx, dev);
    if (rc) give_up("cuDevicePrimaryCtxRetain", rc);
    rc = cu.CtxSetCurrent(ctx);
    if (rc) give_up("cuCtxSetCurrent", rc);
    rc = cu.StreamCreate(&st, STREAM_NON_BLOCKING);
    if (!rc) rc = cu.StreamCreate(&st2, STREAM_NON_BLOCKING);
    if (rc) give_up("cuStreamCreate", rc);
}
static CUdeviceptr dalloc(size_t n)
{
    CUdeviceptr p = 0;
    int rc = cu.MemAlloc(&p, n);
    if (rc) give_up("cuMemAlloc", rc);
    return p;
}
static void *halloc(size_t n)
{
    void *p = NULL;
    int rc = cu.MemHostAlloc(&p, n, HOST_PORTABLE | HOST_DEVICEMAP);
    if (rc) give_up("cuMemHostAlloc", rc);
    return p;
}
static CUdeviceptr hdev(void *p)
{
    CUdeviceptr d = 0;
    int rc = cu.HostGetDevicePointer(&d, p, 0);
    if (rc) give_up("cuMemHostGetDevicePointer", rc);
    return d;
}
/* The word at p, by a synchronous copy; *rc gets the code. */
static u64 peek(CUdeviceptr p, int *rc)
{
    u64 v = 0;
    int r = cu.DtoH(&v, p, sizeof v);
    if (rc) *rc = r;
    return v;
}
static int poll_stream(CUstream s, double ms)
{
    double end = now_ns() + ms * 1e6;
    int rc;
    while ((rc = cu.StreamQuery(s)) == NOT_READY && now_ns() < end) {}
    return rc;
}

/* The gate stops a stream until the host opens it. */
static volatile u64 *gate_word;
static CUdeviceptr gate_dev;
static u64 gate_seq;
static const char *gate_kind = "none";
static void gate_spin(void *arg)
{
    u64 want = (u64)(uintptr_t)arg;
    while (__atomic_load_n((u64 *)gate_word, __ATOMIC_ACQUIRE) < want) {}
}
static int gate_shut(CUstream s)
{
    if (!gate_word) {
        gate_word = halloc(4096);
        *gate_word = 0;
        gate_dev = hdev((void *)gate_word);
    }
    gate_seq++;
    gate_kind = "cuStreamWaitValue64";
    int rc = cu.WaitValue64(s, gate_dev, gate_seq, WAIT_GEQ);
    if (rc) {
        gate_kind = "cuLaunchHostFunc";
        rc = cu.HostFunc(s, gate_spin, (void *)(uintptr_t)gate_seq);
    }
    return rc;
}
static void gate_open(void) { __atomic_store_n((u64 *)gate_word, gate_seq, __ATOMIC_RELEASE); }
static double gate_after_ms;
static void *gate_helper(void *arg)
{
    (void)arg;
    sleep_ms(gate_after_ms);
    gate_open();
    return NULL;
}
static pthread_t gate_thread;
static void gate_open_later(double ms)
{
    gate_after_ms = ms;
    if (pthread_create(&gate_thread, NULL, gate_helper, NULL)) abort();
}
static void gate_join(void) { pthread_join(gate_thread, NULL); }

/* ---- VMM helpers ---- */

static AllocProp vmm_prop(int handle_types, int gdr)
{
    AllocProp p;
    memset(&p, 0, sizeof p);
    p.type = 1; /* pinned */
    p.handle_types = handle_types;
    p.location.type = LOC_DEVICE;
    p.location.id = dev;
    p.flags.gpu_direct_rdma = (unsigned char)gdr;
    return p;
}
static int vmm_access(CUdeviceptr p, size_t n, int flags)
{
    AccessDesc a = {{LOC_DEVICE, dev}, flags};
    return cu.MemSetAccess(p, n, &a, 1);
}
/* Reserve, create, map, allow. The handle stays with the caller. */
static int vmm_make(CUdeviceptr *p, CUallochandle *h, size_t n, int handle_types, int gdr, int access)
{
    AllocProp prop = vmm_prop(handle_types, gdr);
    int rc = cu.MemCreate(h, n, &prop, 0);
    if (rc) return rc;
    rc = cu.AddressReserve(p, n, 0, 0, 0);
    if (!rc) rc = cu.MemMap(*p, n, 0, *h, 0);
    if (!rc && access) rc = vmm_access(*p, n, access);
    return rc;
}
static void vmm_drop(CUdeviceptr p, CUallochandle h, size_t n)
{
    cu.MemUnmap(p, n);
    cu.MemRelease(h);
    cu.AddressFree(p, n);
}

/* ---- pointer attributes ---- */

static const struct { int num; const char *name; int is_signed; } attrs[] = {
    {1, "context", 0}, {2, "memory_type", 0}, {3, "device_pointer", 0}, {4, "host_pointer", 0},
    {6, "sync_memops", 0}, {7, "buffer_id", 0}, {8, "is_managed", 0}, {9, "device_ordinal", 1},
    {10, "is_legacy_cuda_ipc_capable", 0}, {11, "range_start", 0}, {12, "range_size", 0}, {13, "mapped", 0},
    {14, "allowed_handle_types", 0}, {15, "is_gpu_direct_rdma_capable", 0}, {16, "access_flags", 0},
    {17, "mempool_handle", 0}, {18, "mapping_size", 0}, {19, "mapping_base", 0}, {20, "memory_block_id", 0},
    {21, "is_hw_decompress_capable", 0},
};
static void j_attrs(CUdeviceptr p)
{
    for (int i = 0; i < COUNT(attrs); i++) {
        u64 v[8] = {0};
        char what[64];
        snprintf(what, sizeof what, "attribute %s", attrs[i].name);
        step(what);
        int rc = cu.PointerGetAttribute(v, attrs[i].num, p);
        if (rc) { j_rc(attrs[i].name, rc); continue; }
        switch (attrs[i].num) {
        case 1: case 17: j_s(attrs[i].name, v[0] == (u64)(uintptr_t)ctx && v[0] ? "the current one" : v[0] ? "other" : "null"); break;
        case 3: case 4: case 11: case 19:
            j_key(attrs[i].name);
            if (!v[0]) j_raw("\"null\"");
            else if (v[0] - p < 64 * GIB) j_raw("\"ptr+%llu\"", (unsigned long long)(v[0] - p));
            else if (p - v[0] < 64 * GIB) j_raw("\"ptr-%llu\"", (unsigned long long)(p - v[0]));
            else j_raw("\"0x%llx\"", (unsigned long long)v[0]);
            break;
        default:
            if (attrs[i].is_signed) j_i(attrs[i].name, (int)v[0]);
            else j_u(attrs[i].name, v[0]);
        }
    }
    /* All at once: one code, absent ones get zero. */
    int list[COUNT(attrs)];
    u64 out[COUNT(attrs)][8];
    void *data[COUNT(attrs)];
    int n = 0;
    memset(out, 0x5a, sizeof out);
    for (int i = 0; i < COUNT(attrs); i++)
        if (attrs[i].num != 21) { list[n] = attrs[i].num; data[n] = out[n]; n++; }
    RC("get_attributes_all_but_21", cu.PointerGetAttributes((unsigned)n, list, data, p));
    j_u("get_attributes_memory_type", (u64)(uint32_t)out[1][0]);
    CUdeviceptr base = 0;
    size_t size = 0;
    step("cuMemGetAddressRange");
    int rc = cu.MemGetAddressRange(&base, &size, p);
    if (rc) j_rc("address_range", rc);
    else {
        j_obj("address_range");
        j_i("base_minus_ptr", (long long)(base - p));
        j_u("size", size);
        j_end();
    }
    CUallochandle h = 0;
    RC("retain_handle", rc = cu.RetainHandle(&h, (void *)(uintptr_t)p));
    if (!rc) cu.MemRelease(h);
}

/* ================= rules in one process ================= */

static void read_line(const char *path, char *out, size_t n)
{
    out[0] = 0;
    FILE *f = fopen(path, "r");
    if (!f) { snprintf(out, n, "(%s)", strerror(errno)); return; }
    if (!fgets(out, (int)n, f)) out[0] = 0;
    fclose(f);
    out[strcspn(out, "\n")] = 0;
}
static long status_kb(const char *key)
{
    char line[256];
    long v = -1;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return -1;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) v = atol(line + strlen(key) + 1);
    fclose(f);
    return v;
}

static void rule_driver(int arg)
{
    (void)arg;
    rule_open("driver", "Which driver is it, and which symbols has it, by cuGetProcAddress with a fixed version and by dlsym?");
    if (load()) give_up("load", RC_MISSING);
    int v = 0;
    RC("version_before_init", cu.DriverGetVersion(&v));
    j_i("version", v);
    char s[512];
    read_line("/proc/driver/nvidia/version", s, sizeof s);
    j_s("kernel_module", s);
    read_line("/proc/sys/kernel/osrelease", s, sizeof s);
    j_s("kernel", s);
    j_arr("lacking_by_get_proc_address");
    for (int i = 0; i < COUNT(table); i++)
        if (table[i].by_proc) {
            j_obj(NULL);
            j_s("name", table[i].base);
            j_rc("rc", table[i].by_proc);
            j_i("status", table[i].status);
            j_b("dlsym_has", table[i].by_dlsym);
            j_end();
        }
    j_arr_end();
    j_arr("lacking_by_dlsym");
    for (int i = 0; i < COUNT(table); i++)
        if (!table[i].by_dlsym) j_s(NULL, table[i].sym);
    j_arr_end();
    RC("cuInit", cu.Init(0));
    int n = -1;
    RC("cuDeviceGetCount", cu.DeviceGetCount(&n));
    j_i("devices", n);
    rule_close();
}

static void rule_before_init(int arg)
{
    (void)arg;
    rule_open("before-init", "Which codes do calls give before cuInit?");
    load();
    int n;
    CUcontext c = NULL;
    CUdeviceptr p = 0;
    size_t a, b;
    u64 v[8];
    const char *name = NULL;
    void *h = NULL;
    CUallochandle ah;
    AllocProp prop = vmm_prop(0, 0);
    RC("cuDriverGetVersion", cu.DriverGetVersion(&n));
    RC("cuGetErrorName", cu.GetErrorName(700, &name));
    j_s("name_of_700", name ? name : "null");
    RC("cuDeviceGetCount", cu.DeviceGetCount(&n));
    RC("cuDeviceGet", cu.DeviceGet(&dev, 0));
    RC("cuCtxGetCurrent", cu.CtxGetCurrent(&c));
    RC("cuCtxGetDevice", cu.CtxGetDevice(&n));
    RC("cuCtxPopCurrent", cu.CtxPop(&c));
    RC("cuPointerGetAttribute", cu.PointerGetAttribute(v, A_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&n));
    RC("cuMemGetInfo", cu.MemGetInfo(&a, &b));
    RC("cuMemAlloc", cu.MemAlloc(&p, 4096));
    RC("cuMemHostAlloc", cu.MemHostAlloc(&h, 4096, 0));
    RC("cuMemHostRegister", cu.HostRegister(anon(4096), 4096, 0));
    RC("cuMemCreate", cu.MemCreate(&ah, 2 * MIB, &prop, 0));
    RC("cuMemAddressReserve", cu.AddressReserve(&p, 2 * MIB, 0, 0, 0));
    RC("cuFlushGPUDirectRDMAWrites", cu.FlushRdma(0, 100));
    RC("cuDevicePrimaryCtxRetain", cu.PrimaryRetain(&c, 0));
    rule_close();
}

/* Times of the start, one process a sample. */
struct start_times { int rc; double load, init, retain, alloc, stream, copy, exit_at; };
static struct start_times start_once(void)
{
    struct start_times s = {RC_NO_ANSWER, 0, 0, 0, 0, 0, 0, 0};
    int p[2];
    if (pipe(p)) abort();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        double t0 = now_ns();
        load();
        double t1 = now_ns();
        s.rc = cu.Init(0);
        double t2 = now_ns();
        if (!s.rc) s.rc = cu.DeviceGet(&dev, 0);
        if (!s.rc) s.rc = cu.PrimaryRetain(&ctx, dev);
        double t3 = now_ns();
        CUdeviceptr d = 0;
        if (!s.rc) s.rc = cu.CtxSetCurrent(ctx);
        if (!s.rc) s.rc = cu.MemAlloc(&d, 4 * MIB);
        double t4 = now_ns();
        if (!s.rc) s.rc = cu.StreamCreate(&st, STREAM_NON_BLOCKING);
        double t5 = now_ns();
        u64 word = 1;
        if (!s.rc) s.rc = cu.HtoD(d, &word, 8);
        double t6 = now_ns();
        s.load = t1 - t0; s.init = t2 - t1; s.retain = t3 - t2; s.alloc = t4 - t3; s.stream = t5 - t4; s.copy = t6 - t5;
        s.exit_at = now_ns();
        if (write(p[1], &s, sizeof s) < 0) _exit(1);
        _exit(0);
    }
    close(p[1]);
    if (read(p[0], &s, sizeof s) != (ssize_t)sizeof s) s.rc = RC_NO_ANSWER;
    close(p[0]);
    waitpid(pid, NULL, 0);
    s.exit_at = now_ns() - s.exit_at;
    return s;
}
static void rule_start_cost(int arg)
{
    rule_open(arg ? "start-cost-warm" : "start-cost-cold",
              arg ? "What do cuInit, the first primary context and the process's end cost while another process keeps the device open?"
                  : "The same while nobody else holds the device open (one sample)?");
    double v[7][8];
    int n = arg ? 5 : 1, rc = 0, k = 0;
    for (int i = 0; i < n; i++) {
        struct start_times s = start_once();
        if (s.rc) { rc = s.rc; continue; }
        double t[7] = {s.load, s.init, s.retain, s.alloc, s.stream, s.copy, s.exit_at};
        for (int j = 0; j < 7; j++) v[j][k] = t[j] / 1e6;
        k++;
    }
    j_rc("rc", rc);
    static const char *names[7] = {"dlopen_ms", "cuInit_ms", "primary_retain_ms", "first_alloc_ms", "first_stream_ms", "first_copy_ms", "exit_ms"};
    for (int j = 0; j < 7; j++) j_stat(names[j], v[j], k);
    rule_close();
}

static void rule_attributes(int arg)
{
    (void)arg;
    static const struct { int num; const char *name; } list[] = {
        {11, "max_pitch"}, {15, "gpu_overlap"}, {16, "multiprocessors"}, {18, "integrated"}, {19, "can_map_host_memory"}, {20, "compute_mode"},
        {32, "ecc_enabled"}, {33, "pci_bus"}, {34, "pci_device"}, {50, "pci_domain"}, {38, "l2_bytes"}, {40, "copy_engines"},
        {41, "unified_addressing"}, {75, "capability_major"}, {76, "capability_minor"}, {78, "stream_priorities"}, {83, "managed_memory"},
        {86, "host_native_atomics"}, {88, "pageable_memory_access"}, {89, "concurrent_managed_access"},
        {91, "can_use_host_pointer_for_registered_mem"}, {92, "stream_mem_ops_v1"}, {93, "stream_mem_ops_64_v1"}, {94, "stream_wait_nor_v1"},
        {98, "can_flush_remote_writes"}, {99, "host_register_supported"}, {100, "pageable_access_uses_host_page_tables"},
        {101, "direct_managed_access_from_host"}, {102, "vmm_supported"}, {103, "handle_posix_fd"}, {104, "handle_win32"},
        {110, "gpu_direct_rdma_with_vmm"}, {113, "read_only_host_register"}, {114, "timeline_semaphores"}, {115, "memory_pools"},
        {116, "gpu_direct_rdma"}, {117, "gpu_direct_rdma_flush_options"}, {118, "gpu_direct_rdma_writes_ordering"},
        {119, "mempool_handle_types"}, {122, "stream_mem_ops_64"}, {123, "stream_wait_nor"}, {124, "dma_buf"}, {125, "ipc_events"},
        {126, "mem_sync_domains"}, {128, "handle_fabric"}, {130, "numa_config"}, {131, "numa_id"}, {132, "multicast"}, {133, "mps_enabled"},
        {134, "host_numa_id"}, {136, "decompress_mask"}, {139, "pci_device_vendor"}, {140, "pci_subsystem"}, {141, "host_numa_vmm"},
        {142, "host_numa_pools"}, {144, "host_pools"}, {145, "host_vmm"}, {146, "host_alloc_dma_buf"}, {152, "dma_buf_mmap"},
    };
    rule_open("device-attributes", "What does the device say of itself?");
    up_without_context();
    for (int i = 0; i < COUNT(list); i++) {
        int v = 0;
        step(list[i].name);
        int rc = cu.DeviceGetAttribute(&v, list[i].num, dev);
        if (rc) j_rc(list[i].name, rc);
        else j_i(list[i].name, v);
    }
    rule_close();
}

static void rule_identity(int arg)
{
    (void)arg;
    rule_open("identity", "Name, uuid, bus address, memory, and what sysfs says of the same device?");
    up();
    char s[256] = "", path[512], bus[64] = "";
    RC("cuDeviceGetName", cu.DeviceGetName(s, sizeof s, dev));
    j_s("name", s);
    CUuuid u;
    memset(&u, 0, sizeof u);
    RC("cuDeviceGetUuid", cu.DeviceGetUuid(&u, dev));
    char *w = s;
    for (int i = 0; i < 16; i++) w += sprintf(w, "%02x", (unsigned char)u.bytes[i]);
    j_s("uuid", s);
    RC("cuDeviceGetPCIBusId", cu.DeviceGetPCIBusId(bus, sizeof bus, dev));
    j_s("bus_id", bus);
    char small[4];
    RC("bus_id_in_4_bytes", cu.DeviceGetPCIBusId(small, 4, dev));
    size_t total = 0, fr = 0, tot2 = 0;
    RC("cuDeviceTotalMem", cu.DeviceTotalMem(&total, dev));
    RC("cuMemGetInfo", cu.MemGetInfo(&fr, &tot2));
    j_u("device_total_bytes", total);
    j_u("info_free_bytes", fr);
    j_u("info_total_bytes", tot2);
    for (char *c = bus; *c; c++) if (*c >= 'A' && *c <= 'Z') *c = (char)(*c + 32);
    static const char *files[] = {"numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "vendor", "device"};
    for (int i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/%s", bus, files[i]);
        read_line(path, s, sizeof s);
        j_s(files[i], s);
    }
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/resource", bus);
    FILE *f = fopen(path, "r");
    j_arr("bar_bytes");
    for (int i = 0; f && i < 6 && fgets(s, sizeof s, f); i++) {
        unsigned long long a = 0, b = 0;
        if (sscanf(s, "%llx %llx", &a, &b) == 2) j_u(NULL, b > a ? b - a + 1 : 0);
    }
    j_arr_end();
    if (f) fclose(f);
    static const char *paths[] = {"/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem", "/sys/module/gdrdrv", "/dev/nvidia-caps-imex-channels",
                                  "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia-caps", "/dev/infiniband", "/dev/udmabuf", "/dev/dma_heap", "/.dockerenv"};
    j_obj("there");
    for (int i = 0; i < COUNT(paths); i++) j_b(paths[i], access(paths[i], F_OK) == 0);
    j_end();
    read_line("/proc/driver/nvidia/params", s, sizeof s);
    j_s("params_first_line", s);
    read_line("/sys/kernel/mm/transparent_hugepage/enabled", s, sizeof s);
    j_s("thp", s);
    struct rlimit r;
    getrlimit(RLIMIT_MEMLOCK, &r);
    j_i("memlock_soft", (long long)r.rlim_cur);
    getrlimit(RLIMIT_NOFILE, &r);
    j_i("nofile_soft", (long long)r.rlim_cur);
    j_i("uid", getuid());
    j_i("cpus", sysconf(_SC_NPROCESSORS_ONLN));
    rule_close();
}

static void rule_primary(int arg)
{
    (void)arg;
    rule_open("primary-context", "How do retain, release, push and pop of the primary context behave?");
    up_without_context();
    unsigned flags = 9;
    int active = 9;
    RC("state_before", cu.PrimaryGetState(dev, &flags, &active));
    j_u("flags_before", flags);
    j_i("active_before", active);
    CUcontext a = NULL, b = NULL, c = (void *)1;
    RC("retain", cu.PrimaryRetain(&a, dev));
    RC("current_after_retain", cu.CtxGetCurrent(&c));
    j_b("retain_makes_current", c != NULL);
    RC("retain_again", cu.PrimaryRetain(&b, dev));
    j_b("same_pointer", a == b);
    RC("pop_of_empty_stack", cu.CtxPop(&c));
    RC("push", cu.CtxPush(a));
    double v[64], w[64];
    for (int i = 0; i < 64; i++) {
        double t = now_ns();
        for (int k = 0; k < 64; k++) { cu.CtxPush(a); cu.CtxPop(&c); }
        v[i] = (now_ns() - t) / 64;
        t = now_ns();
        for (int k = 0; k < 64; k++) cu.CtxGetCurrent(&c);
        w[i] = (now_ns() - t) / 64;
    }
    j_stat("push_and_pop_ns", v, 64);
    j_stat("get_current_ns", w, 64);
    CUdeviceptr p = 0;
    RC("alloc", cu.MemAlloc(&p, MIB));
    RC("release_one_of_two", cu.PrimaryRelease(dev));
    cu.PrimaryGetState(dev, &flags, &active);
    j_i("active_then", active);
    j_obj("after_last_release");
    double t = now_ns();
    RC("release", cu.PrimaryRelease(dev));
    j_f("release_ms", (now_ns() - t) / 1e6);
    RC("release_once_too_many", cu.PrimaryRelease(dev));
    cu.PrimaryGetState(dev, &flags, &active);
    j_i("active", active);
    u64 x[8] = {0};
    RC("attribute_of_old_memory", cu.PointerGetAttribute(x, A_MEMORY_TYPE, p));
    RC("get_current", cu.CtxGetCurrent(&c));
    j_b("still_current", c == a);
    CUdevice d2;
    RC("get_device", cu.CtxGetDevice(&d2));
    RC("alloc_in_released", cu.MemAlloc(&p, MIB));
    RC("retain_anew", cu.PrimaryRetain(&b, dev));
    j_b("same_pointer_as_before", a == b);
    RC("set_current", cu.CtxSetCurrent(b));
    RC("alloc", cu.MemAlloc(&p, MIB));
    j_end();
    rule_close();
}

/* What each call says; used without a context and on another thread. */
struct things { CUdeviceptr d, hd; void *h; CUevent e; CUstream s; void *reg; CUdeviceptr managed, vmm; };
static void calls_on(struct things *t)
{
    CUdeviceptr p = 0, base = 0;
    CUstream s = NULL;
    CUevent e = NULL;
    size_t a = 0, b = 0;
    int n = 0;
    CUcontext c = NULL;
    u64 v[8] = {0};
    CUipc ipc;
    void *h = NULL;
    RC("cuCtxGetDevice", cu.CtxGetDevice(&n));
    RC("cuCtxSynchronize", cu.CtxSynchronize());
    RC("cuMemGetInfo", cu.MemGetInfo(&a, &b));
    RC("cuMemAlloc", cu.MemAlloc(&p, MIB));
    RC("cuMemHostAlloc", cu.MemHostAlloc(&h, 4096, HOST_PORTABLE));
    char *mem = anon(64 * KIB);
    RC("cuMemHostRegister", cu.HostRegister(mem, 64 * KIB, HOST_PORTABLE));
    RC("cuMemHostUnregister", cu.HostUnregister(mem));
    RC("cuStreamCreate", cu.StreamCreate(&s, STREAM_NON_BLOCKING));
    RC("cuEventCreate", cu.EventCreate(&e, EVENT_NO_TIMING));
    RC("cuFlushGPUDirectRDMAWrites", cu.FlushRdma(0, 100));
    RC("attribute_of_malloc", cu.PointerGetAttribute(v, A_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)mem));
    if (!t) return;
    RC("attribute_of_device", cu.PointerGetAttribute(v, A_MEMORY_TYPE, t->d));
    int list[2] = {A_MEMORY_TYPE, A_BUFFER_ID};
    void *data[2] = {&v[0], &v[1]};
    RC("attributes_of_device", cu.PointerGetAttributes(2, list, data, t->d));
    RC("cuMemGetAddressRange", cu.MemGetAddressRange(&base, &a, t->d));
    RC("cuMemHostGetDevicePointer", cu.HostGetDevicePointer(&p, t->h, 0));
    RC("cuEventQuery", cu.EventQuery(t->e));
    RC("cuEventRecord", cu.EventRecord(t->e, t->s));
    RC("cuStreamQuery", cu.StreamQuery(t->s));
    RC("cuStreamWaitEvent", cu.StreamWaitEvent(t->s, t->e, 0));
    RC("cuMemcpyHtoDAsync", cu.HtoDAsync(t->d, t->h, 4096, t->s));
    RC("cuMemcpyDtoHAsync", cu.DtoHAsync(t->h, t->d, 4096, t->s));
    RC("cuMemcpyDtoDAsync", cu.DtoDAsync(t->d, t->d + 8192, 4096, t->s));
    RC("cuMemcpyAsync", cu.CopyAsync(t->d, (CUdeviceptr)(uintptr_t)t->h, 4096, t->s));
    CopyAttr ca = {1, {0, 0}, {0, 0}, 0};
    CUdeviceptr src = (CUdeviceptr)(uintptr_t)t->h, dst = t->d;
    size_t size = 4096, idx = 0, fail = 0;
    RC("cuMemcpyBatchAsync", cu.CopyBatch(&dst, &src, &size, 1, &ca, &idx, 1, &fail, t->s));
    RC("cuMemsetD8Async", cu.MemsetAsync(t->d, 0, 4096, t->s));
    RC("cuStreamWriteValue64", cu.WriteValue64(t->s, t->hd, 1, 0));
    RC("cuIpcGetMemHandle", cu.IpcGetMem(&ipc, t->d));
    int fd = -1;
    RC("cuMemGetHandleForAddressRange", cu.RangeHandle(&fd, t->d, 2 * MIB, 1, 0));
    if (fd >= 0) close(fd);
    RC("cuStreamSynchronize", cu.StreamSync(t->s));
    RC("cuMemHostUnregister_of_main", cu.HostUnregister(t->reg));
    RC("cuEventDestroy", cu.EventDestroy(t->e));
    RC("cuStreamDestroy", cu.StreamDestroy(t->s));
    RC("cuMemFreeHost", cu.MemFreeHost(t->h));
    RC("cuMemFree", cu.MemFree(t->d));
    RC("cuCtxGetCurrent", cu.CtxGetCurrent(&c));
    j_b("current_is_null", c == NULL);
}
static void vmm_calls(void)
{
    size_t g = 0;
    AllocProp prop = vmm_prop(HANDLE_FD, 0);
    CUdeviceptr p = 0;
    CUallochandle h = 0;
    RC("cuMemGetAllocationGranularity", cu.Granularity(&g, &prop, 0));
    RC("cuMemCreate", cu.MemCreate(&h, 2 * MIB, &prop, 0));
    RC("cuMemAddressReserve", cu.AddressReserve(&p, 2 * MIB, 0, 0, 0));
    RC("cuMemMap", cu.MemMap(p, 2 * MIB, 0, h, 0));
    RC("cuMemSetAccess", vmm_access(p, 2 * MIB, PROT_RW));
    u64 v[8] = {0};
    RC("attribute_of_vmm", cu.PointerGetAttribute(v, A_MEMORY_TYPE, p));
    int fd = -1;
    RC("cuMemExportToShareableHandle", cu.ExportHandle(&fd, h, HANDLE_FD, 0));
    RC("cuMemUnmap", cu.MemUnmap(p, 2 * MIB));
    RC("cuMemRelease", cu.MemRelease(h));
    RC("cuMemAddressFree", cu.AddressFree(p, 2 * MIB));
}
static void rule_no_context(int arg)
{
    (void)arg;
    rule_open("no-context", "Which codes do calls give after cuInit without any context?");
    up_without_context();
    calls_on(NULL);
    CUipc ipc;
    memset(&ipc, 0, sizeof ipc);
    CUdeviceptr p = 0;
    RC("cuIpcOpenMemHandle_of_zeros", cu.IpcOpenMem(&p, ipc, 1));
    vmm_calls();
    rule_close();
}
static void *other_thread(void *arg)
{
    j_obj("calls");
    calls_on(arg);
    j_end();
    j_obj("vmm_calls");
    vmm_calls();
    j_end();
    return NULL;
}
static void rule_thread(int arg)
{
    (void)arg;
    rule_open("thread-without-context", "A thread without a current context, objects made by another thread: which calls work?");
    up();
    struct things t;
    memset(&t, 0, sizeof t);
    t.d = dalloc(4 * MIB);
    t.h = halloc(64 * KIB);
    t.hd = hdev(t.h);
    t.s = st;
    cu.EventCreate(&t.e, EVENT_NO_TIMING);
    t.reg = anon(64 * KIB);
    cu.HostRegister(t.reg, 64 * KIB, HOST_PORTABLE | HOST_DEVICEMAP);
    pthread_t th;
    if (pthread_create(&th, NULL, other_thread, &t)) abort();
    pthread_join(th, NULL);
    rule_close();
}

/* A process forked from one with a context: one grandchild a call. */
static struct things *fk;
static int fork_call(int i)
{
    CUdeviceptr p;
    CUcontext c;
    int n;
    u64 v[8];
    void *h;
    switch (i) {
    case 0: return cu.Init(0);
    case 1: return cu.DriverGetVersion(&n);
    case 2: return cu.DeviceGetCount(&n);
    case 3: return cu.CtxGetCurrent(&c);
    case 4: return cu.CtxGetDevice(&n);
    case 5: return cu.CtxPush(ctx);
    case 6: return cu.PointerGetAttribute(v, A_MEMORY_TYPE, fk->d);
    case 7: return cu.PointerGetAttribute(v, A_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&n);
    case 8: return cu.MemAlloc(&p, MIB);
    case 9: return cu.HtoDAsync(fk->d, fk->h, 4096, st);
    case 10: return cu.EventQuery(fk->e);
    case 11: return cu.StreamQuery(st);
    case 12: return cu.HostRegister(anon(4096), 4096, HOST_PORTABLE);
    case 13: return cu.MemHostAlloc(&h, 4096, 0);
    case 14: return cu.HostUnregister(fk->reg);
    case 15: return cu.MemFree(fk->d);
    case 16: return cu.PrimaryRelease(dev);
    case 17: return cu.CtxSynchronize();
    case 18: return (int)*(volatile u64 *)fk->h & 0xff;   /* memory of cuMemHostAlloc */
    case 19: return (int)*(volatile u64 *)fk->reg & 0xff; /* registered private memory */
    case 20: exit(7);                                     /* exit handlers of the driver */
    }
    return 0;
}
static void rule_fork(int arg)
{
    (void)arg;
    static const char *names[] = {"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPushCurrent",
        "attribute_of_device", "attribute_of_stack", "cuMemAlloc", "cuMemcpyHtoDAsync", "cuEventQuery", "cuStreamQuery", "cuMemHostRegister",
        "cuMemHostAlloc", "cuMemHostUnregister", "cuMemFree", "cuDevicePrimaryCtxRelease", "cuCtxSynchronize", "read_host_alloc_85_is_there",
        "read_registered_85_is_there", "exit_runs_handlers_7_is_normal"};
    rule_open("fork-after-init", "In a child forked from a process with a context: which codes do calls give (one child a call, 1 s each)?");
    up();
    struct things t;
    memset(&t, 0, sizeof t);
    fk = &t;
    t.d = dalloc(4 * MIB);
    t.h = halloc(64 * KIB);
    t.reg = anon(64 * KIB);
    memset(t.h, 85, 64 * KIB);
    memset(t.reg, 85, 64 * KIB);
    RC("register", cu.HostRegister(t.reg, 64 * KIB, HOST_PORTABLE | HOST_DEVICEMAP));
    cu.EventCreate(&t.e, EVENT_NO_TIMING);
    cu.EventRecord(t.e, st);
    cu.StreamSync(st);
    double f[COUNT(names)];
    for (int i = 0; i < COUNT(names); i++) {
        int p[2], rc = RC_NO_ANSWER, status = 0;
        if (pipe(p)) abort();
        step(names[i]);
        double t0 = now_ns();
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(1);
            rc = fork_call(i);
            if (write(p[1], &rc, sizeof rc) < 0) _exit(1);
            _exit(0);
        }
        f[i] = (now_ns() - t0) / 1e3;
        close(p[1]);
        if (read(p[0], &rc, sizeof rc) != (ssize_t)sizeof rc) rc = RC_NO_ANSWER;
        close(p[0]);
        waitpid(pid, &status, 0);
        if (WIFSIGNALED(status)) {
            char s[64];
            snprintf(s, sizeof s, WTERMSIG(status) == SIGALRM ? "no answer within 1 s" : "died by signal %d", WTERMSIG(status));
            j_s(names[i], s);
        } else if (rc == RC_NO_ANSWER) j_i(names[i], WEXITSTATUS(status));
        else if (i >= 18) j_i(names[i], rc);
        else j_rc(names[i], rc);
    }
    j_stat("fork_us", f, COUNT(names));
    j_obj("parent_afterwards");
    RC("copy", cu.HtoD(t.d, t.h, 4096));
    RC("sync", cu.CtxSynchronize());
    RC("unregister", cu.HostUnregister(t.reg));
    RC("free", cu.MemFree(t.d));
    j_end();
    rule_close();

    /* Pinned pages and fork: whose page does the device read afterwards? */
    rule_open("fork-and-pinned-pages", "After a fork the parent (then the child) writes registered memory: what does the device read and write?");
    CUdeviceptr d = dalloc(MIB);
    int fd = memfd(64 * KIB);
    volatile u64 *priv = anon(64 * KIB), *shm = map_fd(fd, 64 * KIB, PROT_READ | PROT_WRITE);
    priv[0] = shm[0] = 1;
    RC("register_private", cu.HostRegister((void *)priv, 64 * KIB, HOST_PORTABLE));
    RC("register_shared", cu.HostRegister((void *)shm, 64 * KIB, HOST_PORTABLE));
    int a[2], b[2];
    if (pipe(a) || pipe(b)) abort();
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(5);
        char c;
        u64 seen[2];
        if (read(a[0], &c, 1) != 1) _exit(1);
        seen[0] = priv[0];
        seen[1] = shm[0];
        priv[0] = 77;
        shm[1] = 78;
        if (write(b[1], seen, sizeof seen) < 0) _exit(1);
        if (read(a[0], &c, 1) != 1) _exit(1);
        seen[0] = priv[2];
        seen[1] = shm[2];
        if (write(b[1], seen, sizeof seen) < 0) _exit(1);
        _exit(0);
    }
    priv[0] = 2;
    shm[0] = 2;
    u64 seen[2] = {0, 0}, got[8] = {0};
    if (write(a[1], "x", 1) != 1) abort();
    if (read(b[0], seen, sizeof seen) != (ssize_t)sizeof seen) seen[0] = seen[1] = 999;
    j_u("child_sees_private", seen[0]);
    j_u("child_sees_shared", seen[1]);
    /* 64 KiB: smaller ones may be read by the processor in the call. */
    RC("htod_private", cu.HtoDAsync(d, (void *)priv, 64 * KIB, st));
    RC("htod_shared", cu.HtoDAsync(d + 64 * KIB, (void *)shm, 64 * KIB, st));
    RC("sync", cu.StreamSync(st));
    cu.DtoH(got, d, 64);
    j_u("device_read_private_word0_2_is_right", got[0]);
    cu.DtoH(got, d + 64 * KIB, 64);
    j_u("device_read_shared_word0_2_is_right", got[0]);
    j_u("device_read_shared_word1_78_is_childs", got[1]);
    u64 nine[4] = {9, 9, 9, 9};
    cu.HtoD(d, nine, 32);
    RC("dtoh_private", cu.DtoHAsync((void *)(priv + 2), d, 16, st));
    RC("dtoh_shared", cu.DtoHAsync((void *)(shm + 2), d, 16, st));
    RC("sync2", cu.StreamSync(st));
    if (write(a[1], "x", 1) != 1) abort();
    if (read(b[0], seen, sizeof seen) != (ssize_t)sizeof seen) seen[0] = seen[1] = 999;
    j_u("parent_sees_private_9_is_right", priv[2]);
    j_u("parent_sees_shared", shm[2]);
    j_u("child_sees_private_written_by_device", seen[0]);
    j_u("child_sees_shared_written_by_device", seen[1]);
    waitpid(pid, NULL, 0);
    rule_close();
}

/* One line a kind of memory. */
static void line_attrs(const char *kind, CUdeviceptr p)
{
    rule_open("pointer-attributes", "What does the driver say of a pointer of this kind?");
    j_s("kind", kind);
    j_attrs(p);
    rule_close();
}
static void host_extras(const char *kind, void *p)
{
    rule_open("host-pointer", "Flags and device address of host memory of this kind?");
    j_s("kind", kind);
    unsigned f = 0;
    CUdeviceptr d = 0;
    int rc;
    RC("cuMemHostGetFlags", cu.HostGetFlags(&f, p));
    j_u("flags", f);
    RC("cuMemHostGetDevicePointer", rc = cu.HostGetDevicePointer(&d, p, 0));
    if (!rc) j_b("same_as_host_pointer", d == (CUdeviceptr)(uintptr_t)p);
    rule_close();
}
static void rule_pointers(int arg)
{
    rule_now = "pointer-attributes";
    asked_now = "What does the driver say of a pointer of this kind?";
    up();
    if (arg == 0) {
        CUdeviceptr a = dalloc(4 * MIB), b, c;
        line_attrs("cuMemAlloc 4 MiB", a);
        line_attrs("cuMemAlloc 4 MiB, offset 1 MiB + 3", a + MIB + 3);
        line_attrs("cuMemAlloc 4 MiB, last byte", a + 4 * MIB - 1);
        line_attrs("cuMemAlloc 4 MiB, one past the end", a + 4 * MIB);
        b = dalloc(4096);
        c = dalloc(4096);
        rule_open("small-allocations", "Are small allocations of cuMemAlloc neighbours in one block?");
        j_i("distance_bytes", (long long)(c - b));
        j_x("align_mask", b & (2 * MIB - 1));
        rule_close();
        line_attrs("cuMemAlloc 4 KiB", b);
        line_attrs("cuMemAlloc 4 KiB, its neighbour", c);
        cu.MemFree(c);
        line_attrs("cuMemAlloc 4 KiB freed, neighbour alive", c);
        cu.MemFree(a);
        line_attrs("cuMemAlloc 4 MiB, freed", a);
        CUpool own = NULL;
        AllocProp ap = vmm_prop(HANDLE_FD, 0);
        PoolProps pp;
        memset(&pp, 0, sizeof pp);
        pp.alloc_type = ap.type;
        pp.handle_types = HANDLE_FD;
        pp.location = ap.location;
        CUdeviceptr q = 0;
        if (!cu.AllocAsync(&q, MIB, st)) { cu.StreamSync(st); line_attrs("cuMemAllocAsync, default pool", q); }
        CUdeviceptr q2 = 0;
        if (!cu.AllocAsync(&q2, MIB, st)) { cu.StreamSync(st); line_attrs("cuMemAllocAsync, default pool, second", q2); }
        cu.FreeAsync(q, st);
        cu.StreamSync(st);
        line_attrs("cuMemAllocAsync, freed", q);
        int rc = cu.PoolCreate(&own, &pp);
        q = 0;
        if (!rc && !cu.AllocFromPool(&q, MIB, own, st)) { cu.StreamSync(st); line_attrs("own pool with descriptor handles", q); }
    } else if (arg == 1) {
        CUdeviceptr p = 0, q = 0;
        CUallochandle h = 0, h2 = 0;
        if (!vmm_make(&p, &h, 4 * MIB, HANDLE_FD, 1, PROT_RW)) {
            line_attrs("VMM 4 MiB, descriptor, GPUDirect flag", p);
            line_attrs("VMM 4 MiB, last byte", p + 4 * MIB - 1);
            line_attrs("VMM 4 MiB, one past the end", p + 4 * MIB);
        }
        if (!vmm_make(&q, &h2, 4 * MIB, HANDLE_NONE, 0, PROT_RW)) line_attrs("VMM 4 MiB, no handle types, no GPUDirect flag", q);
        AllocProp prop = vmm_prop(HANDLE_FD, 1);
        CUdeviceptr r = 0;
        if (!cu.AddressReserve(&r, 16 * MIB, 0, 0, 0)) {
            line_attrs("VMM reserved, not mapped", r);
            CUallochandle e1 = 0, e2 = 0;
            cu.MemCreate(&e1, 4 * MIB, &prop, 0);
            cu.MemCreate(&e2, 2 * MIB, &prop, 0);
            cu.MemMap(r, 4 * MIB, 0, e1, 0);
            line_attrs("VMM mapped, no access yet", r);
            cu.MemMap(r + 4 * MIB, 2 * MIB, 0, e2, 0);
            vmm_access(r, 6 * MIB, PROT_RW);
            line_attrs("VMM 16 MiB reservation, handles of 4 and 2 MiB back to back, in the first", r + MIB);
            line_attrs("the same, in the second", r + 5 * MIB);
            line_attrs("the same, beyond both", r + 7 * MIB);
            cu.MemRelease(e1);
            line_attrs("the same, first handle released, still mapped", r + MIB);
            cu.MemUnmap(r, 4 * MIB);
            line_attrs("the same, unmapped", r + MIB);
            CUallochandle e3 = 0;
            cu.MemCreate(&e3, 4 * MIB, &prop, 0);
            cu.MemMap(r, 4 * MIB, 0, e3, 0);
            vmm_access(r, 4 * MIB, PROT_R);
            line_attrs("the same, another handle mapped there, read only", r + MIB);
        }
    } else {
        CUdeviceptr m = 0;
        int rc = cu.MemAllocManaged(&m, MIB, 1);
        if (!rc) line_attrs("managed", m);
        void *h = halloc(64 * KIB);
        line_attrs("cuMemHostAlloc", (CUdeviceptr)(uintptr_t)h);
        line_attrs("cuMemHostAlloc, offset 5000", (CUdeviceptr)(uintptr_t)h + 5000);
        host_extras("cuMemHostAlloc", h);
        char *a = anon(MIB);
        memset(a, 1, MIB);
        line_attrs("mmap private, not registered", (CUdeviceptr)(uintptr_t)a);
        rc = cu.HostRegister(a + 64 * KIB, 64 * KIB, HOST_PORTABLE | HOST_DEVICEMAP);
        line_attrs(rc ? "mmap private, register failed" : "mmap private, registered", (CUdeviceptr)(uintptr_t)a + 64 * KIB);
        line_attrs("mmap private, registered, offset 5000", (CUdeviceptr)(uintptr_t)a + 64 * KIB + 5000);
        line_attrs("mmap private, one past the registered end", (CUdeviceptr)(uintptr_t)a + 128 * KIB);
        host_extras("mmap private, registered", a + 64 * KIB);
        host_extras("mmap private, not registered", a + 512 * KIB);
        int fd = memfd(MIB);
        char *s = map_fd(fd, MIB, PROT_READ | PROT_WRITE);
        rc = cu.HostRegister(s, MIB, HOST_PORTABLE | HOST_DEVICEMAP);
        line_attrs(rc ? "memfd shared, register failed" : "memfd shared, registered", (CUdeviceptr)(uintptr_t)s);
        char *s2 = map_fd(fd, MIB, PROT_READ | PROT_WRITE);
        line_attrs("second mapping of a registered memfd", (CUdeviceptr)(uintptr_t)s2);
        cu.HostUnregister(s);
        line_attrs("memfd shared, unregistered again", (CUdeviceptr)(uintptr_t)s);
        line_attrs("null", 0);
        line_attrs("0x1000, nothing there", 0x1000);
        line_attrs("not canonical", 0xdead000000000000ull);
    }
}

static void rule_widths(int arg)
{
    (void)arg;
    rule_open("attribute-widths", "How many bytes does cuPointerGetAttribute write for each attribute (device memory, own pool memory)?");
    up();
    CUdeviceptr p = dalloc(4 * MIB);
    for (int i = 0; i < COUNT(attrs); i++) {
        unsigned char x[64], y[64];
        memset(x, 0xa5, sizeof x);
        memset(y, 0x5a, sizeof y);
        int rc = cu.PointerGetAttribute(x, attrs[i].num, p);
        cu.PointerGetAttribute(y, attrs[i].num, p);
        int w = 0;
        for (int k = 0; k < 64; k++)
            if (x[k] == y[k]) w = k + 1;
        if (rc) j_rc(attrs[i].name, rc);
        else j_i(attrs[i].name, w);
    }
    rule_close();
}

static void rule_buffer_id(int arg)
{
    (void)arg;
    rule_open("buffer-id", "Is the buffer id another one when memory at the same address was freed and made anew?");
    up();
    static const char *names[] = {"cuMemAlloc_4MiB", "cuMemAlloc_4KiB", "pool_ordered", "vmm_other_handle", "vmm_same_handle_mapped_again", "host_register", "cuMemHostAlloc"};
    AllocProp prop = vmm_prop(HANDLE_FD, 0);
    CUdeviceptr r = 0;
    CUallochandle keep = 0;
    cu.AddressReserve(&r, 2 * MIB, 0, 0, 0);
    cu.MemCreate(&keep, 2 * MIB, &prop, 0);
    char *reg = anon(64 * KIB);
    for (int k = 0; k < COUNT(names); k++) {
        CUdeviceptr last = 0;
        u64 last_id = 0;
        int same = 0, changed = 0, up_only = 1, rc = 0;
        for (int i = 0; i < 16 && !rc; i++) {
            CUdeviceptr p = 0;
            CUallochandle h = keep;
            void *hp = NULL;
            switch (k) {
            case 0: rc = cu.MemAlloc(&p, 4 * MIB); break;
            case 1: rc = cu.MemAlloc(&p, 4 * KIB); break;
            case 2: rc = cu.AllocAsync(&p, MIB, st); break;
            case 3: rc = cu.MemCreate(&h, 2 * MIB, &prop, 0); /* fall through */
            case 4: p = r; if (!rc) rc = cu.MemMap(r, 2 * MIB, 0, h, 0); if (!rc) rc = vmm_access(r, 2 * MIB, PROT_RW); break;
            case 5: rc = cu.HostRegister(reg, 64 * KIB, HOST_PORTABLE); p = (CUdeviceptr)(uintptr_t)reg; break;
            case 6: rc = cu.MemHostAlloc(&hp, 64 * KIB, HOST_PORTABLE); p = (CUdeviceptr)(uintptr_t)hp; break;
            }
            u64 id = 0;
            if (!rc) rc = cu.PointerGetAttribute(&id, A_BUFFER_ID, p);
            if (!rc && p == last) {
                same++;
                changed += id != last_id;
                if (id < last_id) up_only = 0;
            }
            last = p;
            last_id = id;
            switch (k) {
            case 0: case 1: cu.MemFree(p); break;
            case 2: cu.FreeAsync(p, st); cu.StreamSync(st); break;
            case 3: cu.MemUnmap(r, 2 * MIB); cu.MemRelease(h); break;
            case 4: cu.MemUnmap(r, 2 * MIB); break;
            case 5: cu.HostUnregister(reg); break;
            case 6: cu.MemFreeHost(hp); break;
            }
        }
        j_obj(names[k]);
        j_rc("rc", rc);
        j_i("same_address_times", same);
        j_i("id_changed_times", changed);
        j_b("ids_only_grow", up_only);
        j_u("last_id", last_id);
        j_end();
    }
    rule_close();
}

#define TIME_NS(out, n, inner, expr) do { for (int i_ = 0; i_ < (n); i_++) { double t_ = now_ns(); \
    for (int k_ = 0; k_ < (inner); k_++) { expr; } (out)[i_] = (now_ns() - t_) / (inner); } } while (0)

static void rule_query_costs(int arg)
{
    (void)arg;
    rule_open("query-costs", "What do questions to the driver cost?");
    up();
    CUdeviceptr p = dalloc(4 * MIB), base;
    char *mem = anon(64 * KIB), *plain = anon(64 * KIB);
    plain[0] = 1;
    cu.HostRegister(mem, 64 * KIB, HOST_PORTABLE);
    CUdevice d;
    u64 v[8][8];
    size_t size, fr;
    double t[32];
    TIME_NS(t, 32, 64, cu.CtxGetDevice(&d));
    j_stat("cuCtxGetDevice_ns", t, 32);
    TIME_NS(t, 32, 64, cu.PointerGetAttribute(v, A_MEMORY_TYPE, p));
    j_stat("memory_type_of_device_ns", t, 32);
    TIME_NS(t, 32, 64, cu.PointerGetAttribute(v, A_BUFFER_ID, p));
    j_stat("buffer_id_of_device_ns", t, 32);
    TIME_NS(t, 32, 64, cu.PointerGetAttribute(v, A_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)mem));
    j_stat("memory_type_of_registered_ns", t, 32);
    TIME_NS(t, 32, 64, cu.PointerGetAttribute(v, A_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)plain));
    j_stat("memory_type_of_plain_ns", t, 32);
    int list[6] = {2, 7, 8, 9, 11, 12};
    void *data[6];
    for (int i = 0; i < 6; i++) data[i] = v[i];
    TIME_NS(t, 32, 64, cu.PointerGetAttributes(6, list, data, p));
    j_stat("six_attributes_of_device_ns", t, 32);
    TIME_NS(t, 32, 64, cu.PointerGetAttributes(6, list, data, (CUdeviceptr)(uintptr_t)plain));
    j_stat("six_attributes_of_plain_ns", t, 32);
    TIME_NS(t, 32, 64, cu.MemGetAddressRange(&base, &size, p));
    j_stat("cuMemGetAddressRange_ns", t, 32);
    TIME_NS(t, 16, 4, cu.MemGetInfo(&fr, &size));
    j_stat("cuMemGetInfo_ns", t, 16);
    CUdeviceptr hd;
    TIME_NS(t, 32, 64, cu.HostGetDevicePointer(&hd, mem, 0));
    j_stat("cuMemHostGetDevicePointer_ns", t, 32);
    rule_close();
}

static void rule_vmm(int arg)
{
    (void)arg;
    rule_open("vmm", "Granularity, refusals and costs of the virtual memory functions?");
    up();
    static const struct { const char *name; int types, gdr; } kinds[] = {
        {"plain", 0, 0}, {"fd", 1, 0}, {"fd_gdr", 1, 1}, {"gdr", 0, 1}, {"fabric", 8, 0}, {"fabric_fd_gdr", 9, 1}};
    for (int i = 0; i < COUNT(kinds); i++) {
        AllocProp prop = vmm_prop(kinds[i].types, kinds[i].gdr);
        size_t mn = 0, rec = 0;
        CUallochandle h = 0;
        j_obj(kinds[i].name);
        RC("granularity_rc", cu.Granularity(&mn, &prop, 0));
        cu.Granularity(&rec, &prop, 1);
        j_u("minimum", mn);
        j_u("recommended", rec);
        int rc;
        RC("create_4MiB", rc = cu.MemCreate(&h, 4 * MIB, &prop, 0));
        if (!rc) {
            AllocProp back;
            memset(&back, 0, sizeof back);
            cu.HandleProps(&back, h);
            j_i("said_handle_types", back.handle_types);
            j_i("said_gdr", back.flags.gpu_direct_rdma);
            CUipc blob;
            int fd = -1;
            if (kinds[i].types & 8) RC("export_fabric", cu.ExportHandle(&blob, h, HANDLE_FABRIC, 0));
            if (!(kinds[i].types & 1)) RC("export_fd_not_asked_for", cu.ExportHandle(&fd, h, HANDLE_FD, 0));
            cu.MemRelease(h);
        }
        j_end();
    }
    AllocProp prop = vmm_prop(HANDLE_FD, 1);
    CUallochandle h = 0;
    CUdeviceptr p = 0;
    j_obj("refusals");
    RC("create_size_1MiB", cu.MemCreate(&h, MIB, &prop, 0));
    RC("create_size_0", cu.MemCreate(&h, 0, &prop, 0));
    RC("create_size_beyond_card", cu.MemCreate(&h, 4096 * GIB, &prop, 0));
    RC("reserve_1MiB", cu.AddressReserve(&p, MIB, 0, 0, 0));
    RC("reserve_1TiB", cu.AddressReserve(&p, 1024 * GIB, 0, 0, 0));
    cu.AddressFree(p, 1024 * GIB);
    cu.AddressReserve(&p, 8 * MIB, 0, 0, 0);
    cu.MemCreate(&h, 4 * MIB, &prop, 0);
    RC("map_with_offset", cu.MemMap(p, 2 * MIB, 2 * MIB, h, 0));
    RC("map_part", cu.MemMap(p, 2 * MIB, 0, h, 0));
    cu.MemUnmap(p, 2 * MIB);
    RC("map_beyond_handle", cu.MemMap(p, 8 * MIB, 0, h, 0));
    RC("map", cu.MemMap(p, 4 * MIB, 0, h, 0));
    RC("map_twice_same_place", cu.MemMap(p, 4 * MIB, 0, h, 0));
    RC("map_same_handle_elsewhere", cu.MemMap(p + 4 * MIB, 4 * MIB, 0, h, 0));
    RC("access_of_half", vmm_access(p, 2 * MIB, PROT_RW));
    RC("access", vmm_access(p, 8 * MIB, PROT_RW));
    RC("access_read_only", vmm_access(p + 4 * MIB, 4 * MIB, PROT_R));
    AccessDesc host = {{LOC_HOST, 0}, PROT_RW};
    RC("access_for_host", cu.MemSetAccess(p, 4 * MIB, &host, 1));
    RC("unmap_half", cu.MemUnmap(p, 2 * MIB));
    RC("cuMemFree_on_vmm", cu.MemFree(p));
    RC("free_address_while_mapped", cu.AddressFree(p, 8 * MIB));
    RC("release_while_mapped", cu.MemRelease(h));
    int rc = 0;
    peek(p, &rc);
    j_rc("read_after_release", rc);
    RC("release_twice", cu.MemRelease(h));
    RC("unmap_both", cu.MemUnmap(p, 8 * MIB));
    RC("free_address", cu.AddressFree(p, 8 * MIB));
    j_end();
    static const struct { const char *name; size_t n; } sizes[] = {{"2MiB", 2 * MIB}, {"64MiB", 64 * MIB}, {"1GiB", GIB}};
    for (int s = 0; s < COUNT(sizes); s++) {
        double v[8][7];
        size_t n = sizes[s].n;
        rc = 0;
        for (int i = 0; i < 7 && !rc; i++) {
            int fd = -1;
            double t[9];
            t[0] = now_ns(); rc |= cu.MemCreate(&h, n, &prop, 0);
            t[1] = now_ns(); rc |= cu.AddressReserve(&p, n, 0, 0, 0);
            t[2] = now_ns(); rc |= cu.MemMap(p, n, 0, h, 0);
            t[3] = now_ns(); rc |= vmm_access(p, n, PROT_RW);
            t[4] = now_ns(); rc |= cu.ExportHandle(&fd, h, HANDLE_FD, 0);
            if (fd >= 0) close(fd);
            t[5] = now_ns(); rc |= cu.MemUnmap(p, n);
            t[6] = now_ns(); rc |= cu.MemRelease(h);
            t[7] = now_ns(); rc |= cu.AddressFree(p, n);
            t[8] = now_ns();
            for (int k = 0; k < 8; k++) v[k][i] = (t[k + 1] - t[k]) / 1e3;
        }
        static const char *what[8] = {"create_us", "reserve_us", "map_us", "set_access_us", "export_and_close_us", "unmap_us", "release_us", "address_free_us"};
        j_obj(sizes[s].name);
        j_rc("rc", rc);
        if (!rc) for (int k = 0; k < 8; k++) j_stat(what[k], v[k], 7);
        j_end();
    }
    rule_close();
}

static void rule_alloc_cost(int arg)
{
    (void)arg;
    rule_open("alloc-cost", "What do cuMemAlloc and cuMemFree cost, how are addresses aligned, what does the sum of small ones take?");
    up();
    static const size_t sizes[] = {512, 64 * KIB, MIB, 2 * MIB, 64 * MIB, GIB};
    for (int s = 0; s < COUNT(sizes); s++) {
        double a[9], f[9];
        CUdeviceptr p = 0, all = 0;
        size_t fr0 = 0, fr1 = 0, tot;
        int rc = 0, n = 0;
        cu.MemGetInfo(&fr0, &tot);
        for (; n < 9 && !rc; n++) {
            double t = now_ns();
            rc = cu.MemAlloc(&p, sizes[s]);
            a[n] = (now_ns() - t) / 1e3;
            all |= p;
            if (!n) cu.MemGetInfo(&fr1, &tot);
            t = now_ns();
            if (!rc) rc = cu.MemFree(p);
            f[n] = (now_ns() - t) / 1e3;
        }
        char k[32];
        snprintf(k, sizeof k, "%zu_bytes", sizes[s]);
        j_obj(k);
        j_rc("rc", rc);
        j_stat("alloc_us", a, n);
        j_stat("free_us", f, n);
        j_u("align", all & -all);
        j_i("taken_by_first_bytes", (long long)(fr0 - fr1));
        j_end();
    }
    j_obj("limits");
    size_t fr = 0, tot = 0;
    cu.MemGetInfo(&fr, &tot);
    CUdeviceptr p = 0;
    int rc;
    RC("alloc_free_plus_1GiB", rc = cu.MemAlloc(&p, fr + GIB));
    if (!rc) cu.MemFree(p);
    RC("alloc_twice_the_card", rc = cu.MemAlloc(&p, 2 * tot));
    if (!rc) cu.MemFree(p);
    RC("alloc_0", cu.MemAlloc(&p, 0));
    RC("context_afterwards", cu.CtxSynchronize());
    RC("free_0", cu.MemFree(0));
    p = dalloc(MIB);
    RC("free_inside", cu.MemFree(p + 512));
    RC("free", cu.MemFree(p));
    RC("free_twice", cu.MemFree(p));
    RC("free_host_pointer", cu.MemFree((CUdeviceptr)(uintptr_t)&fr));
    j_end();
    rule_close();
}

/* Does the call return before the copy has passed? Idle, and behind a closed gate. */
static void rule_copy_returns(int arg)
{
    rule_now = arg ? "copy-call-behind-gate" : "copy-call";
    asked_now = arg ? "The stream is held for 40 ms: does the call wait for that?"
                    : "How long does an asynchronous copy's call take, how long until it has passed?";
    up();
    size_t big = 64 * MIB;
    CUdeviceptr d = dalloc(big), d2 = dalloc(big);
    int fd = memfd(big);
    char *mem[5];
    static const char *kinds[] = {"pageable", "host_alloc", "registered", "registered_memfd", "second_mapping_of_registered_memfd"};
    mem[0] = anon(big);
    memset(mem[0], 1, big);
    mem[1] = halloc(big);
    mem[2] = anon(big);
    memset(mem[2], 1, big);
    cu.HostRegister(mem[2], big, HOST_PORTABLE);
    mem[3] = map_fd(fd, big, PROT_READ | PROT_WRITE);
    memset(mem[3], 1, big);
    cu.HostRegister(mem[3], big, HOST_PORTABLE);
    mem[4] = map_fd(fd, big, PROT_READ | PROT_WRITE);
    memset(mem[4], 1, big);
    static const size_t sizes[] = {64, 4 * KIB, 64 * KIB, 128 * KIB, MIB, 16 * MIB, 64 * MIB};
    for (int k = 0; k < COUNT(kinds) + 1; k++) {
        for (int dir = 0; dir < 2; dir++) {
            if (k == COUNT(kinds) && dir) continue;
            rule_open(rule_now, asked_now);
            j_s("memory", k == COUNT(kinds) ? "device" : kinds[k]);
            j_s("direction", k == COUNT(kinds) ? "DtoD" : dir ? "DtoH" : "HtoD");
            for (int s = 0; s < COUNT(sizes); s++) {
                if (arg && (s == 0 || s == 3 || s == 6)) continue;
                double call[5], all[5];
                int rc = 0, n = arg ? 1 : 5;
                for (int i = 0; i < n && !rc; i++) {
                    if (arg) { rc = gate_shut(st); gate_open_later(40); }
                    double t = now_ns();
                    if (!rc) rc = k == COUNT(kinds) ? cu.DtoDAsync(d, d2, sizes[s], st)
                                : dir ? cu.DtoHAsync(mem[k], d, sizes[s], st) : cu.HtoDAsync(d, mem[k], sizes[s], st);
                    call[i] = (now_ns() - t) / 1e3;
                    if (arg) gate_join();
                    int q = poll_stream(st, 2000);
                    if (!rc) rc = q;
                    all[i] = (now_ns() - t) / 1e3;
                }
                char key[32];
                snprintf(key, sizeof key, "%zu", sizes[s]);
                j_obj(key);
                j_rc("rc", rc);
                if (arg) { j_f("call_us", call[0]); j_b("call_waited", call[0] > 30e3); }
                else { j_stat("call_us", call, n); j_stat("passed_us", all, n); }
                j_end();
            }
            if (arg) j_s("gate", gate_kind);
            rule_close();
        }
    }
}

/* Which calls wait while work is outstanding on some stream of the context? */
static void rule_waits(int arg)
{
    (void)arg;
    rule_open("calls-that-wait", "A stream is held for 60 ms: which calls of the same thread do not come back before?");
    up();
    CUdeviceptr d = dalloc(4 * MIB), x = dalloc(64 * MIB), y = 0, small = dalloc(4096), so = dalloc(4 * MIB);
    char *reg = anon(4 * MIB), *reg2 = anon(4 * MIB);
    memset(reg, 1, 4 * MIB);
    memset(reg2, 1, 4 * MIB);
    cu.HostRegister(reg, 4 * MIB, HOST_PORTABLE);
    void *ha = halloc(4 * MIB), *hb = NULL, *work = halloc(MIB);
    CUdeviceptr v = 0, v2 = 0;
    CUallochandle vh = 0, vh2 = 0;
    vmm_make(&v, &vh, 2 * MIB, HANDLE_FD, 0, PROT_RW);
    CUevent e = NULL, e2 = NULL;
    CUstream s3 = NULL, s4 = NULL;
    cu.StreamCreate(&s3, STREAM_NON_BLOCKING);
    cu.EventCreate(&e, EVENT_NO_TIMING);
    CUdeviceptr pool = 0;
    cu.AllocAsync(&pool, MIB, st2);
    cu.StreamSync(st2);
    AllocProp prop = vmm_prop(HANDLE_FD, 0);
    CUipc ipc;
    int fd = -1, one = 1;
    u64 a[8];
    size_t f1, f2;
    CUcontext c;
    CUdeviceptr base;
#define UNDER(k, expr) do { \
        step(k); \
        int g_ = gate_shut(st); \
        gate_open_later(60); \
        cu.HtoDAsync(d, work, MIB, st); \
        double t_ = now_ns(); \
        int rc_ = (expr); \
        double dt_ = (now_ns() - t_) / 1e3; \
        gate_join(); \
        int q_ = cu.StreamSync(st); \
        j_obj(k); j_rc("rc", rc_); j_f("call_us", dt_); j_b("waited", dt_ > 45e3); \
        if (g_ || q_) { j_rc("gate", g_); j_rc("stream", q_); } \
        j_end(); \
    } while (0)
    UNDER("cuStreamQuery_of_held", cu.StreamQuery(st));
    UNDER("cuEventQuery", cu.EventQuery(e));
    UNDER("cuCtxPush_Pop", cu.CtxPush(ctx) | cu.CtxPop(&c));
    UNDER("cuPointerGetAttribute", cu.PointerGetAttribute(a, A_BUFFER_ID, d));
    UNDER("cuMemGetAddressRange", cu.MemGetAddressRange(&base, &f1, d));
    UNDER("cuMemGetInfo", cu.MemGetInfo(&f1, &f2));
    UNDER("cuMemcpyHtoDAsync_other_stream", cu.HtoDAsync(x, work, 4096, st2));
    UNDER("cuMemcpyHtoD_synchronous", cu.HtoD(x, reg2, 4096));
    UNDER("cuMemAlloc_4KiB", cu.MemAlloc(&y, 4096));
    UNDER("cuMemAlloc_64MiB", cu.MemAlloc(&y, 64 * MIB));
    UNDER("cuMemFree_4KiB", cu.MemFree(small));
    UNDER("cuMemFree_64MiB", cu.MemFree(x));
    UNDER("cuMemAllocAsync_other_stream", cu.AllocAsync(&x, MIB, st2));
    UNDER("cuMemFreeAsync_other_stream", cu.FreeAsync(pool, st2));
    UNDER("cuMemHostAlloc", cu.MemHostAlloc(&hb, 4 * MIB, HOST_PORTABLE));
    UNDER("cuMemFreeHost", cu.MemFreeHost(ha));
    UNDER("cuMemHostRegister", cu.HostRegister(reg2, 4 * MIB, HOST_PORTABLE));
    UNDER("cuMemHostUnregister", cu.HostUnregister(reg));
    UNDER("cuMemCreate", cu.MemCreate(&vh2, 2 * MIB, &prop, 0));
    UNDER("cuMemAddressReserve", cu.AddressReserve(&v2, 2 * MIB, 0, 0, 0));
    UNDER("cuMemMap", cu.MemMap(v2, 2 * MIB, 0, vh2, 0));
    UNDER("cuMemSetAccess", vmm_access(v2, 2 * MIB, PROT_RW));
    UNDER("cuMemExportToShareableHandle", cu.ExportHandle(&fd, vh2, HANDLE_FD, 0));
    UNDER("cuMemImportFromShareableHandle", cu.ImportHandle(&vh, (void *)(intptr_t)fd, HANDLE_FD));
    UNDER("cuMemUnmap", cu.MemUnmap(v2, 2 * MIB));
    UNDER("cuMemRelease", cu.MemRelease(vh2));
    UNDER("cuMemAddressFree", cu.AddressFree(v2, 2 * MIB));
    UNDER("cuIpcGetMemHandle", cu.IpcGetMem(&ipc, d));
    UNDER("cuMemGetHandleForAddressRange", cu.RangeHandle(&fd, d, 2 * MIB, 1, 0));
    UNDER("cuPointerSetAttribute_sync_memops", cu.PointerSetAttribute(&one, A_SYNC_MEMOPS, so));
    UNDER("cuFlushGPUDirectRDMAWrites", cu.FlushRdma(0, 100));
    UNDER("cuStreamCreate", cu.StreamCreate(&s4, STREAM_NON_BLOCKING));
    UNDER("cuStreamDestroy_of_another", cu.StreamDestroy(s3));
    UNDER("cuEventCreate", cu.EventCreate(&e2, EVENT_NO_TIMING));
    UNDER("cuEventDestroy", cu.EventDestroy(e2));
    UNDER("cuEventDestroy_of_outstanding", cu.EventRecord(e, st) | cu.EventDestroy(e));
    UNDER("cuDevicePrimaryCtxRetain_and_Release", cu.PrimaryRetain(&c, dev) | cu.PrimaryRelease(dev));
    UNDER("cuCtxSynchronize", cu.CtxSynchronize());
    UNDER("cuStreamDestroy_of_held", s4 ? cu.WaitValue64(s4, gate_dev, gate_seq, WAIT_GEQ) | cu.StreamDestroy(s4) : RC_MISSING);
    j_s("gate", gate_kind);
    rule_close();
}

/* Faults: one process a case. */
static volatile int host_called;
static void mark_called(void *arg) { (void)arg; host_called = 1; }
static const char *fault_names[] = {
    "HtoD of 1 MiB + 4096 into an allocation of 1 MiB", "HtoD of 64 MiB into an allocation of 4 MiB", "DtoH from a reserved address without memory",
    "HtoD into freed memory of 64 MiB", "DtoD from a good allocation to a reserved address without memory", "HtoD into VMM memory mapped without access",
    "HtoD into VMM memory with read access only", "cuMemcpyAsync from a host address without a mapping", "HtoD straddling the end of a registered range",
    "DtoH into a read only mapping registered as read only", "batch with a bad middle entry (reserved address without memory)",
    "write value to a reserved device address without memory", "write value to plain host memory", "copy on a destroyed stream",
    "record and query of a destroyed event", "stream and memory of a destroyed context", "HtoD of 64 MiB from a registered range of 1 MiB, rest without a mapping",
    "DtoD of 64 MiB out of an allocation of 4 MiB", "HtoD from registered memory that was unmapped since", "kernel writes to a bad address",
};
static void aftermath(CUdeviceptr good, void *pinned, volatile u64 *word, CUdeviceptr word_dev, CUevent e)
{
    j_obj("queued_behind_on_the_same_stream");
    RC("host_func", cu.HostFunc(st, mark_called, NULL));
    RC("write_value", cu.WriteValue64(st, word_dev, 4711, 0));
    RC("event_record", cu.EventRecord(e, st));
    double end = now_ns() + 300e6;
    while (now_ns() < end && !(*word == 4711 && host_called)) {}
    j_b("word_came", *word == 4711);
    j_b("host_func_called", host_called);
    j_end();
    u64 v[8] = {0};
    size_t a, b;
    CUdeviceptr p = 0;
    CUdevice d;
    j_obj("later_calls");
    RC("event_query", cu.EventQuery(e));
    RC("stream_query", cu.StreamQuery(st));
    RC("other_stream_query", cu.StreamQuery(st2));
    RC("stream_sync", cu.StreamSync(st));
    RC("ctx_sync", cu.CtxSynchronize());
    RC("copy_on_other_stream", cu.HtoDAsync(good, pinned, 4096, st2));
    RC("other_stream_sync", cu.StreamSync(st2));
    RC("get_device", cu.CtxGetDevice(&d));
    RC("attribute", cu.PointerGetAttribute(v, A_BUFFER_ID, good));
    RC("mem_info", cu.MemGetInfo(&a, &b));
    RC("alloc", cu.MemAlloc(&p, MIB));
    RC("host_register", cu.HostRegister(anon(4096), 4096, HOST_PORTABLE));
    RC("free", cu.MemFree(good));
    RC("free_host", cu.MemFreeHost(pinned));
    RC("event_destroy", cu.EventDestroy(e));
    RC("stream_destroy", cu.StreamDestroy(st2));
    CUcontext c = NULL;
    RC("set_current_none", cu.CtxSetCurrent(NULL));
    RC("primary_release", cu.PrimaryRelease(dev));
    RC("primary_retain", cu.PrimaryRetain(&c, dev));
    RC("set_current", cu.CtxSetCurrent(c));
    RC("alloc_in_new_context", cu.MemAlloc(&p, MIB));
    RC("copy_in_new_context", cu.HtoD(p, v, 8));
    j_end();
}
/* A crash in the driver: which address was touched? Goes into the step; then it dies as it would have. */
static uintptr_t segv_hole, segv_reg, segv_pinned;
static void on_segv(int sig, siginfo_t *si, void *uc)
{
    (void)uc;
    uintptr_t a = (uintptr_t)si->si_addr;
    char s[256];
    snprintf(s, sizeof s, "%.60s: touched 0x%lx (hole%+ld, unmapped%+ld, pinned%+ld)", shared ? shared->step : "", (unsigned long)a,
        (long)(a - segv_hole), (long)(a - segv_reg), (long)(a - segv_pinned));
    step(s);
    signal(sig, SIG_DFL);
}
static void rule_fault(int arg)
{
    rule_open("fault", "A call that must go wrong: which code at the call, what comes later, does the context die, does a new one work?");
    j_s("case", fault_names[arg]);
    up();
    CUdeviceptr good = dalloc(64 * MIB), d = 0, hole = 0, v = 0;
    CUallochandle vh = 0;
    char *pinned = halloc(64 * MIB);
    volatile u64 *word = halloc(4096);
    CUdeviceptr word_dev = hdev((void *)word);
    *word = 0;
    memset(pinned, 3, 64 * MIB);
    CUevent e = NULL;
    cu.EventCreate(&e, EVENT_NO_TIMING);
    cu.AddressReserve(&hole, 64 * MIB, 0, 0, 0);
    char *reg = mmap(NULL, 128 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cu.StreamSync(st);
    segv_hole = (uintptr_t)hole;
    segv_reg = (uintptr_t)reg;
    segv_pinned = (uintptr_t)pinned;
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_segv;
    sa.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &sa, NULL);
    switch (arg) {
    case 0: d = dalloc(MIB); RC("call", cu.HtoDAsync(d, pinned, MIB + 4096, st)); break;
    case 1: d = dalloc(4 * MIB); RC("call", cu.HtoDAsync(d, pinned, 64 * MIB, st)); break;
    case 2: RC("call", cu.DtoHAsync(pinned, hole, MIB, st)); break;
    case 3: d = dalloc(64 * MIB); cu.MemFree(d); RC("call", cu.HtoDAsync(d, pinned, 64 * MIB, st)); break;
    case 4: RC("call", cu.DtoDAsync(hole, good, MIB, st)); break;
    case 5: RC("make", vmm_make(&v, &vh, 4 * MIB, 0, 0, 0)); RC("call", cu.HtoDAsync(v, pinned, MIB, st)); break;
    case 6: RC("make", vmm_make(&v, &vh, 4 * MIB, 0, 0, PROT_R)); RC("call", cu.HtoDAsync(v, pinned, MIB, st)); break;
    case 7: munmap(reg, 128 * MIB); RC("call", cu.CopyAsync(good, (CUdeviceptr)(uintptr_t)reg, 4096, st)); break;
    case 8:
        memset(reg, 5, 2 * MIB);
        RC("register", cu.HostRegister(reg, MIB, HOST_PORTABLE));
        RC("call", cu.HtoDAsync(good, reg, 2 * MIB, st));
        break;
    case 9: {
        int fd = memfd(MIB);
        char *ro = map_fd(fd, MIB, PROT_READ);
        RC("register", cu.HostRegister(ro, MIB, HOST_PORTABLE | HOST_READ_ONLY));
        RC("read_from_it", cu.HtoDAsync(good, ro, MIB, st));
        RC("read_sync", cu.StreamSync(st));
        RC("call", cu.DtoHAsync(ro, good, MIB, st));
        break;
    }
    case 10: {
        CUdeviceptr dst[5], src[5];
        size_t size[5], idx = 0, fail = 99;
        CopyAttr ca = {1, {0, 0}, {0, 0}, 0};
        for (int i = 0; i < 5; i++) { dst[i] = good + (u64)i * 4096; src[i] = (CUdeviceptr)(uintptr_t)pinned; size[i] = 4096; }
        dst[2] = hole;
        RC("call", cu.CopyBatch(dst, src, size, 5, &ca, &idx, 1, &fail, st));
        j_i("fail_index", (long long)fail);
        break;
    }
    case 11: RC("call", cu.WriteValue64(st, hole, 1, 0)); break;
    case 12: RC("call", cu.WriteValue64(st, (CUdeviceptr)(uintptr_t)reg, 1, 0)); break;
    case 13: {
        CUstream s;
        cu.StreamCreate(&s, STREAM_NON_BLOCKING);
        cu.StreamDestroy(s);
        RC("query", cu.StreamQuery(s));
        RC("call", cu.HtoDAsync(good, pinned, 4096, s));
        break;
    }
    case 14: {
        CUevent x;
        cu.EventCreate(&x, EVENT_NO_TIMING);
        cu.EventDestroy(x);
        RC("query", cu.EventQuery(x));
        RC("call", cu.EventRecord(x, st));
        break;
    }
    case 15: {
        CUcontext c = NULL, old = NULL;
        CUstream s = NULL;
        CUevent x = NULL;
        RC("create", cu.CtxCreate(&c, 0, dev));
        cu.StreamCreate(&s, STREAM_NON_BLOCKING);
        cu.EventCreate(&x, EVENT_NO_TIMING);
        d = dalloc(MIB);
        RC("destroy", cu.CtxDestroy(c));
        RC("current", cu.CtxGetCurrent(&old));
        j_b("current_is_primary", old == ctx);
        cu.CtxSetCurrent(ctx);
        u64 a[8];
        RC("attribute", cu.PointerGetAttribute(a, A_MEMORY_TYPE, d));
        RC("free", cu.MemFree(d));
        RC("push", cu.CtxPush(c));
        cu.CtxSetCurrent(ctx);
        RC("event_query", cu.EventQuery(x));
        RC("stream_query", cu.StreamQuery(s));
        RC("call", cu.HtoDAsync(good, pinned, 4096, s));
        break;
    }
    case 16:
        memset(reg, 5, MIB);
        RC("register", cu.HostRegister(reg, MIB, HOST_PORTABLE));
        munmap(reg + MIB, 127 * MIB);
        RC("call", cu.HtoDAsync(good, reg, 64 * MIB, st));
        break;
    case 17: d = dalloc(4 * MIB); RC("call", cu.DtoDAsync(good, d, 64 * MIB, st)); break;
    case 18:
        memset(reg, 5, MIB);
        RC("register", cu.HostRegister(reg, MIB, HOST_PORTABLE));
        munmap(reg, MIB);
        RC("call", cu.HtoDAsync(good, reg, MIB, st));
        break;
    case 19: {
        static const char ptx[] =
            ".version 7.0\n.target sm_70\n.address_size 64\n"
            ".visible .entry bad(.param .u64 p)\n{\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [p];\nmov.u64 %rd2, 7;\nst.global.u64 [%rd1], %rd2;\nret;\n}\n";
        CUmodule m = NULL;
        CUfunction f = NULL;
        int rc;
        RC("load", rc = cu.ModuleLoadData(&m, ptx));
        if (rc) break;
        cu.ModuleGetFunction(&f, m, "bad");
        u64 where = hole;
        void *params[1] = {&where};
        RC("call", cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, st, params, NULL));
        break;
    }
    }
    aftermath(good, pinned, word, word_dev, e);
    rule_close();
}

/* Pages renewed under a registered address. */
static void rule_renew(int arg)
{
    (void)arg;
    rule_open("pages-renewed-under-registration", "Memory is registered, then other pages are mapped at the same address: which pages does the card use?");
    up();
    CUdeviceptr d = dalloc(4 * MIB);
    int a = memfd(MIB), b = memfd(MIB);
    volatile u64 *p = map_fd(a, MIB, PROT_READ | PROT_WRITE), *bv = map_fd(b, MIB, PROT_READ | PROT_WRITE), *av = map_fd(a, MIB, PROT_READ | PROT_WRITE);
    av[0] = 100;
    bv[0] = 200;
    RC("register", cu.HostRegister((void *)p, MIB, HOST_PORTABLE));
    if (mmap((void *)p, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, b, 0) == MAP_FAILED) abort();
    RC("htod", cu.HtoDAsync(d, (void *)p, 4096, st));
    RC("sync", cu.StreamSync(st));
    int rc = 0;
    j_u("read_by_copy_of_4KiB_100_old_200_new", peek(d, &rc));
    RC("htod_1MiB", cu.HtoDAsync(d, (void *)p, MIB, st));
    RC("sync_1MiB", cu.StreamSync(st));
    j_u("read_by_copy_of_1MiB_100_old_200_new", peek(d, &rc));
    RC("dtoh", cu.DtoHAsync((char *)p + 8192, d, 4096, st));
    RC("sync2", cu.StreamSync(st));
    j_b("card_wrote_old_pages", av[1024] != 0);
    j_b("card_wrote_new_pages", bv[1024] != 0);
    RC("register_again_over_it", cu.HostRegister((void *)p, MIB, HOST_PORTABLE));
    RC("unregister", cu.HostUnregister((void *)p));
    RC("register_after_unregister", cu.HostRegister((void *)p, MIB, HOST_PORTABLE));
    RC("htod3", cu.HtoDAsync(d, (void *)p, MIB, st));
    RC("sync3", cu.StreamSync(st));
    j_u("card_read_then", peek(d, &rc));
    /* Holes punched into a registered memfd. */
    cu.HostUnregister((void *)p);
    volatile u64 *q = map_fd(a, MIB, PROT_READ | PROT_WRITE);
    q[0] = 300;
    RC("register_for_hole", cu.HostRegister((void *)q, MIB, HOST_PORTABLE));
    int hole = fallocate(a, FALLOC_FL_KEEP_SIZE | 2 /* punch hole */, 0, MIB);
    j_i("punch_hole", hole ? errno : 0);
    q[0] = 400;
    cu.HtoDAsync(d, (void *)q, MIB, st);
    RC("sync4", cu.StreamSync(st));
    j_u("after_punch_copy_of_1MiB_read_300_old_400_new", peek(d, &rc));
    /* Is a small copy's source read in the call or at its turn in the stream? */
    volatile u64 *w = halloc(MIB);
    static const size_t sizes[] = {64, 4 * KIB, 16 * KIB, 64 * KIB, MIB};
    for (int i = 0; i < COUNT(sizes); i++) {
        char key[64];
        w[0] = 1;
        gate_shut(st);
        cu.HtoDAsync(d, (void *)w, sizes[i], st);
        w[0] = 2;
        gate_open();
        cu.StreamSync(st);
        snprintf(key, sizeof key, "behind_gate_%zu_bytes_read_1_in_call_2_at_turn", sizes[i]);
        j_u(key, peek(d, &rc));
    }
    rule_close();
}

static volatile double host_func_at;
static volatile int host_func_rc = -99;
static volatile long host_func_tid;
static void host_stamp(void *arg) { (void)arg; host_func_at = now_ns(); }
static void host_calls(void *arg)
{
    (void)arg;
    host_func_tid = syscall(SYS_gettid);
    host_func_rc = cu.StreamQuery(st2);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    host_func_at = 1;
}
static void rule_signals(int arg)
{
    (void)arg;
    rule_open("completion-costs", "What do events, stream questions, written words and host functions cost, and how late do they come?");
    up();
    double t[64], w[64];
    CUevent e = NULL;
    TIME_NS(t, 16, 8, { cu.EventCreate(&e, EVENT_NO_TIMING); cu.EventDestroy(e); });
    j_stat("event_create_destroy_ns", t, 16);
    cu.EventCreate(&e, EVENT_NO_TIMING);
    volatile u64 *word = halloc(4096);
    char *buf = halloc(MIB);
    CUdeviceptr wd = hdev((void *)word), d = dalloc(4 * MIB);
    cu.EventRecord(e, st);
    cu.StreamSync(st);
    TIME_NS(t, 32, 16, cu.EventRecord(e, st); );
    j_stat("event_record_ns", t, 32);
    cu.StreamSync(st);
    TIME_NS(t, 32, 64, cu.EventQuery(e));
    j_stat("event_query_done_ns", t, 32);
    TIME_NS(t, 32, 64, cu.StreamQuery(st));
    j_stat("stream_query_idle_ns", t, 32);
    gate_shut(st);
    cu.EventRecord(e, st);
    TIME_NS(t, 32, 64, cu.EventQuery(e));
    j_stat("event_query_pending_ns", t, 32);
    TIME_NS(t, 32, 64, cu.StreamQuery(st));
    j_stat("stream_query_busy_ns", t, 32);
    gate_open();
    cu.StreamSync(st);
    int rc = 0;
    TIME_NS(t, 32, 16, rc |= cu.WriteValue64(st, wd, 1, 0));
    j_rc("write_value_rc", rc);
    j_stat("write_value_call_ns", t, 32);
    cu.StreamSync(st);
    int no_barrier = 0;
    TIME_NS(t, 32, 16, no_barrier |= cu.WriteValue64(st, wd, 1, 1));
    j_rc("write_value_no_barrier_rc", no_barrier);
    j_stat("write_value_no_barrier_call_ns", t, 32);
    cu.StreamSync(st);
    rc = 0;
    TIME_NS(t, 32, 16, rc |= cu.WaitValue64(st, wd, 0, WAIT_GEQ));
    j_rc("wait_value_rc", rc);
    j_stat("wait_value_call_ns", t, 32);
    cu.StreamSync(st);
    RC("write_value_to_device_memory", cu.WriteValue64(st, d, 1, 0));
    RC("write_value_misaligned", cu.WriteValue64(st, wd + 4, 1, 0));
    char *regw = anon(4096);
    cu.HostRegister(regw, 4096, HOST_PORTABLE);
    RC("write_value_by_host_pointer_of_registered", cu.WriteValue64(st, (CUdeviceptr)(uintptr_t)regw, 5, 0));
    RC("sync", cu.StreamSync(st));
    j_u("its_word", *(u64 *)regw);
    /* From the call to the word on an idle stream, and from the gate to the word. */
    for (int i = 0; i < 64; i++) {
        *word = 0;
        double t0 = now_ns();
        cu.WriteValue64(st, wd, (u64)i + 1, 0);
        while (*word != (u64)i + 1 && now_ns() - t0 < 1e8) {}
        t[i] = (now_ns() - t0) / 1e3;
    }
    j_stat("word_from_call_us", t, 64);
    for (int i = 0; i < 64; i++) {
        *word = 0;
        gate_shut(st);
        cu.WriteValue64(st, wd, (u64)i + 1, 0);
        sleep_ms(0.2);
        double t0 = now_ns();
        gate_open();
        while (*word != (u64)i + 1 && now_ns() - t0 < 1e8) {}
        t[i] = (now_ns() - t0) / 1e3;
    }
    j_stat("gate_to_word_us", t, 64);
    for (int i = 0; i < 64; i++) {
        double t0 = now_ns();
        cu.HtoDAsync(d, buf, 4096, st);
        *word = 0;
        cu.WriteValue64(st, wd, 77, 0);
        while (*word != 77 && now_ns() - t0 < 1e8) {}
        t[i] = (now_ns() - t0) / 1e3;
        t0 = now_ns();
        cu.HtoDAsync(d, buf, 4096, st);
        cu.EventRecord(e, st);
        while (cu.EventQuery(e) == NOT_READY && now_ns() - t0 < 1e8) {}
        w[i] = (now_ns() - t0) / 1e3;
    }
    j_stat("copy4k_then_word_us", t, 64);
    j_stat("copy4k_then_event_us", w, 64);
    for (int i = 0; i < 32; i++) {
        host_func_at = 0;
        double t0 = now_ns();
        rc = cu.HostFunc(st, host_stamp, NULL);
        double t1 = now_ns();
        while (!host_func_at && now_ns() - t0 < 1e8) {}
        t[i] = t1 - t0;
        w[i] = (host_func_at - t0) / 1e3;
        cu.StreamSync(st);
    }
    j_rc("host_func_rc", rc);
    j_stat("host_func_call_ns", t, 32);
    j_stat("host_func_called_after_us", w, 32);
    for (int i = 0; i < 16; i++) {
        host_func_at = 0;
        gate_shut(st);
        cu.HostFunc(st, host_stamp, NULL);
        sleep_ms(5);
        double t0 = now_ns();
        gate_open();
        while (!host_func_at && now_ns() - t0 < 1e9) {}
        w[i] = (host_func_at - t0) / 1e3;
    }
    j_stat("gate_to_host_func_after_5ms_us", w, 16);
    TIME_NS(t, 16, 1, { CUstream s; cu.StreamCreate(&s, STREAM_NON_BLOCKING); cu.StreamDestroy(s); });
    j_stat("stream_create_destroy_ns", t, 16);
    TIME_NS(t, 32, 16, cu.StreamWaitEvent(st2, e, 0));
    j_stat("stream_wait_event_ns", t, 32);
    rule_close();

    /* Is everything there when the word is seen? */
    rule_open("word-after-bytes", "When the written word is seen, are all bytes of the copies before it there (DtoH, 300 rounds each)?");
    CUdeviceptr src = dalloc(4 * MIB);
    for (int nb = 0; nb < 3; nb++) {
        if (nb == 1 && no_barrier) { j_rc("no_barrier_flag", no_barrier); continue; } /* refused: no word would come */
        int late = 0;
        size_t n = 256 * KIB;
        for (int i = 0; i < 300; i++) {
            unsigned char mark = (unsigned char)(i % 250 + 1);
            cu.MemsetAsync(src, mark, n, st);
            if (nb == 2) { for (int k = 0; k < 64; k++) cu.DtoHAsync(buf + k * 4096, src + (u64)k * 4096, 4096, st); }
            else cu.DtoHAsync(buf, src, n, st);
            *word = 0;
            cu.WriteValue64(st, wd, (u64)i + 1, nb == 1 ? 1 : 0);
            double s0 = now_ns();
            while (__atomic_load_n((u64 *)word, __ATOMIC_ACQUIRE) != (u64)i + 1 && now_ns() - s0 < 1e8) {}
            for (size_t k = 0; k < n; k += 4096) if ((unsigned char)buf[k] != mark || (unsigned char)buf[k + 4095] != mark) { late++; break; }
            cu.StreamSync(st);
        }
        j_i(nb == 0 ? "late_rounds_one_copy" : nb == 1 ? "late_rounds_no_barrier_flag" : "late_rounds_64_copies", late);
    }
    rule_close();
}

/* May deadlock by contract, so it stands alone. */
static void rule_host_func(int arg)
{
    (void)arg;
    rule_open("call-inside-host-function", "What does a driver call inside a host function give, and on which thread does it run?");
    up();
    host_func_at = 0;
    RC("launch", cu.HostFunc(st, host_calls, NULL));
    double t0 = now_ns();
    while (!host_func_at && now_ns() - t0 < 1e9) {}
    if (host_func_at) j_rc("cuStreamQuery_inside", host_func_rc);
    else j_s("cuStreamQuery_inside", "no answer within 1 s");
    j_b("on_another_thread", host_func_tid != syscall(SYS_gettid));
    rule_close();
}

/* How much can be queued? */
struct depth { volatile int stop; double worst; int rounds; CUdeviceptr d; void *h; };
static void *depth_other(void *arg)
{
    struct depth *x = arg;
    cu.CtxSetCurrent(ctx);
    while (!x->stop) {
        double t = now_ns();
        cu.HtoDAsync(x->d, x->h, 4096, st2);
        double dt = now_ns() - t;
        if (dt > x->worst) x->worst = dt;
        x->rounds++;
        cu.StreamSync(st2);
        double all = now_ns() - t;
        if (all > x->worst) x->worst = all;
        sleep_ms(5);
    }
    return NULL;
}
static void rule_depth(int arg)
{
    (void)arg;
    rule_open("queue-depth", "Behind a closed gate: how many calls are taken before one waits (limit 16384, batches 64), and does another thread's stream suffer meanwhile?");
    up();
    CUdeviceptr d = dalloc(64 * MIB);
    char *h = halloc(64 * MIB);
    CUevent e = NULL;
    cu.EventCreate(&e, EVENT_NO_TIMING);
    volatile u64 *word = halloc(4096);
    CUdeviceptr wd = hdev((void *)word);
    static CUdeviceptr dst[256], src[256];
    static size_t size[256];
    for (int i = 0; i < 256; i++) { dst[i] = d + (u64)i * 8192; src[i] = (CUdeviceptr)(uintptr_t)h + (u64)i * 8192; size[i] = 4096; }
    CopyAttr ca = {1, {0, 0}, {0, 0}, 0};
    size_t idx = 0, fail;
    static const char *names[] = {"HtoD_4KiB", "DtoD_4KiB", "batches_of_256_x_4KiB", "event_record", "write_value", "host_func"};
    for (int k = 0; k < COUNT(names); k++) {
        int n = 0, rc = gate_shut(st);
        struct depth x = {0, 0, 0, d + 32 * MIB, h + 32 * MIB};
        pthread_t other;
        if (pthread_create(&other, NULL, depth_other, &x)) abort();
        gate_open_later(1200);
        double waited = 0, begin = now_ns();
        for (; n < (k == 2 ? 64 : 16384) && !rc; n++) {
            double t = now_ns();
            switch (k) {
            case 0: rc = cu.HtoDAsync(dst[n % 256], h, 4096, st); break;
            case 1: rc = cu.DtoDAsync(dst[n % 256], d + 48 * MIB, 4096, st); break;
            case 2: rc = cu.CopyBatch(dst, src, size, 256, &ca, &idx, 1, &fail, st); break;
            case 3: rc = cu.EventRecord(e, st); break;
            case 4: rc = cu.WriteValue64(st, wd, 1, 0); break;
            case 5: rc = cu.HostFunc(st, mark_called, NULL); break;
            }
            if (now_ns() - t > 50e6) { waited = now_ns() - t; break; }
            if (now_ns() - begin > 1.1e9) break;
        }
        double took = now_ns() - begin;
        gate_join();
        x.stop = 1;
        pthread_join(other, NULL);
        int q = poll_stream(st, 3000);
        j_obj(names[k]);
        j_rc("rc", rc);
        j_rc("stream", q);
        j_i("taken_before_wait", n);
        j_f("waited_ms", waited / 1e6);
        j_f("took_ms", took / 1e6);
        j_f("other_thread_worst_ms", x.worst / 1e6);
        j_i("other_thread_rounds", x.rounds);
        j_end();
    }
    j_s("gate", gate_kind);
    rule_close();
}

static void rule_held_streams(int arg)
{
    (void)arg;
    rule_open("held-streams", "N streams are held by a gate, with nothing or with copies behind it: do copies of each direction on further streams pass?");
    up();
    static const int counts[] = {1, 2, 3, 4, 8, 16, 32};
    CUstream s[32], st3 = NULL;
    CUdeviceptr d = dalloc(4 * MIB);
    char *h = halloc(4 * MIB);
    for (int i = 0; i < 32; i++) cu.StreamCreate(&s[i], STREAM_NON_BLOCKING);
    cu.StreamCreate(&st3, STREAM_NON_BLOCKING);
    for (int copies = 0; copies < 2; copies++) for (int i = 0; i < COUNT(counts); i++) {
        int rc = 0;
        for (int k = 0; k < counts[i]; k++) {
            rc |= gate_shut(s[k]);
            if (!copies) continue;
            cu.HtoDAsync(d, h, 4096, s[k]);
            cu.DtoHAsync(h, d, 4096, s[k]);
        }
        int r[3];
        cu.HtoDAsync(d + MIB, h + MIB, 64 * KIB, st);
        r[0] = poll_stream(st, 100);
        cu.DtoHAsync(h + 2 * MIB, d + 2 * MIB, 64 * KIB, st2);
        r[1] = poll_stream(st2, 100);
        cu.DtoDAsync(d + 3 * MIB, d + 3 * MIB + 512 * KIB, 64 * KIB, st3);
        r[2] = poll_stream(st3, 100);
        gate_open();
        rc |= cu.CtxSynchronize();
        char key[32];
        snprintf(key, sizeof key, "%d_%s", counts[i], copies ? "with_copies" : "gate_only");
        j_obj(key);
        j_rc("rc", rc);
        j_rc("HtoD", r[0]);
        j_rc("DtoH", r[1]);
        j_rc("DtoD", r[2]);
        j_end();
    }
    j_s("gate", gate_kind);
    rule_close();
}

/* Many small blocks: one call each against one batch. */
static u64 rnd_state = 88172645463325252ull;
static u64 rnd(void)
{
    rnd_state ^= rnd_state << 13;
    rnd_state ^= rnd_state >> 7;
    rnd_state ^= rnd_state << 17;
    return rnd_state;
}
static void rule_batch(int arg)
{
    static const char *dirs[] = {"HtoD", "DtoH", "DtoD", "HtoD and DtoH by turns"};
    rule_now = "scattered-blocks";
    asked_now = "N blocks at shuffled places with gaps: cost of one call each, one cuMemcpyAsync each and one batch; submit is a block's share, passed the whole?";
    up();
    enum { N = 4096 };
    size_t span = 2ul * N * 64 * KIB;
    CUdeviceptr a = dalloc(span), b = arg == 2 ? dalloc(span) : 0;
    char *h = arg == 2 ? NULL : halloc(span);
    static CUdeviceptr dst[N], src[N];
    static size_t size[N];
    static u64 order[N];
    static const size_t sizes[] = {4 * KIB, 16 * KIB, 64 * KIB};
    static const int counts[] = {1, 8, 64, 512, 4096};
    for (int s = 0; s < COUNT(sizes); s++) {
        for (int c = 0; c < COUNT(counts); c++) {
            int n = counts[c];
            for (int i = 0; i < n; i++) order[i] = (u64)i;
            for (int i = n - 1; i > 0; i--) { int k = (int)(rnd() % (u64)(i + 1)); u64 x = order[i]; order[i] = order[k]; order[k] = x; }
            for (int i = 0; i < n; i++) {
                u64 at = 2 * order[i] * sizes[s], to = 2 * (u64)i * sizes[s];
                int dir = arg == 3 ? i % 2 : arg;
                src[i] = dir == 0 ? (CUdeviceptr)(uintptr_t)h + at : dir == 1 ? a + at : b + at;
                dst[i] = dir == 1 ? (CUdeviceptr)(uintptr_t)h + to : a + to;
                size[i] = sizes[s];
            }
            rule_open(rule_now, asked_now);
            j_s("direction", dirs[arg]);
            j_u("block_bytes", sizes[s]);
            j_i("blocks", n);
            for (int how = 0; how < 5; how++) {
                static const char *hows[] = {"call_each", "memcpy_async_each", "batch", "batch_prefer_overlap", "one_contiguous"};
                if (how == 4 && arg == 3) continue;
                double sub[7], all[7];
                int rc = 0, done = 0;
                size_t fail = 0, idx = 0;
                CopyAttr ca = {1, {0, 0}, {0, 0}, how == 3};
                for (int r = 0; r < 8 && !rc; r++) {
                    double t0 = now_ns();
                    if (how == 0) {
                        for (int i = 0; i < n && !rc; i++) {
                            int dir = arg == 3 ? i % 2 : arg;
                            rc = dir == 0 ? cu.HtoDAsync(dst[i], (void *)(uintptr_t)src[i], size[i], st)
                               : dir == 1 ? cu.DtoHAsync((void *)(uintptr_t)dst[i], src[i], size[i], st) : cu.DtoDAsync(dst[i], src[i], size[i], st);
                        }
                    } else if (how == 1) {
                        for (int i = 0; i < n && !rc; i++) rc = cu.CopyAsync(dst[i], src[i], size[i], st);
                    } else if (how < 4) rc = cu.CopyBatch(dst, src, size, (size_t)n, &ca, &idx, 1, &fail, st);
                    else {
                        size_t total = (size_t)n * sizes[s];
                        rc = arg == 0 ? cu.HtoDAsync(a, h, total, st) : arg == 1 ? cu.DtoHAsync(h, a, total, st) : cu.DtoDAsync(a, b, total, st);
                    }
                    double t1 = now_ns();
                    int q = poll_stream(st, 4000);
                    double t2 = now_ns();
                    if (!rc) rc = q;
                    if (r == 0 || rc) continue; /* the first warms up */
                    sub[done] = (t1 - t0) / n;
                    all[done] = (t2 - t0) / 1e3;
                    done++;
                }
                j_obj(hows[how]);
                j_rc("rc", rc);
                if (!rc) {
                    double best = all[0];
                    for (int i = 0; i < done; i++) if (all[i] < best) best = all[i];
                    double m = median(all, done);
                    j_stat("submit_per_block_ns", sub, done);
                    j_stat("passed_us", all, done);
                    j_f("median_gbps", (double)n * (double)sizes[s] / m / 1e3);
                    j_f("best_gbps", (double)n * (double)sizes[s] / best / 1e3);
                }
                j_end();
            }
            rule_close();
        }
    }
    if (arg) return;
    rule_open("batch-edges", "What does the batch call say to odd input?");
    CopyAttr ca = {1, {0, 0}, {0, 0}, 0};
    size_t idx = 0, fail = 99;
    dst[0] = a; src[0] = (CUdeviceptr)(uintptr_t)h; size[0] = 4096;
    dst[1] = a + 8192; src[1] = (CUdeviceptr)(uintptr_t)h; size[1] = 0;
#define EDGE(k, expr) do { fail = 99; RC(k, expr); j_i(k "_fail_index", (long long)fail); } while (0)
    EDGE("count_0", cu.CopyBatch(dst, src, size, 0, &ca, &idx, 1, &fail, st));
    EDGE("an_entry_of_0_bytes", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st));
    size[1] = 4096;
    EDGE("no_attributes", cu.CopyBatch(dst, src, size, 2, NULL, NULL, 0, &fail, st));
    EDGE("fail_index_null", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, NULL, st));
    EDGE("access_order_0", (ca.src_access_order = 0, cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st)));
    EDGE("access_order_during_call", (ca.src_access_order = 2, cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st)));
    EDGE("access_order_any", (ca.src_access_order = 3, cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st)));
    ca.src_access_order = 1;
    EDGE("null_stream", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, NULL));
    char *plain = anon(64 * KIB);
    memset(plain, 1, 64 * KIB);
    src[1] = (CUdeviceptr)(uintptr_t)plain;
    EDGE("pageable_source", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st));
    src[1] = (CUdeviceptr)(uintptr_t)h;
    dst[1] = (CUdeviceptr)(uintptr_t)h + MIB;
    EDGE("host_to_host_entry", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st));
    dst[1] = a;
    EDGE("two_entries_to_one_place", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st));
    dst[1] = 0;
    EDGE("null_destination", cu.CopyBatch(dst, src, size, 2, &ca, &idx, 1, &fail, st));
    RC("sync", cu.StreamSync(st));
    rule_close();
}

static void rule_strided(int arg)
{
    (void)arg;
    rule_now = "strided";
    asked_now = "Rows with a gap as wide as the row: cuMemcpy2DAsync and cuMemcpy3DAsync against one call a row?";
    up();
    size_t span = 256 * MIB;
    CUdeviceptr a = dalloc(span), b = dalloc(span);
    char *h = halloc(span);
    static const char *dirs[] = {"HtoD", "DtoH", "DtoD"};
    static const struct { size_t width; int rows; } cases[] = {{512, 1024}, {4 * KIB, 64}, {4 * KIB, 1024}, {16 * KIB, 1024}, {64 * KIB, 64}, {64 * KIB, 1024}};
    for (int dir = 0; dir < 3; dir++)
        for (int c = 0; c < COUNT(cases); c++) {
            rule_open(rule_now, asked_now);
            j_s("direction", dirs[dir]);
            j_u("row_bytes", cases[c].width);
            j_i("rows", cases[c].rows);
            static const char *hows[] = {"copy_2d_both_strided", "copy_2d_one_side_packed", "copy_3d_8_planes", "call_each"};
            for (int how = 0; how < 4; how++) {
                double sub[7], all[7];
                int rc = 0, n = 0, rows = cases[c].rows;
                size_t w = cases[c].width;
                for (int r = 0; r < 8 && !rc; r++) {
                    double t0 = now_ns();
                    if (how < 2) {
                        Copy2D x;
                        memset(&x, 0, sizeof x);
                        x.src_type = dir == 0 ? TYPE_HOST : TYPE_DEVICE;
                        x.src_host = h;
                        x.src_device = dir == 1 ? a : b;
                        x.src_pitch = 2 * w;
                        x.dst_type = dir == 1 ? TYPE_HOST : TYPE_DEVICE;
                        x.dst_host = h;
                        x.dst_device = a;
                        x.dst_pitch = how ? w : 2 * w;
                        x.width = w;
                        x.height = (size_t)rows;
                        rc = cu.Copy2DAsync(&x, st);
                    } else if (how == 2) {
                        Copy3D x;
                        memset(&x, 0, sizeof x);
                        x.src_type = dir == 0 ? TYPE_HOST : TYPE_DEVICE;
                        x.src_host = h;
                        x.src_device = dir == 1 ? a : b;
                        x.src_pitch = 2 * w;
                        x.src_height = (size_t)rows / 8;
                        x.dst_type = dir == 1 ? TYPE_HOST : TYPE_DEVICE;
                        x.dst_host = h;
                        x.dst_device = a;
                        x.dst_pitch = 2 * w;
                        x.dst_height = (size_t)rows / 8;
                        x.width = w;
                        x.height = (size_t)rows / 8;
                        x.depth = 8;
                        rc = cu.Copy3DAsync(&x, st);
                    } else
                        for (int i = 0; i < rows && !rc; i++) {
                            size_t at = 2 * w * (size_t)i;
                            rc = dir == 0 ? cu.HtoDAsync(a + at, h + at, w, st) : dir == 1 ? cu.DtoHAsync(h + at, a + at, w, st) : cu.DtoDAsync(a + at, b + at, w, st);
                        }
                    double t1 = now_ns();
                    int q = poll_stream(st, 4000);
                    double t2 = now_ns();
                    if (!rc) rc = q;
                    if (r == 0 || rc) continue;
                    sub[n] = (t1 - t0) / 1e3;
                    all[n++] = (t2 - t0) / 1e3;
                }
                j_obj(hows[how]);
                j_rc("rc", rc);
                if (!rc) {
                    double m = median(all, n);
                    j_stat("call_us", sub, n);
                    j_stat("passed_us", all, n);
                    j_f("median_gbps", (double)rows * (double)w / m / 1e3);
                }
                j_end();
            }
            rule_close();
        }
}

/* Bandwidth with a bounded number of chunks under way, by events as a mover would do it. */
static double pump(int dir, CUdeviceptr d, char *h, size_t chunk, int depth, size_t total, CUstream s, CUevent *ev, int *rc)
{
    size_t n = total / chunk, head = 0, tail = 0, slots = 256 * MIB / chunk;
    double t = now_ns();
    while (tail < n && !*rc) {
        if (head < n && head - tail < (size_t)depth) {
            size_t at = head % slots * chunk;
            *rc = dir ? cu.DtoHAsync(h + at, d + at, chunk, s) : cu.HtoDAsync(d + at, h + at, chunk, s);
            if (!*rc) *rc = cu.EventRecord(ev[head % 16], s);
            head++;
        } else {
            int q = cu.EventQuery(ev[tail % 16]);
            if (q == 0) tail++;
            else if (q != NOT_READY) *rc = q;
        }
        if (now_ns() - t > 5e9) *rc = RC_NO_ANSWER;
    }
    return (now_ns() - t);
}
struct pump_job { int dir; CUdeviceptr d; char *h; size_t chunk, total; int depth, rc; double ns; CUstream s; CUevent *ev; pthread_barrier_t *bar; };
static void *pump_thread(void *arg)
{
    struct pump_job *j = arg;
    cu.CtxSetCurrent(ctx);
    pthread_barrier_wait(j->bar);
    j->ns = pump(j->dir, j->d, j->h, j->chunk, j->depth, j->total, j->s, j->ev, &j->rc);
    return NULL;
}
static void rule_bandwidth(int arg)
{
    (void)arg;
    rule_now = "bandwidth";
    asked_now = "Pinned memory, chunks of one size, so many under way on one stream: how fast?";
    up();
    size_t span = 256 * MIB;
    CUdeviceptr a = dalloc(span), b = dalloc(span);
    char *h = halloc(span), *h2 = halloc(span);
    static CUevent ev[2][16];
    for (int i = 0; i < 16; i++) { cu.EventCreate(&ev[0][i], EVENT_NO_TIMING); cu.EventCreate(&ev[1][i], EVENT_NO_TIMING); }
    static const size_t chunks[] = {64 * KIB, 256 * KIB, 512 * KIB, MIB, 4 * MIB, 16 * MIB};
    static const int depths[] = {1, 2, 4, 8};
    for (int dir = 0; dir < 3; dir++)
        for (int c = 0; c < COUNT(chunks); c++) {
            rule_open(rule_now, asked_now);
            j_s("direction", dir == 0 ? "HtoD" : dir == 1 ? "DtoH" : "both at once, a thread and a stream each");
            j_u("chunk_bytes", chunks[c]);
            for (int k = 0; k < COUNT(depths); k++) {
                double v[5], w[5];
                int rc = 0;
                size_t total = chunks[c] < MIB ? 64 * MIB : 256 * MIB;
                for (int r = 0; r < 5 && !rc; r++) {
                    if (dir < 2) v[r] = (double)total / pump(dir, a, h, chunks[c], depths[k], total, st, ev[0], &rc);
                    else {
                        pthread_barrier_t bar;
                        pthread_barrier_init(&bar, NULL, 2);
                        struct pump_job j[2] = {{0, a, h, chunks[c], total, depths[k], 0, 0, st, ev[0], &bar}, {1, b, h2, chunks[c], total, depths[k], 0, 0, st2, ev[1], &bar}};
                        pthread_t th;
                        if (pthread_create(&th, NULL, pump_thread, &j[1])) abort();
                        pump_thread(&j[0]);
                        pthread_join(th, NULL);
                        pthread_barrier_destroy(&bar);
                        rc = j[0].rc ? j[0].rc : j[1].rc;
                        v[r] = (double)total / j[0].ns;
                        w[r] = (double)total / j[1].ns;
                    }
                }
                char key[32];
                if (rc) { snprintf(key, sizeof key, "under_way_%d", depths[k]); j_rc(key, rc); continue; }
                snprintf(key, sizeof key, dir == 2 ? "under_way_%d_htod_gbps" : "under_way_%d_gbps", depths[k]);
                j_stat(key, v, 5);
                if (dir == 2) { snprintf(key, sizeof key, "under_way_%d_dtoh_gbps", depths[k]); j_stat(key, w, 5); }
            }
            rule_close();
        }
    rule_open("bandwidth-local", "Device to device, device fill, and the processor's copy between pageable and pinned memory: how fast (bytes copied, not read plus written)?");
    static const size_t sizes[] = {64 * KIB, MIB, 16 * MIB, 256 * MIB};
    for (int c = 0; c < COUNT(sizes); c++) {
        double v[9];
        char key[48];
        int rc = 0, reps = sizes[c] < 16 * MIB ? 64 : 8;
        for (int r = 0; r < 9; r++) {
            double t = now_ns();
            for (int k = 0; k < reps; k++) rc |= cu.DtoDAsync(b, a, sizes[c], st);
            rc |= poll_stream(st, 4000);
            v[r] = (double)sizes[c] * reps / (now_ns() - t);
        }
        snprintf(key, sizeof key, "DtoD_%zu_bytes_gbps", sizes[c]);
        if (rc) j_rc(key, rc); else j_stat(key, v, 9);
    }
    double v[9];
    for (int r = 0; r < 5; r++) { double t = now_ns(); cu.MemsetAsync(a, 1, span, st); poll_stream(st, 4000); v[r] = (double)span / (now_ns() - t); }
    j_stat("fill_gbps", v, 5);
    char *plain = anon(64 * MIB);
    memset(plain, 1, 64 * MIB);
    for (int r = 0; r < 7; r++) { double t = now_ns(); memcpy(h, plain, 64 * MIB); v[r] = 64.0 * MIB / (now_ns() - t); }
    j_stat("cpu_into_pinned_gbps", v, 7);
    for (int r = 0; r < 7; r++) { double t = now_ns(); memcpy(plain, h2, 64 * MIB); v[r] = 64.0 * MIB / (now_ns() - t); }
    j_stat("cpu_out_of_pinned_gbps", v, 7);
    rule_close();
}

struct submit_job { CUstream s; CUdeviceptr d; double ns; pthread_barrier_t *bar; int rc; };
static void *submit_thread(void *arg)
{
    struct submit_job *j = arg;
    cu.CtxSetCurrent(ctx);
    pthread_barrier_wait(j->bar);
    double t = now_ns();
    for (int i = 0; i < 512; i++) j->rc |= cu.DtoDAsync(j->d, j->d + MIB, 4096, j->s);
    j->ns = (now_ns() - t) / 512;
    return NULL;
}
static void rule_threads(int arg)
{
    (void)arg;
    rule_open("submit-threads", "N threads put 4 KiB DtoD copies on streams of their own: cost of a call in each?");
    up();
    CUstream s[8];
    CUdeviceptr d = dalloc(64 * MIB);
    for (int i = 0; i < 8; i++) cu.StreamCreate(&s[i], STREAM_NON_BLOCKING);
    static const int counts[] = {1, 2, 4, 8};
    for (int c = 0; c < COUNT(counts); c++) {
        double v[64];
        int n = 0, rc = 0;
        for (int r = 0; r < 7; r++) {
            pthread_barrier_t bar;
            pthread_barrier_init(&bar, NULL, (unsigned)counts[c]);
            struct submit_job j[8];
            pthread_t th[8];
            for (int i = 0; i < counts[c]; i++) {
                j[i] = (struct submit_job){s[i], d + (u64)i * 4 * MIB, 0, &bar, 0};
                if (pthread_create(&th[i], NULL, submit_thread, &j[i])) abort();
            }
            for (int i = 0; i < counts[c]; i++) { pthread_join(th[i], NULL); rc |= j[i].rc; if (r) v[n++] = j[i].ns; }
            cu.CtxSynchronize();
            pthread_barrier_destroy(&bar);
        }
        char key[32];
        snprintf(key, sizeof key, "threads_%d_call_ns", counts[c]);
        if (rc) j_rc(key, rc);
        j_stat(key, v, n);
    }
    rule_close();
}

static void pin_cost(const char *name, int kind, size_t n, unsigned flags)
{
    double a[5], b[5], touch[5];
    int rc = 0, k = 0;
    for (; k < 5 && !rc; k++) {
        int fd = -1;
        char *p;
        if (kind == 0 || kind == 3) p = anon(n);
        else { fd = memfd(n); p = map_fd(fd, n, PROT_READ | PROT_WRITE); }
        if (kind == 3) madvise(p, n, MADV_HUGEPAGE);
        double t = now_ns();
        if (kind != 2) memset(p, 1, n);
        touch[k] = (now_ns() - t) / 1e6;
        t = now_ns();
        rc = cu.HostRegister(p, n, flags);
        a[k] = (now_ns() - t) / 1e6;
        t = now_ns();
        if (!rc) rc = cu.HostUnregister(p);
        b[k] = (now_ns() - t) / 1e6;
        munmap(p, n);
        if (fd >= 0) close(fd);
    }
    j_obj(name);
    j_rc("rc", rc);
    j_stat("touch_ms", touch, k);
    j_stat("register_ms", a, k);
    j_stat("unregister_ms", b, k);
    j_end();
}
static void rule_pin_cost(int arg)
{
    (void)arg;
    rule_open("pin-cost", "What do cuMemHostRegister, unregister and cuMemHostAlloc cost?");
    up();
    unsigned pd = HOST_PORTABLE | HOST_DEVICEMAP;
    pin_cost("private_2MiB", 0, 2 * MIB, pd);
    pin_cost("private_64MiB", 0, 64 * MIB, pd);
    pin_cost("private_1GiB", 0, GIB, pd);
    pin_cost("private_256MiB_no_flags", 0, 256 * MIB, 0);
    pin_cost("private_512MiB_huge_pages_asked", 3, 512 * MIB, pd);
    pin_cost("memfd_64MiB", 1, 64 * MIB, pd);
    pin_cost("memfd_1GiB", 1, GIB, pd);
    pin_cost("memfd_256MiB_untouched", 2, 256 * MIB, pd);
    static const size_t sizes[] = {64 * KIB, 2 * MIB, 64 * MIB, GIB};
    for (int i = 0; i < COUNT(sizes); i++) {
        double a[5], b[5];
        int rc = 0, k = 0;
        for (; k < 5 && !rc; k++) {
            void *p = NULL;
            double t = now_ns();
            rc = cu.MemHostAlloc(&p, sizes[i], pd);
            a[k] = (now_ns() - t) / 1e6;
            t = now_ns();
            if (!rc) rc = cu.MemFreeHost(p);
            b[k] = (now_ns() - t) / 1e6;
        }
        char key[48];
        snprintf(key, sizeof key, "cuMemHostAlloc_%zu_bytes", sizes[i]);
        j_obj(key);
        j_rc("rc", rc);
        j_stat("alloc_ms", a, k);
        j_stat("free_ms", b, k);
        j_end();
    }
    rule_close();
}

static void rule_pin_codes(int arg)
{
    (void)arg;
    rule_open("pin-codes", "Which codes does cuMemHostRegister give to odd input?");
    up();
    unsigned pd = HOST_PORTABLE | HOST_DEVICEMAP;
    char *p = anon(4 * MIB);
    memset(p, 1, 4 * MIB);
    j_i("VmPin_kB_before", status_kb("VmPin:"));
    j_i("VmLck_kB_before", status_kb("VmLck:"));
    RC("register", cu.HostRegister(p + MIB, MIB, pd));
    j_i("VmPin_kB_after_1MiB", status_kb("VmPin:"));
    j_i("VmLck_kB_after_1MiB", status_kb("VmLck:"));
    RC("same_again", cu.HostRegister(p + MIB, MIB, pd));
    RC("part_of_it", cu.HostRegister(p + MIB + 64 * KIB, 64 * KIB, pd));
    RC("around_it", cu.HostRegister(p, 4 * MIB, pd));
    RC("straddling_its_end", cu.HostRegister(p + MIB + 512 * KIB, MIB, pd));
    RC("right_behind_it", cu.HostRegister(p + 2 * MIB, 64 * KIB, pd));
    RC("copy_across_two_neighbouring_registrations", cu.HtoDAsync(dalloc(MIB), p + 2 * MIB - 64 * KIB, 128 * KIB, st));
    RC("its_sync", cu.StreamSync(st));
    RC("unregister_inside", cu.HostUnregister(p + MIB + 4096));
    RC("unregister_plain", cu.HostUnregister(p));
    RC("unregister", cu.HostUnregister(p + MIB));
    RC("unregister_twice", cu.HostUnregister(p + MIB));
    RC("unaligned", cu.HostRegister(p + 100, 1000, pd));
    RC("second_unaligned_in_same_page", cu.HostRegister(p + 2000, 1000, pd));
    RC("zero_bytes", cu.HostRegister(p + MIB, 0, pd));
    RC("unknown_flag", cu.HostRegister(p + MIB, MIB, 0x100));
    RC("null", cu.HostRegister(NULL, MIB, pd));
    char *gone = anon(MIB);
    munmap(gone, MIB);
    RC("not_mapped", cu.HostRegister(gone, MIB, pd));
    char *none = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RC("no_rights", cu.HostRegister(none, MIB, pd));
    char *end = anon(2 * MIB);
    munmap(end + MIB, MIB);
    RC("beyond_the_mapping", cu.HostRegister(end, 2 * MIB, pd));
    RC("device_memory", cu.HostRegister((void *)(uintptr_t)dalloc(MIB), MIB, pd));
    RC("memory_of_cuMemHostAlloc", cu.HostRegister(halloc(MIB), MIB, pd));
    int fd = memfd(4 * MIB);
    char *ro = map_fd(fd, MIB, PROT_READ);
    RC("read_only_mapping", cu.HostRegister(ro, MIB, pd));
    cu.HostUnregister(ro);
    RC("read_only_mapping_with_flag", cu.HostRegister(ro, MIB, pd | HOST_READ_ONLY));
    cu.HostUnregister(ro);
    char *a = map_fd(fd, 4 * MIB, PROT_READ | PROT_WRITE), *b = map_fd(fd, 4 * MIB, PROT_READ | PROT_WRITE);
    RC("memfd_first_mapping", cu.HostRegister(a, 4 * MIB, pd));
    RC("memfd_second_mapping_same_pages", cu.HostRegister(b, 4 * MIB, pd));
    RC("unregister_second", cu.HostUnregister(b));
    RC("unregister_first", cu.HostUnregister(a));
#ifdef F_ADD_SEALS
    int sfd = (int)syscall(SYS_memfd_create, "sealed", 3u);
    if (sfd >= 0 && !ftruncate(sfd, (off_t)MIB)) {
        j_i("seal", fcntl(sfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
        char *s = map_fd(sfd, MIB, PROT_READ | PROT_WRITE);
        RC("sealed_memfd", cu.HostRegister(s, MIB, pd));
    }
#endif
    char path[] = "/tmp/driver_rules_XXXXXX";
    int file = mkstemp(path);
    if (file >= 0 && !ftruncate(file, (off_t)MIB)) {
        unlink(path);
        char *m = map_fd(file, MIB, PROT_READ | PROT_WRITE);
        RC("file_of_tmp", cu.HostRegister(m, MIB, pd));
        char *pm = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        RC("file_of_tmp_private", cu.HostRegister(pm, MIB, pd));
    }
    struct rlimit r = {64 * KIB, 64 * KIB};
    int lim = setrlimit(RLIMIT_MEMLOCK, &r);
    char *big = anon(16 * MIB);
    j_i("setrlimit_memlock_64KiB", lim);
    RC("register_16MiB_under_memlock_64KiB", cu.HostRegister(big, 16 * MIB, pd));
    void *hp = NULL;
    RC("host_alloc_16MiB_under_memlock_64KiB", cu.MemHostAlloc(&hp, 16 * MIB, pd));
    rule_close();
}

static void rule_dmabuf(int arg)
{
    (void)arg;
    rule_open("dma-buf", "Which ranges does the driver give a dma-buf of, with which flags, at which cost?");
    up();
    CUdeviceptr a = dalloc(8 * MIB), small = dalloc(4096), v = 0, u = 0, pool = 0, m = 0, two = 0;
    CUallochandle h1 = 0, h2 = 0, t1 = 0, t2 = 0;
    vmm_make(&v, &h1, 8 * MIB, HANDLE_FD, 1, PROT_RW);
    vmm_make(&u, &h2, 8 * MIB, HANDLE_FD, 0, PROT_RW);
    AllocProp prop = vmm_prop(HANDLE_FD, 1);
    cu.AddressReserve(&two, 8 * MIB, 0, 0, 0);
    cu.MemCreate(&t1, 4 * MIB, &prop, 0);
    cu.MemCreate(&t2, 4 * MIB, &prop, 0);
    cu.MemMap(two, 4 * MIB, 0, t1, 0);
    cu.MemMap(two + 4 * MIB, 4 * MIB, 0, t2, 0);
    vmm_access(two, 8 * MIB, PROT_RW);
    cu.AllocAsync(&pool, 8 * MIB, st);
    cu.StreamSync(st);
    cu.MemAllocManaged(&m, 8 * MIB, 1);
    void *ha = halloc(8 * MIB);
    char *reg = anon(8 * MIB);
    memset(reg, 1, 8 * MIB);
    cu.HostRegister(reg, 8 * MIB, 3);
    struct { const char *name; CUdeviceptr p; size_t n; unsigned long long flags; } cases[] = {
        {"cuMemAlloc_whole", a, 8 * MIB, 0}, {"cuMemAlloc_whole_flag_pcie", a, 8 * MIB, 1}, {"cuMemAlloc_flag_unknown", a, 8 * MIB, 8},
        {"cuMemAlloc_64KiB_at_64KiB", a + 64 * KIB, 64 * KIB, 0}, {"cuMemAlloc_4KiB_at_4KiB", a + 4096, 4096, 0},
        {"cuMemAlloc_address_off_by_512", a + 512, 64 * KIB, 0}, {"cuMemAlloc_size_off_by_512", a, 64 * KIB + 512, 0},
        {"cuMemAlloc_beyond_the_end", a + 4 * MIB, 8 * MIB, 0}, {"cuMemAlloc_zero", a, 0, 0},
        {"cuMemAlloc_small_4KiB", small & ~4095ull, 4096, 0}, {"cuMemAlloc_small_64KiB_around", small & ~65535ull, 64 * KIB, 0},
        {"cuMemAlloc_small_2MiB_around", small & ~(2 * MIB - 1), 2 * MIB, 0},
        {"vmm_gdr", v, 8 * MIB, 0}, {"vmm_gdr_flag_pcie", v, 8 * MIB, 1}, {"vmm_no_gdr", u, 8 * MIB, 0},
        {"vmm_gdr_4KiB_at_4KiB", v + 4096, 4096, 0}, {"vmm_two_handles", two, 8 * MIB, 0}, {"vmm_second_handle", two + 4 * MIB, 4 * MIB, 0},
        {"pool", pool, 8 * MIB, 0}, {"managed", m, 8 * MIB, 0}, {"cuMemHostAlloc", (CUdeviceptr)(uintptr_t)ha, 8 * MIB, 0},
        {"registered_host", (CUdeviceptr)(uintptr_t)reg, 8 * MIB, 0}, {"nothing_there", 0x10000, 4096, 0},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        int fd = -1;
        char link[64], to[128] = "";
        step(cases[i].name);
        int rc = cu.RangeHandle(&fd, cases[i].p, cases[i].n, 1, cases[i].flags);
        j_obj(cases[i].name);
        j_rc("rc", rc);
        if (!rc) {
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t k = readlink(link, to, sizeof to - 1);
            if (k > 0) to[k] = 0;
            j_s("is", to);
            j_i("size_by_lseek", (long long)lseek(fd, 0, SEEK_END));
            void *mm = mmap(NULL, cases[i].n, PROT_READ, MAP_SHARED, fd, 0);
            j_s("mmap", mm == MAP_FAILED ? strerror(errno) : "works");
            if (mm != MAP_FAILED) munmap(mm, cases[i].n);
            close(fd);
        }
        j_end();
    }
    double t[9], c[9];
    int rc = 0;
    for (int i = 0; i < 9; i++) {
        int fd = -1;
        double x = now_ns();
        rc |= cu.RangeHandle(&fd, v, 8 * MIB, 1, 0);
        t[i] = (now_ns() - x) / 1e3;
        x = now_ns();
        if (fd >= 0) close(fd);
        c[i] = (now_ns() - x) / 1e3;
    }
    j_rc("cost_rc", rc);
    j_stat("make_us", t, 9);
    j_stat("close_us", c, 9);
    /* Memory freed while its dma-buf is open. */
    CUdeviceptr big = dalloc(256 * MIB);
    int fd = -1;
    size_t f0 = 0, f1 = 0, f2 = 0, tot;
    RC("of_256MiB", cu.RangeHandle(&fd, big, 256 * MIB, 1, 0));
    cu.MemGetInfo(&f0, &tot);
    RC("free_while_open", cu.MemFree(big));
    cu.MemGetInfo(&f1, &tot);
    if (fd >= 0) close(fd);
    cu.MemGetInfo(&f2, &tot);
    j_i("given_back_at_free_bytes", (long long)(f1 - f0));
    j_i("given_back_at_close_bytes", (long long)(f2 - f1));
    rule_close();
}

static void rule_gdr(int arg)
{
    (void)arg;
    rule_open("flush-and-sync-memops", "cuFlushGPUDirectRDMAWrites: code and cost; SYNC_MEMOPS: on which memory can it be set, what does it change?");
    up();
    double t[32];
    RC("flush_owner", cu.FlushRdma(0, 100));
    RC("flush_all_devices", cu.FlushRdma(0, 200));
    RC("flush_bad_scope", cu.FlushRdma(0, 5));
    TIME_NS(t, 32, 8, cu.FlushRdma(0, 100));
    j_stat("flush_owner_ns", t, 32);
    TIME_NS(t, 32, 8, cu.FlushRdma(0, 200));
    j_stat("flush_all_ns", t, 32);
    CUdeviceptr a = dalloc(32 * MIB), b = dalloc(32 * MIB), v = 0, pool = 0, m = 0;
    CUallochandle h = 0;
    vmm_make(&v, &h, 4 * MIB, HANDLE_FD, 1, PROT_RW);
    cu.AllocAsync(&pool, MIB, st);
    cu.StreamSync(st);
    cu.MemAllocManaged(&m, MIB, 1);
    void *ha = halloc(32 * MIB);
    char *reg = anon(MIB);
    cu.HostRegister(reg, MIB, 3);
    CUdeviceptr part = dalloc(4096), next = dalloc(4096);
    struct { const char *name; CUdeviceptr p; } kinds[] = {{"cuMemAlloc", a}, {"cuMemAlloc_4KiB", part}, {"vmm", v}, {"pool", pool}, {"managed", m},
        {"cuMemHostAlloc", (CUdeviceptr)(uintptr_t)ha}, {"registered", (CUdeviceptr)(uintptr_t)reg}, {"plain", (CUdeviceptr)(uintptr_t)&t}};
    double before[7], after[7], off[7];
    for (int i = 0; i < 7; i++) { double x = now_ns(); cu.DtoDAsync(b, a, 32 * MIB, st); before[i] = (now_ns() - x) / 1e3; cu.StreamSync(st); }
    for (int i = 0; i < COUNT(kinds); i++) {
        unsigned one = 1, zero = 0, got = 9;
        j_obj(kinds[i].name);
        double x = now_ns();
        RC("set", cu.PointerSetAttribute(&one, A_SYNC_MEMOPS, kinds[i].p));
        j_f("set_us", (now_ns() - x) / 1e3);
        u64 w[8] = {0};
        RC("get", cu.PointerGetAttribute(w, A_SYNC_MEMOPS, kinds[i].p));
        got = (unsigned)w[0] & 0xff;
        j_u("value", got);
        if (i == 1) { cu.PointerGetAttribute(w, A_SYNC_MEMOPS, next); j_u("neighbour_has", w[0] & 0xff); }
        if (i) RC("unset", cu.PointerSetAttribute(&zero, A_SYNC_MEMOPS, kinds[i].p));
        j_end();
    }
    for (int i = 0; i < 7; i++) { double x = now_ns(); cu.DtoDAsync(b, a, 32 * MIB, st); after[i] = (now_ns() - x) / 1e3; cu.StreamSync(st); }
    j_stat("dtod_32MiB_call_before_us", before, 7);
    j_stat("dtod_32MiB_call_with_sync_memops_us", after, 7);
    for (int i = 0; i < 7; i++) { double x = now_ns(); cu.HtoDAsync(a, ha, 32 * MIB, st); after[i] = (now_ns() - x) / 1e3; cu.StreamSync(st); }
    j_stat("htod_32MiB_call_with_sync_memops_us", after, 7);
    unsigned zero = 0;
    RC("unset", cu.PointerSetAttribute(&zero, A_SYNC_MEMOPS, a));
    for (int i = 0; i < 7; i++) { double x = now_ns(); cu.DtoDAsync(b, a, 32 * MIB, st); off[i] = (now_ns() - x) / 1e3; cu.StreamSync(st); }
    j_stat("dtod_32MiB_call_unset_again_us", off, 7);
    rule_close();
}

static void *capture_other(void *arg)
{
    CUdeviceptr p = 0;
    CUevent e = arg;
    j_obj("other_thread_no_exchange");
    cu.CtxSetCurrent(ctx);
    RC("event_query", cu.EventQuery(e));
    RC("stream_query", cu.StreamQuery(st2));
    RC("alloc", cu.MemAlloc(&p, MIB));
    j_end();
    return NULL;
}
static void rule_capture(int arg)
{
    rule_open("capture", arg ? "A stream is being captured (mode global): which calls are refused, and do they spoil the capture, with the thread's mode exchanged for relaxed?"
                             : "A stream is being captured (mode global): which calls are refused, and do they spoil the capture, without more?");
    j_b("relaxed", arg);
    up();
    CUdeviceptr d = dalloc(4 * MIB), p = 0;
    char *h = halloc(MIB);
    CUdeviceptr hd = hdev(h);
    void *hp = NULL;
    CUevent e = NULL;
    cu.EventCreate(&e, EVENT_NO_TIMING);
    cu.EventRecord(e, st2);
    cu.StreamSync(st2);
    static const char *names[] = {"event_query", "copy_other_stream", "stream_query_other", "event_record_other", "pointer_attribute", "mem_info",
        "alloc", "free_of_it", "host_alloc", "host_register", "stream_create", "write_value_other", "vmm_create", "stream_sync_other", "ctx_sync"};
    for (int i = 0; i < COUNT(names); i++) {
        CUgraph g = NULL;
        int mode = 2, rc = RC_MISSING;
        u64 v[8];
        size_t f, t;
        AllocProp prop = vmm_prop(0, 0);
        CUallochandle ah = 0;
        CUstream s = NULL;
        step(names[i]);
        int begin = cu.BeginCapture(st, 0);
        if (arg) cu.CaptureMode(&mode);
        switch (i) {
        case 0: rc = cu.EventQuery(e); break;
        case 1: rc = cu.HtoDAsync(d, h, 4096, st2); break;
        case 2: rc = cu.StreamQuery(st2); break;
        case 3: rc = cu.EventRecord(e, st2); break;
        case 4: rc = cu.PointerGetAttribute(v, A_BUFFER_ID, d); break;
        case 5: rc = cu.MemGetInfo(&f, &t); break;
        case 6: rc = cu.MemAlloc(&p, MIB); break;
        case 7: rc = p ? cu.MemFree(p) : 0; break; /* nothing to free where alloc was refused */
        case 8: rc = cu.MemHostAlloc(&hp, 4096, 0); break;
        case 9: rc = cu.HostRegister(anon(4096), 4096, 0); break;
        case 10: rc = cu.StreamCreate(&s, STREAM_NON_BLOCKING); break;
        case 11: rc = cu.WriteValue64(st2, hd, 1, 0); break;
        case 12: rc = cu.MemCreate(&ah, 2 * MIB, &prop, 0); break;
        case 13: rc = cu.StreamSync(st2); break;
        case 14: rc = cu.CtxSynchronize(); break;
        }
        if (arg) cu.CaptureMode(&mode);
        int end = cu.EndCapture(st, &g);
        if (g) cu.GraphDestroy(g);
        j_obj(names[i]);
        j_rc("call", rc);
        if (begin) j_rc("begin", begin);
        j_rc("end_capture", end);
        j_end();
    }
    CUgraph g = NULL;
    RC("begin", cu.BeginCapture(st, 0));
    pthread_t th;
    if (pthread_create(&th, NULL, capture_other, e)) abort();
    pthread_join(th, NULL);
    RC("end_after_other_thread", cu.EndCapture(st, &g));
    double t[32];
    int mode = 2;
    TIME_NS(t, 32, 64, cu.CaptureMode(&mode));
    j_stat("exchange_mode_ns", t, 32);
    rule_close();
}

static void rule_names(int arg)
{
    (void)arg;
    rule_open("error-names", "Does the driver call its codes what this program calls them, what says it to an unknown code?");
    up_without_context();
    int same = 0;
    j_obj("different");
    for (int i = 0; i < COUNT(codes); i++) {
        const char *s = NULL;
        int rc = cu.GetErrorName(codes[i].code, &s);
        if (!rc && s && !strcmp(s, codes[i].name)) { same++; continue; }
        char key[16];
        snprintf(key, sizeof key, "%d", codes[i].code);
        j_s(key, rc || !s ? "(none)" : s);
    }
    j_end();
    j_i("same", same);
    j_i("of", COUNT(codes));
    const char *s = "untouched";
    RC("of_12345", cu.GetErrorName(12345, &s));
    j_s("its_name", s ? s : "null");
    rule_close();
}

static void rule_kernel(int arg)
{
    (void)arg;
    rule_open("kernel", "Can a small PTX program be loaded at run time, and what do load and launch cost?");
    up();
    static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry mark(.param .u64 p)\n{\n.reg .b64 %rd<3>;\nld.param.u64 %rd1, [p];\nmov.u64 %rd2, 7;\nst.global.u64 [%rd1], %rd2;\nret;\n}\n";
    CUmodule m = NULL;
    CUfunction f = NULL;
    double x = now_ns();
    int rc;
    RC("load", rc = cu.ModuleLoadData(&m, ptx));
    j_f("load_ms_one_sample", (now_ns() - x) / 1e6);
    if (!rc) RC("function", rc = cu.ModuleGetFunction(&f, m, "mark"));
    if (!rc) {
        CUdeviceptr d = dalloc(4096);
        void *params[1] = {&d};
        double t[32], w[32];
        RC("launch", cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, st, params, NULL));
        RC("sync", cu.StreamSync(st));
        int prc = 0;
        j_u("word_7_is_right", peek(d, &prc));
        for (int i = 0; i < 32; i++) {
            double t0 = now_ns();
            cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, st, params, NULL);
            t[i] = now_ns() - t0;
            poll_stream(st, 1000);
            w[i] = (now_ns() - t0) / 1e3;
        }
        j_stat("launch_call_ns", t, 32);
        j_stat("launch_passed_us", w, 32);
        /* A kernel reads and writes pinned host memory by its host address. */
        u64 *h = halloc(4096);
        *h = 0;
        CUdeviceptr hd = hdev(h);
        void *hp[1] = {&hd};
        RC("launch_on_pinned", cu.LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, st, hp, NULL));
        RC("sync_on_pinned", cu.StreamSync(st));
        j_u("pinned_word", *h);
        char bad[] = "not ptx";
        RC("load_garbage", cu.ModuleLoadData(&m, bad));
    }
    rule_close();
}

/* ================= rules of several processes =================
 * The rule's own process never touches the driver: it gives commands to
 * workers, so that a worker's death or silence is an answer, too. */

enum op { OP_UP, OP_ALLOC, OP_FREE, OP_FILL, OP_PEEK, OP_GET, OP_OPEN, OP_CLOSE, OP_ATTRS, OP_INFO, OP_VMM, OP_VMM_FREE, OP_EXPORT, OP_IMPORT, OP_MAP,
    OP_EVENT, OP_EVENT_OPEN, OP_EVENT_RECORD, OP_EVENT_QUERY, OP_EVENT_WAIT, OP_SHM, OP_QUEUE_DTOH, OP_QUEUE_HTOD, OP_COUNT, OP_SYNC, OP_COPY,
    OP_POOL, OP_POOL_IMPORT, OP_DMABUF, OP_GATE, OP_OPEN_GATE, OP_SYNC_MEMOPS, OP_EXIT, OP_UNREGISTER };
struct msg { int op, rc, fd, pad; u64 a, b, c, d; double us; CUipc ipc; char text[4096]; };
struct worker { pid_t pid; int fd, dead; };

static int send_msg(int sock, struct msg *m)
{
    struct iovec iov = {m, sizeof *m};
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } u;
    struct msghdr h;
    memset(&h, 0, sizeof h);
    memset(&u, 0, sizeof u);
    h.msg_iov = &iov;
    h.msg_iovlen = 1;
    if (m->fd >= 0) {
        h.msg_control = u.space;
        h.msg_controllen = sizeof u.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &m->fd, sizeof(int));
    }
    return sendmsg(sock, &h, MSG_NOSIGNAL) == (ssize_t)sizeof *m ? 0 : -1;
}
static int recv_msg(int sock, struct msg *m)
{
    struct iovec iov = {m, sizeof *m};
    union { struct cmsghdr h; char space[CMSG_SPACE(sizeof(int))]; } u;
    struct msghdr h;
    memset(&h, 0, sizeof h);
    h.msg_iov = &iov;
    h.msg_iovlen = 1;
    h.msg_control = u.space;
    h.msg_controllen = sizeof u.space;
    if (recvmsg(sock, &h, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *m) return -1;
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    m->fd = -1;
    if (c && c->cmsg_type == SCM_RIGHTS) memcpy(&m->fd, CMSG_DATA(c), sizeof(int));
    return 0;
}

static CUevent w_event;
static char *w_shm;
static size_t w_shm_size;
static u64 w_gate_at;
static void worker_do(struct msg *m)
{
    double t = now_ns();
    u64 v = 0;
    CUdeviceptr p = 0;
    CUallochandle h = 0;
    int fd = m->fd;
    m->fd = -1;
    switch (m->op) {
    case OP_UP: up(); m->rc = 0; break;
    case OP_ALLOC: m->rc = cu.MemAlloc(&p, m->a); m->a = p; break;
    case OP_FREE: m->rc = cu.MemFree(m->a); break;
    case OP_FILL: m->rc = cu.MemsetAsync(m->a, (unsigned char)m->c, m->b, st); if (!m->rc) m->rc = cu.StreamSync(st); break;
    case OP_PEEK: m->rc = cu.DtoHAsync(&v, m->a, 8, st); if (!m->rc) m->rc = cu.StreamSync(st); m->a = v; break;
    case OP_GET: m->rc = cu.IpcGetMem(&m->ipc, m->a); break;
    case OP_OPEN: m->rc = cu.IpcOpenMem(&p, m->ipc, 1); m->a = p; break;
    case OP_CLOSE: m->rc = cu.IpcCloseMem(m->a); break;
    case OP_ATTRS: {
        char *j = J;
        size_t n = Jn, cap = Jcap;
        J = m->text; Jn = 0; Jcap = sizeof m->text;
        j_raw("{");
        j_attrs(m->a);
        j_raw("}");
        J = j; Jn = n; Jcap = cap;
        m->rc = 0;
        break;
    }
    case OP_INFO: { size_t f = 0, tot = 0; m->rc = cu.MemGetInfo(&f, &tot); m->a = f; m->b = tot; break; }
    case OP_VMM: m->b = m->a; m->rc = vmm_make(&p, &h, m->a, (int)m->c, 1, PROT_RW); m->a = p; m->c = h; break;
    case OP_VMM_FREE: vmm_drop(m->a, m->c, m->b); m->rc = 0; break;
    case OP_EXPORT: {
        int out = -1;
        m->rc = cu.ExportHandle(&out, m->c, HANDLE_FD, 0);
        m->us = (now_ns() - t) / 1e3;
        m->fd = out;
        return;
    }
    case OP_IMPORT: m->rc = cu.ImportHandle(&h, (void *)(intptr_t)fd, HANDLE_FD); m->c = h; break;
    case OP_MAP: /* a: size, c: handle, d: access flags */
        m->rc = cu.AddressReserve(&p, m->a, 0, 0, 0);
        if (!m->rc) m->rc = cu.MemMap(p, m->a, 0, m->c, 0);
        if (!m->rc) m->rc = vmm_access(p, m->a, (int)m->d);
        m->b = m->a;
        m->a = p;
        break;
    case OP_EVENT: m->rc = cu.EventCreate(&w_event, (unsigned)m->a); if (!m->rc) m->rc = cu.IpcGetEvent(&m->ipc, w_event); break;
    case OP_EVENT_OPEN: m->rc = cu.IpcOpenEvent(&w_event, m->ipc); break;
    case OP_EVENT_RECORD: m->rc = cu.EventRecord(w_event, st); break;
    case OP_EVENT_QUERY: m->rc = cu.EventQuery(w_event); break;
    case OP_EVENT_WAIT: m->rc = cu.StreamWaitEvent(st, w_event, 0); break;
    case OP_SHM: w_shm_size = m->a; w_shm = map_fd(fd, m->a, PROT_READ | PROT_WRITE); t = now_ns(); m->rc = cu.HostRegister(w_shm, m->a, HOST_PORTABLE | HOST_DEVICEMAP); break;
    case OP_UNREGISTER: m->rc = cu.HostUnregister(w_shm); break;
    case OP_QUEUE_DTOH: { /* a: chunk, b: chunks, c: passes: pass k writes byte k + 1 */
        CUdeviceptr s[16];
        m->rc = 0;
        for (u64 k = 0; k < m->c && !m->rc; k++) {
            s[k] = dalloc(m->a);
            m->rc = cu.MemsetAsync(s[k], (unsigned char)(k + 1), m->a, st);
        }
        if (!m->rc) m->rc = cu.StreamSync(st);
        t = now_ns();
        for (u64 k = 0; k < m->c && !m->rc; k++)
            for (u64 i = 0; i < m->b && !m->rc; i++) m->rc = cu.DtoHAsync(w_shm + i * m->a, s[k], m->a, st);
        break;
    }
    case OP_QUEUE_HTOD: { /* d: target, a: chunk, b: chunks, c: passes */
        char *s[16];
        m->rc = 0;
        for (u64 k = 0; k < m->c; k++) { s[k] = halloc(m->a); memset(s[k], (int)k + 1, m->a); }
        t = now_ns();
        for (u64 k = 0; k < m->c && !m->rc; k++)
            for (u64 i = 0; i < m->b && !m->rc; i++) m->rc = cu.HtoDAsync(m->d + i * m->a, s[k], m->a, st);
        break;
    }
    case OP_COUNT: { /* a: start, b: chunks, c: chunk: sum of the last byte of each */
        Copy2D x;
        static unsigned char got[4096];
        memset(&x, 0, sizeof x);
        x.src_type = TYPE_DEVICE;
        x.src_device = m->a + m->c - 1;
        x.src_pitch = m->c;
        x.dst_type = TYPE_HOST;
        x.dst_host = got;
        x.dst_pitch = 1;
        x.width = 1;
        x.height = m->b;
        m->rc = cu.Copy2DAsync(&x, st2);
        if (!m->rc) m->rc = cu.StreamSync(st2);
        m->a = 0;
        for (u64 i = 0; i < m->b; i++) m->a += got[i];
        break;
    }
    case OP_SYNC: m->rc = cu.StreamSync(st); break;
    case OP_COPY: m->rc = cu.DtoDAsync(m->a, m->b, m->c, st); if (!m->rc) m->rc = cu.StreamSync(st); break;
    case OP_POOL: {
        CUpool pool = NULL;
        PoolProps pp;
        memset(&pp, 0, sizeof pp);
        pp.alloc_type = 1;
        pp.handle_types = HANDLE_FD;
        pp.location.type = LOC_DEVICE;
        pp.location.id = dev;
        int out = -1;
        m->rc = cu.PoolCreate(&pool, &pp);
        if (!m->rc) m->rc = cu.AllocFromPool(&p, m->a, pool, st);
        if (!m->rc) m->rc = cu.StreamSync(st);
        if (!m->rc) m->rc = cu.PoolExport(&out, pool, HANDLE_FD, 0);
        if (!m->rc) m->rc = cu.PoolExportPtr(&m->ipc, p);
        m->a = p;
        m->fd = out;
        break;
    }
    case OP_POOL_IMPORT: {
        CUpool pool = NULL;
        m->rc = cu.PoolImport(&pool, (void *)(intptr_t)fd, HANDLE_FD, 0);
        AccessDesc a = {{LOC_DEVICE, dev}, PROT_RW};
        m->d = 0;
        if (!m->rc) m->d = (u64)cu.PoolSetAccess(pool, &a, 1);
        if (!m->rc) m->rc = cu.PoolImportPtr(&p, pool, &m->ipc);
        m->a = p;
        break;
    }
    case OP_DMABUF: { int out = -1; m->rc = cu.RangeHandle(&out, m->a, m->b, 1, 0); m->fd = out; break; }
    case OP_GATE: m->rc = gate_shut(st); w_gate_at = gate_seq; break;
    case OP_OPEN_GATE: gate_open(); m->rc = 0; break;
    case OP_SYNC_MEMOPS: { unsigned one = 1; m->rc = cu.PointerSetAttribute(&one, A_SYNC_MEMOPS, m->a); break; }
    case OP_EXIT: if (m->a) exit(0); _exit(0);
    }
    m->us = (now_ns() - t) / 1e3;
    if (fd >= 0) close(fd);
}
static struct worker worker_start(void)
{
    int sv[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sv)) abort();
    struct worker w = {fork(), sv[0], 0};
    if (w.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(sv[0]);
        shared = NULL; /* steps and lines are the rule's */
        static char own[LINE_MAX_BYTES];
        J = own;
        Jcap = sizeof own;
        Jn = 0;
        int nul = open("/dev/null", O_WRONLY);
        if (nul >= 0) dup2(nul, 1);
        static struct msg m;
        while (!recv_msg(sv[1], &m)) {
            worker_do(&m);
            int fd = m.fd;
            if (send_msg(sv[1], &m)) break;
            if (fd >= 0) close(fd);
        }
        _exit(0);
    }
    close(sv[1]);
    return w;
}
/* -> the worker's code, or "no answer"/"died"; m gets the reply. A passed
 * descriptor stays open here. A silent worker is killed. */
static int ask_ms(struct worker *w, struct msg *m, double ms)
{
    if (w->dead) return m->rc = w->dead;
    if (!send_msg(w->fd, m)) {
        struct pollfd p = {w->fd, POLLIN, 0};
        if (poll(&p, 1, (int)ms) == 0) {
            kill(w->pid, SIGKILL);
            waitpid(w->pid, NULL, 0);
            return m->rc = w->dead = RC_NO_ANSWER;
        }
        if (!recv_msg(w->fd, m)) return m->rc;
    }
    int status = 0;
    waitpid(w->pid, &status, 0);
    return m->rc = w->dead = WIFSIGNALED(status) ? RC_DIED - WTERMSIG(status) : RC_NO_ANSWER;
}
static int ask(struct worker *w, struct msg *m, int op)
{
    m->op = op;
    return ask_ms(w, m, 6000);
}
static struct msg mm(u64 a, u64 b, u64 c, u64 d)
{
    struct msg m;
    memset(&m, 0, sizeof m);
    m.fd = -1;
    m.a = a; m.b = b; m.c = c; m.d = d;
    return m;
}
static int do1(struct worker *w, int op, u64 a, u64 b, u64 c, u64 d)
{
    struct msg m = mm(a, b, c, d);
    int rc = ask(w, &m, op);
    if (m.fd >= 0) close(m.fd);
    return rc;
}
static u64 do_val(struct worker *w, int op, u64 a, u64 b, u64 c, int *rc)
{
    struct msg m = mm(a, b, c, 0);
    *rc = ask(w, &m, op);
    return m.a;
}
static void worker_kill(struct worker *w)
{
    if (!w->dead) { kill(w->pid, SIGKILL); waitpid(w->pid, NULL, 0); w->dead = RC_DIED - SIGKILL; }
    close(w->fd);
}
static void j_peek(const char *k, struct worker *w, u64 p)
{
    int rc;
    step(k);
    u64 v = do_val(w, OP_PEEK, p, 0, 0, &rc);
    if (rc) j_rc(k, rc);
    else j_x(k, v);
}
static void j_attrs_of(const char *k, struct worker *w, u64 p)
{
    struct msg m = mm(p, 0, 0, 0);
    step(k);
    int rc = ask(w, &m, OP_ATTRS);
    if (rc) { j_rc(k, rc); return; }
    j_key(k);
    j_raw("%s", m.text);
}
static int two_up(struct worker *a, struct worker *b)
{
    step("workers up");
    *a = worker_start();
    *b = worker_start();
    struct msg first = mm(0, 0, 0, 0), second = first;
    first.op = OP_UP;
    send_msg(b->fd, &first); /* both start at once; the second question is answered at once */
    int r1 = do1(a, OP_UP, 0, 0, 0, 0);
    struct pollfd pb = {b->fd, POLLIN, 0};
    int r2 = poll(&pb, 1, 8000) == 1 && !recv_msg(b->fd, &second) ? second.rc : RC_NO_ANSWER;
    if (r1 || r2) { j_rc("up_a", r1); j_rc("up_b", r2); rule_close(); worker_kill(a); worker_kill(b); return -1; }
    return 0;
}

static void rule_ipc_get(int arg)
{
    (void)arg;
    rule_open("ipc-get-handle", "Of which memory does cuIpcGetMemHandle give a handle, does the offset get lost, what does it cost, can the same process open it?");
    up();
    CUdeviceptr a = dalloc(8 * MIB), s1 = dalloc(4096), s2 = dalloc(4096), v = 0, pool = 0, m = 0, freed = dalloc(8 * MIB), p = 0;
    CUallochandle h = 0;
    CUipc x, y, z;
    memset(&x, 0, sizeof x);
    memset(&y, 0, sizeof y);
    vmm_make(&v, &h, 4 * MIB, HANDLE_FD, 1, PROT_RW);
    cu.AllocAsync(&pool, MIB, st);
    cu.StreamSync(st);
    cu.MemAllocManaged(&m, MIB, 1);
    cu.MemFree(freed);
    RC("cuMemAlloc", cu.IpcGetMem(&x, a));
    RC("cuMemAlloc_offset_1MiB", cu.IpcGetMem(&y, a + MIB));
    j_b("offset_gives_the_same_handle", !memcmp(&x, &y, sizeof x));
    RC("again", cu.IpcGetMem(&y, a));
    j_b("again_the_same_handle", !memcmp(&x, &y, sizeof x));
    RC("small_one", cu.IpcGetMem(&y, s1));
    RC("small_neighbour", cu.IpcGetMem(&z, s2));
    j_b("neighbours_give_the_same_handle", !memcmp(&y, &z, sizeof x));
    RC("vmm", cu.IpcGetMem(&y, v));
    RC("pool", cu.IpcGetMem(&y, pool));
    RC("managed", cu.IpcGetMem(&y, m));
    RC("host_alloc", cu.IpcGetMem(&y, (CUdeviceptr)(uintptr_t)halloc(4096)));
    RC("plain", cu.IpcGetMem(&y, (CUdeviceptr)(uintptr_t)anon(4096)));
    RC("freed", cu.IpcGetMem(&y, freed));
    RC("one_past_the_end", cu.IpcGetMem(&y, a + 8 * MIB));
    double t[16];
    TIME_NS(t, 16, 16, cu.IpcGetMem(&y, a));
    j_stat("get_ns", t, 16);
    char hex[129];
    for (int i = 0; i < 64; i++) sprintf(hex + 2 * i, "%02x", (unsigned char)x.bytes[i]);
    j_s("handle", hex);
    j_i("own_pid", getpid());
    RC("open_in_same_process", cu.IpcOpenMem(&p, x, 1));
    j_x("opened_at", p);
    j_x("own_at", a);
    memset(&y, 0, sizeof y);
    RC("open_zeros", cu.IpcOpenMem(&p, y, 1));
    rule_close();
}

static void rule_ipc(int arg)
{
    (void)arg;
    struct worker e, i;
    rule_open("ipc-open", "Opening legacy IPC memory in another process: cost, twice, use after close, offsets, bounds, re-export?");
    if (two_up(&e, &i)) return;
    struct msg m;
    int rc, rc2;
    u64 big = do_val(&e, OP_ALLOC, 256 * MIB, 0, 0, &rc);
    j_rc("alloc", rc);
    do1(&e, OP_FILL, big, 256 * MIB, 0x11, 0);
    m = mm(big, 0, 0, 0);
    ask(&e, &m, OP_GET);
    CUipc h = m.ipc;
    m = mm(big + 100 * MIB, 0, 0, 0);
    ask(&e, &m, OP_GET);
    CUipc h_off = m.ipc;
    m = mm(0, 0, 0, 0);
    m.ipc = h;
    j_rc("open", ask(&i, &m, OP_OPEN));
    j_f("open_first_us", m.us);
    u64 p = m.a;
    j_x("exporters_address", big);
    j_x("importers_address", p);
    j_peek("reads", &i, p);
    j_attrs_of("attributes", &i, p);
    j_attrs_of("attributes_offset_1MiB", &i, p + MIB);
    m = mm(0, 0, 0, 0);
    m.ipc = h;
    j_rc("open_second_time", ask(&i, &m, OP_OPEN));
    j_f("open_second_us", m.us);
    u64 p2 = m.a;
    j_b("second_same_address", p2 == p);
    m = mm(0, 0, 0, 0);
    m.ipc = h_off;
    j_rc("open_handle_taken_at_offset", ask(&i, &m, OP_OPEN));
    j_i("its_offset_to_first", (long long)(m.a - p));
    u64 p3 = m.a;
    m = mm(p, 0, 0, 0);
    j_rc("handle_of_imported_memory", ask(&i, &m, OP_GET));
    m = mm(p, 2 * MIB, 0, 0);
    j_rc("dma_buf_of_imported_memory", ask(&i, &m, OP_DMABUF));
    if (m.fd >= 0) close(m.fd);
    j_rc("sync_memops_on_imported", do1(&i, OP_SYNC_MEMOPS, p, 0, 0, 0));
    j_rc("cuMemFree_of_imported", do1(&i, OP_FREE, p, 0, 0, 0));
    j_rc("close_inside", do1(&i, OP_CLOSE, p + MIB, 0, 0, 0));
    /* Local copy from imported memory. */
    u64 local = do_val(&i, OP_ALLOC, 256 * MIB, 0, 0, &rc);
    double v[9];
    for (int k = 0; k < 9; k++) { m = mm(local, p, 256 * MIB, 0); rc |= ask(&i, &m, OP_COPY); v[k] = 256.0 * MIB / (m.us * 1e3); }
    j_rc("copy", rc);
    j_stat("copy_imported_to_local_256MiB_gbps", v, 9);
    /* Cost of open and close, by size. */
    static const size_t sizes[] = {2 * MIB, 64 * MIB, GIB};
    for (int s = 0; s < COUNT(sizes); s++) {
        double o[7], c[7];
        u64 q = do_val(&e, OP_ALLOC, sizes[s], 0, 0, &rc);
        int n = 0;
        for (; n < 7 && !rc; n++) {
            m = mm(q, 0, 0, 0);
            rc = ask(&e, &m, OP_GET);
            if (!rc) rc = ask(&i, &m, OP_OPEN);
            o[n] = m.us;
            struct msg c1 = mm(m.a, 0, 0, 0);
            if (!rc) rc = ask(&i, &c1, OP_CLOSE);
            c[n] = c1.us;
        }
        do1(&e, OP_FREE, q, 0, 0, 0);
        char key[48];
        snprintf(key, sizeof key, "open_close_%zu_MiB", (size_t)(sizes[s] / MIB));
        j_obj(key);
        j_rc("rc", rc);
        j_stat("open_us", o, n);
        j_stat("close_us", c, n);
        j_end();
    }
    /* Small allocations share a block. */
    u64 s1 = do_val(&e, OP_ALLOC, 4096, 0, 0, &rc), s2 = do_val(&e, OP_ALLOC, 4096, 0, 0, &rc);
    do1(&e, OP_FILL, s1, 4096, 0x21, 0);
    do1(&e, OP_FILL, s2, 4096, 0x22, 0);
    m = mm(s1, 0, 0, 0);
    ask(&e, &m, OP_GET);
    j_rc("open_small", ask(&i, &m, OP_OPEN));
    u64 ps = m.a;
    j_peek("small_reads", &i, ps);
    j_i("small_offset_in_exporter", (long long)(s1 & (2 * MIB - 1)));
    j_i("small_offset_in_importer", (long long)(ps & (2 * MIB - 1)));
    j_i("neighbour_distance", (long long)(s2 - s1));
    j_attrs_of("small_attributes", &i, ps);
    j_peek("neighbour_reads_through_it", &i, ps + (s2 - s1));
    /* Close once, use; close again, use. */
    j_rc("close_one_of_three", do1(&i, OP_CLOSE, p, 0, 0, 0));
    j_peek("read_after_one_close", &i, p2);
    rc = do1(&i, OP_CLOSE, p2, 0, 0, 0);
    j_rc("close_second", rc);
    j_peek("read_after_two_closes", &i, p3);
    rc2 = do1(&i, OP_CLOSE, p3, 0, 0, 0);
    j_rc("close_third", rc2);
    j_attrs_of("attributes_after_last_close", &i, p);
    j_rc("close_once_too_many", do1(&i, OP_CLOSE, p, 0, 0, 0));
    j_peek("read_after_last_close", &i, p);
    j_rc("alloc_after_that", do1(&i, OP_ALLOC, MIB, 0, 0, 0));
    rule_close();
    worker_kill(&e);
    worker_kill(&i);
}

static void rule_ipc_bad(int arg)
{
    (void)arg;
    struct worker e, i;
    rule_open("ipc-bad-handles", "What does opening a handle of zeros, of noise, of freed memory, of a dead process give (a fresh importer after each death)?");
    if (two_up(&e, &i)) return;
    int rc;
    struct msg m;
    u64 a = do_val(&e, OP_ALLOC, 8 * MIB, 0, 0, &rc), b = do_val(&e, OP_ALLOC, 8 * MIB, 0, 0, &rc);
    m = mm(a, 0, 0, 0);
    ask(&e, &m, OP_GET);
    CUipc good = m.ipc;
    m = mm(b, 0, 0, 0);
    ask(&e, &m, OP_GET);
    CUipc freed = m.ipc;
    do1(&e, OP_FREE, b, 0, 0, 0);
    CUipc x[8];
    memset(x, 0, sizeof x);
    memset(&x[1], 0xff, sizeof x[1]);
    for (int k = 0; k < 64; k++) x[2].bytes[k] = (char)rnd();
    x[3] = freed;
    for (int k = 4; k < 8; k++) { x[k] = good; x[k].bytes[(k - 4) * 16 + 3] ^= 0x55; }
    static const char *names[] = {"zeros", "ones", "noise", "freed_memory", "good_byte_3_flipped", "good_byte_19_flipped", "good_byte_35_flipped", "good_byte_51_flipped"};
    for (int k = 0; k < 8; k++) {
        step(names[k]);
        m = mm(0, 0, 0, 0);
        m.ipc = x[k];
        rc = ask(&i, &m, OP_OPEN);
        j_obj(names[k]);
        j_rc("open", rc);
        j_f("us", m.us);
        if (!rc) { j_attrs_of("opened", &i, m.a); do1(&i, OP_CLOSE, m.a, 0, 0, 0); }
        j_rc("importer_still_works", do1(&i, OP_ALLOC, MIB, 0, 0, 0));
        j_end();
        if (i.dead) { worker_kill(&i); i = worker_start(); do1(&i, OP_UP, 0, 0, 0, 0); }
    }
    worker_kill(&e);
    sleep_ms(100);
    m = mm(0, 0, 0, 0);
    m.ipc = good;
    j_rc("of_dead_process", ask(&i, &m, OP_OPEN));
    j_f("of_dead_process_us", m.us);
    rule_close();
    worker_kill(&i);
}

/* arg 0: the exporter frees, 1: the exporter is killed, 2: stopped, 3: exits by exit(). */
static void rule_ipc_gone(int arg)
{
    static const char *what[] = {"frees the memory", "is killed", "is stopped", "ends by exit()"};
    char asked[160];
    struct worker e, i;
    snprintf(asked, sizeof asked, "The exporter of legacy IPC memory %s while an importer has it open: what does the importer see?", what[arg]);
    rule_open("ipc-exporter-gone", asked);
    j_s("exporter", what[arg]);
    if (two_up(&e, &i)) return;
    int rc;
    struct msg m;
    size_t n = 512 * MIB;
    u64 f0 = do_val(&i, OP_INFO, 0, 0, 0, &rc), a = do_val(&e, OP_ALLOC, n, 0, 0, &rc);
    do1(&e, OP_FILL, a, n, 0x11, 0);
    m = mm(a, 0, 0, 0);
    ask(&e, &m, OP_GET);
    j_rc("open", ask(&i, &m, OP_OPEN));
    u64 p = m.a;
    j_peek("reads_before", &i, p);
    step("gone");
    if (arg == 0) {
        m = mm(a, 0, 0, 0);
        j_rc("free", ask(&e, &m, OP_FREE));
        j_f("free_us", m.us);
        u64 b = do_val(&e, OP_ALLOC, n, 0, 0, &rc);
        j_rc("exporter_allocs_again", rc);
        j_b("at_the_same_address", b == a);
        do1(&e, OP_FILL, b, n, 0x99, 0);
    } else if (arg == 1) worker_kill(&e);
    else if (arg == 2) kill(e.pid, SIGSTOP);
    else { m = mm(1, 0, 0, 0); ask(&e, &m, OP_EXIT); }
    sleep_ms(200);
    u64 f1 = do_val(&i, OP_INFO, 0, 0, 0, &rc);
    j_f("free_memory_less_than_at_start_MiB", ((double)f0 - (double)f1) / MIB);
    j_peek("reads_after", &i, p);
    j_peek("reads_at_the_end", &i, p + n - 8);
    j_attrs_of("attributes_after", &i, p);
    j_rc("writes_after", do1(&i, OP_FILL, p, 4096, 0x33, 0));
    j_peek("reads_written", &i, p);
    m = mm(p, 0, 0, 0);
    j_rc("close", ask(&i, &m, OP_CLOSE));
    j_f("close_us", m.us);
    u64 f2 = do_val(&i, OP_INFO, 0, 0, 0, &rc);
    j_f("given_back_by_close_MiB", ((double)f2 - (double)f1) / MIB);
    j_rc("importer_allocs", do1(&i, OP_ALLOC, MIB, 0, 0, 0));
    if (arg == 2) { kill(e.pid, SIGCONT); j_peek("exporter_reads_after_cont", &e, a); }
    rule_close();
    worker_kill(&e);
    worker_kill(&i);
}

static void rule_ipc_event(int arg)
{
    (void)arg;
    struct worker e, i;
    rule_open("ipc-event", "Do events between processes work, what do they cost, what of one whose maker is stopped or dead?");
    if (two_up(&e, &i)) return;
    struct msg m = mm(EVENT_NO_TIMING, 0, 0, 0);
    j_rc("handle_without_flag", ask(&e, &m, OP_EVENT));
    m = mm(EVENT_NO_TIMING | EVENT_IPC, 0, 0, 0);
    j_rc("handle", ask(&e, &m, OP_EVENT));
    j_f("make_us", m.us);
    j_rc("open", ask(&i, &m, OP_EVENT_OPEN));
    j_f("open_us", m.us);
    j_rc("query_unrecorded", do1(&i, OP_EVENT_QUERY, 0, 0, 0, 0));
    j_rc("gate", do1(&e, OP_GATE, 0, 0, 0, 0));
    j_rc("record_behind_gate", do1(&e, OP_EVENT_RECORD, 0, 0, 0, 0));
    j_rc("importers_query", do1(&i, OP_EVENT_QUERY, 0, 0, 0, 0));
    do1(&e, OP_OPEN_GATE, 0, 0, 0, 0);
    do1(&e, OP_SYNC, 0, 0, 0, 0);
    j_rc("importers_query_after", do1(&i, OP_EVENT_QUERY, 0, 0, 0, 0));
    double v[9];
    for (int k = 0; k < 9; k++) { m = mm(0, 0, 0, 0); ask(&i, &m, OP_EVENT_QUERY); v[k] = m.us; }
    j_stat("query_us", v, 9);
    do1(&e, OP_GATE, 0, 0, 0, 0);
    do1(&e, OP_EVENT_RECORD, 0, 0, 0, 0);
    j_rc("importers_stream_waits", do1(&i, OP_EVENT_WAIT, 0, 0, 0, 0));
    worker_kill(&e);
    sleep_ms(100);
    step("maker dead");
    j_rc("query_maker_dead_behind_gate", do1(&i, OP_EVENT_QUERY, 0, 0, 0, 0));
    j_rc("importer_allocs", do1(&i, OP_ALLOC, MIB, 0, 0, 0));
    m = mm(0, 0, 0, 0);
    m.op = OP_SYNC;
    j_rc("waiting_stream_sync_2s", ask_ms(&i, &m, 2000)); /* no answer: the worker is killed */
    rule_close();
    worker_kill(&e);
    worker_kill(&i);
}

static void rule_vmm_fd(int arg)
{
    static const char *what[] = {"unmaps and releases", "is killed", "is stopped"};
    char asked[200];
    struct worker e, i;
    snprintf(asked, sizeof asked, "VMM memory goes to another process as a descriptor; the exporter %s: costs, bounds, what does the importer see?", what[arg]);
    rule_open("vmm-descriptor", asked);
    j_s("exporter", what[arg]);
    if (two_up(&e, &i)) return;
    size_t n = 512 * MIB;
    int rc;
    u64 f0 = do_val(&i, OP_INFO, 0, 0, 0, &rc);
    struct msg m = mm(n, 0, HANDLE_FD, 0), x;
    j_rc("make", ask(&e, &m, OP_VMM));
    u64 a = m.a, ha = m.c;
    do1(&e, OP_FILL, a, n, 0x44, 0);
    x = mm(0, 0, ha, 0);
    j_rc("export", ask(&e, &x, OP_EXPORT));
    j_f("export_us", x.us);
    int fd = x.fd;
    char link[64], to[128] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t k = readlink(link, to, sizeof to - 1);
    if (k > 0) to[k] = 0;
    j_s("descriptor_is", to);
    struct stat sb;
    if (fd >= 0 && !fstat(fd, &sb)) { j_i("st_size", (long long)sb.st_size); j_u("st_ino", sb.st_ino); }
    m = mm(0, 0, 0, 0);
    m.fd = dup(fd);
    int mine = m.fd;
    j_rc("import", ask(&i, &m, OP_IMPORT));
    close(mine);
    j_f("import_us", m.us);
    u64 h = m.c;
    m = mm(n, 0, h, PROT_RW);
    j_rc("map", ask(&i, &m, OP_MAP));
    j_f("reserve_map_access_us", m.us);
    u64 p = m.a;
    j_peek("reads", &i, p);
    if (!arg) {
        j_attrs_of("attributes", &i, p);
        m = mm(2 * n, 0, h, PROT_RW);
        j_rc("map_twice_the_size", ask(&i, &m, OP_MAP));
        m = mm(2 * MIB, 0, h, PROT_RW);
        j_rc("map_a_part", ask(&i, &m, OP_MAP));
        m = mm(0, 0, 0, 0);
        m.fd = mine = dup(fd);
        j_rc("import_again", ask(&i, &m, OP_IMPORT));
        close(mine);
        j_b("same_handle_number", m.c == h);
        u64 h2 = m.c;
        m = mm(n, 0, h2, PROT_R);
        j_rc("map_read_only", ask(&i, &m, OP_MAP));
        j_peek("reads_read_only", &i, m.a);
        do1(&i, OP_VMM_FREE, m.a, n, h2, 0); /* else it holds the memory */
        m = mm(0, 0, h, 0);
        j_rc("export_of_imported", ask(&i, &m, OP_EXPORT));
        if (m.fd >= 0) close(m.fd);
        m = mm(p, 2 * MIB, 0, 0);
        j_rc("dma_buf_of_imported", ask(&i, &m, OP_DMABUF));
        if (m.fd >= 0) close(m.fd);
        m = mm(0, 0, 0, 0);
        m.fd = mine = memfd(n);
        j_rc("import_a_memfd", ask(&i, &m, OP_IMPORT));
        close(mine);
        m = mm(0, 0, 0, 0);
        m.fd = mine = open("/dev/null", O_RDWR);
        j_rc("import_dev_null", ask(&i, &m, OP_IMPORT));
        close(mine);
        double ex[7], im[7], ma[7];
        int cnt = 0;
        for (rc = 0; cnt < 7 && !rc; cnt++) {
            x = mm(0, 0, ha, 0);
            rc = ask(&e, &x, OP_EXPORT);
            ex[cnt] = x.us;
            mine = x.fd;
            m = mm(0, 0, 0, 0);
            m.fd = mine;
            if (!rc) rc = ask(&i, &m, OP_IMPORT);
            im[cnt] = m.us;
            if (mine >= 0) close(mine);
            struct msg q = mm(n, 0, m.c, PROT_RW);
            if (!rc) rc = ask(&i, &q, OP_MAP);
            ma[cnt] = q.us;
            if (!rc) do1(&i, OP_VMM_FREE, q.a, n, m.c, 0);
        }
        j_rc("cost_rc", rc);
        j_stat("export_512MiB_us", ex, cnt);
        j_stat("import_512MiB_us", im, cnt);
        j_stat("reserve_map_access_512MiB_us", ma, cnt);
    }
    close(fd);
    step("gone");
    if (arg == 0) j_rc("exporter_drops", do1(&e, OP_VMM_FREE, a, n, ha, 0));
    else if (arg == 1) worker_kill(&e);
    else kill(e.pid, SIGSTOP);
    sleep_ms(200);
    u64 f1 = do_val(&i, OP_INFO, 0, 0, 0, &rc);
    j_f("free_memory_less_than_at_start_MiB", ((double)f0 - (double)f1) / MIB);
    j_peek("reads_after", &i, p);
    j_peek("reads_at_the_end", &i, p + n - 8);
    j_rc("writes_after", do1(&i, OP_FILL, p, 4096, 0x55, 0));
    j_peek("reads_written", &i, p);
    j_rc("importer_drops", do1(&i, OP_VMM_FREE, p, n, h, 0));
    u64 f2 = do_val(&i, OP_INFO, 0, 0, 0, &rc);
    j_f("given_back_MiB", ((double)f2 - (double)f1) / MIB);
    j_rc("importer_allocs", do1(&i, OP_ALLOC, MIB, 0, 0, 0));
    if (arg == 2) kill(e.pid, SIGCONT);
    rule_close();
    worker_kill(&e);
    worker_kill(&i);
}

static void rule_pool_ipc(int arg)
{
    (void)arg;
    struct worker e, i;
    rule_open("pool-ipc", "Pool-ordered memory to another process: descriptor of the pool, then the pointer; the exporter dies: what is seen?");
    if (two_up(&e, &i)) return;
    struct msg m = mm(64 * MIB, 0, 0, 0);
    j_rc("make_and_export", ask(&e, &m, OP_POOL));
    u64 a = m.a;
    int fd = m.fd;
    do1(&e, OP_FILL, a, 64 * MIB, 0x66, 0);
    j_attrs_of("exporters_attributes", &e, a);
    j_rc("import", ask(&i, &m, OP_POOL_IMPORT));
    j_f("import_us", m.us);
    j_rc("set_access", (int)m.d);
    u64 p = m.a;
    if (fd >= 0) close(fd);
    j_peek("reads", &i, p);
    j_attrs_of("importers_attributes", &i, p);
    worker_kill(&e);
    sleep_ms(100);
    j_peek("reads_exporter_dead", &i, p);
    j_rc("importer_allocs", do1(&i, OP_ALLOC, MIB, 0, 0, 0));
    rule_close();
    worker_kill(&i);
}

static void rule_shared_pin(int arg)
{
    (void)arg;
    struct worker e, i;
    rule_open("shared-memory-pinned-twice", "Two processes register the same memfd: does the second work, at which cost, and when the first dies?");
    if (two_up(&e, &i)) return;
    size_t n = 512 * MIB;
    int fd = memfd(n);
    char *p = map_fd(fd, n, PROT_READ | PROT_WRITE);
    memset(p, 1, n);
    struct msg m = mm(n, 0, 0, 0);
    m.fd = fd;
    j_rc("first", ask(&e, &m, OP_SHM));
    j_f("first_register_ms", m.us / 1e3);
    m = mm(n, 0, 0, 0);
    m.fd = fd;
    j_rc("second", ask(&i, &m, OP_SHM));
    j_f("second_register_ms", m.us / 1e3);
    double v[5];
    int k = 0, rc = 0;
    for (; k < 5 && !rc; k++) {
        rc = do1(&i, OP_UNREGISTER, 0, 0, 0, 0);
        m = mm(n, 0, 0, 0);
        m.fd = fd;
        if (!rc) rc = ask(&i, &m, OP_SHM);
        v[k] = m.us / 1e3;
    }
    j_rc("again_rc", rc);
    j_stat("second_register_512MiB_while_first_holds_ms", v, k);
    worker_kill(&e);
    memset(p, 0, 64 * MIB); /* so that the ones are the card's */
    rc = do1(&i, OP_QUEUE_DTOH, MIB, 64, 1, 0);
    j_rc("copies_after_death_of_first", rc);
    j_rc("sync", do1(&i, OP_SYNC, 0, 0, 0, 0));
    j_i("byte_1_is_right", p[63 * MIB]);
    rule_close();
    worker_kill(&i);
}

static u64 landed(const volatile unsigned char *p, u64 chunk, u64 n)
{
    u64 s = 0;
    for (u64 i = 0; i < n; i++) s += p[i * chunk + chunk - 1];
    return s;
}
/* arg 0: SIGKILL, 1: SIGSTOP then SIGKILL, 2: exit(0), 3: _exit(0). */
static void rule_end_under_copies(int arg)
{
    static const char *what[] = {"SIGKILL", "SIGSTOP for 300 ms, then SIGKILL", "exit(0)", "_exit(0)"};
    rule_now = "end-under-copies";
    asked_now = "A process ends with 1.5 GiB of DtoH copies queued into shared memory: how many still land, until when (landings are counted in sums of pass numbers; 'all' is the end value)?";
    enum { CHUNKS = 64, PASSES = 6 };
    u64 chunk = 4 * MIB;
    int fd = memfd(chunk * CHUNKS);
    unsigned char *p = map_fd(fd, chunk * CHUNKS, PROT_READ | PROT_WRITE);
    for (int round = 0; round < (arg == 0 ? 3 : 1); round++) {
        rule_open(rule_now, asked_now);
        j_s("end", what[arg]);
        j_i("round", round);
        memset(p, 0, chunk * CHUNKS);
        struct worker w = worker_start();
        int rc = do1(&w, OP_UP, 0, 0, 0, 0);
        j_rc("up", rc);
        struct msg m = mm(chunk * CHUNKS, 0, 0, 0);
        m.fd = fd;
        j_rc("register", ask(&w, &m, OP_SHM));
        m = mm(chunk, CHUNKS, PASSES, 0);
        rc = ask(&w, &m, OP_QUEUE_DTOH);
        double t0 = now_ns();
        j_rc("queued", rc);
        j_f("queueing_us", m.us);
        int pidfd = (int)syscall(434, w.pid, 0); /* pidfd_open */
        j_u("all", CHUNKS * PASSES);
        j_u("landed_when_queued", landed(p, chunk, CHUNKS));
        step("end");
        if (arg == 1) {
            kill(w.pid, SIGSTOP);
            u64 s0 = landed(p, chunk, CHUNKS);
            sleep_ms(300);
            j_u("landed_at_stop", s0);
            j_u("landed_300ms_stopped", landed(p, chunk, CHUNKS));
        }
        if (arg < 2) kill(w.pid, SIGKILL);
        else { m = mm(arg == 2, 0, 0, 0); m.op = OP_EXIT; send_msg(w.fd, &m); }
        j_u("landed_at_end_call", landed(p, chunk, CHUNKS));
        struct pollfd pf = {pidfd, POLLIN, 0};
        if (pidfd >= 0) poll(&pf, 1, 8000);
        double t1 = now_ns();
        u64 at_pidfd = landed(p, chunk, CHUNKS);
        int status = 0;
        waitpid(w.pid, &status, 0);
        double t2 = now_ns();
        u64 at_reap = landed(p, chunk, CHUNKS);
        sleep_ms(1);
        u64 l1 = landed(p, chunk, CHUNKS);
        sleep_ms(20);
        u64 l20 = landed(p, chunk, CHUNKS);
        sleep_ms(300);
        u64 l300 = landed(p, chunk, CHUNKS);
        j_u("landed_when_pidfd_ready", at_pidfd);
        j_f("pidfd_ready_ms", (t1 - t0) / 1e6);
        j_u("landed_when_reaped", at_reap);
        j_f("reaped_ms", (t2 - t0) / 1e6);
        j_u("landed_1ms_later", l1);
        j_u("landed_21ms_later", l20);
        j_u("landed_321ms_later", l300);
        j_b("something_landed_after_pidfd", l300 != at_pidfd);
        j_i("exit_status", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        if (pidfd >= 0) close(pidfd);
        w.dead = RC_DIED;
        close(w.fd);
        rule_close();
    }
}

/* An importer is killed while its copies into the exporter's memory are queued. arg 1: VMM instead of legacy IPC. */
static void rule_importer_killed(int arg)
{
    struct worker e, i;
    rule_open("importer-killed-under-copies", "An importer with 1.5 GiB of HtoD copies queued into imported memory is killed: what still lands in the exporter's memory, is the exporter well?");
    j_s("memory", arg ? "VMM descriptor" : "legacy IPC");
    if (two_up(&e, &i)) return;
    enum { CHUNKS = 64, PASSES = 6 };
    u64 chunk = 4 * MIB, a, p;
    int rc;
    struct msg m;
    if (arg) {
        m = mm(chunk * CHUNKS, 0, HANDLE_FD, 0);
        rc = ask(&e, &m, OP_VMM);
        a = m.a;
        m = mm(0, 0, m.c, 0);
        if (!rc) rc = ask(&e, &m, OP_EXPORT);
        int fd = m.fd;
        if (!rc) rc = ask(&i, &m, OP_IMPORT);
        if (fd >= 0) close(fd);
        m = mm(chunk * CHUNKS, 0, m.c, PROT_RW);
        if (!rc) rc = ask(&i, &m, OP_MAP);
        p = m.a;
    } else {
        a = do_val(&e, OP_ALLOC, chunk * CHUNKS, 0, 0, &rc);
        m = mm(a, 0, 0, 0);
        if (!rc) rc = ask(&e, &m, OP_GET);
        if (!rc) rc = ask(&i, &m, OP_OPEN);
        p = m.a;
    }
    j_rc("shared", rc);
    if (rc) { rule_close(); worker_kill(&e); worker_kill(&i); return; }
    do1(&e, OP_FILL, a, chunk * CHUNKS, 0, 0);
    m = mm(chunk, CHUNKS, PASSES, p);
    j_rc("queued", ask(&i, &m, OP_QUEUE_HTOD));
    j_f("queueing_us", m.us);
    j_u("all", CHUNKS * PASSES);
    double t0 = now_ns();
    u64 s0 = do_val(&e, OP_COUNT, a, CHUNKS, chunk, &rc);
    j_rc("count", rc);
    kill(i.pid, SIGKILL);
    u64 s1 = do_val(&e, OP_COUNT, a, CHUNKS, chunk, &rc);
    int pidfd = (int)syscall(434, i.pid, 0);
    struct pollfd pf = {pidfd, POLLIN, 0};
    if (pidfd >= 0) poll(&pf, 1, 8000);
    double t1 = now_ns();
    u64 s2 = do_val(&e, OP_COUNT, a, CHUNKS, chunk, &rc);
    worker_kill(&i);
    sleep_ms(20);
    u64 s3 = do_val(&e, OP_COUNT, a, CHUNKS, chunk, &rc);
    sleep_ms(300);
    u64 s4 = do_val(&e, OP_COUNT, a, CHUNKS, chunk, &rc);
    j_u("landed_before_kill", s0);
    j_u("landed_after_kill_call", s1);
    j_f("pidfd_ready_ms", (t1 - t0) / 1e6);
    j_u("landed_when_pidfd_ready", s2);
    j_u("landed_20ms_later", s3);
    j_u("landed_320ms_later", s4);
    j_b("something_landed_after_pidfd", s4 != s2);
    j_rc("exporters_last_code", rc);
    j_rc("exporter_allocs", do1(&e, OP_ALLOC, MIB, 0, 0, 0));
    if (!arg) {
        m = mm(a, 0, 0, 0);
        j_rc("exporter_frees", ask(&e, &m, OP_FREE));
    }
    rule_close();
    worker_kill(&e);
}

static void rule_scrub(int arg)
{
    (void)arg;
    struct worker a, b;
    rule_open("scrub", "Does new device memory hold bytes of a process that has ended, or of freed memory of the same process?");
    if (two_up(&a, &b)) return;
    int rc;
    size_t n = 1 * GIB;
    u64 p = do_val(&a, OP_ALLOC, n, 0, 0, &rc);
    j_rc("alloc", rc);
    do1(&a, OP_FILL, p, n, 0xa5, 0);
    do1(&a, OP_FREE, p, 0, 0, 0);
    p = do_val(&a, OP_ALLOC, n, 0, 0, &rc);
    u64 s = do_val(&a, OP_COUNT, p, 1024, n / 1024, &rc);
    j_rc("count", rc);
    j_u("same_process_sum_of_1024_bytes_168960_is_all_old", s);
    do1(&a, OP_FILL, p, n, 0xa5, 0);
    worker_kill(&a);
    sleep_ms(100);
    p = do_val(&b, OP_ALLOC, n, 0, 0, &rc);
    s = do_val(&b, OP_COUNT, p, 1024, n / 1024, &rc);
    j_u("other_process_sum_of_1024_bytes", s);
    do1(&b, OP_FREE, p, 0, 0, 0);
    struct msg m = mm(n, 0, HANDLE_FD, 0);
    j_rc("vmm", ask(&b, &m, OP_VMM));
    s = do_val(&b, OP_COUNT, m.a, 1024, n / 1024, &rc);
    j_u("vmm_sum_of_1024_bytes", s);
    rule_close();
    worker_kill(&b);
}

/* ================= the watch over the rules ================= */

static const struct rule { const char *name; void (*run)(int); int arg, seconds; } rules[] = {
    {"driver", rule_driver, 0, 20}, {"start-cost-cold", rule_start_cost, 0, 30},
    {"device-attributes", rule_attributes, 0, 20}, {"identity", rule_identity, 0, 20},
    {"before-init", rule_before_init, 0, 20}, {"no-context", rule_no_context, 0, 20}, {"thread-without-context", rule_thread, 0, 20},
    {"primary-context", rule_primary, 0, 20}, {"fork-after-init", rule_fork, 0, 60},
    {"pointer-attributes", rule_pointers, 0, 20}, {"pointer-attributes", rule_pointers, 1, 20}, {"pointer-attributes", rule_pointers, 2, 20},
    {"attribute-widths", rule_widths, 0, 20}, {"buffer-id", rule_buffer_id, 0, 20}, {"query-costs", rule_query_costs, 0, 20},
    {"vmm", rule_vmm, 0, 20}, {"dma-buf", rule_dmabuf, 0, 20}, {"flush-and-sync-memops", rule_gdr, 0, 20},
    {"completion-costs", rule_signals, 0, 20}, {"call-inside-host-function", rule_host_func, 0, 8}, {"calls-that-wait", rule_waits, 0, 25},
    {"copy-call", rule_copy_returns, 0, 20}, {"copy-call-behind-gate", rule_copy_returns, 1, 20},
    {"ipc-get-handle", rule_ipc_get, 0, 20}, {"ipc-open", rule_ipc, 0, 30}, {"ipc-bad-handles", rule_ipc_bad, 0, 30},
    {"ipc-exporter-gone", rule_ipc_gone, 0, 20}, {"ipc-exporter-gone", rule_ipc_gone, 1, 20}, {"ipc-exporter-gone", rule_ipc_gone, 2, 20}, {"ipc-exporter-gone", rule_ipc_gone, 3, 20},
    {"vmm-descriptor", rule_vmm_fd, 0, 20}, {"vmm-descriptor", rule_vmm_fd, 1, 20}, {"vmm-descriptor", rule_vmm_fd, 2, 20},
    {"end-under-copies", rule_end_under_copies, 0, 30}, {"end-under-copies", rule_end_under_copies, 1, 20},
    {"end-under-copies", rule_end_under_copies, 2, 20}, {"end-under-copies", rule_end_under_copies, 3, 20},
    {"importer-killed", rule_importer_killed, 0, 20}, {"importer-killed", rule_importer_killed, 1, 20},
    {"bandwidth", rule_bandwidth, 0, 25},
    {"scattered-blocks", rule_batch, 0, 25}, {"scattered-blocks", rule_batch, 1, 25}, {"scattered-blocks", rule_batch, 2, 25}, {"scattered-blocks", rule_batch, 3, 25},
    {"strided", rule_strided, 0, 20},
    {"pin-codes", rule_pin_codes, 0, 20}, {"pages-renewed", rule_renew, 0, 20},
    {"shared-memory-pinned-twice", rule_shared_pin, 0, 20}, {"alloc-cost", rule_alloc_cost, 0, 20},
    {"capture", rule_capture, 0, 15}, {"capture", rule_capture, 1, 15},
    {"held-streams", rule_held_streams, 0, 20}, {"queue-depth", rule_depth, 0, 30},
    {"fault", rule_fault, 0, 15}, {"fault", rule_fault, 1, 15}, {"fault", rule_fault, 2, 15}, {"fault", rule_fault, 3, 15}, {"fault", rule_fault, 4, 15},
    {"fault", rule_fault, 5, 15}, {"fault", rule_fault, 6, 15}, {"fault", rule_fault, 7, 15}, {"fault", rule_fault, 8, 15}, {"fault", rule_fault, 9, 15},
    {"fault", rule_fault, 10, 15}, {"fault", rule_fault, 11, 15}, {"fault", rule_fault, 12, 15}, {"fault", rule_fault, 13, 15}, {"fault", rule_fault, 14, 15},
    {"fault", rule_fault, 15, 15}, {"fault", rule_fault, 16, 15}, {"fault", rule_fault, 17, 15}, {"fault", rule_fault, 18, 15}, {"fault", rule_fault, 19, 15},
    {"pin-cost", rule_pin_cost, 0, 30}, {"submit-threads", rule_threads, 0, 20},
    {"ipc-event", rule_ipc_event, 0, 20}, {"pool-ipc", rule_pool_ipc, 0, 20}, {"scrub", rule_scrub, 0, 20},
    {"kernel", rule_kernel, 0, 20}, {"error-names", rule_names, 0, 20}, {"start-cost-warm", rule_start_cost, 1, 30},
};

static void put_line(void)
{
    if (write(1, J, Jn) < 0) _exit(1);
    Jn = 0;
}
/* Reap with patience: a process stuck in the kernel must not hold the rest. */
static int reap(pid_t pid, int *status, double ms)
{
    double end = now_ns() + ms * 1e6;
    while (now_ns() < end) {
        pid_t r = waitpid(pid, status, WNOHANG);
        if (r == pid) return 0;
        if (r < 0) return 0;
        sleep_ms(1);
    }
    return -1;
}
static void run_rule(const struct rule *r, double left_s)
{
    int p[2];
    if (pipe(p)) abort();
    memset(shared, 0, sizeof *shared);
    double limit = r->seconds < left_s ? r->seconds : left_s, t0 = now_ns();
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(p[1], 1);
        close(p[0]);
        close(p[1]);
        J = shared->line;
        Jcap = sizeof shared->line;
        Jn = 0;
        rule_now = r->name;
        asked_now = "";
        r->run(r->arg);
        _exit(0);
    }
    setpgid(pid, pid);
    close(p[1]);
    static char buf[65536];
    size_t have = 0;
    int end = 0, late = 0;
    while (!end) {
        double ms = limit * 1e3 - (now_ns() - t0) / 1e6;
        if (ms <= 0) { late = 1; break; }
        struct pollfd f = {p[0], POLLIN, 0};
        int k = poll(&f, 1, ms > 50 ? 50 : (int)ms + 1);
        if (k > 0) {
            ssize_t n = read(p[0], buf, sizeof buf);
            if (n <= 0) end = 1;
            else if (write(1, buf, (size_t)n) < 0) _exit(1);
            have += n > 0 ? (size_t)n : 0;
        } else {
            /* The pipe may be held by an orphan although the rule has ended. */
            siginfo_t si;
            memset(&si, 0, sizeof si);
            if (!waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT) && si.si_pid == pid) end = 1;
        }
    }
    if (late) kill(-pid, SIGKILL);
    int status = 0, stuck = reap(pid, &status, late ? 5000 : 3000);
    if (stuck) { kill(-pid, SIGKILL); stuck = reap(pid, &status, 3000); }
    kill(-pid, SIGKILL); /* workers left over */
    if (late) /* what it had finished before it hung */
        for (;;) {
            struct pollfd f = {p[0], POLLIN, 0};
            if (poll(&f, 1, 0) <= 0) break;
            ssize_t n = read(p[0], buf, sizeof buf);
            if (n <= 0) break;
            if (write(1, buf, (size_t)n) < 0) _exit(1);
        }
    close(p[0]);
    if (late || stuck || !WIFEXITED(status) || WEXITSTATUS(status)) {
        char s[128];
        static char sofar[sizeof shared->line];
        memcpy(sofar, shared->line, sizeof sofar);
        sofar[sizeof sofar - 1] = 0;
        J = malloc(2 * LINE_MAX_BYTES + 4096);
        Jcap = 2 * LINE_MAX_BYTES + 4096;
        Jn = 0;
        j_raw("{");
        j_s("rule", r->name);
        j_i("arg", r->arg);
        if (late) snprintf(s, sizeof s, "no answer within %.0f s", limit);
        else if (WIFSIGNALED(status)) snprintf(s, sizeof s, "died by signal %d", WTERMSIG(status));
        else snprintf(s, sizeof s, "ended with status %d", WEXITSTATUS(status));
        j_s("asked", "(the rule did not end by itself)");
        j_s("got", s);
        j_s("step", shared->step);
        j_b("stuck_in_kernel", stuck);
        if (sofar[0]) j_s("so_far", sofar);
        j_raw("}\n");
        put_line();
        free(J);
    }
    fprintf(stderr, "%-28s %3d  %6.2f s\n", r->name, r->arg, (now_ns() - t0) / 1e9);
}

int main(int argc, char **argv)
{
    double begin = now_ns();
    setvbuf(stdout, NULL, _IONBF, 0);
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && !strcmp(argv[1], "--list")) {
        for (int i = 0; i < COUNT(rules); i++) printf("%s %d\n", rules[i].name, rules[i].arg);
        return 0;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) abort();
    const char *s = getenv("DRIVER_RULES_SECONDS");
    double budget = s && *s ? atof(s) : 150;

    /* Is there a library and a device? Asked in a child, too. */
    int p[2];
    if (pipe(p)) abort();
    pid_t pid = fork();
    if (pid == 0) {
        char text[1024] = "";
        if (load()) {
            const char *e = dlerror();
            snprintf(text, sizeof text, "no driver: %s (%s)", library(), e ? e : "cannot be opened");
            if (!e && !dlopen(library(), RTLD_NOW)) snprintf(text, sizeof text, "no driver: %s (%s)", library(), dlerror());
            if (write(p[1], text, strlen(text)) < 0) _exit(1);
            _exit(3);
        }
        alarm(60);
        int n = 0, rc = cu.Init(0);
        if (!rc) rc = cu.DeviceGetCount(&n);
        if (rc || n < 1) {
            const char *name = NULL;
            cu.GetErrorName(rc, &name);
            snprintf(text, sizeof text, "no device: %s code %d %s, %d devices", library(), rc, name ? name : "", n);
            if (write(p[1], text, strlen(text)) < 0) _exit(1);
            _exit(4);
        }
        _exit(0);
    }
    close(p[1]);
    char text[1024] = "";
    ssize_t n = read(p[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        if (!text[0]) snprintf(text, sizeof text, "no device: the first question died with status 0x%x", status);
        fprintf(stderr, "%s\n", text);
        static char line[4096];
        J = line;
        Jcap = sizeof line;
        Jn = 0;
        j_raw("{");
        j_s("rule", "driver");
        j_s("asked", "Is there a driver library and a device?");
        j_s("got", text);
        j_raw("}\n");
        put_line();
        return WIFEXITED(status) && WEXITSTATUS(status) == 3 ? 3 : 4;
    }

    /* A keeper holds the device open from the second rule on, so that each
     * child's start does not wake the card anew. */
    pid_t keeper = 0;
    int kp[2] = {-1, -1};
    for (int i = 0; i < COUNT(rules); i++) {
        int wanted = argc < 2;
        for (int k = 1; k < argc; k++) wanted |= !strncmp(rules[i].name, argv[k], strlen(argv[k]));
        if (i == 2) {
            if (pipe(kp)) abort();
            keeper = fork();
            if (keeper == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                close(kp[1]);
                char c;
                if (!load() && !cu.Init(0) && !cu.DeviceGet(&dev, 0)) cu.PrimaryRetain(&ctx, dev);
                while (read(kp[0], &c, 1) > 0) {}
                _exit(0);
            }
            close(kp[0]);
            sleep_ms(500);
        }
        if (!wanted) continue;
        double left = budget - (now_ns() - begin) / 1e9;
        if (left < 2) {
            static char line[4096];
            J = line;
            Jcap = sizeof line;
            Jn = 0;
            j_raw("{");
            j_s("rule", rules[i].name);
            j_i("arg", rules[i].arg);
            j_s("asked", "");
            j_s("got", "not run: the time is up");
            j_raw("}\n");
            put_line();
            continue;
        }
        run_rule(&rules[i], left);
    }
    if (keeper > 0) {
        close(kp[1]);
        int st_;
        if (reap(keeper, &st_, 3000)) kill(keeper, SIGKILL);
    }
    fprintf(stderr, "whole: %.1f s\n", (now_ns() - begin) / 1e9);
    return 0;
}
