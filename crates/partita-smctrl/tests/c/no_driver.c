/* Without a driver, every call returns an error, and the program continues.
 * With one, this exits with 77. */
#include "libsmctrl.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(holds) \
    if (!(holds)) { \
        fprintf(stderr, "line %d: not so: %s\n", __LINE__, #holds); \
        exit(92); \
    }

int main(void)
{
    uint32_t number;
    uint64_t *gpcs, mask;
    if (dlopen("libcuda.so.1", RTLD_LAZY))
        return 77;
    libsmctrl_set_global_mask(~1ull);
    EXPECT(libsmctrl_last_error() == ENODEV);
    EXPECT(strstr(libsmctrl_error_string(), "libcuda.so.1"));
    libsmctrl_set_next_mask(~1ull);
    EXPECT(libsmctrl_last_error() == ENODEV);
    libsmctrl_set_stream_mask((void *) 0x1000, ~1ull);
    EXPECT(libsmctrl_last_error() == ENODEV);
    EXPECT(libsmctrl_init() == ENODEV && !libsmctrl_is_init());
    EXPECT(libsmctrl_init_from_cuda() == ENODEV);
    EXPECT(libsmctrl_get_tpc_info_cuda(&number, 0) == ENODEV);
    EXPECT(libsmctrl_get_gpc_info(&number, &gpcs, 0) == ENODEV);
    EXPECT(libsmctrl_make_mask(&mask, 0, 4) == 0 && mask == ~0xfull);
    return 0;
}
