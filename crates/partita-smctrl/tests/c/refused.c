/*
 * A call that cannot work returns an error: the program continues, its
 * launches do not change, and no resource leaks.
 *
 *   refused PTX no-calibration   no cached calibration and no prover: streams are
 *                                refused; launches are masked if "named" follows
 *   refused PTX busy             another subscriber has the launch callback
 */
#include "libsmctrl.h"
#include "gpu.h"
#include <dirent.h>
#include <errno.h>

static int open_files(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void ignore(void *user, int domain, int id, const void *parameters)
{
    (void) user, (void) domain, (void) id, (void) parameters;
}

/* Takes the only slot for a subscriber, as a profiler does. */
static void subscribe(void)
{
    static const unsigned char id[16] = { 0x2c, 0x8e, 0x0a, 0xd8, 0x07, 0x10, 0xab, 0x4e,
                                          0x90, 0xdd, 0x54, 0x71, 0x9f, 0xe5, 0xf7, 0x4b };
    extern int cuGetExportTable(const void **table, const void *id);
    void **table;
    unsigned handle;
    CHECK(cuGetExportTable((const void **) &table, id));
    CHECK(((int (*)(unsigned *, void (*)(void *, int, int, const void *), void *)) table[3])(&handle, ignore, NULL));
    CHECK(((int (*)(unsigned, unsigned, int, int)) table[6])(1, handle, 0xb, 1));
}

int main(int count, char **arguments)
{
    uint32_t number;
    EXPECT(count >= 3);
    const char *what = arguments[2];
    gpu_open(arguments);
    CUstream stream = gpu_stream();
    if (!strcmp(what, "busy")) {
        subscribe();
        libsmctrl_set_global_mask(~1ull);
        EXPECT(libsmctrl_last_error() == EBUSY);
        EXPECT(strstr(libsmctrl_error_string(), "profiler"));
        libsmctrl_set_next_mask(~1ull);
        EXPECT(libsmctrl_last_error() == EBUSY);
        RUNS_ON(stream, all());
        /* Streams need no callback. */
        libsmctrl_set_stream_mask(stream, ~0x2ull);
        EXPECT(libsmctrl_last_error() == 0);
        RUNS_ON(stream, tpcs(1, 2));
        return 0;
    }
    int named = count > 3 && !strcmp(arguments[3], "named");
    libsmctrl_set_stream_mask(stream, ~1ull);
    EXPECT(libsmctrl_last_error() == ENODATA);
    EXPECT(strstr(libsmctrl_error_string(), "partita doctor"));
    RUNS_ON(stream, all());
    libsmctrl_set_global_mask(~0x6ull);
    EXPECT(libsmctrl_last_error() == (named ? 0 : ENODATA));
    RUNS_ON(stream, named ? tpcs(1, 3) : all());
    libsmctrl_set_next_mask(~0x8ull);
    EXPECT(libsmctrl_last_error() == (named ? 0 : ENODATA));
    RUNS_ON(stream, named ? tpcs(3, 4) : all());
    /* What the driver tells needs no proof. */
    EXPECT(libsmctrl_get_tpc_info(&number, 0) == 0 && (int) number == gpu_tpcs);
    uint128_t *gpcs_ext;
    EXPECT(libsmctrl_get_gpc_info_ext(&number, &gpcs_ext, 0) == 0 && number > 0);
    int before = open_files();
    for (int turn = 0; turn < 20; turn++) {
        libsmctrl_set_stream_mask(stream, ~1ull);
        EXPECT(libsmctrl_last_error() == ENODATA);
        EXPECT(libsmctrl_get_tpc_info(&number, 0) == 0);
        EXPECT(libsmctrl_get_tpc_info(&number, 99) == ENODEV);
        EXPECT(libsmctrl_get_gpc_info_ext(&number, &gpcs_ext, 0) == 0);
    }
    EXPECT(open_files() == before);
    return 0;
}
