/* Many processes race for one quota, while a process without the hook watches how much the device has given away.
 * First each keeps to its share, and is never refused; then each takes what it can get. */
#include "cuda.h"
#include <signal.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB)
#define PROCESSES 64
#define HELD 6

struct shared {
    volatile int ready, go, done, full, looks, stop;
    volatile int refused_of_share, refused, granted, wrong;
    volatile size_t first, least; /* free bytes of the device */
};

static struct shared *shared;

static int alloc(address *p, size_t bytes) { return CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(p, bytes); }
static int give(address p) { return CALL(int (*)(address), "cuMemFree_v2")(p); }

static void race(unsigned seed, size_t quota) {
    address held[HELD] = {0};
    for (int step = 0; step < 40; step++) {
        address p;
        int code = alloc(&p, quota / PROCESSES);
        if (code) { __sync_fetch_and_add(&shared->refused_of_share, 1); continue; }
        if (give(p)) __sync_fetch_and_add(&shared->wrong, 1);
    }
    __sync_fetch_and_add(&shared->done, 1);
    while (shared->done < PROCESSES) usleep(1000);
    /* All at once as much as there is, until the device was looked at. */
    for (int at = 0; at < HELD; at++) {
        int code = alloc(&held[at], 4 * PAGE);
        if (code && code != 2) __sync_fetch_and_add(&shared->wrong, 1);
        if (code) held[at] = 0;
        __sync_fetch_and_add(code ? &shared->refused : &shared->granted, 1);
    }
    __sync_fetch_and_add(&shared->full, 1);
    while (shared->full < PROCESSES) usleep(1000);
    for (int seen = shared->looks; shared->looks < seen + 2;) usleep(1000);
    for (int step = 0; step < 60; step++) {
        int at = rand_r(&seed) % HELD;
        if (held[at]) {
            if (give(held[at])) __sync_fetch_and_add(&shared->wrong, 1);
            held[at] = 0;
            continue;
        }
        int code = alloc(&held[at], (1 + rand_r(&seed) % 8) * PAGE);
        if (code && code != 2) __sync_fetch_and_add(&shared->wrong, 1);
        if (code) held[at] = 0;
        __sync_fetch_and_add(code ? &shared->refused : &shared->granted, 1);
    }
    if (seed % 2) _exit(0); /* with what it holds */
    for (int at = 0; at < HELD; at++) if (held[at] && give(held[at])) __sync_fetch_and_add(&shared->wrong, 1);
    exit(0);
}

static void watch(void) {
    start(0);
    shared->first = shared->least = free_bytes();
    __sync_fetch_and_add(&shared->ready, 1);
    while (!shared->stop) {
        size_t left = free_bytes();
        if (left < shared->least) shared->least = left;
        shared->looks++;
    }
}

int main(int count, char **arguments) {
    alarm(100);
    if (count == 3) {
        int fd = atoi(arguments[2]);
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (arguments[1][0] == 'w') { watch(); return 0; }
        start(0);
        size_t quota = total_bytes();
        __sync_fetch_and_add(&shared->ready, 1);
        while (!shared->go) usleep(1000);
        race((unsigned)getpid(), quota);
    }
    int fd = memfd_create("race", 0);
    if (fd < 0 || ftruncate(fd, sizeof *shared)) return 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    start(0);
    size_t quota = total_bytes();
    for (int i = 0; i < PROCESSES; i++) {
        if (fork() == 0) { execl(arguments[0], arguments[0], "race", number, NULL); _exit(1); }
    }
    while (shared->ready < PROCESSES) usleep(1000);
    int watcher = fork();
    if (watcher == 0) {
        unsetenv("LD_PRELOAD");
        unsetenv("PARTITA_LEDGER");
        execl(arguments[0], arguments[0], "watch", number, NULL);
        _exit(1);
    }
    while (shared->ready < PROCESSES + 1) usleep(1000);
    shared->go = 1;
    for (int i = 0, status; i < PROCESSES; i++) {
        if (waitpid(-1, &status, 0) == watcher || status) { printf("a process ended: %d\n", status); return 1; }
    }
    size_t taken = shared->first - shared->least;
    shared->stop = 1;
    waitpid(watcher, NULL, 0);
    if (shared->refused_of_share) printf("%d refused that fit\n", shared->refused_of_share);
    if (shared->wrong) printf("%d unexpected codes\n", shared->wrong);
    /* On a real device the contexts of so many processes count as well, which are charged to no process. */
    const char *gpu = getenv("PARTITA_GPU");
    if (!gpu || strncmp(gpu, "sim", 3)) taken = quota;
    if (taken > quota) printf("the device gave %zu of a quota of %zu\n", taken, quota);
    if (!shared->refused || !shared->granted || taken < quota - 4 * PAGE) printf("no race: %d refused, %d granted, %zu\n", shared->refused, shared->granted, taken);
    if (free_bytes() != quota) printf("%zu bytes are not free\n", quota - free_bytes());
    printf("done\n");
    return 0;
}
