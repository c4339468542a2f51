// Streams' private structures: a driver detects writes that are not masks.
#include <sys/syscall.h>

#include "sim.h"

uint64_t partita_sim_corruptions(void);

static CUstream stream;

static volatile uint32_t *word(unsigned offset) { return (volatile uint32_t *)(*(char **)stream + offset); }

static CUresult try(void) {
    uint64_t ns = 1000;
    void *params[] = {&ns};
    return cuLaunchKernel(function("partita_spin"), 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static void begin(void) {
    start();
    OK(cuStreamCreate(&stream, 1));
    OK(try());
    OK(cuStreamSynchronize(stream));
    EQ(partita_sim_corruptions(), 0);
}

// After it nothing of the process's GPU work is good for anything.
static void ended(void) {
    EQ(partita_sim_corruptions(), 1);
    CUdeviceptr memory;
    IS(999, try());
    IS(999, cuStreamSynchronize(stream));
    IS(999, cuCtxSynchronize());
    TRUE(cuMemAlloc_v2(&memory, 4096) != 0);
    EQ(partita_sim_corruptions(), 1);
}

// A word that launches rely on.
static void relied_on(void) {
    begin();
    *word(0x448) = 1;
    IS(999, try());
    ended();
}

// A word right behind the mask, which launches do not look at.
static void beside(void) {
    begin();
    *word(0x530) = 1;
    OK(try());
    IS(999, cuStreamSynchronize(stream));
    ended();
}

static void queried(void) {
    begin();
    *word(0x518) = 1;
    IS(999, cuStreamQuery(stream));
    ended();
}

static void context_wide(void) {
    begin();
    *word(0x8fc) += 1;
    IS(999, cuCtxSynchronize());
    ended();
}

// The count of launches is checked when the stream is destroyed.
static void destroyed(void) {
    begin();
    *word(0x3e0) += 1;
    OK(cuStreamSynchronize(stream));
    IS(999, cuStreamDestroy_v2(stream));
    EQ(partita_sim_corruptions(), 1);
}

// A neighbour is not hurt, and streams that were not written to pass every check.
static void sound(void) {
    begin();
    for (int i = 0; i < 100; i++) OK(try());
    CUresult queried = cuStreamQuery(stream);
    TRUE(queried == 0 || queried == 600);
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(stream));
    CUstream many[100];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 100; i++) {
            OK(cuStreamCreate(&many[i], 1));
            stream = many[i];
            TRUE(*word(0x51c) == 0 && *word(0x520) == 0);
            OK(try());
        }
        OK(cuCtxSynchronize());
        for (int i = 0; i < 100; i++) OK(cuStreamDestroy_v2(many[i]));
    }
    EQ(partita_sim_corruptions(), 0);
}

// A copy of the process can change its own memory: the original still uses the board alone.
static void copied(void) {
    begin();
    pid_t copy = (pid_t)syscall(SYS_fork);
    if (copy == 0) {
        *word(0x448) = 1;
        _exit(try() == 999 && partita_sim_corruptions() == 1 ? 0 : 1);
    }
    int status;
    TRUE(waitpid(copy, &status, 0) == copy && status == 0);
    EQ(partita_sim_corruptions(), 0);
    OK(try());
    OK(cuStreamSynchronize(stream));
}

CASES({"relied_on", relied_on}, {"beside", beside}, {"queried", queried}, {"context_wide", context_wide},
      {"destroyed", destroyed}, {"sound", sound}, {"copied", copied})
