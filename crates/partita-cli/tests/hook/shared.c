/* Memory that several processes hold: charged once for the tenant, until the last of them is gone, however it
 * ends. The parent asks its children to do things, and looks at what is left of the quota.
 * Prints what was wrong, or that nothing was. */
#include "cuda.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#define MIB ((size_t)1 << 20)
#define BYTES (64 * MIB)

struct property { unsigned type, handle_types; unsigned location_type; int location; void *win32; unsigned char rest[8]; };
struct external { unsigned type; uint64_t handle[2]; uint64_t size; unsigned flags, rest[16]; };
struct ipc { unsigned char bytes[64]; };

static int failures;
static const char *part;

static void check(const char *what, long long got, long long expected) {
    if (got == expected) return;
    printf("%s: %s: got %lld, expected %lld\n", part, what, got, expected);
    failures++;
}

static int simulated(void) {
    const char *gpu = getenv("PARTITA_GPU");
    return gpu && !strncmp(gpu, "sim", 3);
}

static void send_fd(int socket, int fd) {
    char byte = 0, space[CMSG_SPACE(sizeof fd)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(socket, &message, 0) != 1) die("sendmsg", -1);
}

static int receive_fd(int socket) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    int fd;
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(socket, &message, 0) != 1) die("recvmsg", -1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static void get(int socket, void *to, size_t bytes) {
    if (read(socket, to, bytes) != (ssize_t)bytes) exit(9);
}

static void put(int socket, const void *from, size_t bytes) {
    if (write(socket, from, bytes) != (ssize_t)bytes) exit(8);
}

/* Executes commands, a letter each, and answers with the driver's code. */
static int work(int socket) {
    address p = 0, opened = 0, va = 0;
    uint64_t handle = 0, imported = 0;
    void *external = NULL;
    struct property wanted = {.type = 1, .handle_types = 1, .location_type = 1};
    struct ipc ipc;
    int fd = -1;
    start(0);
    for (char what; read(socket, &what, 1) == 1;) {
        int code = 0;
        switch (what) {
        case 'a': code = CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, BYTES); break;
        case 'f': code = CALL(int (*)(address), "cuMemFree_v2")(p); break;
        case 'h':
            code = CALL(int (*)(struct ipc *, address), "cuIpcGetMemHandle")(&ipc, p);
            put(socket, &ipc, sizeof ipc);
            break;
        case 'o':
            get(socket, &ipc, sizeof ipc);
            code = CALL(int (*)(address *, struct ipc, unsigned), "cuIpcOpenMemHandle_v2")(&opened, ipc, 1);
            break;
        case 'c': code = CALL(int (*)(address), "cuIpcCloseMemHandle")(opened); break;
        case 'v': code = CALL(int (*)(uint64_t *, size_t, struct property *, uint64_t), "cuMemCreate")(&handle, BYTES, &wanted, 0); break;
        case 'e':
            code = CALL(int (*)(int *, uint64_t, unsigned, uint64_t), "cuMemExportToShareableHandle")(&fd, handle, 1, 0);
            send_fd(socket, fd);
            close(fd);
            break;
        case 'r': code = CALL(int (*)(uint64_t), "cuMemRelease")(handle); break;
        case 'i':
            fd = receive_fd(socket);
            code = CALL(int (*)(uint64_t *, void *, unsigned), "cuMemImportFromShareableHandle")(&imported, (void *)(intptr_t)fd, 1);
            close(fd);
            break;
        case 'm':
            code = CALL(int (*)(address *, size_t, size_t, address, uint64_t), "cuMemAddressReserve")(&va, BYTES, 0, 0, 0);
            if (!code) code = CALL(int (*)(address, size_t, size_t, uint64_t, uint64_t), "cuMemMap")(va, BYTES, 0, imported, 0);
            break;
        case 'u': code = CALL(int (*)(address, size_t), "cuMemUnmap")(va, BYTES); break;
        case 'd': code = CALL(int (*)(uint64_t), "cuMemRelease")(imported); break;
        case 'x': {
            struct external of = {.type = 1, .handle = {(unsigned)receive_fd(socket)}, .size = BYTES};
            code = CALL(int (*)(void **, struct external *), "cuImportExternalMemory")(&external, &of);
            break;
        }
        case 'y': code = CALL(fn_p, "cuDestroyExternalMemory")(external); break;
        default: exit(7);
        }
        put(socket, &code, sizeof code);
    }
    return 0;
}

struct child { int pid, socket; };

/* A process of the tenant; an outsider is none, which the hook is not in. */
static struct child begin(const char *self, int outsider) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) die("socketpair", -1);
    struct child child = {fork(), ends[0]};
    if (child.pid == 0) {
        char number[16];
        fcntl(ends[1], F_SETFD, 0);
        snprintf(number, sizeof number, "%d", ends[1]);
        if (outsider) {
            unsetenv("LD_PRELOAD");
            unsetenv("PARTITA_LEDGER");
        }
        execl(self, self, "work", number, NULL);
        die("exec", -1);
    }
    close(ends[1]);
    return child;
}

static int ask(struct child of, char what) {
    int code;
    put(of.socket, &what, 1);
    get(of.socket, &code, sizeof code);
    return code;
}

