/* Device memory as asked: `take MIB` allocates (the driver's code), `drop 0` frees all that was taken.
 * `greedy MIB` allocates and frees at random in a thread, up to so much, until `stop 0`, which answers
 * how many MiB it has. */
#include "cuda.h"
#include <pthread.h>
#include <stdatomic.h>

#define MIB ((size_t)1 << 20)
#define MOST 4096

struct piece { address at; size_t mib; };

static struct piece taken[MOST], grown[MOST];
static int count;
static atomic_int is_greedy;
static size_t ceiling_mib;

static int allocate(struct piece *piece, size_t mib) {
    piece->mib = mib;
    return CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&piece->at, mib * MIB);
}

static void release(struct piece *piece) {
    OK("cuMemFree_v2", CALL(int (*)(address), "cuMemFree_v2")(piece->at));
}

static void *grow(void *had_mib) {
    unsigned seed = (unsigned)ceiling_mib;
    size_t mib = 0;
    int pieces = 0;
    OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
    while (is_greedy) {
        size_t next = 2 * (1 + (size_t)rand_r(&seed) % 2048);
        if (pieces < MOST && mib + next <= ceiling_mib && rand_r(&seed) % 4) {
            if (!allocate(&grown[pieces], next)) {
                mib += next;
                pieces++;
            }
        } else if (pieces) {
            int which = rand_r(&seed) % pieces;
            release(&grown[which]);
            mib -= grown[which].mib;
            grown[which] = grown[--pieces];
        }
        usleep(500);
    }
    *(size_t *)had_mib = mib;
    while (pieces) release(&grown[--pieces]);
    return NULL;
}

int main(void) {
    char what[16];
    size_t number, had_mib = 0;
    pthread_t thread;
    start(0);
    while (scanf("%15s %zu", what, &number) == 2) {
        int code = 0;
        switch (what[0]) {
        case 't':
            code = count < MOST ? allocate(&taken[count], number) : -1;
            if (!code) count++;
            break;
        case 'd':
            while (count) release(&taken[--count]);
            break;
        case 'g':
            ceiling_mib = number;
            is_greedy = 1;
            code = pthread_create(&thread, NULL, grow, &had_mib);
            break;
        case 's':
            is_greedy = 0;
            pthread_join(thread, NULL);
            printf("%zu\ndone\n", had_mib);
            fflush(stdout);
            continue;
        default: return 1;
        }
        printf("%d\ndone\n", code);
        fflush(stdout);
    }
    return 0;
}
