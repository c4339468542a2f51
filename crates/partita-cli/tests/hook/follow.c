/* Children of a tenant are of the tenant: forked before CUDA is used, forked
 * after, and replaced by exec. Each holds memory while the others look.
 * Prints what each sees as free, in MiB below the quota. */
#include "cuda.h"

#define MIB ((size_t)1 << 20)

static void hold(size_t mib) {
    address p;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, mib * MIB));
}

static void show(const char *who) {
    printf("%s %zu\n", who, (total_bytes() - free_bytes()) / MIB);
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "exec")) {
        start(1);
        hold(30);
        show("after exec");
        return 0;
    }
    int turn[2], done[2];
    if (pipe(turn) || pipe(done)) return 3;
    pid_t child = fork();
    if (child == 0) {
        char token;
        if (read(turn[0], &token, 1) != 1) _exit(4);
        start(1);
        hold(20);
        show("child");
        if (write(done[1], "x", 1) != 1 || read(turn[0], &token, 1) != 1) _exit(4);
        execl(arguments[0], arguments[0], "exec", NULL);
        _exit(5);
    }
    char token;
    int status;
    start(1);
    hold(10);
    show("parent");
    if (write(turn[1], "x", 1) != 1 || read(done[0], &token, 1) != 1) return 4;
    show("parent beside child");
    /* The child's memory goes with its exec; the new program holds its own. */
    if (write(turn[1], "x", 1) != 1) return 4;
    waitpid(child, &status, 0);
    if (status) return 6;
    show("parent after child");

    /* Forked when CUDA is in use: the child cannot use CUDA, and its end must not free the parent's slot. */
    child = fork();
    if (child == 0) _exit(CALL(fn_u, "cuInit")(0) == 0 ? 7 : 0);
    waitpid(child, &status, 0);
    show("parent after a fork in use");
    return WEXITSTATUS(status);
}
