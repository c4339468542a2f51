/* A program for the original: its prototypes and its constants, no others. */
#include "gpu.h"
#include "published.h"

int main(int count, char **arguments)
{
    uint32_t tpc_count, same_count, gpc_count, gpc_count_ext;
    uint64_t *gpcs;
    uint128_t *gpcs_ext;
    (void) count;
    gpu_open(arguments);
    CUstream stream = gpu_stream(), other = gpu_stream();

    EXPECT(libsmctrl_get_tpc_info_cuda(&tpc_count, 0) == 0 && (int) tpc_count == gpu_tpcs);
    EXPECT(libsmctrl_get_tpc_info(&same_count, 0) == 0 && same_count == tpc_count);
    EXPECT(libsmctrl_get_gpc_info_ext(&gpc_count_ext, &gpcs_ext, 0) == 0);
    uint128_t every = 0;
    for (unsigned gpc = 0; gpc < gpc_count_ext; gpc++) {
        EXPECT(gpcs_ext[gpc] != 0 && !(every & gpcs_ext[gpc]));
        every |= gpcs_ext[gpc];
    }
    EXPECT(every == (((uint128_t) 1 << tpc_count) - 1));
    if (tpc_count <= 64) {
        EXPECT(libsmctrl_get_gpc_info(&gpc_count, &gpcs, 0) == 0 && gpc_count == gpc_count_ext);
        for (unsigned gpc = 0; gpc < gpc_count; gpc++)
            EXPECT(gpcs[gpc] == (uint64_t) gpcs_ext[gpc]);
    }

    /* Nothing is masked before somebody asks for it. */
    RUNS_ON(stream, all());
    /* Global, stream, next: the nearest counts, next for one launch. */
    libsmctrl_set_global_mask(~0x1ull);
    RUNS_ON(stream, tpcs(0, 1));
    RUNS_ON(NULL, tpcs(0, 1));
    libsmctrl_set_stream_mask(stream, ~0xcull);
    RUNS_ON(stream, tpcs(2, 4));
    RUNS_ON(other, tpcs(0, 1));
    libsmctrl_set_next_mask(~0x6ull);
    RUNS_ON(stream, tpcs(1, 3));
    RUNS_ON(stream, tpcs(2, 4));
    libsmctrl_set_stream_mask_ext(other, ~((uint128_t) 3 << (gpu_tpcs - 2)));
    RUNS_ON(other, tpcs(gpu_tpcs - 2, gpu_tpcs));
    libsmctrl_set_global_mask(0);
    RUNS_ON(NULL, all());
    RUNS_ON(stream, tpcs(2, 4));
    return 0;
}
