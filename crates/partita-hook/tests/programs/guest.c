/* Uses the GPU once in an unusual place, and says what the driver answered: "0 0" where all is well.
 * The first argument names the place; "none" is a process that has nothing to do with CUDA. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

typedef int (*init)(unsigned);
typedef int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static int use(char *said, size_t room) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return snprintf(said, room, "%s\n", dlerror());
    init cuInit = (init)dlsym(driver, "cuInit");
    launch cuLaunchKernel = (launch)dlsym(driver, "cuLaunchKernel");
    int initialised = cuInit(0);
    return snprintf(said, room, "%d %d\n", initialised, cuLaunchKernel((void *)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void say(int to) {
    char said[256];
    int length = use(said, sizeof said);
    if (write(to, said, (size_t)length) != length) _exit(9);
}

static void *in_thread(void *unused) {
    say(STDOUT_FILENO);
    return unused;
}

static int wait_for(pid_t child) {
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) return 8;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 7;
}

/* What programs without CUDA do that passes the library: names that begin like CUDA's, devices, children. */
static int without_cuda(void) {
    void *c = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL), *none = dlopen("libnot-there.so", RTLD_LAZY);
    int window[4], failed = ioctl(STDIN_FILENO, TIOCGWINSZ, window);
    (void)failed;
    if (none || !dlsym(RTLD_DEFAULT, "getpid") || !dlsym(RTLD_NEXT, "malloc")) return 1;
    if (dlsym(RTLD_DEFAULT, "curl_easy_init") || (c && dlsym(c, "cuserid") == NULL && dlsym(c, "culling"))) return 2;
    pid_t child = fork();
    if (child == 0) _exit(0);
    return wait_for(child);
}

int main(int count, char **arguments) {
    const char *place = count > 1 ? arguments[1] : "here";
    if (!strcmp(place, "none")) return without_cuda();
    if (!strcmp(place, "closed")) {
        int to = fcntl(STDOUT_FILENO, F_DUPFD, 100);
        for (int stream = 0; stream < 3; stream++) close(stream);
        say(to);
    } else if (!strcmp(place, "thread")) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, in_thread, NULL)) return 3;
        pthread_join(thread, NULL);
    } else if (!strcmp(place, "fork")) {
        say(STDOUT_FILENO);
        pid_t child = fork();
        if (child == 0) {
            say(STDOUT_FILENO);
            _exit(0);
        }
        return wait_for(child);
    } else if (!strcmp(place, "vfork") || !strcmp(place, "spawn")) {
        char *again[] = {arguments[0], "here", NULL};
        pid_t child = -1;
        if (*place == 's') posix_spawn(&child, arguments[0], NULL, NULL, again, environ);
        else if ((child = vfork()) == 0) {
            execve(arguments[0], again, environ);
            _exit(6);
        }
        return wait_for(child);
    } else if (!strcmp(place, "strict")) {
        /* Seccomp's strict mode leaves read, write and the end; what it kills has made another system call. */
        char said[256];
        use(said, sizeof said);
        launch cuLaunchKernel = (launch)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel");
        if (prctl(PR_SET_SECCOMP, 1)) return 4;
        int launched = cuLaunchKernel((void *)0x1000, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        write(STDOUT_FILENO, launched ? "bad\n" : "0 0\n", 4);
        syscall(SYS_exit, 0);
    } else if (!strcmp(place, "limited")) {
        struct rlimit files = {8, 8}, memory = {256 << 20, 256 << 20}, processes = {0, 0};
        setrlimit(RLIMIT_NOFILE, &files);
        setrlimit(RLIMIT_AS, &memory);
        setrlimit(RLIMIT_NPROC, &processes);
        say(STDOUT_FILENO);
    } else say(STDOUT_FILENO);
    return 0;
}
