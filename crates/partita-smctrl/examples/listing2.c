/*
 * Listing 2 of the paper, with its own calls and struct: the next launch gets
 * the TPCs of the first two GPCs, without a kernel module to find them.
 *
 * 64 bits name the TPCs of GPUs up to 64 TPCs. On a larger GPU, use
 * libsmctrl_get_gpc_info_ext() of libsmctrl.h.
 *
 *     cc listing2.c -lsmctrl -lcuda
 */
#include "../tests/c/gpu.h"
#include <errno.h>
#include <libsmctrl_paper.h>

int main(int count, char **arguments)
{
    (void) count;
    gpu_open(arguments);
    struct tpc_info tpcs;
    CHECK(libsmctrl_get_tpc_info(&tpcs));
    EXPECT(tpcs.num_tpcs == (uint32_t) gpu_tpcs);

    struct gpc_info gpcs;
    unsigned long long gpc_mask = 0;
    /* The TPCs of each GPC, one mask a GPC. */
    libsmctrl_get_gpc_info(&gpcs);

    if (gpcs.num_gpcs >= 2) {
        gpc_mask |= gpcs.gpc_tpc_masks[0];
        gpc_mask |= gpcs.gpc_tpc_masks[1];
    }

    if (gpc_mask != 0)
        libsmctrl_set_next_mask(gpc_mask);

    /* What the listing promises. */
    if (gpu_tpcs > 64) {
        EXPECT(libsmctrl_get_gpc_info(&gpcs) == ERANGE && gpc_mask == 0);
        puts("64 bits do not name every TPC of this GPU");
        return 0;
    }
    Tpcs two = { { gpc_mask, 0, 0, 0 } };
    RUNS_ON(NULL, gpc_mask ? two : all());
    RUNS_ON(NULL, all());
    puts("one launch ran on the TPCs of GPCs 0 and 1, the next one on all");
    return 0;
}
