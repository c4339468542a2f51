/* Stops its child, which allocates and frees without pause, at any time; and does the same meanwhile. Half of the
 * quota each: nothing is ever refused. */
#include "cuda.h"
#include <signal.h>

static size_t half;

static void one_round(void) {
    address p;
    OK("cuMemAlloc_v2", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, half));
    OK("cuMemFree_v2", CALL(int (*)(address), "cuMemFree_v2")(p));
}

int main(int count, char **arguments) {
    int ready[2];
    alarm(100);
    if (count == 2) {
        start(0);
        half = total_bytes() / 2;
        if (write(atoi(arguments[1]), "r", 1) != 1) return 1;
        for (;;) one_round();
    }
    if (pipe(ready)) return 1;
    int child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", ready[1]);
        execl(arguments[0], arguments[0], number, NULL);
        _exit(1);
    }
    start(0);
    half = total_bytes() / 2;
    char byte;
    if (read(ready[0], &byte, 1) != 1) return 1;
    for (unsigned stop = 0; stop < 60; stop++) {
        usleep(stop * 37 % 400);
        kill(child, SIGSTOP);
        for (int i = 0; i < 4; i++) one_round();
        kill(child, SIGCONT);
    }
    int status;
    if (waitpid(child, &status, WNOHANG) != 0) { printf("the child ended: %d\n", status); return 1; }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("no process waited\n");
    return 0;
}
