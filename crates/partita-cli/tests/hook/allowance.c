/* As many processes as asked, each with a context, made one after the other. Then the code of the last context, a line, and all wait until
 * standard input ends. */
#include "cuda.h"

int main(int count, char **arguments) {
    int all = atoi(arguments[1]), ready[2], hold[2], code = -1;
    char byte;
    if (count < 2 || pipe(ready) || pipe(hold)) return 1;
    for (int i = 0; i < all; i++) {
        if (fork() == 0) {
            close(hold[1]);
            OK("cuInit", CALL(fn_u, "cuInit")(0));
            code = CALL(fn_pui, "cuCtxCreate_v2")(&context, 0, 0);
            if (write(ready[1], &code, sizeof code) != sizeof code) return 1;
            return read(hold[0], &byte, 1) != 0;
        }
        if (read(ready[0], &code, sizeof code) != sizeof code) return 1;
    }
    printf("%d\ndone\n", code);
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    close(hold[1]);
    while (wait(NULL) > 0) {}
    return 0;
}
