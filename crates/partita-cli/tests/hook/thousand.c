/* Many processes of one tenant at the same time: each starts CUDA, sees the quota, and is killed when all have. Argument: how many. Prints how
 * many started, then waits for a line, then kills them and says so. They make no context, of which a device has not room for so many. */
#include "cuda.h"
#include <signal.h>
#include <sys/mman.h>

struct shared { volatile int ready, wrong; };

static void child(struct shared *shared) {
    size_t total = 0;
    if (CALL(fn_u, "cuInit")(0) || CALL(fn_pi, "cuDeviceTotalMem_v2")(&total, 0) || total != (size_t)64 << 20)
        __sync_fetch_and_add(&shared->wrong, 1);
    __sync_fetch_and_add(&shared->ready, 1);
    for (;;) pause();
}

int main(int arguments_count, char **arguments) {
    int count = arguments_count == 2 ? atoi(arguments[1]) : 0;
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *children = calloc(count, sizeof *children);
    if (shared == MAP_FAILED || !children || !count) return 1;
    for (int i = 0; i < count; i++)
        if (!(children[i] = fork())) child(shared);
    while (shared->ready < count) usleep(1000);
    printf("%d started, %d wrong\n", count, shared->wrong);
    fflush(stdout);
    getchar();
    for (int i = 0; i < count; i++) kill(children[i], SIGKILL);
    while (wait(NULL) > 0) {}
    printf("ended\n");
    fflush(stdout);
    getchar();
    return 0;
}
