/* A tenant's program that nothing may happen to. It holds 16 MiB of its quota, and answers each line with the code of an allocation of the
 * whole quota, the free bytes in MiB, and the SMs that its blocks run on. */
#include "../../hook/census.h"

#define BLOCKS 264

int main(int count, char **v) {
    char line[64];
    if (count < 2) return 2;
    start(0);
    void *census = load_census(kernels_in(v[1])), *stream = new_stream(1);
    address records = new_records(BLOCKS), held;
    uint64_t duration = 30000;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&held, (size_t)16 << 20));
    printf("%d\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        address whole;
        void *parameters[2] = {&records, &duration};
        int code = CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&whole, (size_t)64 << 20);
        clear_records(records, BLOCKS);
        OK("cuLaunchKernel", CALL(fn_launch, "cuLaunchKernel")(census, BLOCKS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        printf("%d %zu", code, free_bytes() >> 20);
        print_sms(records, BLOCKS);
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
