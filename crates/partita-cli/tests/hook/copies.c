/* Copies between pinned memory and the GPU.
 *   copies check          every call that copies so, with what arrives; prints the codes of calls that must fail
 *   copies flood UP       32 MiB again and again, to the GPU or from it, until standard input ends; `ready` when it has begun
 *   copies small UP COUNT how long the GPU takes for 64 KiB, from the moment at which its stream reaches it: prints the median and the most in us */
#include "census.h"
#include <poll.h>

typedef int (*fn_to)(address, const void *, size_t);
typedef int (*fn_from)(void *, address, size_t);
typedef int (*fn_to_async)(address, const void *, size_t, void *);
typedef int (*fn_from_async)(void *, address, size_t, void *);
typedef int (*fn_both_async)(address, address, size_t, void *);
typedef int (*fn_word)(void *, address, unsigned, unsigned);

static unsigned char *pinned(size_t bytes) {
    void *memory;
    OK("cuMemHostAlloc", CALL(int (*)(void **, size_t, unsigned), "cuMemHostAlloc")(&memory, bytes, 0));
    return memory;
}

static address on_gpu(size_t bytes) {
    address memory;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&memory, bytes));
    return memory;
}

static void check_one(const char *what, const unsigned char *sent, const unsigned char *come, size_t bytes) {
    if (memcmp(sent, come, bytes) || come[bytes] != 0xee) {
        size_t at = 0;
        while (at < bytes && sent[at] == come[at]) at++;
        fprintf(stderr, "%s: %zu bytes differ from byte %zu on\n", what, bytes, at);
        exit(1);
    }
}

static int check(void) {
    enum { MOST = 20 << 20 };
    static const size_t sizes[] = {1, 65536, 8 << 20, (8 << 20) + 1, (16 << 20) + 3, MOST - 64};
    unsigned char *sent = pinned(MOST), *come = pinned(MOST);
    address memory = on_gpu(MOST);
    void *stream = new_stream(1);
    for (size_t at = 0; at < MOST; at++) sent[at] = (unsigned char)(at * 2654435761u >> 24);
    for (unsigned way = 0; way < 5; way++) {
        for (unsigned at = 0; at < sizeof sizes / sizeof *sizes; at++) {
            size_t bytes = sizes[at], off = way * 7 + at;
            memset(come, 0xee, MOST);
            address to = memory + off;
            const char *names[] = {"now", "in a stream", "either way", "per thread", "captured"};
            if (way == 0) {
                OK("to", CALL(fn_to, "cuMemcpyHtoD_v2")(to, sent + off, bytes));
                OK("from", CALL(fn_from, "cuMemcpyDtoH_v2")(come, to, bytes));
            } else if (way == 1) {
                OK("to", CALL(fn_to_async, "cuMemcpyHtoDAsync_v2")(to, sent + off, bytes, stream));
                OK("from", CALL(fn_from_async, "cuMemcpyDtoHAsync_v2")(come, to, bytes, stream));
            } else if (way == 2) {
                OK("to", CALL(fn_both_async, "cuMemcpyAsync")(to, (address)(sent + off), bytes, stream));
                OK("from", CALL(fn_both_async, "cuMemcpyAsync")((address)come, to, bytes, stream));
            } else if (way == 3) {
                OK("to", CALL(fn_to, "cuMemcpyHtoD_v2_ptds")(to, sent + off, bytes));
                OK("from", CALL(fn_from_async, "cuMemcpyDtoHAsync_v2_ptsz")(come, to, bytes, NULL));
            } else {
                void *graph;
                OK("begin", CALL(int (*)(void *, int), "cuStreamBeginCapture_v2")(stream, 0));
                OK("to", CALL(fn_to_async, "cuMemcpyHtoDAsync_v2")(to, sent + off, bytes, stream));
                OK("from", CALL(fn_from_async, "cuMemcpyDtoHAsync_v2")(come, to, bytes, stream));
                OK("end", CALL(int (*)(void *, void **), "cuStreamEndCapture")(stream, &graph));
                size_t nodes = 0;
                OK("nodes", CALL(int (*)(void *, void **, size_t *), "cuGraphGetNodes")(graph, NULL, &nodes));
                if (nodes != 2) die("nodes of the captured copies", (int)nodes);
                OK("launch", CALL(fn_pp, "cuGraphLaunch")(instantiate_and_drop(graph), stream));
            }
            wait_all();
            check_one(names[way], sent + off, come, bytes);
        }
    }
    /* Nothing is copied if not everything can be. */
    OK("clear", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(memory, 0xee, 1));
    memset(come, 0xee, MOST);
    printf("too long: %d", CALL(fn_to_async, "cuMemcpyHtoDAsync_v2")(memory, sent + 1, (size_t)4 << 40, stream));
    OK("from", CALL(fn_from, "cuMemcpyDtoH_v2")(come, memory, 1));
    printf(", first byte %02x\n", come[0]);
    return 0;
}

