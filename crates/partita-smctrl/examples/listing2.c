/*
 * Listing 2 of the paper: the next launch gets the TPCs of the first two GPCs,
 * without a kernel module to find them.
 *
 * It uses 128 bits, because newer GPUs have more than 64 TPCs.
 *
 *     cc listing2.c -lsmctrl -lcuda
 */
#include "../tests/c/gpu.h"
#include <libsmctrl.h>

int main(int count, char **arguments)
{
    (void) count;
    gpu_open(arguments);

    uint32_t num_gpcs;
    uint128_t *tpcs_for_gpc, gpc_mask = 0;
    /* The TPCs of each GPC, one mask a GPC. */
    CHECK(libsmctrl_get_gpc_info_ext(&num_gpcs, &tpcs_for_gpc, 0));

    /* Those of GPCs 0 and 1 for the next launch. */
    if (num_gpcs >= 2) {
        gpc_mask |= tpcs_for_gpc[0];
        gpc_mask |= tpcs_for_gpc[1];
    }
    /* A set bit disables, so the mask is the complement. */
    if (gpc_mask != 0)
        CHECK(libsmctrl_set_next_mask_ext(~gpc_mask));

    /* What the example promises. */
    Tpcs two = { { (uint64_t) gpc_mask, (uint64_t) (gpc_mask >> 64), 0, 0 } };
    RUNS_ON(NULL, gpc_mask ? two : all());
    RUNS_ON(NULL, all());
    puts("one launch ran on the TPCs of GPCs 0 and 1, the next one on all");
    return 0;
}
