/* A libnvidia-ml.so.1 without a GPU: a shared object that the tests put in the driver's place, so that they use the real
 * dlopen and the real process boundary. The file named by FAKE_NVML controls it and is read again at every call, so that
 * a test can replace it (by rename) while a probe runs. Its lines are "KEY VALUE":
 *
 *   gpus 2                        the number of GPUs (default 2)
 *   count 4294967295              a false result of nvmlDeviceGetCount_v2
 *   driver 550.54.15              the driver's version
 *   nvmlInit_v2 ACTION            the action of a function, for every GPU
 *   nvmlDeviceGetName@1 ACTION    the action of a function, for one GPU
 *   call-7 ACTION                 the action of the seventh call of the process
 *   all ACTION                    the action of every call
 *   gpu1.uuid GPU-x               a value: uuid, name, name-hex, bus, minor, total, used, reserved, util, temp,
 *                                 power, limit, throttle, ecc, recovery, pending, failed, mig, links, events,
 *                                 fabric, fabric-status
 *   event-1 0 8 79                the first event: GPU (-1: none), kind, data (delivered once it is in the file); event-2, ...
 *   trace PATH                    append "PID FUNCTION" for each call
 *   state PATH                    write the state of the process to PATH at nvmlInit_v2
 *
 * ACTION: return CODE, sleep MS, hang, segv, abort, print. Compiled with OLD_DRIVER, the calls added in R510 do
 * not exist; with EVENTS_V1, the second version of the event wait does not exist.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, MAX_GPUS = 16 };

struct device { int index; };
static struct device devices[MAX_GPUS];
static int set_object;
static int calls, events_delivered;
static char text[65536];

/* The present value of a key in the scenario, or NULL. Valid until the next call. */
static const char *look(const char *format, ...) {
    static char value[1024];
    char key[128], *line, *rest;
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    const char *path = getenv("FAKE_NVML");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    text[length < 0 ? 0 : length] = 0;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) == 0 && line[n] == ' ') {
            snprintf(value, sizeof value, "%s", line + n + 1);
            return value;
        }
    }
    return NULL;
}

static long long number(int gpu, const char *name, long long otherwise) {
    const char *value = look("gpu%d.%s", gpu, name);
    return value ? strtoll(value, NULL, 0) : otherwise;
}

static int count(void) {
    const char *value = look("gpus");
    int n = value ? atoi(value) : 2;
    return n < MAX_GPUS ? n : MAX_GPUS;
}

static void write_state(const char *path) {
    char line[256];
    int signal = -1;
    FILE *out = fopen(path, "w"), *in;
    if (!out) return;
    prctl(PR_GET_PDEATHSIG, &signal);
    fprintf(out, "pid %d\nppid %d\npgid %d\npdeathsig %d\n", getpid(), getppid(), getpgrp(), signal);
    if ((in = fopen("/proc/self/status", "r"))) {
        while (fgets(line, sizeof line, in))
            if (strncmp(line, "Sig", 3) == 0) fputs(line, out);
        fclose(in);
    }
    if ((in = fopen("/proc/self/oom_score_adj", "r"))) {
        if (fgets(line, sizeof line, in)) fprintf(out, "oom %s", line);
        fclose(in);
    }
    struct rlimit core;
    getrlimit(RLIMIT_CORE, &core);
    fprintf(out, "core %lld\n", (long long)core.rlim_cur);
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char link[300], target[256];
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n > 0 && atoi(e->d_name) != dirfd(dir) && atoi(e->d_name) != fileno(out))
            fprintf(out, "fd %s %.*s\n", e->d_name, (int)n, target);
    }
    if (dir) closedir(dir);
    fclose(out);
}

static int act(const char *action) {
    int argument = 0;
    if (sscanf(action, "return %d", &argument) == 1) return argument;
    if (sscanf(action, "sleep %d", &argument) == 1) usleep(argument * 1000);
    if (strcmp(action, "hang") == 0) for (;;) pause();
    if (strcmp(action, "segv") == 0) raise(SIGSEGV);
    if (strcmp(action, "abort") == 0) abort();
    if (strcmp(action, "print") == 0) {
        printf("{\"t\":\"end\"}\nWARNING: a library that talks\n");
        fflush(stdout);
    }
    return OK;
}

