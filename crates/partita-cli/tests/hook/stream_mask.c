/* A program that masks its own stream, as libsmctrl does: inside its partition
 * of TPCs 0-3, across its border, and wholly outside. */
#include "census.h"

int main(int count, char **arguments) {
    start(1);
    void *census = load_census(kernels_in(arguments[1]));
    void *stream = new_stream(0);
    enum { BLOCKS = 64 };
    address records = new_records(BLOCKS);
    uint64_t duration = 30000;
    void *parameters[2] = {&records, &duration};
    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");

    const struct { const char *name; uint32_t enabled; } masks[] = {{"inside", 1 << 1}, {"across", 1 << 3 | 1 << 4 | 1 << 5}, {"outside", 1 << 10}};
    for (int i = 0; i < 3; i++) {
        uint32_t *mask = (uint32_t *)(*(char **)stream + 0x51c);
        mask[0] = 1;
        mask[1] = ~masks[i].enabled;
        mask[2] = mask[3] = mask[4] = ~0u;
        OK("cuLaunchKernel", launch(census, BLOCKS, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        printf("%s", masks[i].name);
        print_sms(records, BLOCKS);
        clear_records(records, BLOCKS);
    }
    return 0;
}
