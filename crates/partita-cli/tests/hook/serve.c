/* Serves until its stdin ends: a kernel whose 264 blocks fill 132 SMs once, a wait for it, partita_step, and a pause.
 * Arguments: the file with the kernels, the nanoseconds of a block, the milliseconds of the pause.
 * A line of stdin is the nanoseconds of a block from then on. */
#include <poll.h>
#include "../../../partita-hook/include/partita.h"
#include "cuda.h"
#include "census.h"

int main(int count, char **arguments) {
    if (count < 4) return 2;
    const unsigned blocks = 264;
    start(1);
    void *census = load_census(kernels_in(arguments[1])), *stream = new_stream(1);
    address records = new_records(blocks);
    uint64_t duration = strtoull(arguments[2], NULL, 10);
    int pause_ms = atoi(arguments[3]);
    void *parameters[2] = {&records, &duration};
    fn_launch launch = CALL(fn_launch, "cuLaunchKernel");
    puts("ready");
    fflush(stdout);
    for (;;) {
        OK("cuLaunchKernel", launch(census, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL));
        OK("cuStreamSynchronize", CALL(fn_p, "cuStreamSynchronize")(stream));
        if (partita_step) partita_step();
        struct pollfd input = {0, POLLIN, 0};
        if (poll(&input, 1, pause_ms) < 1) continue;
        char line[64];
        ssize_t bytes = read(0, line, sizeof line - 1);
        if (bytes < 1) return 0;
        line[bytes] = 0;
        duration = strtoull(line, NULL, 10);
    }
}
