/* TPCs beyond 64 bits, one by one and as a whole; only where a GPU has them. */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"
#include <errno.h>

int main(int count, char **arguments)
{
    (void) count;
    gpu_open(arguments);
    CUstream stream = gpu_stream();
    EXPECT(gpu_tpcs > 64);

    /* 64 bits: the last stands for all above. Masks and their complements part
     * the device, and nothing is out of reach. */
    for (int shift = 0; shift < 64; shift += 7) {
        uint64_t mask = ~0ull << shift;
        if (shift) {
            EXPECT(libsmctrl_set_global_mask(mask) == 0);
            RUNS_ON(NULL, tpcs(0, shift));
            EXPECT(libsmctrl_set_stream_mask(stream, mask) == 0);
            RUNS_ON(stream, tpcs(0, shift));
        }
        EXPECT(libsmctrl_set_global_mask(~mask) == 0);
        RUNS_ON(NULL, tpcs(shift, gpu_tpcs));
        EXPECT(libsmctrl_set_stream_mask(stream, ~mask) == 0);
        RUNS_ON(stream, tpcs(shift, gpu_tpcs));
    }

    /* Every TPC alone, by each wide setter. */
    for (int tpc = 0; tpc < gpu_tpcs; tpc += tpc < 60 ? 13 : 1) {
        uint128_t mask = ~((uint128_t) 1 << tpc);
        uint64_t words[4] = { (uint64_t) mask, (uint64_t) (mask >> 64), ~0ull, ~0ull };
        EXPECT(libsmctrl_set_stream_mask_ext(stream, mask) == 0);
        RUNS_ON(stream, tpcs(tpc, tpc + 1));
        EXPECT(libsmctrl_set_global_mask_ext(mask) == 0);
        RUNS_ON(NULL, tpcs(tpc, tpc + 1));
        EXPECT(libsmctrl_set_next_mask_ext(mask) == 0);
        RUNS_ON(stream, tpcs(tpc, tpc + 1));
        EXPECT(libsmctrl_set_global_mask_wide(words) == 0);
        RUNS_ON(NULL, tpcs(tpc, tpc + 1));
        EXPECT(libsmctrl_set_next_mask_wide(words) == 0);
        RUNS_ON(NULL, tpcs(tpc, tpc + 1));
        EXPECT(libsmctrl_set_stream_mask_wide(stream, words) == 0);
        RUNS_ON(stream, tpcs(tpc, tpc + 1));
    }
    /* A global mask leaves the upper half of a stream's alone. */
    EXPECT(libsmctrl_set_global_mask(~1ull) == 0);
    RUNS_ON(stream, tpcs(gpu_tpcs - 1, gpu_tpcs));

    /* 64 bits cannot hold the GPCs of this GPU, and say so. */
    uint32_t gpc_count;
    uint64_t *gpcs;
    uint128_t *gpcs_ext;
    EXPECT(libsmctrl_get_gpc_info(&gpc_count, &gpcs, 0) == ERANGE);
    EXPECT(strstr(libsmctrl_error_string(), "libsmctrl_get_gpc_info_ext"));
    EXPECT(libsmctrl_get_gpc_info_ext(&gpc_count, &gpcs_ext, 0) == 0);
    EXPECT(libsmctrl_set_next_mask_wide(NULL) == EFAULT);
    return 0;
}
