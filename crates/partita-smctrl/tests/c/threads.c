/* A next mask belongs to its thread; masks change under launches of others. */
#define LIBSMCTRL_SETTERS_RETURN_INT
#include "gpu.h"
#include "libsmctrl.h"
#include <errno.h>

#define THREADS 4
#define ROUNDS 12

static pthread_barrier_t together;

static void *own_next(void *argument)
{
    int own = (int) (intptr_t) argument;
    CHECK(cuCtxSetCurrent(gpu_context));
    CUstream stream = gpu_stream();
    /* A new thread's last error is its own. */
    EXPECT(libsmctrl_last_error() == 0);
    for (int round = 0; round < ROUNDS; round++) {
        int tpc = 4 + (own + round) % THREADS;
        EXPECT(libsmctrl_set_next_mask(~(1ull << tpc)) == 0);
        pthread_barrier_wait(&together);
        /* All have set theirs; each gets its own, once. */
        RUNS_ON(stream, tpcs(tpc, tpc + 1));
        RUNS_ON(stream, tpcs(0, 2));
        pthread_barrier_wait(&together);
    }
    if (own == 1)
        EXPECT(libsmctrl_set_next_mask(~0ull) == EINVAL);
    EXPECT(libsmctrl_last_error() == (own == 1 ? EINVAL : 0));
    CHECK(cuStreamDestroy_v2(stream));
    return NULL;
}

static void *first(void *argument)
{
    (void) argument;
    pthread_barrier_wait(&together);
    EXPECT(libsmctrl_init() == 0);
    return NULL;
}

static volatile int stop;

static void *flip(void *argument)
{
    (void) argument;
    for (int turn = 0; !stop; turn++)
        EXPECT(libsmctrl_set_global_mask(turn % 2 ? ~0xfull : ~0xf0ull) == 0);
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS], flipper;
    (void) count;
    gpu_open(arguments);
    pthread_barrier_init(&together, NULL, THREADS);
    /* All are the first at once. */
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, first, NULL));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL));
    EXPECT(libsmctrl_set_global_mask(~0x3ull) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, own_next, (void *) (intptr_t) i));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL));

    /* Every launch has one of the two masks, never a part of each. */
    CHECK(pthread_create(&flipper, NULL, flip, NULL));
    CUstream stream = gpu_stream();
    for (int round = 0; round < 60; round++) {
        Tpcs ran = ran_on(stream);
        EXPECT(same(ran, tpcs(0, 4)) || same(ran, tpcs(4, 8)) || same(ran, tpcs(0, 2)));
    }
    stop = 1;
    CHECK(pthread_join(flipper, NULL));
    return 0;
}
