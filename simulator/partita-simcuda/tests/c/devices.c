// The differences between devices. Prints SMs, SMs that a census found, SMs under a stream mask of TPC 1 alone.
#include "sim.h"

static void masks(void) {
    // From the test: the offset of the mask, and whether it has an enable word.
    unsigned long offset = strtoul(getenv("MASK_OFFSET"), NULL, 0);
    int words = atoi(getenv("MASK_WORDS"));
    start();
    int sms, clusters;
    OK(cuDeviceGetAttribute(&sms, 16, 0));
    OK(cuDeviceGetAttribute(&clusters, 120, 0));
    int all = census(NULL, 4 * (unsigned)sms, 512, 10000, NULL);
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    uint32_t enabled[5] = {1, ~2u, ~0u, ~0u, ~0u}, plain[2] = {~0u, ~2u};
    memcpy(*(char **)stream + offset, words == 5 ? enabled : plain, (size_t)words * 4);
    Record records[16];
    int masked = census(stream, 16, 512, 10000, records);
    int first = 1000;
    for (int i = 0; i < 16; i++) first = (int)records[i].smid < first ? (int)records[i].smid : first;
    printf("%d %d %d %d\n", sms, all, masked, first);
    // Clusters exist where the device says so: from compute capability 9 on, if its descriptors can hold them.
    uint64_t ns = 1000;
    void *params[] = {&ns};
    Attribute cluster = {.id = 4, .u.dim = {2, 1, 1}};
    Config config = {{8, 1, 1}, {32, 1, 1}, 0, NULL, &cluster, 1};
    CUresult launched = cuLaunchKernelEx(&config, function("partita_spin"), params, NULL);
    if (clusters) OK(launched);
    else TRUE(launched != 0);
    OK(cuLaunchCooperativeKernel(function("partita_spin"), (unsigned)sms, 1, 1, 64, 1, 1, 0, NULL, params));
    OK(cuCtxSynchronize());
}

// Prints the driver's version and which of three entry points of different ages it has: of 12.0, 12.4 and 11.2.
static void versions(void) {
    int version;
    OK(cuInit(0));
    OK(cuDriverGetVersion(&version));
    static const char *const names[] = {"cuLibraryLoadData", "cuGreenCtxCreate", "cuMemAllocAsync"};
    printf("%d", version);
    for (int i = 0; i < 3; i++) {
        void *address = NULL;
        int status;
        CUresult found = cuGetProcAddress_v2(names[i], &address, 13000, 0, &status);
        TRUE((address != NULL) == (found == 0 && status == 0));
        printf(" %d", address != NULL);
    }
    printf("\n");
}

CASES({"masks", masks}, {"versions", versions})
