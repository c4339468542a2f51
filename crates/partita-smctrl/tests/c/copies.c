/*
 * Two copies in one process: the archive in the program, the shared library
 * opened beside it, with private names. They act as one, in any order of calls.
 *
 *   copies PTX libsmctrl.so (archive|shared)
 */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"
#include <dlfcn.h>
#include <errno.h>

int main(int count, char **arguments)
{
    EXPECT(count == 4);
    gpu_open(arguments);
    int archive_first = !strcmp(arguments[3], "archive");
    if (archive_first)
        EXPECT(libsmctrl_set_global_mask(~0x3ull) == 0);
    void *library = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    EXPECT(library != NULL);
    int (*other_global)(uint64_t) = (int (*)(uint64_t)) dlsym(library, "libsmctrl_set_global_mask");
    int (*other_next)(uint64_t) = (int (*)(uint64_t)) dlsym(library, "libsmctrl_set_next_mask");
    int (*other_error)(void) = (int (*)(void)) dlsym(library, "libsmctrl_last_error");
    bool (*other_is_init)(void) = (bool (*)(void)) dlsym(library, "libsmctrl_is_init");
    EXPECT(other_global != libsmctrl_set_global_mask);
    if (!archive_first)
        EXPECT(other_global(~0x3ull) == 0);
    EXPECT(libsmctrl_is_init() && other_is_init());
    RUNS_ON(NULL, tpcs(0, 2));
    /* Each sees what the other did. */
    EXPECT(other_next(~0x4ull) == 0);
    RUNS_ON(NULL, tpcs(2, 3));
    EXPECT(libsmctrl_set_next_mask(~0x8ull) == 0);
    RUNS_ON(NULL, tpcs(3, 4));
    EXPECT(other_global(~0x10ull) == 0);
    RUNS_ON(NULL, tpcs(4, 5));
    EXPECT(libsmctrl_set_global_mask(~0ull) == EINVAL && other_error() == EINVAL);
    /* Launches go on after a plug-in is gone. */
    EXPECT(dlclose(library) == 0);
    RUNS_ON(NULL, tpcs(4, 5));
    EXPECT(libsmctrl_set_global_mask(0) == 0);
    RUNS_ON(NULL, all());
    return 0;
}
