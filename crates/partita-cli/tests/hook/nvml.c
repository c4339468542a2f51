/* What the management library says in a tenant: the quota, what is charged of it, and the tenant's processes alone.
 * Reads letters: `i` starts CUDA, `a` allocates 64 MiB, `l` looks before or after that, in a line:
 * what NVML says of memory in both forms, what CUDA says where it was started, and the processes. Of the first device, or of the one whose UUID is the argument. */
#include "cuda.h"

struct memory { unsigned long long total, free, used; };
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process1 { unsigned pid; unsigned long long used; };
struct process2 { unsigned pid; unsigned long long used; unsigned gpu, compute; };

typedef int (*fn_pu)(unsigned, void **);

static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (!found) die(name, -1);
    return found;
}
#define NVML(type, name) ((type)symbol(name))

static void look(void *device, int started) {
    struct memory one;
    struct memory2 two = {.version = 0x02000028};
    OK("nvmlDeviceGetMemoryInfo", NVML(fn_pp, "nvmlDeviceGetMemoryInfo")(device, &one));
    OK("nvmlDeviceGetMemoryInfo_v2", NVML(fn_pp, "nvmlDeviceGetMemoryInfo_v2")(device, &two));
    if (two.total != two.reserved + two.free + two.used || one.total != one.free + one.used) die("sums", 1);
    if (one.total != two.total || one.free != two.free) die("versions", 2);
    if (started) {
        size_t left, total, of_device;
        OK("cuMemGetInfo_v2", CALL(fn_sizes, "cuMemGetInfo_v2")(&left, &total));
        OK("cuDeviceTotalMem_v2", CALL(fn_pi, "cuDeviceTotalMem_v2")(&of_device, 0));
        if (left != two.free || total != two.total || of_device != total) die("CUDA and NVML", 3);
    }
    printf("total %llu used %llu free %llu processes", two.total >> 20, two.used >> 20, two.free >> 20);
    struct process1 old[8];
    struct process2 listed[8];
    unsigned count = 8, room = 8, none = 0;
    OK("v1", NVML(int (*)(void *, unsigned *, void *), "nvmlDeviceGetComputeRunningProcesses")(device, &room, old));
    room = 8;
    OK("v2", NVML(int (*)(void *, unsigned *, void *), "nvmlDeviceGetComputeRunningProcesses_v2")(device, &room, listed));
    OK("v3", NVML(int (*)(void *, unsigned *, void *), "nvmlDeviceGetComputeRunningProcesses_v3")(device, &count, listed));
    int code = NVML(int (*)(void *, unsigned *, void *), "nvmlDeviceGetComputeRunningProcesses_v3")(device, &none, NULL);
    if (none != count || code != (count ? 7 : 0)) die("how many there are", code);
    for (unsigned i = 0; i < count; i++) {
        if (listed[i].pid != old[i].pid || listed[i].used != old[i].used) die("processes of two versions", 4);
        printf(" %s:%llu", listed[i].pid == (unsigned)getpid() ? "self" : "other", listed[i].used >> 20);
    }
    count = 8;
    OK("graphics", NVML(int (*)(void *, unsigned *, void *), "nvmlDeviceGetGraphicsRunningProcesses_v3")(device, &count, listed));
    if (count) die("processes that draw", (int)count);
    count = 8;
    OK("MPS", NVML(int (*)(void *, unsigned *, void *), "nvmlDeviceGetMPSComputeRunningProcesses_v3")(device, &count, listed));
    if (count) die("processes of MPS", (int)count);
    printf("\n");
}

int main(int argc, char **argv) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
    OK("nvmlInit_v2", NVML(int (*)(void), "nvmlInit_v2")());
    void *device;
    if (argc > 1) OK("nvmlDeviceGetHandleByUUID", NVML(fn_pp, "nvmlDeviceGetHandleByUUID")(argv[1], &device));
    else OK("nvmlDeviceGetHandleByIndex_v2", NVML(fn_pu, "nvmlDeviceGetHandleByIndex_v2")(0, &device));
    int started = 0;
    for (int what; (what = getchar()) != EOF;) {
        address p;
        switch (what) {
        case 'i': start(0); started = 1; break;
        case 'a': OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, (size_t)64 << 20)); break;
        case 'l': look(device, started); break;
        default: continue;
        }
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
