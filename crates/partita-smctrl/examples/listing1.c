/*
 * Listing 1 of the paper: two streams with disjoint TPCs, so that sporadic work
 * in one starts at once whatever runs in the other; and TPC 0 alone for
 * everything else, CUDA's own kernels among it.
 *
 * The paper has a GPU of nine TPCs. A set bit disables, so the masks of streams
 * are the complements of the sets that they allow.
 *
 *     cc listing1.c -lsmctrl -lcuda
 */
#include "../tests/c/gpu.h"
#include <libsmctrl.h>

int main(int count, char **arguments)
{
    (void) count;
    gpu_open(arguments);

    unsigned long long default_mask;
    /* Unless told otherwise, disable every TPC but TPC 0. */
    default_mask = ~1ull;
    libsmctrl_set_global_mask(default_mask);

    /* Two streams, so that their work may run at the same time. */
    CUstream otherStream, urgentStream;
    CHECK(cuStreamCreate(&otherStream, 1));
    CHECK(cuStreamCreate(&urgentStream, 1));

    /* otherStream gets TPCs 0 to 4. */
    unsigned long long other_mask;
    other_mask = ~((1ull << 5) - 1);
    libsmctrl_set_stream_mask(otherStream, other_mask);

    /* urgentStream gets TPCs 5 to 8. */
    unsigned long long urgent_mask;
    urgent_mask = ~0x1e0ull;
    libsmctrl_set_stream_mask(urgentStream, urgent_mask);

    /* What the example promises. */
    RUNS_ON(otherStream, tpcs(0, 5));
    RUNS_ON(urgentStream, tpcs(5, 9));
    RUNS_ON(NULL, tpcs(0, 1));
    puts("otherStream ran on TPCs 0-4, urgentStream on TPCs 5-8, the rest on TPC 0");
    return 0;
}
