/* The GPUs that CUDA_VISIBLE_DEVICES leaves, in their order: the code of cuInit if there is none, else the total of
 * each in MiB, as a context of it tells it and as the device does. */
#include "cuda.h"

int main(void) {
    int count = 0, code = CALL(fn_u, "cuInit")(0);
    if (code) { printf("code %d\n", code); return 0; }
    OK("cuDeviceGetCount", CALL(int (*)(int *), "cuDeviceGetCount")(&count));
    for (int device = 0; device < count; device++) {
        size_t left, total, of_device;
        address p;
        OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&context, 0, device));
        OK("cuMemGetInfo_v2", CALL(fn_sizes, "cuMemGetInfo_v2")(&left, &total));
        OK("cuDeviceTotalMem_v2", CALL(fn_pi, "cuDeviceTotalMem_v2")(&of_device, device));
        if (left != total || of_device != total) die("totals", device);
        if (CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, total + 1) != 2) die("more than the total", device);
        OK("all of it", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, total));
        printf("%s%zu", device ? " " : "", total >> 20);
    }
    printf("\n");
    return 0;
}