static int flood(int up) {
    enum { BYTES = 32 << 20, DEEP = 8 };
    unsigned char *host = pinned(BYTES);
    address memory = on_gpu(BYTES);
    void *stream = new_stream(1), *events[DEEP];
    for (int at = 0; at < DEEP; at++) OK("event", CALL(int (*)(void **, unsigned), "cuEventCreate")(&events[at], 2));
    struct pollfd input = {0, POLLIN, 0};
    for (unsigned long made = 0; poll(&input, 1, 0) == 0; made++) {
        void *event = events[made % DEEP];
        if (made >= DEEP) OK("wait", CALL(fn_p, "cuEventSynchronize")(event));
        if (up) OK("to", CALL(fn_to_async, "cuMemcpyHtoDAsync_v2")(memory, host, BYTES, stream));
        else OK("from", CALL(fn_from_async, "cuMemcpyDtoHAsync_v2")(host, memory, BYTES, stream));
        OK("record", CALL(fn_pp, "cuEventRecord")(event, stream));
        if (made == 2 * DEEP) puts("ready"), fflush(stdout);
    }
    wait_all();
    return 0;
}

static int rises(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int small(int up, unsigned count) {
    enum { BYTES = 64 << 10, MOST = 1000 };
    static float took_ms[MOST];
    unsigned char *host = pinned(BYTES);
    volatile unsigned *word = (volatile unsigned *)pinned(64);
    address memory = on_gpu(BYTES);
    void *stream = new_stream(1), *begun, *ended;
    OK("event", CALL(int (*)(void **, unsigned), "cuEventCreate")(&begun, 0));
    OK("event", CALL(int (*)(void **, unsigned), "cuEventCreate")(&ended, 0));
    *word = 0;
    for (unsigned at = 0; at < count && at < MOST; at++) {
        /* All is in the stream before it goes on. */
        OK("hold", CALL(fn_word, "cuStreamWaitValue32_v2")(stream, (address)word, at + 1, 0));
        OK("record", CALL(fn_pp, "cuEventRecord")(begun, stream));
        if (up) OK("to", CALL(fn_to_async, "cuMemcpyHtoDAsync_v2")(memory, host, BYTES, stream));
        else OK("from", CALL(fn_from_async, "cuMemcpyDtoHAsync_v2")(host, memory, BYTES, stream));
        OK("record", CALL(fn_pp, "cuEventRecord")(ended, stream));
        *word = at + 1;
        wait_all();
        OK("time", CALL(int (*)(float *, void *, void *), "cuEventElapsedTime")(&took_ms[at], begun, ended));
    }
    qsort(took_ms, count, sizeof *took_ms, rises);
    printf("%.0f %.0f\n", took_ms[count / 2] * 1000, took_ms[count - 1] * 1000);
    return 0;
}

int main(int count, char **arguments) {
    start(1);
    if (count == 2 && !strcmp(arguments[1], "check")) return check();
    if (count == 3 && !strcmp(arguments[1], "flood")) return flood(!strcmp(arguments[2], "up"));
    if (count == 4 && !strcmp(arguments[1], "small")) return small(!strcmp(arguments[2], "up"), (unsigned)atoi(arguments[3]));
    return 2;
}