/* Every function calls this first, and returns its result unless it is OK. */
static int enter(const char *function, int gpu) {
    const char *value;
    char trace[512], action[1024];
    int code;
    calls++;
    if ((value = look("trace"))) {
        int fd = open(value, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        int n = snprintf(trace, sizeof trace, "%d %s\n", getpid(), function);
        if (fd >= 0 && write(fd, trace, n) < 0) abort();
        if (fd >= 0) close(fd);
    }
    const char *keys[] = {"all", "call", function, "gpu"};
    for (int i = 0; i < 4; i++) {
        if (i == 1) value = look("call-%d", calls);
        else if (i == 3) value = gpu < 0 ? NULL : look("%s@%d", function, gpu);
        else value = look("%s", keys[i]);
        if (!value) continue;
        snprintf(action, sizeof action, "%s", value);
        if ((code = act(action)) != OK) return code;
    }
    return OK;
}

#define ENTER(gpu) do { int code = enter(__func__, gpu); if (code != OK) return code; } while (0)
#define DEVICE int gpu = ((struct device *)device)->index; ENTER(gpu)

static void put(char *out, unsigned length, const char *value) { snprintf(out, length, "%s", value); }

int nvmlInit_v2(void) {
    const char *path = look("state");
    char copy[1024];
    if (path) { snprintf(copy, sizeof copy, "%s", path); write_state(copy); }
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    ENTER(-1);
    return OK;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { ENTER(-1); return OK; }
const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER(-1);
    const char *value = look("driver");
    put(version, length, value ? value : "550.54.15");
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER(-1); *version = 12040; return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) {
    ENTER(-1);
    const char *value = look("count");
    *n = value ? strtoul(value, NULL, 0) : (unsigned)count();
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    ENTER((int)index);
    if ((int)index >= count()) return INVALID;
    *device = &devices[index];
    return OK;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    DEVICE;
    const char *hex = look("gpu%d.name-hex", gpu);
    if (hex) { /* raw bytes: maybe invalid UTF-8, maybe without NUL */
        for (unsigned i = 0, byte; i < length && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++) name[i] = (char)byte;
        return OK;
    }
    const char *value = look("gpu%d.name", gpu);
    put(name, length, value ? value : "Fake GPU");
    return OK;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    DEVICE;
    const char *value = look("gpu%d.uuid", gpu);
    if (value) put(uuid, length, value);
    else snprintf(uuid, length, "GPU-0000000%d-0000-0000-0000-000000000000", gpu);
    return OK;
}
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    DEVICE;
    memory->total = number(gpu, "total", 16LL << 30);
    memory->used = number(gpu, "used", 1LL << 30);
    memory->free = memory->total - memory->used;
    return OK;
}
#ifndef OLD_DRIVER
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    DEVICE;
    if (memory->version != (sizeof *memory | 2 << 24)) return 25;
    memory->total = number(gpu, "total", 16LL << 30);
    memory->used = number(gpu, "used", 1LL << 30);
    memory->reserved = number(gpu, "reserved", 300 << 20);
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}
int nvmlDeviceGetRemappedRows(void *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    DEVICE;
    *corrected = *uncorrected = 0;
    *pending = number(gpu, "pending", 0);
    *failed = number(gpu, "failed", 0);
    return OK;
}
#endif
struct fabric { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };
int nvmlDeviceGetGpuFabricInfo(void *device, struct fabric *fabric) {
    DEVICE;
    memset(fabric, 0, sizeof *fabric);
    fabric->state = number(gpu, "fabric", 0);
    fabric->status = number(gpu, "fabric-status", 0);
    return OK;
}
#ifndef OLD_DRIVER
struct fabric_v2 {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health;
};
int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_v2 *fabric) {
    DEVICE;
    if (fabric->version != (sizeof *fabric | 2 << 24)) return 25;
    fabric->state = number(gpu, "fabric", 0);
    fabric->status = number(gpu, "fabric-status", 0);
    return OK;
}
#endif
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci) {
    DEVICE;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", gpu + 4);
    return OK;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor) { DEVICE; *minor = number(gpu, "minor", gpu); return OK; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    DEVICE;
    (void)sensor;
    *celsius = number(gpu, "temp", 41);
    return OK;
}
struct rates { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(void *device, struct rates *rates) {
    DEVICE;
    rates->gpu = number(gpu, "util", 97);
    rates->memory = 33;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { DEVICE; *mw = number(gpu, "power", 70500); return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) { DEVICE; *mw = number(gpu, "limit", 300000); return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
    DEVICE;
    *bits = number(gpu, "throttle", 0);
    return OK;
}
int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *errors) {
    DEVICE;
    (void)type, (void)counter;
    long long value = number(gpu, "ecc", 0);
    if (value < 0) return NOT_SUPPORTED;
    *errors = value;
    return OK;
}
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
};
int nvmlDeviceGetFieldValues(void *device, int n, struct field *fields) {
    DEVICE;
    for (int i = 0; i < n; i++) {
        long long action = number(gpu, "recovery", -1);
        fields[i].code = fields[i].id == 230 && action >= 0 ? OK : NOT_SUPPORTED;
        fields[i].type = 1;
        fields[i].value.u = action;
    }
    return OK;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    DEVICE;
    long long mode = number(gpu, "mig", -1);
    if (mode < 0) return NOT_SUPPORTED;
    *current = *pending = mode;
    return OK;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    DEVICE;
    if (link >= number(gpu, "links", 0)) return NOT_SUPPORTED;
    *active = 1;
    return OK;
}
int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) {
    DEVICE;
    *types = number(gpu, "events", 0x801f);
    return OK;
}
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    DEVICE;
    return set == &set_object && !(types & ~number(gpu, "events", 0x801f)) ? OK : INVALID;
}
int nvmlEventSetCreate(void **set) { ENTER(-1); *set = &set_object; return OK; }
struct event { void *device; unsigned long long kind, data; unsigned gpu_instance, compute_instance; };
static int wait_for(struct event *event, unsigned ms) {
    int gpu;
    for (unsigned waited = 0;; waited += 5) {
        const char *value = look("event-%d", events_delivered + 1);
        if (value && sscanf(value, "%d %llu %llu", &gpu, &event->kind, &event->data) == 3) {
            events_delivered++;
            event->device = gpu < 0 ? NULL : &devices[gpu];
            event->gpu_instance = event->compute_instance = 0xFFFFFFFF;
            return OK;
        }
        if (waited >= ms) return TIMEOUT;
        usleep(5000);
    }
}
#ifndef EVENTS_V1
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned ms) { (void)set; ENTER(-1); return wait_for(event, ms); }
#endif
int nvmlEventSetWait(void *set, struct event *event, unsigned ms) { (void)set; ENTER(-1); return wait_for(event, ms); }
int nvmlEventSetFree(void *set) { (void)set; ENTER(-1); return OK; }
