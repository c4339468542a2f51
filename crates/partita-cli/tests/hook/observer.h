/* A process without the hook, which tells how many bytes of the device are free. It is the test's program once more, run as
 * `PROGRAM observe SOCKET`. */
#ifndef OBSERVER_H
#define OBSERVER_H
#include "cuda.h"
#include <sys/socket.h>

static int observe(int socket) {
    char byte;
    start(0);
    while (read(socket, &byte, 1) == 1) {
        size_t left = free_bytes();
        if (write(socket, &left, sizeof left) != sizeof left) return 1;
    }
    return 0;
}

/* Starts it; the socket by which it is asked. */
static int begin_observer(const char *program) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) die("socketpair", -1);
    if (fork() == 0) {
        char number[16];
        close(ends[0]);
        snprintf(number, sizeof number, "%d", ends[1]);
        unsetenv("LD_PRELOAD");
        unsetenv("PARTITA_LEDGER");
        execl(program, program, "observe", number, NULL);
        _exit(1);
    }
    close(ends[1]);
    return ends[0];
}

static size_t ask(int socket) {
    size_t left;
    if (write(socket, "?", 1) != 1 || read(socket, &left, sizeof left) != sizeof left) die("the observer", -1);
    return left;
}
#endif
