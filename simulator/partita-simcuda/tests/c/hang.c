// Launches that hang on hardware hang here; a watchdog tells a test.
#include "sim.h"

static void set_stream_mask(CUstream stream, const uint32_t mask[4]) {
    uint32_t on = 1;
    memcpy(*(char **)stream + 0x520, mask, 16);
    memcpy(*(char **)stream + 0x51c, &on, 4);
}

static void launch(CUstream stream, unsigned cluster, unsigned blocks, int cooperative) {
    uint64_t ns = 1000;
    void *params[] = {&ns};
    CUfunction f = function("partita_spin");
    OK(cuFuncSetAttribute(f, 14, 1));
    Attribute attrs[2] = {{.id = 4, .u.dim = {cluster, 1, 1}}, {.id = 2, .u.value = cooperative}};
    Config config = {{blocks, 1, 1}, {1024, 1, 1}, 0, stream, attrs, 2};
    OK(cuLaunchKernelEx(&config, f, params, NULL));
}

static CUstream masked(const uint32_t mask[4]) {
    CUstream stream;
    OK(cuStreamCreate(&stream, 1));
    set_stream_mask(stream, mask);
    return stream;
}

// One TPC in each of eight GPCs.
static const uint32_t SPREAD[4] = {~0xffu, ~0u, ~0u, ~0u};
// Half of the TPCs.
static const uint32_t HALF[4] = {0, ~1u, ~0u, ~0u};

static void clusters(void) {
    start();
    CUstream stream = masked(SPREAD);
    launch(stream, 2, 16, 0);
    OK(cuStreamSynchronize(stream));
    launch(stream, 4, 16, 0);
    IS(702, cuStreamSynchronize(stream)); // CUDA_ERROR_LAUNCH_TIMEOUT
    IS(702, cuCtxSynchronize());
}

static void large_clusters(void) {
    start();
    CUstream stream = masked(HALF);
    launch(stream, 4, 16, 0);
    OK(cuStreamSynchronize(stream));
    launch(stream, 16, 16, 0);
    IS(702, cuCtxSynchronize());
}

static void cooperative(void) {
    start();
    CUstream stream = masked(HALF);
    launch(stream, 1, 132, 1);
    OK(cuStreamSynchronize(stream));
    launch(stream, 1, 133, 1);
    IS(702, cuStreamSynchronize(stream));
}

static void dead(void) {
    start();
    const uint32_t none[4] = {~0u, ~0u, ~0u, ~0u};
    CUstream stream = masked(none);
    launch(stream, 1, 1, 0);
    IS(702, cuStreamSynchronize(stream));
}

// A queue that is merely long is no hang: the watchdog lets it be.
static void busy(void) {
    start();
    spin(NULL, 1, 32, 300000000);
    OK(cuCtxSynchronize());
}

// Without a watchdog it hangs: the caller kills this program, and the GPU is free again.
static void for_ever(void) {
    start();
    const uint32_t none[4] = {~0u, ~0u, ~0u, ~0u};
    launch(masked(none), 1, 1, 0);
    puts("launched");
    fflush(stdout);
    cuCtxSynchronize();
}

CASES({"clusters", clusters}, {"large_clusters", large_clusters}, {"cooperative", cooperative}, {"dead", dead},
      {"busy", busy}, {"for_ever", for_ever})
