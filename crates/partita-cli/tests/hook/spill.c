/* Allocations that a quota has room for and others, as asked: `a MIB` by cuMemAlloc (`b BYTES` too), `s MIB` in stream order, `p MIB` in rows a
 * little shorter than a MiB, `m MIB` managed; `f N` frees the Nth by cuMemFree, `r N` in stream order. Each answer is the driver's
 * code and the free bytes in MiB. What is had is filled by the device and looked at by a copy, wherever it lies. `k N` tells what the driver
 * says of the Nth: whose memory, whether managed, whether its range is what was asked for. `v N` has the Nth moved, which is managed, and
 * `x N` it and the second at once: the first code that is not 0. `e` asks for what the driver refuses, and `w` for more rows than there are bytes: the codes. */
#include "cuda.h"

#define MIB ((size_t)1 << 20)

/* cuMemcpy2D's structure. */
struct rows { size_t x, y; unsigned kind; void *host; address device; void *array; size_t pitch; };
struct copy { struct rows from, to; size_t width, height; };
struct location { unsigned kind; int id; };

typedef int (*fn_pitch)(address *, size_t *, size_t, size_t, unsigned);
typedef int (*fn_managed)(address *, size_t, unsigned);
typedef int (*fn_batch)(address *, size_t *, size_t, struct location *, size_t *, size_t, uint64_t, void *);

static address held[16];
static size_t bytes_of[16];
static int count;

static void use(address at, size_t bytes) {
    unsigned last = 0;
    OK("cuMemsetD32_v2", CALL(int (*)(address, unsigned, size_t), "cuMemsetD32_v2")(at, 7000 + count, bytes / 4));
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(&last, at + bytes - 4, 4));
    if (last != 7000u + count) die("what was written", (int)last);
    OK("cuMemcpyHtoD_v2", CALL(int (*)(address, const void *, size_t), "cuMemcpyHtoD_v2")(at, &count, 4));
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(&last, at, 4));
    if (last != (unsigned)count) die("what was copied", (int)last);
}

/* Rows that do not fill their pitch. */
#define WIDTH (MIB - 100)

/* Filled row by row, and copied from there: no row runs into the next. */
static int rows(address *at, size_t height, size_t *bytes) {
    static unsigned char row[WIDTH];
    size_t pitch = 0;
    int code = CALL(fn_pitch, "cuMemAllocPitch_v2")(at, &pitch, WIDTH, height, 4);
    if (code) return code;
    if (pitch < WIDTH || pitch % 512) die("the pitch", (int)pitch);
    *bytes = pitch * height;
    OK("cuMemsetD32_v2", CALL(int (*)(address, unsigned, size_t), "cuMemsetD32_v2")(*at, 0, *bytes / 4));
    OK("cuMemsetD2D32_v2", CALL(int (*)(address, size_t, unsigned, size_t, size_t), "cuMemsetD2D32_v2")(*at, pitch, 0x01010101, WIDTH / 4, height));
    struct copy copy;
    memset(&copy, 0, sizeof copy);
    copy.from.kind = 2;
    copy.from.device = *at;
    copy.from.pitch = pitch;
    copy.from.y = height - 1;
    copy.to.kind = 1;
    copy.to.host = row;
    copy.to.pitch = WIDTH;
    copy.width = WIDTH;
    copy.height = 1;
    OK("cuMemcpy2D_v2", CALL(fn_p, "cuMemcpy2D_v2")(&copy));
    if (row[0] != 1 || row[WIDTH - 1] != 1) die("the last row", row[WIDTH - 1]);
    OK("cuMemcpyDtoH_v2", CALL(int (*)(void *, address, size_t), "cuMemcpyDtoH_v2")(row, *at + WIDTH, pitch - WIDTH));
    if (row[0] || row[pitch - WIDTH - 1]) die("what is behind a row", row[0]);
    return 0;
}

static void tell(int n) {
    unsigned kind = 0, managed = 7;
    address base = 0;
    size_t bytes = 0;
    int (*ask)(void *, int, address) = CALL(int (*)(void *, int, address), "cuPointerGetAttribute");
    OK("the kind of memory", ask(&kind, 2, held[n] + 5));
    OK("whether it is managed", ask(&managed, 8, held[n] + 5));
    OK("cuMemGetAddressRange_v2", CALL(int (*)(address *, size_t *, address), "cuMemGetAddressRange_v2")(&base, &bytes, held[n] + 5));
    printf("%s%s%s\ndone\n", kind == 1 ? "host" : "device", managed & 0xff ? " managed" : "", base == held[n] && bytes == bytes_of[n] ? "" : " of another size");
}

