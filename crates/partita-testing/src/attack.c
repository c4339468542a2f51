// What a user tries who is up to no good: the first argument says what. Prints `ready` once it is under way, and goes on until it is
// killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

static char *path(const char *directory, const char *name) {
    char *joined = NULL;
    if (asprintf(&joined, "%s/%s", directory, name) < 0) exit(1);
    return joined;
}

static int exchange(const char *one, const char *other) {
    return (int)syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
}

// Makes a directory with all that lead to it, as far as it may.
static void make_all(const char *directory) {
    char *whole = strdup(directory);
    for (char *at = whole + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            mkdir(whole, 0755);
            *at = '/';
        }
    mkdir(whole, 0755);
    free(whole);
}

static void copy(const char *from, const char *to) {
    char bytes[4096];
    int in = open(from, O_RDONLY), out = open(to, O_CREAT | O_RDWR | O_TRUNC, 0644);
    for (ssize_t n; in >= 0 && out >= 0 && (n = read(in, bytes, sizeof bytes)) > 0;)
        if (write(out, bytes, (size_t)n) != n) exit(1);
    close(in);
    close(out);
}

static int range_lock(int fd, short kind, off_t start, off_t length) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

// DIRECTORY SAMPLE: a tenant whose files are copies of the sample's, alive as long as this process.
static void fake(char **v) {
    static const char *files[] = {"limits", "usage", "meta.json"};
    make_all(v[0]);
    for (int i = 0; i < 3; i++) copy(path(v[1], files[i]), path(v[0], files[i]));
    int owner = open(path(v[0], "owner"), O_CREAT | O_RDWR, 0644);
    flock(owner, LOCK_EX | LOCK_NB);
    range_lock(owner, F_WRLCK, 0, 0);
    ready();
    for (;;) pause();
}

// FILE: cut short and made whole again, without pause.
static void cut(char **v) {
    char bytes[4096];
    int fd = open(v[0], O_RDWR);
    ssize_t length = pread(fd, bytes, sizeof bytes, 0);
    if (length <= 0) exit(1);
    ready();
    for (;;) {
        if (pwrite(fd, bytes, (size_t)length, 0) < 0) exit(1);
        for (volatile int i = 0; i < 300; i++) {}
        if (ftruncate(fd, 0)) exit(1);
    }
}

// GPU PARENT NAME: dead tenants in a GPU's directory. When the last one is read, a link to PARENT takes the directory's place, so that NAME is
// removed there.
static void lead_astray(char **v) {
    char name[16];
    make_all(v[0]);
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "A%04d", i);
        mkdir(path(v[0], name), 0755);
    }
    mkdir(path(v[0], v[2]), 0755);
    char *last = path(v[0], "zzzz"), *limits = path(last, "limits");
    mkdir(last, 0755);
    close(open(limits, O_CREAT | O_RDWR, 0644));
    char *link = NULL;
    if (asprintf(&link, "%s.link", v[0]) < 0) exit(1);
    if (symlink(v[1], link)) exit(1);
    int in = inotify_init1(IN_CLOEXEC);
    if (inotify_add_watch(in, limits, IN_OPEN) < 0) exit(1);
    ready();
    struct pollfd polled = {in, POLLIN, 0};
    if (poll(&polled, 1, -1) <= 0 || exchange(v[0], link)) exit(1);
    for (;;) pause();
}

// GPU FILE: waits until a tenant is made in a GPU's directory of this user's, and puts a directory in its place whose files are links to FILE.
static void take_place(char **v) {
    static const char *files[] = {"limits", "usage"};
    mkdir(v[0], 01777);
    chmod(v[0], 01777);
    char *prepared = path(v[0], ".prepared");
    mkdir(prepared, 0755);
    for (int i = 0; i < 2; i++)
        if (symlink(v[1], path(prepared, files[i]))) exit(1);
    int in = inotify_init1(IN_NONBLOCK);
    if (inotify_add_watch(in, v[0], IN_CREATE) < 0) exit(1);
    ready();
    char events[4096];
    for (;;) {
        ssize_t n = read(in, events, sizeof events);
        for (char *at = events; n > 0 && at < events + n;) {
            struct inotify_event *event = (void *)at;
            if (event->len && !strncmp(event->name, ".new-", 5)) {
                char *made = path(v[0], event->name), *usage = path(made, "usage");
                // Until its last file is begun.
                while (access(usage, F_OK) && !access(made, F_OK)) {}
                exchange(prepared, made);
            }
            at += sizeof *event + event->len;
        }
    }
}

