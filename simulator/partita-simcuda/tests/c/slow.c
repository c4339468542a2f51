// Kernels that take long.
#include "sim.h"

static void a_minute(void) {
    start();
    CUevent begin, end;
    float ms;
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    spin(NULL, 1, 32, 10000000000ull); // until all is queued
    OK(cuEventRecord(begin, NULL));
    for (int i = 0; i < 6; i++) spin(NULL, 132, 1024, 10000000000ull);
    OK(cuEventRecord(end, NULL));
    OK(cuCtxSynchronize());
    OK(cuEventElapsedTime(&ms, begin, end));
    TRUE(ms > 60000.0f && ms < 60001.0f);
}

CASES({"a_minute", a_minute})