/* Every call that moves managed memory, in this order. */
static int moved(int n) {
    address at[] = {held[n], held[n] + 4096};
    size_t sizes[] = {4096, bytes_of[n] - 4096}, first = 0;
    struct location device = {1, 0};
    void *stream, *symbol = dlsym(driver_library, "cuMemPrefetchBatchAsync");
    int code;
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    if ((code = CALL(int (*)(address, size_t, int, void *), "cuMemPrefetchAsync")(at[0], bytes_of[n], 0, stream))) return code;
    if ((code = CALL(int (*)(address, size_t, int, int), "cuMemAdvise")(at[0], bytes_of[n], 3, 0))) return code;
    if ((code = CALL(int (*)(void *, address, size_t, unsigned), "cuStreamAttachMemAsync")(stream, at[0], 0, 1))) return code;
    if (symbol && (code = ((fn_batch)symbol)(at, sizes, 2, &device, &first, 1, 0, stream))) return code;
    OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
    return 0;
}

/* Batches over the second and the Nth, of which one may lie where it cannot be moved from. */
static int moved_together(int n) {
    address at[] = {held[n], held[1]};
    size_t sizes[] = {bytes_of[n], bytes_of[1]}, firsts[] = {0, 1};
    struct location places[] = {{1, 0}, {2, 0}};
    void *stream, *prefetch = dlsym(driver_library, "cuMemPrefetchBatchAsync"), *discard = dlsym(driver_library, "cuMemDiscardBatchAsync");
    int code = 0;
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, 1));
    /* CUDA 13 brought them. */
    if (prefetch) code = ((fn_batch)prefetch)(at, sizes, 2, places, firsts, 2, 0, stream);
    if (discard && !code) code = ((int (*)(address *, size_t *, size_t, uint64_t, void *))discard)(at, sizes, 2, 0, stream);
    OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
    return code;
}

int main(void) {
    char what;
    size_t number;
    start(0);
    while (scanf(" %c %zu", &what, &number) == 2) {
        int code = 0;
        size_t bytes = number * MIB;
        switch (what) {
        case 'a': code = CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&held[count], number * MIB); break;
        case 'b':
            bytes = number;
            code = CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&held[count], bytes);
            break;
        case 's': code = CALL(int (*)(address *, size_t, void *), "cuMemAllocAsync")(&held[count], number * MIB, NULL); break;
        case 'f': code = CALL(int (*)(address), "cuMemFree_v2")(held[number]); break;
        case 'r':
            code = CALL(int (*)(address, void *), "cuMemFreeAsync")(held[number], NULL);
            OK("cuCtxSynchronize", CALL(int (*)(void), "cuCtxSynchronize")());
            break;
        case 'p': code = rows(&held[count], number, &bytes); break;
        case 'm': code = CALL(fn_managed, "cuMemAllocManaged")(&held[count], bytes, 1); break;
        case 'v': code = moved(number); break;
        case 'x': code = moved_together(number); break;
        case 'k':
            tell(number);
            fflush(stdout);
            continue;
        case 'e':
            /* Elements of three bytes, and managed memory of a stream. */
            code = CALL(fn_pitch, "cuMemAllocPitch_v2")(&held[count], &bytes, MIB, number, 3);
            printf("%d ", code);
            code = CALL(fn_managed, "cuMemAllocManaged")(&held[count], number * MIB, 4);
            break;
        case 'w': code = CALL(fn_pitch, "cuMemAllocPitch_v2")(&held[count], &bytes, (size_t)1 << 40, (size_t)1 << 40, 4); break;
        default: return 1;
        }
        if (!code && strchr("abspm", what)) {
            bytes_of[count] = bytes;
            if (what == 'm') *(volatile unsigned *)held[count] = 5;
            use(held[count++], bytes & ~(size_t)3);
        }
        printf("%d %zu\ndone\n", code, free_bytes() / MIB);
        fflush(stdout);
    }
    return 0;
}
