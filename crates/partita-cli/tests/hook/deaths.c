/* Dies with work on the GPU, as told.
 *   deaths WORKLOADS WORK DEATH
 * WORK: `none`, `brief` (a kernel of some 1 ms), `finite` (8 kernels of some 100 ms), `endless`,
 * `everywhere` (endless, on every SM that it may use);
 * `lasting` (8 kernels of some 0.5 s);
 * `copies` (1.5 GiB from pinned host memory), `copy` (1 GiB at once); `streams`, finite work in several streams.
 * With `sudden-` before it the work begins at that line, and the program dies right behind its last launch.
 * DEATH: `kill` (SIGKILL), `segv`, `abort`, `_exit`, `return`, `exec`.
 * Says `ready` when the work is there and, with a holder, behind it the fences; dies at the next line of its input. */
#include "census.h"
#include <fcntl.h>
#include <signal.h>

static address out, buffer;
static unsigned launches, blocks = 1;

static void walk(void *function, void *stream, uint64_t accesses) {
    uint64_t words = 1024, stride = 1;
    void *parameters[] = {&out, &buffer, &words, &accesses, &stride};
    OK("cuLaunchKernel", CALL(fn_launch, "cuLaunchKernel")(function, blocks, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
    launches++;
}

/* The page that this process shares with the GPU and its holder: what has a fence behind it. */
static int covered_page(void) {
    char path[64], target[64];
    for (int number = 3; number < 256; number++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0 && !strncmp(target, "/memfd:partita-flight", 21)) return number;
    }
    return -1;
}

/* Copies that take longer than the way to the death. */
static void copy_much(int copies, size_t bytes) {
    void *host = aligned_alloc(4096, bytes);
    address device;
    OK("cuMemHostRegister_v2", CALL(int (*)(void *, size_t, unsigned), "cuMemHostRegister_v2")(host, bytes, 0));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&device, bytes));
    memset(host, 1, bytes);
    for (int i = 0; i < copies; i++)
        OK("cuMemcpyHtoDAsync_v2", CALL(int (*)(address, void *, size_t, void *), "cuMemcpyHtoDAsync_v2")(device, host, bytes, NULL));
}

/* Each piece is counted: else a fence between two of them would be taken for the end of the copy. */
static void copy_in_pieces(void) {
    uint64_t copies[2] = {0, 0};
    copy_much(1, 1 << 30);
    int page = covered_page();
    if (page < 0 || pread(page, copies, sizeof copies, 32) != sizeof copies) die("pread", -1);
    if (copies[0] < 128 && copies[1] < 128) die("pieces", (int)(copies[0] | copies[1]));
}

static void await_fences(void) {
    int page = covered_page();
    uint64_t covered = 0, copies[2] = {1, 0};
    while (page >= 0 && (covered < launches || copies[0] != copies[1])) {
        usleep(1000);
        if (pread(page, &covered, sizeof covered, 8) != sizeof covered) die("pread", -1);
        if (pread(page, copies, sizeof copies, 32) != sizeof copies) die("pread", -1);
    }
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    const char *work = arguments[2], *death = arguments[3];
    int sudden = !strncmp(work, "sudden-", 7);
    if (sudden) work += 7;
    void *module, *function;
    start(1);
    OK("cuModuleLoadData", CALL(int (*)(void **, const void *), "cuModuleLoadData")(&module, kernels_in(arguments[1])));
    OK("cuModuleGetFunction", CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&function, module, "partita_work_walk"));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&out, 1 << 20));
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&buffer, 4096));
    OK("cuMemsetD8_v2", CALL(int (*)(address, unsigned char, size_t), "cuMemsetD8_v2")(buffer, 0, 4096));
    wait_all();
    if (sudden) {
        puts("ready");
        fflush(stdout);
        getchar();
    }
    if (!strcmp(work, "everywhere")) blocks = 512;
    if (!strcmp(work, "endless") || blocks > 1)
        walk(function, NULL, 1ull << 50);
    else if (!strcmp(work, "brief"))
        walk(function, NULL, 40000);
    else if (!strcmp(work, "copies"))
        copy_much(24, 64 << 20);
    else if (!strcmp(work, "copy"))
        copy_in_pieces();
    else if (!strcmp(work, "finite"))
        for (int i = 0; i < 8; i++) walk(function, NULL, 4000000);
    else if (!strcmp(work, "lasting"))
        for (int i = 0; i < 8; i++) walk(function, NULL, 20000000);
    else if (!strcmp(work, "streams"))
        for (int i = 0; i < 4; i++) {
            void *stream = new_stream(i % 2);
            for (int j = 0; j < 4; j++) walk(function, stream, 4000000);
        }
    if (!sudden) {
        await_fences();
        puts("ready");
        fflush(stdout);
        getchar();
    }
    if (!strcmp(death, "kill")) kill(getpid(), SIGKILL);
    else if (!strcmp(death, "segv")) *(volatile int *)8 = 1;
    else if (!strcmp(death, "abort")) abort();
    else if (!strcmp(death, "_exit")) _exit(0);
    else if (!strcmp(death, "exec")) execlp("sh", "sh", "-c", "echo executed; read line", NULL);
    else if (strcmp(death, "return")) return 3;
    return 0;
}