// ONE OTHER: exchanges two names, without pause. Says so if it may not.
static void flip(char **v) {
    int cannot = exchange(v[0], v[1]);
    ready();
    if (cannot) puts("cannot exchange the names");
    fflush(stdout);
    for (;;) {
        exchange(v[0], v[1]);
        for (volatile int i = rand() % 20000; i > 0; i--) {}
    }
}

// PATH...: every lock that can be had, on whatever can be opened, again and again; leases and notices of changes beside.
static void lock(char **v) {
    int fds[64], count = 0;
    signal(SIGIO, SIG_IGN);
    for (; v[count] && count < 64; count++) {
        fds[count] = open(v[count], O_RDWR | O_NONBLOCK);
        if (fds[count] < 0) fds[count] = open(v[count], O_RDONLY | O_NONBLOCK);
    }
    for (int first = 1;; first = 0) {
        for (int i = 0; i < count; i++) {
            if (fds[i] < 0) continue;
            struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
            fcntl(fds[i], F_SETLK, &whole);
            fcntl(fds[i], F_SETLEASE, F_WRLCK);
            fcntl(fds[i], F_SETLEASE, F_RDLCK);
            fcntl(fds[i], F_NOTIFY, DN_MULTISHOT | DN_ACCESS | DN_CREATE | DN_DELETE | DN_RENAME | DN_ATTRIB);
            if (flock(fds[i], LOCK_EX | LOCK_NB)) flock(fds[i], LOCK_SH | LOCK_NB);
            if (!range_lock(fds[i], F_WRLCK, 0, 0)) continue;
            if (range_lock(fds[i], F_RDLCK, 0, 0))
                for (int slot = 0; slot < 2050; slot++) range_lock(fds[i], F_RDLCK, 4096 + slot * 256, 256);
        }
        if (first) ready();
        usleep(200);
    }
}

// USAGE [PID TICKS]: a slot of a tenant's ledger, as a process has it whose number is another one outside; or one that names a process.
static void hold(char **v) {
    unsigned long long holder[] = {v[1] ? strtoull(v[1], NULL, 10) : 1, v[1] ? strtoull(v[2], NULL, 10) : 0};
    off_t slot = 4096 + 256;
    int fd = open(v[0], O_RDWR);
    if (fd < 0 || range_lock(fd, F_WRLCK, slot, 256) || pwrite(fd, holder, sizeof holder, slot + 128) != sizeof holder) exit(1);
    ready();
    for (;;) pause();
}

// SOCKET: a simulated board that takes every connection and never answers. Says so.
static void board(char **v) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", v[0]);
    int listening = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (bind(listening, (void *)&address, sizeof address) || listen(listening, 50)) exit(1);
    chmod(v[0], 0777);
    ready();
    while (accept(listening, NULL, NULL) >= 0) {
        puts("connected");
        fflush(stdout);
    }
    exit(1);
}

static void won(const char *what) {
    printf("won %s\n", what);
    fflush(stdout);
}

