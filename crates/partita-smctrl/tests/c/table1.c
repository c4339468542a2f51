/* Every function of the paper's Table I, and those of BulletServe's variant. */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"
#include <errno.h>

int main(int count, char **arguments)
{
    (void) count;
    EXPECT(!strncmp(libsmctrl_get_version(), "partita ", 8));
    EXPECT(!libsmctrl_is_init());
    /* Without a context the one fails, and the other does not need one. */
    EXPECT(libsmctrl_init_from_cuda() == ENXIO && libsmctrl_last_error() == ENXIO);
    EXPECT(strstr(libsmctrl_error_string(), "libsmctrl_init"));
    EXPECT(!libsmctrl_is_init());
    EXPECT(libsmctrl_init() == 0 && libsmctrl_is_init());
    EXPECT(libsmctrl_last_error() == 0 && !strcmp(libsmctrl_error_string(), ""));
    gpu_open(arguments);
    EXPECT(libsmctrl_init_from_cuda() == 0);
    RUNS_ON(NULL, all());

    CUstream stream = gpu_stream();
    EXPECT(libsmctrl_set_global_mask(~0x3ull) == 0);
    RUNS_ON(NULL, tpcs(0, 2));
    EXPECT(libsmctrl_set_stream_mask(stream, ~0x4ull) == 0);
    RUNS_ON(stream, tpcs(2, 3));
    EXPECT(libsmctrl_set_next_mask(~0x8ull) == 0);
    RUNS_ON(stream, tpcs(3, 4));
    uint32_t tpc_count, gpc_count;
    uint128_t *gpcs;
    EXPECT(libsmctrl_get_tpc_info(&tpc_count, 0) == 0 && (int) tpc_count == gpu_tpcs);
    EXPECT(libsmctrl_get_gpc_info_ext(&gpc_count, &gpcs, 0) == 0 && gpc_count > 0);

    /* Masks by range, in both widths. */
    uint64_t mask;
    uint128_t wide;
    EXPECT(libsmctrl_make_mask(&mask, 5, 8) == 0 && mask == ~0xe0ull);
    EXPECT(libsmctrl_make_mask_ext(&wide, 5, 8) == 0 && wide == ~(uint128_t) 0xe0);
    EXPECT(libsmctrl_make_mask(&mask, 3, gpu_tpcs) == 0);
    EXPECT(libsmctrl_set_next_mask(mask) == 0);
    RUNS_ON(stream, tpcs(3, gpu_tpcs));
    EXPECT(libsmctrl_make_mask(&mask, 8, 8) == EINVAL);
    EXPECT(libsmctrl_make_mask(&mask, 0, 300) == ERANGE);
    EXPECT(libsmctrl_make_mask_ext(&wide, 0, 129) == ERANGE);
    EXPECT(libsmctrl_make_mask(NULL, 0, 1) == EFAULT);

    /* The check of a stream tells right from wrong, and leaves a next mask for
     * the launch that it was set for. */
    EXPECT(libsmctrl_validate_stream_mask(stream, 2, 3, false) == 0);
    EXPECT(libsmctrl_validate_stream_mask(stream, 0, gpu_tpcs, true) == 0);
    EXPECT(libsmctrl_set_next_mask(~0x100ull) == 0);
    EXPECT(libsmctrl_validate_stream_mask(stream, 3, 4, false) == ERANGE);
    EXPECT(strstr(libsmctrl_error_string(), "TPCs 2"));
    EXPECT(libsmctrl_validate_stream_mask(stream, 3, 3, false) == EINVAL);
    RUNS_ON(stream, tpcs(8, 9));
    RUNS_ON(stream, tpcs(2, 3));

    /* What is taken away. */
    EXPECT(libsmctrl_clear_stream_mask(stream) == 0);
    RUNS_ON(stream, tpcs(0, 2));
    EXPECT(libsmctrl_set_next_mask(~0x8ull) == 0 && libsmctrl_clear_next_mask() == 0);
    RUNS_ON(stream, tpcs(0, 2));
    EXPECT(libsmctrl_clear_global_mask() == 0);
    RUNS_ON(stream, all());
    uint64_t unmasked = 1;
    EXPECT(libsmctrl_get_unmasked_launches(&unmasked) == 0 && unmasked == 0);
    return 0;
}
