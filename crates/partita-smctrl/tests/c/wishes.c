/* A mask of all TPCs counts like any other; masks without a TPC are refused. */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"
#include <errno.h>

int main(int count, char **arguments)
{
    /* A further argument: descriptors cannot tell a stream's "all" from none. */
    Tpcs stream_all;
    gpu_open(arguments);
    CUstream stream = gpu_stream();
    stream_all = count > 2 ? tpcs(0, 2) : all();
    EXPECT(libsmctrl_set_global_mask(~0x3ull) == 0);

    /* A stream's mask of 0 is all TPCs for this stream, not "none set", where a
     * launch descriptor can tell the one from the other. */
    EXPECT(libsmctrl_set_stream_mask(stream, 0) == 0);
    RUNS_ON(stream, stream_all);
    RUNS_ON(NULL, tpcs(0, 2));
    EXPECT(libsmctrl_set_stream_mask_ext(stream, 0) == 0);
    RUNS_ON(stream, stream_all);
    /* One whose low bits are all 0 counts as well. */
    if (gpu_tpcs > 64 && count == 2) {
        uint128_t upper = (uint128_t) 1 << 64;
        EXPECT(libsmctrl_set_stream_mask_ext(stream, upper) == 0);
        Tpcs all_but_one = all();
        all_but_one.words[1] &= ~1ull;
        RUNS_ON(stream, all_but_one);
    }
    /* So is a next mask of 0, over the stream's and the global one. */
    EXPECT(libsmctrl_set_stream_mask(stream, ~0x8ull) == 0);
    EXPECT(libsmctrl_set_next_mask(0) == 0);
    RUNS_ON(stream, all());
    RUNS_ON(stream, tpcs(3, 4));
    EXPECT(libsmctrl_set_next_mask(0) == 0);
    RUNS_ON(NULL, all());
    RUNS_ON(NULL, tpcs(0, 2));

    /* What no launch could run on is refused, and changes nothing. */
    uint64_t none[4] = { ~0ull, ~0ull, 0, 0 };
    EXPECT(libsmctrl_set_global_mask(~0ull) == EINVAL);
    EXPECT(strstr(libsmctrl_error_string(), "would never end"));
    EXPECT(libsmctrl_set_next_mask(~0ull) == EINVAL);
    EXPECT(libsmctrl_set_stream_mask(stream, ~0ull) == EINVAL);
    EXPECT(libsmctrl_set_stream_mask_ext(stream, ~(uint128_t) 0) == EINVAL);
    EXPECT(libsmctrl_set_global_mask_wide(none) == EINVAL);
    RUNS_ON(NULL, tpcs(0, 2));
    RUNS_ON(stream, tpcs(3, 4));

    /* Default streams have no mask of their own. */
    for (uintptr_t handle = 0; handle < 3; handle++) {
        EXPECT(libsmctrl_set_stream_mask((void *) handle, ~1ull) == EINVAL);
        EXPECT(strstr(libsmctrl_error_string(), "default stream"));
    }
    /* GPUs that are not there, whatever number is asked for. */
    uint32_t number;
    uint64_t *gpcs;
    for (int device = -1; device < 200; device += device == 2 ? 13 : 1)
        if (device < 0 || device >= 16) {
            EXPECT(libsmctrl_get_tpc_info(&number, device) == ENODEV);
            EXPECT(libsmctrl_get_gpc_info(&number, &gpcs, device) == ENODEV);
            EXPECT(libsmctrl_get_tpc_info_cuda(&number, device) == ENODEV);
        }
    EXPECT(libsmctrl_get_tpc_info(NULL, 0) == EFAULT);
    return 0;
}
