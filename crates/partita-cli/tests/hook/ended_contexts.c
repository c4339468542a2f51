/* Contexts that end with their streams in them, which no call may use afterwards. */
#include "cuda.h"

typedef int (*launcher)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,
                        void **, void **);

static void *spin_of(const char *path) {
    void *module, *spin;
    OK("cuModuleLoad", CALL(int (*)(void **, const char *), "cuModuleLoad")(&module, path));
    OK("cuModuleGetFunction",
       CALL(int (*)(void **, void *, const char *), "cuModuleGetFunction")(&spin, module, "partita_spin"));
    return spin;
}

static void launch(void *spin, void *stream) {
    uint64_t duration_ns = 100000;
    void *arguments[] = {&duration_ns};
    OK("cuLaunchKernel",
       CALL(launcher, "cuLaunchKernel")(spin, 8, 1, 1, 32, 1, 1, 0, stream, arguments, NULL));
}

static void wait_for(void *stream) {
    OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
}

/* A context with a stream that launches for a while, and ends with it. */
static void one(const char *path, const char *end, unsigned flags) {
    void *made, *stream;
    OK("cuCtxCreate_v2", CALL(fn_pui, "cuCtxCreate_v2")(&made, 0, 0));
    OK("cuStreamCreate", CALL(int (*)(void **, unsigned), "cuStreamCreate")(&stream, flags));
    void *spin = spin_of(path);
    for (int round = 0; round < 3; round++) {
        launch(spin, stream);
        usleep(15000);
        wait_for(stream);
    }
    launch(spin, stream);
    wait_for(stream);
    OK(end, CALL(fn_p, end)(made));
}

int main(int count, char **arguments) {
    int beside_primary = count > 2 && !strcmp(arguments[2], "beside");
    if (beside_primary) start(1);
    else OK("cuInit", CALL(fn_u, "cuInit")(0));
    for (unsigned number = 0; number < 4; number++)
        one(arguments[1], number < 2 ? "cuCtxDestroy_v2" : "cuCtxDetach", number % 2);
    if (beside_primary) OK("cuCtxSetCurrent", CALL(fn_p, "cuCtxSetCurrent")(context));
    else start(1);
    void *spin = spin_of(arguments[1]);
    for (int round = 0; round < 20; round++) {
        launch(spin, NULL);
        usleep(2000);
        int code = CALL(fn_p, "cuStreamQuery")(NULL);
        /* CUDA_ERROR_NOT_READY */
        if (code && code != 600) die("cuStreamQuery", code);
    }
    /* The program exits behind a launch. */
    launch(spin, NULL);
    printf("done\n");
    return 0;
}
