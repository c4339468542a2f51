/*
 * Inside a tenant's partition: masks narrow it and never leave it.
 *
 *   tenant PTX first last    the tenant's TPCs, a range of at least four
 */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"

int main(int count, char **arguments)
{
    EXPECT(count == 4);
    int first = atoi(arguments[2]), end = atoi(arguments[3]) + 1;
    gpu_open(arguments);
    CUstream stream = gpu_stream();
    RUNS_ON(stream, tpcs(first, end));
    EXPECT(libsmctrl_set_global_mask(~(3ull << first)) == 0);
    RUNS_ON(NULL, tpcs(first, first + 2));
    EXPECT(libsmctrl_set_next_mask(~(1ull << (first + 2))) == 0);
    RUNS_ON(stream, tpcs(first + 2, first + 3));
    EXPECT(libsmctrl_set_next_mask(0) == 0);
    RUNS_ON(stream, tpcs(first, end));
    /* Partly outside, and wholly. */
    EXPECT(libsmctrl_set_next_mask(~(3ull << (end - 1))) == 0);
    RUNS_ON(stream, tpcs(end - 1, end));
    EXPECT(libsmctrl_set_next_mask(~(3ull << end)) == 0);
    RUNS_ON(stream, tpcs(first, end));
    EXPECT(libsmctrl_set_stream_mask(stream, ~(1ull << (first + 3))) == 0);
    RUNS_ON(stream, tpcs(first + 3, first + 4));
    EXPECT(libsmctrl_set_stream_mask(stream, ~(3ull << (end - 1))) == 0);
    RUNS_ON(stream, tpcs(end - 1, end));
    return 0;
}
