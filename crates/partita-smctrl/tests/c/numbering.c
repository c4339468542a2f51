/* Masks in the hardware's numbering. */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"
#include <errno.h>

int main(int count, char **arguments)
{
    /* Each further argument is the place of a TPC, in their order. */
    gpu_open(arguments);
    EXPECT(count - 2 == gpu_tpcs);
    int by_environment = getenv("LIBSMCTRL_NUMBERING") != NULL;
    EXPECT(libsmctrl_get_numbering() == (by_environment ? LIBSMCTRL_PHYSICAL : LIBSMCTRL_LOGICAL));
    EXPECT(libsmctrl_set_numbering(7) == EINVAL);
    EXPECT(libsmctrl_set_numbering(LIBSMCTRL_PHYSICAL) == 0);
    for (int tpc = 0; tpc < gpu_tpcs; tpc += 5) {
        int place = atoi(arguments[2 + tpc]);
        EXPECT(libsmctrl_set_next_mask_ext(~((uint128_t) 1 << place)) == 0);
        RUNS_ON(NULL, tpcs(tpc, tpc + 1));
        EXPECT(libsmctrl_set_global_mask_ext(~((uint128_t) 1 << place)) == 0);
        RUNS_ON(NULL, tpcs(tpc, tpc + 1));
    }
    /* A place without a TPC holds no launch. */
    int used[128] = { 0 };
    for (int tpc = 0; tpc < gpu_tpcs; tpc++)
        used[atoi(arguments[2 + tpc])] = 1;
    for (int place = 0; place < 128; place++)
        if (!used[place])
            EXPECT(libsmctrl_set_next_mask_ext(~((uint128_t) 1 << place)) == EINVAL);
    /* Streams count TPCs either way. */
    CUstream stream = gpu_stream();
    EXPECT(libsmctrl_set_stream_mask(stream, ~0x2ull) == 0);
    RUNS_ON(stream, tpcs(1, 2));
    EXPECT(libsmctrl_set_numbering(LIBSMCTRL_LOGICAL) == 0);
    EXPECT(libsmctrl_set_next_mask(~0x4ull) == 0);
    RUNS_ON(stream, tpcs(2, 3));
    return 0;
}
