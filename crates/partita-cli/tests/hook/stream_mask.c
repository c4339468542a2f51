/* A program that masks its own stream, as libsmctrl does: inside its partition
 * of TPCs 0-3, across its border, and wholly outside. */
#include "cuda.h"

typedef int (*fn_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int main(int count, char **arguments) {
    FILE *file = fopen(arguments[1], "r");
    if (!file) die(arguments[1], -1);
    static char ptx[1 << 16];
    ptx[fread(ptx, 1, sizeof ptx - 1, file)] = 0;
    fclose(file);
    start(1);
    void *module, *census, *stream;
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, ptx));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&census, module, "partita_census"));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 0));
    enum { BLOCKS = 64 };
    address records;
    uint64_t duration = 30000, host[4 * BLOCKS];
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&records, sizeof host));
    void *parameters[2] = {&records, &duration};
    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");

    const struct { const char *name; uint32_t enabled; } masks[] = {{"inside", 1 << 1}, {"across", 1 << 3 | 1 << 4 | 1 << 5}, {"outside", 1 << 10}};
    for (int i = 0; i < 3; i++) {
        uint32_t *mask = (uint32_t *)(*(char **)stream + 0x51c);
        mask[0] = 1;
        mask[1] = ~masks[i].enabled;
        mask[2] = mask[3] = mask[4] = ~0u;
        OK("cuLaunchKernel", launch(census, BLOCKS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(host, records, sizeof host));
        unsigned char seen[256] = {0};
        for (int b = 0; b < BLOCKS; b++) seen[host[4 * b] & 255] = 1;
        printf("%s sms", masks[i].name);
        for (int sm = 0; sm < 256; sm++) if (seen[sm]) printf(" %d", sm);
        printf("\n");
    }
    return 0;
}
