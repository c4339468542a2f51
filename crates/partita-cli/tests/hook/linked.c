/* Linked against libcuda, as a library of a program is. */
#include <stddef.h>

int cuInit(unsigned);
int cuCtxCreate_v2(void **, unsigned, int);
int cuMemGetInfo_v2(size_t *, size_t *);

size_t total(void) {
    void *context;
    size_t left, all;
    if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuMemGetInfo_v2(&left, &all)) return 0;
    return all;
}
