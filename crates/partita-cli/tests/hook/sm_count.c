/* The number of SMs that each caller gets. Reads commands:
 *   ask           a line for each that asks: the program and libraries, each by several ways
 *   cooperative   the code of a cooperative launch that the program sizes by the number of SMs, and the blocks that ran
 *   potential     the grid of cuOccupancyMaxPotentialBlockSize over what an SM holds, without and with flags
 * and ends each answer with `done`. Arguments: the file with the kernels, and the directory with the libraries. */
#include <pthread.h>

#include "census.h"

typedef int (*fn_attribute)(int *, int, int);
typedef int (*fn_runtime)(int *, int, int);
typedef int (*fn_ask)(void);

static fn_runtime runtime;

static int by_driver(void) {
    int sms = -1;
    OK("cuDeviceGetAttribute", CALL(fn_attribute, "cuDeviceGetAttribute")(&sms, 16, 0));
    return sms;
}

static int by_runtime(void) {
    int sms = -1;
    OK("cudaDeviceGetAttribute", runtime(&sms, 16, 0));
    return sms;
}

static void *on_thread(void *result) {
    *(int *)result = by_runtime();
    return NULL;
}

static void *opened(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
    return library;
}

static void ask_library(const char *name, void *library) {
    printf("%s own runtime %d\n", name, ((fn_ask)dlsym(library, "sms_by_own_runtime"))());
    printf("%s shared runtime %d\n", name, ((fn_ask)dlsym(library, "sms_by_shared_runtime"))());
    printf("%s thread %d\n", name, ((fn_ask)dlsym(library, "sms_on_thread"))());
    printf("%s caller %d\n", name, ((int (*)(fn_ask))dlsym(library, "sms_by_caller"))(by_driver));
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    start(1);
    void *census = load_census(kernels_in(arguments[1]));
    void *stream = new_stream(1);
    runtime = (fn_runtime)dlsym(opened(arguments[2], "libcudart.so.13"), "cudaDeviceGetAttribute");
    void *listed = opened(arguments[2], "libcublasLt-4f1c.so.13"), *other = opened(arguments[2], "libcoolkernels.so");
    int per_sm = 0;
    OK("cuOccupancyMaxActiveBlocksPerMultiprocessor", CALL(int (*)(int *, void *, int, size_t), "cuOccupancyMaxActiveBlocksPerMultiprocessor")(&per_sm, census, 1024, 0));

    char line[64];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "ask")) {
            int sms = -1, threads = -1;
            pthread_t thread;
            printf("program driver %d\n", by_driver());
            printf("program runtime %d\n", by_runtime());
            OK("pthread_create", pthread_create(&thread, NULL, on_thread, &sms));
            OK("pthread_join", pthread_join(thread, NULL));
            printf("program thread %d\n", sms);
            ask_library("listed", listed);
            ask_library("other", other);
            OK("cuDeviceGetAttribute", CALL(fn_attribute, "cuDeviceGetAttribute")(&threads, 39, 0));
            printf("threads of an SM %d\n", threads);
        } else if (!strcmp(line, "cooperative")) {
            unsigned blocks = (unsigned)(by_runtime() * per_sm);
            address records = new_records(blocks);
            uint64_t duration = 1000;
            void *parameters[2] = {&records, &duration};
            clear_records(records, blocks);
            int code = CALL(fn_cooperative, "cuLaunchCooperativeKernel")(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters);
            printf("cooperative %d", code);
            print_sms(records, blocks);
        } else if (!strcmp(line, "potential")) {
            typedef int (*fn_potential)(int *, int *, void *, void *, size_t, int, unsigned);
            const char *names[] = {"cuOccupancyMaxPotentialBlockSize", "cuOccupancyMaxPotentialBlockSizeWithFlags"};
            for (int i = 0; i < 2; i++) {
                int grid = -1, block = -1, fit = -1;
                OK(names[i], CALL(fn_potential, names[i])(&grid, &block, census, NULL, 0, 0, 0));
                OK("cuOccupancyMaxActiveBlocksPerMultiprocessor", CALL(int (*)(int *, void *, int, size_t), "cuOccupancyMaxActiveBlocksPerMultiprocessor")(&fit, census, block, 0));
                printf("potential %d\n", grid / fit);
            }
        }
        printf("done\n");
        fflush(stdout);
    }
    return 0;
}
