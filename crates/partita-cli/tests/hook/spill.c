/* Allocations that a quota has room for and others, as asked: `a MIB` by cuMemAlloc, `s MIB` in stream order, `f N`
 * frees the Nth by cuMemFree, `r N` in stream order. Each answer is the driver's code and the free bytes in MiB. What
 * is had is filled by the device and looked at by a copy, wherever it lies. */
#include "cuda.h"

#define MIB ((size_t)1 << 20)

static address held[16];
static int count;

static void use(address at, size_t bytes) {
    unsigned last = 0;
    OK("cuMemsetD32_v2", CALL(int (*)(address, unsigned, size_t), "cuMemsetD32_v2")(at, 7000 + count, bytes / 4));
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(&last, at + bytes - 4, 4));
    if (last != 7000u + count) die("what was written", (int)last);
    OK("cuMemcpyHtoD_v2", CALL(int (*)(address, const void *, size_t), "cuMemcpyHtoD_v2")(at, &count, 4));
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(&last, at, 4));
    if (last != (unsigned)count) die("what was copied", (int)last);
}

int main(void) {
    char what;
    size_t number;
    start(0);
    while (scanf(" %c %zu", &what, &number) == 2) {
        int code = 0;
        switch (what) {
        case 'a': code = CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&held[count], number * MIB); break;
        case 's': code = CALL(int (*)(address *, size_t, void *), "cuMemAllocAsync")(&held[count], number * MIB, NULL); break;
        case 'f': code = CALL(int (*)(address), "cuMemFree_v2")(held[number]); break;
        case 'r':
            code = CALL(int (*)(address, void *), "cuMemFreeAsync")(held[number], NULL);
            OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
            break;
        default: return 1;
        }
        if (what == 'a' || what == 's') {
            if (!code) use(held[count++], number * MIB);
        }
        printf("%d %zu\ndone\n", code, free_bytes() / MIB);
        fflush(stdout);
    }
    return 0;
}
