/* A tenant that borrows, or one that lends: launches, waits, and tells where its blocks ran. */
#include "cuda.h"
#include "census.h"

int main(int count, char **arguments) {
    if (count < 2) return 2;
    const unsigned blocks = 528;
    start(1);
    void *census = load_census(kernels_in(arguments[1])), *stream = new_stream(1);
    address records = new_records(blocks);
    uint64_t duration = 1000;
    void *parameters[2] = {&records, &duration};
    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");
    clear_records(records, blocks);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "launch"))
            OK("cuLaunchKernel", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        else if (!strcmp(line, "census")) {
            clear_records(records, blocks);
            OK("cuLaunchKernel", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
            print_sms(records, blocks);
        } else if (!strcmp(line, "poll")) {
            int code;
            while ((code = CALL(fn_p, "cuStreamQuery")(stream)) == 600) usleep(200);
            OK("cuStreamQuery", code);
        } else if (!strcmp(line, "streams")) {
            /* As the pools of PyTorch: made and not used. */
            for (int i = 0; i < 96; i++) new_stream(1);
        } else if (!strcmp(line, "sync")) OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        else return 3;
        puts("done");
        fflush(stdout);
    }
    return 0;
}
