/* Processes that start at the same moment in one container. Each takes its part of the quota, is never refused it, and never gets more.
 * Arguments: how many; then the quota in MiB that each of them must see.
 * Prints `done` if every process saw the same total, had its part, and was refused a byte more. */
#include "cuda.h"
#include <signal.h>
#include <sys/mman.h>

struct shared { volatile int ready, go, held, tried, wrong, refused; volatile size_t total; };

static struct shared *map(int fd) {
    return mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int child(struct shared *shared, int count) {
    address p, q;
    __sync_fetch_and_add(&shared->ready, 1);
    while (!shared->go) usleep(50);
    if (CALL(fn_u, "cuInit")(0)) {
        __sync_fetch_and_add(&shared->wrong, 1);
        __sync_fetch_and_add(&shared->held, 1);
        __sync_fetch_and_add(&shared->tried, 1);
        return 1;
    }
    start(0);
    size_t total = total_bytes();
    __sync_bool_compare_and_swap(&shared->total, 0, total);
    if (shared->total != total) __sync_fetch_and_add(&shared->wrong, 1);
    if (CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, total / count)) __sync_fetch_and_add(&shared->refused, 1);
    __sync_fetch_and_add(&shared->held, 1);
    while (shared->held < count) usleep(200);
    if (CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&q, 1) != 2) __sync_fetch_and_add(&shared->wrong, 1);
    __sync_fetch_and_add(&shared->tried, 1);
    while (shared->tried < count) usleep(200);
    return 0;
}

int main(int arguments_count, char **arguments) {
    alarm(100);
    int count = atoi(arguments[1]);
    if (arguments_count == 3) return child(map(atoi(arguments[2])), count);
    int fd = memfd_create("crowd", 0);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared))) return 1;
    struct shared *shared = map(fd);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    for (int i = 0; i < count; i++)
        if (fork() == 0) { execl(arguments[0], arguments[0], arguments[1], number, NULL); _exit(1); }
    while (shared->ready < count) usleep(200);
    shared->go = 1;
    int status, ended = 0;
    while (wait(&status) > 0) if (status) ended++;
    if (shared->wrong || shared->refused || ended)
        printf("%d wrong, %d refused of what fits, %d ended\n", shared->wrong, shared->refused, ended);
    else
        printf("done %zu\n", shared->total >> 20);
    return 0;
}