// PID...: whatever a process can do to another. Says what it was let do.
static void meddle(char **v) {
    for (; *v; v++) {
        pid_t pid = (pid_t)atoi(*v);
        char byte = 0, name[64];
        struct iovec here = {&byte, 1}, there = {(void *)0x10000, 1};
        struct rlimit least = {0, 0};
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(0, &one);
        if (!ptrace(PTRACE_ATTACH, pid, 0, 0)) won("ptrace attach");
        if (!ptrace(PTRACE_SEIZE, pid, 0, 0)) won("ptrace seize");
        for (int signal = 0; signal <= SIGRTMAX; signal++) // SIGCONT goes to everybody in the session.
            if (signal != SIGCONT && !kill(pid, signal)) won("a signal");
        if (!kill(-pid, SIGKILL)) won("a signal to the group");
        if (process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno != EPERM) won("its memory");
        if (process_vm_writev(pid, &here, 1, &there, 1, 0) >= 0 || errno != EPERM) won("its memory to write");
        if (!prlimit(pid, RLIMIT_DATA, &least, NULL)) won("its limits");
        if (!sched_setaffinity(pid, sizeof one, &one)) won("its processors");
        if (!setpriority(PRIO_PROCESS, (id_t)pid, 19)) won("its priority");
        int handle = (int)syscall(SYS_pidfd_open, pid, 0);
        if (handle >= 0 && syscall(SYS_pidfd_send_signal, handle, SIGKILL, NULL, 0) == 0) won("a signal by its handle");
        for (int fd = 0; handle >= 0 && fd < 16; fd++)
            if (syscall(SYS_pidfd_getfd, handle, fd, 0) >= 0) won("a descriptor");
        static const char *files[] = {"mem", "environ", "maps", "fd", "map_files", "oom_score_adj", "coredump_filter"};
        for (int i = 0; i < 7; i++) {
            snprintf(name, sizeof name, "/proc/%d/%s", pid, files[i]);
            if (open(name, i < 5 ? O_RDONLY : O_WRONLY) >= 0) won(name);
        }
    }
    ready();
    for (;;) pause();
}

static int connected(const char *path, int kind) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, kind, 0);
    return fd >= 0 && !connect(fd, (void *)&address, sizeof address) ? fd : -1;
}

// SOCKET...: tries to connect to sockets that are others' own.
static void reach(char **v) {
    for (; *v; v++)
        if (connected(*v, SOCK_STREAM) >= 0 || connected(*v, SOCK_SEQPACKET) >= 0) won(*v);
    ready();
    for (;;) pause();
}

// SOCKET METHOD PATH [BODY]: a request. Prints the status.
static void ask(char **v) {
    static char bytes[1 << 16];
    const char *body = v[3] ? v[3] : "";
    int fd = connected(v[0], SOCK_STREAM);
    if (fd < 0) exit(1);
    dprintf(fd, "%s %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
            v[1], v[2], strlen(body), body);
    ssize_t n = read(fd, bytes, sizeof bytes - 1);
    printf("%.3s\n", n > 12 ? bytes + 9 : "???");
    exit(0);
}

// SOCKET COUNT [TEXT [end]]: so many connections, which say TEXT, and with `end` that this is all. Reads no answer.
static void crowd(char **v) {
    struct rlimit most;
    getrlimit(RLIMIT_NOFILE, &most);
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
    signal(SIGPIPE, SIG_IGN);
    for (int i = atoi(v[1]); i > 0; i--) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        snprintf(address.sun_path, sizeof address.sun_path, "%s", v[0]);
        // A full queue is what is wanted.
        if (connect(fd, (void *)&address, sizeof address)) continue;
        if (v[2] && write(fd, v[2], strlen(v[2])) < 0) continue;
        if (v[2] && v[3]) shutdown(fd, SHUT_WR);
    }
    ready();
    for (;;) pause();
}

// SOCKET: says what comes from standard input, for as long as it is heard.
static void pour(char **v) {
    static char bytes[1 << 16];
    int fd = connected(v[0], SOCK_STREAM);
    for (ssize_t n; (n = read(0, bytes, sizeof bytes)) > 0 && write(fd, bytes, (size_t)n) == n;) {}
    for (;;) pause();
}

// NAME FILE: a process that calls itself NAME and has FILE open.
static void call(char **v) {
    prctl(PR_SET_NAME, v[0]);
    open(v[1], O_RDWR);
    ready();
    for (;;) pause();
}

int main(int count, char **v) {
    static const struct {
        const char *name;
        void (*attack)(char **);
    } attacks[] = {{"fake", fake}, {"cut", cut}, {"lead-astray", lead_astray}, {"take-place", take_place},
                   {"flip", flip}, {"lock", lock}, {"hold", hold}, {"board", board},
                   {"meddle", meddle}, {"reach", reach}, {"ask", ask}, {"call", call}, {"crowd", crowd}, {"pour", pour}};
    // In case the starter has died.
    alarm(300);
    umask(022);
    for (size_t i = 0; count > 1 && i < sizeof attacks / sizeof *attacks; i++)
        if (!strcmp(v[1], attacks[i].name)) attacks[i].attack(v + 2);
    return 2;
}