/* Asks `from` for a handle and has `to` open it. */
static int hand_over(struct child from, struct child to) {
    struct ipc ipc;
    int code;
    put(from.socket, "h", 1);
    get(from.socket, &ipc, sizeof ipc);
    get(from.socket, &code, sizeof code);
    if (code) die("cuIpcGetMemHandle", code);
    put(to.socket, "o", 1);
    put(to.socket, &ipc, sizeof ipc);
    get(to.socket, &code, sizeof code);
    return code;
}

/* The same with a descriptor, for `how` to import it. */
static int hand_over_fd(struct child from, struct child to, char how) {
    int code;
    put(from.socket, "e", 1);
    int fd = receive_fd(from.socket);
    get(from.socket, &code, sizeof code);
    if (code) die("cuMemExportToShareableHandle", code);
    put(to.socket, &how, 1);
    send_fd(to.socket, fd);
    close(fd);
    get(to.socket, &code, sizeof code);
    return code;
}

static void end(struct child child, int by_force) {
    if (by_force) kill(child.pid, SIGKILL);
    close(child.socket);
    waitpid(child.pid, NULL, 0);
}

int main(int count, char **arguments) {
    alarm(60); /* nothing here waits */
    if (count == 3) return work(atoi(arguments[2]));
    struct child maker = begin(arguments[0], 0), one = begin(arguments[0], 0), two = begin(arguments[0], 0);
    struct child outsider = begin(arguments[0], 1);
    start(0);
    size_t all = free_bytes();

    part = "legacy handles";
    check("alloc", ask(maker, 'a'), 0);
    check("charged", all - free_bytes(), BYTES);
    check("open", hand_over(maker, one), 0);
    check("open", hand_over(maker, two), 0);
    check("charged once", all - free_bytes(), BYTES);
    check("close", ask(one, 'c'), 0);
    check("close", ask(two, 'c'), 0);
    check("the maker's still", all - free_bytes(), BYTES);
    check("open", hand_over(maker, one), 0);
    check("free", ask(maker, 'f'), 0);
    check("who has it open pays", all - free_bytes(), BYTES);
    check("close", ask(one, 'c'), 0);
    check("credited", all - free_bytes(), 0);

    part = "legacy handles from outside";
    check("alloc", ask(outsider, 'a'), 0);
    check("not the tenant's", all - free_bytes(), 0);
    check("open", hand_over(outsider, one), 0);
    check("charged", all - free_bytes(), BYTES);
    check("open", hand_over(outsider, two), 0);
    check("charged once", all - free_bytes(), BYTES);
    check("close", ask(one, 'c'), 0);
    check("charged still", all - free_bytes(), BYTES);
    check("close", ask(two, 'c'), 0);
    check("credited", all - free_bytes(), 0);

    part = "descriptors";
    check("create", ask(maker, 'v'), 0);
    check("import", hand_over_fd(maker, one, 'i'), 0);
    check("import", hand_over_fd(maker, two, 'i'), 0);
    check("map", ask(two, 'm'), 0);
    check("charged once", all - free_bytes(), BYTES);
    check("release", ask(maker, 'r'), 0);
    check("who imported it pays", all - free_bytes(), BYTES);
    check("release", ask(one, 'd'), 0);
    check("release", ask(two, 'd'), 0);
    check("mapped, so held", all - free_bytes(), BYTES);
    check("unmap", ask(two, 'u'), 0);
    check("credited", all - free_bytes(), 0);

    part = "descriptors from outside";
    check("create", ask(outsider, 'v'), 0);
    check("import", hand_over_fd(outsider, one, 'i'), 0);
    check("map", ask(one, 'm'), 0);
    check("charged as it is mapped", all - free_bytes(), BYTES);
    check("unmap", ask(one, 'u'), 0);
    check("release", ask(one, 'd'), 0);
    check("credited", all - free_bytes(), 0);

    part = "another interface's memory";
    int code = hand_over_fd(outsider, two, 'x');
    if (code == 0) {
        check("charged", all - free_bytes(), BYTES);
        check("end", ask(two, 'y'), 0);
        check("credited", all - free_bytes(), 0);
    } else if (simulated()) {
        check("import", code, 0);
    } /* A real driver takes only what such an interface has made. */

    part = "the end of processes";
    check("alloc", ask(maker, 'a'), 0);
    check("create", ask(maker, 'v'), 0);
    check("open", hand_over(maker, one), 0);
    check("import", hand_over_fd(maker, two, 'i'), 0);
    check("charged", all - free_bytes(), 2 * BYTES);
    end(maker, 1);
    check("the maker was killed", all - free_bytes(), 2 * BYTES);
    end(one, 1);
    check("one was killed", all - free_bytes(), BYTES);
    end(two, 0);
    check("the other has ended", all - free_bytes(), 0);

    part = "beyond the quota";
    address p;
    struct child last = begin(arguments[0], 0);
    check("alloc", ask(outsider, 'a'), 0);
    check("nearly all", CALL(int (*)(address *, size_t), "cuMemAlloc_v2")(&p, all - BYTES + 1), 0);
    check("open", hand_over(outsider, last), 205);
    check("import", hand_over_fd(outsider, last, 'i'), 0);
    check("map", ask(last, 'm'), 2);
    check("import of another interface's", hand_over_fd(outsider, last, 'x'), 304);
    check("unchanged", free_bytes(), BYTES - 1);
    check("free", CALL(int (*)(address), "cuMemFree_v2")(p), 0);
    check("open", hand_over(outsider, last), 0);
    end(last, 0);
    end(outsider, 0);
    if (!failures) printf("every share ok\n");
    return failures != 0;
}
