/*
 * Listing 1 of the paper, with its own calls and masks: two streams with
 * disjoint TPCs, so that sporadic work in one starts at once whatever runs in
 * the other; and TPC 0 alone for everything else, CUDA's own kernels among it.
 *
 * The paper has a GPU of nine TPCs. libsmctrl_paper.h says how the paper's
 * masks differ from those of libsmctrl.h.
 *
 *     cc listing1.c -lsmctrl -lcuda
 */
#include "../tests/c/gpu.h"
#include <libsmctrl_paper.h>

/* The paper uses the runtime of CUDA; its streams are the driver's. */
typedef CUstream cudaStream_t;
#define cudaStreamCreate(stream) CHECK(cuStreamCreate(stream, 1))

int main(int count, char **arguments)
{
    (void) count;
    gpu_open(arguments);

    unsigned long long default_mask;
    /* The other TPCs are disabled, where no finer mask enables them. */
    default_mask = ~(1ull);
    libsmctrl_set_global_mask(default_mask);

    cudaStream_t otherStream;
    cudaStream_t urgentStream;
    cudaStreamCreate(&otherStream); cudaStreamCreate(&urgentStream);

    /* TPCs 0 to 4. */
    unsigned long long other_mask;
    other_mask = ((1ull << 5) - 1);
    libsmctrl_set_stream_mask(otherStream, other_mask);

    /* TPCs 5 to 8. */
    unsigned long long urgent_mask;
    urgent_mask = 0x1e0;
    libsmctrl_set_stream_mask(urgentStream, urgent_mask);

    /* What the listing promises. */
    RUNS_ON(otherStream, tpcs(0, 5));
    RUNS_ON(urgentStream, tpcs(5, 9));
    RUNS_ON(NULL, tpcs(0, 1));
    puts("otherStream ran on TPCs 0-4, urgentStream on TPCs 5-8, the rest on TPC 0");
    return 0;
}
