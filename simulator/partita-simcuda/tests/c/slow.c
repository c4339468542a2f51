// Kernels that take long.
#include "sim.h"

static void six_seconds(void) {
    start();
    CUevent begin, end;
    float ms;
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    spin(NULL, 1, 32, 1000000000); // until all is queued
    OK(cuEventRecord(begin, NULL));
    for (int i = 0; i < 6; i++) spin(NULL, 132, 1024, 1000000000);
    OK(cuEventRecord(end, NULL));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&ms, begin, end));
    TRUE(ms > 6000.0f && ms < 6001.0f);
}

CASES({"six_seconds", six_seconds})
